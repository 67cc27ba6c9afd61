"""The scalar environment."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import RecordEpisodeStatistics

import longshore.envs
from longshore.cluster.model.problem import Problem, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.envs.gymnasium_envs import (
    DOWN_COLOUR,
    FREE_COLOUR,
    GAP,
    JOB_COLOURS_RGB,
    PICKED_COLOUR,
    PIXELS,
    PlacementEnv,
)
from tests.envs.random_run import small_problem

OUTAGE_END_S = 1e9


def hand_problem(*, limit_s: float = float("inf")) -> Problem:
    """Two nodes of two GPUs, of which GPU 3 is down from the start; jobs of 1, 2 and 2 GPUs and 100 s each."""
    cluster = grid_cluster(2, 2, speed=np.array([1.0, 2.0]))
    work = workload_of(("a", "b", "c"), np.array([1, 2, 2], np.int32), np.full(3, 100.0), np.zeros(3))
    preset = small_problem()
    return Problem(
        cluster,
        stack(cluster, [work], fault_seed=np.array([1]), source_rate_per_s=np.zeros(7)),
        preset.process._replace(
            outage_first=np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32),
            outage_start_s=np.zeros(1),
            outage_end_s=np.full(1, OUTAGE_END_S),
        ),
        preset.rules._replace(limit_s=limit_s),
    )


def run(env: PlacementEnv, draws: int, seed: int | None = None) -> list[bytes]:
    """Return all that an episode of random open actions shows, as bytes."""
    rng = np.random.default_rng(draws)
    observation, info = env.reset(seed=seed)
    seen, ended = [observation.tobytes(), info["action_mask"].tobytes()], False
    while not ended:
        action = rng.choice(np.flatnonzero(env.action_masks()))
        observation, reward, terminated, truncated, info = env.step(action)
        seen += [observation.tobytes(), info["action_mask"].tobytes(), np.float64(reward).tobytes()]
        ended = terminated or truncated
    return seen


@pytest.mark.parametrize("action", ["node", "gpu"])
def test_the_same_seed_and_actions_give_the_same_episode_in_the_same_and_in_another_environment(action: str) -> None:
    problem = small_problem(faults=2, order="easy", waiting=True)
    env, other = PlacementEnv(problem, action=action), PlacementEnv(problem, action=action)
    first = run(env, 1, seed=3)
    assert first == run(env, 1, seed=3) == run(other, 1, seed=3)
    assert first != run(env, 2, seed=3)
    assert first != run(env, 1, seed=5)  # of the 8 scenarios, another


@pytest.mark.parametrize("option", ["action", "observation", "reward", "render_mode"])
def test_an_unknown_option_is_answered_with_the_known_ones(option: str) -> None:
    options: dict[str, Any] = {option: "neither"}
    with pytest.raises(ValueError, match="'neither' is none of"):
        PlacementEnv(small_problem(), **options)


def test_a_closed_action_means_the_next_open_one_above_it_and_is_reported() -> None:
    env = PlacementEnv(hand_problem(), action="gpu")
    _, info = env.reset()
    assert info["action_mask"].tolist() == [1, 1, 1, 0]
    _, _, _, _, info = env.step(3)  # out of service: GPU 0 follows the last one
    assert info["masked_action"]
    assert info["action_mask"].tolist() == [0, 1, 1, 0]
    _, _, _, _, info = env.step(0)
    assert info["masked_action"]
    assert info["action_mask"].tolist() == [0, 0, 1, 0]
    _, _, _, _, info = env.step(2)
    assert not info["masked_action"]


@pytest.mark.parametrize("action", [-1, 2])
def test_a_number_that_is_no_action_is_refused(action: int) -> None:
    env = PlacementEnv(hand_problem())
    env.reset()
    with pytest.raises(ValueError, match=f"action {action} of row 0 is none of 0 to 1"):
        env.step(action)


def test_a_step_needs_an_episode() -> None:
    env = PlacementEnv(hand_problem())
    with pytest.raises(ResetNeeded):
        env.step(0)
    run(env, 1)
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_an_episode_of_three_jobs_worked_by_hand() -> None:
    env = PlacementEnv(hand_problem(), reward="dt")
    env.reset()
    rewards = []
    for node, expected in ((1, [1, 0]), (0, [1, 1]), (0, None)):
        _, reward, terminated, truncated, info = env.step(node)
        rewards.append(reward)
        assert not truncated
        assert terminated == (expected is None)
        assert info["action_mask"].tolist() == (expected or [0, 0])
    # Job a takes 100 / 2 s on node 1, b and c 100 s each on node 0, one after the other; 500 GPU s at a speed of 6.
    assert rewards == pytest.approx([0.0, -100.0 / (500.0 / 6.0), -100.0 / (500.0 / 6.0)])
    assert info["metrics"]["r"] == pytest.approx(-2.4)
    assert info["metrics"]["makespan_s"] == 200.0
    assert info["metrics"]["mean_jct_s"] == pytest.approx(350.0 / 3.0)
    assert (info["metrics"]["l"], info["metrics"]["decisions"], info["metrics"]["finished"]) == (3, 3, 3)


def test_an_episode_is_truncated_at_the_time_limit_and_completion_times_are_then_unknown() -> None:
    env = PlacementEnv(hand_problem(limit_s=150.0), reward="dt")
    env.reset()
    env.step(1)
    env.step(0)
    _, _, terminated, truncated, info = env.step(0)  # job c would end at 200 s
    assert (terminated, truncated) == (False, True)
    assert info["metrics"]["finished"] == 2
    assert np.isnan(info["metrics"]["mean_jct_s"])
    assert info["metrics"]["r"] == pytest.approx(-100.0 / (500.0 / 6.0))  # the last event was at 100 s


def test_a_scenario_without_a_decision_is_refused() -> None:
    with pytest.raises(ValueError, match="scenario 0 "):
        PlacementEnv(hand_problem(limit_s=-1.0)).reset()


@pytest.mark.parametrize("action", ["node", "gpu"])
@pytest.mark.parametrize("waiting", ["off", "on"])
def test_waiting_is_one_more_action_where_it_is_on(action: str, waiting: str) -> None:
    env = PlacementEnv(hand_problem(), action=action, waiting=waiting)
    env.reset()
    items = {"node": 2, "gpu": 4}[action]
    assert env.action_space == gymnasium.spaces.Discrete(items + (waiting == "on"))
    if waiting == "on":
        assert not env.action_masks()[items]  # no job runs
        env.step(0)
        assert env.action_masks()[items]


def test_the_rules_say_whether_waiting_is_allowed_if_the_option_does_not() -> None:
    assert PlacementEnv(small_problem(waiting=True)).batch.problem.rules.waiting
    assert not PlacementEnv(small_problem(waiting=True), waiting="off").batch.problem.rules.waiting


@pytest.mark.parametrize("waiting", ["maybe", True, 1])
def test_waiting_is_on_or_off_and_nothing_else(waiting: Any) -> None:
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(ValueError, match=f"waiting is {waiting!r}, expected 'off', 'on', or None"):
            make(f"{longshore.envs.__name__}:longshore/Placement-v0", problem=small_problem(), waiting=waiting)


@pytest.mark.parametrize("action", ["node", "gpu"])
@pytest.mark.parametrize("reward", ["dt", "potential", "jct"])
def test_gymnasium_counts_the_same_return_and_length(action: str, reward: str) -> None:
    env = RecordEpisodeStatistics(PlacementEnv(small_problem(), action=action, reward=reward))
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, ended, _, info = env.step(env.action_space.sample())
    assert info["episode"]["r"] == pytest.approx(info["metrics"]["r"], rel=1e-5)
    assert info["episode"]["l"] == info["metrics"]["l"]


def test_a_text_picture_shows_nodes_gpus_and_the_queue() -> None:
    env = PlacementEnv(hand_problem(), action="gpu", render_mode="ansi")
    env.reset()
    env.step(2)  # job a runs
    env.step(0)  # the first GPU of job b
    assert env.render() == (
        "0.00 h: 0 of 3 jobs finished, 1 running, 2 waiting\n"
        "   0 x1      +.\n"
        "   1 x2      a#\n"
        "due: job 1, 2 GPUs, 1 picked\n"
        "queue (GPUs): 1 (2) 2 (2)\n"
    )


def test_an_image_has_a_square_for_each_gpu() -> None:
    env = PlacementEnv(hand_problem(), action="gpu", render_mode="rgb_array")
    env.reset()
    env.step(2)
    env.step(0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    squares = picture[GAP :: PIXELS + GAP, GAP :: PIXELS + GAP]
    assert squares.tolist() == [
        [list(PICKED_COLOUR), list(FREE_COLOUR)],
        [JOB_COLOURS_RGB[0].tolist(), list(DOWN_COLOUR)],
    ]


def test_a_picture_that_was_not_requested_is_warned_about() -> None:
    env = PlacementEnv(hand_problem())
    env.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None
