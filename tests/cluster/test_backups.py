"""Backups for GPUs of slow nodes: against the plain reference, and what holds at every decision."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import Outcome
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.simulator.simulation import outcome_of
from longshore.cluster.state.state import Simulation
from tests.compiled_runs import compiled, run_heuristic
from tests.strategies import Case, backed_cases
from tests.support.budgets import examples

NAMES = st.sampled_from(sorted(HEURISTICS))


@settings(max_examples=examples(150))
@given(backed_cases(), NAMES)
def test_at_every_decision_a_relieved_gpu_is_kept_from_all_others_and_its_backup_is_on_a_node_that_is_well(
    case: Case, name: str
) -> None:
    sim = compiled(case)
    reset(sim, 0, case.row)
    while advance(sim, 0):
        check_backups(sim)
        (start if HEURISTICS[name].place(sim, 0) else wait)(sim, 0)
        check_backups(sim)
    assert (sim.state.kept_for == -1).all()
    assert sim.state.relieved[0] == 0


def check_backups(sim: Simulation) -> None:
    """Hold the state against what holds of every relieved GPU."""
    state, node = sim.state, sim.cluster.gpu_node
    for gpu in np.flatnonzero(state.kept_for[0] >= 0):
        job, backup = state.kept_for[0, gpu], state.backup_of[0, gpu]
        assert state.gpu_job[0, gpu] == -1
        assert state.gpu_down[0, gpu] > 0
        assert state.gpu_job[0, backup] == job
        assert (state.kept_for[0] == job).sum() <= sim.rules.backups
        if state.struck_s[0, job] < 0.0:
            assert state.node_slow[0, node[gpu]] == 1
            assert state.node_slow[0, node[backup]] == 0


@settings(max_examples=examples(60))
@given(backed_cases(), NAMES)
def test_the_same_scenario_gives_the_same_run(case: Case, name: str) -> None:
    one, other = (run_heuristic(case, name) for _ in range(2))
    assert one[0] == other[0]
    same_outcome(one[1], other[1])


@settings(max_examples=examples(60))
@given(backed_cases(), NAMES)
def test_backups_that_are_allowed_and_never_given_change_nothing(case: Case, name: str) -> None:
    """Where GPUs are alike and a slow node is as fast as ever, a backup makes no job faster."""
    scenarios = case.scenarios._replace(speed=np.ones_like(case.scenarios.speed))
    case = case._replace(scenarios=scenarios)
    rules = case.rules._replace(slow_factor=1.0, ring=False, node_penalty=0.0)
    without, allowed = (
        run_heuristic(case._replace(rules=rules._replace(backups=backups, detection_s=0.0)), name) for backups in (0, 8)
    )
    assert without[0] == allowed[0]
    assert allowed[1].backups[0] == 0
    same_outcome(without[1], allowed[1])


@settings(max_examples=examples(60))
@given(backed_cases())
def test_a_run_that_a_decision_parts_ends_as_one_that_goes_through(case: Case) -> None:
    whole, parted = compiled(case), compiled(case)
    HEURISTICS["pack"].run(whole, np.array([case.row], dtype=np.int64))
    reset(parted, 0, case.row)
    while advance(parted, 0):
        (start if HEURISTICS["pack"].place(parted, 0) else wait)(parted, 0)
    same_outcome(outcome_of(whole), outcome_of(parted))


def same_outcome(one: Outcome, other: Outcome) -> None:
    for name, values in one._asdict().items():
        assert np.array_equal(values, getattr(other, name)), name
