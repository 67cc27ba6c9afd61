"""Advantages and objectives for samples of earlier policies: what makes replay sound (docs/training.md, Replay).

Everywhere pi is the policy that learns, pi_k what it was when the update began, mu the policy that acted, and c the
ratio pi_k / mu of the action's probabilities. Arrays of samples have shape (steps, rows), in order of time.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


class Trajectories(NamedTuple):
    """Steps of all environments, with what the present critic makes of them."""

    rewards: Floats  # (steps, rows)
    values: Floats  # (steps, rows)
    next_values: Floats  # (steps, rows) 0 where an episode terminated
    ended: NDArray[np.bool_]  # (steps, rows) terminated or cut off
    ratio: Floats  # (steps, rows) c


def weighted_gae(steps: Trajectories, *, gamma: float, gae_lambda: float) -> tuple[Floats, Floats]:
    """Return generalised advantages of pi_k and value targets, each of shape (steps, rows).

    With rho = min(1, c) and delta_t = r_t + gamma V(s_t+1) - V(s_t):
    A_t = delta_t + gamma lambda rho_t+1 A_t+1 up to the episode's end, and the target is V(s_t) + rho_t A_t.

    Source: GePPO (Queeney, Paschalidis and Cassandras, 2021), V-trace form.
    """
    rho: Floats = np.minimum(steps.ratio, 1.0)
    delta = steps.rewards + gamma * steps.next_values - steps.values
    advantages = delta.copy()
    for t in range(len(delta) - 2, -1, -1):
        advantages[t] += gamma * gae_lambda * ~steps.ended[t] * rho[t + 1] * advantages[t + 1]
    return advantages, steps.values + rho * advantages


def vtrace(steps: Trajectories, *, gamma: float, gae_lambda: float) -> tuple[Floats, Floats]:
    """Return V-trace's policy advantages, rho among them, and value targets v, each of shape (steps, rows).

    With rho = min(1, c), delta_t as above and traces lambda rho: v_t = V(s_t) + rho_t delta_t +
    gamma lambda rho_t (v_t+1 - V(s_t+1)) up to the episode's end, and the advantage is
    rho_t (r_t + gamma v_t+1 - V(s_t)), where v is V after the last step.

    Source: IMPALA (Espeholt et al., 2018), sections 4.1 and 4.2, with both bounds 1.
    """
    rho: Floats = np.minimum(steps.ratio, 1.0)
    delta = steps.rewards + gamma * steps.next_values - steps.values
    over: Floats = rho * delta  # v - V
    ahead = np.zeros_like(over)  # v - V of the next step
    for t in range(len(delta) - 2, -1, -1):
        ahead[t] = ~steps.ended[t] * over[t + 1]
        over[t] += gamma * gae_lambda * rho[t] * ahead[t]
    advantages: Floats = rho * (delta + gamma * ahead)
    return advantages, steps.values + over


def standardised(advantages: Floats, ratio: Floats) -> Floats:
    """Return advantages of samples, shape (samples,), less their mean under pi_k and over their spread there.

    The mean under pi_k is mean(c A) / mean(c): the off-policy mean.
    """
    weight = ratio / ratio.mean()
    centred = advantages - (weight * advantages).mean()
    scaled: Floats = centred / (np.sqrt((weight * centred**2).mean()) + 1e-8)
    return scaled


def clip_of(policies: int, clip: float) -> float:
    """Return GePPO's clip for so many policies that acted, all alike: the PPO clip over the mean of 1 to policies."""
    return clip * 2.0 / (policies + 1)


def geppo_loss(ratio: Tensor, before: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return minus GePPO's objective: pi / mu clipped around c, so that pi stays near pi_k whoever acted.

    -mean(min(r A, clip(r, c - eps, c + eps) A)).

    Args:
        ratio: r = pi / mu, shape (samples,).
        before: c, shape (samples,).
        advantages: Of pi_k, shape (samples,).
        clip: eps.
    """
    clipped = torch.maximum(torch.minimum(ratio, before + clip), before - clip)
    loss: Tensor = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    return loss


def effective_share(ratio: Floats) -> float:
    """Return the effective sample size of weights over their number: (sum c)^2 / (n sum c^2), from 0 to 1."""
    return float(ratio.sum(dtype=np.float64) ** 2 / (ratio.size * (ratio.astype(np.float64) ** 2).sum()))


def variation(ratio: Floats) -> float:
    """Return the mean total variation distance that ratios of samples tell: half the mean of abs(c - 1)."""
    return float(0.5 * np.abs(ratio - 1.0).mean())
