"""Which nodes answer. Reads no clock, network or store.

Source: SPEC C9, F1. Several unanswered polls are needed before anything is concluded, and what is concluded is a fact
about the node, never about its jobs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..store.database.schema import Liveness
from ..store.rows.nodes import NodeRow

SUSPECT_MISSES, DOWN_MISSES = 3, 6  # polls without an answer, in a row
AT_ONCE_S, AT_ONCE_SHARE, AT_ONCE_LEAST = 60.0, 0.3, 2  # nodes that fall silent together are not to blame themselves


class Judged(NamedTuple):
    """Nodes as they stand after a look."""

    nodes: list[NodeRow]
    at_once: frozenset[str]  # nodes that fell silent within a minute, more than can be their own fault; often none


def judge(nodes: Sequence[NodeRow], answered_s: Mapping[str, float], now_s: float, *, polls: bool) -> Judged:
    """Return how nodes stand after a look at them.

    Args:
        nodes: As they stood before.
        answered_s: Unix time of the last answer that is known of each; one that is not there has not answered.
        now_s: The present.
        polls: Whether an answer is due, so that one that has not come is missed. A scheduler that was held up itself
            has missed one poll, however long it took.
    """
    heard = [_heard(row, answered_s.get(row.name, 0.0), polls=polls) for row in nodes]
    silent = at_once([(row.seen_s, row.name) for row in heard if row.misses >= SUSPECT_MISSES], len(heard))
    return Judged([_named(row, silent, now_s) for row in heard], silent)


def _heard(row: NodeRow, answered_s: float, *, polls: bool) -> NodeRow:
    # Any other time than the last one is an answer: clocks are set back.
    if answered_s > 0.0 and answered_s != row.seen_s:
        return row._replace(seen_s=answered_s, misses=0)
    return row._replace(misses=row.misses + 1) if polls else row


def at_once(troubled: Iterable[tuple[float, str]], nodes: int) -> frozenset[str]:
    """Return the nodes that fell ill in the same minute as so many others that it cannot be the fault of each.

    Args:
        troubled: Unix time at which each began, and its name.
        nodes: All that there are.
    """
    troubled = sorted(troubled)
    times_s = [began_s for began_s, _ in troubled]
    found: set[str] = set()
    for last, (began_s, _) in enumerate(troubled):
        first = bisect_left(times_s, began_s - AT_ONCE_S)
        many = last + 1 - first
        if many >= AT_ONCE_LEAST and many > AT_ONCE_SHARE * nodes:
            found.update(name for _, name in troubled[first : last + 1])
    return frozenset(found)


def _named(row: NodeRow, at_once: frozenset[str], now_s: float) -> NodeRow:
    liveness = _liveness(row, at_once)
    return row if liveness is row.liveness else row._replace(liveness=liveness, since_s=now_s)


def _liveness(row: NodeRow, at_once: frozenset[str]) -> Liveness:
    if row.misses < SUSPECT_MISSES:
        return Liveness.UP
    if row.misses < DOWN_MISSES or row.name in at_once or (at_once and row.liveness is not Liveness.DOWN):
        return Liveness.SUSPECT
    return Liveness.DOWN
