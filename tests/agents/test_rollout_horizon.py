"""Rollouts whose tries are cut off: the value predicts the rest."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import save_policy
from longshore.agents.networks.candidates import CandidatePolicy, cost_so_far_s, objective_unit_s
from longshore.agents.registry import find_policy
from longshore.agents.rollouts import FORESEE_FROM, Rollout, Search
from longshore.cluster.candidates.candidates import is_wait, list_candidates
from longshore.cluster.candidates.futures import PRESENT
from longshore.cluster.files.errors import PluginError
from longshore.cluster.model.outcome import Objective
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.simulator.engine import advance, start
from longshore.cluster.state.state import Simulation
from tests.compiled_runs import at_first_decision, run_policy
from tests.plain_run import busy_case
from tests.policies_under_test import CHECKPOINTS, OBJECTIVES, untrained_candidates
from tests.strategies import Case, cases
from tests.support.budgets import examples


class Seer:
    """A network whose value is the exact time to go: it runs a row to the end for it, and restores the row."""

    waits, about, name = True, "", "seer"

    def __init__(self, policy: CandidatePolicy, objective: Objective, error_s: float = 0.0) -> None:
        self.policy, self.time_to_go, self.error_s = policy, objective, error_s
        self.place, self.run, self.run_on = policy.place, policy.run, policy.run_on
        self.predicted_gains, self.rollout_base = policy.predicted_gains, self
        self.values, self.predicted_from = 0, dict[int, int]()  # by jobs that the candidate tried has started

    def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        self.predicted_from[int(sim.state.queued[PRESENT] - sim.state.queued[row])] = foresee_from
        due, _ = self.policy.run_for(sim, row, starts, foresee_from)
        assert not due or foresee_from > starts, "a try that is cut off has a prediction at its end alone"
        return due, math.nan if due else cost_so_far_s(sim, row, self.time_to_go) + self.error_s

    def value(self, sim: Simulation, row: int) -> float:
        self.values += 1
        arrays: Iterable[NDArray[Any]] = sim.state
        before = [array[row].copy() for array in arrays]
        spent, unit_s = cost_so_far_s(sim, row, self.time_to_go), objective_unit_s(sim, row, self.time_to_go)
        self.policy.run_on(sim, row)
        left_s = cost_so_far_s(sim, row, self.time_to_go) - spent
        for array, was in zip(arrays, before, strict=True):
            array[row] = was
        return left_s / unit_s


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("horizon", [0, 1, 4])
def test_an_exact_value_gives_the_costs_of_the_whole_run(objective: Objective, horizon: int) -> None:
    policy, values = untrained_candidates(waiting=True), 0
    for ring in (False, True):
        for order in ORDERS.values():
            case = busy_case(ring=ring)
            batch = case.scenarios._replace(submit_s=np.zeros_like(case.scenarios.submit_s))
            rules = case.rules._replace(order=order)
            sim = at_first_decision(case._replace(scenarios=batch, rules=rules))
            seer = Seer(policy, objective)
            costs_s = Rollout(seer, Search(futures=3, horizon=horizon), objective).costs_s(sim, 0)
            whole_s = Rollout(policy, Search(futures=3), objective).costs_s(sim, 0)
            assert costs_s == pytest.approx(whole_s, rel=1e-12)
            values += seer.values
    assert values > 0


@settings(max_examples=examples(15))
@given(cases(), st.sampled_from(OBJECTIVES), st.sampled_from([0.0, 1024.0]))
def test_one_error_of_all_predictions_changes_no_decision(case: Case, objective: Objective, error_s: float) -> None:
    policy = untrained_candidates(waiting=True)  # without predictions
    blind, predicting = (Rollout(base, Search(3, 4), objective) for base in (policy, Seer(policy, objective, error_s)))
    assert run_policy(case, predicting)[0] == run_policy(case, blind)[0]


def test_predictions_on_the_way_affect_a_decision() -> None:
    class Wrong(Seer):
        def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
            due, cost_s = super().run_for(sim, row, starts, foresee_from)
            return due, -1e3 * cost_s

    sim, policy = at_first_decision(busy_case(ring=True)), untrained_candidates(waiting=True)
    exact, wrong = (Rollout(base(policy, "jct"), Search(3, 4), "jct") for base in (Seer, Wrong))
    assert exact.choose_candidate(sim, 0) != wrong.choose_candidate(sim, 0)
    (ends, foreseen), (same_ends, misled) = (each.end_and_foreseen_gains(sim, 0) for each in (exact, wrong))
    np.testing.assert_array_equal(ends, same_ends)
    np.testing.assert_allclose(misled, -1e3 * foreseen)


def where_waiting_is_a_candidate() -> Simulation:
    case = busy_case(ring=True)
    sim = at_first_decision(case._replace(rules=case.rules._replace(waiting=True)))
    while not any(is_wait(sim, 0, candidate) for candidate in range(list_candidates(sim, 0))):
        assert HEURISTICS["eft"].place(sim, 0)
        start(sim, 0)
        assert advance(sim, 0)
    return sim


def test_candidates_are_predicted_from_the_same_number_of_started_jobs_on() -> None:
    sim, seer = where_waiting_is_a_candidate(), Seer(untrained_candidates(waiting=True), "jct")
    Rollout(seer, Search(1, 15), "jct").choose_candidate(sim, 0)
    assert seer.predicted_from == {0: FORESEE_FROM, 1: FORESEE_FROM - 1}


def test_where_one_candidate_has_no_prediction_the_ends_count_for_all() -> None:
    class Short(Seer):
        def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
            due, cost_s = super().run_for(sim, row, starts, foresee_from)
            return due, math.nan if foresee_from == FORESEE_FROM else -1e3 * cost_s  # of waiting nothing

    sim, policy = where_waiting_is_a_candidate(), untrained_candidates(waiting=True)
    blind, short = (Rollout(base, Search(3, 15), "jct") for base in (policy, Short(policy, "jct")))
    assert short.choose_candidate(sim, 0) == blind.choose_candidate(sim, 0)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
def test_a_horizon_beyond_the_end_changes_no_end(*, ring: bool, order: int) -> None:
    case = busy_case(ring=ring)
    sim = at_first_decision(case._replace(rules=case.rules._replace(order=order)))
    base = untrained_candidates(waiting=True, time_to_go="jct")  # its value is nonsense
    whole, cut = (Rollout(base, Search(3, 15, horizon=horizon), "jct").gains(sim, 0) for horizon in (None, 10_000))
    np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("predicted", OBJECTIVES)
def test_tries_are_cut_off_only_where_the_value_predicts_the_objective(predicted: Objective) -> None:
    base, sim = untrained_candidates(waiting=True, time_to_go=predicted), at_first_decision(busy_case(ring=True))
    for objective in OBJECTIVES:
        whole, cut = (Rollout(base, Search(3, 4, horizon=horizon), objective).gains(sim, 0) for horizon in (None, 3))
        assert np.array_equal(whole, cut, equal_nan=True) == (objective != predicted)


@pytest.mark.parametrize(
    ("limits", "budget_s", "horizon"),
    [("", np.inf, None), ("@20ms", 0.02, None), ("@h16", np.inf, 16), ("@2.5ms,h0", 0.0025, 0)],
)
def test_limits_stand_behind_the_name(limits: str, budget_s: float, horizon: int | None, tmp_path: Path) -> None:
    foreseeing = untrained_candidates(waiting=True, time_to_go="makespan")
    save_policy(tmp_path / "any.zip", foreseeing.schema, foreseeing.network)
    policy = find_policy(f"rollout:{tmp_path / 'any.zip'}{limits}")
    assert isinstance(policy, Rollout)
    assert isinstance(policy.base, CandidatePolicy)
    assert (policy.search.budget_s, policy.search.horizon, policy.base.schema) == (
        budget_s, horizon, foreseeing.schema,
    )  # fmt: skip


@pytest.mark.parametrize("limits", ["", "20", "h", "16h", "20ms,", ",h16", "h16,20ms", "20msh16", "h-1", "h1.5"])
def test_limits_that_cannot_be_read_are_refused_in_one_line(limits: str) -> None:
    with pytest.raises(PluginError, match=r"as in rollout:patient@20ms, .*rollout:NAME\.zip@20ms,h16") as caught:
        find_policy(f"rollout:patient@{limits}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("patient", "cannot be cut off: no value predicts"),
        ("any.zip", "cannot be cut off: no value predicts"),
        pytest.param(str(CHECKPOINTS / "hetero64.zip"), "has no run_on", id="hetero64"),
    ],
)
def test_a_base_without_a_time_to_go_cannot_be_cut_off(
    base: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blind = untrained_candidates(waiting=True)
    save_policy(tmp_path / "any.zip", blind.schema, blind.network)
    with pytest.raises(PluginError, match=message) as caught:
        find_policy(f"rollout:{base}@h16")
    assert "\n" not in str(caught.value)
