"""A model cut into the stages of a plan, by PyTorch's export of it: what each computes, and what crosses each cut.

Export writes down what the model computes for a micro-batch. So values that skip a stage, arguments that a later stage
needs, and parameters that two stages have are found, and not taken on trust.

Source: SPEC P1.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.pipelining import Pipe, SplitPoint, pipeline
from torch.utils._pytree import tree_map

from ..profile.building import BuildError, Built
from ..profile.recording import OUTSIDE
from .script import arguments

PREFIX = "model."  # before the model's names in what is exported


class Shared(NamedTuple):
    """A parameter that several stages have: each has a copy, and their gradients are added up."""

    stages: tuple[int, ...]
    names: tuple[str, ...]  # that it goes by; a stage may know some of them alone


class Cut(NamedTuple):
    """A model in stages."""

    pipe: Pipe
    shared: tuple[Shared, ...]


class _Carrying(nn.Module):
    """A model whose arguments are values of its first stage, from where later ones may have them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda it: it.clone() if isinstance(it, Tensor) else it, (args, kwargs))
        return self.model(*args, **kwargs)


def cut(made: Built, stages: Sequence[Sequence[str]], micro_batch: int) -> Cut:
    """Return a model in stages.

    Args:
        made: The model with an example batch.
        stages: Names of the layers of each.
        micro_batch: Samples that a stage gets at a time.

    Raises:
        BuildError: If it cannot be cut there.
    """
    firsts = _firsts(made.model, stages)
    args, kwargs = arguments(made.with_samples(micro_batch).batch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about itself
            splits = {PREFIX + name: SplitPoint.BEGINNING for name in firsts}
            pipe = pipeline(_Carrying(made.model), args, kwargs, split_spec=splits)
    except Exception as error:  # whatever a user's model raises
        cause = error.__cause__ or error
        line = " ".join(str(cause).split())[:300]
        problem = f"PyTorch cannot export the model, so it is not cut into stages: {type(cause).__name__}: {line}"
        raise BuildError(f"{problem}; plan with --degrees Dx1x1") from error
    if pipe.num_stages != len(stages):
        raise BuildError(f"the model has {pipe.num_stages} stages and the plan {len(stages)}; plan for this model")
    return Cut(pipe, tuple(_shared(made.model, [pipe.get_stage_module(k) for k in range(len(stages))])))


def _firsts(model: nn.Module, stages: Sequence[Sequence[str]]) -> list[str]:
    """Return the first layer of each stage but the first."""
    calls = Counter(name for layers in stages for name in layers)
    known = {name for name, _ in model.named_modules()} | {OUTSIDE}
    if strange := [name for name in calls if name not in known]:
        raise BuildError(f"the model has no layer {strange[0]!r}, and the plan has; plan for this model")
    for layers in stages[1:]:
        if layers[0] == OUTSIDE:
            raise BuildError("the last stage has no layer, only what is computed outside; plan fewer stages")
        if calls[layers[0]] > 1:
            raise BuildError(f"layer {layers[0]!r} runs several times: it is unclear where to cut; plan fewer stages")
    return [layers[0] for layers in stages[1:]]


def _shared(model: nn.Module, modules: Sequence[nn.Module]) -> list[Shared]:
    """Find parameters that several stages have, and let each stage have one copy under all its names."""
    by_identity: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            by_identity.setdefault(id(parameter), []).append(PREFIX + name)
    found = []
    for names in by_identity.values():
        holders = [k for k, module in enumerate(modules) if _tied(module, names)]
        found += [Shared(tuple(holders), tuple(names))] if len(holders) > 1 else []
    return found


def _tied(module: nn.Module, names: Sequence[str]) -> bool:
    """Make parameters of several names one; return whether there is any."""
    known = dict(module.named_parameters(remove_duplicate=False))
    own = [name for name in names if name in known]
    for name in own[1:]:
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, known[own[0]])
    return bool(own)


def parameter_of(module: nn.Module, names: Sequence[str]) -> nn.Parameter:
    """Return the parameter of a stage that goes by any of some names."""
    known = dict(module.named_parameters(remove_duplicate=False))
    return next(known[name] for name in names if name in known)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of a stage by the model's own names."""
    return {name.removeprefix(PREFIX): it.detach().clone() for name, it in module.state_dict().items()}
