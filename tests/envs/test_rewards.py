"""What rewards sum to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.model.outcome import metrics
from longshore.cluster.model.problem import Problem
from longshore.cluster.placing import DRAWS_PER_PLACEMENT, pick_by_draws
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.envs.batch import AgentView, Batch, episode_summaries
from tests.envs.random_run import problem_of, steps_of_episode
from tests.strategies import Case, cases
from tests.support.budgets import examples

PLAYS = {"action": st.sampled_from(("node", "gpu")), "seed": st.integers(0, 2**32 - 1)}


def rewards_of(batch: Batch, case: Case, seed: int) -> list[float]:
    """Return the rewards of one episode of random open actions."""
    steps = steps_of_episode(batch, case.row, np.random.default_rng(seed))
    next(steps)
    return [float(batch.rewards[0]) for _ in steps]


def ideal_s(case: Case) -> float:
    """Return the time that all work would take on the whole cluster at its speed."""
    scenarios, row = case.scenarios, case.row
    speed = scenarios.speed[row][case.cluster.gpu_node].sum()
    return float((scenarios.work_s[row] * scenarios.gpus[row]).sum() / speed)


@settings(max_examples=examples(40))
@given(case=cases(), reward=st.sampled_from(("dt", "potential")), **PLAYS)
def test_time_and_potential_sum_to_the_makespan_over_the_ideal_time(
    case: Case, action: str, reward: str, seed: int
) -> None:
    batch = Batch(problem_of(case), AgentView(action=action, observation="patent", reward=reward), 1)
    rewards = rewards_of(batch, case, seed)
    expected = -float(batch.sim.state.now_s[0]) / ideal_s(case)
    assert batch.sim.state.finished[0] == case.scenarios.jobs[case.row]
    assert sum(rewards) == pytest.approx(expected, abs=1e-5 * float(np.abs(rewards).sum()))


@settings(max_examples=examples(40))
@given(case=cases(), **PLAYS)
def test_jct_sums_to_the_mean_completion_time_over_the_ideal_time(case: Case, action: str, seed: int) -> None:
    batch = Batch(problem_of(case), AgentView(action=action, observation="patent", reward="jct"), 1)
    rewards = rewards_of(batch, case, seed)
    scenarios, row = case.scenarios, slice(case.row, case.row + 1)
    figures = metrics(
        outcome_of(batch.sim),
        scenarios.jobs[row],
        scenarios.gpus[row],
        scenarios.submit_s[row],
        case.cluster.gpu_node.size,
        scenarios.work_s[row],
    )
    assert sum(rewards) == pytest.approx(-figures.mean_jct_s[0] / ideal_s(case), rel=1e-5)


@settings(max_examples=examples(40))
@given(case=cases(), reward=st.sampled_from(("dt", "potential", "jct")), **PLAYS)
def test_the_summary_tells_the_sum_of_rewards_and_the_number_of_steps(
    case: Case, action: str, reward: str, seed: int
) -> None:
    batch = Batch(problem_of(case), AgentView(action=action, observation="patent", reward=reward), 1)
    rewards = rewards_of(batch, case, seed)
    summary = episode_summaries(batch, np.array([0]))[0]
    assert summary["r"] == pytest.approx(sum(rewards), abs=1e-5 * float(np.abs(rewards).sum()))
    assert summary["l"] == len(rewards)
    assert summary["r"] == pytest.approx(
        -(summary["mean_jct_s"] if reward == "jct" else summary["makespan_s"]) / ideal_s(case)
    )


def random_makespan_s(case: Case, run: int) -> float:
    """Return the makespan of a random run, decision by decision."""
    sim = simulation_of(Problem(case.cluster, case.scenarios, case.process, case.rules))
    reset(sim, 0, case.row)
    while advance(sim, 0):
        pick_by_draws(sim, 0, run * DRAWS_PER_PLACEMENT)
        start(sim, 0)
    return float(sim.state.now_s[0])


@settings(max_examples=examples(40))
@given(case=cases(), runs=st.integers(1, 8), **PLAYS)
def test_best_of_random_pays_at_the_end_by_how_much_the_random_runs_are_beaten(
    case: Case, runs: int, action: str, seed: int
) -> None:
    batch = Batch(problem_of(case), AgentView(action, "patent", "best_of_random", runs), 1)
    *before, last = rewards_of(batch, case, seed)
    random_s = min(random_makespan_s(case, run) for run in range(runs))
    assert not any(before)
    assert last == pytest.approx((random_s - float(batch.sim.state.now_s[0])) / random_s, abs=1e-6)
    assert episode_summaries(batch, np.array([0]))[0]["r"] == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize(("reward", "runs"), [("best_of_random", 0), ("best_of_random", 1001), ("dt", 8)])
def test_random_runs_that_no_reward_compares_with_are_refused(reward: str, runs: int) -> None:
    with pytest.raises(ValueError, match="random runs"):
        AgentView(reward=reward, random_runs=runs)
