"""Records each layer of a model in one training step: FLOPs both ways, saved activations, sent bytes.

Layers are the parts that a pipeline may be cut between: blocks (equal modules in one list), and around them every
module that holds no such list. Each layer runs alone on its input: forward, while the tensors that autograd saves are
counted, and backward. Equal blocks run once. After each layer the model continues with tensors like its output, so that
the rest of the step costs what is in no layer. On the meta device nothing is computed and nothing is stored.

Attention and dropout are replaced by what a GPU would run, which saves no T x T matrix, and a mask: on the meta device
the plain functions save more. Products and heads are counted, too.

Source: SPEC P1.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from .building import LayerHint
from .profiling import OUTSIDE

ATTENTION = functional.scaled_dot_product_attention
SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {
    functional.linear, functional.bilinear, functional.conv1d, functional.conv2d, functional.conv3d,
    functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
    torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.lstm, torch.gru,
    Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm, Tensor.addmm, Tensor.baddbmm, ATTENTION,
}  # fmt: skip


class AsOnGpu(TorchFunctionMode):
    """Runs attention and dropout like kernels of a GPU, and counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.attentions = 0
        self.heads = 0  # of the last attention
        self.elements = 0.0  # of the largest input of a product

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or its replacement."""
        del types
        named = dict(kwargs or {})
        self._count_call(func, args, named)
        if func is ATTENTION:
            # Shapes without a flash kernel use the plain function.
            with suppress(RuntimeError, ValueError, TypeError):
                return _flash_attention(*args, **named)
        if func is functional.dropout and not named.get("inplace"):
            return _native_dropout(*args, **named)
        return func(*args, **named)

    def _count_call(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        first = args[0] if args else named.get("query", named.get("input"))
        if func in PRODUCTS:
            self.products += 1
            self.elements = max(self.elements, first.numel() if isinstance(first, Tensor) else 0)
        # Attention written out has a softmax over (batch, heads, sequence, sequence).
        if (func is ATTENTION or func in SOFTMAX) and isinstance(first, Tensor) and first.dim() == 4:
            self.attentions, self.heads = self.attentions + 1, int(first.shape[1])


def _flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002  # as in the replaced function
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Return attention by the flash kernel, for which autograd saves no mask matrix."""
    del attn_mask
    if query.dim() != 4:
        raise ValueError("the kernel takes batch, heads, sequence and width")
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    if query.device.type == "cpu":
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    attended: tuple[Tensor, ...] = attend(query, key, value, dropout_p, is_causal, scale=scale)
    return attended[0]


