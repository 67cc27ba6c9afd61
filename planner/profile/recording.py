"""Records what each layer of a model does in one training step: FLOPs both ways, kept activations, sent bytes.

What each layer of a model does in one training step: FLOPs both ways, what is kept for the way back, what it sends.

Each layer is run alone on what reaches it: forward, with all that autograd keeps written down, and backward. Blocks
that are alike are run once. Behind each layer the model goes on with tensors like its output, so that the rest of it
costs what is in no layer. On the meta device nothing is computed and nothing is stored.

What models call, replaced by what a GPU would run: attention that keeps no T x T matrix, dropout that keeps a mask.

On the meta device the plain functions keep what no training on a GPU keeps. On the way, products and heads are counted.

Which modules of a model are its layers: the parts that a pipeline may be cut between.

Several modules alike in one list are blocks, each a layer. Around them every module that holds no such list is a layer.

Source: SPEC P1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from .building import Hint, hint_for
from .finding import Found, layers_in, likeness

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


OUTSIDE = "(outside of all layers)"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one layer does for a batch."""

    forward_flops: float = 0.0
    backward_flops: float = 0.0
    saved_bytes: float = 0.0
    input_elements: float = 0.0
    output_bytes: float = 0.0
    heads: int = 0
    products: int = 0  # matrix products and the like: each is a launch or two


class Weights(NamedTuple):
    """What a layer holds: numbers of weights, and bytes of those that are not trained and of buffers."""

    parameters: float = 0.0  # that no layer before it has
    frozen_parameters: float = 0.0  # of these
    frozen_bytes: float = 0.0
    tied_parameters: float = 0.0  # trained ones that a layer before it has
    tied_frozen_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer."""

    name: str
    kind: str
    is_block: bool
    figures: Figures
    weights: Weights
    hinted: bool = False


class LayerError(Exception):
    """A layer that cannot be run, with its name."""


@dataclass(slots=True)
class _Kept:
    """Storages that autograd has kept, each counted once. They stay alive: their numbers would be given again."""

    passed_over: set[int] = field(default_factory=set)  # parameters and buffers
    storages: dict[int, object] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)  # of a stand-in, the storage that it stands for
    scale: float = 1.0  # bytes of a float in training, over those of one here
    bytes: float = 0.0

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is kept for the way back."""
        storage = tensor.untyped_storage()
        number = self.same.get(storage._cdata, storage._cdata)
        if number not in self.passed_over and number not in self.storages:
            self.storages[number] = storage
            self.bytes += storage.nbytes() * (self.scale if tensor.is_floating_point() else 1.0)
        return tensor


