"""Fault rates that policies estimate: against the definition of the estimate, computed from the log of all events."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.candidates.futures import FUTURE, PRESENT, copy_row, draw_future, imagination_of, set_present
from longshore.cluster.kernels.structures import kth_smallest
from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import DEFAULT_HAZARD_PER_S
from longshore.cluster.model.topology import Cluster
from longshore.cluster.presets.drawn import GPU_FAULTS_PER_S, LEMON_FACTOR, hetero64
from longshore.cluster.presets.problems import Regime, hetero64_problem
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.event_log import events_of
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.beliefs import (
    FLEET_FAULTS,
    HALF_LIFE_S,
    NODE_FAULTS,
    estimated_rate_per_s,
    initial_beliefs,
)
from longshore.cluster.state.state import Simulation, allocate_log
from tests.compiled_runs import compiled
from tests.strategies import Case, cases


def learning(case: Case) -> Case:
    """Return a case whose policies learn from faults, starting from the given rate of each node."""
    return case._replace(rules=case.rules._replace(estimated_hazards=True))


def weight(age_s: float) -> float:
    return math.exp(-math.log(2.0) * age_s / HALF_LIFE_S)


def weighted_time_s(from_s: float, to_s: float, now_s: float) -> float:
    """Return the integral of `weight` over a stretch of time."""
    return HALF_LIFE_S / math.log(2.0) * (weight(now_s - to_s) - weight(now_s - from_s))


def in_service(gpu: int, events: Sequence[Event], until_s: float) -> list[tuple[float, float]]:
    """Return from when until when a GPU was in service."""
    stretches, since_s, is_up = [], 0.0, True
    for event in events:
        if event.time_s > until_s or gpu not in event.gpus or event.kind not in ("fault", "repair"):
            continue
        if is_up and event.kind == "fault":
            stretches.append((since_s, event.time_s))
        is_up, since_s = event.kind == "repair", event.time_s
    return [*stretches, (since_s, until_s)] if is_up else stretches


def plain_rates(cluster: Cluster, start_per_s: NDArray[np.float64], events: Sequence[Event]) -> NDArray[np.float64]:
    """Return what is to be believed of each node right after the last fault, from the definition in docs/simulator.md.

    Args:
        cluster: The cluster.
        start_per_s: Given rate of each node, shape (nodes,).
        events: All that happened, with a fault among it.
    """
    now_s = max(event.time_s for event in events if event.kind == "fault")
    nodes = range(start_per_s.size)
    failed: list[set[float]] = [set() for _ in nodes]
    for event in events:
        if event.kind == "fault":
            for gpu in event.gpus:
                failed[cluster.gpu_node[gpu]].add(event.time_s)
    faults = [sum(weight(now_s - time_s) for time_s in failed[node]) for node in nodes]
    gpus = [range(cluster.first_gpu[node], cluster.first_gpu[node + 1]) for node in nodes]
    exposure_s = [
        sum(weighted_time_s(*stretch, now_s) for gpu in gpus[node] for stretch in in_service(gpu, events, now_s))
        for node in nodes
    ]
    rates = np.zeros(start_per_s.size)
    for node in nodes:
        alike = [it for it in nodes if cluster.node_type[it] == cluster.node_type[node] and start_per_s[it] > 0.0]
        expected = sum(start_per_s[it] * exposure_s[it] for it in alike)
        prior = start_per_s[node] * (FLEET_FAULTS + sum(faults[it] for it in alike)) / (FLEET_FAULTS + expected)
        strength_s = NODE_FAULTS / max(prior, DEFAULT_HAZARD_PER_S)
        rates[node] = (strength_s * prior + faults[node]) / (strength_s + exposure_s[node])
    return rates


def check(sim: Simulation, events: Sequence[Event]) -> None:
    """Check what a row believes, given all that happened in it."""
    state, cluster, start_per_s = sim.state, sim.cluster, sim.traits.node_hazard_per_s[sim.state.scenario[0]]
    if not any(event.kind == "fault" for event in events):
        assert state.node_hazard_per_s[0].tolist() == start_per_s.tolist()
        return
    expected = plain_rates(cluster, start_per_s, events)
    np.testing.assert_allclose(state.node_hazard_per_s[0], expected, rtol=1e-9)
    assert state.gpu_hazard_per_s[0].tolist() == state.node_hazard_per_s[0][cluster.gpu_node].tolist()
    median = sorted(state.node_hazard_per_s[0])[(start_per_s.size - 1) // 2]
    assert state.lemon[0].tolist() == (state.node_hazard_per_s[0] > 5.0 * median).astype(int).tolist()


@given(cases(), st.sampled_from(["pack", "eft-hazard", "patient"]))
def test_after_any_run_a_row_believes_what_the_definition_says(case: Case, name: str) -> None:
    case = learning(case)
    sim = compiled(case)
    HEURISTICS[name].run(sim, np.array([case.row], dtype=np.int64))

    check(sim, events_of(sim.log))


def test_over_months_old_faults_and_old_time_count_less() -> None:
    problem = hetero64_problem(1, 5, Regime(), jobs=200, load=0.02)
    sim = simulation_of(problem, log=allocate_log(20_000, 400_000))
    HEURISTICS["pack"].run(sim, np.zeros(1, dtype=np.int64))

    assert sim.state.now_s[0] > 3 * HALF_LIFE_S
    check(sim, events_of(sim.log))


@given(st.floats(DEFAULT_HAZARD_PER_S, 1e-3), st.integers(0, 40), st.floats(0.0, 1e8))
def test_the_estimate_is_the_mean_of_a_gamma_distribution_after_poisson_faults(
    prior_per_s: float, faults: int, exposure_s: float
) -> None:
    shape, strength_s = NODE_FAULTS + faults, NODE_FAULTS / prior_per_s
    # Prior rate^(a - 1) e^(-rate b) times likelihood rate^k e^(-rate t), summed up over logarithms of the rate.
    logs = np.linspace(-60.0, 8.0, 20_001) - math.log(strength_s + exposure_s)
    density = np.exp(shape * (logs - logs.max()) - (np.exp(logs) * (strength_s + exposure_s)))
    expected = float((np.exp(logs) * density).sum() / density.sum())

    assert math.isclose(estimated_rate_per_s(prior_per_s, faults, exposure_s), expected, rel_tol=1e-4)


@given(st.floats(0.0, 1e30), st.floats(0.0, 1e6), st.floats(0.0, 1e28))
def test_an_estimate_is_finite_and_no_less_for_more_faults_or_less_time(
    prior_per_s: float, faults: float, exposure_s: float
) -> None:
    rate = estimated_rate_per_s(prior_per_s, faults, exposure_s)

    assert 0.0 <= rate < math.inf
    assert estimated_rate_per_s(prior_per_s, faults + 1.0, exposure_s) >= rate
    assert estimated_rate_per_s(prior_per_s, faults, exposure_s / 2.0) >= rate


def test_nobody_is_told_which_node_is_the_lemon_but_how_often_gpus_fail_in_the_mean() -> None:
    known, start_per_s = (hetero64_problem(8, 3, Regime(oracle=oracle)) for oracle in (True, False))

    mean_per_s = GPU_FAULTS_PER_S * (7.0 + LEMON_FACTOR) / 8.0
    np.testing.assert_allclose(start_per_s.scenarios.hazard_per_s, mean_per_s)
    assert np.array_equal(known.scenarios.hazard_per_s, hetero64(8, 3).scenarios.hazard_per_s)
    assert np.array_equal(start_per_s.scenarios.source_rate_per_s, known.scenarios.source_rate_per_s)
    assert (start_per_s.rules.estimated_hazards, known.rules.estimated_hazards) == (True, False)


def test_the_lemon_is_found_from_its_faults() -> None:
    problem = hetero64_problem(40, 3, Regime(), jobs=400, load=0.5)
    sim = simulation_of(problem, rows=40)
    HEURISTICS["eft-hazard"].run(sim, np.arange(40))

    lemon = problem.scenarios.source_rate_per_s[:, :64].reshape(40, 8, 8).mean(axis=2).argmax(axis=1)
    assert (sim.state.node_hazard_per_s.argmax(axis=1) == lemon).mean() > 0.9


@pytest.mark.parametrize("oracle", [False, True])
def test_a_row_that_begins_again_has_forgotten_what_it_observed(*, oracle: bool) -> None:
    sim = simulation_of(hetero64_problem(2, 3, Regime(oracle=oracle)))
    HEURISTICS["eft"].run(sim, np.array([1]))
    assert (sim.state.observed_faults.sum() > 0.0) is not oracle
    beliefs = initial_beliefs(sim, sim.state.scenario)
    assert np.array_equal(sim.state.node_hazard_per_s, beliefs["node_hazard_per_s"]) is oracle

    reset(sim, 0, 0)

    for name, begun in initial_beliefs(sim, sim.state.scenario).items():
        assert np.array_equal(getattr(sim.state, name), begun), name


def place(sim: Simulation, row: int) -> None:
    assert HEURISTICS["eft"].place(sim, row)
    start(sim, row)


def test_imagined_futures_fail_at_the_rates_that_are_believed_and_teach_nothing() -> None:
    sim = simulation_of(hetero64_problem(1, 3, Regime()))
    reset(sim, 0, 0)
    while advance(sim, 0) and sim.state.observed_faults[0].sum() < 2.5:
        place(sim, 0)
    believed = sim.state.gpu_hazard_per_s[0].copy()
    assert not np.array_equal(believed, sim.scenarios.hazard_per_s[0])

    imagined = imagination_of(sim)
    set_present(imagined, sim, 0)
    assert np.array_equal(imagined.scenarios.source_rate_per_s[0, :64], believed)
    assert not imagined.scenarios.source_rate_per_s[0, 64:].any()
    copy_row(imagined, PRESENT, FUTURE)
    draw_future(imagined, 11)
    faults = int(imagined.state.source_k[FUTURE].sum())
    while advance(imagined, FUTURE):
        place(imagined, FUTURE)
    assert imagined.state.source_k[FUTURE].sum() > faults + 3
    assert np.array_equal(imagined.state.gpu_hazard_per_s[FUTURE], believed)


@given(st.lists(st.floats(0.0, 9.0).map(round), min_size=1, max_size=40), st.data())
def test_the_kth_smallest_is_that_of_the_sorted_numbers(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values) - 1))

    assert kth_smallest(np.array([[-1.0], *([float(it)] for it in values)]).T.copy(), 0, 1, 0) == -1.0
    assert kth_smallest(np.array([values], dtype=np.float64), 0, len(values), k) == sorted(values)[k]
