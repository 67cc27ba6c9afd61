"""The record of a network's last decision has what it decided by."""

import copy
from typing import TypeVar

import numpy as np
import pytest
import torch

from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.networks.candidates import CandidatePolicy
from longshore.agents.protocol import Policy, RecordingPolicy
from longshore.agents.rollouts import Rollout, Search
from longshore.cluster.placing import undo_picks
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import Simulation
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.policies_under_test import LEARNED, untrained_candidates

LEARNED_CANDIDATES = [untrained_candidates(waiting=True, time_to_go=objective) for objective in ("makespan", "jct")]
Wild = TypeVar("Wild", bound=LearnedPolicy)


@pytest.mark.parametrize("policy", LEARNED, ids=lambda policy: policy.name)
def test_a_network_gives_the_same_log_probabilities_to_what_it_says_that_it_saw(policy: RecordingPolicy) -> None:
    case = busy_case(ring=True)
    sim = compiled(case)
    reset(sim, 0, case.row)
    decisions = 0
    assert isinstance(policy, LearnedPolicy)
    while advance(sim, 0) and decisions < 20:
        decisions += 1
        placed = policy.place(sim, 0)
        seen = policy.last_decision()
        with torch.inference_mode():
            logits = policy.network(torch.from_numpy(seen.observations))[0][:, : seen.masks.shape[1]]
            found = torch.where(torch.from_numpy(seen.masks), logits, -torch.inf).log_softmax(dim=1).numpy()
        np.testing.assert_allclose(found, seen.log_probabilities, atol=1e-4)
        taken = seen.log_probabilities[np.arange(seen.actions.size), seen.actions]
        assert (taken >= seen.log_probabilities.max(axis=1) - 1e-3).all()
        if placed:
            start(sim, 0)
        else:
            undo_picks(sim, 0)
            wait(sim, 0)
    assert decisions >= 10


def decide_ten_times(policy: Policy, sim: Simulation) -> None:
    """Let a policy place ten jobs, or let them wait."""
    for _ in range(10):
        assert advance(sim, 0)
        if policy.place(sim, 0):
            start(sim, 0)
        else:
            undo_picks(sim, 0)
            wait(sim, 0)


@pytest.mark.parametrize("policy", LEARNED, ids=lambda policy: policy.name)
@pytest.mark.parametrize("weight", [3e38, -3e38, 1e20])
def test_a_network_whose_weights_overflow_places_jobs_nevertheless(policy: LearnedPolicy, weight: float) -> None:
    case = busy_case(ring=True)
    broken = wild(policy, weight)
    sim = compiled(case)
    reset(sim, 0, case.row)
    decide_ten_times(broken, sim)


@pytest.mark.parametrize("base", LEARNED_CANDIDATES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("weight", [3e38, -3e38, 1e20])
@pytest.mark.parametrize("horizon", [None, 2])
def test_rollouts_of_a_network_whose_weights_overflow_place_jobs_nevertheless(
    base: CandidatePolicy, weight: float, horizon: int | None
) -> None:
    case = busy_case(ring=True)
    rollout = Rollout(wild(base, weight), Search(futures=2, width=2, horizon=horizon))
    sim = compiled(case)
    reset(sim, 0, case.row)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        decide_ten_times(rollout, sim)


def wild(policy: Wild, weight: float) -> Wild:
    """Return the same policy with a network all of whose weights are the same."""
    broken = copy.deepcopy(policy.network)
    for parameter in broken.parameters():
        torch.nn.init.constant_(parameter, weight)
    return type(policy)("wild", policy.schema, broken)


def test_a_network_that_has_not_decided_has_seen_nothing() -> None:
    for policy in (LEARNED[0], LEARNED[4]):
        assert isinstance(policy, LearnedPolicy)
        fresh = type(policy)("fresh", policy.schema, policy.network)
        with pytest.raises(ValueError, match="has not decided yet"):
            fresh.last_decision()
