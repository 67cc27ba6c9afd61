"""What the user's file gives for a training: the model, its data, its optimizer.

Source: SPEC P1.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..profile.building import BuildError, Built, built, function_of, run


@dataclass(frozen=True, slots=True)
class Script:
    """A model to train, as the user's file has it."""

    made: Built
    module: ModuleType

    @property
    def has_data(self) -> bool:
        """Whether the file says what to train on; else it is the example of `build`, again and again."""
        return callable(getattr(self.module, "data", None))

    def samples(self, first: int, count: int) -> tuple[Any, Tensor | None]:
        """Return samples of the training: what the model is given, and their target.

        Args:
            first: Number of the first of them, in the whole training.
            count: How many.

        Raises:
            BuildError: If the file returns something else.
        """
        if not self.has_data:
            example = self.made.with_samples(count)
            return example.batch, example.target
        given = self.module.data(first, count)
        batch, target = given if self.made.target is not None else (given, None)
        if isinstance(batch, Mapping):
            batch = {name: batch[name] for name in self.made.batch}  # in the order of the example
        tensors = [it for it in tree_leaves((batch, target)) if isinstance(it, Tensor)]
        if not tensors or any(not it.dim() or it.shape[0] != count for it in tensors):
            raise BuildError(
                f"data({first}, {count}) returned tensors of shapes {[tuple(it.shape) for it in tensors]}; "
                "the first dimension of each should count samples"
            )
        return batch, target

    def loss_of(self, output: Any, target: Tensor | None) -> Tensor:
        """Return the loss of what the model gave for some samples.

        Raises:
            BuildError: If it is no single number.
        """
        found = self.made.loss_of(output, None if self.made.target is None else target)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise BuildError("the model gives no single number to train by; let build return a loss as well")
        return found.reshape(())

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the file's optimizer for some of the parameters; AdamW if it says nothing."""
        make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = getattr(self.module, "optimizer", adamw)
        return make(parameters)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of files that name none."""
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def script_of(target: str, seed: int) -> Script:
    """Return the model of a file, with its initial weights.

    Args:
        target: `FILE.py:FUNCTION`, or a file alone, of which the function is `build`.
        seed: Of the initial weights.

    Raises:
        BuildError: If it cannot be trained.
        Exception: Whatever the file raises.
    """
    path, colon, function = target.rpartition(":")
    if not (colon and function.isidentifier()):
        path, function = target, "build"
    if not Path(path).is_file():
        raise BuildError(f"there is no file {path}; give FILE.py:FUNCTION")
    module = run(path)
    torch.manual_seed(seed)
    made = built(function_of(module, function))
    made.model.train()
    whole = made.samples
    if any(not it.dim() or it.shape[0] != whole for it in tree_leaves((made.batch, made.target)) if _is_tensor(it)):
        raise BuildError("a tensor of the example batch has no dimension of samples; its first should count them")
    return Script(made, module)


def some_of(values: Any, first: int, count: int) -> Any:
    """Return `count` samples of a batch or of its targets; what is no tensor is the same for all."""
    return tree_map(lambda it: it[first : first + count] if isinstance(it, Tensor) else it, values)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a batch as arguments of a model: a tensor, a tuple of them, or a dict of named ones."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}
