"""What every policy must do, whoever wrote it."""

import numpy as np
import pytest
from hypothesis import given, settings

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.agents.registry import find_policy, policy_names
from longshore.cluster.engine import advance, reset, start, wait
from longshore.cluster.order import may_wait
from longshore.cluster.placing import undo_picks
from longshore.cluster.state import Simulation
from tests.compiled_runs import compiled, picks, play_policy, read_out, usable
from tests.strategies import Case, cases

NAMES = policy_names()
# Scratch; links between picks, which mean nothing once these are undone; and estimates, which double when somebody
# looks at one that was outlived, and so are the same whoever looks.
FREE_TO_CHANGE = {"best_set", "ends_s", "ends_job", "gpu_next", "guess_s"}


def remember(sim: Simulation) -> dict[str, bytes]:
    """Return all that a policy must leave as it is."""
    parts = [*sim.scenarios._asdict().items(), *sim.traits._asdict().items(), *sim.state._asdict().items()]
    return {
        name: np.asarray(values).tobytes()
        for name, values in parts
        if name not in FREE_TO_CHANGE and not name.startswith("trial_")
    }


def place_checked(policy: Policy, sim: Simulation) -> bool:
    """Let a policy decide, and check its decision."""
    before, could_be_used, waiting = remember(sim), set(usable(sim).tolist()), may_wait(sim, 0)
    need = int(sim.state.need[0])
    places = policy.place(sim, 0)
    chosen = picks(sim)
    assert len(chosen) == (need if places else 0)
    assert sim.state.need[0] == need - len(chosen)
    assert set(chosen) <= could_be_used
    assert places or (waiting and policy.waits)
    undo_picks(sim, 0)
    changed = [name for name, was in before.items() if remember(sim)[name] != was]
    assert not changed
    return policy.place(sim, 0) if places else False


def test_every_heuristic_is_registered() -> None:
    assert {name: policy for name in NAMES if (policy := find_policy(name)) in HEURISTICS.values()} == HEURISTICS


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_says_what_it_is(name: str) -> None:
    policy = find_policy(name)
    assert isinstance(policy, Policy)
    assert policy.name == name
    assert policy.about
    assert "\n" not in policy.about
    assert policy.waits in (True, False)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(case=cases())
def test_a_policy_picks_what_the_job_needs_and_changes_nothing_else(case: Case, name: str) -> None:
    sim, policy = compiled(case), find_policy(name)
    reset(sim, 0, case.row)
    while advance(sim, 0):
        if place_checked(policy, sim):
            start(sim, 0)
        else:
            wait(sim, 0)
    assert sim.state.finished[0] == case.scenarios.jobs[case.row]
    assert read_out(sim)[0] == play_policy(case, policy)[0]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=10)
@given(case=cases())
def test_a_policy_does_not_wait_where_waiting_is_off(case: Case, name: str) -> None:
    sim = compiled(case._replace(rules=case.rules._replace(waiting=False)))
    reset(sim, 0, case.row)
    while advance(sim, 0):
        assert find_policy(name).place(sim, 0)
        start(sim, 0)
