"""Which free GPU takes an empty seat of a ring that runs, and which one becomes the backup of a slow member.

Source: SPEC F4 to F7, P3.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...cluster.switching import FORMULAS
from ...ring.wire import EmptySeat, SeatRequest, SlowSeat
from ..backends.protocol import MemberPlace
from ..health.evidence import AgentReport
from ..health.link_probes import Pair
from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.vacant_seats import (
    Free,
    RingGap,
    SeatChoice,
    best_of,
    choose_for,
    free_for,
    neighbours,
    with_which_faster,
    without,
)
from ..model.gpu_index import Layout
from ..model.job import JobRow
from ..model.job_spec import StoredJob, stored_or_usual
from ..store.nodes import list_gpus, records_of
from .rings import (
    MAX_MEASURED_CANDIDATES,
    ChosenGpu,
    LinksAround,
    LiveRing,
    RingJob,
    chosen_of,
    is_open,
    pairs_around,
    probing_for,
    ring_of,
    seen_in,
)
from .state_cache import Parts, StateCache

HOUR_S = 3600.0
MIN_GPUS_PER_HOUR = 3  # GPUs that a ring is given; one of many seats may have as many as these
NO_SEAT_CHOICE = SeatChoice(-1, ())
Seat = tuple[
    SeatRequest, EmptySeat, int
]  # the last request of the coordinator, the seat, and the ring's seats once it is filled


class SeatSearch(NamedTuple):
    """The GPU that takes a seat, or why none does."""

    choice: SeatChoice
    why: str = ""  # why no GPU takes it
    links: LinksAround = LinksAround()  # that the choice rests on


def choose_gpu(
    parts: Parts, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], seat: Seat, now_s: float,
    *, grows: bool, unfit: Sequence[int] = (),
) -> SeatSearch | None:  # fmt: skip
    """Choose a free GPU for a seat; None while the links of the best candidates are measured.

    GPUs that the ring left before are candidates only if there is no other, or if they were found faulty then and are
    well again: a GPU on which processes fail, but which passes as healthy, is suspect.

    Args:
        parts: What the scheduler works with.
        cache: What it knows.
        ring: The ring.
        places: All GPUs that it was given, by rank.
        seat: That is empty.
        now_s: The present.
        grows: Whether the ring goes on without the seat; only a GPU with which it is faster comes into question then.
        unfit: GPUs that do not come into question.
    """
    job = cache.table.jobs[ring.row.job_id]
    spec = stored_or_usual(job.spec)
    if why := _why_no_more(parts, ring, spec.seats, now_s):
        return SeatSearch(NO_SEAT_CHOICE, why)
    with parts.store.read() as tx:
        records, gpus = records_of(tx, job.id), list_gpus(tx)
    well_s = {(gpu.node, gpu.gpu): gpu.since_s for gpu in gpus if gpu.healthy}
    left = _left_for_good(parts.layout, ring, places, well_s)
    free = free_for(cache.mirror, job.id, [*left, *unfit])
    if not free.gpus.size:
        free = free_for(cache.mirror, job.id, unfit)
    around = RingJob(cache.mirror, parts.layout, parts.monitor.fleet.types, job.id, spec)
    inside = ring_of(around, *seat, records)
    if not free.gpus.size or not inside.nodes:
        return SeatSearch(NO_SEAT_CHOICE, "no free GPU suits it")
    choosing = _Choosing(parts, cache.mirror, inside, free, grows=grows)
    ring.probing = probing_for(ring.probing, seat[0].generation, seat[1], choosing.pairs, grows=grows)
    return None if is_open(parts.monitor.links, ring.probing, parts.wake) else choosing.found()


def formula_of(cache: StateCache) -> str:
    """Return the name of an iteration's time that decides."""
    return next(name for name, it in FORMULAS.items() if it == cache.mirror.site.rules.replacement)


