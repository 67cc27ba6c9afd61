"""Which nodes answer, by reports, leases and probes of the port of their agents.

Several unanswered polls are needed before anything is concluded (`judge`), and what is concluded is a fact about the
node, never about its jobs.

An agent listens at a port (`AgentPort`), where it sends its node's name to each connection and reads nothing. So no
connection can block the agent or make it do anything. `probe_ports` connects to such ports, and `verdict_of` concludes
from the results what a silent node is.

`Leases` of nodes prove by time that nothing of the scheduler's jobs runs on a node that does not answer. An agent that
guards its node kills the processes of all attempts there once it has had no answer for `LEASE_S` by its own clock. It
counts from the time of its report, the scheduler from the time of its answer, which is later. So after `LEASE_S` and
`LEASE_MARGIN_S` without an answer the processes are gone. All clocks here are monotonic.

Source: SPEC C9, F1; docs/nodes.md, Probes of silent nodes; docs/nodes.md, Leases.
"""

import asyncio
import errno
import ipaddress
import json
import logging
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from ...cluster.files.yaml_file import ExactTypes
from ...cluster.model.placement import Placement
from ..model.states import ProbeVerdict
from ..store.nodes import NodeRow
from ..store.schema import Liveness
from .link_probes import ProbePlace

log = logging.getLogger(__name__)

PROBE_LIMIT_S = 2.0  # for a connection, and again for the line
LINE_BYTES = 1024
MAX_PROBES_AT_ONCE = 64  # ports that one process probes
ACCEPT_PAUSE_S = 0.1  # after a failed accept, such as without a free descriptor


class PortState(StrEnum):
    """The result of a probe of an agent's port."""

    ANSWERED = "answered"  # the agent of that node answered
    ACCEPTED = "accepted"  # the connection was accepted, and nothing was sent: the machine lives, the agent hangs
    OTHER = "other"  # another program answers there
    REFUSED = "refused"  # the machine lives, and no process has the port: the agent is gone
    NO_ROUTE = "no route"
    TIMED_OUT = "timed out"
    UNABLE = "unable"  # the probe could not be made


class PortProbe(NamedTuple):
    """A port of an agent to probe."""

    node: str  # whose agent should answer
    address: str
    port: int


