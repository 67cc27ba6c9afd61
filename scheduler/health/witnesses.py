"""Probes of the ports of agents: by the scheduler itself, and by the agents of other nodes.

Who knocks at the doors of agents: the scheduler itself, and the agents of other nodes that it asks.

While an agent lives, the scheduler and two other agents knock at its door once, to see that they are let in. Once it is
silent they knock again, and only a failure of one who was let in before says anything: others may be kept out by a
firewall. An order stands in each answer to a report until its outcome has come, as checks do.

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
from .liveness import Evidence, Found, Knock, Report, Sight, look_at

OWN = ""  # the scheduler, among those who knock
SILENT_MISSES = 3  # polls without a report, in a row, as of a node that is suspect
WITNESSES = 2  # agents that are let in while a node lives, where there are so many
AGAIN_S, MOST_AGAIN_S, SHARE = 5.0, 60.0, 0.1  # between two knocks at a silent node: a share of the silence so far
VERIFY_S = 600.0  # until a knock is tried again that failed while the node lived
ORDER_S = 20.0  # for an agent to say what it found: then another one is asked
AT_ONCE = 64  # knocks that are begun in one look


class Order(NamedTuple):
    """A door at which an agent is to knock."""

    id: str
    knock: Knock


@dataclass(slots=True)
class _Asked:
    order: Order
    who: str
    at_s: float


@dataclass(slots=True)
class _Agent:
    """What is known of one agent and its door."""

    heard: tuple[float, float]  # what tells its last report from others
    knock: Knock | None
    misses: int = 0
    silent_s: float | None = None  # since when it counts as silent
    been_in: set[str] = field(default_factory=set)
    tried_s: dict[str, float] = field(default_factory=dict)  # when each knocked last, or was asked to
    own: Sight | None = None  # found since it is silent
    other: tuple[str, Sight] | None = None
    asked: _Asked | None = None

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None

    def is_due(self, who: str, now_s: float) -> bool:
        """Return whether one who knocks should do so again."""
        tried_s = self.tried_s.get(who)
        if tried_s is None:
            return True
        if self.silent_s is None:
            return who not in self.been_in and now_s - tried_s >= VERIFY_S
        # What was found before it fell silent says nothing.
        return tried_s < self.silent_s or now_s - tried_s >= _again_s(now_s - self.silent_s)


def _again_s(silence_s: float) -> float:
    return min(max(AGAIN_S, SHARE * silence_s), MOST_AGAIN_S)


class Witnesses:
    """What is known of all doors. Any thread may use it; times are by the monotonic clock."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._orders: dict[str, dict[str, str]] = {}  # by who is asked: id of each order, and whose door it is
        self._lock = threading.Lock()

    def look(self, reports: Mapping[str, Report], now_s: float, *, polls: bool) -> dict[str, Evidence]:
        """Return what was found of each agent that is silent, and ask others to knock where that is due.

        Args:
            reports: The last one of each agent that is waited for.
            now_s: The present.
            polls: Whether an answer is due, so that a report that has not come is missed.
        """
        with self._lock:
            for gone in self._agents.keys() - reports.keys():
                self._withdraw(self._agents.pop(gone))
            for node, report in reports.items():
                self._hear(node, report, now_s, polls=polls)
            living = [node for node, it in self._agents.items() if not it.is_silent and it.knock is not None]
            self._ask(living, now_s)
            return {
                node: _evidence(it, has_others=bool(living)) for node, it in self._agents.items() if it.is_silent
            }  # fmt: skip

    def due(self, now_s: float) -> list[Knock]:
        """Return the doors at which the scheduler is to knock now."""
        with self._lock:
            found = [it for it in self._agents.values() if it.knock is not None and it.is_due(OWN, now_s)]
            found.sort(key=lambda it: not it.is_silent)
            for it in found[:AT_ONCE]:
                it.tried_s[OWN] = now_s
            return [it.knock for it in found[:AT_ONCE] if it.knock is not None]

    def saw(self, knock: Knock, sight: Sight, asked_s: float) -> None:
        """Take what the scheduler itself has found at a door, and since when it has been looking."""
        with self._lock:
            it = self._agents.get(knock.node)
            if it is not None and it.knock == knock:
                self._take(it, OWN, sight, asked_s)

    def let_in(self) -> dict[str, tuple[str, ...]]:
        """Return who was let in at the door of each agent; the scheduler is the first, if it is one of them."""
        with self._lock:
            return {node: tuple(sorted(it.been_in)) for node, it in self._agents.items()}

    def fetch(self, who: str) -> tuple[Order, ...]:
        """Return the doors at which the agent of a node is to knock."""
        with self._lock:
            asked = [self._agents[node].asked for node in self._orders.get(who, {}).values()]
            return tuple(it.order for it in asked if it is not None)

    def settle(self, who: str, order: str, sight: Sight) -> bool:
        """Take what the agent of a node has found; return whether anybody waits for it."""
        with self._lock:
            node = self._orders.get(who, {}).get(order)
            it = self._agents.get(node) if node is not None else None
            if it is None or it.asked is None:
                return False
            asked_s = it.asked.at_s
            self._withdraw(it)
            self._take(it, who, sight, asked_s)
            return True

    def _hear(self, node: str, report: Report, now_s: float, *, polls: bool) -> None:
        heard, it = (report.at_s, report.came_s), self._agents.get(node)
        knock = Knock(node, report.address, report.told.door) if report.told.door and report.address else None
        if it is None or it.knock != knock:
            if it is not None:
                self._withdraw(it)
            self._agents[node] = _Agent(heard, knock)
        elif it.heard != heard:
            it.heard, it.misses, it.silent_s, it.own, it.other = heard, 0, None, None, None
        elif polls:
            it.misses += 1
            if it.misses >= SILENT_MISSES and it.silent_s is None:
                it.silent_s = now_s
                self._withdraw(it)

    def _ask(self, living: list[str], now_s: float) -> None:
        """Let agents that live knock where that is due; at silent nodes first."""
        begun, alive = 0, set(living)
        for node, it in sorted(self._agents.items(), key=lambda pair: not pair[1].is_silent):
            if begun >= AT_ONCE:
                return
            if it.asked is not None and (it.asked.who not in alive or now_s - it.asked.at_s > ORDER_S):
                self._withdraw(it)
            if it.knock is None or it.asked is not None or not _wants_other(it, alive, now_s):
                continue
            others = [who for who in living if who != node and it.is_due(who, now_s)]
            if others:
                self._order(it, min(others, key=lambda who: self._rank(it, who)), now_s)
                begun += 1

    def _rank(self, it: _Agent, who: str) -> tuple[bool, float, int, str]:
        """Return what says who is to knock: who was let in before, then who was asked longest ago, then fewest."""
        return who not in it.been_in, it.tried_s.get(who, -1.0), len(self._orders.get(who, ())), who

    def _order(self, it: _Agent, who: str, now_s: float) -> None:
        assert it.knock is not None
        it.asked = _Asked(Order(secrets.token_hex(8), it.knock), who, now_s)
        it.tried_s[who] = now_s
        self._orders.setdefault(who, {})[it.asked.order.id] = it.knock.node

    def _withdraw(self, it: _Agent) -> None:
        if it.asked is not None:
            self._orders[it.asked.who].pop(it.asked.order.id, None)
            it.asked = None

    @staticmethod
    def _take(it: _Agent, who: str, sight: Sight, asked_s: float) -> None:
        if sight is Sight.ANSWERED:
            it.been_in.add(who)
        if it.silent_s is None or asked_s < it.silent_s:
            return
        if who == OWN:
            it.own = sight
        else:
            it.other = (who, sight)


