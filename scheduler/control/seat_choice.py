"""Which free GPU takes an empty seat of a ring that runs, and which one becomes the backup of a slow member.

`choose_gpu_for_seat` is the choice: it knows the links between the candidates and the neighbours of the seat, and has
those of the best candidates measured first.

Source: SPEC F2 to F7, P3; docs/decisions/0015.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.switching import FORMULAS
from ...ring.wire import EmptySeat, SeatRequest, SlowSeat
from ..backends.protocol import MemberPlace, RingConnection
from ..health.evidence import AgentReport
from ..health.link_probes import LINK_AGAIN_S, ROUND_S, LinkOutcome, LinkState, Pair
from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.vacant_seats import (
    Considered,
    FreeGpus,
    RingGap,
    SeatChoice,
    best_seat_gpus,
    choose_seat_gpu,
    free_gpus_for,
    gpus_making_ring_faster,
    neighbour_nodes,
    without_gpus,
)
from ..model.gpu_index import Layout
from ..model.job import JobRow
from ..model.job_spec import StoredJob, stored_job_or_default
from ..store.attempts import AttemptRow
from ..store.nodes import ComputeRecord, compute_records_of, list_gpus
from ..store.rings import ReplacementRow
from .state_cache import Parts, StateCache

HOUR_S = 3600.0
MIN_GPUS_PER_HOUR = 3  # GPUs that a ring is given; one of many seats may have as many as these
MAX_MEASURED_CANDIDATES = 3  # candidates whose links are measured
MAX_STORED_CANDIDATES = 64  # candidates of one choice that are kept, the best ones
LINK_AGES = ("from_previous_measured_s", "to_next_measured_s")  # seconds ago; none for an estimated bandwidth
BANDWIDTHS = ("from_previous_bytes_per_s", "to_next_bytes_per_s", *LINK_AGES)
BUSY_UTILISATION = 0.1  # a free GPU with more is in use all the same, and gets no backup
FRESH_REPORT_S = 120.0  # older reports are out of date
Numbers = tuple[int, int]  # nodes: the sender and the receiver of a link
# The last request of the coordinator, the seat, and the ring's seats once it is filled.
Seat = tuple[SeatRequest, EmptySeat, int]


class LiveRing:
    """A ring that runs.

    Args:
        row: Its attempt.
        connection: To its coordinator.
    """

    def __init__(self, row: AttemptRow, connection: RingConnection) -> None:
        self.row, self.connection = row, connection
        self.given: list[ReplacementRow] | None = None  # None until it is read from the store
        self.checked: dict[int, ChosenGpu] = {}  # GPUs that are reserved and not given yet
        self.probing: Probing | None = None  # links that were measured last
        self.waits_since_s = 0.0  # for links to be measured, by `time.monotonic`; 0 if it does not
        self.reminded: SeatRequest | None = None  # the last request that came while members were starting
        self.reported = -1  # last generation whose empty seats were reported
        self.refused = -1  # last generation that was to go on without
        self.reported_slow: tuple[int, ...] = ()  # slow members that were reported to have no backup
        self.answered_s = time.monotonic()  # when its coordinator last answered, or was moved
        self.short = 0  # seats that stay empty, as there was no GPU; 0 after a change of the scheduler


def choose_gpu_for_seat(
    parts: Parts, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], seat: Seat, now_s: float,
    *, grows: bool, excluded: Sequence[int] = (),
) -> "tuple[SeatChoice, LinksAround] | str | None":  # fmt: skip
    """Choose a free GPU for a seat.

    GPUs that the ring left before are candidates only if there is no other, or if they were found faulty then and are
    well again: a GPU on which processes fail, but which passes as healthy, is suspect.

    Args:
        parts: What the scheduler works with.
        cache: What it knows.
        ring: The ring.
        places: All GPUs that it was given, by rank.
        seat: That is empty.
        now_s: The present.
        grows: Whether the ring goes on without the seat; only a GPU with which it is faster is a candidate then.
        excluded: GPUs that are no candidates.

    Returns:
        The choice and the links that it rests on, or why no GPU takes the seat; None while the links of the best
        candidates are measured.
    """
    job = cache.table.jobs[ring.row.job_id]
    spec = stored_job_or_default(job.spec)
    if why := _why_no_gpu_now(parts, ring, spec.seats, now_s):
        return why
    with parts.store.read() as tx:
        records, gpus = compute_records_of(tx, job.id), list_gpus(tx)
    well_s = {(gpu.node, gpu.gpu): gpu.since_s for gpu in gpus if gpu.healthy}
    left = _suspect_left_gpus(parts.layout, ring, places, well_s)
    free = free_gpus_for(cache.mirror, job.id, [*left, *excluded])
    if not free.gpus.size:
        free = free_gpus_for(cache.mirror, job.id, excluded)
    ring_job = RingJob(cache.mirror, parts.layout, parts.monitor.fleet.types, job.id, spec)
    inside = ring_gap_of(ring_job, *seat, records)
    if not free.gpus.size or not inside.nodes:
        return "no free GPU suits it"
    choosing = _PendingChoice(parts, cache.mirror, inside, free, grows=grows)
    ring.probing = continue_or_begin_probing(
        ring.probing, seat[0].generation, seat[1], choosing.links_to_measure, grows=grows
    )
    # Links that matter may still become known in time.
    if time.monotonic() < ring.probing.until_s and parts.monitor.links.request_probes(
        ring.probing.pairs, ring.probing.until_s, parts.wake
    ):
        return None
    return choosing.choose()


def replacement_formula(cache: StateCache) -> str:
    """Return the name of the formula of an iteration's time that decides."""
    return next(name for name, formula in FORMULAS.items() if formula == cache.mirror.site.rules.replacement)


