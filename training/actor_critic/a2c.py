"""A2C with masked actions: the collection of MaskablePPO with the update of Stable-Baselines3's A2C."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import explained_variance
from torch import Tensor
from torch.nn import functional

from .replay import Replay, flat, unpacked, vtrace

# What Stable-Baselines3's A2C takes; under policy_kwargs, as its class does.
RMSPROP: dict[str, Any] = {
    "optimizer_class": torch.optim.RMSprop,
    "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5, "weight_decay": 0},
}


class MaskableA2C(MaskablePPO):
    """One step of the optimiser on each whole rollout, without ratios, clip or epochs."""

    def train(self) -> None:
        """Learn from the rollout.

        Source: SPEC R6 and R7.
        """
        for batch in self.rollout_buffer.get(batch_size=None):
            actions = batch.actions.long().flatten()
            self._step(batch.observations, actions, batch.action_masks, batch.advantages, batch.returns)
        self._record(self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten())

    def _step(self, observations: Tensor, actions: Tensor, masks: Tensor, advantages: Tensor, targets: Tensor) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        values, log_probability, entropy = self.policy.evaluate_actions(observations, actions, action_masks=masks)
        assert entropy is not None
        policy_loss = -(advantages * log_probability).mean()
        value_loss = functional.mse_loss(targets, values.flatten())
        entropy_loss = -torch.mean(entropy)
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self._n_updates += 1
        self.logger.record("train/policy_loss", policy_loss.item())
        self.logger.record("train/value_loss", value_loss.item())
        self.logger.record("train/entropy_loss", entropy_loss.item())

    def _record(self, values: Any, returns: Any) -> None:
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/explained_variance", explained_variance(values, returns))


class VtraceA2C(MaskableA2C):
    """A2C on an equal part of each rollout of `replay`, in all the steps of one, corrected by V-trace.

    Source: IMPALA (Espeholt et al., 2018); docs/training.md, Replay.
    """

    replay: Replay

    def train(self) -> None:
        """Learn from a part of each kept rollout, the newest among them, in one step."""
        estimator = partial(vtrace, gamma=self.gamma, gae_lambda=self.gae_lambda)
        weighted = self.replay.weight(self.policy, self.replay.equal_parts(), estimator)
        rollouts = weighted.rollouts

        def joined(arrays: Any) -> NDArray[Any]:
            return np.concatenate([flat(array) for array in arrays])

        masks = unpacked(joined(rollout.masks for rollout in rollouts), self.rollout_buffer.mask_dims)
        samples = (
            joined(rollout.observations for rollout in rollouts), joined(rollout.actions for rollout in rollouts),
            masks, joined(weighted.advantages), joined(weighted.targets),
        )  # fmt: skip
        self._step(*map(torch.from_numpy, samples))
        self._record(rollouts[-1].values.ravel(), weighted.targets[-1].ravel())
        truncated = joined(weighted.ratio) > 1.0
        self.logger.record("replay/clip_fraction", float(truncated.mean()))
