"""Imagined futures: they know what policies know, have the model's rates, and leave the real simulation alone."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.rollouts import Rollout, RolloutBase, Search
from longshore.cluster.candidates.futures import FUTURE, PRESENT, copy_row, draw_future, imagination_of, set_present
from longshore.cluster.model.problem import fault_sources
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import Simulation
from tests.cases_by_hand import hand_case
from tests.compiled_runs import at_first_decision, compiled
from tests.policies_under_test import untrained_candidates
from tests.strategies import Case, backed_cases, cases, planned_cases
from tests.support.budgets import examples

FUTURES = 4000
RATE_PER_S, REPAIR_MEAN_S = 1e-3, 60.0
SEARCH = Search(futures=2, width=3)


def at_decision(case: Case, decisions: int) -> Simulation | None:
    """Return a simulation in which this number of decisions were taken and another is due, None if there are fewer."""
    sim = compiled(case)
    reset(sim, 0, case.row)
    due = advance(sim, 0)
    for _ in range(decisions):
        if not due:
            return None
        if HEURISTICS["patient"].place(sim, 0):
            start(sim, 0)
        else:
            wait(sim, 0)
        due = advance(sim, 0)
    return sim if due else None


def everything(sim: Simulation) -> dict[str, bytes]:
    parts = (sim.cluster, sim.scenarios, sim.traits, sim.process, sim.rules, sim.state, sim.log)
    return {
        f"{type(part).__name__}.{name}": np.asarray(value).tobytes()
        for part in parts
        for name, value in part._asdict().items()
    }


@pytest.mark.parametrize(
    ("base", "horizon"), [(HEURISTICS["patient"], None), (untrained_candidates(waiting=True, time_to_go="jct"), 2)]
)
@settings(max_examples=examples(25))
@given(case=cases() | planned_cases() | backed_cases(), decisions=st.integers(0, 15))
def test_trying_candidates_out_leaves_the_real_simulation_untouched_to_the_byte(
    case: Case, decisions: int, base: RolloutBase, horizon: int | None
) -> None:
    sim = at_decision(case, decisions)
    if sim is None:
        return
    before = everything(sim)
    Rollout(base, replace(SEARCH, horizon=horizon), "jct").choose_candidate(sim, 0)
    after = everything(sim)
    assert [name for name, was in before.items() if after[name] != was] == []


def hide(sim: Simulation, rng: np.random.Generator) -> None:
    """Change what no policy can know: true work and ends, faults and slow nodes to come, and later jobs."""
    scenarios, state, scenario = sim.scenarios, sim.state, int(sim.state.scenario[0])
    scenarios.work_s[:] *= rng.uniform(0.1, 10.0, scenarios.work_s.shape)
    scenarios.fault_seed[:] = rng.integers(0, 2**32, scenarios.fault_seed.shape)
    scenarios.source_rate_per_s[:] *= rng.uniform(0.0, 10.0, scenarios.source_rate_per_s.shape)
    running = state.run_place[0] >= 0
    if state.struck_s.size:  # when a fault is detected is known
        running &= state.struck_s[0] < 0.0
    state.pace_s[:] = state.now_s[0] + rng.uniform(1e-3, 1e6, state.pace_s.shape)
    state.pace_k[:] += rng.integers(0, 9, state.pace_k.shape, dtype=np.int32)
    state.end_s[0, running] = state.now_s[0] + rng.uniform(1e-3, 1e6, int(running.sum()))
    state.source_s[:] = state.now_s[0] + rng.uniform(1e-3, 1e6, state.source_s.shape)
    state.source_k[:] += rng.integers(0, 9, state.source_k.shape, dtype=np.int32)
    later = slice(int(state.submitted[0]), int(scenarios.jobs[scenario]))
    for known in (scenarios.gpus, scenarios.estimate_s, scenarios.compute_s, scenarios.parameter_bytes):
        known[scenario, later] = rng.permutation(known[scenario, later])
    scenarios.submit_s[scenario, later] += rng.uniform(0.0, 1e6)


def has_no_plans(case: Case) -> bool:
    """Return whether `hide` may exchange the GPUs of jobs."""
    return case.scenarios.pipeline.size == 0


@settings(max_examples=examples(40))
@given(cases() | backed_cases().filter(has_no_plans), st.integers(0, 15), st.integers(0, 2**32 - 1))
def test_nothing_of_the_true_future_is_in_an_imagined_one(case: Case, decisions: int, seed: int) -> None:
    plain, disturbed = (at_decision(deepcopy(case), decisions) for _ in range(2))
    if plain is None or disturbed is None:
        return
    hide(disturbed, np.random.default_rng(seed))
    gains = [Rollout(HEURISTICS["patient"], SEARCH, "makespan").gains(sim, 0) for sim in (plain, disturbed)]
    assert (gains[0] == gains[1]).all()


def after(age_s: float, *, shape: float = 1.0, sigma: float = 0.0, down: bool = False) -> Simulation:
    """Return a simulation in which all sources have been as they are for so long, GPU 3 perhaps out of service."""
    case = hand_case(grid_cluster(2, 2), [(1, 100.0, 0.0)])
    rates = np.zeros(fault_sources(case.cluster))
    rates[:4] = RATE_PER_S
    process = case.process._replace(shape=shape, repair_mean_s=REPAIR_MEAN_S, repair_sigma=sigma)
    scenarios = case.scenarios._replace(source_rate_per_s=rates[None], hazard_per_s=rates[None, :4])
    sim = at_first_decision(case._replace(process=process, scenarios=scenarios))
    sim.state.now_s[0] = age_s
    sim.state.source_failed[0, 3] = down
    return sim


def drawn_s(sim: Simulation, source: int) -> NDArray[np.float64]:
    """Return the time until a source next changes, in each of many futures."""
    imagined = imagination_of(sim)
    set_present(imagined, sim, 0)
    times_s = np.empty(FUTURES)
    for future in range(FUTURES):
        copy_row(imagined, PRESENT, FUTURE)
        draw_future(imagined, future)
        times_s[future] = imagined.state.source_s[FUTURE, source] - imagined.state.now_s[FUTURE]
    return times_s


def mean_left_s(survival: Callable[[float], float], age_s: float) -> float:
    """Return the mean of what is left of a time that has lasted `age_s`: the integral of its conditional survival."""
    whole, _ = quad(lambda left_s: survival(age_s + left_s) / survival(age_s), 0.0, math.inf, limit=200)
    return float(whole)


def within_four_errors(times_s: NDArray[np.float64], mean_s: float) -> bool:
    return bool(abs(times_s.mean() - mean_s) < 4 * times_s.std() / math.sqrt(times_s.size))


@pytest.mark.parametrize("shape", [0.62, 1.0, 1.5])
@pytest.mark.parametrize("age_s", [0.0, 2000.0])
def test_an_up_source_fails_after_the_mean_time_of_its_age(shape: float, age_s: float) -> None:
    scale_s = 1.0 / (RATE_PER_S * math.gamma(1.0 + 1.0 / shape))
    left_s = mean_left_s(lambda time_s: math.exp(-((time_s / scale_s) ** shape)), age_s)
    assert within_four_errors(drawn_s(after(age_s, shape=shape), 3), left_s)
    if shape == 1.0:
        assert left_s == pytest.approx(1.0 / RATE_PER_S)


@pytest.mark.parametrize("age_s", [0.0, 90.0])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_a_repair_takes_what_is_left_of_its_mean_time_given_how_long_it_has_lasted(sigma: float, age_s: float) -> None:
    def survival(time_s: float) -> float:
        if sigma == 0.0:
            return math.exp(-time_s / REPAIR_MEAN_S)
        z = math.log(time_s / REPAIR_MEAN_S) / sigma + sigma / 2.0 if time_s > 0.0 else -math.inf
        return math.erfc(z / math.sqrt(2.0)) / 2.0

    assert within_four_errors(drawn_s(after(age_s, sigma=sigma, down=True), 3), mean_left_s(survival, age_s))


def test_faults_of_nodes_and_racks_are_imagined_as_those_of_single_gpus() -> None:
    sim = after(0.0)
    sim.scenarios.source_rate_per_s[0, 4:] = RATE_PER_S
    sim.state.gpu_hazard_per_s[:] = 3.0 * RATE_PER_S  # so all rates together add up to what is known
    assert within_four_errors(drawn_s(sim, 0), 1.0 / (3.0 * RATE_PER_S))
    for never in (4, 5, 6):  # the nodes and the rack
        assert (drawn_s(sim, never) == math.inf).all()


def test_of_recorded_faults_only_their_mean_length_and_the_known_rates_are_imagined() -> None:
    case = hand_case(grid_cluster(2, 2), [(1, 100.0, 0.0)], {3: [(0.0, 20.0), (500.0, 600.0)], 1: [(700.0, 760.0)]})
    hazard = np.array([[RATE_PER_S, 2 * RATE_PER_S, 0.0, RATE_PER_S]])
    sim = at_first_decision(case._replace(scenarios=case.scenarios._replace(hazard_per_s=hazard)))
    assert within_four_errors(drawn_s(sim, 1), 0.5 / RATE_PER_S)
    assert within_four_errors(drawn_s(sim, 3), 60.0)  # it is out of service; the outages last 20, 100 and 60 s
    for never in (2, 4, 5, 6):  # a GPU without hazard, the nodes and the rack
        assert (drawn_s(sim, never) == math.inf).all()


def test_futures_by_other_seeds_differ_and_one_by_the_same_is_the_same() -> None:
    sim = after(0.0)
    first, again = drawn_s(sim, 0), drawn_s(sim, 0)
    assert (first == again).all()
    assert np.unique(first).size == FUTURES
    assert abs(np.corrcoef(first, drawn_s(sim, 1))[0, 1]) < 4 / math.sqrt(FUTURES)