def _suspect_left_gpus(
    layout: Layout, ring: LiveRing, places: Sequence[MemberPlace], well_s: Mapping[tuple[str, int], float]
) -> list[int]:
    """Return the GPUs that a ring has left and that were not found faulty since it had them, and well again.

    Args:
        layout: Of the cluster.
        ring: The ring.
        places: All that it was given.
        well_s: Since when each GPU has been well that was faulty before.
    """
    had_s = {row.rank: row.at_s for row in ring.given or ()}
    left = [
        place
        for rank, place in enumerate(places)
        if not place.is_used and well_s.get((place.node, place.gpu), 0.0) <= had_s.get(rank, ring.row.opened_s)
    ]
    return [layout.number(place.node, place.gpu) for place in left if layout.has(place.node, place.gpu)]


def _why_no_gpu_now(parts: Parts, ring: LiveRing, seats: int, now_s: float) -> str:
    """Return why a ring gets no GPU now, whether there is one or not; "" if it may.

    A script that kills its process would go through the whole cluster.
    """
    lately = len(ring.checked) + sum(0.0 <= now_s - row.at_s < HOUR_S for row in ring.given or ())
    most = max(seats, MIN_GPUS_PER_HOUR)
    if lately >= most:
        return f"it has had {most} others within an hour"
    return parts.checks.why_no_seat_checks(ring.row.job_id)


class _PendingChoice:
    """A choice among free GPUs, by what is known of links at the moment.

    Args:
        parts: What the scheduler works with.
        mirror: The cluster.
        ring: That lacks a member.
        free: The candidates.
        grows: Whether the ring goes on without.
    """

    def __init__(self, parts: Parts, mirror: ClusterMirror, ring: RingGap, free: FreeGpus, *, grows: bool) -> None:
        self._cluster, self._formula = mirror.site.cluster, mirror.site.rules.replacement
        self._parts, self._ring, self._free, self._grows = parts, ring, free, grows

    def links_to_measure(self) -> tuple[Pair, ...]:
        """Return the links of the best candidates; none where no agent probes."""
        if not self._parts.monitor.reports.probe_places():
            return ()
        links, cluster = self._known_links(), self._cluster
        best = best_seat_gpus(
            cluster, self._ring, self._candidates(links), self._formula, MAX_MEASURED_CANDIDATES, links.measured
        )
        return neighbour_links(links.nodes, links.around, [int(cluster.gpu_node[gpu]) for gpu in best])

    def choose(self) -> "tuple[SeatChoice, LinksAround] | str":
        """Return the choice, or why no candidate takes the seat."""
        links = self._known_links()
        if len(links.cut_off) == self._free.gpus.size:
            return "; ".join(links.cut_off_reasons())
        fit = self._candidates(links)
        if not fit.gpus.size:
            return "it would be faster with no free GPU"
        choice = choose_seat_gpu(self._cluster, self._ring, fit, self._formula, links.measured)
        return (choice, links) if choice.gpu >= 0 else "no free GPU suits it"

    def _known_links(self) -> "LinksAround":
        known, nodes = self._parts.monitor.links.fresh_outcomes(), list(self._parts.layout.nodes)
        links = links_around(known, nodes, self._cluster.gpu_node, neighbour_nodes(self._ring), time.monotonic())
        return links.with_cut_off_among(self._free.gpus.tolist()) if links.broken else links

    def _candidates(self, links: "LinksAround") -> FreeGpus:
        """Return the candidates: those that can exchange with the neighbours, and with which the ring is faster."""
        free = without_gpus(self._free, links.cut_off)
        return gpus_making_ring_faster(self._cluster, self._ring, free, links.measured) if self._grows else free