class AgentPort:
    """Sends its node's name to each connection, in a thread of its own.

    Args:
        node: Of the agent.
        boot_id: Names the time since the machine's start.
        port: To listen at, 0 for any that is free.

    Raises:
        OSError: If it cannot listen there.
    """

    def __init__(self, node: str, boot_id: str, port: int = 0) -> None:
        self._line = json.dumps({"node": node, "boot_id": boot_id}).encode() + b"\n"
        self._socket = _listening(port)
        self.port = int(self._socket.getsockname()[1])
        self._closed = False
        threading.Thread(target=self._serve, name="agent port", daemon=True).start()

    def close(self) -> None:
        """Close the port."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(ACCEPT_PAUSE_S)
                continue
            with connection, suppress(OSError):
                connection.settimeout(0.0)  # The line fits in any socket's buffer.
                connection.send(self._line)


def _listening(port: int) -> socket.socket:
    # The longest backlog: a process that hangs accepts no connection.
    backlog = socket.SOMAXCONN
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be disabled.
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=backlog)


def probe_ports(probes: Sequence[PortProbe], within_s: float = PROBE_LIMIT_S) -> list[PortState]:
    """Probe ports, many at once, and return the result of each.

    Args:
        probes: The ports.
        within_s: For a connection, and again for the line.
    """

    async def every() -> list[PortState]:
        turns = asyncio.Semaphore(MAX_PROBES_AT_ONCE)

        async def one(probe: PortProbe) -> PortState:
            async with turns:
                return await _probe_port(probe, within_s)

        return await asyncio.gather(*map(one, probes))

    return asyncio.run(every())


async def _probe_port(probe: PortProbe, within_s: float) -> PortState:
    try:
        ipaddress.ip_address(probe.address)  # No name is resolved: that may take long.
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(probe.address, probe.port, limit=LINE_BYTES)
    except TimeoutError:
        return PortState.TIMED_OUT
    except ConnectionRefusedError:
        return PortState.REFUSED
    except (OSError, ValueError, OverflowError) as error:
        away = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
        return PortState.NO_ROUTE if getattr(error, "errno", None) in away else PortState.UNABLE
    try:
        async with asyncio.timeout(within_s):
            line = await reader.readline()
    except TimeoutError:
        return PortState.ACCEPTED
    except (OSError, ValueError):
        return PortState.OTHER
    finally:
        writer.close()
    return PortState.ANSWERED if _node_of(line) == probe.node else PortState.OTHER


def _node_of(line: bytes) -> object:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content.get("node") if isinstance(content, dict) else None


UNREACHED = (PortState.REFUSED, PortState.NO_ROUTE, PortState.TIMED_OUT)


class PortWitness(NamedTuple):
    """The result of one prober."""

    node: str  # of the agent that probed; "" for the scheduler
    result: PortState
    reached_before: bool  # it reached the same port while the node lived: else its failure is no evidence


class Evidence(NamedTuple):
    """All results of probes of a port since the last report of its node."""

    own: PortWitness | None = None  # by the scheduler
    other: PortWitness | None = None  # by the agent of another node
    has_others: bool = True  # whether there is another agent that could probe


NO_EVIDENCE = Evidence()


def verdict_of(evidence: Evidence) -> ProbeVerdict:
    """Return the verdict on a silent node."""
    own, other = evidence.own, evidence.other
    results = [each.result for each in (own, other) if each is not None]
    if PortState.ANSWERED in results:
        return ProbeVerdict.REACHED
    if PortState.ACCEPTED in results:
        return ProbeVerdict.STUCK
    if own is None or not _fails(own):
        return ProbeVerdict.NONE
    if other is None:
        # There is no second prober. A refusal alone proves that the agent is gone; silence may be a fault of the link.
        return ProbeVerdict.GONE if own.result is PortState.REFUSED and not evidence.has_others else ProbeVerdict.NONE
    if not _fails(other):
        return ProbeVerdict.NONE
    return ProbeVerdict.GONE if {own.result, other.result} == {PortState.REFUSED} else ProbeVerdict.SILENT


def _fails(found: PortWitness) -> bool:
    return found.result in UNREACHED and found.reached_before


def words_of(evidence: Evidence) -> str:
    """Return the evidence in words, "" without any."""
    own, other = evidence.own, evidence.other
    if other is not None and other.result is PortState.ANSWERED:
        own_too = own is not None and own.result is PortState.ANSWERED
        return _NO_REPORTS if own_too else f"{other.node} reaches it: the link between it and the scheduler is broken"
    if own is not None and own.result is PortState.ANSWERED:
        return _NO_REPORTS
    found = [_words_of_witness(witness) for witness in (own, other) if witness is not None]
    if not evidence.has_others:
        found.append("no other agent can probe it")
    if verdict_of(evidence) is ProbeVerdict.STUCK:
        found.append("so its machine lives, and its agent hangs")
    return ", ".join(found)


_NO_REPORTS = "its agent answers probes, but its reports do not come: see its log"


def _words_of_witness(it: PortWitness) -> str:
    who = it.node or "the scheduler"
    words = {
        PortState.ACCEPTED: f"{who} is connected and gets nothing",
        PortState.OTHER: f"{who} finds another program at its port",
        PortState.REFUSED: f"{who} is refused",
        PortState.NO_ROUTE: f"{who} finds no route",
        PortState.UNABLE: f"{who} cannot probe it",
        PortState.TIMED_OUT: f"{who} gets no answer",
    }[it.result]
    doubted = it.result in UNREACHED and not it.reached_before
    return f"{words} (it never reached it before, so that is no evidence)" if doubted else words


SUSPECT_MISSES, DOWN_MISSES = 3, 6  # polls without an answer, in a row
AT_ONCE_S, AT_ONCE_SHARE, MIN_AT_ONCE = 60.0, 0.3, 2  # nodes that fall silent together are not the cause


class Judged(NamedTuple):
    """Nodes after a poll."""

    nodes: list[NodeRow]
    at_once: frozenset[str]  # nodes that fell silent within a minute, too many for faults of their own; often none


def judge(
    nodes: Sequence[NodeRow], answered_s: Mapping[str, float], now_s: float, *, polls: bool,
    found: Mapping[str, Evidence] = MappingProxyType({}),
) -> Judged:  # fmt: skip
    """Return the rows of nodes after a poll.

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
    return Judged([_named(row, silent, found.get(row.name, NO_EVIDENCE), now_s) for row in polled], silent)


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


Count = Annotated[int, Field(ge=0, le=2**53)]
BOOT_WORDS = "At most 64 characters: digits, a to f and -."
VERSION_WORDS = "At most 40 characters: letters, digits, ., + and -."

