"""Reservations and imagined futures count the GPUs that jobs hold, not those that they ask for."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longshore.cluster.candidates.candidates import list_candidates
from longshore.cluster.candidates.futures import imagine_candidate, imagine_queue
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.queue.order import set_reservation
from longshore.scheduler.mirror.cluster_mirror import (
    ROW,
    ClusterMirror,
    ClusterSite,
    JobRecord,
    JobRequest,
    MirrorOrigin,
)
from tests.plain_run import busy_case, rules_of
from tests.support.budgets import examples

NODES, GPUS_PER_NODE, MOST_RINGS = 4, 3, 4
GPUS = NODES * GPUS_PER_NODE
TYPES = st.sampled_from([(), (), (0, 1), (1, 2, 3)])  # of nodes that suit a job; each node is of its own type
SITE = ClusterSite(
    grid_cluster(NODES, GPUS_PER_NODE)._replace(node_type=np.arange(NODES, dtype=np.int32)),
    rules_of(ring=False)._replace(order=ORDERS["easy"], ageing_s=math.inf), busy_case(ring=False).process,
    np.zeros(GPUS),
)  # fmt: skip


class Ring(NamedTuple):
    """A running job, which may hold fewer or more GPUs than it asks for."""

    gpus: int
    held: int
    estimate_s: float


RINGS = st.lists(
    st.builds(Ring, st.integers(1, 4), st.integers(1, 4), st.sampled_from([10.0, 20.0, 40.0])),
    min_size=1,
    max_size=MOST_RINGS,
)
WAITING = st.lists(st.tuples(st.integers(1, 6), TYPES), min_size=1, max_size=6)
CHANGES = st.lists(
    st.tuples(st.sampled_from(("claim", "give_up")), st.integers(0, 3), st.integers(0, GPUS)), max_size=8
)


def mirror_of(rings: list[Ring], waiting: list[tuple[int, tuple[int, ...]]], order: list[int]) -> ClusterMirror:
    """Return a cluster on which the rings hold GPUs in an order, and other jobs wait."""
    jobs, at = [], 0
    for number, ring in enumerate(rings):
        held = tuple(order[at : at + ring.held])
        at += ring.held
        record = JobRecord(ring.estimate_s, 0.0, first_start_s=0.0, gpus=held)
        jobs.append((JobRequest(f"ring {number}", ring.gpus, ring.estimate_s, 0.0), record))
    assume(at <= GPUS)
    for number, (gpus, types) in enumerate(waiting):
        jobs.append((JobRequest(f"waits {number}", gpus, 30.0, 0.0, types=types), JobRecord(30.0, 0.0)))
    mirror = ClusterMirror(SITE, MirrorOrigin(0.0, jobs, [f"waits {number}" for number in range(len(waiting))]))
    mirror.begin(1.0)
    return mirror


def change(mirror: ClusterMirror, changes: list[tuple[str, int, int]], rings: int) -> None:
    for method, ring, gpu in changes:
        job = f"ring {ring % rings}"
        if method == "claim":
            free = np.flatnonzero(mirror.sim.state.gpu_job[ROW] < 0)
            if free.size:
                mirror.claim(job, int(free[gpu % free.size]))
        elif len(held := mirror.gpus_of_job(job)) > 1:
            mirror.give_up(job, held[gpu % len(held)])


def plain_reservation(mirror: ClusterMirror, holder: str) -> tuple[float, int]:
    """Return the first expected end at which a waiting job fits, and the GPUs that are left over then."""
    state, suits = mirror.sim.state, mirror.suitable_gpus(holder)
    free, asked = int(suits[state.gpu_job[ROW] < 0].sum()), mirror.request(holder).gpus
    names = {mirror.slot(name): name for name in (f"ring {number}" for number in range(MOST_RINGS)) if mirror.has(name)}
    gives = Counter[float]()
    for at in range(int(state.running[ROW])):
        held = mirror.gpus_of_job(names[int(state.ends_job[ROW, at])])
        gives[float(state.ends_s[ROW, at])] += int(suits[list(held)].sum())
    for end_s in sorted(gives):
        free += gives[end_s]
        if free >= asked:
            return end_s, free - asked
    return math.inf, 0


@settings(max_examples=examples(80))
@given(RINGS, WAITING, st.permutations(range(GPUS)), CHANGES)
def test_a_reservation_is_of_the_gpus_that_running_jobs_hold(
    rings: list[Ring], waiting: list[tuple[int, tuple[int, ...]]], order: list[int], changes: list[tuple[str, int, int]]
) -> None:
    mirror = mirror_of(rings, waiting, order)
    change(mirror, changes, len(rings))
    mirror.begin(2.0)
    for number in range(len(waiting)):
        holder = f"waits {number}"
        set_reservation(mirror.sim, ROW, mirror.slot(holder))
        state = mirror.sim.state
        assert (float(state.shadow_s[ROW]), int(state.extra[ROW])) == plain_reservation(mirror, holder)


@settings(max_examples=examples(40))
@given(RINGS, WAITING, st.permutations(range(GPUS)), CHANGES)
def test_no_job_of_an_imagined_future_runs_on_fewer_gpus_than_it_asks_for(
    rings: list[Ring], waiting: list[tuple[int, tuple[int, ...]]], order: list[int], changes: list[tuple[str, int, int]]
) -> None:
    mirror = mirror_of(rings, waiting, order)
    change(mirror, changes, len(rings))
    mirror.begin(2.0)
    if mirror.find_due_job() is None:
        return
    sim, scratch = mirror.sim, mirror.sim.scratch
    for candidate in range(list_candidates(sim, ROW)):
        places = imagine_queue(sim, ROW, imagine_candidate(sim, ROW, candidate))
        for place in range(1, places):
            if scratch.ahead_start_s[ROW, place] < math.inf:
                first = place * NODES
                given = scratch.ahead_gives[ROW, first : first + scratch.ahead_size[ROW, place]]
                assert given.sum() == sim.scenarios.gpus[0, scratch.ahead_job[ROW, place]]
