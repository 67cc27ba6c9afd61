"""Which free GPU takes an empty seat of a ring that runs, as a scheduler knows it.

Source: SPEC F5 to F7.
"""

from collections.abc import Mapping, Sequence

from ...backends.protocol import MemberPlace
from ...failover.wire import Empty, Want
from ...mirror.vacant_seats import Choice, choose_for, free_for, with_which_faster
from ...model.gpu_index import Layout
from ...model.stored_spec import stored_or_usual
from ...store.monitoring.compute_records import records_of
from ...store.rows.nodes import list_gpus
from ..state_cache import Parts, StateCache
from .live_ring import LiveRing
from .vacancies import Around, ring_of

HOUR_S = 3600.0
LEAST_IN_AN_HOUR = 3  # GPUs that a ring is given; one of many seats may have as many as these
NOBODY = Choice(-1, ())
Seat = tuple[Want, Empty, int]  # what the coordinator said last, the seat, and seats of the ring once it is filled


def choose_gpu(
    parts: Parts, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], seat: Seat, now_s: float,
    *, grows: bool, unfit: Sequence[int] = (),
) -> tuple[Choice, str]:  # fmt: skip
    """Choose a free GPU for a seat, and return why there is none, "" if there is one.

    Those that the ring has left before come into question if there is no other, or if they were found faulty then
    and are well again: something is wrong with a GPU on which processes fail though nobody finds fault with it.

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
    job = cache.jobs[ring.row.job_id]
    spec = stored_or_usual(job.spec)
    if why := _against_more(parts, ring, spec.seats, now_s):
        return NOBODY, why
    with parts.store.read() as tx:
        records, gpus = records_of(tx, job.id), list_gpus(tx)
    well_s = {(it.node, it.gpu): it.since_s for it in gpus if it.healthy}
    without = _left_for_good(parts.layout, ring, places, well_s)
    free = free_for(cache.mirror, job.id, [*without, *unfit])
    if not free.gpus.size:
        free = free_for(cache.mirror, job.id, unfit)
    around = Around(cache.mirror, parts.layout, parts.monitor.fleet.types, job.id, spec)
    inside = ring_of(around, *seat, records)
    site = cache.mirror.site
    fit = with_which_faster(site.cluster, inside, free) if grows else free
    if free.gpus.size and not fit.gpus.size:
        return NOBODY, "it would be faster with no free GPU"
    choice = choose_for(site.cluster, inside, fit, site.rules.replacement)
    return choice, "" if choice.gpu >= 0 else "no free GPU suits it"


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
        it
        for rank, it in enumerate(places)
        if not it.is_used and well_s.get((it.node, it.gpu), 0.0) <= had_s.get(rank, ring.row.opened_s)
    ]
    return [layout.number(it.node, it.gpu) for it in left if layout.has(it.node, it.gpu)]


def _against_more(parts: Parts, ring: LiveRing, seats: int, now_s: float) -> str:
    """Return why a ring gets no GPU now, whether there is one or not; "" if it may.

    A script that kills its process would go through the whole cluster.
    """
    lately = len(ring.checked) + sum(0.0 <= now_s - it.at_s < HOUR_S for it in ring.given or ())
    most = max(seats, LEAST_IN_AN_HOUR)
    few = parts.checks.against_newcomers(ring.row.job_id)
    return f"it has had {most} others within an hour" if lately >= most else few
