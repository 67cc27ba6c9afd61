"""What is known of nodes: the reports of their agents, and probes of the agents' ports.

An agent listens at a port (`AgentPort`), where it sends its node's name to each connection and reads nothing. So no
connection can block the agent or make it do anything. `probe_ports` connects to such ports, and `verdict_of` concludes
from the results what a silent node is.

While an agent lives, the scheduler and two other agents probe its port once, to find out that they reach it. Once it is
silent they probe again, and only a failure of one that reached it before is evidence: others may be behind a firewall.
An order is in each answer to a report until its result has come, as with checks (`Witnesses`).

Source: SPEC C9, F1, K11; docs/nodes.md, Probes of silent nodes; docs/operate.md, Dashboard.
"""

import asyncio
import errno
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from ...cluster.files.yaml_file import ExactTypes
from ..model.states import ProbeVerdict
from .link_probes import ProbePlace

# What begins on a share of all nodes or jobs within this time has one cause, and is no fault of each.
AT_ONCE_S, AT_ONCE_SHARE, MIN_AT_ONCE = 60.0, 0.3, 2
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
        self._socket = _listening_socket(port)
        self.port = int(self._socket.getsockname()[1])
        self._closed = False
        threading.Thread(target=self._answer_connections, name="agent port", daemon=True).start()

    def close(self) -> None:
        """Close the port."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _answer_connections(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(ACCEPT_PAUSE_S)
                continue
            with connection, suppress(OSError):
                connection.settimeout(0.0)  # The line fits in any socket's buffer.
                connection.send(self._line)


def _listening_socket(port: int) -> socket.socket:
    # The longest backlog: a process that hangs accepts no connection.
    backlog = socket.SOMAXCONN
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be disabled.
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=backlog)


def probe_ports(probes: Sequence[PortProbe], within_s: float = PROBE_LIMIT_S) -> list[PortState]:
    """Probe ports, many at once; return the result of each, which has the limit to connect, and again for the line."""

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
    return PortState.ANSWERED if _node_in_line(line) == probe.node else PortState.OTHER


def _node_in_line(line: bytes) -> object:
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
    if own is None or not _is_failure_evidence(own):
        return ProbeVerdict.NONE
    if other is None:
        # There is no second prober. A refusal alone proves that the agent is gone; silence may be a fault of the link.
        return ProbeVerdict.GONE if own.result is PortState.REFUSED and not evidence.has_others else ProbeVerdict.NONE
    if not _is_failure_evidence(other):
        return ProbeVerdict.NONE
    return ProbeVerdict.GONE if {own.result, other.result} == {PortState.REFUSED} else ProbeVerdict.SILENT


def _is_failure_evidence(found: PortWitness) -> bool:
    return found.result in UNREACHED and found.reached_before


def evidence_words(evidence: Evidence) -> str:
    """Return the evidence in words, "" without any."""
    own, other = evidence.own, evidence.other
    if other is not None and other.result is PortState.ANSWERED:
        own_too = own is not None and own.result is PortState.ANSWERED
        return _NO_REPORTS if own_too else f"{other.node} reaches it: the link between it and the scheduler is broken"
    if own is not None and own.result is PortState.ANSWERED:
        return _NO_REPORTS
    found = [_witness_words(witness) for witness in (own, other) if witness is not None]
    if not evidence.has_others:
        found.append("no other agent can probe it")
    if verdict_of(evidence) is ProbeVerdict.STUCK:
        found.append("so its machine lives, and its agent hangs")
    return ", ".join(found)


_NO_REPORTS = "its agent answers probes, but its reports do not come: see its log"


def _witness_words(found: PortWitness) -> str:
    prober = found.node or "the scheduler"
    words = {
        PortState.ACCEPTED: f"{prober} is connected and gets nothing",
        PortState.OTHER: f"{prober} finds another program at its port",
        PortState.REFUSED: f"{prober} is refused",
        PortState.NO_ROUTE: f"{prober} finds no route",
        PortState.UNABLE: f"{prober} cannot probe it",
        PortState.TIMED_OUT: f"{prober} gets no answer",
    }[found.result]
    doubted = found.result in UNREACHED and not found.reached_before
    return f"{words} (it never reached it before, so that is no evidence)" if doubted else words


Count = Annotated[int, Field(ge=0, le=2**53)]
BOOT_WORDS = "At most 64 characters: digits, a to f and -."
VERSION_WORDS = "At most 40 characters: letters, digits, ., + and -."

ATTEMPT_WORDS = "A name such as ls-01m8a7dhgyfn818zs4bjbd4enq-1: ls-, the id of a job, - and a number."

AttemptName = Annotated[str, Field(pattern=r"^ls-[0-9a-z]{1,40}-[0-9]{1,9}$", description=ATTEMPT_WORDS)]


class GpuReport(ExactTypes):
    """A GPU as the agent of its node sees it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    index: Annotated[int, Field(ge=0, le=1023)]
    healthy: bool  # it answers, and has no error that only a reset clears
    utilisation: Annotated[float, Field(ge=0.0, le=1.0)]
    free_bytes: Count  # of its memory
    temperature_c: Annotated[float, Field(ge=-273.15, le=1000.0)] | None = None
    ecc_errors: Count | None = None  # uncorrected ones since the driver was loaded; none if it counts none
    link_errors: Count | None = None  # of all its links to other GPUs; none if it has none


