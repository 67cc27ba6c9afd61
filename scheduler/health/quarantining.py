"""Into quarantine and out of it: what findings of checks, agents and operators change in the store.

`CheckOrders` are the checks that agents are to run: ordered by the scheduler, and fetched with the answer to a report.
An order is in every answer until its outcome has come, as an agent may be restarted. Orders are kept in memory: the
caller waits for the outcome, and orders again after a restart of the scheduler.

Source: SPEC C4, C8; docs/nodes.md, Quarantine.
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import Connection

from ...cluster.files.errors import InputError
from ..model.gpu_index import WHOLE_NODE, HardwarePlace, QuarantineEntry, QuarantineFinding
from ..model.job import NewEvent
from ..rules.quarantine import (
    BUDGET_S,
    BY_HAND,
    CLEARED_S,
    Fleet,
    back_off_s,
    has_other_faulty_gpu,
    is_outdated,
    is_over_budget,
    quarantine_count,
    strictest,
    who_clears,
)
from ..store.events import append, last_events_without_job
from ..store.nodes import (
    CLEARED,
    NOT_CLEARED,
    QUARANTINE,
    REFUSED,
    SET,
    add_quarantine,
    clear_quarantines,
    note_failed_checks,
    note_symptom,
    open_quarantines,
    quarantines_since,
)

TWO_GPUS = "two GPUs within an hour"  # cause of the quarantine of a node


class QuarantineOutcome(StrEnum):
    """The outcome of a finding."""

    SET = "quarantined"
    KNOWN = "known"  # it is in quarantine for this cause already
    OLD = "old"  # it was cleared since
    REFUSED = "refused"  # too much of its node type was put into quarantine within an hour


def quarantine(
    tx: Connection, fleet: Fleet, finding: QuarantineFinding, now_s: float, *, writer: str
) -> QuarantineOutcome:
    """Put what was found to be broken into quarantine.

    1. If it is in quarantine for this cause, record the new evidence.
    2. Else refuse a finding that is older than the last clearance.
    3. Refuse one that exceeds the hourly budget of its node type, with an alarm.
    4. Else add the entry; for a second GPU within an hour, also one for its node.

    An operator's finding skips steps 2 and 3. Safe to repeat.

    Raises:
        InputError: If the cluster has no such node or GPU.
    """
    finding = finding._replace(place=finding.place.with_ends_ordered())
    _check_place_exists(finding.place, fleet)
    place, entries = finding.place, quarantines_since(tx, now_s - CLEARED_S)
    known = next(
        (entry for entry in entries if _is_open(entry) and (entry.place, entry.cause) == (place, finding.cause)), None
    )
    if known is not None:
        note_symptom(tx, known, finding.evidence, finding.at_s)
        return QuarantineOutcome.KNOWN
    is_by_hand = finding.check == BY_HAND
    if not is_by_hand and is_outdated(finding, entries, now_s):
        return QuarantineOutcome.OLD
    if not is_by_hand and is_over_budget(place, entries, fleet, now_s):
        _raise_budget_alarm(tx, finding, fleet, now_s, writer)
        return QuarantineOutcome.REFUSED
    if not _add_quarantine(tx, finding, entries, now_s, writer):
        return QuarantineOutcome.KNOWN
    if not is_by_hand and has_other_faulty_gpu(place, entries, now_s):
        _quarantine_node_too(tx, fleet, finding, entries, now_s, writer)
    return QuarantineOutcome.SET


def _is_open(entry: QuarantineEntry) -> bool:
    return entry.cleared_s is None


def _check_place_exists(place: HardwarePlace, fleet: Fleet) -> None:
    for end in place.ends:
        if end.node not in fleet.sizes or not WHOLE_NODE <= end.gpu < fleet.sizes[end.node]:
            raise InputError(f"the cluster has no {end.words}", "`longshore node list` lists nodes and their GPUs")


def _add_quarantine(
    tx: Connection, finding: QuarantineFinding, entries: Sequence[QuarantineEntry], now_s: float, writer: str
) -> bool:
    place, tries = finding.place, quarantine_count(finding.place, finding.cause, entries, now_s)
    clears = who_clears(place, finding.cause, finding.clears, entries, now_s)
    entry = QuarantineEntry(
        0, place, now_s, max(finding.at_s, now_s), finding.check, finding.cause, finding.evidence, finding.action,
        clears, tries, finding.boot_id, now_s + back_off_s(tries),
    )  # fmt: skip
    if not add_quarantine(tx, entry):
        return False
    text = f"{place.words} is in quarantine: {finding.cause} ({finding.check}: {finding.evidence}); {finding.action}"
    _append_event(tx, place, SET, text, now_s, writer, check=finding.check, cause=finding.cause)
    return True


def _quarantine_node_too(
    tx: Connection, fleet: Fleet, finding: QuarantineFinding, entries: Sequence[QuarantineEntry], now_s: float,
    writer: str
) -> None:  # fmt: skip
    """Put the node of a GPU into quarantine as well; checks end that only where they end all of its GPUs'."""
    node = HardwarePlace(finding.place.node)
    others = [entry for entry in entries if _is_open(entry) and entry.place.node == node.node]
    found = finding._replace(
        place=node, cause=TWO_GPUS, clears=strictest([finding.clears, *(other.clears for other in others)]),
        evidence=f"{finding.place.words}: {finding.cause}",
    )  # fmt: skip
    if any(other.place == node for other in others):
        return
    if is_over_budget(node, entries, fleet, now_s):
        _raise_budget_alarm(tx, found, fleet, now_s, writer)
    else:
        _add_quarantine(tx, found, entries, now_s, writer)


