"""What a candidate leads to, against its plain version, and on a case worked by hand."""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.candidates.candidates import list_candidates, pick_candidate
from longshore.cluster.candidates.futures import imagine_candidate, imagine_queue
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.simulator.engine import advance, start
from longshore.cluster.state.state import AHEAD_JOBS, Simulation
from longshore.envs.batch import Batch
from tests.cases_by_hand import hand_case
from tests.compiled_runs import at_first_decision
from tests.deep_cases import wide_case
from tests.envs.plain_features import Decision
from tests.envs.random_run import problem_of, small_problem
from tests.plain_candidates import Ahead, decisions, listed, look_ahead
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples


def imagined(sim: Simulation, candidate: int) -> tuple[list[int], list[Ahead]]:
    """Return the usable GPUs of each node when a candidate has started, and the jobs ahead."""
    begin = imagine_candidate(sim, 0, candidate)
    left = sim.scratch.trial_free[0].tolist()
    count = imagine_queue(sim, 0, begin)
    ahead = [
        Ahead(
            int(sim.scratch.ahead_job[0, place]),
            float(sim.scratch.ahead_start_s[0, place]),
            float(sim.scratch.ahead_end_s[0, place]),
        )
        for place in range(count)
    ]
    return left, ahead


def agree(batches: Iterator[Batch]) -> int:
    """Compare every candidate of every decision with its plain version; return the number of jobs ahead."""
    compared = 0
    for batch in batches:
        seen = Decision(batch, 0)
        for number, candidate in enumerate(listed(batch.sim, 0)):
            (left, ahead), (plain_left, plain_ahead) = imagined(batch.sim, number), look_ahead(seen, candidate)
            assert left == list(plain_left.values())
            assert [it.start_s for it in ahead] == pytest.approx([it.start_s for it in plain_ahead], rel=1e-9)
            assert [it.end_s for it in ahead] == pytest.approx([it.end_s for it in plain_ahead], rel=1e-9)
            # The job that never starts has no place of its own.
            known = [job for job, _, end_s in ahead if end_s < math.inf]
            assert known == [job for job, _, end_s in plain_ahead if end_s < math.inf]
            compared += len(ahead)
    return compared


@settings(max_examples=examples(60))
@given(cases() | cases(nodes=(9, 12)) | needy_cases() | planned_cases(), st.integers(0, 2**32 - 1))
def test_jobs_ahead_are_those_of_the_plain_version(case: Case, seed: int) -> None:
    agree(decisions(problem_of(case), case.row, seed))


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32 - 1), st.sampled_from(["fifo", "easy"]))
def test_jobs_ahead_are_those_of_the_plain_version_on_many_nodes(seed: int, order: str) -> None:
    case = wide_case(seed, order, waiting=bool(seed % 4))
    agree(islice(decisions(problem_of(case), 0, seed), 8, 40, 12))


@pytest.mark.parametrize("order", ["fifo", "shortest"])
def test_jobs_ahead_are_those_of_the_plain_version_on_a_busy_cluster(order: str) -> None:
    problem = small_problem(2, nodes=5, jobs=40, order=order, waiting=True, faults=2)
    assert agree(decisions(problem, 1, 4)) > 40 * AHEAD_JOBS


def test_what_is_imagined_of_the_base_comes_true_where_the_base_is_the_quick_set() -> None:
    # On identical nodes without faults `eft-hazard` and the quick set agree on run times.
    jobs = [(gpus, 10.0 * (1 + job), 0.0) for job, gpus in enumerate((2, 1, 2, 1, 2, 1))]
    sim = at_first_decision(hand_case(grid_cluster(2, 2), jobs))
    list_candidates(sim, 0)
    expected = imagined(sim, 0)[1]
    assert len(expected) == len(jobs)
    while advance(sim, 0):
        list_candidates(sim, 0)
        assert pick_candidate(sim, 0, 0)
        start(sim, 0)
    assert [it.start_s for it in expected] == sim.state.first_start_s[0].tolist()
    assert [it.end_s for it in expected] == sim.state.finish_s[0].tolist()


def test_a_job_that_never_fits_ends_what_is_imagined() -> None:
    # GPU 3 is down: the job of four GPUs cannot start by the end of another, and the one behind it is not imagined.
    case = hand_case(grid_cluster(2, 2), [(1, 10.0, 0.0), (4, 5.0, 0.0), (1, 5.0, 0.0)], {3: [(0.0, 1e9)]})
    sim = at_first_decision(case)
    list_candidates(sim, 0)
    assert [(it.start_s, it.end_s) for it in imagined(sim, 0)[1]] == [(0.0, 10.0), (math.inf, math.inf)]


def test_a_wait_begins_when_the_job_that_it_waits_for_has_left() -> None:
    # The fast node is taken until 10 s; the second job then runs 25 s there, and the third on the slow node is behind.
    case = hand_case(
        grid_cluster(2, 1, speed=np.array([4.0, 1.0])), [(1, 40.0, 0.0), (1, 100.0, 0.0), (1, 8.0, 0.0)], waiting=True
    )
    sim = at_first_decision(case)
    list_candidates(sim, 0)
    pick_candidate(sim, 0, 0)
    start(sim, 0)
    assert advance(sim, 0)
    list_candidates(sim, 0)
    assert sim.state.base_waits[0] == 1
    left, ahead = imagined(sim, 0)
    assert left == [0, 1]
    assert ahead == [(1, 10.0, 35.0), (2, 10.0, 18.0)]


FAST_AND_SLOW = [(1, 40.0, 0.0), (1, 100.0, 0.0), (1, 8.0, 0.0)]  # alone they run 10, 25 and 2 s on the fast node


def test_a_job_ahead_waits_for_a_better_node_if_that_saves_enough() -> None:
    # The second job would run 100 s on the slow node: 0.4 (100 - 25) is more than the 10 s until the fast one is free.
    case = hand_case(grid_cluster(2, 1, speed=np.array([4.0, 1.0])), FAST_AND_SLOW, waiting=True)
    sim = at_first_decision(case)
    list_candidates(sim, 0)
    assert imagined(sim, 0)[1] == [(0, 0.0, 10.0), (1, 10.0, 35.0), (2, 10.0, 18.0)]


def test_no_job_ahead_waits_for_a_better_node_where_nobody_may_wait() -> None:
    sim = at_first_decision(hand_case(grid_cluster(2, 1, speed=np.array([4.0, 1.0])), FAST_AND_SLOW))
    list_candidates(sim, 0)
    assert imagined(sim, 0)[1] == [(0, 0.0, 10.0), (1, 0.0, 100.0), (2, 10.0, 12.0)]


@pytest.mark.parametrize(("short", "last"), [(3, (4, 5.0, 30.0)), (4, (5, 0.0, 100.0))])
def test_a_job_ahead_looks_at_no_more_than_four_ends(short: int, last: Ahead) -> None:
    # The fast node is free at 5 s, after as many other ends as there are short jobs, which take slow nodes.
    jobs = [(1, 20.0, 0.0), *((1, 1.0 + job, 0.0) for job in range(short)), (1, 100.0, 0.0)]
    cluster = grid_cluster(6, 1, speed=np.array([4.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    sim = at_first_decision(hand_case(cluster, jobs, waiting=True))
    list_candidates(sim, 0)
    assert imagined(sim, 0)[1][-1] == last
