"""The profiler's input from the user's file: a model, an example batch and hints.

Source: SPEC P1.
"""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from .profiling import Amount


class LayerHint(BaseModel, frozen=True, extra="forbid"):
    """Figures of a layer for one sample, by its name or its class; its output has the shape of its first input."""

    forward_flops: Amount
    saved_bytes: Amount
    output_bytes: Amount
    backward_flops: Amount | None = None  # twice the forward ones by default


MODULE = "model_to_plan"  # name of the user's file among the modules
CONTRACT = "it should return (model, batch), (model, batch, loss) or (model, batch, loss, target)"


class BuildError(Exception):
    """The user's file, or what its function returns, cannot be used; the message ends with the fix."""


class BuiltModel(NamedTuple):
    """The result of `build`."""

    model: nn.Module
    batch: Any  # a tensor, a tuple of arguments, or a dict of named ones
    loss: Callable[..., Any] | None  # of the output, and of the target if there is one
    target: Tensor | None = None

    def run_forward(self) -> Any:
        """Run the model on the batch; return its output, or the loss of it."""
        if isinstance(self.batch, Mapping):
            output = self.model(**self.batch)
        elif isinstance(self.batch, tuple | list):
            output = self.model(*self.batch)
        else:
            output = self.model(self.batch)
        found = self.loss_of(output, self.target)
        if not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(found)):
            raise BuildError(
                "the model returns no tensor for a backward pass; return a tensor of floating-point numbers"
            )
        return found

    def loss_of(self, output: Any, target: Tensor | None) -> Any:
        """Return the loss of an output; the output itself if the model computes its loss."""
        if self.loss is None:
            return output
        return self.loss(output) if target is None else self.loss(output, target)

    @property
    def samples(self) -> int:
        """Samples of the batch: the first dimension of its first tensor."""
        return int(self.tensors[0].shape[0])

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of the batch."""
        return [leaf for leaf in tree_leaves(self.batch) if isinstance(leaf, Tensor)]

    @property
    def tokens_per_sample(self) -> int:
        """Length of a sequence, 1 if a sample is none; a sequence has token numbers, or vectors."""
        first = self.tensors[0]
        is_sequence = first.dim() == (3 if first.is_floating_point() else 2)
        return int(first.shape[1]) if is_sequence else 1

    def to(self, device: str, dtype: torch.dtype) -> "BuiltModel":
        """Return the same on a device, with its floating-point numbers in a type."""

        def moved(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)

        batch, target = tree_map(moved, (self.batch, self.target))
        return BuiltModel(self.model.to(device=device, dtype=dtype).train(), batch, self.loss, target)

    def with_samples(self, samples: int) -> "BuiltModel":
        """Return the same with N copies of its first sample."""
        whole = self.samples

        def repeated(value: Any) -> Any:
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == whole:
                return torch.cat([value[:1]] * samples)
            return value

        return BuiltModel(self.model, tree_map(repeated, self.batch), self.loss, tree_map(repeated, self.target))


def load_build_and_hints(path: str, function: str) -> tuple[Callable[[], Any], dict[str, LayerHint]]:
    """Run a file; return its function, and the hints in it.

    Raises:
        BuildError: If there is no such function, or the hints cannot be used.
        Exception: Any that the file raises.
    """
    module = run_file(path)
    return build_function_of(module, function), _validated_hints(getattr(module, "profile_hint", {}))


def run_file(path: str) -> ModuleType:
    """Run a file, and return it as a module.

    Raises:
        BuildError: If it is no Python file.
        Exception: Any that the file raises.
    """
    sys.path.insert(0, str(Path(path).parent))
    sys.argv = [path]
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise BuildError(f"{path} is no Python file; give FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def user_line(error: BaseException) -> str:
    """Return the line of the user's code that an error comes from, "" if there is none.

    That is the innermost one in the user's file, or in another of the same folder.
    """
    path = getattr(sys.modules.get(MODULE), "__file__", None)
    folder = Path(path).parent if path else None
    found = ""
    cause: BaseException | None = error
    while cause is not None and folder is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            if Path(frame.filename).parent == folder:
                found = f"line {frame.lineno} of {Path(frame.filename).name}"
        cause = cause.__cause__
    return found


def build_function_of(module: ModuleType, function_name: str) -> Callable[[], Any]:
    """Return the function of a module that builds a model.

    Raises:
        BuildError: If there is none.
    """
    found: object = getattr(module, function_name, None)
    if not callable(found):
        raise BuildError(f"there is no function {function_name!r}; define it, or name another one as FILE.py:FUNCTION")
    return found


def _validated_hints(given: object) -> dict[str, LayerHint]:
    if not isinstance(given, Mapping):
        raise BuildError("profile_hint is no dict; give for each layer or class its figures")
    try:
        return {str(name): LayerHint.model_validate(hint) for name, hint in given.items()}
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise BuildError(f"profile_hint: {place}: {first['msg']}; docs/planner.md has the format") from error


def call_build(build: Callable[[], Any]) -> BuiltModel:
    """Call the function and check what it returns.

    Raises:
        BuildError: If the result is invalid.
        Exception: Any that the function raises.
    """
    made = build()
    if not isinstance(made, tuple) or len(made) not in (2, 3, 4):
        raise BuildError(f"it returned {_type_text(made)}; {CONTRACT}")
    model, batch, loss, target = (*made, None, None)[:4]
    if not isinstance(model, nn.Module):
        raise BuildError(f"it returned {_type_text(model)} for a model; {CONTRACT}, the model a torch.nn.Module")
    if loss is not None and not callable(loss):
        raise BuildError(f"it returned {_type_text(loss)} for a loss; {CONTRACT}, the loss a function of the output")
    if target is not None and not isinstance(target, Tensor):
        raise BuildError(f"it returned {_type_text(target)} for a target; {CONTRACT}, the target a tensor")
    found = BuiltModel(model, batch, loss, target)
    if not found.tensors or found.tensors[0].dim() == 0 or found.samples == 0:
        raise BuildError(f"it returned {_type_text(batch)} for a batch; {CONTRACT}, the batch tensors of samples")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise BuildError(
            "the model has lazy layers, whose shapes are unknown; let it run once on the batch in the file"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BuildError("the model has no parameter to train; build a model with trainable parameters")
    return found


def _type_text(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
