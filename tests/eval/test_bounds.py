"""Lower bounds: below the true optimum of small cases, below what any policy reaches, exact where that is known."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.errors import EndlessError
from longshore.cluster.model.problem import Problem, Rules, Scenarios, fault_sources, stack
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.eval.bounds import lower_bounds, shortest_remaining_ends_s
from longshore.eval.comparison import run_all
from tests.batches import RULES, fault_free
from tests.bounds import optimal_makespan_s, optimal_mean_jct_s
from tests.strategies import Case, cases, planned_cases
from tests.support.budgets import examples

SLACK = 1 + 1e-9


class Bounds(NamedTuple):
    makespan_s: NDArray[np.float64]
    mean_jct_s: NDArray[np.float64]


def both_bounds(problem: Problem) -> Bounds:
    return Bounds(lower_bounds(problem, "makespan_s"), lower_bounds(problem, "mean_jct_s"))


def jobs_on(cluster: Cluster, jobs: list[tuple[int, float, float]]) -> Scenarios:
    """Return one scenario of jobs: GPUs, work, submission."""
    gpus, work_s, submit_s = (np.array(column) for column in zip(*sorted(jobs, key=lambda job: job[2]), strict=True))
    workload = workload_of(tuple(map(str, range(len(jobs)))), gpus, work_s, submit_s)
    return stack(cluster, [workload], fault_seed=np.array([0]), source_rate_per_s=np.zeros(fault_sources(cluster)))


def bounds_of(cluster: Cluster, scenarios: Scenarios, rules: Rules = RULES) -> Bounds:
    return both_bounds(Problem(cluster, scenarios, fault_free(cluster), rules))


@pytest.mark.parametrize(
    ("speed", "gpus_per_node", "jobs", "makespan_s", "mean_jct_s"),
    [
        ([1.0, 2.0], 2, [(1, 8.0, 0.0)], 4.0, 4.0),  # alone, on the fast node
        ([1.0, 2.0], 2, [(3, 8.0, 0.0)], 10.0, 10.0),  # both nodes, the slow one's pace, 1.25 for the second node
        ([1.0], 1, [(1, 3.0, 0.0), (1, 1.0, 0.0), (1, 2.0, 0.0)], 6.0, 10 / 3),  # shortest first on one GPU
        ([1.0], 1, [(1, 4.0, 0.0), (1, 1.0, 1.0)], 5.0, 3.0),  # as if it could be interrupted: 5 and 2 - 1
        ([1.0], 4, [(3, 2.0, 0.0), (3, 2.0, 0.0), (3, 2.0, 0.0)], 6.0, 4.0),  # no two beside each other
        ([1.0, 1.0], 1, [(1, 5.0, 0.0), (1, 5.0, 0.0)], 5.0, 5.0),  # enough GPUs for all
        ([1.0], 1, [(1, 2.0, 0.0), (1, 2.0, 100.0)], 102.0, 2.0),  # later jobs bind later
    ],
)
def test_the_bound_is_the_optimum_where_that_is_known(
    speed: list[float], gpus_per_node: int, jobs: list[tuple[int, float, float]], makespan_s: float, mean_jct_s: float
) -> None:
    cluster = grid_cluster(len(speed), gpus_per_node, speed=np.array(speed))
    found = bounds_of(cluster, jobs_on(cluster, jobs))
    assert found.makespan_s[0] == pytest.approx(makespan_s, rel=1e-6)
    assert found.mean_jct_s[0] == pytest.approx(mean_jct_s, rel=1e-6)


def test_a_ring_on_the_reference_node_takes_its_work() -> None:
    cluster = grid_cluster(2, 8)
    ring = RULES._replace(ring=True, reference_gpus=8)
    found = bounds_of(cluster, jobs_on(cluster, [(8, 3600.0, 0.0)]), ring)
    assert found.makespan_s[0] == pytest.approx(3600.0)
    across = bounds_of(cluster, jobs_on(cluster, [(16, 3600.0, 0.0)]), ring)
    assert across.makespan_s[0] == pytest.approx(3600.0)  # its reference is a ring over the nodes' network


@st.composite
def small(draw: st.DrawFn, *, batch: bool) -> tuple[Cluster, Scenarios]:
    """One to three nodes of two speeds, one to five jobs in whole seconds."""
    nodes, gpus_per_node = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    speed = draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=nodes, max_size=nodes))
    cluster = grid_cluster(nodes, gpus_per_node, speed=np.array(speed))
    when = st.just(0.0) if batch else st.sampled_from((0.0, 0.0, 3.0, 7.0, 20.0))
    job = st.tuples(st.integers(1, nodes * gpus_per_node), st.integers(1, 20).map(float), when)
    return cluster, jobs_on(cluster, draw(st.lists(job, min_size=1, max_size=5)))


@settings(max_examples=examples(60))
@given(small(batch=True), st.sampled_from((0.0, 0.25)))
def test_no_schedule_ends_before_the_makespan_bound(made: tuple[Cluster, Scenarios], penalty: float) -> None:
    cluster, scenarios = made
    rules = RULES._replace(node_penalty=penalty)
    optimum_s = optimal_makespan_s(cluster, scenarios, 0, rules)
    assert bounds_of(cluster, scenarios, rules).makespan_s[0] <= optimum_s + 0.002  # run times are cut to milliseconds


@settings(max_examples=examples(60))
@given(small(batch=False), st.sampled_from((0.0, 0.25)))
def test_no_schedule_has_a_mean_jct_below_the_bound(made: tuple[Cluster, Scenarios], penalty: float) -> None:
    cluster, scenarios = made
    rules = RULES._replace(node_penalty=penalty)
    optimum_s = optimal_mean_jct_s(cluster, scenarios, 0, rules)
    assert bounds_of(cluster, scenarios, rules).mean_jct_s[0] <= optimum_s + 0.002


@settings(max_examples=examples(80))
@given(cases() | planned_cases())
def test_no_heuristic_is_below_the_bounds_whatever_fails(case: Case) -> None:
    problem = Problem(case.cluster, case.scenarios, case.process, case.rules._replace(limit_s=1e7))
    found, jobs = both_bounds(problem), case.scenarios.jobs
    real = np.arange(case.scenarios.gpus.shape[1]) < jobs[:, None]
    try:
        outcomes = run_all(problem, list(HEURISTICS.values()))
    except EndlessError:
        return
    for name, outcome in outcomes.items():
        ended = outcome.finished >= jobs
        mean_jct_s = np.where(real, outcome.finish_s - case.scenarios.submit_s, 0.0).sum(axis=1) / jobs
        assert (outcome.makespan_s >= found.makespan_s / SLACK)[ended].all(), name
        assert (mean_jct_s >= found.mean_jct_s / SLACK)[ended].all(), name


@settings(max_examples=examples(60))
@given(small(batch=False), st.floats(1.0, 4.0))
def test_more_work_never_lowers_a_bound(made: tuple[Cluster, Scenarios], factor: float) -> None:
    cluster, scenarios = made
    short, long = (bounds_of(cluster, scenarios._replace(work_s=scenarios.work_s * times)) for times in (1.0, factor))
    assert long.makespan_s[0] >= short.makespan_s[0] / SLACK
    assert long.mean_jct_s[0] >= short.mean_jct_s[0] * 0.98  # prices come from a coarse grid of time


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=7))
def test_shortest_remaining_time_is_that_of_a_second_by_second_run(jobs: list[tuple[int, int]]) -> None:
    jobs = sorted(jobs)
    left, total, now = [run for _, run in jobs], 0, 0
    while any(left):
        ready = [index for index, (release, _) in enumerate(jobs) if release <= now and left[index]]
        now += 1
        if ready:
            first = min(ready, key=lambda index: left[index])
            left[first] -= 1
            total += now if left[first] == 0 else 0
    release_s, run_s = (np.array(column, dtype=np.float64) for column in zip(*jobs, strict=True))
    assert shortest_remaining_ends_s(release_s, run_s) == total


def test_a_workload_that_is_padded_has_the_bounds_of_its_own_jobs() -> None:
    cluster = grid_cluster(2, 2)
    made = [
        workload_of(tuple("ab"[:count]), np.array([1, 2][:count]), np.array([9.0, 5.0][:count]), np.arange(1.0 * count))
        for count in (2, 1)
    ]
    sources = np.zeros(fault_sources(cluster))
    both = bounds_of(cluster, stack(cluster, made, fault_seed=np.arange(2), source_rate_per_s=sources))
    alone = bounds_of(cluster, stack(cluster, made[1:], fault_seed=np.arange(1), source_rate_per_s=sources))
    assert both.makespan_s[1] == alone.makespan_s[0] == pytest.approx(9.0)
    assert both.mean_jct_s[1] == alone.mean_jct_s[0] == pytest.approx(9.0)
