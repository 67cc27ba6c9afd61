"""Which nodes answer. Reads no clock, network or store.

Source: SPEC C9, F1. Several unanswered polls are needed before anything is concluded, and what is concluded is a fact
about the node, never about its jobs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..model.states import Verdict
from ..store.database.schema import Liveness
from ..store.rows.nodes import NodeRow
from .witnessing.verdict import NOTHING, Evidence, verdict_of, words_of

SUSPECT_MISSES, DOWN_MISSES = 3, 6  # polls without an answer, in a row
AT_ONCE_S, AT_ONCE_SHARE, AT_ONCE_LEAST = 60.0, 0.3, 2  # nodes that fall silent together are not to blame themselves


class Judged(NamedTuple):
    """Nodes as they stand after a look."""

    nodes: list[NodeRow]
    at_once: frozenset[str]  # nodes that fell silent within a minute, more than can be their own fault; often none


def judge(
    nodes: Sequence[NodeRow], answered_s: Mapping[str, float], now_s: float, *, polls: bool,
    found: Mapping[str, Evidence] = MappingProxyType({}),
) -> Judged:  # fmt: skip
    """Return how nodes stand after a look at them.

    Args:
        nodes: As they stood before.
        answered_s: Unix time of the last answer that is known of each; one that is not there has not answered.
        now_s: The present.
        polls: Whether an answer is due, so that one that has not come is missed. A scheduler that was held up itself
            has missed one poll, however long it took.
        found: At the doors of agents that are silent.
    """
    heard = [_heard(row, answered_s.get(row.name, 0.0), polls=polls) for row in nodes]
    silent = at_once([(row.seen_s, row.name) for row in heard if row.misses >= SUSPECT_MISSES], len(heard))
    return Judged([_named(row, silent, found.get(row.name, NOTHING), now_s) for row in heard], silent)


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


def _named(row: NodeRow, at_once: frozenset[str], found: Evidence, now_s: float) -> NodeRow:
    verdict = verdict_of(found)
    liveness = _liveness(row, at_once, verdict)
    if liveness is Liveness.UP:
        row = row._replace(verdict=Verdict.NONE, found="")
    else:
        row = row._replace(verdict=_verdict(row, liveness, verdict), found=words_of(found) or row.found)
    return row if liveness is row.liveness else row._replace(liveness=liveness, since_s=now_s)


def _liveness(row: NodeRow, at_once: frozenset[str], verdict: Verdict) -> Liveness:
    was_down = row.liveness is Liveness.DOWN
    if row.misses < SUSPECT_MISSES:
        return Liveness.UP
    if row.name in at_once or (at_once and not was_down):
        return Liveness.SUSPECT
    return Liveness.DOWN if was_down or row.misses >= DOWN_MISSES or verdict is Verdict.GONE else Liveness.SUSPECT


def _verdict(row: NodeRow, liveness: Liveness, verdict: Verdict) -> Verdict:
    """Return what a node counts as: as long as it is down, what was concluded stands until something else is."""
    if liveness is not Liveness.DOWN:
        return Verdict.NONE
    before = row.verdict if row.liveness is Liveness.DOWN else Verdict.NONE
    return before if verdict is Verdict.NONE or (before.is_dead and verdict.is_dead) else verdict
