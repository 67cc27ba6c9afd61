"""Estimates that differ from the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import Scenarios, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import Workload, workload_of
from longshore.cluster.workloads.estimates import (
    DEFAULT_ESTIMATE_S,
    ESTIMATE_KINDS,
    MOST_SIGMA,
    EstimateKind,
    with_estimates,
    with_scenario_estimates,
)


def workload(jobs: int) -> Workload:
    rng = np.random.default_rng(0)
    gpus = rng.choice([1, 2, 8], jobs).astype(np.int32)
    return workload_of(tuple(map(str, range(jobs))), gpus, rng.lognormal(8, 2, jobs), np.zeros(jobs))


@pytest.mark.parametrize("kind", ESTIMATE_KINDS)
def test_estimates_change_and_work_does_not(kind: EstimateKind) -> None:
    jobs = workload(50)
    estimated = with_estimates(jobs, kind, sigma=0.5, rng=np.random.default_rng(1))
    assert np.array_equal(estimated.work_s, jobs.work_s)
    assert np.array_equal(estimated.estimate_s, jobs.work_s) == (kind == "exact")


def test_log_normal_errors_have_median_1_and_the_sigma_asked_for() -> None:
    jobs = workload(40000)
    estimated = with_estimates(jobs, "log-normal", sigma=0.5, rng=np.random.default_rng(1))
    error = np.log(estimated.estimate_s / jobs.work_s)
    assert np.isclose(np.median(error), 0, atol=0.01)
    assert np.isclose(error.std(), 0.5, rtol=0.02)


def test_sigma_0_is_exact() -> None:
    jobs = workload(20)
    estimated = with_estimates(jobs, "log-normal", sigma=0.0, rng=np.random.default_rng(1))
    assert np.array_equal(estimated.estimate_s, jobs.work_s)


def test_the_class_mean_is_geometric_over_jobs_of_the_same_size_that_had_ended() -> None:
    gpus, work_s = np.array([1, 1, 8, 1, 8, 2], dtype=np.int32), np.array([10.0, 1000.0, 5.0, 7.0, 3.0, 9.0])
    submit_s = np.array([0.0, 5.0, 20.0, 30.0, 40.0, 2000.0])
    jobs = workload_of(tuple("abcdef"), gpus, work_s, submit_s)
    expected_s = [DEFAULT_ESTIMATE_S, DEFAULT_ESTIMATE_S, 10, 10, 5, (10 * 1000 * 5 * 7 * 3) ** 0.2]
    assert np.allclose(with_estimates(jobs, "class-mean").estimate_s, expected_s)


def plain_class_means_s(jobs: Workload) -> list[float]:
    """Return the estimates as the definition has them, one job at a time."""
    estimates_s = []
    for job in range(jobs.jobs):
        ended = [i for i in range(jobs.jobs) if jobs.submit_s[i] + jobs.work_s[i] < jobs.submit_s[job]]
        alike = [i for i in ended if jobs.gpus[i] == jobs.gpus[job]]
        logs = [math.log(jobs.work_s[i]) for i in alike or ended] or [math.log(DEFAULT_ESTIMATE_S)]
        estimates_s.append(math.exp(sum(logs) / len(logs)))
    return estimates_s


DRAWN_JOBS = st.lists(
    st.tuples(st.sampled_from((1, 2, 8)), st.floats(1e-3, 1e6), st.sampled_from((0.0, 1e-3, 10.0, 1e3, 1e6))),
    min_size=1,
    max_size=20,
)


def drawn_workload(drawn: list[tuple[int, float, float]]) -> Workload:
    gpus, work_s, gaps_s = (np.array(column) for column in zip(*drawn, strict=True))
    return workload_of(("a",) * len(drawn), gpus.astype(np.int32), work_s, np.cumsum(gaps_s))


@given(DRAWN_JOBS)
def test_class_means_are_those_of_the_definition(drawn: list[tuple[int, float, float]]) -> None:
    jobs = drawn_workload(drawn)
    assert np.allclose(with_estimates(jobs, "class-mean").estimate_s, plain_class_means_s(jobs))
    (both,) = with_scenario_estimates(stacked([jobs]), "class-mean").estimate_s
    assert np.array_equal(both, with_estimates(jobs, "class-mean").estimate_s)


@given(DRAWN_JOBS, st.data())
def test_the_class_mean_does_not_know_the_work_of_jobs_that_have_not_ended(
    drawn: list[tuple[int, float, float]], data: st.DataObject
) -> None:
    jobs = drawn_workload(drawn)
    at = data.draw(st.integers(0, len(drawn) - 1))
    runs_on = jobs.submit_s + jobs.work_s >= jobs.submit_s[at]
    changed = replace(jobs, work_s=np.where(runs_on, 2 * jobs.work_s, jobs.work_s))
    found_s, others_s = (with_estimates(each, "class-mean").estimate_s for each in (jobs, changed))
    assert np.array_equal(found_s[at], others_s[at])


def test_of_a_batch_nothing_is_known() -> None:
    assert np.allclose(with_estimates(workload(50), "class-mean").estimate_s, DEFAULT_ESTIMATE_S)


def test_errors_without_randomness_or_of_unknown_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="need an rng"):
        with_estimates(workload(3), "log-normal", sigma=0.5)
    with pytest.raises(ValueError, match="got -1"):
        with_estimates(workload(3), "log-normal", sigma=-1, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"a sigma from 0 to 5; got 5\.1"):
        with_estimates(workload(3), "log-normal", sigma=5.1, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="'guess' is not a kind of estimate; known: exact, log-normal, class-mean"):
        with_estimates(workload(3), "guess")  # type: ignore[arg-type]


@given(st.sampled_from(ESTIMATE_KINDS), st.floats(0, MOST_SIGMA), st.lists(st.floats(1e-300, 1e11), min_size=1))
def test_no_estimate_of_a_job_with_work_is_0_or_infinite(kind: EstimateKind, sigma: float, work_s: list[float]) -> None:
    jobs = len(work_s)
    ones = np.ones(jobs, dtype=np.int32)
    asked = workload_of(("a",) * jobs, ones, np.array(work_s), np.zeros(jobs))
    found_s = with_estimates(asked, kind, sigma=sigma, rng=np.random.default_rng(0)).estimate_s
    assert ((found_s > 0) & (found_s < np.inf)).all()


@pytest.mark.parametrize("estimate_s", [0.0, -1.0, np.inf, np.nan])
def test_estimates_that_could_never_be_outlived_are_refused(estimate_s: float) -> None:
    wrong = replace(workload(3), estimate_s=np.array([5.0, estimate_s, 5.0]))
    with pytest.raises(InputError, match=rf"job 1 has an estimate of {estimate_s:g} s; times must be finite"):
        stacked([wrong])


def stacked(workloads: list[Workload]) -> Scenarios:
    cluster = grid_cluster(1, 8)
    rates = np.zeros(fault_sources(cluster))
    return stack(cluster, workloads, fault_seed=np.arange(len(workloads)), source_rate_per_s=rates)


def test_scenarios_of_one_workload_share_its_estimates_whatever_else_is_run() -> None:
    first, second = workload(4), replace(workload(2), gpus=np.array([3, 3], dtype=np.int32))

    def estimates_s(*workloads: Workload) -> np.ndarray:
        rng = np.random.default_rng(1)
        return with_scenario_estimates(stacked(list(workloads)), "log-normal", sigma=0.5, rng=rng).estimate_s

    found_s = estimates_s(second, first, second)
    assert np.array_equal(found_s[0], found_s[2])
    assert not found_s[0, 2:].any()
    assert np.array_equal(found_s[0, :2], estimates_s(second)[0])
    assert (found_s[1] > 0).all()
