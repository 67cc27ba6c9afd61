"""What each layer of a model does in one training step: FLOPs both ways, what is kept for the way back, what it sends.

Each layer is run alone on what reaches it: forward, with all that autograd keeps written down, and backward. Blocks
that are alike are run once. Behind each layer the model goes on with tensors like its output, so that the rest of it
costs what is in no layer. On the meta device nothing is computed and nothing is stored.

Source: SPEC P1.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from .finding import Found, layers_in, likeness
from .hints import Hint, hint_for
from .replacing import AsOnGpu
from .stand_in import stand_ins

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
