"""Sums of gradients over processes, each type of number in one piece."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def sum_gradients(parameters: Sequence[nn.Parameter], loss: Tensor, group: dist.ProcessGroup, members: int) -> Tensor:
    """Replace gradients by their means over the members of a group; return the mean of the loss as well.

    Args:
        parameters: The same ones on each member.
        loss: Of the member, a number; it travels with the gradients.
        group: The members.
        members: How many.
    """
    found = loss
    for at, (dtype, alike) in enumerate(_by_type(parameters).items()):
        parts = [_gradient(it).reshape(-1) for it in alike]
        parts += [loss.reshape(1).to(dtype)] if at == 0 else []
        whole = torch.cat(parts)
        dist.all_reduce(whole, group=group)
        whole.div_(members)
        views = torch.split(whole, [it.numel() for it in parts])
        for parameter, view in zip(alike, views, strict=False):
            parameter.grad = view.view_as(parameter)
        found = views[-1][0] if at == 0 else found
    return found


def add_up(parameter: nn.Parameter, group: dist.ProcessGroup) -> None:
    """Add up the gradients of the copies of one parameter."""
    whole = _gradient(parameter).contiguous()
    dist.all_reduce(whole, group=group)
    parameter.grad = whole


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _by_type(parameters: Sequence[nn.Parameter]) -> dict[torch.dtype, list[nn.Parameter]]:
    found: dict[torch.dtype, list[nn.Parameter]] = {}
    for it in parameters:
        found.setdefault(it.dtype, []).append(it)
    return found
