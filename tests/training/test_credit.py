"""What decisions are credited with: against plain sums over all jobs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.networks.sampled_runs import SampledRuns
from longshore.cluster.model.outcome import RunMetrics, slowdown_base_s, weighting_of
from longshore.training.credit import (
    CreditBaseline,
    JobTimes,
    credits_of,
    divided_by_spread,
    feature_gaps_of,
    remaining_job_time_s,
    write_credits,
)
from longshore.training.group import SUMS, job_weights, relative_cost

SECONDS = st.floats(0.0, 1e6)
JOBS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6)


def integrated_s(finish_s: np.ndarray, submit_s: np.ndarray, now_s: float, horizon_s: float) -> float:
    """Return the same by adding up the jobs in the system over small steps of time."""
    ends = np.linspace(now_s, max(finish_s.max(), now_s), 200_001)
    middle = (ends[1:] + ends[:-1]) / 2.0
    inside = ((submit_s[:, None] <= middle) & (middle < finish_s[:, None])).sum(axis=0)
    return float((inside * np.exp(-(middle - now_s) / horizon_s) * np.diff(ends)).sum())


@pytest.mark.parametrize("horizon_s", [3.0, 50.0, math.inf])
def test_what_is_still_to_come_is_the_integral_of_the_jobs_in_the_system(horizon_s: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        submit_s = rng.uniform(0.0, 40.0, 7)
        finish_s = submit_s + rng.uniform(0.0, 30.0, 7)
        now_s = float(rng.uniform(0.0, 60.0))
        found = remaining_job_time_s(finish_s, submit_s, 7, now_s, horizon_s, np.ones(7))
        assert found == pytest.approx(integrated_s(finish_s, submit_s, now_s, horizon_s), rel=1e-3, abs=1e-2)


@given(JOBS, SECONDS, st.floats(1.0, 1e6))
def test_later_time_never_weighs_more(jobs: list[tuple[float, float]], now_s: float, horizon_s: float) -> None:
    submit_s, finish_s = np.array([it[0] for it in jobs]), np.array([it[0] + it[1] for it in jobs])
    alike = np.ones(len(jobs))
    shorter = remaining_job_time_s(finish_s, submit_s, len(jobs), now_s, horizon_s, alike)
    longer = remaining_job_time_s(finish_s, submit_s, len(jobs), now_s, 2.0 * horizon_s, alike)
    whole = remaining_job_time_s(finish_s, submit_s, len(jobs), now_s, math.inf, alike)
    tiny = 1e-300  # numbers below have fewer digits
    assert 0.0 <= shorter <= longer * (1.0 + 1e-9) + tiny <= whole * (1.0 + 1e-9) ** 2 + 3.0 * tiny


@pytest.mark.parametrize("runs", [2, 5])
def test_at_the_beginning_a_run_earns_what_it_is_better_than_the_others(runs: int) -> None:
    rng = np.random.default_rng(runs)
    submit_s = np.repeat(rng.uniform(0.0, 10.0, (3, 4)), runs, axis=0)
    finish_s = submit_s + rng.uniform(1.0, 20.0, submit_s.shape)
    row = np.arange(3 * runs, dtype=np.int32)
    earned = np.zeros(row.size)
    jobs, horizons = np.full(row.size, 4, np.int32), np.full(row.size, math.inf)
    write_credits(row, np.zeros(row.size), finish_s, submit_s, jobs, runs, horizons, np.ones_like(submit_s), earned)
    cost = (finish_s - submit_s).sum(axis=1).reshape(3, runs)
    others = (cost.sum(axis=1, keepdims=True) - cost) / (runs - 1)
    assert earned == pytest.approx((others - cost).reshape(-1))


def test_what_came_before_a_decision_earns_it_nothing() -> None:
    """Two runs that differ only in a job that both have ended at the moment of the decision."""
    submit_s, jobs = np.zeros((2, 2)), np.full(2, 2, np.int32)
    finish_s = np.array([[5.0, 30.0], [9.0, 30.0]])
    earned = np.ones(2)
    row, now_s = np.arange(2, dtype=np.int32), np.full(2, 10.0)
    write_credits(row, now_s, finish_s, submit_s, jobs, 2, np.full(2, math.inf), np.ones((2, 2)), earned)
    assert not earned.any()


@given(JOBS, st.lists(st.floats(1.0, 1e6), min_size=6, max_size=6), st.lists(SECONDS, max_size=5))
def test_what_decisions_take_off_of_weighted_time_sums_to_the_slowdown(
    jobs: list[tuple[float, float]], work: list[float], moments: list[float]
) -> None:
    """From before the first submission to after the last end, whenever was decided: the sum of JCT over work."""
    submit_s, jct_s = np.array([it[0] for it in jobs]), np.array([it[1] for it in jobs])
    weight, finish_s = 1.0 / slowdown_base_s(np.array(work[: len(jobs)])), submit_s + jct_s
    times = [0.0, *sorted(moments), 3e6]
    left = [remaining_job_time_s(finish_s, submit_s, len(jobs), now_s, math.inf, weight) for now_s in times]
    taken = [before - after for before, after in itertools.pairwise(left)]
    assert all(it >= -1e-6 for it in taken)
    assert sum(taken) == pytest.approx(((finish_s - submit_s) * weight).sum(), abs=1e-6)


@pytest.mark.parametrize("text", ["slowdown", "mean-jct", "mean-jct:1,slowdown:3", "slowdown:1,p99-jct:1"])
def test_at_the_beginning_a_run_earns_what_its_objective_is_better_than_the_others(text: str) -> None:
    """By the figures of whole runs, relative to the group's means; of what is no sum over jobs nothing is earned."""
    rng, runs, weighting = np.random.default_rng(4), 3, weighting_of(text)
    submit_s, work_s = (np.repeat(rng.uniform(0.0, high, (2, 4)), runs, axis=0) for high in (10.0, 5000.0))
    jct_s = rng.uniform(100.0, 9000.0, submit_s.shape)
    jobs = np.full(2 * runs, 4, np.int32)
    times = JobTimes(submit_s + jct_s, submit_s, jobs, work_s)
    nothing = np.zeros(2 * runs)
    figures = RunMetrics(*([nothing] * len(RunMetrics._fields)))._replace(
        mean_jct_s=jct_s.mean(axis=1), mean_slowdown=(jct_s / np.maximum(work_s, 600.0)).mean(axis=1)
    )
    record = record_of(list(range(2 * runs)), [0.0] * (2 * runs), np.zeros((2 * runs, 1)))
    mean_s = figures.mean_jct_s.reshape(2, runs).mean(axis=1).repeat(runs)
    earned = credits_of(record, times, runs, mean_s, math.inf, job_weights(weighting, times, figures, runs))
    sums = {name: weighting.weight(name) for name in SUMS}
    cost = relative_cost(sums, figures, runs) / sum(sums.values())
    others = (cost.sum(axis=1, keepdims=True) - cost) / (runs - 1)
    assert earned == pytest.approx((others - cost).reshape(-1))
    if text == "mean-jct":  # the very numbers of what is usual
        assert np.array_equal(earned, credits_of(record, times, runs, mean_s, math.inf))


