"""Comparisons with a rival, on figures made by hand."""

import numpy as np
import pytest

from benchmarks.against import difference_of_means, geometric_mean


def test_a_difference_is_of_the_means_and_not_of_single_scenarios() -> None:
    found = difference_of_means(np.array([90.0, 300.0]), np.array([100.0, 300.0]))
    assert found.percent == pytest.approx(-2.5)
    assert found.low < -2.5 < found.high


def test_a_policy_against_itself_differs_by_nothing() -> None:
    costs = np.arange(1.0, 21.0)
    assert difference_of_means(costs, costs) == (0.0, 0.0, 0.0)


def test_half_and_double_are_no_difference_in_the_geometric_mean() -> None:
    found = geometric_mean(np.log([0.5, 2.0]))
    assert found.percent == pytest.approx(0.0)
    assert 1.0 + found.high / 100.0 == pytest.approx(1.0 / (1.0 + found.low / 100.0))
