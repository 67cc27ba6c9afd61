"""The monitor: reads the state of all nodes, and decides which GPUs jobs may get and which they must leave.

Several unanswered polls are needed before anything is concluded of a node (`judge_nodes`), and what is concluded is a
fact about the node, never about its jobs.

`Leases` of nodes prove by time that nothing of the scheduler's jobs runs on a node that does not answer. An agent that
guards its node kills the processes of all attempts there once it has had no answer for `LEASE_S` by its own clock. It
counts from the time of its report, the scheduler from the time of its answer, which is later. So after `LEASE_S` and
`LEASE_MARGIN_S` without an answer the processes are gone. All clocks here are monotonic.

`Accusers` finds out whether too many nodes began to report faulty GPUs together. If a driver breaks everywhere, the
agents report it one after the other, and the second report of the first one would take its GPUs away. So a node counts
from its first such report on. But a node that withdraws such a report, or does not repeat it, could keep true faults of
others from being acted on as often as it likes: for a while it counts only from the second report in a row on, which
takes its own GPUs away. And after a repair, agents report one after the other that their GPUs are healthy: for a while
the last ones are not acted on.

A scheduler that continues from another one's store knows which nodes have faulty GPUs, and since when. Their reports of
that within a minute do not mean that the faults began together.

Source: SPEC C9, F1; docs/nodes.md, States, Leases; docs/api.md.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.files.errors import BackendError
from ...cluster.model.placement import Placement
from ..backends.protocol import Backend, NodeView
from ..logs import Repeats
from ..model.gpu_index import HardwarePlace, Layout, QuarantineEntry
from ..model.job import NewEvent, attempt_name
from ..model.states import ProbeVerdict
from ..rules.quarantine import Fleet
from ..store.attempts import held_gpus
from ..store.database import Store
from ..store.nodes import (
    ALARM,
    CHANGE,
    FAULTY,
    HEALTHY,
    GpuRow,
    NodeRow,
    list_gpus,
    list_nodes,
    nodes_out_of_service,
    quarantined_gpus,
    write_health,
)
from ..store.schema import Liveness
from .evidence import (
    AT_ONCE_S,
    AT_ONCE_SHARE,
    MIN_AT_ONCE,
    NO_EVIDENCE,
    AgentReport,
    Evidence,
    Reports,
    Witnesses,
    calls_gpu_faulty,
    evidence_words,
    verdict_of,
)
from .link_probes import LinkTable
from .step_monitor import StepMonitor

SUSPECT_MISSES, DOWN_MISSES = 3, 6  # polls without an answer, in a row


def judge_nodes(
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
    polled = [_with_poll_counted(row, answered_s.get(row.name, 0.0), polls=polls) for row in nodes]
    silent = troubled_together([(row.seen_s, row.name) for row in polled if row.misses >= SUSPECT_MISSES], len(polled))
    return [_with_liveness(row, silent, found.get(row.name, NO_EVIDENCE), now_s) for row in polled], silent


def _with_poll_counted(row: NodeRow, answered_s: float, *, polls: bool) -> NodeRow:
    # Any other time than the last one is an answer: clocks are set back.
    if answered_s > 0.0 and answered_s != row.seen_s:
        return row._replace(seen_s=answered_s, misses=0)
    return row._replace(misses=row.misses + 1) if polls else row


def troubled_together(troubled: Iterable[tuple[float, str]], nodes: int) -> frozenset[str]:
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


def _with_liveness(row: NodeRow, together: frozenset[str], found: Evidence, now_s: float) -> NodeRow:
    verdict = verdict_of(found)
    liveness = _next_liveness(row, together, verdict)
    if liveness is Liveness.UP:
        row = row._replace(verdict=ProbeVerdict.NONE, found="")
    else:
        row = row._replace(verdict=_next_verdict(row, liveness, verdict), found=evidence_words(found) or row.found)
    return row if liveness is row.liveness else row._replace(liveness=liveness, since_s=now_s)


def _next_liveness(row: NodeRow, together: frozenset[str], verdict: ProbeVerdict) -> Liveness:
    was_down = row.liveness is Liveness.DOWN
    if row.misses < SUSPECT_MISSES:
        return Liveness.UP
    if row.name in together or (together and not was_down):
        return Liveness.SUSPECT
    return Liveness.DOWN if was_down or row.misses >= DOWN_MISSES or verdict is ProbeVerdict.GONE else Liveness.SUSPECT


def _next_verdict(row: NodeRow, liveness: Liveness, verdict: ProbeVerdict) -> ProbeVerdict:
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

    def begin_leading(self) -> None:
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


def is_attempt_gone(
    attempt: str, placement: Placement, fenced: Collection[str], reports: Mapping[str, AgentReport], since_s: float
) -> bool:  # fmt: skip
    """Return whether no process of an attempt that ran lives on any of its nodes, by leases and by what agents see.

    Args:
        attempt: Its name. All its ranks ran, so none of them starts any more.
        placement: Its GPUs.
        fenced: Nodes whose leases have run out.
        reports: The last report of each agent.
        since_s: When the backend was first to stop it, by the clock of the reports' arrival.
    """
    return all(
        share.node in fenced or _reports_attempt_gone(reports.get(share.node), attempt, since_s) for share in placement
    )


def _reports_attempt_gone(report: AgentReport | None, attempt: str, since_s: float) -> bool:
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


def node_state_of(row: NodeRow, quarantines: Sequence[QuarantineEntry], *, is_fenced: bool, now_s: float) -> NodeState:
    """Return the state of a node, by the open quarantines of all nodes, and whether its lease has run out."""
    if row.liveness is Liveness.UP:
        whole = next((quarantine for quarantine in quarantines if quarantine.place == HardwarePlace(row.name)), None)
        if whole is not None:
            return NodeState(NodeWord.QUARANTINED, f"{whole.cause} ({whole.check}); {whole.action}")
        return NodeState(NodeWord.ALIVE, _last_answer_words(row, now_s))
    silence = f"{row.misses} answers missed in a row, {_last_answer_words(row, now_s)}"
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


def _last_answer_words(row: NodeRow, now_s: float) -> str:
    return f"last answer {max(now_s - row.seen_s, 0.0):.0f} s ago" if row.seen_s else "no answer yet"


DOUBT_S = 600.0  # in which the first report of a node does not count after it withdrew its last one

EASE_S = 15.0  # three reports: after too many at once, before the remaining ones are acted on


class Accusers:
    """Nodes whose last reports call a GPU faulty.

    Args:
        known: Unix time since when nodes have a faulty GPU, by the store, before any report came.
    """

    def __init__(self, known: Mapping[str, float]) -> None:
        self._known_s = dict(known)  # those that have not reported healthy GPUs since
        self._since_s: dict[str, float] = {}  # Unix time of the report with which each began
        self._repeated: frozenset[str] = frozenset()  # those of them that did so twice in a row
        self._together, self._together_s = frozenset[str](), 0.0  # the last that were too many, and when
        self._doubted_s: dict[str, float] = {}  # since when first reports of a node do not count

    def update(
        self, seen: Mapping[str, NodeView], reports: Mapping[str, AgentReport], nodes: int, now_s: float
    ) -> frozenset[str]:
        """Return the nodes that began together, if they are or just were too many for faults of their own; often none.

        Args:
            seen: Nodes by name, as the backend sees them.
            reports: Last report of the agent of each that has one.
            nodes: All that there are.
            now_s: The present.
        """
        reported = {name: (node, reports[name]) for name, node in seen.items() if name in reports}
        for name in self._known_s.keys() & reported.keys():
            if not _repeats_accusation(*reported[name], is_known=True):
                del self._known_s[name]
        known = self._repeated | self._known_s.keys()
        repeated = {name for name, pair in reported.items() if _repeats_accusation(*pair, is_known=name in known)}
        first = {name for name, pair in reported.items() if name not in repeated and _begins_to_accuse(*pair)}
        self._doubt_unrepeated(first, repeated, reports, now_s)
        counted = repeated | {name for name in first if name not in self._doubted_s}
        began_s = self._since_s | self._known_s
        self._since_s = {name: began_s.get(name, reports[name].at_s) for name in counted}
        self._repeated = frozenset(repeated)
        found = troubled_together([(began_s, name) for name, began_s in self._since_s.items()], nodes)
        if found:
            self._together, self._together_s = found, now_s
        elif not 0.0 <= now_s - self._together_s <= EASE_S:
            self._together = frozenset()
        return self._together

    def _doubt_unrepeated(
        self, first: set[str], repeated: set[str], reports: Mapping[str, AgentReport], now_s: float
    ) -> None:
        """Doubt the nodes that did not repeat their first report in time; forget old doubts."""
        self._doubted_s = {name: at_s for name, at_s in self._doubted_s.items() if 0.0 <= now_s - at_s <= DOUBT_S}
        for name in self._since_s.keys() - self._repeated - repeated:
            began_s = self._since_s[name]
            is_the_same = name in first and reports[name].at_s == began_s
            if not is_the_same or not 0.0 <= now_s - began_s <= AT_ONCE_S:
                self._doubted_s[name] = now_s


def _repeats_accusation(node: NodeView, report: AgentReport, *, is_known: bool) -> bool:
    """Return whether a node calls a GPU faulty twice in a row, or once more if its fault is known."""
    is_faulty = report.calls_faulty if is_known else report.calls_faulty_twice
    return any(is_faulty(gpu.index, slots=node.slots) for gpu in node.gpus)


def _begins_to_accuse(node: NodeView, report: AgentReport) -> bool:
    """Return whether a report is the first of a row that calls GPUs faulty."""
    now, before = (
        any(each is not None and calls_gpu_faulty(each, gpu.index, slots=node.slots) for gpu in node.gpus)
        for each in (report.content, report.before)
    )
    return now and not before


MONITOR_WRITER = "monitor"
DEAD, UNREACHABLE, RESTARTED = "dead", "unreachable", "restarted"  # words of events


def node_events(was: NodeRow, row: NodeRow, now_s: float) -> Iterator[NewEvent]:
    """Yield the events of a node, compared with its row before."""
    if row.liveness is not was.liveness:
        yield _liveness_event(was, row, now_s)
    if row.verdict is not was.verdict and row.verdict is not ProbeVerdict.NONE:
        yield _verdict_event(row, now_s)
    if was.boot_id and row.boot_id and row.boot_id != was.boot_id:
        text = f"{row.name} was restarted: its boot id is another one, so nothing that ran there before runs there now"
        yield NewEvent(CHANGE, MONITOR_WRITER, now_s, now=RESTARTED, cause=text, data={"node": row.name})


def _liveness_event(was: NodeRow, row: NodeRow, now_s: float) -> NewEvent:
    missed = f"has not answered {row.misses} times" if row.misses else "answers again"
    if not row.misses and row.boot_id and row.boot_id == was.boot_id:
        missed += ", and was not restarted meanwhile"
    return NewEvent(
        CHANGE, MONITOR_WRITER, now_s, was=was.liveness.value, now=row.liveness.value,
        cause=f"{row.name} is {row.liveness}: it {missed}", data={"node": row.name, "seen_s": row.seen_s},
    )  # fmt: skip


def _verdict_event(row: NodeRow, now_s: float) -> NewEvent:
    now, state = (DEAD, f"dead ({row.verdict})") if row.verdict.is_dead else (UNREACHABLE, UNREACHABLE)
    data = {"node": row.name, "verdict": row.verdict.value, "found": row.found}
    return NewEvent(CHANGE, MONITOR_WRITER, now_s, now=now, cause=f"{row.name} is {state}: {row.found}", data=data)


def _alarm_event(text: str, nodes: frozenset[str], now_s: float) -> NewEvent:
    return NewEvent(CHANGE, MONITOR_WRITER, now_s, now=ALARM, cause=text, data={"nodes": sorted(nodes)})


def fenced_event(node: str, now_s: float) -> NewEvent:
    """Return the event that the lease of a node has run out."""
    text = f"{node} is fenced: its lease has run out, so its agent has killed what ran there"
    return NewEvent(CHANGE, MONITOR_WRITER, now_s, now=FENCED, cause=text, data={"node": node})


def gpu_event(row: GpuRow) -> NewEvent:
    """Return the event that a GPU turned faulty or healthy."""
    words = (FAULTY, HEALTHY) if row.healthy else (HEALTHY, FAULTY)
    return NewEvent(
        CHANGE, MONITOR_WRITER, row.since_s, was=words[0], now=words[1],
        cause=f"{row.node}: GPU {row.gpu} is {words[1]}", data={"node": row.node, "gpu": row.gpu},
    )  # fmt: skip


log = logging.getLogger(__name__)

NODE_POLL_S = 5.0  # between two answers of a node that are waited for
WRITE_ANSWERS_S = 60.0  # between two times that last answers are written to the store if nothing else changes


class ClusterHealth(NamedTuple):
    """GPUs that are not healthy, by number, ascending."""

    faulty: tuple[int, ...] = ()  # jobs on them are stopped
    closed: tuple[int, ...] = ()  # in quarantine, silent or out of service: jobs on them continue, none starts there
    down: tuple[int, ...] = ()  # those of them on nodes that are down: the state of jobs on them is unknown
    fenced: frozenset[str] = frozenset()  # nodes that are down and whose leases have run out
    failed: tuple[int, ...] = ()  # lost by faults: the faulty ones, and those of nodes that are down though in service

    def with_closed(self, gpus: tuple[int, ...]) -> "ClusterHealth":
        """Return the same with more GPUs on which no job starts."""
        return self._replace(closed=tuple(sorted({*self.closed, *gpus}))) if gpus else self


class Monitor:
    """Polls the nodes of a backend, and writes their state to the store.

    Args:
        backend: Whose nodes.
        name: Of the backend.
        layout: Of the cluster.
        types: Node type of each node.
        poll_s: Seconds in which each node has to answer once.
        leases: Of nodes; None where there are none.
    """

    def __init__(
        self, backend: Backend, name: str, layout: Layout, types: Mapping[str, str], poll_s: float = NODE_POLL_S,
        leases: Leases | None = None,
    ) -> None:  # fmt: skip
        self.leases = leases
        self._backend, self._name, self._layout, self._types, self._poll_s = backend, name, layout, types, poll_s
        self.fleet = Fleet(layout.nodes, {node: types.get(node, "") for node in layout.nodes})
        self.reports = Reports()
        self.links = LinkTable(self.reports.probe_places)
        self.steps = StepMonitor(backend, types)
        self.witnesses = Witnesses()
        self.health = ClusterHealth()
        self._fence: int | None = None  # token of the lease under which this state was read
        self._rows: dict[str, NodeRow] = {}
        self._faulty: frozenset[tuple[str, int]] = frozenset()
        self._full: frozenset[str] = frozenset()  # nodes that take no jobs, by the backend
        self._at_once: frozenset[str] = frozenset()  # nodes that fell silent together
        self._fenced: frozenset[str] = frozenset()  # nodes that are down and whose leases have run out
        self._accusers = Accusers({})
        self._accused_at_once: frozenset[str] = frozenset()  # nodes that began together to report a faulty GPU
        self._polled_s = self._kept_s = 0.0
        self._repeats = Repeats()

    def load(self, store: Store, fence: int, now_s: float) -> None:
        """Read the state in the store, once for each lease; each node gets the time of a few answers again."""
        if fence == self._fence:
            return
        with store.read() as tx:
            rows, gpus = list_nodes(tx), list_gpus(tx)
            out, broken = nodes_out_of_service(tx), quarantined_gpus(tx, self._layout.nodes)
        self._rows = {row.name: _row_for_new_leader(row) for row in rows if row.name in self._layout.nodes}
        faulty = [gpu for gpu in gpus if not gpu.healthy and gpu.gpu < self._layout.nodes.get(gpu.node, 0)]
        self._faulty = frozenset((each.node, each.gpu) for each in faulty)
        _, self._at_once = judge_nodes(list(self._rows.values()), {}, now_s, polls=False)
        # Of several of a node the first counts.
        latest_first = sorted(faulty, key=lambda gpu: gpu.since_s, reverse=True)
        self._accusers = Accusers({each.node: each.since_s for each in latest_first})
        self._accused_at_once = frozenset()
        self._polled_s = self._kept_s = now_s
        self._fenced = frozenset()  # another scheduler may have led meanwhile, and started jobs there
        self.health = self._cluster_health(out, broken)
        self.steps = StepMonitor(self._backend, self._types)  # other schedulers may have retried jobs meanwhile
        self._fence = fence
        if self.leases is not None:
            self.leases.begin_leading()

    def poll(self, store: Store, now_s: float) -> ClusterHealth:
        """Poll all nodes, and write what has changed.

        1. Read from the store which nodes are out of service, and which GPUs in quarantine.
        2. Ask the backend for all nodes, and take the last reports of their agents.
        3. Judge which nodes answer, with what probes of agents' ports found.
        4. Decide which GPUs are faulty; raise an alarm if too many nodes fail together.
        5. Write changed nodes, GPUs and events.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        assert self._fence is not None
        with store.read() as tx:
            out, broken = nodes_out_of_service(tx), quarantined_gpus(tx, self._layout.nodes)
            held = self._attempts_on_down_nodes(tx)
        try:
            seen = {node.name: node for node in self._backend.observe()}
        except BackendError as error:
            if message := self._repeats.message_to_log(str(error), time.monotonic()):
                log.warning("nodes cannot be read: %s", message)
        else:
            self._repeats.forget()
            self._process_answers(store, seen, held, now_s)
        self.health = self._cluster_health(out, broken)
        return self.health

    def _attempts_on_down_nodes(self, tx: Connection) -> Mapping[str, frozenset[str]]:
        """Return the attempts that may run on each guarded node that is down; it is up again once all others ended.

        So no job gets a GPU there while a process of an attempt that was given up lives.
        """
        down = {row.name for row in self._rows.values() if row.guarded and row.liveness is Liveness.DOWN}
        if self.leases is None or not down:
            return {}
        found: dict[str, set[str]] = {name: set() for name in down}
        for held_gpu in held_gpus(tx):
            if held_gpu.node in down:
                found[held_gpu.node].add(attempt_name(held_gpu.job_id, held_gpu.number))
        return {node: frozenset(names) for node, names in found.items()}

    def _process_answers(
        self, store: Store, seen: Mapping[str, NodeView], held: Mapping[str, frozenset[str]], now_s: float
    ) -> None:  # fmt: skip
        dismissed, reports = self.reports.dismissed(), self.reports.last()
        polls = not 0.0 <= now_s - self._polled_s < self._poll_s  # or the clock was set back
        before = [
            self._updated_row(seen[name], reports.get(name), now_s) for name in self._layout.nodes if name in seen
        ]
        before = [row._replace(agent_s=None, guarded=False) if row.name in dismissed else row for row in before]
        answered_s = {row.name: _answered_s(row, seen[row.name]) for row in before}
        answered_s |= {
            name: self._rows[name].seen_s for name, may in held.items() if leftover_attempts(reports.get(name), may)
        }
        found = self.witnesses.update(reports, time.monotonic(), polls=polls)
        self.witnesses.run_own_probes()
        rows, together = judge_nodes(before, answered_s, now_s, polls=polls, found=found)
        alarms = self._update_accusers(seen, reports, now_s)
        if together and not self._at_once:
            text = (
                f"{len(together)} of {len(self._layout.nodes)} nodes fell silent within a minute: none of them counts "
                "as down; check the network, and the address that they report to"
            )
            alarms.insert(0, _alarm_event(text, together, now_s))
        run_out = self._fenced_among(rows)
        alarms += [fenced_event(name, now_s) for name in sorted(run_out - self._fenced)]
        faulty = frozenset(
            place for row in rows for place in self._faulty_gpus_of(row, seen[row.name], reports.get(row.name))
        )
        self._write_changes(store, rows, faulty, alarms, now_s)
        self._rows, self._faulty, self._at_once = {row.name: row for row in rows}, faulty, together
        self._fenced = run_out
        self._polled_s = now_s if polls else self._polled_s
        self._full = frozenset(node.name for node in seen.values() if not node.takes_jobs)

    def _updated_row(self, node: NodeView, report: AgentReport | None, now_s: float) -> NodeRow:
        """Return the last row of a node, with the last report of its agent."""
        kind = self._types.get(node.name, "")
        new = NodeRow(node.name, self._name, kind, node.slots, Liveness.UP, now_s, node.seen_s, 0)
        row = self._rows.get(node.name, new)._replace(backend=self._name, kind=kind, slots=node.slots)
        if report is None:
            return row
        return row._replace(
            agent_s=report.at_s, address=report.address or row.address, boot_id=report.content.boot_id or row.boot_id,
            agent_version=report.content.version or row.agent_version, guarded=report.content.attempts is not None,
        )  # fmt: skip

    def _faulty_gpus_of(self, row: NodeRow, node: NodeView, report: AgentReport | None) -> Iterable[tuple[str, int]]:
        """Yield the faulty GPUs of a node; of one that does not answer, those that were faulty before."""
        for gpu in node.gpus:
            before = (row.name, gpu.index) in self._faulty
            if row.liveness is not Liveness.UP:
                is_faulty = before
            elif report is None:
                is_faulty = not gpu.healthy or (before and row.agent_s is not None)  # until its agent reports
            else:
                # No further one while too many nodes accuse theirs.
                counts = report.calls_faulty if before else report.calls_faulty_twice
                is_accused = (before or not self._accused_at_once) and counts(gpu.index, slots=node.slots)
                is_faulty = not gpu.healthy or is_accused
            if is_faulty:
                yield (row.name, gpu.index)

    def _update_accusers(
        self, seen: Mapping[str, NodeView], reports: Mapping[str, AgentReport], now_s: float
    ) -> list[NewEvent]:
        """Record which nodes began together to report a faulty GPU; raise an alarm if they are too many."""
        was, nodes = self._accused_at_once, len(self._layout.nodes)
        self._accused_at_once = self._accusers.update(seen, reports, nodes, now_s)
        if was or not self._accused_at_once:
            return []
        text = (
            f"agents of {len(self._accused_at_once)} of {nodes} nodes called GPUs faulty within a minute: no further "
            "GPU counts as faulty; check the agents and the driver, and drain what is broken"
        )
        return [_alarm_event(text, self._accused_at_once, now_s)]

    def _write_changes(
        self, store: Store, rows: Sequence[NodeRow], faulty: frozenset[tuple[str, int]], alarms: Sequence[NewEvent],
        now_s: float,
    ) -> None:  # fmt: skip
        """Write what has changed; last answers only once a minute, and with every change."""
        known, fence = self._rows, self._fence
        keeps = not 0.0 <= now_s - self._kept_s < WRITE_ANSWERS_S
        changed = [row for row in rows if keeps or _has_row_changed(known.get(row.name), row)]
        gpus = [GpuRow(*place, place not in faulty, now_s) for place in sorted(faulty ^ self._faulty)]
        turned = [event for row in changed if row.name in known for event in node_events(known[row.name], row, now_s)]
        events = [*alarms, *turned, *map(gpu_event, gpus)]
        if not (changed or gpus or events):
            return
        for event in events:
            log.log(logging.ERROR if event.now == ALARM else logging.WARNING, "%s", event.cause)
        assert fence is not None
        store.write(lambda tx: write_health(tx, fence, changed, gpus, events))
        self._kept_s = now_s if keeps else self._kept_s

    def _cluster_health(self, out: frozenset[str], broken: frozenset[tuple[str, int]]) -> ClusterHealth:
        silent = [row for row in self._rows.values() if row.liveness is not Liveness.UP]
        closed = out | self._full | {row.name for row in silent}
        down = {row.name for row in silent if row.liveness is Liveness.DOWN}
        faulty = tuple(sorted(self._layout.number(*place) for place in self._faulty))
        lost = self._gpus_of_nodes(down - out - self._full)
        failed = tuple(sorted({*faulty, *lost}))
        kept = ClusterHealth(faulty, self._gpus_of_nodes(closed), self._gpus_of_nodes(down), self._fenced, failed)
        return kept.with_closed(tuple(self._layout.number(*place) for place in broken))

    def _fenced_among(self, rows: Iterable[NodeRow]) -> frozenset[str]:
        """Return the nodes on which nothing runs any more, as their leases have run out."""
        leases = self.leases
        if leases is None:
            return frozenset()
        down = (row.name for row in rows if row.guarded and row.liveness is Liveness.DOWN)
        return frozenset(name for name in down if leases.has_run_out(name))

    def is_down(self, node: str) -> bool:
        """Return whether a node was down at the last poll; any thread may call this."""
        row = self._rows.get(node)
        return row is not None and row.liveness is Liveness.DOWN

    def _gpus_of_nodes(self, nodes: Collection[str]) -> tuple[int, ...]:
        sizes, number = self._layout.nodes, self._layout.number
        return tuple(number(name, gpu) for name in sizes if name in nodes for gpu in range(sizes[name]))


