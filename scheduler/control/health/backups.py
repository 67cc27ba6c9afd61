"""Which GPU gets a backup: a member that computes in place of one for which all others of a ring wait.

Source: SPEC P3.
"""

import math
import time
from collections.abc import Mapping, Sequence

from ...backends.protocol import MemberPlace
from ...failover.wire import Empty, Slow, Want
from ...health.reports import Report
from ...mirror.vacant_seats import Choice
from ...model.gpu_index import Layout
from ...model.job import JobRow
from ...model.job_spec import StoredJob
from ...model.stored_spec import stored_or_usual
from ..state_cache import Parts, StateCache
from .live_ring import LiveRing
from .seat_choice import choose_gpu, formula_of
from .vacancies import Chosen, chosen_of

BUSY = 0.1  # utilisation above which a free GPU is somebody's all the same, and gets no backup
FRESH_S = 120.0  # older reports say nothing of the present


def relieved(want: Want | None, spec: StoredJob) -> int:
    """Return how many members of a ring are alive without a seat, as they are slow; at most what its job asked for."""
    return 0 if want is None else min(len(want.relieved), spec.backups)


def wanted(want: Want | None, spec: StoredJob) -> list[Slow]:
    """Return the slow members of a ring that backups are wanted for: no more than its job asked for."""
    return [] if want is None else want.slow[: max(spec.backups - len(want.relieved), 0)]


def choose(
    parts: Parts, cache: StateCache, ring: LiveRing, want: Want, places: Sequence[MemberPlace], slow: Sequence[Slow],
    at: int, now_s: float,
) -> Chosen | str | None:  # fmt: skip
    """Choose a free GPU for a backup.

    Args:
        parts: What the scheduler works with.
        cache: What it knows.
        ring: The ring.
        want: What its coordinator said last.
        places: All GPUs that it was given, by rank.
        slow: Its slow members that want backups.
        at: Which of them the backup is for.
        now_s: The present.

    Returns:
        The GPU, or why there is none; None while the links of the best candidates are measured.
    """
    job, began_s = cache.jobs[ring.row.job_id], time.monotonic()
    left, seat = without(want, slow, at)
    busy = unfit(want, parts.layout, parts.monitor.reports.last(), now_s)
    seats = left, seat, stored_or_usual(job.spec).seats
    found = choose_gpu(parts, cache, ring, places, seats, now_s, grows=False, unfit=busy)
    if found is None:
        return None
    if why := found.why or against(found.choice, want) or against_more(cache, job):
        return why
    took_s = time.monotonic() - began_s
    chosen = chosen_of(found.choice, found.links, left, formula_of(cache), parts.layout, took_s)
    return chosen._replace(choice={**chosen.choice, "backup_for": slow[at].member})


def without(want: Want, slow: Sequence[Slow], at: int) -> tuple[Want, Empty]:
    """Return what a ring would say without its slow members, and the seat of one of them: it would be empty.

    Iterations would take as much less as the slow one computes longer than others.

    Args:
        want: What its coordinator said last.
        slow: Its slow members.
        at: Which of them.
    """
    numbers = {it.member for it in slow}
    compute_s = {str(it): want.compute_s.get(str(it), 0.0) for it in want.order if it not in numbers}
    slow_s = max((want.compute_s.get(str(it), 0.0) for it in numbers), default=0.0)
    saved_s = max(slow_s - max(compute_s.values(), default=0.0), 0.0)
    left = Want(
        generation=want.generation,
        empty=[Empty(slow[at].seat, slow[at].before, slow[at].after)],
        order=[it for it in want.order if it not in numbers],
        step_s=max(want.step_s - saved_s, 0.0),
        compute_s=compute_s,
        nodes=want.nodes,
    )
    return left, left.empty[0]


def unfit(want: Want, layout: Layout, reports: Mapping[str, Report], now_s: float) -> list[int]:
    """Return the GPUs that get no backup: those of the slow members' nodes, and those that somebody uses.

    Args:
        want: What the ring's coordinator said last.
        layout: Of the cluster.
        reports: The last of each node.
        now_s: The present.
    """
    members = [*(it.member for it in want.slow), *want.relieved]
    nodes = {want.nodes.get(str(it), "") for it in members}
    places = [(node, gpu) for node in nodes & set(layout.nodes) for gpu in range(layout.nodes[node])]
    for node, it in reports.items():
        if 0.0 <= now_s - it.at_s < FRESH_S:
            places += [(node, gpu.index) for gpu in it.told.gpus if gpu.utilisation > BUSY]
    return sorted({layout.number(*it) for it in places if layout.has(*it)})


def against_more(cache: StateCache, row: JobRow) -> str:
    """Return why a job gets no GPU beside those that it asked for, "" if it may: its owner has no more than one may."""
    most = cache.parts.gpus_per_user
    if most is None:
        return ""
    inside = (it for it in cache.jobs.values() if it.owner == row.owner and it.id not in cache.outside)
    has = sum(max(it.gpus, len(cache.mirror.picks(it.id)) if cache.mirror.has(it.id) else 0) for it in inside)
    return "" if has < most else f"its owner has {has} of {most} GPUs"


def against(choice: Choice, want: Want) -> str:
    """Return why a GPU gets no backup that was chosen, "" if it does: the ring is to be faster with it."""
    it = next(it for it in choice.considered if it.gpu == choice.gpu)
    # What nobody can tell speaks for a GPU.
    is_no_gain = math.isfinite(it.ring_s) and 0.0 < want.step_s <= it.ring_s
    return "it would be faster with no free GPU" if is_no_gain else ""
