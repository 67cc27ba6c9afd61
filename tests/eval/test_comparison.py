from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.eval.comparison import METRICS, compare, size_classes
from longshore.eval.table import verdict
from tests.eval.runs import CLUSTER_GPUS, comparison, finishes, outcome, policies, scenarios
from tests.support.budgets import examples

NAMES = [metric.name for metric in METRICS]
MAKESPAN = NAMES.index("makespan_s")


def test_a_policy_compared_with_itself_differs_by_exactly_nothing() -> None:
    finish_s = finishes(12)
    runs = {"pack": outcome(finish_s, stops=1), "pack again": outcome(finish_s, stops=1)}
    found = compare(runs, scenarios(12), CLUSTER_GPUS, heuristics=runs)
    assert not np.any(found.difference)
    assert not np.any(found.wins)
    assert not np.any(found.relative_percent.value[:, :4])


def test_a_constant_shift_is_a_clear_difference_where_the_means_are_not() -> None:
    finish_s = finishes(30)
    runs = {"pack": outcome(finish_s), "ppo": outcome(finish_s - 60.0)}
    found = compare(runs, scenarios(30), CLUSTER_GPUS, heuristics=["pack"])
    ppo, pack = found.policies.index("ppo"), found.policies.index("pack")
    assert np.allclose([part[ppo, MAKESPAN] for part in found.difference], -60.0)
    assert found.mean.high[ppo, MAKESPAN] > found.mean.low[pack, MAKESPAN]
    assert found.worse_share[ppo] == 0.0


def test_a_constant_factor_is_that_many_per_cent() -> None:
    finish_s = finishes(30)
    runs = {"pack": outcome(finish_s), "slow": outcome(1.2 * finish_s)}
    found = compare(runs, scenarios(30), CLUSTER_GPUS, heuristics=["pack"])
    assert np.allclose([part[1, :3] for part in found.relative_percent], 20.0)


def test_figures_of_a_hand_worked_scenario() -> None:
    run = outcome(np.array([[10.0, 20.0, 30.0, 40.0]]), stops=1, lost_s=2.0)
    found = compare({"pack": run}, scenarios(1, arrival_s=1.0), CLUSTER_GPUS, heuristics=["pack"])
    busy = 10 + 2 * 20 + 3 * 30 + 8 * 40
    figures = dict(zip(NAMES, found.mean.value[0], strict=True))
    assert figures["makespan_s"] == 40.0
    assert figures["mean_jct_s"] == pytest.approx((10 + 19 + 28 + 37) / 4)
    assert figures["lost_gpu_s"] == 2.0 * 14
    assert figures["restarts"] == 4
    assert figures["useful_utilisation"] == pytest.approx((busy - 28) / (40 * 8))


def test_the_objective_is_makespan_for_a_batch_and_mean_jct_for_arrivals() -> None:
    runs = {"pack": outcome(finishes(3))}
    batch = compare(runs, scenarios(3), CLUSTER_GPUS, heuristics=["pack"])
    arriving = compare(runs, scenarios(3, arrival_s=60.0), CLUSTER_GPUS, heuristics=["pack"])
    chosen = compare(runs, scenarios(3), CLUSTER_GPUS, heuristics=["pack"], objective="p99_jct_s")
    assert [NAMES[found.objective] for found in (batch, arriving, chosen)] == ["makespan_s", "mean_jct_s", "p99_jct_s"]


def test_the_best_heuristic_has_the_best_objective_among_heuristics_only() -> None:
    found = comparison(20)
    assert found.best_heuristic == "pack"
    assert found.challengers == ("<b>ppo</b> $x$",)
    assert found.policies == ("<b>ppo</b> $x$", "pack", "random")


def test_an_objective_of_which_more_is_better_is_ranked_from_above() -> None:
    found = compare(
        policies(20), scenarios(20), CLUSTER_GPUS, heuristics=["pack", "random"], objective="useful_utilisation"
    )
    useful = found.mean.value[:, NAMES.index("useful_utilisation")]
    assert (np.diff(useful) <= 0).all()
    assert found.worse_share[found.policies.index("random")] == found.wins[found.policies.index("pack")][-1]


