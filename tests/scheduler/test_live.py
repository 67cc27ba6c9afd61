"""A cluster that is given all events must be the same as the simulation in which it happened."""

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.envs.features import time_unit_s
from longshore.scheduler.mirror.cluster_mirror import ROW, ClusterMirror, JobRecord, JobRequest, MirrorOrigin
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.policies_under_test import untrained, untrained_candidates
from tests.scheduler.live_run import LiveCopy, decided, site_of
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples

UNTRAINED = [untrained(action="node", waiting=True), untrained_candidates(waiting=True)]
TAKEN_UP = [HEURISTICS[name] for name in ("pack", "eft-hazard", "patient", "replacement")]
POLICIES = TAKEN_UP + UNTRAINED


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("ring", [False, True])
def test_a_policy_decides_on_a_live_cluster_as_in_the_simulation(policy: Policy, ring: bool) -> None:  # noqa: FBT001
    case = busy_case(ring=ring)

    pairs = list(decided(LiveCopy(case, compiled(case)), policy))

    assert len(pairs) >= 10
    assert [there for there, _ in pairs] == [here for _, here in pairs]


@settings(max_examples=examples(50))
@given(cases() | needy_cases(ranked=False) | planned_cases(ranked=False), st.sampled_from(POLICIES), st.booleans())
def test_any_policy_decides_on_a_live_cluster_as_in_the_simulation(
    case: Case,
    policy: Policy,
    learns: bool,  # noqa: FBT001
) -> None:
    case = case._replace(rules=case.rules._replace(estimated_hazards=learns))
    for there, here in decided(LiveCopy(case, compiled(case)), policy):
        assert there == here


@settings(max_examples=examples(50))
@given(cases() | needy_cases(ranked=False) | planned_cases(ranked=False), st.sampled_from(TAKEN_UP), st.booleans())
def test_a_cluster_that_is_taken_up_again_decides_as_if_nothing_had_happened(
    case: Case,
    policy: Policy,
    learns: bool,  # noqa: FBT001
) -> None:
    case = case._replace(rules=case.rules._replace(estimated_hazards=learns))
    live = LiveCopy(case, compiled(case))
    decided_s = -1.0

    def take_up() -> None:
        nonlocal decided_s
        # Who has waited at this moment is not kept: a decision that is due again is asked for again.
        if live.mirror.now_s > decided_s:
            live.mirror = ClusterMirror(live.mirror.site, live.mirror.origin_now())
        decided_s = live.mirror.now_s

    for there, here in decided(live, policy, take_up):
        assert there == here


def test_slots_of_jobs_that_have_ended_are_taken_back() -> None:
    case = busy_case(ring=False)
    mirror = ClusterMirror(site_of(case), MirrorOrigin(0.0))
    mirror.begin(0.0)
    mirror.submit(JobRequest("stays", 10, 25.0, 0.0))
    assert mirror.find_due_job() == "stays"
    assert HEURISTICS["pack"].place(mirror.sim, ROW)
    assert mirror.start_current_job()
    held, room = mirror.gpus_of_job("stays"), mirror.job_slots

    for job in range(3 * room):
        mirror.submit(JobRequest(str(job), 1, 20.0 if job < room else 10.0, 0.0))
        if job >= 5:
            mirror.withdraw(str(job - 5))

    assert mirror.job_slots == room
    assert mirror.gpus_of_job("stays") == held
    assert time_unit_s(mirror.sim, ROW) == (25.0 + room * 20.0 + 2 * room * 10.0) / (1 + 3 * room)
    assert list(mirror.origin_now().queue) == [str(job) for job in range(3 * room - 5, 3 * room)]
    mirror.finish("stays")
    assert mirror.find_due_job() == str(3 * room - 5)


