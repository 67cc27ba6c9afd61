"""Fault models against their closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.cluster.faults.models import (
    FAULT_MODELS,
    REPAIR_MEAN_S,
    REPAIR_SIGMA,
    Correlated,
    Exponential,
    FaultDraw,
    Lemon,
    Weibull,
)
from longshore.cluster.kernels.structures import uniform
from longshore.cluster.model.problem import DEFAULT_HAZARD_PER_S, fault_sources
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.state.border import checked_process

CLUSTER = grid_cluster(6, 4, nodes_per_rack=4)  # two racks, of 4 and of 2 nodes
GPUS = 24
HAZARD_PER_S = np.linspace(1e-6, 3e-6, GPUS)


def up_times_s(rates: np.ndarray, shape: float, source: int, seed: int, count: int) -> np.ndarray:
    """Return up times by the definition of docs/simulator.md."""
    scale = 1 / (rates[source] * math.gamma(1 + 1 / shape))
    return np.array([(-math.log(uniform(seed, source, 4 * k))) ** (1 / shape) * scale for k in range(count)])


def draw(name: str, seed: int = 0, cluster: Cluster = CLUSTER, hazard_per_s: np.ndarray = HAZARD_PER_S) -> FaultDraw:
    return FAULT_MODELS[name](model=name).draw(cluster, hazard_per_s, seed)


@pytest.mark.parametrize("cluster", [grid_cluster(1, 1), CLUSTER], ids=["one GPU", "two racks"])
@pytest.mark.parametrize("seed", [0, 5, 2**31 - 1])
@pytest.mark.parametrize("name", FAULT_MODELS)
def test_a_model_is_a_pure_function_with_a_rate_for_each_source(name: str, seed: int, cluster: Cluster) -> None:
    hazard_per_s = np.linspace(1e-6, 3e-6, cluster.gpu_node.size)
    given_per_s = hazard_per_s.copy()
    rates, process = draw(name, seed, cluster, given_per_s)
    assert np.array_equal(given_per_s, hazard_per_s)
    assert rates.dtype == np.float64
    assert rates.shape == (fault_sources(cluster),)
    assert (np.isfinite(rates) & (rates >= 0.0)).all()
    first = process.outage_first
    assert not first.any() or first.size == rates.size + 1
    checked_process(process)
    again, process_again = draw(name, seed, cluster, hazard_per_s)
    assert np.array_equal(rates, again)
    assert [np.asarray(it).tolist() for it in process] == [np.asarray(it).tolist() for it in process_again]


@pytest.mark.parametrize("name", FAULT_MODELS)
def test_a_configuration_refuses_a_key_that_it_does_not_know(name: str) -> None:
    with pytest.raises(ValidationError, match="no_such_key"):
        FAULT_MODELS[name].model_validate({"model": name, "no_such_key": 1})


@pytest.mark.parametrize("name", ["exponential", "weibull", "correlated"])
def test_a_model_has_as_many_faults_as_the_hazards_say(name: str) -> None:
    rates, _ = draw(name)
    assert np.isclose(rates.sum(), HAZARD_PER_S.sum(), rtol=1e-12)


def test_no_source_fails_without_faults() -> None:
    assert not draw("none")[0].any()


@pytest.mark.parametrize(("name", "shape"), [("exponential", 1.0), ("weibull", 0.62)])
def test_up_times_have_the_mean_and_the_spread_of_the_closed_form(name: str, shape: float) -> None:
    rates, process = draw(name)
    up_s = up_times_s(rates, process.shape, 7, 11, 40000)
    spread = math.sqrt(math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1)
    assert process.shape == shape
    assert np.isclose(up_s.mean() * HAZARD_PER_S[7], 1, atol=4 * spread / 200)
    assert np.isclose(up_s.std() / up_s.mean(), spread, rtol=0.05)


def test_by_default_a_node_of_8_gpus_has_the_faults_of_the_trace() -> None:
    cluster = grid_cluster(1000, 8)
    rates, _ = draw("exponential", 0, cluster, np.full(8000, DEFAULT_HAZARD_PER_S))
    assert np.isclose(rates.sum() * 86400, 4.2)


def test_the_default_repair_has_the_median_of_the_trace() -> None:
    median_s = REPAIR_MEAN_S * math.exp(-(REPAIR_SIGMA**2) / 2)
    assert np.isclose(median_s, 20 * 3600, rtol=1e-3)


def test_lemons_are_as_many_and_as_bad_as_in_the_trace() -> None:
    cluster = grid_cluster(4000, 2)
    rates, _ = draw("lemon", 3, cluster, np.full(8000, 1e-7))
    of_node = rates[:8000].reshape(-1, 2).sum(axis=1)
    bad = of_node > 2e-7
    assert np.isclose(bad.mean(), 0.05, atol=4 * math.sqrt(0.05 * 0.95 / 4000))
    assert np.isclose(of_node[bad][0] / of_node[~bad][0], 6.17)
    # With exactly 5 % of lemons the share of faults would be 24.5 %; the total stays that of the hazards.
    assert np.isclose(0.05 * of_node[bad][0] / (0.05 * of_node[bad][0] + 0.95 * of_node[~bad][0]), 0.245, atol=1e-3)
    assert np.isclose(0.05 * of_node[bad][0] + 0.95 * of_node[~bad][0], 2e-7)


def test_another_seed_has_other_lemons_all_of_whole_nodes() -> None:
    configuration = Lemon(lemon_share=0.5)
    draws = [configuration.draw(CLUSTER, np.full(GPUS, 1e-6), seed)[0][:GPUS].reshape(6, 4) for seed in range(20)]
    assert all((rates == rates[:, :1]).all() for rates in draws)
    assert len({tuple(rates[:, 0]) for rates in draws}) > 10


def test_shares_of_correlated_faults_hit_nodes_and_racks() -> None:
    rates, _ = Correlated(node_share=0.5, rack_share=0.25).draw(CLUSTER, np.full(GPUS, 1e-6), 0)
    assert np.allclose(rates[:GPUS], 0.25e-6)
    assert np.allclose(rates[GPUS : GPUS + 6], 4 * 0.5e-6)
    assert np.allclose(rates[GPUS + 6 :], [16 * 0.25e-6, 8 * 0.25e-6])


@given(st.floats(0, 1), st.floats(0, 1))
def test_correlated_shares_over_1_are_refused(node_share: float, rack_share: float) -> None:
    if node_share + rack_share > 1:
        with pytest.raises(ValidationError, match="over 1"):
            Correlated(node_share=node_share, rack_share=rack_share)
    else:
        configuration = Correlated(node_share=node_share, rack_share=rack_share)
        assert (configuration.draw(CLUSTER, HAZARD_PER_S, 0)[0] >= 0).all()


def test_what_follows_a_fault_is_taken_from_the_configuration() -> None:
    configuration = Exponential(transient_probability=0.25, repair_mean_s=7.0, repair_sigma=0.0)
    _, process = configuration.draw(CLUSTER, HAZARD_PER_S, 0)
    assert process[:4] == (1.0, 7.0, 0.0, 0.25)
    assert Weibull(shape=2.0).draw(CLUSTER, HAZARD_PER_S, 0)[1].shape == 2.0
