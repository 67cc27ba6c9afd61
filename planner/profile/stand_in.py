"""Tensors that stand for the output of a layer: gradients reach what was before it, and nothing is computed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


def stand_ins(output: Any, inputs: Any, same: dict[int, int]) -> Any:
    """Return what the model goes on with behind a layer.

    Args:
        output: Of the layer, run alone.
        inputs: That reached it.
        same: Takes for each new storage the one that it stands for.
    """
    leaves, form = tree_flatten(output)
    templates = [it for it in leaves if isinstance(it, Tensor)]
    if not templates:
        return output
    reached = [it for it in tree_leaves(inputs) if isinstance(it, Tensor) and it.requires_grad]
    anchor = torch.zeros((), device=templates[0].device, requires_grad=True)  # parameters are reached too
    apply: Callable[..., tuple[Tensor, ...]] = _StandIn.apply
    made = iter(apply(templates, anchor, *reached))
    new = [next(made) if isinstance(it, Tensor) else it for it in leaves]
    for it, old in zip([it for it in new if isinstance(it, Tensor)], templates, strict=True):
        number = old.untyped_storage()._cdata
        same[it.untyped_storage()._cdata] = same.get(number, number)
    return tree_unflatten(new, form)


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, templates: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.forms = [(it.shape, it.dtype, it.device) for it in inputs]
        made = tuple(it.detach().clone() for it in templates)
        ctx.mark_non_differentiable(*(new for new, it in zip(made, templates, strict=True) if not it.requires_grad))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        del gradients
        return (None, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.forms))
