"""Which member of a group is bad, found in three rounds: all, pairs, and suspects with good ones. It runs nothing.

Source: SPEC C3, C4; the pairwise sweeps of cluster health tools.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is bad, and who cannot be told apart."""

    bad: frozenset[str] = frozenset()
    unclear: frozenset[str] = frozenset()  # no good partner was left to try them with


def first_pairs(members: Sequence[str]) -> list[list[Pair]]:
    """Return pairs of neighbours, in rounds of pairs that are disjoint.

    One round will do: of an odd number the last member has no partner, and is tried later. Three members take three
    rounds, as nobody would be known to be good otherwise.
    """
    if len(members) == 3:
        return [[(members[0], members[1])], [(members[1], members[2])], [(members[2], members[0])]]
    return [[(members[at], members[at + 1]) for at in range(0, len(members) - 1, 2)]]


def suspects_of(members: Sequence[str], bad_pairs: Iterable[Pair]) -> list[str]:
    """Return the members that have not been in a pair that was good, in their order."""
    bad = set(bad_pairs)
    good = {member for pairs in first_pairs(members) for pair in pairs if pair not in bad for member in pair}
    return [member for member in members if member not in good]


def second_pairs(members: Sequence[str], suspects: Sequence[str]) -> list[list[Pair]]:
    """Return each suspect with a good member, in as few rounds of disjoint pairs as can be.

    Returns:
        The rounds; none if nobody is known to be good.
    """
    good = [member for member in members if member not in suspects]
    if not good:
        return []
    return [list(zip(suspects[at : at + len(good)], good, strict=False)) for at in range(0, len(suspects), len(good))]


def verdict_of(members: Sequence[str], suspects: Sequence[str], bad_second: Iterable[Pair]) -> Verdict:
    """Return who is bad.

    Args:
        members: All of them.
        suspects: Of the first pairs.
        bad_second: Pairs of a suspect and a good member that were bad.
    """
    if len(suspects) == len(members):
        return Verdict(unclear=frozenset(suspects))
    return Verdict(bad=frozenset(suspect for suspect, _ in bad_second))
