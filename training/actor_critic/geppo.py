"""PPO that also learns from the last rollouts, soundly: generalised PPO on masked actions.

Source: Queeney, Paschalidis and Cassandras, Generalized Proximal Policy Optimization with Sample Reuse (2021); the
formulas stand in docs/training.md, Replay.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import explained_variance
from torch import Tensor
from torch.nn import functional

from .off_policy import clip_of, geppo_loss, standardised, weighted_gae
from .replay import Replay, Weighed, clip_range_of, gathered
from .rollouts import unpacked

SLOWER = 1.03  # the learning rate is divided by it when an update went too far


class GePPO(MaskablePPO):
    """MaskablePPO whose update draws on all rollouts of `replay`, as many samples as PPO would use."""

    replay: Replay

    def train(self) -> None:
        """Learn from the kept rollouts: as many minibatches as PPO has, each sample at most once if there are enough.

        Source: SPEC R6, made sound.
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for group in self.policy.optimizer.param_groups:
            group["lr"] *= self.replay.slowing
        estimate = partial(weighted_gae, gamma=self.gamma, gae_lambda=self.gae_lambda)
        weighed = self.replay.weighed(self.policy, self.replay.rollouts, estimate)
        clip = clip_of(len(weighed.rollouts), clip_range_of(self))
        shape = np.stack(weighed.ratio).shape
        ratio = np.concatenate(weighed.ratio).ravel()
        advantages = standardised(np.concatenate(weighed.advantages).ravel(), ratio)
        figures = defaultdict(list)
        for at in self._minibatches(ratio.size):
            for name, value in self._step(weighed, advantages.reshape(shape), at, clip).items():
                figures[name].append(value)
        self._n_updates += self.n_epochs
        self._conclude(figures, clip)

    def _minibatches(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """Yield indices of so many samples, in all as many as PPO's epochs over one rollout; none twice before all."""
        assert self.batch_size is not None
        rng, left = self.replay.draws(), self.n_epochs * self.rollout_buffer.rewards.size
        while left > 0:
            order = rng.permutation(samples)[:left]
            yield from np.split(order, range(self.batch_size, order.size, self.batch_size))
            left -= order.size

    def _step(
        self, weighed: Weighed, advantages: NDArray[np.float32], at: NDArray[np.int64], clip: float
    ) -> dict[str, float]:
        """Take a step of the optimiser on a minibatch and return its figures."""

        def tensor(arrays: Any) -> Tensor:
            return torch.from_numpy(gathered(arrays, at))

        rollouts = weighed.rollouts
        masks = unpacked(gathered((it.masks for it in rollouts), at), self.rollout_buffer.mask_dims)
        values, log_probability, entropy = self.policy.evaluate_actions(
            tensor(it.observations for it in rollouts),
            tensor(it.actions for it in rollouts),
            action_masks=torch.from_numpy(masks),
        )
        assert entropy is not None
        ratio = (log_probability - tensor(it.log_probability for it in rollouts)).exp()
        before = tensor(weighed.ratio)
        policy_loss = geppo_loss(ratio, before, tensor(advantages), clip)
        value_loss = functional.mse_loss(values.flatten(), tensor(weighed.targets))
        entropy_loss = -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        with torch.no_grad():
            step = ratio / before
            return {
                "loss": loss.item(), "policy_gradient_loss": policy_loss.item(), "value_loss": value_loss.item(),
                "entropy_loss": entropy_loss.item(), "approx_kl": (step - 1.0 - step.log()).mean().item(),
                "clip_fraction": ((ratio - before).abs() > clip).float().mean().item(),
                "variation": 0.5 * (ratio - before).abs().mean().item(),
            }  # fmt: skip

    def _conclude(self, figures: dict[str, list[float]], clip: float) -> None:
        """Slow down if the update went too far by its last minibatch, and record its figures."""
        variation = figures.pop("variation")[-1]
        if variation > clip / 2.0:
            self.replay.slowing /= SLOWER
        record = self.logger.record
        record("train/loss", figures.pop("loss")[-1])
        for name, values in figures.items():
            record(f"train/{name}", float(np.mean(values)))
        newest = self.replay.rollouts[-1]
        returns = newest.advantages + newest.values
        record("train/explained_variance", explained_variance(newest.values.ravel(), returns.ravel()))
        record("train/clip_range", clip)
        record("train/learning_rate", self.policy.optimizer.param_groups[0]["lr"])
        record("replay/step_variation", variation)
        record("replay/clip_fraction", float(np.mean(figures["clip_fraction"])))