class _Choosing:
    """A choice among free GPUs, by what is known of links at the moment.

    Args:
        parts: What the scheduler works with.
        mirror: The cluster.
        ring: That lacks a member.
        free: Who could come.
        grows: Whether the ring goes on without.
    """

    def __init__(self, parts: Parts, mirror: ClusterMirror, ring: RingGap, free: Free, *, grows: bool) -> None:
        self._cluster, self._formula = mirror.site.cluster, mirror.site.rules.replacement
        self._parts, self._ring, self._free, self._grows = parts, ring, free, grows

    def pairs(self) -> tuple[Pair, ...]:
        """Return the links of the best candidates; none where no agent probes."""
        if not self._parts.monitor.reports.probe_places():
            return ()
        links, cluster = self._links(), self._cluster
        best = best_of(
            cluster, self._ring, self._fit(links), self._formula, MAX_MEASURED_CANDIDATES, links.seen.measured
        )
        return pairs_around(links.nodes, links.around, [int(cluster.gpu_node[gpu]) for gpu in best])

    def found(self) -> SeatSearch:
        """Return who takes the seat."""
        links = self._links()
        if len(links.broken) == self._free.gpus.size:
            return SeatSearch(
                NO_SEAT_CHOICE, "; ".join([it.words for it in links.broken.values()][:MAX_MEASURED_CANDIDATES])
            )
        fit = self._fit(links)
        if not fit.gpus.size:
            return SeatSearch(NO_SEAT_CHOICE, "it would be faster with no free GPU")
        choice = choose_for(self._cluster, self._ring, fit, self._formula, links.seen.measured)
        return SeatSearch(choice, "" if choice.gpu >= 0 else "no free GPU suits it", links)

    def _links(self) -> LinksAround:
        names, cluster = list(self._parts.layout.nodes), self._cluster
        seen = seen_in(self._parts.monitor.links.known(), names, time.monotonic())
        links = LinksAround(seen, neighbours(self._ring), names, cluster.gpu_node)
        return links.with_broken(self._free.gpus.tolist()) if seen.broken else links

    def _fit(self, links: LinksAround) -> Free:
        """Return the candidates: those that can exchange with the neighbours, and with which the ring is faster."""
        free = without(self._free, links.broken)
        return with_which_faster(self._cluster, self._ring, free, links.seen.measured) if self._grows else free


def _left_for_good(
    layout: Layout, ring: LiveRing, places: Sequence[MemberPlace], well_s: Mapping[tuple[str, int], float]
) -> list[int]:
    """Return the GPUs that a ring has left and that were not found faulty since it had them, and well again.

    Args:
        layout: Of the cluster.
        ring: The ring.
        places: All that it was given.
        well_s: Since when each GPU has been well that was faulty before.
    """
    had_s = {it.rank: it.at_s for it in ring.given or ()}
    left = [
        place
        for rank, place in enumerate(places)
        if not place.is_used and well_s.get((place.node, place.gpu), 0.0) <= had_s.get(rank, ring.row.opened_s)
    ]
    return [layout.number(row.node, row.gpu) for row in left if layout.has(row.node, row.gpu)]


def _why_no_more(parts: Parts, ring: LiveRing, seats: int, now_s: float) -> str:
    """Return why a ring gets no GPU now, whether there is one or not; "" if it may.

    A script that kills its process would go through the whole cluster.
    """
    lately = len(ring.checked) + sum(0.0 <= now_s - it.at_s < HOUR_S for it in ring.given or ())
    most = max(seats, MIN_GPUS_PER_HOUR)
    few = parts.checks.why_no_seat_checks(ring.row.job_id)
    return f"it has had {most} others within an hour" if lately >= most else few


BUSY_UTILISATION = 0.1  # a free GPU with more is in use all the same, and gets no backup
FRESH_REPORT_S = 120.0  # older reports are out of date


def relieved(want: SeatRequest | None, spec: StoredJob) -> int:
    """Return how many members of a ring are alive without a seat, as they are slow; at most what its job asked for."""
    return 0 if want is None else min(len(want.relieved), spec.backups)


def members_to_back_up(want: SeatRequest | None, spec: StoredJob) -> list[SlowSeat]:
    """Return the slow members of a ring that backups are wanted for: no more than its job asked for."""
    return [] if want is None else want.slow[: max(spec.backups - len(want.relieved), 0)]


