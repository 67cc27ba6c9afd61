"""Which nodes answer, by reports, leases and probes of the port of their agents; and their state in one word.

Several unanswered polls are needed before anything is concluded (`judge`), and what is concluded is a fact about the
node, never about its jobs.

`Leases` of nodes prove by time that nothing of the scheduler's jobs runs on a node that does not answer. An agent that
guards its node kills the processes of all attempts there once it has had no answer for `LEASE_S` by its own clock. It
counts from the time of its report, the scheduler from the time of its answer, which is later. So after `LEASE_S` and
`LEASE_MARGIN_S` without an answer the processes are gone. All clocks here are monotonic.

Source: SPEC C9, F1; docs/nodes.md, States; docs/nodes.md, Leases.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from ...cluster.model.placement import Placement
from ..model.gpu_index import HardwarePlace, QuarantineEntry
from ..model.states import ProbeVerdict
from ..store.nodes import NodeRow
from ..store.schema import Liveness
from .evidence import NO_EVIDENCE, AgentReport, Evidence, verdict_of, words_of

SUSPECT_MISSES, DOWN_MISSES = 3, 6  # polls without an answer, in a row
AT_ONCE_S, AT_ONCE_SHARE, MIN_AT_ONCE = 60.0, 0.3, 2  # nodes that fall silent together are not the cause


def judge(
    nodes: Sequence[NodeRow], answered_s: Mapping[str, float], now_s: float, *, polls: bool,
    found: Mapping[str, Evidence] = MappingProxyType({}),
) -> tuple[list[NodeRow], frozenset[str]]:  # fmt: skip
    """Return the rows of nodes after a poll, and those that fell silent within a minute, too many for their own faults.

    Args:
        nodes: Their rows before.
        answered_s: Unix time of the last known answer of each; a missing one has not answered.
        now_s: The present.
        polls: Whether an answer is due, so that a node without one has missed it. A scheduler that was blocked itself
            has missed one poll, however long that took.
        found: Evidence about agents that are silent.
    """
    polled = [_with_answer(row, answered_s.get(row.name, 0.0), polls=polls) for row in nodes]
    silent = at_once([(row.seen_s, row.name) for row in polled if row.misses >= SUSPECT_MISSES], len(polled))
    return [_named(row, silent, found.get(row.name, NO_EVIDENCE), now_s) for row in polled], silent


def _with_answer(row: NodeRow, answered_s: float, *, polls: bool) -> NodeRow:
    # Any other time than the last one is an answer: clocks are set back.
    if answered_s > 0.0 and answered_s != row.seen_s:
        return row._replace(seen_s=answered_s, misses=0)
    return row._replace(misses=row.misses + 1) if polls else row


def at_once(troubled: Iterable[tuple[float, str]], nodes: int) -> frozenset[str]:
    """Return the nodes whose trouble began in the same minute as that of too many others for faults of their own.

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
        if many >= MIN_AT_ONCE and many > AT_ONCE_SHARE * nodes:
            found.update(name for _, name in troubled[first : last + 1])
    return frozenset(found)


def _named(row: NodeRow, at_once: frozenset[str], found: Evidence, now_s: float) -> NodeRow:
    verdict = verdict_of(found)
    liveness = _liveness(row, at_once, verdict)
    if liveness is Liveness.UP:
        row = row._replace(verdict=ProbeVerdict.NONE, found="")
    else:
        row = row._replace(verdict=_verdict(row, liveness, verdict), found=words_of(found) or row.found)
    return row if liveness is row.liveness else row._replace(liveness=liveness, since_s=now_s)


def _liveness(row: NodeRow, at_once: frozenset[str], verdict: ProbeVerdict) -> Liveness:
    was_down = row.liveness is Liveness.DOWN
    if row.misses < SUSPECT_MISSES:
        return Liveness.UP
    if row.name in at_once or (at_once and not was_down):
        return Liveness.SUSPECT
    return Liveness.DOWN if was_down or row.misses >= DOWN_MISSES or verdict is ProbeVerdict.GONE else Liveness.SUSPECT


def _verdict(row: NodeRow, liveness: Liveness, verdict: ProbeVerdict) -> ProbeVerdict:
    """Return the verdict of a node: while it is down, the last one stays until there is another."""
    if liveness is not Liveness.DOWN:
        return ProbeVerdict.NONE
    before = row.verdict if row.liveness is Liveness.DOWN else ProbeVerdict.NONE
    return before if verdict is ProbeVerdict.NONE or (before.is_dead and verdict.is_dead) else verdict


LEASE_S = 10.0  # for which an answer lets processes live
LEASE_MARGIN_S = 2.0  # for the kill itself, and for clocks that do not run equally fast
FENCED = "fenced"  # of a node: the state in the event


