"""Our networks as policies of sb3-contrib's MaskablePPO."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from .networks import NETWORKS, Layout


class MaskedPolicy(MaskableActorCriticPolicy):
    """Actor and critic of agents/networks.py under the interface of MaskablePPO.

    Args:
        observation_space: A flat Box.
        action_space: Discrete.
        lr_schedule: Learning rate by progress.
        network: A name of NETWORKS.
        layout: How the network reads observations.
        kwargs: What else MaskableActorCriticPolicy takes.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        network: str,
        layout: Layout,
        **kwargs: Any,
    ) -> None:
        self.network_name, self.layout = network, Layout(*layout)
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        self.network = NETWORKS[self.network_name](self.layout)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)
        self.action_dist = make_masked_proba_distribution(self.action_space)

    def _distribution(self, logits: Tensor, action_masks: np.ndarray | None) -> MaskableDistribution:
        distribution = self.action_dist.proba_distribution(action_logits=logits)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def forward(
        self,
        obs: Tensor,
        deterministic: bool = False,  # noqa: FBT001, FBT002 (the signature is sb3-contrib's)
        action_masks: np.ndarray | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values of shape (batch, 1), and log-probabilities."""
        logits, values = self.network(obs)
        distribution = self._distribution(logits, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values.unsqueeze(-1), distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return values of shape (batch, 1), log-probabilities and entropies under the masks of collection."""
        logits, values = self.network(obs)
        distribution = self._distribution(logits, action_masks)
        return values.unsqueeze(-1), distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: PyTorchObs, action_masks: np.ndarray | None = None) -> MaskableDistribution:
        """Return the masked distribution over actions."""
        return self._distribution(self.network(obs)[0], action_masks)

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """Return values of shape (batch, 1)."""
        assert isinstance(obs, torch.Tensor)
        values: Tensor = self.network.values(obs).unsqueeze(-1)
        return values