class RingJob(NamedTuple):
    """What is known of a ring's job and of the cluster that it runs on."""

    mirror: ClusterMirror
    layout: Layout
    kinds: Mapping[str, str]  # node type of each node
    job: str
    spec: StoredJob


def ring_gap_of(
    ring_job: RingJob, request: SeatRequest, empty: EmptySeat, seats: int, records: Iterable[ComputeRecord]
) -> RingGap:
    """Return a ring with one of its empty seats, from the request of its coordinator and the records of the job.

    The request comes from processes of the job, which may send anything.

    Args:
        ring_job: The job and its cluster.
        request: The last request of its coordinator.
        empty: The seat.
        seats: Of the ring once all are filled that are to be filled; each member then computes as much of a batch more
            as there are fewer than the job requests.
        records: Computing times of the job; where there are none, those of the living members count.
    """
    site, spec = ring_job.mirror.site, ring_job.spec
    number = {node: at for at, node in enumerate(ring_job.layout.nodes)}
    nodes = [number.get(request.nodes.get(str(member), ""), -1) for member in request.order]
    gap = request.order.index(empty.before) + 1 if empty.before in request.order else 0
    reported_s = {
        at: time_s
        for at, member in enumerate(request.order)
        if (time_s := request.compute_s.get(str(member), 0.0)) > 0.0
    }
    recorded = _recorded_compute_s(ring_job, records)
    if -1 in nodes:  # a member that reports another node
        held = sorted(ring_job.mirror.gpus_of_job(ring_job.job))
        nodes, gap = [int(site.cluster.gpu_node[gpu]) for gpu in held], len(held)
    elif not recorded:
        times_s: dict[int, list[float]] = {}
        for at, time_s in reported_s.items():
            times_s.setdefault(int(site.cluster.node_type[nodes[at]]), []).append(time_s)
        recorded = {kind: sum(times) / len(times) for kind, times in times_s.items()}
    return RingGap(
        nodes=nodes,
        gap=gap,
        seats=seats,
        compute_s=max(reported_s.values(), default=0.0),
        average_s=max(request.step_s, 0.0),
        volume_bytes=float(spec.parameter_bytes) if site.rules.ring else 0.0,
        demand_flops=math.nan if spec.iteration_flops is None else float(spec.iteration_flops),
        recorded_s=recorded,
        share=spec.seats / seats if spec.seats else 1.0,
    )


def _recorded_compute_s(ring_job: RingJob, records: Iterable[ComputeRecord]) -> dict[int, float]:
    """Return the mean computing time by number of the node type, of those types that the cluster has."""
    node_type = ring_job.mirror.site.cluster.node_type
    type_of = {ring_job.kinds.get(node, ""): int(node_type[at]) for at, node in enumerate(ring_job.layout.nodes)}
    return {type_of[record.kind]: record.mean_s for record in records if record.kind in type_of and record.mean_s > 0.0}


class Probing(NamedTuple):
    """Links that are measured for a seat."""

    generation: int
    seat: EmptySeat
    pairs: tuple[Pair, ...]
    began_s: float  # by `time.monotonic`

    @property
    def until_s(self) -> float:
        """When all of it has ended."""
        return self.began_s + ROUND_S


def continue_or_begin_probing(
    before: Probing | None, generation: int, seat: EmptySeat, pairs: Callable[[], tuple[Pair, ...]], *, grows: bool
) -> Probing:
    """Return what is measured for a seat: what was begun for it, or what is to begin.

    All seats of a ring that stands still have one second together. A ring that grows does not wait, but no job starts
    meanwhile; it has one second now and then.

    Args:
        before: What was measured for the ring last.
        generation: Of the ring.
        seat: That is empty.
        pairs: Returns the links that matter.
        grows: Whether the ring goes on without the seat.
    """
    now_s = time.monotonic()
    if before is None or before.generation != generation or (grows and now_s - before.until_s > LINK_AGAIN_S):
        return Probing(generation, seat, pairs(), now_s)
    return before if before.seat == seat or grows else Probing(generation, seat, pairs(), before.began_s)


