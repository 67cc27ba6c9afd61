"""Rings that run: their GPUs, their empty seats, and links measured before a seat is filled.

Source: SPEC F5, F8 to F10, F4, F2, F3, F6, F7; docs/decisions/0015.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import BackendError
from ...cluster.model.placement import Placement
from ...ring.wire import EmptySeat, SeatRequest, as_json
from ..backends.protocol import RingConnection, call_backend
from ..health.link_probes import LINK_AGAIN_S, ROUND_S, LinkOutcome, LinkState, LinkTable, Pair
from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.vacant_seats import Considered, RingGap, SeatChoice
from ..model.gpu_index import Layout
from ..model.job import SCHEDULER_WRITER, NewEvent, name_of
from ..model.job_spec import StoredJob, is_switching, stored_or_usual
from ..model.states import AttemptState
from ..store.attempts import AttemptRow
from ..store.nodes import ComputeRecord
from ..store.rings import RING_ENDED, RING_EVENT, ReplacementRow
from .state_cache import StateCache

log = logging.getLogger(__name__)

FAULTY = "its GPU is out of service"


def held_by(cache: StateCache, row: AttemptRow) -> Placement:
    """Return the GPUs that the last attempt of a job holds: a ring gives some up and gets others while it runs."""
    held = cache.mirror.picks(row.job_id) if cache.mirror.has(row.job_id) else ()
    return cache.parts.layout.placement(held) or row.placement


def later_nodes(cache: StateCache, row: AttemptRow, name: str) -> tuple[str, ...]:
    """Return the nodes of the ranks that joined the ring of an attempt while it ran; none if that is not known.

    Args:
        cache: What the scheduler knows.
        row: The attempt.
        name: Of it at the backend.
    """
    job, backend = cache.table.jobs.get(row.job_id), cache.parts.backend
    if job is None or not is_switching(job.spec) or not backend.capabilities.runs_rings:
        return ()
    try:
        places = call_backend(partial(backend.ring_places, name)) or ()
    except BackendError:
        return ()
    first = sum(len(share.gpus) for share in row.placement)
    return tuple(place.node for place in places[first:])


def keep_ring(cache: StateCache, row: AttemptRow, name: str, now_s: float) -> None:
    """Store how the ring of an attempt that ended stood last, and on which GPUs: the backend forgets it.

    Args:
        cache: What the scheduler knows.
        row: The attempt.
        name: Of it at the backend.
        now_s: The present.
    """
    job, backend = cache.table.jobs.get(row.job_id), cache.parts.backend
    if job is None or not is_switching(job.spec) or not backend.capabilities.runs_rings:
        return
    try:
        report, places = (
            call_backend(partial(backend.ring_report, name)),
            call_backend(partial(backend.ring_places, name)),
        )
    except BackendError as error:
        log.warning("attempt %s: how its ring ended is not known: %s", name, error)
        return
    if report is None:
        return
    filled, recoveries = sum(member >= 0 for member in report.order), len(report.recoveries) - 1
    words = f"{filled} of {report.seats} seats, step {report.step}, {recoveries} recoveries"
    held = [[share.node, gpu] for share in held_by(cache, row) for gpu in share.gpus]
    data = {"report": as_json(report), "places": [list(it) for it in places or ()], "gpus": held}
    cache.batch.add_event(
        NewEvent(RING_EVENT, SCHEDULER_WRITER, now_s, row.job_id, row.number, now=RING_ENDED, cause=words, data=data),
        {},
    )


def goes_on_without(cache: StateCache, row: AttemptRow, name: str) -> bool:
    """Let the members on faulty GPUs leave the ring of an attempt, and return whether it goes on without them, or may.

    Args:
        cache: What the scheduler knows.
        row: An attempt that has faulty GPUs.
        name: Of the attempt at the backend.
    """
    job, backend = cache.table.jobs.get(row.job_id), cache.parts.backend
    if job is None or row.state is not AttemptState.RUNNING or not backend.capabilities.runs_rings:
        return False
    if not stored_or_usual(job.spec).seats:
        return False
    faulty, layout = set(cache.health.faulty), cache.parts.layout
    places = [layout.place(gpu) for gpu in layout.numbers(held_by(cache, row)) if gpu in faulty]
    try:
        return call_backend(partial(backend.retire_members, name, places, FAULTY))
    except BackendError as error:
        # Like an attempt that cannot be reached: it runs on, and is polled again in the next cycle.
        log.warning("attempt %s: %s", name, error)
        return True


MAX_MEASURED_CANDIDATES = 3  # candidates whose links are measured
NO_GPUS = np.zeros(0, dtype=np.int32)
Numbers = tuple[int, int]  # nodes: who sends, and who receives


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


class LinkMeasurements(NamedTuple):
    """What is known of links, by numbers of nodes."""

    measured: Mapping[Numbers, float] = {}  # bytes/s
    age_s: Mapping[Numbers, float] = {}  # of these
    broken: Mapping[Numbers, str] = {}  # why
    unknown: Mapping[Numbers, str] = {}  # why nothing was measured


class LinksOf(NamedTuple):
    """The two links of a candidate, for people and for the store."""

    from_previous_measured_s: float | None  # seconds ago; None for a bandwidth that is reckoned
    to_next_measured_s: float | None
    words: str


def seen_in(known: Mapping[Pair, LinkOutcome], nodes: Sequence[str], now_s: float) -> LinkMeasurements:
    """Return what is known of links.

    Args:
        known: By names of nodes.
        nodes: These names, in the order of their numbers.
        now_s: By the clock of the links.
    """
    number = {name: at for at, name in enumerate(nodes)}
    links = {(number[a], number[b]): it for (a, b), it in known.items() if a in number and b in number}

    def why(state: LinkState) -> dict[Numbers, str]:
        return {pair: link.why for pair, link in links.items() if link.state is state}

    measured = {pair: link for pair, link in links.items() if link.state is LinkState.MEASURED}
    return LinkMeasurements(
        {pair: it.bytes_per_s for pair, it in measured.items()},
        {pair: max(now_s - it.at_s, 0.0) for pair, it in measured.items()},
        why(LinkState.BROKEN),
        why(LinkState.UNKNOWN),
    )


def pairs_around(nodes: Sequence[str], around: tuple[int, int], candidates: Sequence[int]) -> tuple[Pair, ...]:
    """Return the links that matter, in an order in which those that can be probed at once stand side by side.

    Args:
        nodes: Names.
        around: Nodes of the members before and behind the seat.
        candidates: Nodes that could come between them.
    """
    before, after = around
    shifted = [*candidates[1:], *candidates[:1]]
    found = [pair for x, y in zip(candidates, shifted, strict=True) for pair in ((before, x), (y, after))]
    return tuple(dict.fromkeys((nodes[a], nodes[b]) for a, b in found if a != b))


def probing_for(
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


def is_open(links: LinkTable, probing: Probing, wake: Callable[[], object]) -> bool:
    """Return whether links that matter may still become known in time; begin to measure them."""
    return time.monotonic() < probing.until_s and links.request(probing.pairs, probing.until_s, wake)


class LinksAround(NamedTuple):
    """The links between candidates and the neighbours of a seat."""

    seen: LinkMeasurements = LinkMeasurements()
    around: tuple[int, int] = (-1, -1)  # nodes of the members before and behind the seat
    nodes: Sequence[str] = ()  # names
    gpu_node: NDArray[np.int32] = NO_GPUS  # (gpus,) node of each GPU
    broken: Mapping[int, LinksOf] = {}  # of GPUs that cannot exchange with a neighbour

    def with_broken(self, gpus: Sequence[int]) -> "LinksAround":
        """Return the same with those of some GPUs that are broken."""
        broken = self.seen.broken
        return self._replace(
            broken={gpu: self.of(gpu) for gpu in gpus if any(pair in broken for pair in self._pairs(gpu))}
        )  # fmt: skip

    def of(self, gpu: int) -> LinksOf:
        """Return what is known of the links of a GPU, for people."""
        seen, pairs = self.seen, self._pairs(gpu)
        to, away = (_words(seen, pair) for pair in pairs)
        before, after = (self.nodes[it] for it in self.around)
        words = to if to == away else f"from {before}: {to}; to {after}: {away}"
        for a, b in pairs:
            if (a, b) in seen.broken:
                words = f"the link from {self.nodes[a]} to {self.nodes[b]} is broken: {seen.broken[a, b]}"
        return LinksOf(seen.age_s.get(pairs[0]), seen.age_s.get(pairs[1]), words)

    def _pairs(self, gpu: int) -> tuple[Numbers, Numbers]:
        node = int(self.gpu_node[gpu])
        return (self.around[0], node), (node, self.around[1])


def _words(seen: LinkMeasurements, pair: Numbers) -> str:
    if pair[0] == pair[1]:
        return "within the node"
    if pair in seen.age_s:
        return f"measured {seen.age_s[pair]:.0f} s ago"
    return f"reckoned, not measured: {seen.unknown[pair]}" if pair in seen.unknown else "reckoned"


MAX_STORED_CANDIDATES = 64  # candidates of one choice that are kept, the best ones
LINK_AGES = ("from_previous_measured_s", "to_next_measured_s")  # seconds ago; none for a bandwidth that is reckoned
BANDWIDTHS = ("from_previous_bytes_per_s", "to_next_bytes_per_s", *LINK_AGES)


class RingJob(NamedTuple):
    """What is known of a ring's job and of the cluster that it runs on."""

    mirror: ClusterMirror
    layout: Layout
    kinds: Mapping[str, str]  # node type of each node
    job: str
    spec: StoredJob