def _raise_budget_alarm(tx: Connection, finding: QuarantineFinding, fleet: Fleet, now_s: float, writer: str) -> None:
    """Raise an alarm, once an hour for each node type."""
    kind = fleet.types[finding.place.node]
    events = last_events_without_job(tx, QUARANTINE, now_s - BUDGET_S, 1000)
    if any(event.now == REFUSED and (event.data or {}).get("type") == kind for event in events):
        return
    text = (
        f"too many GPUs of type {kind} were found broken within an hour: no more of them are put into quarantine, such "
        f"as {finding.place.words} ({finding.check}: {finding.cause}); examine the check, the driver and the switches"
    )
    _append_event(tx, finding.place, REFUSED, text, now_s, writer, type=kind)


def entries_ended_by(entries: Sequence[QuarantineEntry], place: HardwarePlace) -> list[QuarantineEntry]:
    """Return those of some quarantines that end when a place is cleared: of a node, all of its GPUs and links.

    Raises:
        InputError: If there are none, or if the whole node of a GPU is in quarantine.
    """
    place = place.with_ends_ordered()
    if place.gpu != WHOLE_NODE and any(entry.place == HardwarePlace(place.node) for entry in entries):
        raise InputError(f"the whole node {place.node} is in quarantine", f"clear it: {place.node}")
    found = [entry for entry in entries if entry.place == place or place.covers(entry.place)]
    if not found:
        raise InputError(f"{place.words} is not in quarantine", "`longshore node quarantine list` shows what is")
    return found


def clear_quarantine(
    tx: Connection, place: HardwarePlace, by: str, evidence: str, now_s: float, *, writer: str,
    is_ready: Callable[[QuarantineEntry], bool] = lambda _entry: True,
) -> int:  # fmt: skip
    """End the quarantine of a place, of a node also that of its GPUs and links, if it is ready; return how many.

    Raises:
        InputError: As `entries_ended_by`.
    """
    found = [each for each in entries_ended_by(open_quarantines(tx), place) if is_ready(each)]
    ended = clear_quarantines(tx, found, by, evidence, now_s)
    if ended:
        text = f"{place.words} is out of quarantine, cleared by {by}: {evidence}"
        _append_event(tx, place, CLEARED, text, now_s, writer, by=by)
    return ended