@settings(max_examples=examples(10))
@given(st.integers(1, 6), st.integers(0, 1000))
def test_wins_losses_and_ties_of_a_pair_make_up_all_scenarios(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = {name: outcome(rng.integers(1, 4, (count, 4)).astype(np.float64)) for name in ("a", "b", "c")}
    found = compare(runs, scenarios(count), CLUSTER_GPUS, heuristics=["a"])
    makespan_s = found.values[:, MAKESPAN]
    ties = (makespan_s[:, None] == makespan_s[None]).mean(axis=-1)
    assert np.allclose(found.wins + found.wins.T + ties, 1.0)


def test_rounding_is_not_a_win() -> None:
    finish_s = finishes(5)
    runs = {"pack": outcome(finish_s), "ppo": outcome(finish_s * (1 + 1e-13))}
    assert not compare(runs, scenarios(5), CLUSTER_GPUS, heuristics=["pack"]).wins.any()


def test_a_whole_group_is_one_unit_of_the_intervals() -> None:
    runs, labels = policies(40), np.array(["june", "july"])[np.arange(40) // 20]
    found = compare(runs, scenarios(40), CLUSTER_GPUS, heuristics=["pack", "random"], groups=labels)
    assert found.units == 2
    halves = found.values[0, MAKESPAN].reshape(2, 20).mean(axis=1)
    t = 12.7062  # of one degree of freedom, at 97.5 %; the standard error of the mean of two is half their difference
    assert found.mean.high[0, MAKESPAN] - found.mean.low[0, MAKESPAN] == pytest.approx(t * np.ptp(halves), rel=1e-5)


def test_groups_of_one_scenario_are_as_good_as_none() -> None:
    runs = policies(15)
    plain = compare(runs, scenarios(15), CLUSTER_GPUS, heuristics=["pack"])
    grouped = compare(runs, scenarios(15), CLUSTER_GPUS, heuristics=["pack"], groups=np.arange(15) * 7)
    assert np.array_equal(plain.relative_percent, grouped.relative_percent, equal_nan=True)


def test_one_scenario_has_figures_but_no_intervals() -> None:
    found = comparison(1)
    assert np.isfinite(found.mean.value).all()
    assert np.isnan([found.mean.low, found.difference.high, found.relative_percent.low]).all()


def test_a_relative_difference_to_nothing_is_missing() -> None:
    finish_s = finishes(4)
    runs = {"pack": outcome(finish_s), "ppo": outcome(finish_s, stops=1)}
    found = compare(runs, scenarios(4), CLUSTER_GPUS, heuristics=["pack"])
    row, restarts = found.policies.index("ppo"), NAMES.index("restarts")
    assert found.difference.value[row, restarts] == 4.0
    assert np.isnan(found.relative_percent.value[row, restarts])


def test_job_sizes_are_powers_of_two() -> None:
    titles, index = size_classes(np.array([1, 2, 3, 4, 5, 8, 9], dtype=np.int32))
    assert titles == ("1 GPU", "2 GPUs", "3 to 4 GPUs", "5 to 8 GPUs", "9 to 16 GPUs")
    assert index.tolist() == [0, 1, 2, 2, 3, 3, 4]


def test_a_policy_that_delays_large_jobs_only_shows_it_in_their_size_class() -> None:
    finish_s = finishes(20)
    runs = {"pack": outcome(finish_s), "ppo": outcome(finish_s * np.array([1.0, 1.0, 1.0, 1.1]))}
    found = compare(runs, scenarios(20), CLUSTER_GPUS, heuristics=["pack"])
    row = found.policies.index("ppo")
    assert found.job_sizes.jobs.tolist() == [20, 20, 20, 20]
    assert np.allclose(found.job_sizes.relative_percent.value[row], [0.0, 0.0, 0.0, 10.0])
    assert np.allclose(found.job_sizes.mean_jct_s[found.policies.index("pack")], finish_s.mean(axis=0))


def test_a_run_that_was_cut_off_is_not_compared() -> None:
    cut = outcome(finishes(3))._replace(finished=np.array([4, 3, 4], dtype=np.int32))
    with pytest.raises(InputError, match=r"1 of 3 runs under ppo were cut off, the first is scenario 1"):
        compare({"pack": outcome(finishes(3)), "ppo": cut}, scenarios(3), CLUSTER_GPUS, heuristics=["pack"])


def test_wrong_arguments_are_named() -> None:
    runs = {"ppo": outcome(finishes(3))}
    with pytest.raises(ValueError, match="none of the policies ppo"):
        compare(runs, scenarios(3), CLUSTER_GPUS, heuristics=["pack"])
    with pytest.raises(ValueError, match="objective is 'speed'"):
        compare(runs, scenarios(3), CLUSTER_GPUS, heuristics=["ppo"], objective="speed")
    with pytest.raises(ValueError, match=r"groups has shape \(2,\)"):
        compare(runs, scenarios(3), CLUSTER_GPUS, heuristics=["ppo"], groups=np.arange(2))
    with pytest.raises(ValueError, match=r"ppo: finish_s has shape \(3, 4\)"):
        compare(runs, scenarios(5), CLUSTER_GPUS, heuristics=["ppo"])


def test_a_table_of_equal_policies_hardly_ever_calls_a_cell_clear() -> None:
    """Of 14 policies that differ by chance alone, single intervals would colour some cell of most tables."""
    rng, tables = np.random.default_rng(11), 40
    coloured = single = 0
    for _ in range(tables):
        runs = {f"policy-{i}": outcome(finishes(9) + rng.normal(0.0, 900.0, (9, 4))) for i in range(14)}
        found = compare(runs, scenarios(9), CLUSTER_GPUS, heuristics=["policy-0"])
        cells = range(len(found.policies)), range(len(NAMES))
        coloured += any(verdict(found, *cell) != "open" for cell in product(*cells))
        single += bool(((found.difference.low > 0) | (found.difference.high < 0)).any())
    assert coloured <= 0.05 * tables + 3  # three standard deviations above what is promised
    assert single > tables / 2