def neighbour_links(nodes: Sequence[str], around: tuple[int, int], candidates: Sequence[int]) -> tuple[Pair, ...]:
    """Return the links that matter, in an order in which those that can be probed at once are side by side.

    Args:
        nodes: Names.
        around: Nodes of the members before and behind the seat.
        candidates: Nodes that could come between them.
    """
    before, after = around
    shifted = [*candidates[1:], *candidates[:1]]
    found = [pair for x, y in zip(candidates, shifted, strict=True) for pair in ((before, x), (y, after))]
    return tuple(dict.fromkeys((nodes[a], nodes[b]) for a, b in found if a != b))


class LinksOf(NamedTuple):
    """The two links of a candidate, for people and for the store."""

    from_previous_measured_s: float | None  # seconds ago; None for an estimated bandwidth
    to_next_measured_s: float | None
    words: str


class LinksAround(NamedTuple):
    """What is known of links, by numbers of nodes, and of those between candidates and the neighbours of a seat."""

    nodes: Sequence[str]  # names
    gpu_node: NDArray[np.int32]  # (gpus,) node of each GPU
    around: tuple[int, int]  # nodes of the members before and behind the seat
    measured: Mapping[Numbers, float]  # bytes/s
    age_s: Mapping[Numbers, float]  # of these
    broken: Mapping[Numbers, str]  # why
    unknown: Mapping[Numbers, str]  # why nothing was measured
    cut_off: Mapping[int, LinksOf] = {}  # links of the candidates that cannot exchange with a neighbour

    def with_cut_off_among(self, gpus: Sequence[int]) -> "LinksAround":
        """Return the same with those candidates that cannot exchange with a neighbour."""
        cut_off = (gpu for gpu in gpus if any(pair in self.broken for pair in self._neighbour_pairs(gpu)))
        return self._replace(cut_off={gpu: self.links_of(gpu) for gpu in cut_off})

    def cut_off_reasons(self) -> list[str]:
        """Return why candidates cannot exchange with a neighbour, for people."""
        return [links.words for links in self.cut_off.values()][:MAX_MEASURED_CANDIDATES]

    def links_of(self, gpu: int) -> LinksOf:
        """Return what is known of the links of a GPU, for people."""
        pairs = self._neighbour_pairs(gpu)
        to, away = map(self._link_words, pairs)
        before, after = (self.nodes[node] for node in self.around)
        words = to if to == away else f"from {before}: {to}; to {after}: {away}"
        for a, b in pairs:
            if (a, b) in self.broken:
                words = f"the link from {self.nodes[a]} to {self.nodes[b]} is broken: {self.broken[a, b]}"
        return LinksOf(self.age_s.get(pairs[0]), self.age_s.get(pairs[1]), words)

    def _neighbour_pairs(self, gpu: int) -> tuple[Numbers, Numbers]:
        node = int(self.gpu_node[gpu])
        return (self.around[0], node), (node, self.around[1])

    def _link_words(self, pair: Numbers) -> str:
        if pair[0] == pair[1]:
            return "within the node"
        if pair in self.age_s:
            return f"measured {self.age_s[pair]:.0f} s ago"
        return f"reckoned, not measured: {self.unknown[pair]}" if pair in self.unknown else "reckoned"


def links_around(
    known: Mapping[Pair, LinkOutcome],
    nodes: Sequence[str],
    gpu_node: NDArray[np.int32],
    around: tuple[int, int],
    now_s: float,
) -> LinksAround:
    """Return what is known of links.

    Args:
        known: By names of nodes.
        nodes: These names, in the order of their numbers.
        gpu_node: Node of each GPU, shape (gpus,).
        around: Nodes of the members before and behind the seat.
        now_s: By the clock of the links.
    """
    number = {name: at for at, name in enumerate(nodes)}
    links = {(number[a], number[b]): link for (a, b), link in known.items() if a in number and b in number}

    def why(state: LinkState) -> dict[Numbers, str]:
        return {pair: link.why for pair, link in links.items() if link.state is state}

    measured = {pair: link for pair, link in links.items() if link.state is LinkState.MEASURED}
    return LinksAround(
        nodes, gpu_node, around, {pair: link.bytes_per_s for pair, link in measured.items()},
        {pair: max(now_s - link.at_s, 0.0) for pair, link in measured.items()}, why(LinkState.BROKEN),
        why(LinkState.UNKNOWN),
    )  # fmt: skip