STEPS = ("submit", "start", "stop", "withdraw", "come back", "give place")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=40))
def test_the_queue_is_in_order_of_rank_and_then_as_jobs_came_with_stopped_ones_first_and_moved_ones_at_their_places(
    steps: list[tuple[str, int]],
) -> None:
    mirror = ClusterMirror(site_of(busy_case(ring=False)), MirrorOrigin(0.0))
    plain: list[tuple[int, str]] = []  # the queue
    running: list[tuple[int, str]] = []
    away: list[tuple[int, str, JobRecord]] = []
    for number, (what, rank) in enumerate(steps):
        mirror.begin(float(number))
        if what == "submit":
            mirror.submit(JobRequest(str(number), 1, 10.0, float(number), rank))
            plain.append((rank, str(number)))
            plain.sort(key=lambda it: it[0])
        elif what == "start" and plain and len(running) < 10:
            assert mirror.find_due_job() == plain[0][1]
            assert HEURISTICS["pack"].place(mirror.sim, ROW)
            assert mirror.start_current_job()
            running.append(plain.pop(0))
        elif what == "stop" and running:
            job = running.pop(rank % len(running))
            mirror.stop(job[1])
            plain.insert(0, job)
            plain.sort(key=lambda it: it[0])
        elif what == "withdraw" and plain:
            its_rank, job_id = plain.pop(rank % len(plain))
            away.append((its_rank, job_id, mirror.progress(job_id)))
            mirror.withdraw(job_id)
        elif what == "come back" and away:
            its_rank, job_id, standing = away.pop(rank % len(away))
            mirror.come_back(JobRequest(job_id, 1, 10.0, 0.0, its_rank), standing)
            assert mirror.progress(job_id) == standing
            plain.insert(0, (its_rank, job_id))
            plain.sort(key=lambda it: it[0])
        elif what == "give place" and plain:
            _, job_id = plain.pop(number % len(plain))
            ranks = [it for it, _ in plain]
            at = bisect_left(ranks, rank) + number % (ranks.count(rank) + 1)  # anywhere among its equals
            mirror.give_place(job_id, rank, plain[at][1] if at < len(plain) else None)
            plain.insert(at, (rank, job_id))
        names = [job for _, job in plain]
        assert list(mirror.origin_now().queue) == names
        ends = [None, *names, None]
        assert [mirror.queue_neighbours(job) for job in names] == list(zip(ends, ends[2:], strict=False))


def free_gpus(mirror: ClusterMirror) -> tuple[list[int], int]:
    return mirror.sim.state.free[ROW].tolist(), int(mirror.sim.state.usable[ROW])


def test_a_gpu_that_comes_back_under_a_running_job_is_free_only_after_the_job() -> None:
    mirror = ClusterMirror(site_of(busy_case(ring=False)), MirrorOrigin(0.0))
    empty = free_gpus(mirror)
    mirror.submit(JobRequest("job", 1, 60.0, 0.0))
    assert mirror.find_due_job() == "job"
    mirror.carry_out("job", [0])
    running = free_gpus(mirror)

    mirror.take_out(0)
    mirror.bring_back(0)

    assert free_gpus(mirror) == running
    mirror.finish("job")
    assert free_gpus(mirror) == empty


def test_no_job_is_placed_on_hidden_nodes_and_all_is_as_before_when_they_are_shown() -> None:
    mirror = ClusterMirror(site_of(busy_case(ring=False)), MirrorOrigin(0.0))
    nodes = list(range(mirror.site.cluster.speed.size))
    empty = free_gpus(mirror)
    mirror.submit(JobRequest("job", 1, 60.0, 0.0))

    mirror.hide(nodes)

    assert mirror.find_due_job() is None
    mirror.show(nodes)
    assert mirror.find_due_job() == "job"
    mirror.withdraw("job")
    assert free_gpus(mirror) == empty


def test_hidden_nodes_are_in_service_again_for_a_mirror_that_was_made_meanwhile() -> None:
    mirror = ClusterMirror(site_of(busy_case(ring=False)), MirrorOrigin(0.0))
    mirror.hide([0])
    other = ClusterMirror(mirror.site, mirror.origin_now())

    other.show([0])

    assert free_gpus(other) == free_gpus(ClusterMirror(mirror.site, MirrorOrigin(0.0)))
    assert not other.sim.state.source_failed.any()
