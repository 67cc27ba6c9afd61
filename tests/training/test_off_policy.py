"""Advantages and objectives of replay against their definitions, in plain Python or by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.buffers import RolloutBuffer

from longshore.training.replay import (
    Trajectories,
    effective_sample_share,
    geppo_clip,
    geppo_loss,
    standardised_advantages,
    total_variation,
    vtrace,
    weighted_gae,
)

SHAPE = (6, 3)
FACTORS = {"gamma": st.sampled_from((1.0, 0.9)), "gae_lambda": st.sampled_from((1.0, 0.8)), "seed": st.integers(0, 999)}


def trajectories(seed: int, *, on_policy: bool = False) -> Trajectories:
    rng = np.random.default_rng(seed)
    rewards, values, following = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    ended = rng.random(SHAPE) < 0.25
    cut_off = rng.random(SHAPE) < 0.3
    following[:-1] = np.where(ended[:-1], following[:-1], values[1:])
    following[ended & ~cut_off] = 0.0
    ratio = np.ones(SHAPE) if on_policy else np.exp(rng.normal(size=SHAPE))
    return Trajectories(rewards, values, following, ended, ratio.astype(np.float32))


def delta(steps: Trajectories, t: int, row: int, gamma: float) -> float:
    return float(steps.rewards[t, row] + gamma * steps.next_values[t, row] - steps.values[t, row])


def same_episode(steps: Trajectories, t: int, row: int) -> range:
    """Return the steps from t to the end of its episode, or to the last."""
    ends = [end for end in range(t, SHAPE[0]) if steps.ended[end, row]]
    return range(t, (ends[0] if ends else SHAPE[0] - 1) + 1)


def rho(steps: Trajectories, t: int, row: int) -> float:
    return min(1.0, float(steps.ratio[t, row]))


def plain_advantage(steps: Trajectories, t: int, row: int, gamma: float, gae_lambda: float) -> float:
    """Sum over j of (gamma lambda)^j (rho_t+1 ... rho_t+j) delta_t+j."""
    return sum(
        (gamma * gae_lambda) ** (i - t)
        * math.prod(rho(steps, k, row) for k in range(t + 1, i + 1))
        * delta(steps, i, row, gamma)
        for i in same_episode(steps, t, row)
    )


def plain_v(steps: Trajectories, t: int, row: int, gamma: float, gae_lambda: float) -> float:
    """V(s_t) and the sum over i of gamma^(i-t) (c_t ... c_i-1) rho_i delta_i, c being lambda rho."""
    return float(steps.values[t, row]) + sum(
        gamma ** (i - t)
        * math.prod(gae_lambda * rho(steps, k, row) for k in range(t, i))
        * rho(steps, i, row)
        * delta(steps, i, row, gamma)
        for i in same_episode(steps, t, row)
    )


@given(**FACTORS)
def test_advantages_with_weights_are_those_of_the_definition(gamma: float, gae_lambda: float, seed: int) -> None:
    steps = trajectories(seed)
    advantages, targets = weighted_gae(steps, gamma=gamma, gae_lambda=gae_lambda)
    for t, row in np.ndindex(SHAPE):
        expected = plain_advantage(steps, t, row, gamma, gae_lambda)
        assert advantages[t, row] == pytest.approx(expected, abs=1e-4)
        assert targets[t, row] == pytest.approx(steps.values[t, row] + rho(steps, t, row) * expected, abs=1e-4)


@given(**FACTORS)
def test_vtrace_is_that_of_the_definition(gamma: float, gae_lambda: float, seed: int) -> None:
    steps = trajectories(seed)
    advantages, targets = vtrace(steps, gamma=gamma, gae_lambda=gae_lambda)
    for t, row in np.ndindex(SHAPE):
        following = float(steps.next_values[t, row])
        if not steps.ended[t, row] and t + 1 < SHAPE[0]:
            following = plain_v(steps, t + 1, row, gamma, gae_lambda)
        gain = float(steps.rewards[t, row]) + gamma * following - float(steps.values[t, row])
        assert targets[t, row] == pytest.approx(plain_v(steps, t, row, gamma, gae_lambda), abs=1e-4)
        assert advantages[t, row] == pytest.approx(rho(steps, t, row) * gain, abs=1e-4)


@given(**FACTORS)
def test_the_policys_own_samples_have_the_advantages_of_stable_baselines3(
    gamma: float, gae_lambda: float, seed: int
) -> None:
    steps = trajectories(seed, on_policy=True)
    box = spaces.Box(0, 1, (1,))
    buffer = RolloutBuffer(SHAPE[0], box, box, "cpu", gae_lambda, gamma, SHAPE[1])
    buffer.values[:] = steps.values
    # Stable-Baselines3 adds what follows a time limit to the reward.
    buffer.rewards[:] = steps.rewards + gamma * np.where(steps.ended, steps.next_values, 0.0)
    buffer.episode_starts[1:] = steps.ended[:-1]
    buffer.compute_returns_and_advantage(torch.from_numpy(steps.next_values[-1]), steps.ended[-1])
    advantages, targets = weighted_gae(steps, gamma=gamma, gae_lambda=gae_lambda)
    assert advantages == pytest.approx(buffer.advantages, abs=1e-5)
    assert targets == pytest.approx(buffer.returns, abs=1e-5)
    assert vtrace(steps, gamma=gamma, gae_lambda=gae_lambda)[1] == pytest.approx(buffer.returns, abs=1e-5)
    if gae_lambda == 1.0:
        assert vtrace(steps, gamma=gamma, gae_lambda=1.0)[0] == pytest.approx(buffer.advantages, abs=1e-5)


def test_geppo_clips_around_the_policy_that_the_update_began_with() -> None:
    ratio = torch.tensor([1.5, 0.5, 2.0, 1.5], requires_grad=True)
    before, advantages = torch.tensor([1.0, 1.0, 1.8, 1.8]), torch.tensor([1.0, 1.0, -1.0, -2.0])
    loss = geppo_loss(ratio, before, advantages, 0.1)
    # The smaller of 1.5 and 1.1, of 0.5 and 0.9, of -2 and -1.9, of -3 and -3.4.
    assert loss.item() == pytest.approx(-(1.1 + 0.5 - 2.0 - 3.4) / 4)
    loss.backward()  # type: ignore[no-untyped-call]
    assert ratio.grad is not None
    assert ratio.grad.tolist() == pytest.approx([0.0, -0.25, 0.25, 0.0])


def test_the_clip_is_narrower_the_more_policies_acted() -> None:
    assert [geppo_clip(policies, 0.2) for policies in (1, 3, 7)] == pytest.approx([0.2, 0.1, 0.05])


def test_advantages_are_centred_under_the_present_policy() -> None:
    advantages, ratio = np.array([1.0, 4.0, 0.0], np.float32), np.array([2.0, 1.0, 0.0], np.float32)
    # Under the weights 2/3, 1/3 and 0 the mean is 2 and the spread the root of 2.
    assert standardised_advantages(advantages, ratio) == pytest.approx(
        np.array([-1.0, 2.0, -2.0]) / math.sqrt(2.0), abs=1e-5
    )


def test_metrics_of_weights_have_the_samples_that_count_and_the_distance_of_the_policy() -> None:
    assert effective_sample_share(np.array([1.0, 1.0, 1.0, 1.0], np.float32)) == 1.0
    assert effective_sample_share(np.array([4.0, 0.0, 0.0, 0.0], np.float32)) == 0.25
    assert total_variation(np.array([1.2, 0.8, 1.0, 1.4], np.float32)) == pytest.approx(0.1)