def ring_of(
    around: RingJob, want: SeatRequest, empty: EmptySeat, seats: int, records: Iterable[ComputeRecord]
) -> RingGap:
    """Return a ring with one of its empty seats, from the request of its coordinator and the records of the job.

    The request comes from processes of the job, which may send anything.

    Args:
        around: What is known beside.
        want: The last request of its coordinator.
        empty: The seat.
        seats: Of the ring once all are filled that are to be filled; each member then computes as much of a batch more
            as there are fewer than the job asks for.
        records: Computing times of the job; where there are none, those of the living members count.
    """
    site, spec = around.mirror.site, around.spec
    number = {node: at for at, node in enumerate(around.layout.nodes)}
    nodes = [number.get(want.nodes.get(str(member), ""), -1) for member in want.order]
    gap = want.order.index(empty.before) + 1 if empty.before in want.order else 0
    told_s = {
        at: time_s for at, member in enumerate(want.order) if (time_s := want.compute_s.get(str(member), 0.0)) > 0.0
    }
    recorded = _recorded(around, records)
    if -1 in nodes:  # a member that reports another node
        held = sorted(around.mirror.picks(around.job))
        nodes, gap = [int(site.cluster.gpu_node[gpu]) for gpu in held], len(held)
    elif not recorded:
        recorded = _means((int(site.cluster.node_type[nodes[at]]), time_s) for at, time_s in told_s.items())
    return RingGap(
        nodes=nodes,
        gap=gap,
        seats=seats,
        compute_s=max(told_s.values(), default=0.0),
        average_s=max(want.step_s, 0.0),
        volume_bytes=float(spec.parameter_bytes) if site.rules.ring else 0.0,
        demand_flops=math.nan if spec.iteration_flops is None else float(spec.iteration_flops),
        recorded_s=recorded,
        share=spec.seats / seats if spec.seats else 1.0,
    )