def leftover_attempts(report: AgentReport | None, allowed: frozenset[str]) -> tuple[str, ...]:
    """Return the attempts that live on a node though the store has given them up; `?` for a node without a report."""
    if report is None or report.content.attempts is None:
        return ("?",)
    return tuple(name for name in report.content.attempts if name not in allowed)


def _row_for_new_leader(row: NodeRow) -> NodeRow:
    """Return the row of a node for a new leader, which has missed no answers itself."""
    limit = {Liveness.UP: 0, Liveness.SUSPECT: SUSPECT_MISSES}
    return row._replace(misses=min(row.misses, limit.get(row.liveness, row.misses)))


def _answered_s(row: NodeRow, node: NodeView) -> float:
    """Return when a node last answered: the backend and, where it has one, its agent."""
    return node.seen_s if row.agent_s is None else min(node.seen_s, row.agent_s)


def _has_row_changed(was: NodeRow | None, row: NodeRow) -> bool:
    """Return whether anything of a node has changed except the time of its last answer."""
    if was is None or (was.agent_s is None) != (row.agent_s is None):
        return True
    # The reason why a suspect node is not down depends on it.
    if (was.misses < DOWN_MISSES) != (row.misses < DOWN_MISSES):
        return True
    return row._replace(seen_s=was.seen_s, misses=was.misses, agent_s=was.agent_s) != was
