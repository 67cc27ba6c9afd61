"""What every policy must do, whoever wrote it: heuristics, networks of random weights, and one that is shipped."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from longshore.agents.checkpoint import load_policy, network_of, schema_of
from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned import LearnedPolicy
from longshore.agents.protocol import Policy
from longshore.agents.registry import find_policy, policy_names
from longshore.cluster.engine import advance, reset, start, wait
from longshore.cluster.order import may_wait
from longshore.cluster.placing import undo_picks
from longshore.cluster.state import Simulation
from tests.compiled_runs import compiled, picks, play_policy, read_out, usable
from tests.strategies import Case, cases


def untrained(*, action: str, waiting: bool) -> LearnedPolicy:
    """Return a policy of random weights, for clusters of any size."""
    torch.manual_seed(3)
    schema = schema_of(
        algorithm="ppo", network="set", action=action, observation="full", waiting=waiting, node_gpus=(8,) * 8
    )
    return LearnedPolicy(f"untrained-{action}{'-waiting' * waiting}", schema, network_of(schema))


CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
LEARNED: list[Policy] = [
    *(untrained(action=action, waiting=waiting) for action in ("node", "gpu") for waiting in (False, True)),
    load_policy(CHECKPOINTS / "hetero64.zip"),
]
POLICIES = {policy.name: policy for policy in [*map(find_policy, policy_names()), *LEARNED]}
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
    after = remember(sim)
    assert [name for name, was in before.items() if after[name] != was] == []
    assert policy.place(sim, 0) == places, "it decides otherwise when asked again"
    assert picks(sim) == chosen
    return places


def test_every_heuristic_is_registered() -> None:
    assert {name: policy for name, policy in POLICIES.items() if policy in HEURISTICS.values()} == HEURISTICS


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_says_what_it_is(name: str) -> None:
    policy = POLICIES[name]
    assert isinstance(policy, Policy)
    assert policy.name == name
    assert policy.about
    assert "\n" not in policy.about
    assert policy.waits in (True, False)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=20)
@given(case=cases())
def test_a_policy_picks_what_the_job_needs_changes_nothing_else_and_plays_as_it_places(case: Case, name: str) -> None:
    sim, policy = compiled(case), POLICIES[name]
    reset(sim, 0, case.row)
    while advance(sim, 0):
        if place_checked(policy, sim):
            start(sim, 0)
        else:
            wait(sim, 0)
    assert sim.state.finished[0] == case.scenarios.jobs[case.row]
    assert read_out(sim)[0] == play_policy(case, policy)[0]


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=10)
@given(case=cases())
def test_a_policy_does_not_wait_where_waiting_is_off(case: Case, name: str) -> None:
    sim = compiled(case._replace(rules=case.rules._replace(waiting=False)))
    reset(sim, 0, case.row)
    while advance(sim, 0):
        assert POLICIES[name].place(sim, 0)
        start(sim, 0)