def _recorded(around: RingJob, records: Iterable[ComputeRecord]) -> dict[int, float]:
    """Return the mean computing time by number of the node type, of those types that the cluster has."""
    node_type = around.mirror.site.cluster.node_type
    type_of = {around.kinds.get(node, ""): int(node_type[at]) for at, node in enumerate(around.layout.nodes)}
    return {type_of[record.kind]: record.mean_s for record in records if record.kind in type_of and record.mean_s > 0.0}


def _means(times: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the mean time of each type of node."""
    found: dict[int, list[float]] = {}
    for kind, time_s in times:
        found.setdefault(kind, []).append(time_s)
    return {kind: sum(times_s) / len(times_s) for kind, times_s in found.items()}


class ChosenGpu(NamedTuple):
    """A GPU that is to take a seat, and why."""

    gpu: int
    words: str  # for people
    choice: dict[str, Any]  # as the store keeps it
    took_s: float  # that the choice took


def chosen_of(
    choice: SeatChoice, links: LinksAround, want: SeatRequest, formula: str, layout: Layout, took_s: float
) -> ChosenGpu:  # fmt: skip
    """Return who was chosen for a seat.

    Args:
        choice: The choice, of a GPU.
        links: Between the candidates and the neighbours of the seat.
        want: The request of the coordinator.
        formula: Of an iteration's time, that decided.
        layout: Of the cluster.
        took_s: Seconds that the choice took.
    """
    kept = {**described(choice, links, want, formula, layout), "took_s": round(took_s, 6)}
    words, mine = words_of_choice(choice, want, formula), links.of(choice.gpu)
    is_measured = any(getattr(mine, name) is not None for name in LINK_AGES)
    passed_over = [it.words for it in links.broken.values()][:MAX_MEASURED_CANDIDATES]
    parts = [words, *([f"its links: {mine.words}"] if is_measured else []), *passed_over]
    return ChosenGpu(choice.gpu, "; ".join(parts), kept, took_s)


def described(
    choice: SeatChoice, links: LinksAround, want: SeatRequest, formula: str, layout: Layout
) -> dict[str, Any]:  # fmt: skip
    """Return a choice as the store keeps it: the candidates with their times, the chosen one first."""
    kept = sorted(choice.considered, key=lambda it: (it.gpu != choice.gpu, _time_s(it, formula)))[
        :MAX_STORED_CANDIDATES
    ]
    return {
        "formula": formula,
        "average_s": want.step_s,
        "seats": len(want.order) + len(want.empty),
        "generation": want.generation,
        "considered": len(choice.considered),
        "candidates": [_candidate(row, links.of(row.gpu), layout) for row in kept] + _broken(links, layout),
    }


def words_of_choice(choice: SeatChoice, want: SeatRequest, formula: str) -> str:
    """Return why a candidate was chosen, for people."""
    chosen = next(candidate for candidate in choice.considered if candidate.gpu == choice.gpu)
    time_s, among = _time_s(chosen, formula), f"of {len(choice.considered)} candidates"
    if not math.isfinite(time_s):
        return f"its iteration time is not known; the weakest {among}"
    if want.step_s <= 0.0:
        return f"an iteration takes {time_s:.3g} s, the shortest {among}"
    if time_s <= want.step_s:
        return f"an iteration takes {time_s:.3g} s of the {want.step_s:.3g} s that it may; the weakest such {among}"
    return f"an iteration takes {time_s:.3g} s instead of {want.step_s:.3g} s, the shortest {among}"


def _candidate(it: Considered, links: LinksOf, layout: Layout) -> dict[str, object]:
    node, gpu = layout.place(it.gpu)
    times = {"source_s": it.source_s, "ring_s": it.ring_s, "compute_s": it.compute_s}
    return {
        "node": node,
        "gpu": gpu,
        **{name: time_s if math.isfinite(time_s) else None for name, time_s in times.items()},
        "from_previous_bytes_per_s": it.from_previous_bytes_per_s,
        "to_next_bytes_per_s": it.to_next_bytes_per_s,
        **{name: getattr(links, name) for name in LINK_AGES},
        "links": links.words,
    }


def _broken(links: LinksAround, layout: Layout) -> list[dict[str, object]]:
    """Return those that are no candidates, as they cannot exchange with the neighbours of the seat."""
    found = [(layout.place(gpu), it.words) for gpu, it in links.broken.items()]
    nothing = dict.fromkeys(("source_s", "ring_s", "compute_s", *BANDWIDTHS))
    return [
        {"node": node, "gpu": gpu, **nothing, "links": words} for (node, gpu), words in found[:MAX_STORED_CANDIDATES]
    ]


def _time_s(it: Considered, formula: str) -> float:
    return it.source_s if formula == "source" else it.ring_s


class PendingCheck(NamedTuple):
    """A GPU that a ring gets if it passes its checks."""

    chosen: ChosenGpu
    since_s: float  # by `time.monotonic`


class LiveRing:
    """A ring that runs.

    Args:
        row: Its attempt.
        connection: To its coordinator.
    """

    def __init__(self, row: AttemptRow, connection: RingConnection) -> None:
        self.row, self.connection = row, connection
        self.given: list[ReplacementRow] | None = None  # None while the store is to be asked
        self.checked: dict[int, PendingCheck] = {}  # GPUs that are reserved and not given yet
        self.probing: Probing | None = None  # links that were measured last
        self.waits_since_s = 0.0  # for links to be measured, by `time.monotonic`; 0 if it does not
        self.reminded: SeatRequest | None = None  # the last request that came while members were starting
        self.reported = -1  # last generation whose empty seats were reported
        self.refused = -1  # last generation that was to go on without
        self.reported_slow: tuple[int, ...] = ()  # slow members that were reported to have no backup
        self.short = 0  # seats that stay empty, as there was no GPU; 0 after a change of the scheduler

    @property
    def name(self) -> str:
        """What the backend knows it by."""
        return name_of(self.row.job_id, self.row.number)
