"""Our networks as policies of sb3-contrib's MaskablePPO, which pass large batches in chunks on several cores.

PyTorch's own threads split each operation. On narrow layers two of them are no faster than one. A chunk that passes
through the whole network on a thread of its own keeps all cores busy, fits their caches, and gives the same numbers for
any number of threads.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from ..learned.network import Network, ObservationLayout, find_network

FORWARD_CHUNK_ROWS = 1024  # of a chunk


class _ChunkedNetwork(torch.autograd.Function):
    """A network as one operation: forward keeps the graph of each chunk, and backward goes through them one by one."""

    @staticmethod
    def forward(
        ctx: Any, network: Network, pool: ThreadPoolExecutor, observation: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        def part(chunk: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():  # off inside autograd functions, and set per thread
                outputs: tuple[Tensor, Tensor] = network(chunk)
            return outputs

        ctx.outputs = list(pool.map(part, torch.split(observation, FORWARD_CHUNK_ROWS)))
        ctx.pool, ctx.parameters = pool, parameters
        logits, values = zip(*ctx.outputs, strict=True)
        return torch.cat([chunk.detach() for chunk in logits]), torch.cat([chunk.detach() for chunk in values])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        def part(outputs: Sequence[Tensor], by_logits: Tensor, by_values: Tensor) -> tuple[Tensor | None, ...]:
            gradients: tuple[Tensor | None, ...]
            gradients = torch.autograd.grad(outputs, ctx.parameters, (by_logits, by_values), allow_unused=True)
            return gradients

        by_chunk = (torch.split(gradient, FORWARD_CHUNK_ROWS) for gradient in gradients)
        chunks = ctx.pool.map(part, ctx.outputs, *by_chunk)
        ctx.outputs = None
        of_parameters = [None if one[0] is None else torch.stack(one).sum(0) for one in zip(*chunks, strict=True)]
        return None, None, None, *of_parameters


def forward_in_chunks(network: Network, pool: ThreadPoolExecutor, observation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of the network, logits of shape (batch, actions) and values of shape (batch,), with gradients.

    Args:
        network: The network; its parameters get gradients, the observation gets none.
        pool: Threads, one for each chunk.
        observation: Shape (batch, size).
    """
    outputs: tuple[Tensor, Tensor]
    if observation.shape[0] <= FORWARD_CHUNK_ROWS:
        outputs = network(observation)
    else:
        outputs = _ChunkedNetwork.apply(network, pool, observation, *network.parameters())  # type: ignore[no-untyped-call]
    return outputs


CLOSED_ACTION_LOGIT = -1e8  # of a closed action, as in sb3-contrib


class MaskedPolicy(MaskableActorCriticPolicy):
    """A network under the interface of MaskablePPO.

    Args:
        observation_space: A flat Box.
        action_space: Discrete.
        lr_schedule: Learning rate by progress.
        network: Its registered name.
        layout: How the network reads observations.
        threads: Of the learner.
        initial: Network to begin with, by default one of random weights.
        kwargs: Further ones of MaskableActorCriticPolicy.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        network: str,
        layout: ObservationLayout,
        threads: int = 1,
        initial: Network | None = None,
        **kwargs: Any,
    ) -> None:
        self.network_name, self.layout = network, ObservationLayout(*layout)
        self.pool = ThreadPoolExecutor(threads)
        self.initial = (initial,)  # in a tuple, as PyTorch takes no module before super().__init__
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        (initial,) = self.initial
        self.network = find_network(self.network_name)(self.layout) if initial is None else initial
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]
        self.action_dist = make_masked_proba_distribution(self.action_space)

    def forward(
        self,
        obs: Tensor,
        deterministic: bool = False,  # noqa: FBT001, FBT002 (the signature is sb3-contrib's)
        action_masks: np.ndarray | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values of shape (batch, 1), and log-probabilities."""
        logits, values = self.network(obs)
        log_probabilities = _masked_log_probabilities(logits, action_masks)
        if deterministic:
            actions = log_probabilities.argmax(dim=1)
        else:
            actions = torch.multinomial(log_probabilities.exp(), 1).squeeze(1)
        return actions, values.unsqueeze(-1), _log_probabilities_of(log_probabilities, actions)

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return values of shape (batch, 1), log-probabilities and entropies under the masks of collection."""
        logits, values = forward_in_chunks(self.network, self.pool, obs)
        log_probabilities = _masked_log_probabilities(logits, action_masks)
        entropies = -(log_probabilities.exp() * log_probabilities).sum(dim=1)
        return values.unsqueeze(-1), _log_probabilities_of(log_probabilities, actions), entropies

    def get_distribution(self, obs: PyTorchObs, action_masks: np.ndarray | None = None) -> MaskableDistribution:
        """Return the masked distribution over actions."""
        distribution = self.action_dist.proba_distribution(action_logits=self.network(obs)[0])
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """Return values of shape (batch, 1)."""
        assert isinstance(obs, torch.Tensor)
        values: Tensor = self.network.values(obs).unsqueeze(-1)
        return values


# sb3-contrib's distribution needs three times the operations, a tenth of an update.
def _masked_log_probabilities(logits: Tensor, masks: np.ndarray | Tensor | None) -> Tensor:
    """Return log-probabilities, those of closed actions so low that their probability is 0; shape (batch, actions)."""
    if masks is not None:
        is_open = torch.as_tensor(masks, dtype=torch.bool).reshape(logits.shape)
        logits = logits.masked_fill(~is_open, CLOSED_ACTION_LOGIT)
    return logits.log_softmax(dim=1)


def _log_probabilities_of(log_probabilities: Tensor, actions: Tensor) -> Tensor:
    """Return the log-probability of each row's action, shape (batch,)."""
    return log_probabilities.gather(1, actions.long().unsqueeze(1)).squeeze(1)
