"""What the scheduler knows of a ring with an empty seat, and in which words a choice is kept and told.

Source: SPEC F2, F3, F6, F7.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...failover.wire import Empty, Want
from ...mirror.cluster_mirror import ClusterMirror
from ...mirror.vacant_seats import Choice, Considered, Ring
from ...model.gpu_index import Layout
from ...model.job_spec import StoredJob
from ...store.monitoring.compute_records import ComputeRecord
from .seat_links import BEST, LinksAround, LinksOf

MOST_KEPT = 64  # candidates of one choice that are kept, the best ones
MEASURED = ("from_previous_measured_s", "to_next_measured_s")  # seconds ago; none for a bandwidth that is reckoned
BANDWIDTHS = ("from_previous_bytes_per_s", "to_next_bytes_per_s", *MEASURED)


class Around(NamedTuple):
    """What is known of a ring's job and of the cluster that it runs on."""

    mirror: ClusterMirror
    layout: Layout
    kinds: Mapping[str, str]  # node type of each node
    job: str
    spec: StoredJob


def ring_of(around: Around, want: Want, empty: Empty, seats: int, records: Iterable[ComputeRecord]) -> Ring:
    """Return a ring with one of its empty seats, from what its coordinator says and what is recorded of the job.

    What a coordinator says comes from processes of the job, which may say anything.

    Args:
        around: What is known beside.
        want: What its coordinator said last.
        empty: The seat.
        seats: Of the ring once all are filled that are to be filled; each member then computes as much of a batch more
            as there are fewer than the job asks for.
        records: Computing times of the job; where there are none, those of the living members count.
    """
    site, spec = around.mirror.site, around.spec
    number = {node: at for at, node in enumerate(around.layout.nodes)}
    nodes = [number.get(want.nodes.get(str(member), ""), -1) for member in want.order]
    gap = want.order.index(empty.before) + 1 if empty.before in want.order else 0
    told_s = {at: time_s for at, it in enumerate(want.order) if (time_s := want.compute_s.get(str(it), 0.0)) > 0.0}
    recorded = _recorded(around, records)
    if -1 in nodes:  # a member that says it is somewhere else
        held = sorted(around.mirror.picks(around.job))
        nodes, gap = [int(site.cluster.gpu_node[gpu]) for gpu in held], len(held)
    elif not recorded:
        recorded = _means((int(site.cluster.node_type[nodes[at]]), time_s) for at, time_s in told_s.items())
    return Ring(
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


def _recorded(around: Around, records: Iterable[ComputeRecord]) -> dict[int, float]:
    """Return the mean computing time by number of the node type, of those types that the cluster has."""
    node_type = around.mirror.site.cluster.node_type
    type_of = {around.kinds.get(node, ""): int(node_type[at]) for at, node in enumerate(around.layout.nodes)}
    return {type_of[it.kind]: it.mean_s for it in records if it.kind in type_of and it.mean_s > 0.0}


def _means(times: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the mean time of each type of node."""
    found: dict[int, list[float]] = {}
    for kind, time_s in times:
        found.setdefault(kind, []).append(time_s)
    return {kind: sum(times_s) / len(times_s) for kind, times_s in found.items()}


class Chosen(NamedTuple):
    """A GPU that is to take a seat, and why."""

    gpu: int
    words: str  # for people
    choice: dict[str, Any]  # as the store keeps it
    took_s: float  # that the choice took


def chosen_of(
    choice: Choice, links: LinksAround, want: Want, formula: str, layout: Layout, took_s: float
) -> Chosen:  # fmt: skip
    """Return who was chosen for a seat.

    Args:
        choice: The choice, of somebody.
        links: Between the candidates and the neighbours of the seat.
        want: What the coordinator said that made it necessary.
        formula: Of an iteration's time, that decided.
        layout: Of the cluster.
        took_s: Seconds that the choice took.
    """
    kept = {**described(choice, links, want, formula, layout), "took_s": round(took_s, 6)}
    words, mine = words_of_choice(choice, want, formula), links.of(choice.gpu)
    is_measured = any(getattr(mine, name) is not None for name in MEASURED)
    passed_over = [it.words for it in links.broken.values()][:BEST]
    told = [words, *([f"its links: {mine.words}"] if is_measured else []), *passed_over]
    return Chosen(choice.gpu, "; ".join(told), kept, took_s)


def described(
    choice: Choice, links: LinksAround, want: Want, formula: str, layout: Layout
) -> dict[str, Any]:  # fmt: skip
    """Return a choice as the store keeps it: the candidates with their times, the chosen one first."""
    kept = sorted(choice.considered, key=lambda it: (it.gpu != choice.gpu, _time_s(it, formula)))[:MOST_KEPT]
    return {
        "formula": formula,
        "average_s": want.step_s,
        "seats": len(want.order) + len(want.empty),
        "generation": want.generation,
        "considered": len(choice.considered),
        "candidates": [_candidate(it, links.of(it.gpu), layout) for it in kept] + _broken(links, layout),
    }


def words_of_choice(choice: Choice, want: Want, formula: str) -> str:
    """Return why a candidate was chosen, for people."""
    chosen = next(it for it in choice.considered if it.gpu == choice.gpu)
    time_s, among = _time_s(chosen, formula), f"of {len(choice.considered)} candidates"
    if not math.isfinite(time_s):
        return f"nobody can tell how fast it is; the weakest {among}"
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
        **{name: getattr(links, name) for name in MEASURED},
        "links": links.words,
    }


def _broken(links: LinksAround, layout: Layout) -> list[dict[str, object]]:
    """Return those that are no candidates, as they cannot exchange with the neighbours of the seat."""
    found = [(layout.place(gpu), it.words) for gpu, it in links.broken.items()]
    nothing = dict.fromkeys(("source_s", "ring_s", "compute_s", *BANDWIDTHS))
    return [{"node": node, "gpu": gpu, **nothing, "links": words} for (node, gpu), words in found[:MOST_KEPT]]


def _time_s(it: Considered, formula: str) -> float:
    return it.source_s if formula == "source" else it.ring_s
