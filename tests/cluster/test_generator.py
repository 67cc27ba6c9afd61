"""Generated workloads against the traces and closed forms that they are made from."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.workload import Workload, describe, workload_of
from longshore.cluster.workloads.generator import (
    PROFILES,
    QUANTILE_LEVELS,
    Arrivals,
    Profile,
    SizeClass,
    fit,
    generate,
    weibull_shape,
)

TRACES = Path(__file__).parents[2] / ".." / "shared" / "data" / "traces"
FILES = {
    "philly": "philly_vc_2869ce.muri.csv",
    "philly-long": "philly_vc_7f04ca.muri.csv",
    "itp": "itp_cluster03.csv",
    "itp-short": "itp_cluster06.csv",
}
ONE_RUN = Profile((SizeClass(4, 1.0, (100.0,) * 10),), repeat=0.0, work_memory=0.0, gap_cv=1.0, gap_memory=0.0)


def trace(name: str) -> Workload:
    """Return the trace of a profile, read without Longshore's readers."""
    path = TRACES / FILES[name]
    if not path.exists():
        pytest.skip(f"the trace {path.name} is not here; it is part of the data kept beside the project")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    milli = 1000.0 if "submit_time" in rows[0] else 1.0
    submit = [float(row.get("submit_time") or row["submission_time"]) / milli for row in rows]
    work = [float(row["duration"]) / milli for row in rows]
    gpus = [int(row["num_gpu"]) for row in rows]
    ids = tuple(row["job_id"] for row in rows)
    return workload_of(ids, np.array(gpus, dtype=np.int32), np.array(work), np.array(submit))


def many(name: str, jobs: int = 60000, arrivals: Arrivals = "profile") -> Workload:
    rng = np.random.default_rng(1)
    return generate(PROFILES[name], jobs, load=0.8, cluster_gpus=64, rng=rng, arrivals=arrivals)


@pytest.mark.parametrize("name", PROFILES)
def test_the_profiles_are_what_fit_says_of_the_traces(name: str) -> None:
    fitted, kept = fit(trace(name)), PROFILES[name]
    for ours, theirs in zip(kept.sizes, fitted.sizes, strict=True):
        assert ours.gpus == theirs.gpus
        assert np.isclose(ours.share, theirs.share, atol=1e-4)
        assert np.allclose(ours.work_quantiles_s, theirs.work_quantiles_s, rtol=5.1e-3)
    for field in ("repeat", "work_memory", "gap_cv", "gap_memory"):
        assert np.isclose(getattr(kept, field), getattr(fitted, field), atol=5.1e-3), field


@pytest.mark.parametrize("name", PROFILES)
def test_generated_jobs_have_the_quantiles_of_the_trace(name: str) -> None:
    real, made = trace(name), many(name)
    levels = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
    assert np.allclose(np.log(np.quantile(made.work_s, levels)), np.log(np.quantile(real.work_s, levels)), atol=0.45)
    assert np.isclose(made.work_s.mean(), real.work_s.mean(), rtol=0.25)
    for gpus in np.unique(real.gpus):
        assert np.isclose((made.gpus == gpus).mean(), (real.gpus == gpus).mean(), atol=0.03)
    gaps = [np.diff(workload.submit_s) for workload in (real, made)]
    # In units of the mean gap; the lower half differs by design (seconds inside a burst).
    upper = [np.quantile(gap / gap.mean(), [0.9, 0.95, 0.99]) for gap in gaps]
    assert np.allclose(upper[1], upper[0], rtol=0.35)
    assert np.isclose((np.diff(made.gpus) == 0).mean(), (np.diff(real.gpus) == 0).mean(), atol=0.03)


@pytest.mark.parametrize("name", PROFILES)
def test_fit_finds_back_the_profile_it_generated_from(name: str) -> None:
    kept, found = PROFILES[name], fit(many(name))
    assert [size.gpus for size in found.sizes] == [size.gpus for size in kept.sizes]
    assert np.isclose(found.repeat, kept.repeat, atol=0.03)
    assert np.isclose(found.work_memory, kept.work_memory, atol=0.12)
    assert np.isclose(found.gap_memory, kept.gap_memory, atol=0.04)
    assert np.isclose(found.gap_cv, kept.gap_cv, rtol=0.25)


@given(
    st.sampled_from(sorted(PROFILES)), st.integers(2, 60), st.floats(0.05, 3), st.integers(1, 500), st.integers(0, 99)
)
def test_the_load_is_met_and_no_job_outgrows_the_cluster(
    name: str, jobs: int, load: float, cluster_gpus: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    made = generate(PROFILES[name], jobs, load=load, cluster_gpus=cluster_gpus, rng=rng)
    assert np.isclose(describe(made).offered_load(cluster_gpus), load)
    assert made.gpus.max() <= cluster_gpus
    assert made.submit_s[0] == 0
    assert (np.diff(made.submit_s) >= 0).all()
    assert (made.work_s > 0).all()
    assert made.jobs == jobs
    assert made.gpus.dtype == np.int32


def test_the_same_seed_gives_the_same_workload() -> None:
    first, again = many("itp", 50), many("itp", 50)
    assert np.array_equal(first.work_s, again.work_s)
    assert np.array_equal(first.submit_s, again.submit_s)


def test_poisson_gaps_are_exponential_and_batches_come_at_once() -> None:
    gaps = np.diff(many("philly", arrivals="poisson").submit_s)
    levels = np.array([0.1, 0.5, 0.9, 0.99])
    assert np.allclose(np.quantile(gaps / gaps.mean(), levels), -np.log1p(-levels), rtol=0.05)
    assert not many("philly", 100, "batch").submit_s.any()


def test_a_profile_of_variation_1_without_memory_is_poisson() -> None:
    gaps = np.diff(generate(ONE_RUN, 50000, load=1.0, cluster_gpus=8, rng=np.random.default_rng(0)).submit_s)
    assert np.isclose(gaps.std() / gaps.mean(), 1, atol=0.02)


@given(st.floats(0.05, 100))
def test_the_weibull_shape_has_the_variation_that_was_asked(variation: float) -> None:
    shape = weibull_shape(variation)
    second_over_square = math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape))
    assert np.isclose(second_over_square - 1, variation**2, rtol=1e-6)


def test_a_job_alone_can_be_generated() -> None:
    made = generate(ONE_RUN, 1, load=0.5, cluster_gpus=2, rng=np.random.default_rng(0))
    assert (made.gpus.tolist(), made.submit_s.tolist()) == ([2], [0])
    assert np.isclose(made.work_s[0], 100)


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"load": 0.0}, {"load": math.nan}, {"cluster_gpus": 0}])
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    numbers = {"jobs": 3, "load": 1.0, "cluster_gpus": 8} | wrong
    with pytest.raises(ValueError, match="positive"):
        generate(ONE_RUN, rng=np.random.default_rng(0), **numbers)  # type: ignore[arg-type]


def test_fit_needs_jobs_over_some_time() -> None:
    batch = many("itp", 30, "batch")
    with pytest.raises(ValueError, match="at least 3 jobs over some time"):
        fit(batch)


def test_every_profile_is_a_distribution() -> None:
    for profile in PROFILES.values():
        assert np.isclose(sum(size.share for size in profile.sizes), 1, atol=1e-3)
        for size in profile.sizes:
            assert len(size.work_quantiles_s) == len(QUANTILE_LEVELS)
            assert list(size.work_quantiles_s) == sorted(size.work_quantiles_s)