def _native_dropout(
    input: Tensor,  # noqa: A002  # as in the replaced function
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002
    inplace: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    del inplace
    return torch.native_dropout(input, p, train=True)[0] if training and p > 0.0 else input


def make_stand_ins(output: Any, inputs: Any, stands_for: dict[int, int]) -> Any:
    """Return the tensors with which the model continues after a layer.

    Args:
        output: Of the layer, run alone.
        inputs: Of the layer.
        stands_for: Receives for each new storage the one that it stands for.
    """
    leaves, form = tree_flatten(output)
    templates = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not templates:
        return output
    reached = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    anchor = torch.zeros((), device=templates[0].device, requires_grad=True)  # parameters are reached too
    apply: Callable[..., tuple[Tensor, ...]] = _StandIn.apply
    made = iter(apply(templates, anchor, *reached))
    new = [next(made) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for tensor, old in zip([leaf for leaf in new if isinstance(leaf, Tensor)], templates, strict=True):
        number = old.untyped_storage()._cdata
        stands_for[tensor.untyped_storage()._cdata] = stands_for.get(number, number)
    return tree_unflatten(new, form)


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, templates: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.forms = [(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs]
        made = tuple(tensor.detach().clone() for tensor in templates)
        ctx.mark_non_differentiable(
            *(new for new, tensor in zip(made, templates, strict=True) if not tensor.requires_grad)
        )
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        del gradients
        return (None, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.forms))


Lists = (nn.ModuleList, nn.Sequential)


class FoundLayer(NamedTuple):
    """One layer."""

    name: str  # as `named_modules` has it
    module: nn.Module
    is_block: bool  # others in its list are equal


def layers_in(model: nn.Module) -> list[FoundLayer]:
    """Return the layers of a model, in the order in which they are defined."""
    return list(_layers_inside(model, ""))


def computation_key(module: nn.Module) -> tuple[object, ...]:
    """Return a key that is equal for modules that compute the same: types, settings, and shapes of parameters."""
    return tuple(
        (name, type(child).__qualname__, "" if list(child.children()) else repr(child), _parameter_shapes(child))
        for name, child in module.named_modules()
    )


def _parameter_shapes(module: nn.Module) -> tuple[object, ...]:
    own = module.named_parameters(recurse=False)
    return tuple((name, tuple(parameter.shape), parameter.dtype, parameter.requires_grad) for name, parameter in own)


def _layers_inside(parent: nn.Module, prefix: str) -> Iterator[FoundLayer]:
    alike = (
        Counter(computation_key(child) for child in parent.children())
        if isinstance(parent, Lists)
        else Counter[object]()
    )
    for name, module in parent.named_children():
        full = f"{prefix}{name}"
        is_block = alike[computation_key(module)] > 1 and any(True for _ in module.parameters())
        if is_block or not (isinstance(module, nn.ModuleList | nn.ModuleDict) or _holds_blocks(module)):
            yield FoundLayer(full, module, is_block)
        else:
            yield from _layers_inside(module, f"{full}.")


def _holds_blocks(module: nn.Module) -> bool:
    """Return whether a list of equal modules is inside."""
    lists = [child for child in module.modules() if isinstance(child, Lists)]
    kinds = (
        Counter(computation_key(child) for child in blocks.children() if any(True for _ in child.parameters()))
        for blocks in lists
    )
    return any(count > 1 for counts in kinds for count in counts.values())


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """The figures of one layer for a batch."""

    forward_flops: float = 0.0
    backward_flops: float = 0.0
    saved_bytes: float = 0.0
    input_elements: float = 0.0
    output_bytes: float = 0.0
    heads: int = 0
    products: int = 0  # matrix products and the like: each is a launch or two


class LayerWeights(NamedTuple):
    """The weights of a layer: their number, and bytes of those that are not trained and of buffers."""

    parameters: float = 0.0  # that no earlier layer has
    frozen_parameters: float = 0.0  # of these
    frozen_bytes: float = 0.0
    tied_parameters: float = 0.0  # trained ones that an earlier layer has
    tied_frozen_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer."""

    name: str
    kind: str
    is_block: bool
    figures: LayerFigures
    weights: LayerWeights
    hinted: bool = False


class LayerError(Exception):
    """A layer cannot be run, or the layers of a model change with its batch."""


@dataclass(slots=True)
class _SavedStorages:
    """Storages that autograd has saved, each counted once. They stay alive, as their numbers would be reused."""

    passed_over: set[int] = field(default_factory=set)  # parameters and buffers
    storages: dict[int, object] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)  # of a stand-in, the storage that it stands for
    scale: float = 1.0  # bytes of a float in training, over those of one here
    bytes: float = 0.0

    def count_saved_tensor(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is saved for the backward pass."""
        storage = tensor.untyped_storage()
        number = self.same.get(storage._cdata, storage._cdata)
        if number not in self.passed_over and number not in self.storages:
            self.storages[number] = storage
            self.bytes += storage.nbytes() * (self.scale if tensor.is_floating_point() else 1.0)
        return tensor


class Recorder:
    """Records one training step of a model.

    Args:
        model: On the device of the recording.
        hints: Of the user, for layers that cannot be run.
        float_scale: Bytes of a number in training, over those here.
        element_bytes: Of a number of each parameter and buffer that is not trained, by name.
    """

    def __init__(
        self, model: nn.Module, hints: Mapping[str, LayerHint], float_scale: float, element_bytes: Mapping[str, float]
    ) -> None:
        self.calls: list[LayerCall] = []
        self._model, self._hints = model, hints
        self._known: dict[object, tuple[LayerFigures, Any, bool]] = {}
        self._kept = _SavedStorages(scale=float_scale)
        for tensor in (*model.parameters(), *model.buffers()):
            self._kept.passed_over.add(tensor.untyped_storage()._cdata)
        self._met: set[int] = set()  # parameters and buffers
        self._element_bytes = {id(tensor): element_bytes[name] for name, tensor in _named_tensors(model)}
        self._counter, self._as_on_gpu = FlopCounterMode(display=False), AsOnGpu()
        self._alone = 0.0  # FLOPs of layers that ran alone
        self._forward = True

    def record(self, step: Callable[[], Any]) -> list[LayerCall]:
        """Run a step, which returns the model's output or its loss; return the calls of layers, in order.

        The last call stands for what is in no layer, if there is any.

        Raises:
            LayerError: If a layer cannot be run.
        """
        with self._replace_layers(), self._counter, self._as_on_gpu:
            with saved_tensors_hooks(self._kept.count_saved_tensor, _return_saved_tensor):
                output = step()
            forward = self._counted_flops() - self._alone
            saved_bytes = self._kept.bytes - sum(figures.saved_bytes for figures, _, _ in self._known.values())
            self._forward = False
            _run_backward(output)
            backward = self._counted_flops() - self._alone - forward
        rest = LayerFigures(forward, backward, saved_bytes, self._as_on_gpu.elements, self._float_bytes(output))
        weights = self._weights_of(self._model)._replace(tied_parameters=0.0, tied_frozen_bytes=0.0)
        if forward or weights.parameters or saved_bytes:
            self.calls.append(LayerCall(OUTSIDE, "", is_block=False, figures=rest, weights=weights))
        return self.calls

    @contextmanager
    def _replace_layers(self) -> Iterator[None]:
        found = layers_in(self._model)
        try:
            for layer in found:
                layer.module.forward = self._replacement_forward(layer)
            yield
        finally:
            for layer in found:
                layer.module.__dict__.pop("forward", None)

    def _replacement_forward(self, found: FoundLayer) -> Callable[..., Any]:
        forward, like = found.module.forward, computation_key(found.module)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not self._forward:  # recomputed by the model itself in the backward pass
                return forward(*args, **kwargs)
            key = (like, str(tree_map(_argument_key, (args, kwargs))))
            if key not in self._known:
                self._known[key] = self._run_or_hint(found, forward, args, kwargs)
            figures, output, hinted = self._known[key]
            kind = type(found.module).__name__
            self.calls.append(
                LayerCall(found.name, kind, found.is_block, figures, self._weights_of(found.module), hinted=hinted)
            )
            return make_stand_ins(output, (args, kwargs), self._kept.same)

        return replacement

    def _run_or_hint(
        self, found: FoundLayer, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[LayerFigures, Any, bool]:
        before, kept = self._counted_flops(), self._kept.bytes
        try:
            figures, output = self._run_alone(forward, args, kwargs)
            return figures, output, False
        except Exception as error:  # a user's layer may raise anything
            kind = type(found.module).__name__
            hint = self._hints.get(found.name) or self._hints.get(kind)
            if hint is None:
                raise LayerError(f"layer {found.name!r} ({kind}): {type_and_first_line(error)}") from error
            self._alone += self._counted_flops() - before
            self._kept.bytes = kept
            inputs = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
            figures = _figures_of_hint(hint, inputs[0])
            self._kept.bytes += figures.saved_bytes
            return figures, inputs[0].detach().clone().requires_grad_(inputs[0].is_floating_point()), True

    def _run_alone(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> tuple[LayerFigures, Any]:
        args, kwargs = tree_map(_detached, (args, kwargs))
        gpu, before, kept = self._as_on_gpu, self._counted_flops(), self._kept.bytes
        products, attentions = gpu.products, gpu.attentions
        with torch.enable_grad(), saved_tensors_hooks(self._kept.count_saved_tensor, _return_saved_tensor):
            output = forward(*args, **kwargs)
        between = self._counted_flops()
        _run_backward(output)
        after = self._counted_flops()
        self._alone += after - before
        figures = LayerFigures(
            forward_flops=between - before,
            backward_flops=after - between,
            saved_bytes=self._kept.bytes - kept,
            input_elements=float(max((tensor.numel() for tensor in _float_tensors((args, kwargs))), default=0)),
            output_bytes=self._float_bytes(output),
            heads=gpu.heads if gpu.attentions > attentions else 0,
            products=gpu.products - products,
        )
        return figures, output

    def _counted_flops(self) -> float:
        return float(self._counter.get_total_flops())

    def _float_bytes(self, output: Any) -> float:
        return (
            float(sum(tensor.numel() * tensor.element_size() for tensor in _float_tensors(output))) * self._kept.scale
        )

    def _weights_of(self, module: nn.Module) -> LayerWeights:
        """Return the weights of a module: those that no earlier module has, and those that one has."""
        found = dict.fromkeys(LayerWeights._fields, 0.0)
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
            # some are created only when the model runs
            found[name] += tensor.numel() * self._element_bytes.get(id(tensor), _bytes_per_element(tensor))
        return LayerWeights(**found)


def _bytes_per_element(tensor: Tensor) -> float:
    width = float(tensor.dtype.itemsize)
    return min(width, 2.0) if tensor.is_floating_point() else width


def element_bytes_by_name(model: nn.Module) -> dict[str, float]:
    """Return the bytes of a number of each parameter and buffer if it is not trained, by name.

    Numbers of more than 16 bits count as 16 bits, like trained ones.
    """
    return {name: _bytes_per_element(tensor) for name, tensor in _named_tensors(model)}


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _return_saved_tensor(tensor: Tensor) -> Tensor:
    return tensor


def _float_tensors(values: Any) -> list[Tensor]:
    return [tensor for tensor in tree_leaves(values) if isinstance(tensor, Tensor) and tensor.is_floating_point()]


def _argument_key(value: Any) -> object:
    """Return what a layer's cost may depend on in one of its arguments."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), str(value.dtype), value.requires_grad)
    return value if isinstance(value, int | float | str | bool | None) else type(value).__qualname__


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad and value.is_floating_point())
    return value


def _run_backward(output: Any) -> None:
    ends = [tensor for tensor in _float_tensors(output) if tensor.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(tensor) for tensor in ends])


def _figures_of_hint(hint: LayerHint, first_input: Tensor) -> LayerFigures:
    samples = first_input.shape[0]
    return LayerFigures(
        hint.forward_flops * samples,
        (2.0 * hint.forward_flops if hint.backward_flops is None else hint.backward_flops) * samples,
        hint.saved_bytes * samples,
        float(first_input.numel()),
        hint.output_bytes * samples,
    )


def type_and_first_line(error: BaseException) -> str:
    """Return the type of an error, and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