class ChosenGpu(NamedTuple):
    """A GPU that is to take a seat, and why."""

    gpu: int
    words: str  # for people
    choice: dict[str, Any]  # as the store keeps it
    began_s: float  # when the choice began, by `time.monotonic`


def chosen_gpu_of(
    choice: SeatChoice, links: LinksAround, request: SeatRequest, formula: str, layout: Layout, began_s: float
) -> ChosenGpu:  # fmt: skip
    """Return the chosen GPU, with the choice in words and as the store keeps it: the candidates, the chosen one first.

    Args:
        choice: The choice, of a GPU.
        links: Between the candidates and the neighbours of the seat.
        request: The request of the coordinator.
        formula: Of an iteration's time, that decided.
        layout: Of the cluster.
        began_s: When the choice began, by `time.monotonic`.
    """
    took_s, mine = time.monotonic() - began_s, links.links_of(choice.gpu)
    kept = sorted(choice.considered, key=lambda row: (row.gpu != choice.gpu, _iteration_s(row, formula)))
    kept = kept[:MAX_STORED_CANDIDATES]
    stored = {
        "formula": formula,
        "average_s": request.step_s,
        "seats": len(request.order) + len(request.empty),
        "generation": request.generation,
        "considered": len(choice.considered),
        "candidates": [_stored_candidate(row, links.links_of(row.gpu), layout) for row in kept]
        + _stored_cut_off(links, layout),
        "took_s": round(took_s, 6),
    }
    is_measured = any(getattr(mine, name) is not None for name in LINK_AGES)
    words = [_choice_reason(choice, request, formula), *([f"its links: {mine.words}"] if is_measured else [])]
    return ChosenGpu(choice.gpu, "; ".join([*words, *links.cut_off_reasons()]), stored, began_s)


def _choice_reason(choice: SeatChoice, request: SeatRequest, formula: str) -> str:
    """Return why a candidate was chosen, for people."""
    chosen = next(candidate for candidate in choice.considered if candidate.gpu == choice.gpu)
    time_s, among = _iteration_s(chosen, formula), f"of {len(choice.considered)} candidates"
    if not math.isfinite(time_s):
        return f"its iteration time is not known; the weakest {among}"
    if request.step_s <= 0.0:
        return f"an iteration takes {time_s:.3g} s, the shortest {among}"
    if time_s <= request.step_s:
        return f"an iteration takes {time_s:.3g} s of the {request.step_s:.3g} s that it may; the weakest such {among}"
    return f"an iteration takes {time_s:.3g} s instead of {request.step_s:.3g} s, the shortest {among}"


def _stored_candidate(row: Considered, links: LinksOf, layout: Layout) -> dict[str, object]:
    node, gpu = layout.node_and_index(row.gpu)
    times = {"source_s": row.source_s, "ring_s": row.ring_s, "compute_s": row.compute_s}
    return {
        "node": node,
        "gpu": gpu,
        **{name: time_s if math.isfinite(time_s) else None for name, time_s in times.items()},
        "from_previous_bytes_per_s": row.from_previous_bytes_per_s,
        "to_next_bytes_per_s": row.to_next_bytes_per_s,
        **{name: getattr(links, name) for name in LINK_AGES},
        "links": links.words,
    }


def _stored_cut_off(links: LinksAround, layout: Layout) -> list[dict[str, object]]:
    """Return those that are no candidates, as they cannot exchange with the neighbours of the seat."""
    found = [(layout.node_and_index(gpu), each.words) for gpu, each in links.cut_off.items()]
    nothing = dict.fromkeys(("source_s", "ring_s", "compute_s", *BANDWIDTHS))
    return [
        {"node": node, "gpu": gpu, **nothing, "links": words} for (node, gpu), words in found[:MAX_STORED_CANDIDATES]
    ]


def _iteration_s(row: Considered, formula: str) -> float:
    return row.source_s if formula == "source" else row.ring_s


def relieved_members(request: SeatRequest | None, spec: StoredJob) -> int:
    """Return how many members of a ring are alive without a seat, as they are slow; at most what its job requested."""
    return 0 if request is None else min(len(request.relieved), spec.backups)


def members_to_back_up(request: SeatRequest | None, spec: StoredJob) -> list[SlowSeat]:
    """Return the slow members of a ring that backups are wanted for: no more than its job requested."""
    return [] if request is None else request.slow[: max(spec.backups - len(request.relieved), 0)]


