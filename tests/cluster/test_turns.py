"""Users take turns in the queue: hand-worked schedules, and what holds for all."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import ORDERS, Problem, fault_sources, joined, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.queue.turns import line_up_jobs
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.simulation import simulation_of
from tests.cases_by_hand import Jobs, hand_case
from tests.compiled_runs import compiled, run_heuristic, run_script
from tests.deep_cases import deep_case, of_users
from tests.plain_turns import lined_up
from tests.reference import simulate
from tests.reference_policies import first_fit
from tests.strategies import Case, cases

ADA, BOB, EVE = range(3)


def of(users: list[int], case: Case) -> Case:
    line = np.array([users], dtype=np.int32)
    return case._replace(scenarios=case.scenarios._replace(line=line), rules=case.rules._replace(turns=True))


def starts(case: Case) -> list[tuple[int, float]]:
    """Return (job, time) of each start, the same by the reference and by the compiled engine."""
    found = [(it.job, it.time_s) for it in simulate(*case, first_fit)[0] if it.kind == "start"]
    assert [(it.job, it.time_s) for it in run_heuristic(case, "pack")[0] if it.kind == "start"] == found
    return found


def order_of(case: Case) -> list[int]:
    return [job for job, _ in starts(case)]


ONE_EACH: Jobs = [(1, 10.0, 0.0)] * 7


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_users_start_one_job_each_in_a_round(order: str) -> None:
    case = hand_case(grid_cluster(1, 1), ONE_EACH, order=ORDERS[order])
    assert order_of(of([ADA, ADA, ADA, ADA, BOB, BOB, EVE], case)) == [0, 4, 6, 1, 5, 2, 3]
    assert order_of(case) == list(range(7))


def test_in_a_user_the_shortest_goes_first_under_shortest() -> None:
    jobs: Jobs = [(1, 40.0, 0.0), (1, 10.0, 0.0), (1, 30.0, 0.0), (1, 20.0, 0.0)]
    case = hand_case(grid_cluster(1, 1), jobs, order=ORDERS["shortest"])
    assert order_of(of([ADA, ADA, BOB, BOB], case)) == [1, 3, 0, 2]


def test_a_user_who_comes_later_stands_behind_those_who_wait_and_before_their_next_jobs() -> None:
    jobs: Jobs = [*[(1, 10.0, 0.0)] * 4, (1, 10.0, 5.0)]
    case = hand_case(grid_cluster(1, 1), jobs)
    assert order_of(of([ADA, ADA, ADA, BOB, EVE], case)) == [0, 3, 1, 4, 2]


def test_a_job_that_leads_is_not_led_by_others_while_jobs_pass_it() -> None:
    # Ada's job 1 of both GPUs waits for job 0; short jobs of both users pass it, and take no turn to lead from it.
    jobs: Jobs = [(1, 100.0, 0.0), (2, 10.0, 1.0), *[(1, 20.0, 2.0)] * 4, (2, 10.0, 3.0)]
    case = of([EVE, ADA, ADA, BOB, ADA, BOB, BOB], hand_case(grid_cluster(1, 2), jobs, order=ORDERS["easy"]))
    assert starts(case) == [(0, 0.0), (2, 2.0), (3, 22.0), (4, 42.0), (5, 62.0), (1, 100.0), (6, 110.0)]


def test_a_job_that_was_stopped_goes_first_and_takes_no_turn() -> None:
    jobs: Jobs = [(1, 10.0, 0.0)] * 4
    outages = {0: [(5.0, 6.0)]}
    case = of([ADA, ADA, BOB, BOB], hand_case(grid_cluster(1, 1), jobs, outages, checkpoint_s=1.0, restart_s=0.0))
    assert order_of(case) == [0, 0, 2, 1, 3]


def test_the_ageing_bound_goes_before_turns_and_an_aged_start_is_a_turn() -> None:
    jobs: Jobs = [(1, 50.0, 0.0), (1, 10.0, 1.0), (1, 10.0, 2.0), (1, 10.0, 30.0), (1, 10.0, 30.0)]
    case = hand_case(grid_cluster(1, 1), jobs, order=ORDERS["easy"], ageing_s=45.0)
    # At 50 jobs 1 and 2 have aged: both go before Bob, whose turn it would be after job 1.
    assert order_of(of([EVE, ADA, ADA, BOB, BOB], case)) == [0, 1, 2, 3, 4]
    without = case._replace(rules=case.rules._replace(ageing_s=float("inf")))
    assert order_of(of([EVE, ADA, ADA, BOB, BOB], without)) == [0, 1, 3, 2, 4]


def test_backfill_depth_counts_the_jobs_of_each_user() -> None:
    # Job 1 leads and waits; the first job behind it of each user may pass, and Ada's does not fit.
    jobs: Jobs = [(1, 100.0, 0.0), (2, 10.0, 1.0), (2, 10.0, 2.0), (1, 10.0, 2.0), (1, 10.0, 3.0)]
    case = hand_case(grid_cluster(1, 2), jobs, order=ORDERS["easy"], backfill_depth=1)
    assert starts(of([EVE, ADA, ADA, ADA, BOB], case))[1] == (4, 3.0)
    assert starts(of([EVE, ADA, ADA, ADA, ADA], case))[1] == (1, 100.0)


@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.3)))
def test_one_user_alone_has_the_schedule_without_turns(case: Case, seed: int, wait_share: float) -> None:
    alone = case.scenarios._replace(line=np.zeros_like(case.scenarios.gpus))
    with_turns = case._replace(scenarios=alone, rules=case.rules._replace(turns=True))
    without = case._replace(rules=case.rules._replace(turns=False))
    events, outcome = run_script(with_turns, seed, wait_share)
    plain_events, plain_outcome = run_script(without, seed, wait_share)
    assert events == plain_events
    for name, got in outcome._asdict().items():
        assert np.array_equal(got, getattr(plain_outcome, name)), name


@given(st.integers(0, 2**32 - 1))
def test_between_two_turns_of_a_user_each_other_has_one_at_most(seed: int) -> None:
    case = of_users(deep_case(seed, "fifo"), np.random.default_rng(seed))
    rates = np.zeros_like(case.scenarios.source_rate_per_s)  # jobs that were stopped start out of turn
    scenarios = case.scenarios._replace(source_rate_per_s=rates)
    events, _ = run_heuristic(case._replace(scenarios=scenarios), "pack")
    line = scenarios.line[0]
    left = Counter[int]()  # waiting jobs of each user
    since: dict[int, Counter[int]] = {}  # turns of others since the last one of a user, or since they came
    for event in events:
        user = int(line[event.job]) if event.job >= 0 else -1
        if event.kind == "submit":
            left[user] += 1
            since.setdefault(user, Counter())
        if event.kind == "start":
            left[user] -= 1
            del since[user]
            for theirs in since.values():
                theirs[user] += 1
                assert theirs[user] == 1
            if left[user]:
                since[user] = Counter()


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(ORDERS)))
def test_the_queue_is_lined_up_as_the_page_says(seed: int, order: str) -> None:
    rng = np.random.default_rng(seed)
    sim = compiled(of_users(deep_case(seed, order), rng))
    reset(sim, 0, 0)
    while advance(sim, 0):
        if rng.random() < 0.2:
            jobs = lined_up(sim)
            for most in (1, 5, len(jobs)):
                count = line_up_jobs(sim, 0, most)
                assert sim.scratch.lined_up[0, :count].tolist() == jobs[:most]
        assert HEURISTICS["pack"].place(sim, 0)
        start(sim, 0)


def scenarios_of(*users: tuple[str, ...] | None) -> NDArray[np.int32]:
    cluster = grid_cluster(1, 2)
    jobs = [
        workload_of(tuple(map(str, range(3))), np.ones(3, np.int32), np.ones(3), np.arange(3.0), users=it)
        for it in users
    ]
    rates = np.zeros(fault_sources(cluster))
    return stack(cluster, jobs, fault_seed=np.zeros(len(users), np.int64), source_rate_per_s=rates).line


def test_users_of_a_trace_are_lines_and_jobs_whose_user_is_not_known_are_of_one() -> None:
    assert scenarios_of(("a", "", ""), None, ("b", "a", "b")).tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert scenarios_of(("a", "a", "a"), None).size == 0


def test_scenarios_of_users_can_be_joined_with_those_of_nobody_known() -> None:
    cluster = grid_cluster(1, 2)
    rates, seed = np.zeros(fault_sources(cluster)), np.zeros(1, np.int64)
    works = [
        workload_of(("x", "y"), np.ones(2, np.int32), np.ones(2), np.zeros(2), users=users)
        for users in (("a", "b"), None)
    ]
    parts = [stack(cluster, [work], fault_seed=seed, source_rate_per_s=rates) for work in works]
    assert joined(parts).line.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("line", [[[0, 1, -1, 0]], [[0, 4, 0, 0]], [[0, 0, 1, 1]], [[0, 1]]])
def test_lines_that_cannot_be_are_refused(line: list[list[int]]) -> None:
    case = hand_case(grid_cluster(1, 1), ONE_EACH[:4])
    case.scenarios.rank[0] = [0, 1, 0, 0]
    wrong = case.scenarios._replace(line=np.array(line, dtype=np.int32))
    with pytest.raises(ValueError, match="line"):
        simulation_of(Problem(case.cluster, wrong, case.process, case.rules))
