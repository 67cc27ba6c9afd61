import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longshore.cluster.model.intervals import holm_adjusted, ratio_estimates, ratio_p_values, unit_sums
from tests.support.budgets import examples

FACTOR = st.floats(0.01, 100.0)


def test_the_interval_of_a_normal_sample_is_close_to_the_t_interval() -> None:
    sample = np.random.default_rng(0).normal(50.0, 5.0, (1, 80))
    found = ratio_estimates(sample, np.ones_like(sample), confidence=0.95)
    low, high = stats.t.interval(0.95, 79, sample.mean(), stats.sem(sample[0]))
    assert found.value[0] == pytest.approx(sample.mean())
    assert found.low[0] == pytest.approx(low, abs=0.12 * (high - low))
    assert found.high[0] == pytest.approx(high, abs=0.12 * (high - low))


def test_intervals_of_skewed_samples_cover_the_true_mean_about_as_often_as_they_say() -> None:
    samples = np.random.default_rng(3).exponential(1.0, (400, 40))
    found = ratio_estimates(samples, np.ones_like(samples), confidence=0.9)
    assert 0.84 < np.mean((found.low < 1.0) & (found.high > 1.0)) < 0.95


def test_dependent_scenarios_widen_the_interval_when_they_are_drawn_together() -> None:
    window = np.repeat(np.arange(20), 10)
    values = np.random.default_rng(4).normal(0.0, 1.0, 20)[window][None] + 10.0
    together = ratio_estimates(unit_sums(values, window), np.full((1, 20), 10.0), confidence=0.95)
    apart = ratio_estimates(values, np.ones_like(values), confidence=0.95)
    # Ten equal copies of a value carry the information of one: the width differs by the root of ten.
    assert (together.high - together.low)[0] == pytest.approx(np.sqrt(10) * (apart.high - apart.low)[0], rel=0.15)


@settings(max_examples=examples(10))
@given(FACTOR, st.integers(2, 12))
def test_a_constant_ratio_is_its_own_interval(factor: float, units: int) -> None:
    below = np.arange(1.0, units + 1)[None]
    found = ratio_estimates(factor * below, below, confidence=0.95)
    assert np.allclose(found, factor, rtol=1e-9)


@settings(max_examples=examples(10))
@given(FACTOR)
def test_the_interval_of_a_ratio_does_not_depend_on_its_unit(factor: float) -> None:
    above = np.random.default_rng(5).lognormal(0.0, 0.5, (2, 15))
    below = np.random.default_rng(6).lognormal(0.0, 0.5, (2, 15))
    plain = ratio_estimates(above, below, confidence=0.95)
    scaled = ratio_estimates(above * factor, below * factor, confidence=0.95)
    assert np.allclose(plain, scaled, rtol=1e-9)


def test_three_units_get_the_t_interval_of_their_differences() -> None:
    found = ratio_estimates(np.array([[-1.0, -2.0, -3.0]]), np.ones((1, 3)), confidence=0.95)
    # Mean -2, standard deviation 1, so the standard error is 1 / sqrt(3) = 0.57735; t(0.975, 2) = 4.30265.
    assert np.allclose([part[0] for part in found], [-2.0, -2.0 - 2.48414, -2.0 + 2.48414], atol=1e-5)


def test_three_units_of_unequal_weight_get_the_t_interval_of_the_linearised_ratio() -> None:
    found = ratio_estimates(np.array([[2.0, 4.0, 3.0]]), np.array([[1.0, 1.0, 4.0]]), confidence=0.95)
    # r = 9 / 6 = 1.5; residuals 0.5, 2.5, -3; s = sqrt(3 / 2 * 15.5) / 6 = 0.803638; times 4.30265 is 3.457774.
    assert np.allclose([part[0] for part in found], [1.5, 1.5 - 3.457774, 1.5 + 3.457774], atol=1e-5)


def test_intervals_of_few_units_cover_the_true_mean_as_often_as_they_say() -> None:
    samples = np.random.default_rng(8).normal(1.0, 1.0, (4000, 3))
    found = ratio_estimates(samples, np.ones_like(samples), confidence=0.9)
    assert 0.885 < np.mean((found.low < 1.0) & (found.high > 1.0)) < 0.915


def test_one_unit_has_no_interval() -> None:
    found = ratio_estimates(np.array([[6.0]]), np.array([[2.0]]), confidence=0.95)
    assert found.value[0] == 3.0
    assert np.isnan([found.low[0], found.high[0]]).all()


@pytest.mark.parametrize("units", [3, 12])
def test_a_ratio_to_nothing_is_missing_and_one_that_may_become_so_has_no_interval(units: int) -> None:
    below = np.zeros((2, units))
    below[1, -1] = 2.0
    found = ratio_estimates(np.ones((2, units)), below, confidence=0.95)
    assert np.isnan(found.value[0])
    assert found.value[1] == units / 2
    assert np.isnan([found.low, found.high]).all()


def rejected_by_definition(p: list[float], level: float) -> set[int]:
    """Return what Holm's procedure rejects, step by step as the paper has it."""
    left, rejected = sorted(range(len(p)), key=lambda i: p[i]), set[int]()
    while left and p[left[0]] * len(left) < level:
        rejected.add(left.pop(0))
    return rejected


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_adjusted_p_values_reject_what_holms_procedure_rejects(p: list[float], level: float) -> None:
    adjusted = holm_adjusted(np.array(p))
    assert set(np.flatnonzero(adjusted < level).tolist()) == rejected_by_definition(p, level)


def test_a_value_that_is_no_test_counts_for_none() -> None:
    adjusted = holm_adjusted(np.array([[0.01, np.nan], [0.02, 0.04]]))
    assert np.allclose(adjusted, [[0.03, np.nan], [0.04, 0.04]], equal_nan=True)


def test_p_values_are_those_of_the_t_test_where_units_weigh_alike() -> None:
    samples = np.random.default_rng(7).normal(0.3, 1.0, (5, 20))
    found = ratio_p_values(samples, np.ones_like(samples))
    assert np.allclose(found, stats.ttest_1samp(samples, 0.0, axis=1).pvalue)


def test_equal_rows_differ_for_no_reason_and_constant_differences_for_sure() -> None:
    assert np.allclose(ratio_p_values(np.array([[0.0, 0.0], [2.0, 2.0]]), np.ones((2, 2))), [1.0, 0.0])
    assert np.isnan(ratio_p_values(np.ones((1, 1)), np.ones((1, 1)))).all()