def test_gains_over_their_spread() -> None:
    assert np.square(divided_by_spread(np.array([3.0, -1.0, 2.0]))).mean() == pytest.approx(1.0)
    assert not divided_by_spread(np.zeros(3)).any()


def record_of(row: list[int], now_s: list[float], observations: np.ndarray) -> SampledRuns:
    """Return a record of which only who decided when, and what was seen, is of use."""
    count = len(row)
    whole = np.zeros(count)
    return SampledRuns(
        observations=observations.astype(np.float32), logits=np.zeros((count, 1), np.float32),
        candidates=np.ones(count, np.int32), chosen=np.zeros(count, np.int64),
        log_probability=whole.astype(np.float32), row=np.array(row, np.int32), now_s=np.array(now_s), unit_s=whole,
        submitted=np.zeros(count, np.int32), to_go=whole.astype(np.float32), size=np.array([count]),
    )  # fmt: skip


@given(st.lists(st.lists(st.floats(0.0, 100.0), max_size=6), min_size=2, max_size=8), st.sampled_from([2, 4]))
def test_what_is_seen_is_compared_with_what_the_other_runs_saw_last(times: list[list[float]], runs: int) -> None:
    times = [sorted(it) for it in times[: len(times) // runs * runs]]
    row = [run for run, own in enumerate(times) for _ in own]
    now_s = [at for own in times for at in own]
    seen = np.random.default_rng(0).standard_normal((len(row), 3)).astype(np.float32)
    expected = np.zeros((len(row), 2))
    for at, (mine, moment) in enumerate(zip(row, now_s, strict=True)):
        others = []
        for run in range(mine // runs * runs, mine // runs * runs + runs):
            made = [place for place, one in enumerate(row) if one == run]
            if run != mine and made:
                others.append(([made[0]] + [place for place in made if now_s[place] <= moment])[-1])
        expected[at] = seen[at, :2] - (seen[others, :2].mean(axis=0) if others else 0.0)
    assert np.allclose(feature_gaps_of(record_of(row, now_s, seen), runs, 2), expected, atol=1e-6)


def test_what_the_state_foresees_is_taken_off_once_it_was_learned() -> None:
    rng = np.random.default_rng(1)
    problem = rng.integers(0, 2, 4000)
    gap, weights = rng.standard_normal((4000, 5)), rng.standard_normal((2, 5))
    earned = (gap * weights[problem]).sum(axis=1)
    baseline = CreditBaseline(2, 5)
    assert np.array_equal(baseline.subtract_and_fit(earned, gap, problem), earned)  # nothing is known at first
    # Weights are held back, so that of independent features about half is subtracted.
    assert baseline.subtract_and_fit(earned, gap, problem).var() < 0.3 * earned.var()


def test_what_is_taken_off_does_not_depend_on_what_this_update_earned() -> None:
    """Else a baseline would hide a part of what a good decision brings."""
    rng = np.random.default_rng(2)
    problem, gap = np.zeros(50, np.intp), rng.standard_normal((50, 5))
    taken = []
    for _ in range(2):
        baseline, before = CreditBaseline(1, 5), np.random.default_rng(3)
        baseline.subtract_and_fit(before.standard_normal(50), before.standard_normal((50, 5)), problem)
        earned = rng.standard_normal(50)
        taken.append(earned - baseline.subtract_and_fit(earned, gap, problem))
    assert taken[0] == pytest.approx(taken[1])


def test_features_that_never_differ_take_nothing_off() -> None:
    baseline, problem = CreditBaseline(1, 3), np.zeros(20, np.intp)
    earned = np.random.default_rng(4).standard_normal(20)
    for _ in range(3):
        assert np.array_equal(baseline.subtract_and_fit(earned, np.zeros((20, 3)), problem), earned)
