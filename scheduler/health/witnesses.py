"""Probes of the ports of agents: by the scheduler itself, and by the agents of other nodes.

While an agent lives, the scheduler and two other agents probe its port once, to find out that they reach it. Once it is
silent they probe again, and only a failure of one that reached it before is evidence: others may be behind a firewall.
An order is in each answer to a report until its result has come, as with checks.

Source: SPEC C9; docs/nodes.md, Probes of silent nodes.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...cluster.files.errors import LongshoreError
from ..client import Client
from .liveness import AgentReport, Evidence, PortProbe, PortState, PortWitness, probe_ports

OWN_PROBE = ""  # the scheduler, among the probers
SILENT_MISSES = 3  # polls without a report, in a row, as of a node that is suspect
WITNESSES = 2  # agents that reach a living node, where there are that many
PROBE_AGAIN_S, MAX_AGAIN_S, SHARE = 5.0, 60.0, 0.1  # between two probes of a silent node: a share of the silence so far
VERIFY_S = 600.0  # until a probe is tried again that failed while the node lived
PORT_PROBE_ORDER_S = 20.0  # for an agent to report its result: then another one probes
MAX_PROBES_AT_ONCE = 64  # probes that begin in one pass


class PortProbeOrder(NamedTuple):
    """A port that an agent is to probe."""

    id: str
    probe: PortProbe


@dataclass(slots=True)
class _ProbeRequest:
    order: PortProbeOrder
    who: str
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
    request: _ProbeRequest | None = None

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None

    def is_due(self, who: str, now_s: float) -> bool:
        """Return whether a prober should probe again."""
        tried_s = self.tried_s.get(who)
        if tried_s is None:
            return True
        if self.silent_s is None:
            return who not in self.reached_by and now_s - tried_s >= VERIFY_S
        # A result from before it fell silent is no evidence.
        return tried_s < self.silent_s or now_s - tried_s >= _again_s(now_s - self.silent_s)


def _again_s(silence_s: float) -> float:
    return min(max(PROBE_AGAIN_S, SHARE * silence_s), MAX_AGAIN_S)


class Witnesses:
    """What is known of all ports of agents. Any thread may use it; times are by the monotonic clock."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._orders: dict[str, dict[str, str]] = {}  # by prober: id of each order, and the probed node
        self._lock = threading.Lock()

    def update(self, reports: Mapping[str, AgentReport], now_s: float, *, polls: bool) -> dict[str, Evidence]:
        """Return what was found of each agent that is silent, and ask others to probe where that is due.

        Args:
            reports: The last one of each expected agent.
            now_s: The present.
            polls: Whether an answer is due, so that an agent without a report has missed one.
        """
        with self._lock:
            for gone in self._agents.keys() - reports.keys():
                self._withdraw(self._agents.pop(gone))
            for node, report in reports.items():
                self._take_report(node, report, now_s, polls=polls)
            living = [node for node, agent in self._agents.items() if not agent.is_silent and agent.probe is not None]
            self._ask(living, now_s)
            silent = {node: agent for node, agent in self._agents.items() if agent.is_silent}
            return {node: _evidence(agent, has_others=bool(living)) for node, agent in silent.items()}

    def due(self, now_s: float) -> list[PortProbe]:
        """Return the ports that the scheduler is to probe now."""
        with self._lock:
            found = [
                agent for agent in self._agents.values() if agent.probe is not None and agent.is_due(OWN_PROBE, now_s)
            ]
            found.sort(key=lambda agent: not agent.is_silent)
            for agent in found[:MAX_PROBES_AT_ONCE]:
                agent.tried_s[OWN_PROBE] = now_s
            return [agent.probe for agent in found[:MAX_PROBES_AT_ONCE] if agent.probe is not None]

    def record_own_result(self, probe: PortProbe, result: PortState, asked_s: float) -> None:
        """Record a result of the scheduler itself, and when its probe began."""
        with self._lock:
            agent = self._agents.get(probe.node)
            if agent is not None and agent.probe == probe:
                self._take(agent, OWN_PROBE, result, asked_s)

    def reached_by(self) -> dict[str, tuple[str, ...]]:
        """Return the probers that reached the port of each agent; the scheduler comes first, if it did."""
        with self._lock:
            return {node: tuple(sorted(agent.reached_by)) for node, agent in self._agents.items()}

    def fetch(self, who: str) -> tuple[PortProbeOrder, ...]:
        """Return the ports that the agent of a node is to probe."""
        with self._lock:
            requests = [self._agents[node].request for node in self._orders.get(who, {}).values()]
            return tuple(request.order for request in requests if request is not None)

    def record_result(self, who: str, order: str, result: PortState) -> bool:
        """Record a result of the agent of a node; return whether it was expected."""
        with self._lock:
            node = self._orders.get(who, {}).get(order)
            agent = self._agents.get(node) if node is not None else None
            if agent is None or agent.request is None:
                return False
            asked_s = agent.request.at_s
            self._withdraw(agent)
            self._take(agent, who, result, asked_s)
            return True

    def _take_report(self, node: str, report: AgentReport, now_s: float, *, polls: bool) -> None:
        last_report, agent = (report.at_s, report.came_s), self._agents.get(node)
        port = report.content.agent_port
        probe = PortProbe(node, report.address, port) if port and report.address else None
        if agent is None or agent.probe != probe:
            if agent is not None:
                self._withdraw(agent)
            self._agents[node] = _Agent(last_report, probe)
        elif agent.last_report != last_report:
            agent.last_report, agent.misses, agent.silent_s, agent.own, agent.other = last_report, 0, None, None, None
        elif polls:
            agent.misses += 1
            if agent.misses >= SILENT_MISSES and agent.silent_s is None:
                agent.silent_s = now_s
                self._withdraw(agent)

    def _ask(self, living: list[str], now_s: float) -> None:
        """Let agents that live probe where that is due; at silent nodes first."""
        begun, alive = 0, set(living)
        for node, agent in sorted(self._agents.items(), key=lambda pair: not pair[1].is_silent):
            if begun >= MAX_PROBES_AT_ONCE:
                return
            if agent.request is not None and (
                agent.request.who not in alive or now_s - agent.request.at_s > PORT_PROBE_ORDER_S
            ):
                self._withdraw(agent)
            if agent.probe is None or agent.request is not None or not _wants_other(agent, alive, now_s):
                continue
            others = [who for who in living if who != node and agent.is_due(who, now_s)]
            if others:
                self._order(agent, min(others, key=lambda who: self._rank(agent, who)), now_s)
                begun += 1

    def _rank(self, agent: _Agent, who: str) -> tuple[bool, float, int, str]:
        """Return the sort key of probers: those that reached it before, then by last order and load."""
        return who not in agent.reached_by, agent.tried_s.get(who, -1.0), len(self._orders.get(who, ())), who

    def _order(self, agent: _Agent, who: str, now_s: float) -> None:
        assert agent.probe is not None
        agent.request = _ProbeRequest(PortProbeOrder(secrets.token_hex(8), agent.probe), who, now_s)
        agent.tried_s[who] = now_s
        self._orders.setdefault(who, {})[agent.request.order.id] = agent.probe.node

    def _withdraw(self, agent: _Agent) -> None:
        if agent.request is not None:
            self._orders[agent.request.who].pop(agent.request.order.id, None)
            agent.request = None

    @staticmethod
    def _take(agent: _Agent, who: str, result: PortState, asked_s: float) -> None:
        if result is PortState.ANSWERED:
            agent.reached_by.add(who)
        if agent.silent_s is None or asked_s < agent.silent_s:
            return
        if who == OWN_PROBE:
            agent.own = result
        else:
            agent.other = (who, result)


