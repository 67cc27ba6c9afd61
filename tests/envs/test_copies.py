"""Copies of environments and simulations, deep or through pickle, run on by themselves."""

import copy
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.registry import find_policy
from longshore.cluster.model.outcome import Outcome
from longshore.cluster.model.problem import Problem
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import AgentView
from tests.envs.copied_run import MAKERS, problem, trace
from tests.support import processes
from tests.support.budgets import examples

ROOT = Path(__file__).parents[2]
VIEWS = (
    AgentView("node", "full", "potential"),
    AgentView("gpu", "patent", "best_of_random"),
    AgentView("candidate", "full", "jct"),
)


def through_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


COPIES: tuple[Callable[[Any], Any], ...] = (copy.deepcopy, through_pickle)


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=examples(12))
@given(
    st.sampled_from(VIEWS), st.sampled_from(COPIES), st.integers(0, 40), st.integers(1, 40), st.integers(0, 2**32 - 1)
)
def test_a_copy_runs_on_as_the_original_would_and_leaves_it_alone(
    kind: str, view: AgentView, copied: Callable[[Any], Any], before: int, after: int, seed: int
) -> None:
    env, control = MAKERS[kind](problem(), view), MAKERS[kind](problem(), view)
    assert trace(env, before, seed) == trace(control, before, seed)
    one, other = copied(env), copied(env)
    trace(other, after, seed + 1)  # elsewhere
    expected = trace(control, after, seed)
    assert trace(env, after, seed) == expected
    assert trace(one, after, seed) == expected
    assert trace(copied(one), after, seed) == trace(env, after, seed)


@pytest.mark.full
def test_what_was_pickled_runs_on_in_another_process(tmp_path: Path) -> None:
    envs = [make(problem(), view) for make in MAKERS.values() for view in VIEWS]
    for env in envs:
        trace(env, 10, 0)
    (tmp_path / "envs").write_bytes(pickle.dumps(envs))
    command = [sys.executable, "-W", "error", "-m", "tests.envs.copied_run", str(tmp_path / "envs"), "30", "7"]
    done = processes.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [trace(env, 30, 7) for env in envs]


def test_an_environment_made_by_name_is_copied_with_its_wrappers() -> None:
    import longshore.envs  # noqa: F401

    env = gymnasium.make("longshore/Placement-v0", problem=problem())
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    twin.step(0)
    assert twin.unwrapped.batch.steps[0] == 1  # type: ignore[attr-defined]
    assert env.unwrapped.batch.steps[0] == 0  # type: ignore[attr-defined]
    assert env.unwrapped.batch.sim.state.decisions[0] == 0  # type: ignore[attr-defined]


def midway(problem: Problem) -> Simulation:
    """Return a simulation that stands at its third decision."""
    sim = simulation_of(problem)
    reset(sim, 0, 0)
    for _ in range(3):
        assert advance(sim, 0)
        HEURISTICS["pack"].place(sim, 0)
        start(sim, 0)
    return sim


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("policy", ["patient", "rollout:pack"])
def test_a_copy_of_a_simulation_ends_as_the_original(policy: str, copied: Callable[[Any], Any]) -> None:
    sim = midway(problem())
    twin = copied(sim)
    decisions = sim.state.decisions.copy()
    ends: list[Outcome] = []
    for each in (twin, sim):
        find_policy(policy).run_on(each, 0)  # type: ignore[attr-defined]
        ends.append(outcome_of(each))
        if each is twin:
            assert np.array_equal(sim.state.decisions, decisions)
    assert all(np.array_equal(*both) for both in zip(*ends, strict=True))


def test_a_shallow_copy_shares_its_arrays() -> None:
    sim = midway(problem())
    twin = copy.copy(sim)
    HEURISTICS["pack"].run_on(twin, 0)
    assert sim.state.finished[0] == 6
