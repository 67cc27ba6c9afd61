"""Estimates that differ from the truth."""

import numpy as np
import pytest

from longshore.cluster.estimates import ESTIMATE_KINDS, EstimateKind, with_estimates
from longshore.cluster.workload import Workload, workload_of


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


def test_the_class_mean_is_geometric_over_jobs_of_the_same_size() -> None:
    gpus, work_s = np.array([1, 8, 1, 8, 2], dtype=np.int32), np.array([10.0, 5.0, 1000.0, 5.0, 7.0])
    jobs = workload_of(tuple("abcde"), gpus, work_s, np.zeros(5))
    assert np.allclose(with_estimates(jobs, "class-mean").estimate_s, [100, 5, 100, 5, 7])


def test_errors_without_randomness_or_of_unknown_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="need an rng"):
        with_estimates(workload(3), "log-normal", sigma=0.5)
    with pytest.raises(ValueError, match="got -1"):
        with_estimates(workload(3), "log-normal", sigma=-1, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="'guess' is not a kind of estimate; known: exact, log-normal, class-mean"):
        with_estimates(workload(3), "guess")  # type: ignore[arg-type]
