"""The gradients of one step, kept as this member computed them until it is applied: they may be sent again.

Source: SPEC F8, F9.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .groups import Group


class _Kind(NamedTuple):
    dtype: torch.dtype
    device: torch.device


class Gradients:
    """Gradients of a step, one flat tensor for each kind of parameter.

    Args:
        parameters: Of the model, in an order that is the same on all members.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._kinds: dict[_Kind, list[Tensor]] = {}
        for it in parameters:
            if it.requires_grad:
                self._kinds.setdefault(_Kind(it.dtype, it.device), []).append(it)
        self._kept = {kind: _flat(kind, of_kind) for kind, of_kind in self._kinds.items()}

    def averaged(self, group: Group, seats: int) -> "Averages":
        """Return the sum over all members divided by the number of seats; what is kept stays as it is.

        Raises:
            AbortedError: If the ring is formed anew.
            LinkError: If an exchange fails.
        """
        sums = {}
        for kind, kept in self._kept.items():
            sums[kind] = kept.clone()
            group.sum(sums[kind])
        return Averages([(self._kinds[kind], flat, seats) for kind, flat in sums.items()])


class Averages:
    """Mean gradients that nobody has taken over yet.

    Args:
        parts: Parameters of a kind, the flat sum of their gradients, and what it is to be divided by.
    """

    def __init__(self, parts: list[tuple[list[Tensor], Tensor, int]]) -> None:
        self._parts = parts

    def put(self) -> None:
        """Make them the gradients of the parameters; one that no member had a gradient for has none."""
        for parameters, flat, seats in self._parts:
            present = (flat[len(flat) - len(parameters) :] > 0).tolist()
            flat.div_(seats)
            at = 0
            for parameter, is_there in zip(parameters, present, strict=True):
                piece = flat[at : at + parameter.numel()]
                parameter.grad = piece.reshape(parameter.shape) if is_there else None
                at += parameter.numel()


def _flat(kind: _Kind, parameters: list[Tensor]) -> Tensor:
    """Return all gradients behind each other, and behind them a 1 for each that is there."""
    gradients = [it.grad for it in parameters]
    pieces = [
        torch.zeros(it.numel(), dtype=kind.dtype, device=kind.device) if gradient is None else gradient.reshape(-1)
        for it, gradient in zip(parameters, gradients, strict=True)
    ]
    present = torch.tensor([float(it is not None) for it in gradients], dtype=kind.dtype, device=kind.device)
    return torch.cat([*pieces, present])
