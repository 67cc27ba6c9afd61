"""When it pays to put state away: while nothing needs it for longer than the copies take.

Source: SPEC P4.
"""

from enum import StrEnum
from typing import NamedTuple

MARGIN_S = 0.005  # by which an expectation may be wrong; a copy back begins so much earlier, too


class Offload(StrEnum):
    """Whether state is put away."""

    never = "never"
    auto = "auto"  # while nothing needs it for longer than both copies take
    one_copy = "one-copy"  # the reading of the source: longer than one copy takes


class Copies(NamedTuple):
    """What the copies of one piece of state take."""

    out_s: float
    back_s: float
    out_core_s: float = 0.0  # of these, what keeps a core busy
    back_core_s: float = 0.0


def pays(idle_s: float, copies: Copies, how: Offload) -> bool:
    """Return whether state goes out that nothing needs for a time."""
    if how is Offload.never:
        return False
    return idle_s > (copies.out_s if how is Offload.one_copy else copies.out_s + copies.back_s) + MARGIN_S


def back_at_s(needed_at_s: float, copies: Copies) -> float:
    """Return when the copy back has to begin."""
    return needed_at_s - copies.back_s - MARGIN_S


def unhidden_s(wait_s: float, copies: Copies, *, both_in_wait: bool, has_own_core: bool) -> float:
    """Return by how much a step gets longer if the state goes out in it.

    Args:
        wait_s: For others, at whose end the state is needed. The copy back begins no earlier than the wait.
        copies: What they take.
        both_in_wait: Whether the copy out, too, is in the wait; else it goes on while the rank computes.
        has_own_core: Whether copies run beside the computation, and do not take its core.
    """
    late_s = max(0.0, copies.back_s + (copies.out_s if both_in_wait else 0.0) - wait_s)
    return late_s if both_in_wait or has_own_core else late_s + copies.out_core_s


def reason(what: str, size_bytes: int, idle_s: float, copies: Copies, how: Offload) -> str:
    """Return in one line whether state goes out, and why."""
    goes = pays(idle_s, copies, how)
    sides = [f"{1e3 * copies.out_s:.1f} ms out"]
    sides += [] if how is Offload.one_copy else [f"{1e3 * copies.back_s:.1f} ms back"]
    sides += [f"{1e3 * MARGIN_S:.0f} ms margin"]
    return (
        f"{what} ({size_bytes / 1e6:.1f} MB) {'goes out' if goes else 'stays'}: nothing needs it for "
        f"{1e3 * idle_s:.1f} ms, {'more' if goes else 'not more'} than {' + '.join(sides)}"
    )