ATTEMPT_WORDS = "A name such as ls-01m8a7dhgyfn818zs4bjbd4enq-1: ls-, the id of a job, - and a number."

AttemptName = Annotated[str, Field(pattern=r"^ls-[0-9a-z]{1,40}-[0-9]{1,9}$", description=ATTEMPT_WORDS)]


class _ReportPart(ExactTypes):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuReport(_ReportPart):
    """A GPU as the agent of its node sees it."""

    index: Annotated[int, Field(ge=0, le=1023)]
    healthy: bool  # it answers, and has no error that only a reset clears
    utilisation: Annotated[float, Field(ge=0.0, le=1.0)]
    free_bytes: Count  # of its memory
    temperature_c: Annotated[float, Field(ge=-273.15, le=1000.0)] | None = None
    ecc_errors: Count | None = None  # uncorrected ones since the driver was loaded; none if it counts none
    link_errors: Count | None = None  # of all its links to other GPUs; none if it has none


class NodeReport(_ReportPart):
    """The report of an agent about its node."""

    gpus: Annotated[tuple[GpuReport, ...], Field(max_length=1024)] = ()  # none where there are only slots
    # Names the time since the node's last start.
    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{0,64}$", description=BOOT_WORDS)] = ""
    # Attempts that have processes there, by an agent that sees and kills them all; other agents send none.
    attempts: Annotated[tuple[AttemptName, ...], Field(max_length=4096)] | None = None
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{0,40}$", description=VERSION_WORDS)] = ""  # the agent's
    checks: bool = False  # whether the agent runs the checks that the scheduler requests
    agent_port: Annotated[int, Field(ge=0, le=65535)] = 0  # port where it answers probes; 0 for none
    probes: ProbePlace | None = None  # where the agent listens for probes of links; none if it does not

    @field_validator("gpus")
    @classmethod
    def _each_once(cls, gpus: tuple[GpuReport, ...]) -> tuple[GpuReport, ...]:
        if twice := [index for index, times in Counter(gpu.index for gpu in gpus).items() if times > 1]:
            raise ValueError(f"GPU {twice[0]} is in it twice")
        return gpus


class AgentReport(NamedTuple):
    """A report with its time."""

    at_s: float  # Unix time
    content: NodeReport
    before: NodeReport | None = None  # the one before it
    address: str = ""  # that it came from
    came_s: float = 0.0  # when it came, by the monotonic clock

    def accuses(self, gpu: int, *, slots: bool) -> bool:
        """Return whether a GPU is faulty by this report alone."""
        return accuses(self.content, gpu, slots=slots)

    def is_faulty(self, gpu: int, *, slots: bool) -> bool:
        """Return whether a GPU is faulty by two reports in a row."""
        return self.before is not None and all(accuses(each, gpu, slots=slots) for each in (self.content, self.before))


def accuses(report: NodeReport, gpu: int, *, slots: bool) -> bool:
    """Return whether a report calls a GPU faulty; one that is missing among others is, unless it is a slot."""
    found = next((each for each in report.gpus if each.index == gpu), None)
    return bool(report.gpus) and not slots if found is None else not found.healthy


class Reports:
    """The last report of each node that has an agent. Any thread may use it."""

    def __init__(self) -> None:
        self._last: dict[str, AgentReport] = {}
        self._dismissed = set[str]()
        self._lock = threading.Lock()

    def take(self, node: str, report: NodeReport, at_s: float, address: str = "", came_s: float = 0.0) -> None:
        """Store a report, with its address and its time by the monotonic clock."""
        with self._lock:
            last = self._last.get(node)
            self._last[node] = AgentReport(at_s, report, None if last is None else last.content, address, came_s)
            self._dismissed.discard(node)

    def dismiss(self, node: str) -> None:
        """Stop to expect a node's agent, until it reports again."""
        with self._lock:
            self._last.pop(node, None)
            self._dismissed.add(node)

    def last(self) -> dict[str, AgentReport]:
        """Return the last report of each node."""
        with self._lock:
            return self._last.copy()

    def probe_places(self) -> dict[str, ProbePlace]:
        """Return where agents listen for probes, by node."""
        return {
            node: report.content.probes for node, report in self.last().items() if report.content.probes is not None
        }

    def dismissed(self) -> frozenset[str]:
        """Return the nodes whose agents are not expected."""
        with self._lock:
            return frozenset(self._dismissed)


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
