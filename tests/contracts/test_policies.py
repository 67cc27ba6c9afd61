"""What every policy must do, ours and those of plug-ins: heuristics, random networks, a shipped one, and rollouts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.registry import HEURISTIC_NAMES
from longshore.cluster.model.problem import Problem
from longshore.cluster.placing import take_gpu
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.state.state import Simulation
from longshore.testing import check_policy
from longshore.testing.policies import (
    check_decisions,
    check_description,
    check_reads_no_unknowns,
    check_waits_only_if_allowed,
)
from tests.policies_under_test import POLICIES
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples

DRAW_FROM_THE_SEED = {"random", "best-of-random"}


def problem_of(case: Case) -> Problem:
    return Problem(case.cluster, case.scenarios, case.process, case.rules)


def test_every_heuristic_is_registered() -> None:
    assert tuple(HEURISTICS) == HEURISTIC_NAMES
    assert {name: policy for name, policy in POLICIES.items() if policy in HEURISTICS.values()} == HEURISTICS


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_describes_itself(name: str) -> None:
    check_description(POLICIES[name])
    assert POLICIES[name].name == name


@pytest.mark.few(13)
@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(10))
@given(case=cases() | needy_cases() | planned_cases())
def test_a_policy_picks_what_the_job_needs_changes_nothing_else_and_runs_as_it_places(case: Case, name: str) -> None:
    check_decisions(POLICIES[name], problem_of(case), case.row)


@pytest.mark.few(13)
@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(5))
@given(case=cases() | needy_cases() | planned_cases())
def test_a_policy_does_not_wait_where_waiting_is_off(case: Case, name: str) -> None:
    check_waits_only_if_allowed(POLICIES[name], problem_of(case), case.row)


@pytest.mark.few(13)
@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(10))
@given(case=cases(), decisions=st.integers(0, 15), seed=st.integers(0, 2**32 - 1))
def test_a_policy_does_not_see_what_cannot_be_known(case: Case, decisions: int, seed: int, name: str) -> None:
    draws = name in DRAW_FROM_THE_SEED
    check_reads_no_unknowns(POLICIES[name], problem_of(case), case.row, decisions, seed=seed, draws=draws)


class Cheat:
    """A policy that reads what no scheduler can know: it takes the first GPUs, or the last if jobs turn out long."""

    name, about, waits = "cheat", "reads the true work", False

    def place(self, sim: Simulation, row: int) -> bool:
        usable = np.flatnonzero((sim.state.gpu_job[row] < 0) & (sim.state.gpu_down[row] == 0))
        is_long = sim.scenarios.work_s[sim.state.scenario[row]].sum() > THRESHOLD_S
        for gpu in (usable[::-1] if is_long else usable)[: int(sim.state.need[row])].tolist():
            take_gpu(sim, row, gpu)
        return True

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        for row, scenario in enumerate(scenarios):
            reset(sim, row, scenario)
            while advance(sim, row):
                self.place(sim, row)
                start(sim, row)


class Greedy(Cheat):
    """A policy that takes one GPU less than it is asked for."""

    def place(self, sim: Simulation, row: int) -> bool:
        usable = np.flatnonzero((sim.state.gpu_job[row] < 0) & (sim.state.gpu_down[row] == 0))
        for gpu in usable[: int(sim.state.need[row]) - 1].tolist():
            take_gpu(sim, row, gpu)
        return True


THRESHOLD_S = float(hetero64(1, 0, nodes=5, jobs=12, load=2.0).scenarios.work_s.sum())


def test_one_call_checks_all_of_it() -> None:
    check_policy(HEURISTICS["patient"])
    with pytest.raises(AssertionError, match="no scheduler can know"):
        check_policy(Cheat())
    with pytest.raises(AssertionError, match="GPUs were picked for a job that needs"):
        check_policy(Greedy())
