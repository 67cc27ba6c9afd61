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


def pairs_of(members: Sequence[str]) -> list[Pair]:
    """Return disjoint pairs of neighbours; of an odd number the last member has none."""
    return [(members[at], members[at + 1]) for at in range(0, len(members) - 1, 2)]


def suspects_of(members: Sequence[str], bad_pairs: Iterable[Pair]) -> list[str]:
    """Return the members that have not been in a pair that was good, in their order."""
    accused = {member for pair in bad_pairs for member in pair}
    paired = {member for pair in pairs_of(members) for member in pair}
    return [member for member in members if member in accused or member not in paired]


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
