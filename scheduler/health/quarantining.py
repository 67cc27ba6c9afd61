"""Into quarantine and out of it: what findings of checks, agents and operators change in the store.

Checks that the agents of nodes are to run: asked for by the scheduler, fetched with the answer to a report.

An order stands in every answer until its outcome has come, as an agent may be started anew. Kept in memory: whoever
asked waits, and asks again if the scheduler ends.

Source: SPEC C4, C8; docs/nodes.md, Quarantine.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.files.errors import InputError
from ..model.gpu_index import WHOLE_NODE, Clears, HardwarePlace, QuarantineEntry, QuarantineFinding
from ..model.job import NewEvent
from ..rules.quarantine import (
    BUDGET_S,
    BY_HAND,
    CLEARED_S,
    Fleet,
    back_off_s,
    is_old,
    is_over_budget,
    makes_it_the_node,
    stricter,
    tries_of,
    who_clears,
)
from ..store.events import append, last_of_no_job
from ..store.nodes import (
    CLEARED,
    NOT_CLEARED,
    QUARANTINE,
    REFUSED,
    SET,
    add_entry,
    clear_entries,
    entries_since,
    note_failed_checks,
    note_symptom,
    open_entries,
)

TWO_GPUS = "two GPUs within an hour"  # cause of the quarantine of a node


class Acted(StrEnum):
    """What came of a finding."""

    SET = "quarantined"
    KNOWN = "known"  # it stands in quarantine for this cause already
    OLD = "old"  # it was cleared since
    REFUSED = "refused"  # too much of its node type came into quarantine within an hour


def quarantine(tx: Connection, fleet: Fleet, finding: QuarantineFinding, now_s: float, *, writer: str) -> Acted:
    """Put what was found to be broken into quarantine, unless the rules are against it; safe to repeat.

    Args:
        tx: Transaction.
        fleet: The nodes of the cluster.
        finding: What was found.
        now_s: Unix time.
        writer: Role that writes it.

    Raises:
        InputError: If the cluster has no such node or GPU.
    """
    finding = finding._replace(place=finding.place.ordered())
    _check_known(finding.place, fleet)
    place, entries = finding.place, entries_since(tx, now_s - CLEARED_S)
    known = next((it for it in entries if _stands(it) and (it.place, it.cause) == (place, finding.cause)), None)
    if known is not None:
        note_symptom(tx, known, finding.evidence, finding.at_s)
        return Acted.KNOWN
    is_by_hand = finding.check == BY_HAND
    if not is_by_hand and is_old(finding, entries, now_s):
        return Acted.OLD
    if not is_by_hand and is_over_budget(place, entries, fleet, now_s):
        _refuse(tx, finding, fleet, now_s, writer)
        return Acted.REFUSED
    if not _set(tx, finding, entries, now_s, writer):
        return Acted.KNOWN
    if not is_by_hand and makes_it_the_node(place, entries, now_s):
        _widen(tx, fleet, finding, entries, now_s, writer)
    return Acted.SET


def _stands(entry: QuarantineEntry) -> bool:
    return entry.cleared_s is None


def _check_known(place: HardwarePlace, fleet: Fleet) -> None:
    for end in place.ends:
        if end.node not in fleet.sizes or not WHOLE_NODE <= end.gpu < fleet.sizes[end.node]:
            raise InputError(f"the cluster has no {end.words}", "`longshore node list` lists nodes and their GPUs")


def _set(
    tx: Connection, finding: QuarantineFinding, entries: Sequence[QuarantineEntry], now_s: float, writer: str
) -> bool:
    place, tries = finding.place, tries_of(finding.place, finding.cause, entries, now_s)
    clears = who_clears(place, finding.cause, finding.clears, entries, now_s)
    entry = QuarantineEntry(
        0, place, now_s, max(finding.at_s, now_s), finding.check, finding.cause, finding.evidence, finding.action,
        clears, tries, finding.boot_id, now_s + back_off_s(tries),
    )  # fmt: skip
    if not add_entry(tx, entry):
        return False
    text = f"{place.words} is in quarantine: {finding.cause} ({finding.check}: {finding.evidence}); {finding.action}"
    _tell(tx, place, SET, text, now_s, writer, check=finding.check, cause=finding.cause)
    return True


def _widen(
    tx: Connection, fleet: Fleet, finding: QuarantineFinding, entries: Sequence[QuarantineEntry], now_s: float,
    writer: str
) -> None:  # fmt: skip
    """Put the node of a GPU into quarantine as well; checks end that only where they end all of its GPUs'."""
    node = HardwarePlace(finding.place.node)
    others = [it for it in entries if _stands(it) and it.place.node == node.node]
    found = finding._replace(
        place=node, cause=TWO_GPUS, clears=stricter([finding.clears, *(it.clears for it in others)]),
        evidence=f"{finding.place.words}: {finding.cause}",
    )  # fmt: skip
    if any(it.place == node for it in others):
        return
    if is_over_budget(node, entries, fleet, now_s):
        _refuse(tx, found, fleet, now_s, writer)
    else:
        _set(tx, found, entries, now_s, writer)


def _refuse(tx: Connection, finding: QuarantineFinding, fleet: Fleet, now_s: float, writer: str) -> None:
    """Raise an alarm, once an hour for each node type."""
    kind = fleet.types[finding.place.node]
    told = last_of_no_job(tx, QUARANTINE, now_s - BUDGET_S, 1000)
    if any(it.now == REFUSED and (it.data or {}).get("type") == kind for it in told):
        return
    text = (
        f"so many GPUs of type {kind} were found broken within an hour that no more of them come into quarantine, such "
        f"as {finding.place.words} ({finding.check}: {finding.cause}); look at the check, the driver and the switches"
    )
    _tell(tx, finding.place, REFUSED, text, now_s, writer, type=kind)


