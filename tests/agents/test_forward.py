"""The compiled network over moves against PyTorch, and all ways to play by it against each other."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.learned.candidate_policy import MovesPolicy
from longshore.agents.learned.checkpoint import network_of, schema_of
from longshore.agents.learned.forward import moves_weights, score_moves, tell_value
from longshore.agents.learned.objective import goal_unit_s, spent_s
from longshore.agents.learned.schema import Goal
from longshore.agents.networks.networks import MovesNetwork, mean_of, member_of
from longshore.agents.rollouts.rollout import NEVER
from longshore.cluster.candidates.candidates import pick_move
from longshore.cluster.dispatch.order import may_wait
from longshore.cluster.dispatch.placing import undo_picks
from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.scenarios import ORDERS
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import MOVES, Simulation
from longshore.envs.batch import Batch, View
from tests.compiled_runs import compiled, picks, play_policy, read_out
from tests.envs.random_play import problem_of, small_problem
from tests.plain_moves import decisions
from tests.policies_under_test import untrained_moves
from tests.strategies import Case, cases

SHARPEN = 100.0  # an untrained network's logits hardly differ: rounding must not decide


def sharp_policy(seed: int, *, waits: bool) -> MovesPolicy:
    """Return a policy of random weights whose logits lie well apart."""
    schema = schema_of(
        algorithm="group", network="moves", action="candidate", observation="full", waiting=waits, node_gpus=(8,) * 8
    )
    torch.manual_seed(seed)
    network = network_of(schema)
    assert isinstance(network, MovesNetwork)
    with torch.no_grad():
        network.score.weight *= SHARPEN
    return MovesPolicy("sharp", schema, network)


def case_of(problem: Problem, row: int) -> Case:
    return Case(problem.cluster, problem.scenarios, row, problem.process, problem.rules)


@settings(max_examples=40)
@given(cases() | cases(nodes=(9, 12)), st.integers(0, 2**32 - 1))
def test_the_compiled_forward_pass_gives_the_networks_logits_and_value(case: Case, seed: int) -> None:
    policy = sharp_policy(seed, waits=True)
    weights, logits = moves_weights(policy.network), np.zeros((1, MOVES), dtype=np.float32)  # type: ignore[arg-type]
    for batch in decisions(problem_of(case), case.row, seed):
        moves = int(batch.sim.state.moves[0])
        score_moves(weights, batch.observations, 0, moves, logits)
        with torch.inference_mode():
            expected, value = policy.network(torch.from_numpy(batch.observations))
        np.testing.assert_allclose(logits[0, :moves], expected[0, :moves], rtol=1e-4, atol=1e-4)
        assert tell_value(weights, batch.observations, 0, moves) == pytest.approx(value.item(), rel=1e-4, abs=1e-4)


def test_the_mean_of_networks_tells_the_mean_of_what_they_tell() -> None:
    networks = [sharp_policy(seed, waits=True).network for seed in (1, 2, 3)]
    moves = [network for network in networks if isinstance(network, MovesNetwork)]
    mean = mean_of(moves)
    weights, logits = moves_weights(mean), np.zeros((1, MOVES), dtype=np.float32)
    assert (moves_weights(moves[0]).members, weights.members) == (1, 3)
    for batch in decisions(small_problem(1, waiting=True), 0, 4):
        seen, count = batch.observations, int(batch.sim.state.moves[0])
        score_moves(weights, seen, 0, count, logits)
        with torch.inference_mode():
            expected, values = (
                torch.stack(told).mean(0) for told in zip(*(one(torch.from_numpy(seen)) for one in moves), strict=True)
            )
        np.testing.assert_allclose(logits[0, :count], expected[0, :count], rtol=1e-3, atol=1e-3)
        assert tell_value(weights, seen, 0, count) == pytest.approx(values.item(), rel=1e-4, abs=1e-4)


def test_a_member_of_a_mean_is_the_network_that_went_in() -> None:
    networks = [sharp_policy(seed, waits=True).network for seed in (1, 2, 3)]
    moves = [network for network in networks if isinstance(network, MovesNetwork)]
    for number, network in enumerate(moves):
        member = member_of(mean_of(moves), number).state_dict()
        for name, tensor in network.state_dict().items():
            assert name == "value.2.bias" or torch.allclose(member[name], tensor, rtol=1e-6), name


def play_one_by_one(case: Case, policy: MovesPolicy) -> list[Event]:
    sim = compiled(case)
    reset(sim, 0, case.row)
    while advance(sim, 0):
        if policy.place(sim, 0):
            start(sim, 0)
        else:
            assert may_wait(sim, 0)
            wait(sim, 0)
    return read_out(sim)[0]


def play_on_from_the_middle(case: Case, policy: MovesPolicy) -> list[Event]:
    sim = compiled(case)
    reset(sim, 0, case.row)
    for _ in range(3):
        if not advance(sim, 0):
            break
        if policy.place(sim, 0):
            start(sim, 0)
        else:
            wait(sim, 0)
    policy.play_on(sim, 0)
    return read_out(sim)[0]


def play_in_an_environment(case: Case, policy: MovesPolicy) -> list[Event]:
    """Take the move of the largest logit, as PyTorch reckons it, in a batch of one row."""
    batch = Batch(problem_of(case), View(action="candidate"), 1)
    batch.sim = compiled(case)  # which keeps its events
    batch.reset(case.row)
    while batch.masks[0].any():
        batch.step(policy.choose(batch.observations, batch.masks))
    return read_out(batch.sim)[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("waiting", [False, True])
def test_all_ways_to_play_lead_to_the_same_events(order: str, *, waiting: bool) -> None:
    problem = small_problem(8, nodes=5, jobs=24, order=order, waiting=waiting, faults=4)
    waits = 0
    for row in range(8):
        case, policy = case_of(problem, row), sharp_policy(row, waits=True)
        events = play_policy(case, policy)[0]
        assert play_one_by_one(case, policy) == events
        assert play_on_from_the_middle(case, policy) == events
        assert play_in_an_environment(case, policy) == events
        waits += play_policy(case, policy)[1].decisions[0] > sum(event.kind == "start" for event in events)
    if order == "fifo":  # elsewhere placements that are refused are decisions too
        assert (waits > 0) == waiting


@pytest.mark.parametrize("waiting", [False, True])
def test_rows_that_are_played_side_by_side_play_as_each_does_alone(*, waiting: bool) -> None:
    problem, policy = small_problem(8, jobs=24, order="easy", waiting=waiting, faults=4), sharp_policy(5, waits=True)
    sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, rows=8)
    policy.play(sim, np.arange(8))
    alone = [play_policy(case_of(problem, row), policy)[1].finish_s[0] for row in range(8)]
    assert (outcome_of(sim).finish_s == np.array(alone)).all()


def test_a_policy_that_never_learned_to_wait_takes_its_best_move_that_does_not() -> None:
    problem, policy = small_problem(8, jobs=24, waiting=True, faults=4), sharp_policy(0, waits=False)
    waiting = sharp_policy(0, waits=True)
    differ = 0
    for row in range(8):
        events, outcome = play_policy(case_of(problem, row), policy)
        assert outcome.decisions[0] == sum(event.kind == "start" for event in events)
        differ += events != play_policy(case_of(problem, row), waiting)[0]
    assert differ > 0


def test_the_scores_of_a_policy_that_never_learned_to_wait_close_what_it_never_takes() -> None:
    problem, policy = small_problem(8, jobs=24, waiting=True, faults=4), sharp_policy(0, waits=False)
    sim = compiled(case_of(problem, 0))
    reset(sim, 0, 0)
    closed = 0
    while advance(sim, 0):
        best = int(policy.told(sim, 0).argmax())
        closed += int(np.isinf(policy.told(sim, 0)).sum())
        assert policy.place(sim, 0), "it waits"
        placed = picks(sim)
        undo_picks(sim, 0)
        assert pick_move(sim, 0, best)
        assert picks(sim) == placed, "its choice is not the move of the best score"
        start(sim, 0)
    assert closed > 0


@pytest.mark.parametrize("starts", [0, 1, 5, 1000])
def test_a_run_that_is_played_in_parts_is_that_which_is_played_at_once(starts: int) -> None:
    problem, policy = small_problem(1, jobs=24, waiting=True, faults=4), sharp_policy(0, waits=True)
    sim, whole = compiled(case_of(problem, 0)), play_policy(case_of(problem, 0), policy)
    reset(sim, 0, 0)
    due, foreseen_s = policy.play_for(sim, 0, starts, NEVER)
    assert due == (starts < 1000)
    assert math.isnan(foreseen_s)
    begun = [event for event in read_out(sim)[0] if event.kind == "start"]
    assert len(begun) == starts or not due
    assert sim.state.decisions[0] >= len(begun)
    policy.play_on(sim, 0)
    assert read_out(sim)[0] == whole[0]


@pytest.mark.parametrize("goal", get_args(Goal))
@pytest.mark.parametrize(("starts", "first"), [(NEVER, 0), (NEVER, 6), (9, 4), (5, 5)])
def test_what_is_foreseen_is_the_mean_of_what_the_value_tells_after_each_start(
    goal: Goal, starts: int, first: int
) -> None:
    policy = untrained_moves(waiting=True, time_to_go=goal)
    case = case_of(small_problem(1, jobs=16, waiting=True, faults=4), 0)
    sim, other = compiled(case), compiled(case)
    foreseen_s, started, is_fresh = [], 0, False
    reset(sim, 0, 0)
    while advance(sim, 0) and started < starts:
        if is_fresh and started >= first:
            foreseen_s.append(spent_s(sim, 0, goal) + policy.value(sim, 0) * goal_unit_s(sim, 0, goal))
        if is_fresh := policy.place(sim, 0):
            start(sim, 0)
            started += 1
        else:
            undo_picks(sim, 0)
            wait(sim, 0)
    reset(other, 0, 0)
    due, mean_s = policy.play_for(other, 0, starts, first)
    assert due == (starts < NEVER)
    assert read_out(other)[0] == read_out(sim)[0]
    assert mean_s == pytest.approx(np.mean(foreseen_s) if foreseen_s else math.nan, nan_ok=True)


def finishes_s(sim: Simulation, policy: MovesPolicy) -> np.ndarray:
    policy.play(sim, np.arange(4))
    return outcome_of(sim).finish_s


def test_later_changes_of_the_network_do_not_reach_the_policy() -> None:
    problem, policy = small_problem(4), sharp_policy(1, waits=False)
    sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, rows=4)
    before = finishes_s(sim, policy)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.neg_()
    assert (finishes_s(sim, policy) == before).all()
