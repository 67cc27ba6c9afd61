"""The compiled network over candidates against PyTorch, and all ways to run by it against each other."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.learned.checkpoint import schema_of, untrained_network
from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.networks.candidates import (
    CandidateNetwork,
    CandidatePolicy,
    candidate_weights,
    cost_so_far_s,
    mean_network,
    member_network,
    objective_unit_s,
    observation_value,
    score_candidates,
)
from longshore.agents.rollouts import NO_HORIZON
from longshore.cluster.candidates.candidates import pick_candidate
from longshore.cluster.model.outcome import Event, Objective
from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.placing import undo_picks
from longshore.cluster.queue.order import may_wait
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import MAX_CANDIDATES, Simulation
from longshore.envs.batch import AgentView, Batch
from tests.compiled_runs import compiled, picks, read_out, run_policy
from tests.envs.random_run import problem_of, small_problem
from tests.plain_candidates import decisions
from tests.policies_under_test import untrained_candidates
from tests.strategies import Case, cases
from tests.support.budgets import examples

SHARPEN = 100.0  # an untrained network's logits hardly differ: rounding must not decide


def sharp_policy(seed: int, *, waits: bool) -> CandidatePolicy:
    """Return a policy of random weights whose logits lie well apart."""
    schema = schema_of(
        algorithm="group",
        network="candidates",
        action="candidate",
        observation="full",
        waiting=waits,
        node_gpus=(8,) * 8,
    )
    torch.manual_seed(seed)
    network = untrained_network(schema)
    assert isinstance(network, CandidateNetwork)
    with torch.no_grad():
        network.score.weight *= SHARPEN
    return CandidatePolicy("sharp", schema, network)


def case_of(problem: Problem, row: int) -> Case:
    return Case(problem.cluster, problem.scenarios, row, problem.process, problem.rules)


@settings(max_examples=examples(40))
@given(cases() | cases(nodes=(9, 12)), st.integers(0, 2**32 - 1))
def test_the_compiled_forward_pass_gives_the_networks_logits_and_value(case: Case, seed: int) -> None:
    policy = sharp_policy(seed, waits=True)
    weights, logits = candidate_weights(policy.network), np.zeros((1, MAX_CANDIDATES), dtype=np.float32)  # type: ignore[arg-type]
    for batch in decisions(problem_of(case), case.row, seed):
        candidates = int(batch.sim.state.candidates[0])
        score_candidates(weights, batch.observations, 0, candidates, logits)
        with torch.inference_mode():
            expected, value = policy.network(torch.from_numpy(batch.observations))
        np.testing.assert_allclose(logits[0, :candidates], expected[0, :candidates], rtol=1e-4, atol=1e-4)
        assert observation_value(weights, batch.observations, 0, candidates) == pytest.approx(
            value.item(), rel=1e-4, abs=1e-4
        )


def test_the_mean_of_networks_tells_the_mean_of_what_they_tell() -> None:
    networks = [sharp_policy(seed, waits=True).network for seed in (1, 2, 3)]
    candidates = [network for network in networks if isinstance(network, CandidateNetwork)]
    mean = mean_network(candidates)
    weights, logits = candidate_weights(mean), np.zeros((1, MAX_CANDIDATES), dtype=np.float32)
    assert (candidate_weights(candidates[0]).members, weights.members) == (1, 3)
    for batch in decisions(small_problem(1, waiting=True), 0, 4):
        observations, count = batch.observations, int(batch.sim.state.candidates[0])
        score_candidates(weights, observations, 0, count, logits)
        with torch.inference_mode():
            expected, values = (
                torch.stack(predicted_gains).mean(0)
                for predicted_gains in zip(*(one(torch.from_numpy(observations)) for one in candidates), strict=True)
            )
        np.testing.assert_allclose(logits[0, :count], expected[0, :count], rtol=1e-3, atol=1e-3)
        assert observation_value(weights, observations, 0, count) == pytest.approx(values.item(), rel=1e-4, abs=1e-4)


def test_a_member_of_a_mean_is_the_network_that_went_in() -> None:
    networks = [sharp_policy(seed, waits=True).network for seed in (1, 2, 3)]
    candidates = [network for network in networks if isinstance(network, CandidateNetwork)]
    for number, network in enumerate(candidates):
        member = member_network(mean_network(candidates), number).state_dict()
        for name, tensor in network.state_dict().items():
            assert name == "value.2.bias" or torch.allclose(member[name], tensor, rtol=1e-6), name


def run_one_by_one(case: Case, policy: CandidatePolicy) -> list[Event]:
    sim = compiled(case)
    reset(sim, 0, case.row)
    while advance(sim, 0):
        if policy.place(sim, 0):
            start(sim, 0)
        else:
            assert may_wait(sim, 0)
            wait(sim, 0)
    return read_out(sim)[0]


def run_on_from_the_middle(case: Case, policy: CandidatePolicy) -> list[Event]:
    sim = compiled(case)
    reset(sim, 0, case.row)
    for _ in range(3):
        if not advance(sim, 0):
            break
        if policy.place(sim, 0):
            start(sim, 0)
        else:
            wait(sim, 0)
    policy.run_on(sim, 0)
    return read_out(sim)[0]


def run_in_an_environment(case: Case, policy: CandidatePolicy) -> list[Event]:
    """Take the candidate of the largest logit, as PyTorch reckons it, in a batch of one row."""
    batch = Batch(problem_of(case), AgentView(action="candidate"), 1)
    batch.sim = compiled(case)  # which keeps its events
    batch.reset(case.row)
    by_torch = LearnedPolicy("by torch", policy.schema, policy.network)
    while batch.masks[0].any():
        batch.step(by_torch.choose_actions(batch.observations, batch.masks))
    return read_out(batch.sim)[0]


@pytest.mark.few(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("waiting", [False, True])
def test_all_ways_to_run_lead_to_the_same_events(order: str, *, waiting: bool) -> None:
    problem = small_problem(8, nodes=5, jobs=24, order=order, waiting=waiting, faults=4)
    waits = 0
    for row in range(8):
        case, policy = case_of(problem, row), sharp_policy(row, waits=True)
        events = run_policy(case, policy)[0]
        assert run_one_by_one(case, policy) == events
        assert run_on_from_the_middle(case, policy) == events
        assert run_in_an_environment(case, policy) == events
        assert run_policy(case, LearnedPolicy("by torch", policy.schema, policy.network))[0] == events
        waits += run_policy(case, policy)[1].decisions[0] > sum(event.kind == "start" for event in events)
    if order == "fifo":  # elsewhere placements that are refused are decisions too
        assert (waits > 0) == waiting


@pytest.mark.parametrize("waiting", [False, True])
def test_rows_that_are_run_side_by_side_run_as_each_does_alone(*, waiting: bool) -> None:
    problem, policy = small_problem(8, jobs=24, order="easy", waiting=waiting, faults=4), sharp_policy(5, waits=True)
    sim = simulation_of(problem, rows=8)
    policy.run(sim, np.arange(8))
    alone = [run_policy(case_of(problem, row), policy)[1].finish_s[0] for row in range(8)]
    assert (outcome_of(sim).finish_s == np.array(alone)).all()


def test_a_policy_that_never_learned_to_wait_takes_its_best_candidate_that_does_not() -> None:
    problem, policy = small_problem(8, jobs=24, waiting=True, faults=4), sharp_policy(0, waits=False)
    waiting = sharp_policy(0, waits=True)
    by_torch = LearnedPolicy("by torch", policy.schema, policy.network)
    differ = 0
    for row in range(8):
        events, outcome = run_policy(case_of(problem, row), policy)
        assert run_policy(case_of(problem, row), by_torch)[0] == events
        assert outcome.decisions[0] == sum(event.kind == "start" for event in events)
        differ += events != run_policy(case_of(problem, row), waiting)[0]
    assert differ > 0


def test_the_scores_of_a_policy_that_never_learned_to_wait_close_what_it_never_takes() -> None:
    problem, policy = small_problem(8, jobs=24, waiting=True, faults=4), sharp_policy(0, waits=False)
    sim = compiled(case_of(problem, 0))
    reset(sim, 0, 0)
    closed = 0
    while advance(sim, 0):
        best = int(policy.predicted_gains(sim, 0).argmax())
        closed += int(np.isinf(policy.predicted_gains(sim, 0)).sum())
        assert policy.place(sim, 0), "it waits"
        placed = picks(sim)
        undo_picks(sim, 0)
        assert pick_candidate(sim, 0, best)
        assert picks(sim) == placed, "its choice is not the candidate of the best score"
        start(sim, 0)
    assert closed > 0


@pytest.mark.parametrize("starts", [0, 1, 5, 1000])
def test_a_run_that_is_run_in_parts_is_that_which_is_run_at_once(starts: int) -> None:
    problem, policy = small_problem(1, jobs=24, waiting=True, faults=4), sharp_policy(0, waits=True)
    sim, whole = compiled(case_of(problem, 0)), run_policy(case_of(problem, 0), policy)
    reset(sim, 0, 0)
    due, foreseen_s = policy.run_for(sim, 0, starts, NO_HORIZON)
    assert due == (starts < 1000)
    assert math.isnan(foreseen_s)
    begun = [event for event in read_out(sim)[0] if event.kind == "start"]
    assert len(begun) == starts or not due
    assert sim.state.decisions[0] >= len(begun)
    policy.run_on(sim, 0)
    assert read_out(sim)[0] == whole[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize(("starts", "first"), [(NO_HORIZON, 0), (NO_HORIZON, 6), (9, 4), (5, 5)])
def test_what_is_foreseen_is_the_mean_of_what_the_value_tells_after_each_start(
    objective: Objective, starts: int, first: int
) -> None:
    policy = untrained_candidates(waiting=True, time_to_go=objective)
    case = case_of(small_problem(1, jobs=16, waiting=True, faults=4), 0)
    sim, other = compiled(case), compiled(case)
    foreseen_s, started, is_fresh = [], 0, False
    reset(sim, 0, 0)
    while advance(sim, 0) and started < starts:
        if is_fresh and started >= first:
            foreseen_s.append(
                cost_so_far_s(sim, 0, objective) + policy.value(sim, 0) * objective_unit_s(sim, 0, objective)
            )
        if is_fresh := policy.place(sim, 0):
            start(sim, 0)
            started += 1
        else:
            undo_picks(sim, 0)
            wait(sim, 0)
    reset(other, 0, 0)
    due, mean_s = policy.run_for(other, 0, starts, first)
    assert due == (starts < NO_HORIZON)
    assert read_out(other)[0] == read_out(sim)[0]
    assert mean_s == pytest.approx(np.mean(foreseen_s) if foreseen_s else math.nan, nan_ok=True)


def finishes_s(sim: Simulation, policy: CandidatePolicy) -> np.ndarray:
    policy.run(sim, np.arange(4))
    return outcome_of(sim).finish_s


def test_later_changes_of_the_network_do_not_reach_the_policy() -> None:
    problem, policy = small_problem(4), sharp_policy(1, waits=False)
    sim = simulation_of(problem, rows=4)
    before = finishes_s(sim, policy)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.neg_()
    assert (finishes_s(sim, policy) == before).all()
