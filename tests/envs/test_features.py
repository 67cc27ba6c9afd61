"""Observations against their plain definitions."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.model.problem import Problem
from longshore.envs.batch import AgentView, Batch
from longshore.envs.layout import GLOBALS, NODE_FEATURES
from tests.envs.plain_features import Decision, plain_features
from tests.envs.random_run import open_actions, problem_of, small_problem, steps_of_episode
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples

STEPS = 60  # of one random problem


@settings(max_examples=examples(40))
@given(cases() | needy_cases() | planned_cases(), st.sampled_from(("node", "gpu")), st.integers(0, 2**32 - 1))
def test_the_full_observation_is_what_its_description_says(case: Case, action: str, seed: int) -> None:
    batch = Batch(problem_of(case), AgentView(action=action), 1)
    for _ in zip(range(STEPS), steps_of_episode(batch, case.row, np.random.default_rng(seed)), strict=False):
        if batch.masks[0].any():
            np.testing.assert_allclose(batch.observations[0], plain_features(batch, 0), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("action", ["node", "gpu"])
def test_the_full_observation_is_what_its_description_says_on_a_busy_cluster(action: str) -> None:
    batch = Batch(small_problem(nodes=5, jobs=24, faults=2, order="easy", waiting=True), AgentView(action=action), 8)
    rng = np.random.default_rng(2)
    batch.reset()
    for _ in range(40):
        batch.step(open_actions(batch.masks, rng))
        for row in np.flatnonzero(~batch.ended)[:2]:
            np.testing.assert_allclose(batch.observations[row], plain_features(batch, row), rtol=2e-5, atol=1e-6)
        batch.reset_rows(np.flatnonzero(batch.ended))


def test_the_best_run_of_the_simple_model_is_the_best_of_all_sets_of_nodes() -> None:
    batch = Batch(small_problem(nodes=6, jobs=24, faults=2), AgentView(), 1)
    found, best = [], []
    for _ in steps_of_episode(batch, 0, np.random.default_rng(3)):
        if batch.masks[0].any():
            seen = Decision(batch, 0)
            found.append(batch.observations[0, GLOBALS.index("best_run")] * seen.unit_s)
            best.append(shortest_run_s(seen))
    assert len(found) > 24
    np.testing.assert_allclose(found, best, rtol=1e-6)


def shortest_run_s(seen: Decision) -> float:
    """Return the shortest expected run time over all sets of nodes that hold the job and the picks."""
    open_nodes = seen.most_usable_first()
    sets = (chosen for count in range(len(open_nodes)) for chosen in combinations(open_nodes, count + 1))
    holding = (chosen for chosen in sets if sum(map(seen.free, chosen)) >= seen.need())
    return min(seen.run_s(seen.picks() | dict.fromkeys(chosen, 1)) for chosen in holding)


@settings(max_examples=examples(40))
@given(cases() | needy_cases() | planned_cases(), st.sampled_from(("node", "gpu")), st.integers(0, 2**32 - 1))
def test_the_literal_patent_observation_is_of_the_whole_job_at_each_pick(case: Case, action: str, seed: int) -> None:
    batch = Batch(problem_of(case), AgentView(action=action, observation="patent-literal"), 1)
    scenarios = batch.sim.scenarios
    for _ in steps_of_episode(batch, case.row, np.random.default_rng(seed)):
        if batch.masks[0].any():
            seen, scenario = Decision(batch, 0), int(batch.sim.state.scenario[0])
            whole = scenarios.gpus[scenario, seen.job], scenarios.estimate_s[scenario, seen.job] / 3600.0
            assert (batch.observations[0] == np.array([*whole, *seen.used()], dtype=np.float32)).all()


@settings(max_examples=examples(40))
@given(cases() | needy_cases() | planned_cases(), st.sampled_from(("node", "gpu")), st.integers(0, 2**32 - 1))
def test_the_patent_observation_is_the_need_the_hours_and_who_is_in_use(case: Case, action: str, seed: int) -> None:
    batch = Batch(problem_of(case), AgentView(action=action, observation="patent"), 1)
    for _ in steps_of_episode(batch, case.row, np.random.default_rng(seed)):
        if batch.masks[0].any():
            seen = Decision(batch, 0)
            expected = np.array([seen.need(), seen.work_left_s(seen.job) / 3600.0, *seen.used()], dtype=np.float32)
            assert (batch.observations[0] == expected).all()


@settings(max_examples=examples(40))
@given(cases(), st.sampled_from(("node", "gpu")), st.sampled_from(("full", "patent")), st.integers(0, 2**32 - 1))
def test_observations_are_finite_and_within_their_bounds(case: Case, action: str, observation: str, seed: int) -> None:
    batch = Batch(problem_of(case), AgentView(action=action, observation=observation), 1)
    for _ in steps_of_episode(batch, case.row, np.random.default_rng(seed)):
        assert np.isfinite(batch.observations).all()
        assert (batch.low <= batch.observations[0]).all()
        assert (batch.observations[0] <= batch.high).all()


def test_extreme_numbers_stay_within_the_bounds() -> None:
    problem = small_problem()
    odd = problem.scenarios
    work_s = np.where(np.arange(odd.work_s.shape[1]) % 2, 1e-3, 1e12)
    scenarios = odd._replace(work_s=odd.work_s * 0 + work_s, estimate_s=odd.estimate_s * 0 + work_s)
    batch = Batch(
        Problem(problem.cluster, scenarios, problem.process, problem.rules._replace(limit_s=1e7)), AgentView(), 1
    )
    for _ in steps_of_episode(batch, 0, np.random.default_rng(4)):
        assert (np.abs(batch.observations) <= batch.high).all()


def test_a_feature_of_nodes_stands_where_its_name_says() -> None:
    batch = Batch(small_problem(), AgentView(), 1)
    batch.reset()
    nodes = batch.observations[0, len(GLOBALS) :].reshape(4, len(NODE_FEATURES))
    speed = batch.problem.scenarios.speed[0]
    assert (nodes[:, NODE_FEATURES.index("speed")] == (speed / speed.max()).astype(np.float32)).all()