def record_failed_checks(tx: Connection, place: HardwarePlace, evidence: str, now_s: float, *, writer: str) -> None:
    """Record that checks of a place did not pass: the next scheduled run is later."""
    for entry in entries_ended_by(open_quarantines(tx), place):
        tries = entry.tries + 1
        note_failed_checks(tx, entry, evidence, tries, now_s + back_off_s(tries))
    _append_event(tx, place, NOT_CLEARED, f"{place.words} stays in quarantine: {evidence}", now_s, writer)


def _append_event(
    tx: Connection, place: HardwarePlace, now: str, text: str, now_s: float, writer: str, **data: str
) -> None:
    data_of_place = {
        "node": place.node,
        "gpu": None if place.gpu == WHOLE_NODE else place.gpu,
        "place": place.words,
        **data,
    }
    append(tx, NewEvent(QUARANTINE, writer, now_s, now=now, cause=text, data=data_of_place))


CHECK_LIMIT_S = 300.0  # for an agent to fetch an order, load PyTorch, run the checks and report


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """Checks that an agent is to run."""

    id: str
    gpus: tuple[int, ...]
    level: int
    slots: bool  # they are slots; GPUs that the driver does not show never pass
    cleared_s: Mapping[int, float]  # Unix time at which a GPU, or the node (-1), was cleared last


@dataclass(slots=True)
class _OpenOrder:
    order: CheckOrder
    has_come: threading.Event = field(default_factory=threading.Event)
    outcome: tuple[bool, str] | None = None  # whether the checks passed, and the evidence


class CheckOrders:
    """The orders without an outcome yet. Any thread may use it.

    Args:
        limit_s: After which an order is given up.
        slots: Whether slots stand for GPUs.
    """

    def __init__(self, limit_s: float = CHECK_LIMIT_S, *, slots: bool = False) -> None:
        self._limit_s, self._slots = limit_s, slots
        self._open: dict[str, dict[str, _OpenOrder]] = {}  # by node and id
        self._able: dict[str, bool] = {}  # nodes whose agents have reported, and whether they run checks
        self._lock = threading.Lock()

    def run_checks(
        self, node: str, gpus: tuple[int, ...], cleared_s: Mapping[int, float], level: int = 1
    ) -> tuple[bool, str]:
        """Let the agent of a node check its GPUs, and wait for the outcome: whether they passed, and the evidence.

        Raises:
            InputError: If no agent there runs checks, or none reported an outcome in time.
        """
        entry = _OpenOrder(CheckOrder(secrets.token_hex(8), gpus, level, self._slots, cleared_s))
        with self._lock:
            if not self._able.get(node, False):
                fix = f"start it by `longshore node agent --node {node} --checks`"
                raise InputError(f"no agent on {node} runs checks", fix)
            self._open.setdefault(node, {})[entry.order.id] = entry
        entry.has_come.wait(self._limit_s)
        with self._lock:
            self._open[node].pop(entry.order.id)
            if entry.outcome is None:
                raise InputError(f"the agent on {node} reported no outcome within {self._limit_s:.0f} s")
            return entry.outcome

    def fetch_orders(self, node: str, *, able: bool) -> tuple[CheckOrder, ...]:
        """Return the orders of a node's agent; none if it is not able to run checks."""
        with self._lock:
            self._able[node] = able
            return tuple(each.order for each in self._open.get(node, {}).values()) if able else ()

    def record_outcome(self, node: str, order: str, evidence: str, *, passed: bool) -> bool:
        """Record the outcome of an order; return whether it was expected."""
        with self._lock:
            found = self._open.get(node, {}).get(order)
            if found is None or found.outcome is not None:
                return False
            found.outcome = passed, evidence
        found.has_come.set()
        return True

    def can_check(self, node: str) -> bool:
        """Return whether the agent of a node runs checks."""
        with self._lock:
            return self._able.get(node, False)

    def wake_waiters(self) -> None:
        """Wake all callers that wait."""
        with self._lock:
            waiting = [each for of_node in self._open.values() for each in of_node.values()]
        for pair in waiting:
            pair.has_come.set()