class NodeReport(ExactTypes):
    """The report of an agent about its node."""

    model_config = ConfigDict(frozen=True, extra="forbid")
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
    def _check_each_gpu_once(cls, gpus: tuple[GpuReport, ...]) -> tuple[GpuReport, ...]:
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

    def calls_faulty(self, gpu: int, *, slots: bool) -> bool:
        """Return whether a GPU is faulty by this report alone."""
        return calls_gpu_faulty(self.content, gpu, slots=slots)

    def calls_faulty_twice(self, gpu: int, *, slots: bool) -> bool:
        """Return whether a GPU is faulty by two reports in a row."""
        return self.before is not None and all(
            calls_gpu_faulty(each, gpu, slots=slots) for each in (self.content, self.before)
        )


def calls_gpu_faulty(report: NodeReport, gpu: int, *, slots: bool) -> bool:
    """Return whether a report calls a GPU faulty; one that is missing among others is, unless it is a slot."""
    found = next((each for each in report.gpus if each.index == gpu), None)
    return bool(report.gpus) and not slots if found is None else not found.healthy


class Reports:
    """The last report of each node that has an agent. Any thread may use it."""

    def __init__(self) -> None:
        self._last: dict[str, AgentReport] = {}
        self._dismissed = set[str]()
        self._lock = threading.Lock()

    def add(self, node: str, report: NodeReport, at_s: float, address: str = "", came_s: float = 0.0) -> None:
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


