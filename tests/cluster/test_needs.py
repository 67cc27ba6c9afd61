"""Jobs that cannot run on every node: where they run, whom they hold up, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import EVERY_JOB, ORDERS, Problem
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.placing import take_gpu, take_node, undo_picks
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import AgentView, Batch
from tests.cases_by_hand import Jobs, hand_case
from tests.compiled_runs import at_first_decision, compiled, run_heuristic, run_policy
from tests.deep_cases import deep_case
from tests.envs.random_run import open_actions, problem_of
from tests.policies_under_test import POLICIES
from tests.strategies import Case, cases, needy_cases, with_needs
from tests.support.budgets import examples

BACKFILLING = [name for name in ORDERS if name != "fifo"]
SEEDS = st.integers(0, 2**32 - 1)


def unsuited(case: Case, events: list[Event]) -> list[Event]:
    """Return the starts on nodes that do not suit the job."""
    suits, needs = case.cluster.suits, case.scenarios.needs[case.row]
    node = case.cluster.gpu_node
    return [it for it in events if it.kind == "start" and not suits[needs[it.job], node[list(it.gpus)]].all()]


def assert_same(outcome: Outcome, other: Outcome) -> None:
    for name, values in outcome._asdict().items():
        assert np.array_equal(values, getattr(other, name)), name


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=examples(10))
@given(case=needy_cases())
def test_no_policy_runs_a_job_on_a_node_that_does_not_suit_it(case: Case, name: str) -> None:
    events, outcome = run_policy(case, POLICIES[name])
    assert unsuited(case, events) == []
    assert outcome.finished[0] == case.scenarios.jobs[case.row]


@settings(max_examples=examples(60))
@given(needy_cases(), st.sampled_from(("node", "gpu", "candidate")), SEEDS)
def test_no_open_action_runs_a_job_on_a_node_that_does_not_suit_it(case: Case, action: str, seed: int) -> None:
    batch, rng = Batch(problem_of(case), AgentView(action=action), 1), np.random.default_rng(seed)
    state, suits = batch.sim.state, case.cluster.suits
    batch.reset(case.row)
    while batch.masks[0].any():
        held = state.gpu_job[0] >= 0
        kind = case.scenarios.needs[case.row, state.gpu_job[0, held]]
        assert suits[kind, case.cluster.gpu_node[held]].all()
        batch.step(open_actions(batch.masks, rng))
    assert state.finished[0] == case.scenarios.jobs[case.row]


@settings(max_examples=examples(60))
@given(cases(), st.sampled_from(("pack", "patient", "random")), SEEDS)
def test_needs_that_every_node_meets_change_nothing_to_the_digit(case: Case, name: str, seed: int) -> None:
    kinds = np.random.default_rng(seed).integers(0, 3, case.scenarios.needs.shape)
    needy = with_needs(case, np.ones((2, case.cluster.speed.size), dtype=np.int64), kinds)
    events, outcome = run_heuristic(case, name)
    needy_events, needy_outcome = run_heuristic(needy, name)
    assert events == needy_events
    assert_same(outcome, needy_outcome)


def deep_needs(seed: int, order: str) -> Case:
    case, rng = deep_case(seed, order), np.random.default_rng(seed)
    needs = rng.integers(0, 2, (3, case.cluster.speed.size))
    return with_needs(case, needs, rng.integers(0, 4, case.scenarios.needs.shape))


@pytest.mark.parametrize("name", ["pack", "patient", "random"])
@pytest.mark.parametrize("order", BACKFILLING)
@settings(max_examples=examples(25))
@given(seed=SEEDS, index_from=st.sampled_from((1, 20, 64)))
def test_a_schedule_is_the_same_with_and_without_an_index(order: str, name: str, seed: int, index_from: int) -> None:
    case = deep_needs(seed, order)
    events, outcome = run_heuristic(case, name, index_from)
    plain_events, plain_outcome = run_heuristic(case, name, EVERY_JOB)
    assert events == plain_events
    assert_same(outcome, plain_outcome)


def two_nodes(jobs: Jobs, kinds: list[int], order: str = "easy", **rules: Any) -> Case:
    """Two nodes of two GPUs: class 1 takes the first alone, class 2 the second alone."""
    case = hand_case(grid_cluster(2, 2), jobs, order=ORDERS[order], **rules)
    return with_needs(case, np.array([[1, 0], [0, 1]]), np.array([kinds]))


def starts(case: Case) -> list[tuple[int, float]]:
    return [(it.job, it.time_s) for it in run_heuristic(case, "pack")[0] if it.kind == "start"]


@pytest.mark.parametrize("order", BACKFILLING)
def test_a_head_whose_nodes_are_full_stops_no_job_that_cannot_use_them(order: str) -> None:
    jobs: Jobs = [(2, 10.0, 0.0), (2, 100.0, 0.0), (2, 500.0, 0.0)]
    assert starts(two_nodes(jobs, [1, 1, 2], order)) == [(0, 0.0), (2, 0.0), (1, 10.0)]


def test_under_fifo_it_stops_everybody_as_ever() -> None:
    jobs: Jobs = [(2, 10.0, 0.0), (2, 100.0, 0.0), (2, 500.0, 0.0)]
    assert starts(two_nodes(jobs, [1, 1, 2], "fifo")) == [(0, 0.0), (1, 10.0), (2, 10.0)]


def test_a_job_that_could_take_its_nodes_passes_it_only_beside_them() -> None:
    # Job 2 runs long and takes any node; `pack` puts it where it leaves the smallest hole, which is node 1.
    jobs: Jobs = [(1, 10.0, 0.0), (2, 100.0, 0.0), (2, 500.0, 0.0), (1, 500.0, 0.0)]
    assert starts(two_nodes(jobs, [1, 1, 0, 0])) == [(0, 0.0), (2, 0.0), (1, 10.0), (3, 110.0)]


@pytest.mark.parametrize("kind", [1, 2])
def test_while_an_aged_job_waits_others_start_only_where_it_cannot_run(kind: int) -> None:
    jobs: Jobs = [(2, 100.0, 0.0), (2, 10.0, 0.0), (2, 5.0, 90.0)]
    expected = [(2, 90.0), (1, 100.0)] if kind == 2 else [(1, 100.0), (2, 110.0)]
    assert starts(two_nodes(jobs, [1, 1, kind], ageing_s=50.0)) == [(0, 0.0), *expected]


@pytest.mark.parametrize("take", [take_gpu, take_node])
def test_no_job_starts_on_a_gpu_of_a_node_that_does_not_suit_it(take: Callable[[Simulation, int, int], None]) -> None:
    sim = at_first_decision(two_nodes([(1, 10.0, 0.0)], [2]))
    assert sim.state.free[0].tolist() == [0, 2]
    take(sim, 0, 0)
    with pytest.raises(ValueError, match="a job was to start on a GPU of a node that does not suit it"):
        start(sim, 0)
    undo_picks(sim, 0)
    assert sim.state.free[0].tolist() == [0, 2]
    take_gpu(sim, 0, 2)
    assert start(sim, 0)


def test_between_decisions_all_usable_gpus_count() -> None:
    sim = compiled(two_nodes([(2, 10.0, 0.0)], [2]))
    reset(sim, 0, 0)
    while advance(sim, 0):
        assert sim.state.usable[0] == 2
        HEURISTICS["pack"].place(sim, 0)
        start(sim, 0)
    assert sim.state.free[0].tolist() == [2, 2]
    assert sim.state.usable[0] == 4


def needy(**changes: Any) -> Problem:
    case = two_nodes([(2, 10.0, 0.0), (1, 10.0, 0.0)], [1, 2])
    return Problem(
        case.cluster._replace(**{name: value for name, value in changes.items() if name == "suits"}),
        case.scenarios._replace(**{name: value for name, value in changes.items() if name != "suits"}),
        case.process,
        case.rules,
    )


def ints(*rows: list[int]) -> NDArray[np.int32]:
    return np.array(rows, dtype=np.int32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": ints([3, 1])}, "a job asks 3 GPUs of nodes that suit it, which have 2"),
        ({"suits": ints([1, 1], [1, 0], [0, 0])}, "a job asks 1 GPUs of nodes that suit it, which have 0"),
        ({"needs": ints([1, 3])}, r"needs\[0, 1\] is 3, expected 0 to 2"),
        ({"needs": ints([1, -1])}, r"needs\[0, 1\] is -1, expected 0 to 2"),
        ({"suits": ints([1, 1], [1, 2], [0, 1])}, r"suits\[1, 1\] is 2, expected 0 or 1"),
        ({"suits": ints([1, 0], [1, 0], [0, 1])}, r"suits\[0, 1\] is 0, expected 1, for class 0 takes every node"),
        ({"suits": ints([1], [1], [1])}, r"suits has shape \(3, 1\), expected at least one class and 2 nodes"),
    ],
)
def test_needs_that_no_simulation_could_meet_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulation_of(needy(**changes))
