"""What every reward must do (longshore.envs.rewards.reward)."""

import numpy as np
from numpy.typing import NDArray

from ..cluster.presets.hetero64 import hetero64
from ..envs.batch import Batch, View, ideal_time_s
from ..envs.rewards.table import REWARDS, cost_so_far_s, reward_of

EPISODES, JOBS, NODES = 4, 12, 4


def check_reward(name: str) -> None:
    """Check a registered reward by whole episodes of random actions on small scenarios with faults.

    Its rewards must be numbers. Over an episode they must sum to minus its cost at the end, compared with what it says.
    Before the end a reward that is paid at the end must be 0.

    Args:
        name: Its name.

    Raises:
        AssertionError: Saying what is broken.
        PluginError: If nothing of that name is registered, or what is registered is no reward.
    """
    reward, problem = reward_of(name), hetero64(EPISODES, 0, nodes=NODES, jobs=JOBS, load=2.0)
    assert reward.about, "it says nothing about itself"
    assert "\n" not in reward.about, "`about` has more than one line"
    batch, rng = Batch(problem, View(reward=name), 1), np.random.default_rng(0)
    against_s = np.zeros(EPISODES) if reward.against_s is None else batch.unit_s
    unit_s = ideal_time_s(problem) if reward.against_s is None else against_s
    assert (unit_s > 0.0).all(), "what its cost is compared with, which is its unit, is not above 0"
    for episode in range(EPISODES):
        batch.reset(first=episode)
        rewards = _rewards_of(batch, rng)
        assert np.isfinite(rewards).all(), "a reward is no number"
        cost_s = cost_so_far_s(REWARDS[name], batch.sim, 0)
        expected = (against_s[episode] - cost_s) / unit_s[episode]
        rounding = 1e-4 * np.abs(rewards).sum()  # each is rounded to float32
        assert abs(rewards.sum() - expected) <= rounding, f"rewards sum to {rewards.sum():g}, and not to {expected:g}"
        assert not reward.at_end or not rewards[:-1].any(), "it pays before the end"


def _rewards_of(batch: Batch, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the rewards of one episode of random open actions, shape (steps,)."""
    rewards = []
    while True:
        batch.step(np.array([rng.choice(np.flatnonzero(batch.masks[0]))]))
        rewards.append(float(batch.rewards[0]))
        if batch.ended[0]:
            return np.array(rewards)
