"""When something goes into quarantine, what that closes, and when checks alone end it. Reads no clock or store.

Source: SPEC C4; docs/nodes.md, Quarantine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..model.gpu_index import WHOLE_NODE, Clears, HardwarePlace, QuarantineEntry, QuarantineFinding, Scope

BACK_OFF_S = (600.0, 3600.0, 21600.0)  # before checks alone may end it: the first time, the second, and from then on
QUIET_S = 600.0  # that must have passed without the symptom
CLEARED_MOST, CLEARED_S = 2, 30 * 86400.0  # so often in so long checks alone end it, for one place and cause
SAME_NODE_S = 3600.0  # two GPUs of a node within it make it the node
BUDGET, BUDGET_S = 0.1, 3600.0  # share of the GPUs of a type in so long; one node in any case
FRESH_SYMPTOM_S = 60.0  # a symptom of this age counts as new if a clock that was set back leaves no better evidence
BY_CHECKS, BY_HAND = "checks", "operator"  # who cleared it; the check of what an operator put into quarantine


class Fleet(NamedTuple):
    """The nodes of a cluster."""

    sizes: Mapping[str, int]  # GPUs of each
    types: Mapping[str, str]  # node type of each


def is_outdated(finding: QuarantineFinding, entries: Iterable[QuarantineEntry], now_s: float) -> bool:
    """Return whether something was cleared since it was found, so that it must not act again."""
    cleared_s = [
        entry.cleared_s
        for entry in entries
        if entry.cleared_s is not None and _clears_finding(entry.place, finding.place)
    ]
    for at_s in cleared_s:
        was_set_back = now_s < at_s  # then a new finding has an earlier time as well
        if finding.at_s <= at_s and not (was_set_back and finding.at_s > now_s - FRESH_SYMPTOM_S):
            return True
    return False


def _clears_finding(cleared: HardwarePlace, found: HardwarePlace) -> bool:
    """Return whether the clearance of a place is one of what was found, too."""
    return cleared == found or cleared.covers(found)


def quarantine_count(place: HardwarePlace, cause: str, entries: Iterable[QuarantineEntry], now_s: float) -> int:
    """Return how often a place comes into quarantine for a cause of late, with this time."""
    return 1 + sum(
        entry.place == place and entry.cause == cause and is_within(entry.since_s, now_s, CLEARED_S)
        for entry in entries
    )


def back_off_s(tries: int) -> float:
    """Return how long checks alone do not end a quarantine."""
    return BACK_OFF_S[min(max(tries, 1), len(BACK_OFF_S)) - 1]


def who_clears(
    place: HardwarePlace, cause: str, wanted: Clears, entries: Iterable[QuarantineEntry], now_s: float
) -> Clears:
    """Return what ends a quarantine: an operator, where checks have ended the same one often enough."""
    before = sum(
        entry.place == place and entry.cause == cause and entry.cleared_by == BY_CHECKS
        and is_within(entry.cleared_s or 0.0, now_s, CLEARED_S)
        for entry in entries
    )  # fmt: skip
    return Clears.OPERATOR if before >= CLEARED_MOST else wanted


def has_other_faulty_gpu(place: HardwarePlace, entries: Iterable[QuarantineEntry], now_s: float) -> bool:
    """Return whether another GPU of the same node came into quarantine within the last hour."""
    return place.scope is Scope.DEVICE and any(
        entry.place.scope is Scope.DEVICE and entry.place.node == place.node and entry.place.gpu != place.gpu
        and is_within(entry.since_s, now_s, SAME_NODE_S) and entry.check != BY_HAND
        for entry in entries
    )  # fmt: skip


def is_over_budget(place: HardwarePlace, entries: Iterable[QuarantineEntry], fleet: Fleet, now_s: float) -> bool:
    """Return whether so large a part of a node type would be quarantined within an hour that it is not at fault.

    A check, a driver or a switch is the likelier cause then.
    """
    kind = fleet.types[place.node]
    lately = [entry.place for entry in entries if entry.check != BY_HAND and is_within(entry.since_s, now_s, BUDGET_S)]
    gpus = {gpu for each in (*lately, place) for gpu in _budgeted_gpus(each, fleet) if fleet.types[gpu[0]] == kind}
    total = sum(size for node, size in fleet.sizes.items() if fleet.types[node] == kind)
    return len(gpus) > max(BUDGET * total, float(fleet.sizes[place.node]))


def _budgeted_gpus(place: HardwarePlace, fleet: Fleet) -> set[tuple[str, int]]:
    """Return the GPUs that the budget counts: one of a link."""
    if place.node not in fleet.sizes:
        return set()
    if place.gpu == WHOLE_NODE:
        return {(place.node, gpu) for gpu in range(fleet.sizes[place.node])}
    return {(place.node, place.gpu)}


def closed_gpus(places: Iterable[HardwarePlace], sizes: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return node and index of the GPUs that no job may have.

    Of a link one end is closed, so that no job gets both. That end is the one with most bad links; of equal ones the
    last, since the first GPUs of a node are those that jobs take first.
    """
    places = list(places)
    closed = {place for place in places if place.scope is not Scope.LINK}
    links = [place for place in places if place.scope is Scope.LINK and not any(one.covers(place) for one in closed)]
    while links:
        count = Counter(end for link in links for end in link.ends)
        worst = max(count, key=lambda end: (count[end], end))
        closed.add(worst)
        links = [link for link in links if not worst.covers(link)]
    return {gpu for place in closed for gpu in _gpus_at_place(place, sizes)}


def _gpus_at_place(place: HardwarePlace, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    gpus = range(sizes.get(place.node, 0))
    return [(place.node, gpu) for gpu in gpus if place.gpu in (WHOLE_NODE, gpu)]


def is_check_due(entry: QuarantineEntry, boot_id: str, now_s: float) -> bool:
    """Return whether checks may be run that end a quarantine by themselves.

    Args:
        entry: The quarantine.
        boot_id: Of its node now, "" if unknown.
        now_s: The present.
    """
    if entry.cleared_s is not None or entry.clears is Clears.OPERATOR:
        return False
    is_done = entry.clears is Clears.CHECKS or bool(entry.boot_id and boot_id and boot_id != entry.boot_id)
    return is_done and now_s >= entry.not_before_s and now_s - entry.symptom_s >= QUIET_S


def strictest(clears: Sequence[Clears]) -> Clears:
    """Return what ends all of several quarantines."""
    order = (Clears.CHECKS, Clears.REBOOT, Clears.OPERATOR)
    return max(clears, key=order.index)


def is_within(at_s: float, now_s: float, span_s: float) -> bool:
    """Return whether a time is within some span of the present; a clock that was set back must not hide it."""
    return abs(now_s - at_s) <= span_s