class Recorder:
    """Records one training step of a model.

    Args:
        model: On the device that it is to be recorded on.
        hints: Of the user, for layers that cannot be run.
        float_scale: Bytes of a number in training, over those that it has here.
        element_bytes: Of a number of each parameter and buffer that is not trained, by their names.
    """

    def __init__(
        self, model: nn.Module, hints: Mapping[str, Hint], float_scale: float, element_bytes: Mapping[str, float]
    ) -> None:
        self.calls: list[Call] = []
        self._model, self._hints = model, hints
        self._known: dict[object, tuple[Figures, Any, bool]] = {}
        self._kept = _Kept(scale=float_scale)
        for tensor in (*model.parameters(), *model.buffers()):
            self._kept.passed_over.add(tensor.untyped_storage()._cdata)
        self._met: set[int] = set()  # parameters and buffers
        self._element_bytes = {id(it): element_bytes[name] for name, it in _tensors(model)}
        self._counter, self._seen = FlopCounterMode(display=False), AsOnGpu()
        self._alone = 0.0  # FLOPs of layers that were run alone
        self._forward = True

    def record(self, step: Callable[[], Any]) -> list[Call]:
        """Run a step, which returns what the model returns or its loss; return the calls of layers, in order.

        The last call stands for what is in no layer, if anything is.

        Raises:
            LayerError: If a layer cannot be run.
        """
        with self._layers_replaced(), self._counter, self._seen:
            with saved_tensors_hooks(self._kept.pack, _unpack):
                output = step()
            forward = self._flops() - self._alone
            saved_bytes = self._kept.bytes - sum(figures.saved_bytes for figures, _, _ in self._known.values())
            self._forward = False
            _backward(output)
            backward = self._flops() - self._alone - forward
        rest = Figures(forward, backward, saved_bytes, self._seen.tally.elements, self._bytes_of(output))
        weights = self._weights_of(self._model)._replace(tied_parameters=0.0, tied_frozen_bytes=0.0)
        if forward or weights.parameters or saved_bytes:
            self.calls.append(Call(OUTSIDE, "", is_block=False, figures=rest, weights=weights))
        return self.calls

    @contextmanager
    def _layers_replaced(self) -> Iterator[None]:
        found = layers_in(self._model)
        try:
            for it in found:
                it.module.forward = self._replacement(it)
            yield
        finally:
            for it in found:
                it.module.__dict__.pop("forward", None)

    def _replacement(self, found: Found) -> Callable[..., Any]:
        forward, like = found.module.forward, likeness(found.module)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not self._forward:  # recomputed by the model itself on the way back
                return forward(*args, **kwargs)
            key = (like, str(tree_map(_form, (args, kwargs))))
            if key not in self._known:
                self._known[key] = self._run_or_hint(found, forward, args, kwargs)
            figures, output, hinted = self._known[key]
            kind = type(found.module).__name__
            self.calls.append(
                Call(found.name, kind, found.is_block, figures, self._weights_of(found.module), hinted=hinted)
            )
            return stand_ins(output, (args, kwargs), self._kept.same)

        return replacement

    def _run_or_hint(
        self, found: Found, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Figures, Any, bool]:
        before, kept = self._flops(), self._kept.bytes
        try:
            figures, output = self._run_alone(forward, args, kwargs)
            return figures, output, False
        except Exception as error:  # whatever a user's layer raises
            hint = hint_for(self._hints, found.name, type(found.module).__name__)
            if hint is None:
                raise LayerError(
                    f"layer {found.name!r} ({type(found.module).__name__}): {_first_line(error)}"
                ) from error
            self._alone += self._flops() - before
            self._kept.bytes = kept
            inputs = [it for it in tree_leaves((args, kwargs)) if isinstance(it, Tensor)]
            figures = _hinted(hint, inputs[0])
            self._kept.bytes += figures.saved_bytes
            return figures, inputs[0].detach().clone().requires_grad_(inputs[0].is_floating_point()), True

    def _run_alone(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Figures, Any]:
        args, kwargs = tree_map(_detached, (args, kwargs))
        before, kept, seen = self._flops(), self._kept.bytes, replace(self._seen.tally)
        with torch.enable_grad(), saved_tensors_hooks(self._kept.pack, _unpack):
            output = forward(*args, **kwargs)
        between = self._flops()
        _backward(output)
        after, now = self._flops(), self._seen.tally
        self._alone += after - before
        figures = Figures(
            forward_flops=between - before,
            backward_flops=after - between,
            saved_bytes=self._kept.bytes - kept,
            input_elements=float(max((it.numel() for it in _floats((args, kwargs))), default=0)),
            output_bytes=self._bytes_of(output),
            heads=now.heads if now.attentions > seen.attentions else 0,
            products=now.products - seen.products,
        )
        return figures, output

    def _flops(self) -> float:
        return float(self._counter.get_total_flops())

    def _bytes_of(self, output: Any) -> float:
        return float(sum(it.numel() * it.element_size() for it in _floats(output))) * self._kept.scale

    def _weights_of(self, module: nn.Module) -> Weights:
        """Return what a module holds that no module before it has had, and what one has."""
        found = dict.fromkeys(Weights._fields, 0.0)
        for tensor in (*module.parameters(), *module.buffers()):
            number, is_parameter = tensor.untyped_storage()._cdata, isinstance(tensor, nn.Parameter)
            is_tied = number in self._met
            self._met.add(number)
            found["parameters"] += tensor.numel() if is_parameter and not is_tied else 0
            if is_parameter and tensor.requires_grad:
                found["tied_parameters"] += tensor.numel() if is_tied else 0
                continue
            found["frozen_parameters"] += tensor.numel() if is_parameter and not is_tied else 0
            name = "tied_frozen_bytes" if is_tied else "frozen_bytes"
            found[name] += tensor.numel() * self._width(tensor)
        return Weights(**found)

    def _width(self, tensor: Tensor) -> float:
        return self._element_bytes.get(id(tensor), _own_bytes(tensor))  # some come only when the model runs


def _own_bytes(tensor: Tensor) -> float:
    width = float(tensor.dtype.itemsize)
    return min(width, 2.0) if tensor.is_floating_point() else width


def element_bytes(model: nn.Module) -> dict[str, float]:
    """Return the bytes of a number of each parameter and buffer where it is not trained, by their names.

    Numbers of more than 16 bits are kept in 16, as those that are trained are.
    """
    return {name: _own_bytes(it) for name, it in _tensors(model)}


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


def _floats(values: Any) -> list[Tensor]:
    return [it for it in tree_leaves(values) if isinstance(it, Tensor) and it.is_floating_point()]


def _form(value: Any) -> object:
    """Return what a layer's cost may hang on in one of its arguments."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), str(value.dtype), value.requires_grad)
    return value if isinstance(value, int | float | str | bool | None) else type(value).__qualname__


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad and value.is_floating_point())
    return value


def _backward(output: Any) -> None:
    ends = [it for it in _floats(output) if it.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(it) for it in ends])


def _hinted(hint: Hint, first: Tensor) -> Figures:
    samples = first.shape[0]
    return Figures(
        hint.forward_flops * samples,
        (2.0 * hint.forward_flops if hint.backward_flops is None else hint.backward_flops) * samples,
        hint.saved_bytes * samples,
        float(first.numel()),
        hint.output_bytes * samples,
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