def _wants_other(agent: _Agent, alive: Iterable[str], now_s: float) -> bool:
    others = {who: tried_s for who, tried_s in agent.tried_s.items() if who != OWN_PROBE}
    if agent.silent_s is None:
        return len(agent.reached_by.intersection(alive)) < WITNESSES
    last_s = max(others.values(), default=-1.0)
    return last_s < agent.silent_s or now_s - last_s >= _again_s(now_s - agent.silent_s)


def _evidence(agent: _Agent, *, has_others: bool) -> Evidence:
    own = None if agent.own is None else PortWitness(OWN_PROBE, agent.own, OWN_PROBE in agent.reached_by)
    other = None if agent.other is None else PortWitness(*agent.other, agent.other[0] in agent.reached_by)
    return Evidence(own, other, has_others)


log = logging.getLogger(__name__)


class ProbeRounds:
    """Runs one round of probes after the other, each in a thread of its own."""

    def __init__(self) -> None:
        self._running: threading.Thread | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a round has not ended yet."""
        return self._running is not None and self._running.is_alive()

    def begin(self, probes: Sequence[PortProbe], take: Callable[[list[PortState]], object]) -> None:
        """PortProbe, and give what is found to a function."""

        def run() -> None:
            take(probe_ports(probes))

        self._running = threading.Thread(target=run, name="probes", daemon=True)
        self._running.start()


class OwnRounds:
    """The scheduler's own probes.

    Args:
        witnesses: What is known of ports.
    """

    def __init__(self, witnesses: Witnesses) -> None:
        self._witnesses, self._rounds = witnesses, ProbeRounds()

    def turn(self) -> None:
        """Make the probes that are due, unless a round is under way."""
        if self._rounds.is_under_way:
            return
        asked_s = time.monotonic()
        if probes := self._witnesses.due(asked_s):
            self._rounds.begin(probes, lambda results: self._take(probes, results, asked_s))

    def _take(self, probes: Sequence[PortProbe], results: Sequence[PortState], asked_s: float) -> None:
        for probe, result in zip(probes, results, strict=True):
            self._witnesses.record_own_result(probe, result, asked_s)


class RequestedRounds:
    """An agent's probes of other agents' ports, as the scheduler orders them.

    Args:
        client: Of the scheduler.
        node: Of the agent.
    """

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node, self._rounds = client, node, ProbeRounds()

    def take(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Make the ordered probes, unless a round is under way; an order comes again until its result is reported."""
        probes = {
            str(order["id"]): PortProbe(str(order["node"]), str(order["address"]), int(order["port"]))
            for order in orders
        }
        if probes and not self._rounds.is_under_way:
            self._rounds.begin(tuple(probes.values()), lambda results: self._report(probes, results))

    def _report(self, probes: Mapping[str, PortProbe], results: Sequence[PortState]) -> None:
        try:
            self._client.report_port_probes(self._node, dict(zip(probes, map(str, results), strict=True)))
        except LongshoreError as error:
            log.warning("results of probes of other agents could not be reported: %s", error)