def choose(
    parts: Parts, cache: StateCache, ring: LiveRing, want: SeatRequest, places: Sequence[MemberPlace],
    slow: Sequence[SlowSeat],
    at: int, now_s: float,
) -> ChosenGpu | str | None:  # fmt: skip
    """Choose a free GPU for a backup.

    Args:
        parts: What the scheduler works with.
        cache: What it knows.
        ring: The ring.
        want: The last request of its coordinator.
        places: All GPUs that it was given, by rank.
        slow: Its slow members that want backups.
        at: Which of them the backup is for.
        now_s: The present.

    Returns:
        The GPU, or why there is none; None while the links of the best candidates are measured.
    """
    job, began_s = cache.table.jobs[ring.row.job_id], time.monotonic()
    left, seat = without_backups(want, slow, at)
    busy = unfit(want, parts.layout, parts.monitor.reports.last(), now_s)
    seats = left, seat, stored_or_usual(job.spec).seats
    found = choose_gpu(parts, cache, ring, places, seats, now_s, grows=False, unfit=busy)
    if found is None:
        return None
    if why := found.why or why_no_gain(found.choice, want) or why_over_quota(cache, job):
        return why
    took_s = time.monotonic() - began_s
    chosen = chosen_of(found.choice, found.links, left, formula_of(cache), parts.layout, took_s)
    return chosen._replace(choice={**chosen.choice, "backup_for": slow[at].member})


def without_backups(want: SeatRequest, slow: Sequence[SlowSeat], at: int) -> tuple[SeatRequest, EmptySeat]:
    """Return the request that a ring would send without its slow members, and the seat of one of them as empty.

    Iterations would take as much less as the slow one computes longer than others.

    Args:
        want: The last request of its coordinator.
        slow: Its slow members.
        at: Which of them.
    """
    numbers = {it.member for it in slow}
    compute_s = {str(member): want.compute_s.get(str(member), 0.0) for member in want.order if member not in numbers}
    slow_s = max((want.compute_s.get(str(number), 0.0) for number in numbers), default=0.0)
    saved_s = max(slow_s - max(compute_s.values(), default=0.0), 0.0)
    left = SeatRequest(
        generation=want.generation,
        empty=[EmptySeat(slow[at].seat, slow[at].before, slow[at].after)],
        order=[member for member in want.order if member not in numbers],
        step_s=max(want.step_s - saved_s, 0.0),
        compute_s=compute_s,
        nodes=want.nodes,
    )
    return left, left.empty[0]


def unfit(want: SeatRequest, layout: Layout, reports: Mapping[str, AgentReport], now_s: float) -> list[int]:
    """Return the GPUs that get no backup: those of the slow members' nodes, and those in use.

    Args:
        want: The last request of the ring's coordinator.
        layout: Of the cluster.
        reports: The last of each node.
        now_s: The present.
    """
    members = [*(it.member for it in want.slow), *want.relieved]
    nodes = {want.nodes.get(str(member), "") for member in members}
    places = [(node, gpu) for node in nodes & set(layout.nodes) for gpu in range(layout.nodes[node])]
    for node, it in reports.items():
        if 0.0 <= now_s - it.at_s < FRESH_REPORT_S:
            places += [(node, gpu.index) for gpu in it.content.gpus if gpu.utilisation > BUSY_UTILISATION]
    return sorted({layout.number(*place) for place in places if layout.has(*place)})


def why_over_quota(cache: StateCache, row: JobRow) -> str:
    """Return why a job gets no GPU beside those that it asked for, "" if it may: its owner has no more than one may."""
    most = cache.parts.gpus_per_user
    if most is None:
        return ""
    inside = (job for job in cache.table.jobs.values() if job.owner == row.owner and job.id not in cache.table.outside)
    has = sum(max(job.gpus, len(cache.mirror.picks(job.id)) if cache.mirror.has(job.id) else 0) for job in inside)
    return "" if has < most else f"its owner has {has} of {most} GPUs"


def why_no_gain(choice: SeatChoice, want: SeatRequest) -> str:
    """Return why a GPU gets no backup that was chosen, "" if it does: the ring is to be faster with it."""
    it = next(candidate for candidate in choice.considered if candidate.gpu == choice.gpu)
    # An unknown time counts in favour of a GPU.
    is_no_gain = math.isfinite(it.ring_s) and 0.0 < want.step_s <= it.ring_s
    return "it would be faster with no free GPU" if is_no_gain else ""
