"""Which scenarios environments begin with: by options, by seeds, and without either."""

from itertools import combinations, pairwise

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.envs.batch import AgentView
from longshore.envs.gymnasium_envs import PlacementEnv, PlacementVectorEnv
from longshore.envs.sb3 import PlacementVecEnv

MANY = 1024


@pytest.fixture(scope="module")
def problem() -> Problem:
    return hetero64(MANY, 1, nodes=4, jobs=4)


def begun(env: PlacementEnv | PlacementVectorEnv | PlacementVecEnv) -> list[int]:
    scenarios: list[int] = env.batch.sim.state.scenario.tolist()
    return scenarios


def test_neighbouring_seeds_of_vector_environments_share_few_scenarios(problem: Problem) -> None:
    rows = 16
    env, sb3 = PlacementVectorEnv(rows, problem), PlacementVecEnv(problem, AgentView(), rows)
    met = []
    for seed in range(12):
        env.reset(seed=seed)
        sb3.seed(seed)
        sb3.reset()
        assert begun(env) == begun(sb3)
        assert len(set(begun(env))) == rows
        met.append(set(begun(env)))
    shared = [len(one & other) for one, other in combinations(met, 2)]
    assert np.mean(shared) < 2 * rows * rows / MANY  # as of draws that know nothing of each other
    assert all(abs(min(one) - min(other)) > 2 for one, other in pairwise(met))


def test_the_same_seed_begins_with_the_same_scenario_in_every_class(problem: Problem) -> None:
    env, batched = PlacementEnv(problem), PlacementVectorEnv(3, problem)
    plain = DummyVecEnv([lambda: PlacementEnv(problem)] * 3)
    plain.seed(5)
    plain.reset()
    batched.reset(seed=[5, 6, 7])
    assert begun(batched) == [begun(env)[0] for env in plain.envs]  # type: ignore[arg-type]
    env.reset(seed=5)
    assert begun(env) == begun(batched)[:1]
    batched.reset(seed=5)
    assert begun(batched) == [(begun(env)[0] + row) % MANY for row in range(3)]


def test_resets_without_a_seed_differ(problem: Problem) -> None:
    first = set()
    for _ in range(6):
        for env in (PlacementEnv(problem), PlacementVectorEnv(2, problem)):
            env.reset()
            first.add(begun(env)[0])
        sb3 = PlacementVecEnv(problem, AgentView(), 2)
        sb3.reset()
        first.add(begun(sb3)[0])
    assert len(first) > 9  # of 18
    following = []
    for _ in range(3):
        sb3.reset()
        following += begun(sb3)
    assert len(set(following)) == 6


def test_after_a_seed_or_an_option_the_next_scenarios_follow(problem: Problem) -> None:
    for env in (PlacementEnv(problem), PlacementVectorEnv(3, problem)):
        env.reset(options={"scenario": MANY - 1})
        rows = len(begun(env))
        env.reset()
        assert begun(env)[0] == (MANY - 1 + rows) % MANY
        env.reset(seed=3)
        (drawn, *_) = begun(env)
        env.reset()
        assert begun(env)[0] == (drawn + rows) % MANY
        env.reset(seed=3, options={"scenario": 8})  # the option goes before the seed
        assert begun(env)[0] == 8


def test_options_are_those_of_the_next_reset_as_with_sb3s_own_vector_of_environments(problem: Problem) -> None:
    ours, theirs = PlacementVecEnv(problem, AgentView(), 3, first=4), DummyVecEnv([lambda: PlacementEnv(problem)] * 3)
    for options in ({"scenario": 7}, [{"scenario": 9}, {"scenario": 0}, {"scenario": 2}]):
        ours.set_options(options)
        theirs.set_options(options)
        assert np.array_equal(ours.reset(), np.asarray(theirs.reset()))
        assert begun(ours) == [begun(env)[0] for env in theirs.envs]  # type: ignore[arg-type]
    ours.set_options([{}, {"scenario": 9}, {}])
    ours.reset()
    assert begun(ours) == [4, 9, 6]
    ours.reset()
    assert begun(ours) == [4, 5, 6]
    ours.set_options({"scenario": 1})
    ours.set_options()
    ours.reset()
    assert begun(ours) == [4, 5, 6]


def test_environments_of_gymnasiums_vectors_differ_too() -> None:
    envs = gymnasium.make_vec("longshore/Placement-v0", num_envs=3, vectorization_mode="sync")
    observations, _ = envs.reset(seed=0)
    assert len(np.unique(observations, axis=0)) == 3
