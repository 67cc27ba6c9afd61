"""In which order attempts are looked after, where there may not be time for all of them at once.

Source: SPEC C9.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Whose = tuple[int, str]  # priority and user


class Claim(NamedTuple):
    """An attempt that is to be looked after."""

    job: str
    user: str
    priority: int  # higher goes first
    place: int  # among those of its user

    @property
    def whose(self) -> Whose:
        """Whose turn is taken with it."""
        return self.priority, self.user


def in_turns(claims: Iterable[Claim], had_turn: Mapping[str, Whose]) -> list[str]:
    """Return the jobs in their order: those that had no turn yet, then higher priorities, then users by turns.

    So a user with thousands of attempts keeps none of another user's waiting for more than one of their own.

    Args:
        claims: The attempts.
        had_turn: Whose turn it was, of each job that had one since there last was time for all; some may be over.
    """
    had = Counter(had_turn.values())
    taken: Counter[tuple[bool, Whose]] = Counter()
    keys = []
    for it in sorted(claims, key=lambda it: it.place):
        again = it.job in had_turn
        keys.append((again, -it.priority, taken[again, it.whose] + (0 if again else had[it.whose]), it.place, it.job))
        taken[again, it.whose] += 1
    return [key[-1] for key in sorted(keys)]