def entries_for(entries: Sequence[QuarantineEntry], place: HardwarePlace) -> list[QuarantineEntry]:
    """Return those of some quarantines that end when a place is cleared: of a node, all of its GPUs and links.

    Raises:
        InputError: If there are none, or if the whole node of a GPU stands in quarantine.
    """
    place = place.ordered()
    if place.gpu != WHOLE_NODE and any(it.place == HardwarePlace(place.node) for it in entries):
        raise InputError(f"the whole node {place.node} is in quarantine", f"clear it: {place.node}")
    found = [it for it in entries if it.place == place or place.covers(it.place)]
    if not found:
        raise InputError(f"{place.words} is not in quarantine", "`longshore node quarantine list` shows what is")
    return found


def clear(
    tx: Connection, place: HardwarePlace, by: str, evidence: str, now_s: float, *, writer: str,
    is_ready: Callable[[QuarantineEntry], bool] = lambda _entry: True,
) -> int:  # fmt: skip
    """End the quarantine of a place, of a node also that of its GPUs and links; return how many ended.

    Args:
        tx: Transaction.
        place: What was mended.
        by: Who says so, `checks` if they passed without anybody asking.
        evidence: What the checks found.
        now_s: Unix time.
        writer: Role that writes it.
        is_ready: Says which of these quarantines may end.

    Raises:
        InputError: As `entries_for`.
    """
    found = [it for it in entries_for(open_entries(tx), place) if is_ready(it)]
    ended = clear_entries(tx, found, by, evidence, now_s)
    if ended:
        text = f"{place.words} is out of quarantine, cleared by {by}: {evidence}"
        _tell(tx, place, CLEARED, text, now_s, writer, by=by)
    return ended


def keep(tx: Connection, place: HardwarePlace, evidence: str, now_s: float, *, writer: str) -> None:
    """Note that checks of a place did not pass: they are not run again by themselves for a longer time."""
    for entry in entries_for(open_entries(tx), place):
        tries = entry.tries + 1
        note_failed_checks(tx, entry, evidence, tries, now_s + back_off_s(tries))
    _tell(tx, place, NOT_CLEARED, f"{place.words} stays in quarantine: {evidence}", now_s, writer)


def by_hand(place: HardwarePlace, reason: str, action: str, now_s: float) -> QuarantineFinding:
    """Return what an operator puts into quarantine."""
    return QuarantineFinding(place, BY_HAND, reason, "an operator says so", action, Clears.OPERATOR, now_s)


def _tell(tx: Connection, place: HardwarePlace, now: str, text: str, now_s: float, writer: str, **data: str) -> None:
    told = {"node": place.node, "gpu": None if place.gpu == WHOLE_NODE else place.gpu, "place": place.words, **data}
    append(tx, NewEvent(QUARANTINE, writer, now_s, now=now, cause=text, data=told))


LIMIT_S = 300.0  # for an agent to fetch an order, load PyTorch, run the checks and tell


class Order(NamedTuple):
    """Checks that an agent is to run."""

    id: str
    gpus: tuple[int, ...]
    level: int


class Outcome(NamedTuple):
    """What came of an order."""

    passed: bool
    evidence: str


@dataclass(slots=True)
class _Open:
    order: Order
    has_come: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None


class CheckOrders:
    """The orders that wait for an outcome. Any thread may use it.

    Args:
        limit_s: After which an order is given up.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._open: dict[str, dict[str, _Open]] = {}  # by node and id
        self._able: dict[str, bool] = {}  # nodes whose agents have reported, and whether they run checks
        self._lock = threading.Lock()

    def ask(self, node: str, gpus: tuple[int, ...], level: int = 1) -> Outcome:
        """Let the agent of a node check GPUs of it, and wait for the outcome.

        Raises:
            InputError: If no agent there runs checks, or none has told of an outcome in time.
        """
        asked = _Open(Order(secrets.token_hex(8), gpus, level))
        with self._lock:
            if not self._able.get(node, False):
                fix = f"start it by `longshore node agent --node {node} --checks`"
                raise InputError(f"no agent on {node} runs checks", fix)
            self._open.setdefault(node, {})[asked.order.id] = asked
        asked.has_come.wait(self._limit_s)
        with self._lock:
            self._open[node].pop(asked.order.id)
            if asked.outcome is None:
                raise InputError(f"the agent on {node} did not tell within {self._limit_s:.0f} s what it found")
            return asked.outcome

    def fetch(self, node: str, *, able: bool) -> tuple[Order, ...]:
        """Return what a node's agent is to check.

        Args:
            node: Whose agent asks.
            able: Whether it runs checks.
        """
        with self._lock:
            self._able[node] = able
            return tuple(it.order for it in self._open.get(node, {}).values()) if able else ()

    def settle(self, node: str, order: str, outcome: Outcome) -> bool:
        """Take the outcome of an order; return whether anybody waits for it."""
        with self._lock:
            found = self._open.get(node, {}).get(order)
            if found is None or found.outcome is not None:
                return False
            found.outcome = outcome
        found.has_come.set()
        return True

    def can(self, node: str) -> bool:
        """Return whether the agent of a node runs checks."""
        with self._lock:
            return self._able.get(node, False)

    def stop(self) -> None:
        """Let nobody wait any more."""
        with self._lock:
            waiting = [it for of_node in self._open.values() for it in of_node.values()]
        for it in waiting:
            it.has_come.set()