class ProbeRounds:
    """Runs one round of probes after the other, each in a thread of its own."""

    def __init__(self) -> None:
        self._running: threading.Thread | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a round has not ended yet."""
        return self._running is not None and self._running.is_alive()

    def begin(self, probes: Sequence[PortProbe], on_results: Callable[[list[PortState]], object]) -> None:
        """Probe ports, and pass the results to a function."""

        def run() -> None:
            on_results(probe_ports(probes))

        self._running = threading.Thread(target=run, name="probes", daemon=True)
        self._running.start()


OWN_PROBE = ""  # the scheduler, among the probers
SILENT_MISSES = 3  # polls without a report, in a row, as of a node that is suspect
WITNESSES = 2  # agents that reach a living node, where there are that many
PROBE_AGAIN_S, MAX_AGAIN_S, SHARE = 5.0, 60.0, 0.1  # between two probes of a silent node: a share of the silence so far
VERIFY_S = 600.0  # until a probe is tried again that failed while the node lived
PORT_PROBE_ORDER_S = 20.0  # for an agent to report its result: then another one probes


class PortProbeOrder(NamedTuple):
    """A port that an agent is to probe."""

    id: str
    probe: PortProbe
    prober: str  # node of that agent
    at_s: float


@dataclass(slots=True)
class _Agent:
    """What is known of one agent and its port."""

    last_report: tuple[float, float]  # identifies its last report
    probe: PortProbe | None
    misses: int = 0
    silent_s: float | None = None  # since when it counts as silent
    reached_by: set[str] = field(default_factory=set)
    tried_s: dict[str, float] = field(default_factory=dict)  # when each last probed, or got an order to
    own: PortState | None = None  # result since it is silent
    other: tuple[str, PortState] | None = None
    order: PortProbeOrder | None = None  # to another agent, to probe this one

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None

    def is_probe_due(self, prober: str, now_s: float) -> bool:
        """Return whether a prober should probe again."""
        tried_s = self.tried_s.get(prober)
        if tried_s is None:
            return True
        if self.silent_s is None:
            return prober not in self.reached_by and now_s - tried_s >= VERIFY_S
        # A result from before it fell silent is no evidence.
        return tried_s < self.silent_s or now_s - tried_s >= _probe_interval_s(now_s - self.silent_s)


def _probe_interval_s(silence_s: float) -> float:
    return min(max(PROBE_AGAIN_S, SHARE * silence_s), MAX_AGAIN_S)


class Witnesses:
    """What is known of all ports of agents. Any thread may use it; times are by the monotonic clock."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._orders: dict[str, dict[str, str]] = {}  # by prober: id of each order, and the probed node
        self._rounds = ProbeRounds()  # of the scheduler
        self._lock = threading.Lock()

    def update(self, reports: Mapping[str, AgentReport], now_s: float, *, polls: bool) -> dict[str, Evidence]:
        """Return what was found of each agent that is silent, and ask others to probe where that is due.

        Args:
            reports: The last one of each expected agent.
            now_s: The present.
            polls: Whether an answer is due, so that an agent without a report has missed one.
        """
        with self._lock:
            for node in self._agents.keys() - reports.keys():
                self._withdraw_order(self._agents.pop(node))
            for node, report in reports.items():
                self._update_agent(node, report, now_s, polls=polls)
            living = [node for node, agent in self._agents.items() if not agent.is_silent and agent.probe is not None]
            self._order_due_probes(living, now_s)
            silent = {node: agent for node, agent in self._agents.items() if agent.is_silent}
            return {node: _evidence_of(agent, has_others=bool(living)) for node, agent in silent.items()}

    def run_own_probes(self) -> None:
        """Make the scheduler's own probes that are due, unless a round is under way."""
        if self._rounds.is_under_way:
            return
        began_s = time.monotonic()

        def take(results: Sequence[PortState]) -> None:
            for probe, result in zip(probes, results, strict=True):
                self.record_own_result(probe, result, began_s)

        if probes := self.take_due_probes(began_s):
            self._rounds.begin(probes, take)

    def take_due_probes(self, now_s: float) -> list[PortProbe]:
        """Return the ports that the scheduler is to probe now."""
        with self._lock:
            found = [
                agent
                for agent in self._agents.values()
                if agent.probe is not None and agent.is_probe_due(OWN_PROBE, now_s)
            ]
            found.sort(key=lambda agent: not agent.is_silent)
            for agent in found[:MAX_PROBES_AT_ONCE]:
                agent.tried_s[OWN_PROBE] = now_s
            return [agent.probe for agent in found[:MAX_PROBES_AT_ONCE] if agent.probe is not None]

    def record_own_result(self, probe: PortProbe, result: PortState, began_s: float) -> None:
        """Record a result of the scheduler itself, and when its probe began."""
        with self._lock:
            agent = self._agents.get(probe.node)
            if agent is not None and agent.probe == probe:
                self._note_result(agent, OWN_PROBE, result, began_s)

    def successful_probers(self) -> dict[str, tuple[str, ...]]:
        """Return the probers that reached the port of each agent; the scheduler comes first, if it did."""
        with self._lock:
            return {node: tuple(sorted(agent.reached_by)) for node, agent in self._agents.items()}

    def orders_for(self, prober: str) -> tuple[PortProbeOrder, ...]:
        """Return the ports that the agent of a node is to probe."""
        with self._lock:
            orders = [self._agents[node].order for node in self._orders.get(prober, {}).values()]
            return tuple(order for order in orders if order is not None)

    def record_result(self, prober: str, order: str, result: PortState) -> bool:
        """Record a result of the agent of a node; return whether it was expected."""
        with self._lock:
            node = self._orders.get(prober, {}).get(order)
            agent = self._agents.get(node) if node is not None else None
            if agent is None or agent.order is None:
                return False
            began_s = agent.order.at_s
            self._withdraw_order(agent)
            self._note_result(agent, prober, result, began_s)
            return True

    def _update_agent(self, node: str, report: AgentReport, now_s: float, *, polls: bool) -> None:
        last_report, agent = (report.at_s, report.came_s), self._agents.get(node)
        port = report.content.agent_port
        probe = PortProbe(node, report.address, port) if port and report.address else None
        if agent is None or agent.probe != probe:
            if agent is not None:
                self._withdraw_order(agent)
            self._agents[node] = _Agent(last_report, probe)
        elif agent.last_report != last_report:
            agent.last_report, agent.misses, agent.silent_s, agent.own, agent.other = last_report, 0, None, None, None
        elif polls:
            agent.misses += 1
            if agent.misses >= SILENT_MISSES and agent.silent_s is None:
                agent.silent_s = now_s
                self._withdraw_order(agent)

    def _order_due_probes(self, living: list[str], now_s: float) -> None:
        """Let agents that live probe where that is due; at silent nodes first."""
        begun, alive = 0, set(living)
        for node, agent in sorted(self._agents.items(), key=lambda pair: not pair[1].is_silent):
            if begun >= MAX_PROBES_AT_ONCE:
                return
            if agent.order is not None and (
                agent.order.prober not in alive or now_s - agent.order.at_s > PORT_PROBE_ORDER_S
            ):
                self._withdraw_order(agent)
            if agent.probe is None or agent.order is not None or not _needs_other_prober(agent, alive, now_s):
                continue
            others = [prober for prober in living if prober != node and agent.is_probe_due(prober, now_s)]
            if others:
                self._order_probe(agent, min(others, key=lambda prober: self._prober_sort_key(agent, prober)), now_s)
                begun += 1

    def _prober_sort_key(self, agent: _Agent, prober: str) -> tuple[bool, float, int, str]:
        """Return the sort key of probers: those that reached it before, then by last order and load."""
        return (
            prober not in agent.reached_by,
            agent.tried_s.get(prober, -1.0),
            len(self._orders.get(prober, ())),
            prober,
        )

    def _order_probe(self, agent: _Agent, prober: str, now_s: float) -> None:
        assert agent.probe is not None
        agent.order = PortProbeOrder(secrets.token_hex(8), agent.probe, prober, now_s)
        agent.tried_s[prober] = now_s
        self._orders.setdefault(prober, {})[agent.order.id] = agent.probe.node

    def _withdraw_order(self, agent: _Agent) -> None:
        if agent.order is not None:
            self._orders[agent.order.prober].pop(agent.order.id, None)
            agent.order = None

    @staticmethod
    def _note_result(agent: _Agent, prober: str, result: PortState, began_s: float) -> None:
        if result is PortState.ANSWERED:
            agent.reached_by.add(prober)
        if agent.silent_s is None or began_s < agent.silent_s:
            return
        if prober == OWN_PROBE:
            agent.own = result
        else:
            agent.other = (prober, result)


