"""A network's forward and backward pass over a large batch, in chunks on several cores.

PyTorch's own threads split every single operation. On the narrow layers here that costs more than it gains: two threads
are no faster than one. A chunk through the whole network on a thread of its own keeps both cores at work, fits the
caches, and gives the same numbers whatever the number of threads.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ..learned.network import Network

ROWS = 1024  # of a chunk


class _Chunked(torch.autograd.Function):
    """A network as one operation: the chunks' graphs are kept in forward and taken back one by one."""

    @staticmethod
    def forward(
        ctx: Any, network: Network, pool: ThreadPoolExecutor, observation: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        def part(chunk: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():  # autograd has it off in here, and a new thread has its own setting
                outputs: tuple[Tensor, Tensor] = network(chunk)
            return outputs

        ctx.outputs = list(pool.map(part, torch.split(observation, ROWS)))
        ctx.pool, ctx.parameters = pool, parameters
        logits, values = zip(*ctx.outputs, strict=True)
        return torch.cat([chunk.detach() for chunk in logits]), torch.cat([chunk.detach() for chunk in values])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        def part(outputs: Sequence[Tensor], by_logits: Tensor, by_values: Tensor) -> tuple[Tensor | None, ...]:
            gradients: tuple[Tensor | None, ...]
            gradients = torch.autograd.grad(outputs, ctx.parameters, (by_logits, by_values), allow_unused=True)
            return gradients

        by_logits, by_values = gradients
        chunks = ctx.pool.map(part, ctx.outputs, torch.split(by_logits, ROWS), torch.split(by_values, ROWS))
        ctx.outputs = None
        of_parameters = [None if one[0] is None else torch.stack(one).sum(0) for one in zip(*chunks, strict=True)]
        return None, None, None, *of_parameters


def in_chunks(network: Network, pool: ThreadPoolExecutor, observation: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the network does, logits of shape (batch, actions) and values of shape (batch,), with gradients.

    Args:
        network: The network; its parameters get gradients, the observation gets none.
        pool: Threads that take a chunk each.
        observation: Shape (batch, size).
    """
    outputs: tuple[Tensor, Tensor]
    if observation.shape[0] <= ROWS:
        outputs = network(observation)
    else:
        outputs = _Chunked.apply(network, pool, observation, *network.parameters())  # type: ignore[no-untyped-call]
    return outputs