def choose_backup(
    parts: Parts, cache: StateCache, ring: LiveRing, request: SeatRequest, places: Sequence[MemberPlace],
    slow: Sequence[SlowSeat],
    slow_index: int, now_s: float,
) -> ChosenGpu | str | None:  # fmt: skip
    """Choose a free GPU for a backup.

    Args:
        parts: What the scheduler works with.
        cache: What it knows.
        ring: The ring.
        request: The last request of its coordinator.
        places: All GPUs that it was given, by rank.
        slow: Its slow members that want backups.
        slow_index: Which of them the backup is for.
        now_s: The present.

    Returns:
        The GPU, or why there is none; None while the links of the best candidates are measured.
    """
    job, began_s = cache.table.jobs[ring.row.job_id], time.monotonic()
    left, seat = request_without_slow(request, slow, slow_index)
    busy = gpus_unfit_for_backup(request, parts.layout, parts.monitor.reports.last(), now_s)
    seats = left, seat, stored_job_or_default(job.spec).seats
    found = choose_gpu_for_seat(parts, cache, ring, places, seats, now_s, grows=False, excluded=busy)
    if found is None or isinstance(found, str):
        return found
    choice, links = found
    if why := _why_no_gain(choice, request) or _why_over_quota(cache, job):
        return why
    chosen = chosen_gpu_of(choice, links, left, replacement_formula(cache), parts.layout, began_s)
    return chosen._replace(choice={**chosen.choice, "backup_for": slow[slow_index].member})


def request_without_slow(
    request: SeatRequest, slow: Sequence[SlowSeat], slow_index: int
) -> tuple[SeatRequest, EmptySeat]:
    """Return the request that a ring would send without its slow members, and the seat of one of them as empty.

    Iterations would take as much less as the slow one computes longer than others.

    Args:
        request: The last request of its coordinator.
        slow: Its slow members.
        slow_index: Which of them.
    """
    numbers = {member.member for member in slow}
    compute_s = {
        str(member): request.compute_s.get(str(member), 0.0) for member in request.order if member not in numbers
    }
    slow_s = max((request.compute_s.get(str(number), 0.0) for number in numbers), default=0.0)
    saved_s = max(slow_s - max(compute_s.values(), default=0.0), 0.0)
    left = SeatRequest(
        generation=request.generation,
        empty=[EmptySeat(slow[slow_index].seat, slow[slow_index].before, slow[slow_index].after)],
        order=[member for member in request.order if member not in numbers],
        step_s=max(request.step_s - saved_s, 0.0),
        compute_s=compute_s,
        nodes=request.nodes,
    )
    return left, left.empty[0]


def gpus_unfit_for_backup(
    request: SeatRequest, layout: Layout, reports: Mapping[str, AgentReport], now_s: float
) -> list[int]:
    """Return the GPUs that get no backup: those of the slow members' nodes, and those in use.

    Args:
        request: The last request of the ring's coordinator.
        layout: Of the cluster.
        reports: The last of each node.
        now_s: The present.
    """
    members = [*(seat.member for seat in request.slow), *request.relieved]
    nodes = {request.nodes.get(str(member), "") for member in members}
    places = [(node, gpu) for node in nodes & set(layout.nodes) for gpu in range(layout.nodes[node])]
    for node, report in reports.items():
        if 0.0 <= now_s - report.at_s < FRESH_REPORT_S:
            places += [(node, gpu.index) for gpu in report.content.gpus if gpu.utilisation > BUSY_UTILISATION]
    return sorted({layout.number(*place) for place in places if layout.has(*place)})


def _why_over_quota(cache: StateCache, row: JobRow) -> str:
    """Return why a job gets no GPU beside those that it requested, "" if it may: its owner has no more than one may."""
    most = cache.parts.gpus_per_user
    if most is None:
        return ""
    inside = (job for job in cache.table.jobs.values() if job.owner == row.owner and job.id not in cache.table.outside)
    has = sum(max(job.gpus, len(cache.mirror.gpus_of_job(job.id)) if cache.mirror.has(job.id) else 0) for job in inside)
    return "" if has < most else f"its owner has {has} of {most} GPUs"


def _why_no_gain(choice: SeatChoice, request: SeatRequest) -> str:
    """Return why a GPU gets no backup that was chosen, "" if it does: the ring is to be faster with it."""
    chosen = next(candidate for candidate in choice.considered if candidate.gpu == choice.gpu)
    # An unknown time counts in favour of a GPU.
    is_no_gain = math.isfinite(chosen.ring_s) and 0.0 < request.step_s <= chosen.ring_s
    return "it would be faster with no free GPU" if is_no_gain else ""