def _needs_other_prober(agent: _Agent, alive: Iterable[str], now_s: float) -> bool:
    others = {prober: tried_s for prober, tried_s in agent.tried_s.items() if prober != OWN_PROBE}
    if agent.silent_s is None:
        return len(agent.reached_by.intersection(alive)) < WITNESSES
    last_s = max(others.values(), default=-1.0)
    return last_s < agent.silent_s or now_s - last_s >= _probe_interval_s(now_s - agent.silent_s)


def _evidence_of(agent: _Agent, *, has_others: bool) -> Evidence:
    own = None if agent.own is None else PortWitness(OWN_PROBE, agent.own, OWN_PROBE in agent.reached_by)
    other = None if agent.other is None else PortWitness(*agent.other, agent.other[0] in agent.reached_by)
    return Evidence(own, other, has_others)


SAMPLE_EVERY_S = 15.0  # between two samples
SAMPLES_KEPT_S = 24 * 3600.0
MAX_USE_SAMPLES = int(SAMPLES_KEPT_S / SAMPLE_EVERY_S)  # samples
FRESH_REPORT_S = 120.0  # older reports do not count


class UseSample(NamedTuple):
    """A moment."""

    at_s: float  # Unix time
    held: float  # share of the cluster's GPUs that jobs hold, 0 to 1
    busy: float | None  # mean utilisation of the GPUs that agents report, 0 to 1; None if none does


class Usage:
    """The samples of the last day. Any thread may use it."""

    def __init__(self) -> None:
        self._samples: deque[UseSample] = deque(maxlen=MAX_USE_SAMPLES)
        self._lock = threading.Lock()
        self.taken = 0  # samples since the start

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for another sample, also after a clock was set back."""
        with self._lock:
            return not self._samples or not 0.0 <= now_s - self._samples[-1].at_s < SAMPLE_EVERY_S

    def add(self, sample: UseSample) -> None:
        """Store a sample; drop those from before a clock was set back, as they would be out of order."""
        with self._lock:
            while self._samples and self._samples[-1].at_s >= sample.at_s:
                self._samples.pop()
            self._samples.append(sample)
            self.taken += 1

    def samples(self) -> list[UseSample]:
        """Return all samples, the first first."""
        with self._lock:
            return list(self._samples)


def use_sample_of(
    held: Iterable[tuple[str, int]], nodes: Mapping[str, int], reports: Mapping[str, AgentReport], now_s: float
) -> UseSample:  # fmt: skip
    """Return the use of a cluster, by the node and index of GPUs that jobs hold, and the last reports of agents."""
    gpus = sum(nodes.values())
    busy = [
        each.utilisation
        for name in nodes
        if name in reports
        for each in _fresh_gpu_reports(reports[name], nodes[name], now_s)
    ]
    taken = sum(1 for node, gpu in held if gpu < nodes.get(node, 0))
    return UseSample(now_s, taken / gpus if gpus else 0.0, sum(busy) / len(busy) if busy else None)


def _fresh_gpu_reports(report: AgentReport, gpus: int, now_s: float) -> list[GpuReport]:
    """Return a report's entries of GPUs that the cluster has, none if it is old."""
    return [gpu for gpu in report.content.gpus if gpu.index < gpus] if now_s - report.at_s <= FRESH_REPORT_S else []