def _wants_other(it: _Agent, alive: Iterable[str], now_s: float) -> bool:
    others = {who: tried_s for who, tried_s in it.tried_s.items() if who != OWN}
    if it.silent_s is None:
        return len(it.been_in.intersection(alive)) < WITNESSES
    last_s = max(others.values(), default=-1.0)
    return last_s < it.silent_s or now_s - last_s >= _again_s(now_s - it.silent_s)


def _evidence(it: _Agent, *, has_others: bool) -> Evidence:
    own = None if it.own is None else Found(OWN, it.own, OWN in it.been_in)
    other = None if it.other is None else Found(*it.other, it.other[0] in it.been_in)
    return Evidence(own, other, has_others)


log = logging.getLogger(__name__)


class Rounds:
    """Runs one round of knocks after the other, each in a thread of its own."""

    def __init__(self) -> None:
        self._running: threading.Thread | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a round has not ended yet."""
        return self._running is not None and self._running.is_alive()

    def begin(self, knocks: Sequence[Knock], take: Callable[[list[Sight]], object]) -> None:
        """Knock, and give what is found to a function."""

        def run() -> None:
            take(look_at(knocks))

        self._running = threading.Thread(target=run, name="knocks", daemon=True)
        self._running.start()


class OwnRounds:
    """The scheduler's own knocks.

    Args:
        witnesses: What is known of doors.
    """

    def __init__(self, witnesses: Witnesses) -> None:
        self._witnesses, self._rounds = witnesses, Rounds()

    def turn(self) -> None:
        """Knock where that is due, unless a round is under way."""
        if self._rounds.is_under_way:
            return
        asked_s = time.monotonic()
        if knocks := self._witnesses.due(asked_s):
            self._rounds.begin(knocks, lambda sights: self._take(knocks, sights, asked_s))

    def _take(self, knocks: Sequence[Knock], sights: Sequence[Sight], asked_s: float) -> None:
        for knock, sight in zip(knocks, sights, strict=True):
            self._witnesses.saw(knock, sight, asked_s)


class AskedRounds:
    """An agent's knocks at the doors of others, as the scheduler asks for them.

    Args:
        client: Of the scheduler.
        node: Of the agent.
    """

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node, self._rounds = client, node, Rounds()

    def take(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Knock where that is asked for, unless a round is under way; an order comes again until it was told of."""
        asked = {str(it["id"]): Knock(str(it["node"]), str(it["address"]), int(it["port"])) for it in orders}
        if asked and not self._rounds.is_under_way:
            self._rounds.begin(tuple(asked.values()), lambda sights: self._tell(asked, sights))

    def _tell(self, asked: Mapping[str, Knock], sights: Sequence[Sight]) -> None:
        try:
            self._client.tell_sights(self._node, dict(zip(asked, map(str, sights), strict=True)))
        except LongshoreError as error:
            log.warning("what was found at the doors of other agents could not be told: %s", error)