class Granted(NamedTuple):
    """The answer to a report of an agent."""

    lease_s: float | None  # None where no leases are granted
    token: int  # of the granting scheduler: the agent ignores lower ones
    kill: tuple[str, ...] = ()  # attempts that the store has given up, and that the agent must kill


NO_LEASE = Granted(None, 0)


class Leases:
    """The leases of all nodes as one scheduler knows them. Any thread may use it.

    Args:
        passed_s: By the monotonic clock.
    """

    def __init__(self, passed_s: Callable[[], float] = time.monotonic) -> None:
        self._passed_s = passed_s
        self._lock = threading.Lock()
        self._began_s = passed_s()
        self._granted_s: dict[str, float] = {}

    def begin(self) -> None:
        """Begin to lead: another scheduler may have granted leases up to now."""
        with self._lock:
            self._began_s = self._passed_s()
            self._granted_s.clear()

    def grant(self, node: str, token: int, leads: Callable[[], bool]) -> Granted:
        """Grant a lease to the agent of a node, if this scheduler surely leads at this moment.

        Args:
            node: Of the agent.
            token: Of the scheduler's own lease.
            leads: Returns whether it leads. It is called once the lease is recorded, as a scheduler that takes over
                meanwhile waits longer.
        """
        with self._lock:
            self._granted_s[node] = self._passed_s()
            return Granted(LEASE_S, token) if leads() else NO_LEASE

    def has_run_out(self, node: str) -> bool:
        """Return whether no lease of a node can be valid any more, by any scheduler."""
        with self._lock:
            last_s = max(self._granted_s.get(node, self._began_s), self._began_s)
            return self._passed_s() - last_s > LEASE_S + LEASE_MARGIN_S


def is_gone(
    attempt: str, placement: Placement, fenced: Collection[str], reports: Mapping[str, AgentReport], since_s: float
) -> bool:  # fmt: skip
    """Return whether no process of an attempt that ran lives on any of its nodes, by leases and by what agents see.

    Args:
        attempt: Its name. All its ranks ran, so none of them starts any more.
        placement: Its GPUs.
        fenced: Nodes whose leases have run out.
        reports: The last report of each agent.
        since_s: When the backend was asked to stop it, by the clock of the reports' arrival.
    """
    return all(share.node in fenced or _does_not_see(reports.get(share.node), attempt, since_s) for share in placement)


def _does_not_see(report: AgentReport | None, attempt: str, since_s: float) -> bool:
    """Return whether an agent that sees all processes of its node does not see an attempt any more."""
    if report is None or report.content.attempts is None or report.came_s <= since_s:
        return False
    return attempt not in report.content.attempts


class NodeWord(StrEnum):
    """The state of a node."""

    ALIVE = "alive"
    SUSPECT = "suspect"  # it has missed answers
    UNREACHABLE = "unreachable"  # it has missed twice as many; jobs there may continue
    DEAD = "dead"  # the same, and no other node reaches its agent either
    FENCED = "fenced"  # its lease has run out: its agent has killed what ran there
    QUARANTINED = "quarantined"  # it answers, and is in quarantine


class NodeState(NamedTuple):
    """A state, and the evidence for it."""

    state: NodeWord
    evidence: str


def state_of(row: NodeRow, quarantines: Sequence[QuarantineEntry], *, is_fenced: bool, now_s: float) -> NodeState:
    """Return the state of a node, by the open quarantines of all nodes, and whether its lease has run out."""
    if row.liveness is Liveness.UP:
        whole = next((quarantine for quarantine in quarantines if quarantine.place == HardwarePlace(row.name)), None)
        if whole is not None:
            return NodeState(NodeWord.QUARANTINED, f"{whole.cause} ({whole.check}); {whole.action}")
        return NodeState(NodeWord.ALIVE, _seen(row, now_s))
    silence = f"{row.misses} answers missed in a row, {_seen(row, now_s)}"
    if row.found:
        silence += f"; {row.found}"
    if is_fenced:
        return NodeState(NodeWord.FENCED, f"{silence}; its lease has run out, so its agent has killed what ran there")
    if row.liveness is Liveness.SUSPECT:
        frozen = "" if row.misses < DOWN_MISSES else "; many nodes fell silent together, so none of them is declared"
        return NodeState(NodeWord.SUSPECT, silence + frozen)
    if row.verdict.is_dead:
        return NodeState(NodeWord.DEAD, f"{row.verdict}: {silence}")
    return NodeState(NodeWord.UNREACHABLE, silence)


def _seen(row: NodeRow, now_s: float) -> str:
    return f"last answer {max(now_s - row.seen_s, 0.0):.0f} s ago" if row.seen_s else "no answer yet"
