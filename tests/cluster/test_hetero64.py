"""The preset `hetero64` against its definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.problem import ORDERS
from longshore.cluster.presets.drawn import HETERO64_SITE, JOB_GPUS, JOB_GPUS_PROBABILITY, PresetSite, hetero64


@given(st.integers(0, 2**40), st.integers(0, 10**9), st.integers(1, 5), st.integers(0, 5))
def test_a_scenario_does_not_depend_on_how_many_are_drawn_with_it(
    seed: int, first: int, count: int, ahead: int
) -> None:
    _, alone, _, _ = hetero64(count, seed, first=first + ahead)
    _, among, _, _ = hetero64(ahead + count + 2, seed, first=first)
    for field, rows in alone._asdict().items():
        assert np.array_equal(rows, getattr(among, field)[ahead : ahead + count]), field


def test_another_seed_or_number_gives_other_scenarios() -> None:
    work = [hetero64(3, 7)[1].work_s, hetero64(3, 8)[1].work_s, hetero64(3, 7, first=3)[1].work_s]
    assert np.unique(np.concatenate(work)).size == 9 * 64


def test_the_draws_follow_the_published_setting() -> None:
    cluster, drawn, faults, rules = hetero64(4000, 1)
    shares = (drawn.gpus[:, :, None] == JOB_GPUS).mean(axis=(0, 1))
    assert np.allclose(shares, JOB_GPUS_PROBABILITY, atol=0.004)
    log_hours = np.log(drawn.work_s / 3600)
    assert np.isclose(np.exp(log_hours.mean()), 4.1, rtol=0.01)
    assert np.isclose(log_hours.std(), 0.5, rtol=0.01)
    assert (np.sort(drawn.speed) == [1.0] * 4 + [2.5] * 4).all()
    assert np.allclose((drawn.speed == 2.5).mean(axis=0), 0.5, atol=0.03)
    assert (cluster.gpu_node.size, faults.repair_mean_s, rules.checkpoint_s, rules.restart_s) == (64, 43200, 3600, 900)
    assert (rules.ring, rules.waiting, rules.order, rules.ageing_s) == (False, False, ORDERS["fifo"], float("inf"))


def test_each_scenario_has_one_lemon_of_eight_gpus() -> None:
    cluster, drawn, _, _ = hetero64(4000, 2)
    mean_hours = 1 / drawn.source_rate_per_s[:, :64] / 3600
    lemon = np.isclose(mean_hours, 60.0)
    assert np.isclose(mean_hours[~lemon], 1500.0).all()
    assert (lemon.reshape(-1, 8, 8).sum(axis=2) == 8).sum(axis=1).tolist() == [1] * 4000
    assert lemon.sum(axis=1).tolist() == [8] * 4000
    assert np.allclose(lemon.mean(axis=0), 1 / 8, atol=0.02)
    assert not drawn.source_rate_per_s[:, 64:].any()
    assert np.array_equal(drawn.hazard_per_s, drawn.source_rate_per_s[:, : cluster.gpu_node.size])


def test_fault_seeds_are_told_apart_by_their_32_bits() -> None:
    fault_seed = hetero64(4000, 3)[1].fault_seed
    assert ((fault_seed >= 0) & (fault_seed < 2**32)).all()
    assert np.unique(fault_seed).size >= 3990


def test_larger_variants_keep_the_shape_of_the_preset() -> None:
    cluster, drawn, _, _ = hetero64(2, 0, nodes=20, jobs=300)
    assert (cluster.gpu_node.size, drawn.gpus.shape, (drawn.speed == 2.5).sum()) == (160, (2, 300), 20)


@pytest.mark.parametrize("wrong", [{"scenarios": 0}, {"seed": -1}, {"first": -1}, {"nodes": 3}, {"jobs": 0}])
def test_numbers_below_their_minimum_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        hetero64(**{"scenarios": 1, "seed": 0} | wrong)


def test_jobs_arrive_as_a_poisson_process_that_offers_the_load() -> None:
    cluster, drawn, _, _ = hetero64(2000, 4, jobs=128, load=0.85)
    assert (drawn.submit_s[:, 0] == 0.0).all()
    gaps_s = np.diff(drawn.submit_s, axis=1)
    assert np.isclose(gaps_s.std(), gaps_s.mean(), rtol=0.02)  # exponential
    capacity = drawn.speed[0].sum() * 8
    assert capacity == 112.0
    assert np.isclose((drawn.gpus * drawn.work_s).mean() / (capacity * gaps_s.mean()), 0.85, rtol=0.02)
    assert cluster.gpu_node.size == 64
    assert np.array_equal(hetero64(2, 4, first=7, jobs=128, load=0.85)[1].submit_s, drawn.submit_s[7:9])
    assert not hetero64(2, 4)[1].submit_s.any()


def test_the_presets_own_site_is_the_preset() -> None:
    for field, values in hetero64(20, 5)[1]._asdict().items():
        assert np.array_equal(values, getattr(hetero64(20, 5, site=HETERO64_SITE)[1], field)), field
    assert (HETERO64_SITE.gpus, HETERO64_SITE.capacity) == (64, 112)


@given(
    st.integers(1, 40), st.integers(1, 16), st.lists(st.floats(0.5, 4.0), min_size=1, max_size=4), st.floats(0.0, 20.0)
)
def test_other_sites_have_what_they_say(nodes: int, node_gpus: int, speeds: list[float], faults: float) -> None:
    site = PresetSite(nodes, node_gpus, tuple(speeds), faults)
    cluster, drawn, _, _ = hetero64(3, 1, site=site, load=0.8)
    assert (cluster.speed.size, cluster.gpu_node.size) == (nodes, site.gpus)
    assert drawn.gpus.max() <= site.gpus
    for own in drawn.speed:  # as many nodes of one speed as of another, but for what cannot be divided
        counts = [(own == speed).sum() for speed in set(speeds)]
        shares = [speeds.count(speed) for speed in set(speeds)]
        assert all(
            abs(count - nodes * share / len(speeds)) < share for count, share in zip(counts, shares, strict=True)
        )
        assert round(own.sum() * node_gpus) == site.capacity
    usual = 1.0 / (1500.0 * 3600.0)
    assert np.isclose(np.sort(drawn.source_rate_per_s, axis=1)[:, -1], 25.0 * usual * faults).all()
