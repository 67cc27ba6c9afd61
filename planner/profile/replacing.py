"""What models call, replaced by what a GPU would run: attention that keeps no T x T matrix, dropout that keeps a mask.

On the meta device the plain functions keep what no training on a GPU keeps. On the way, products and heads are counted.

Source: SPEC P1.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

ATTENTION = functional.scaled_dot_product_attention
SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {
    functional.linear, functional.bilinear, functional.conv1d, functional.conv2d, functional.conv3d,
    functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
    torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.lstm, torch.gru,
    Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm, Tensor.addmm, Tensor.baddbmm, ATTENTION,
}  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What has been called so far."""

    products: int = 0
    attentions: int = 0
    heads: int = 0  # of the last attention
    elements: float = 0.0  # of the largest input of a product


class AsOnGpu(TorchFunctionMode):
    """Runs attention and dropout as kernels of a GPU do, and keeps a tally."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or what stands for it."""
        del types
        named = dict(kwargs or {})
        self._count(func, args, named)
        if func is ATTENTION:
            # Shapes that no flash kernel takes go the plain way.
            with suppress(RuntimeError, ValueError, TypeError):
                return _flash(*args, **named)
        if func is functional.dropout and not named.get("inplace"):
            return _dropout(*args, **named)
        return func(*args, **named)

    def _count(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        first = args[0] if args else named.get("query", named.get("input"))
        if func in PRODUCTS:
            self.tally.products += 1
            self.tally.elements = max(self.tally.elements, first.numel() if isinstance(first, Tensor) else 0)
        # Attention written out has a softmax over (batch, heads, sequence, sequence).
        if (func is ATTENTION or func in SOFTMAX) and isinstance(first, Tensor) and first.dim() == 4:
            self.tally.attentions, self.tally.heads = self.tally.attentions + 1, int(first.shape[1])


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002  # as in the function that it stands for
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Return attention by the flash kernel, to which a mask is no matrix that autograd keeps."""
    del attn_mask
    if query.dim() != 4:
        raise ValueError("the kernel takes batch, heads, sequence and width")
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (it.repeat_interleave(groups, dim=1) for it in (key, value))
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    if query.device.type == "cpu":
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    attended: tuple[Tensor, ...] = attend(query, key, value, dropout_p, is_causal, scale=scale)
    return attended[0]


def _dropout(
    input: Tensor,  # noqa: A002  # as in the function that it stands for
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002
    inplace: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    del inplace
    return torch.native_dropout(input, p, train=True)[0] if training and p > 0.0 else input
