"""A model cut into the stages of a plan, by PyTorch's export of it: what each computes, and what crosses each cut.

Export writes down what the model computes for a micro-batch. So values that skip a stage, arguments that a later stage
needs, and parameters that two stages have are found, and not taken on trust.

Source: SPEC P1.
"""

import operator
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_structure, tree_unflatten

from ..profile.building import BuildError, Built
from ..profile.recording import OUTSIDE
from .script import arguments

Nodes = Sequence[fx.Node]
INNER = "inner."  # before the model's names in a stage


class Shared(NamedTuple):
    """A parameter that several stages have: each has a copy, and their gradients are added up."""

    stages: tuple[int, ...]
    names: tuple[str, ...]  # that it goes by; a stage may know some of them alone


class Part(NamedTuple):
    """A stage, with the forms of what it gets and gives: tensors without content."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Cut(NamedTuple):
    """A model in stages."""

    stages: tuple[Part, ...]
    shared: tuple[Shared, ...]
    unused: dict[str, Tensor]  # weights that no stage computes with, by the model's own names


class StageModule(nn.Module):
    """A part of a model, which hands on whatever later parts need: each talks to the next one alone.

    Args:
        inner: What it computes.
        taken: Values that it gets, in order.
        needed: Those of them that it computes with.
        made: What it computes: values by their place, -1 for a part that returns a single one.
        given: Values for the next part, in order; of the last part, the model's.
    """

    form: TreeSpec | None = None  # of the model's output, on the last part

    def __init__(
        self, inner: fx.GraphModule, taken: Nodes, needed: Nodes, made: dict[fx.Node, int], given: Nodes
    ) -> None:
        super().__init__()
        self.inner = inner
        self._taken, self._needed, self._made, self._given = taken, needed, made, given

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the next part gets, or the model's output."""
        values = dict(zip(self._taken, tree_leaves((args, kwargs)), strict=True))
        outcome = self.inner(*(values[it] for it in self._needed))
        own = {it: outcome if at < 0 else outcome[at] for it, at in self._made.items()}
        # What is only handed on is a view: a tensor that came may not be sent on as it is, as gradients end at it.
        given = [own[it] if it in own else values[it].view_as(values[it]) for it in self._given]
        return tuple(it.contiguous() for it in given) if self.form is None else tree_unflatten(given, self.form)


def cut(made: Built, stages: Sequence[Sequence[str]], micro_batch: int) -> Cut:
    """Return a model in stages.

    Args:
        made: The model with an example batch.
        stages: Names of the layers of each.
        micro_batch: Samples that a stage gets at a time.

    Raises:
        BuildError: If it cannot be cut there.
    """
    # late: a training without a pipeline need not wait for it
    from torch.distributed.pipelining import SplitPoint, pipeline

    firsts = _firsts(made.model, stages)
    args, kwargs = arguments(made.with_samples(micro_batch).batch)
    if not all(isinstance(it, Tensor) for it in tree_leaves((args, kwargs))):
        raise BuildError("the batch holds more than tensors, so the model is not cut; plan with --degrees Dx1x1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about itself
            pipe = pipeline(made.model, args, kwargs, split_spec=dict.fromkeys(firsts, SplitPoint.BEGINNING))
    except Exception as error:  # whatever a user's model raises
        cause = error.__cause__ or error
        line = " ".join(str(cause).split())[:300]
        problem = f"PyTorch cannot export the model, so it is not cut into stages: {type(cause).__name__}: {line}"
        raise BuildError(f"{problem}; plan with --degrees Dx1x1") from error
    if pipe.num_stages != len(stages):
        raise BuildError(f"the model has {pipe.num_stages} stages and the plan {len(stages)}; plan for this model")
    modules = _modules(pipe.split_gm)
    # Nothing is computed, and no buffer changes: only forms are asked for.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args, kwargs = tree_map(mode.from_tensor, (args, kwargs))
        modules[-1].form = tree_structure(made.model(*args, **kwargs))
        parts = tuple(_parts(modules, args, kwargs))
    shared = tuple(_shared(made.model, [it.inner for it in modules]))
    used = {name for it in parts for name in state_of(it.module)}
    return Cut(parts, shared, {name: it for name, it in state_of(made.model).items() if name not in used})


def _parts(modules: Sequence[StageModule], args: Any, kwargs: Any) -> Iterator[Part]:
    taken = tree_leaves((args, kwargs))
    for k, module in enumerate(modules):
        given = tree_leaves(module(*args, **kwargs) if k == 0 else module(*taken))
        yield Part(module, tuple(map(_form, taken)), tuple(map(_form, given)))
        taken = [it.detach().requires_grad_(it.requires_grad) for it in given]


def _form(tensor: Tensor) -> Tensor:
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return found.requires_grad_(tensor.requires_grad)


def _modules(whole: fx.GraphModule) -> list[StageModule]:
    """Return the parts of a model that calls one after the other, in a chain."""
    nodes = list(whole.graph.nodes)
    calls = [it for it in nodes if it.op == "call_module"]
    output = next(it for it in nodes if it.op == "output")
    made = [_made(call) for call in calls]
    known, found = [it for it in nodes if it.op == "placeholder"], list[StageModule]()
    for k, call in enumerate(calls):
        inner = whole.get_submodule(str(call.target))
        assert isinstance(inner, fx.GraphModule)
        inner.graph.set_codegen(fx.graph.CodeGen())  # the first part has the model's own signature
        inner.recompile()
        needed_later = {it for later in (*calls[k + 1 :], output) for it in later.all_input_nodes}
        passed = [it for it in (*known, *made[k]) if it in needed_later]
        given = tree_leaves(output.args[0]) if k + 1 == len(calls) else passed
        found.append(StageModule(inner, known, tree_leaves(call.args), made[k], given))
        known = passed
    return found


def _made(call: fx.Node) -> dict[fx.Node, int]:
    """Return the values that a call makes, each with its place in what the call returns."""
    places: dict[fx.Node, int] = {}
    for it in call.users:
        if it.target is operator.getitem:
            place = it.args[1]
            assert isinstance(place, int)
            places[it] = place
    return places or {call: -1}


def check_layers(model: nn.Module, stages: Sequence[Sequence[str]]) -> None:
    """Refuse a plan of another model.

    Raises:
        BuildError: If it has a layer that the model has not.
    """
    known = {name for name, _ in model.named_modules()} | {OUTSIDE}
    if strange := [name for layers in stages for name in layers if name not in known]:
        raise BuildError(f"the model has no layer {strange[0]!r}, and the plan has; plan for this model")


def _firsts(model: nn.Module, stages: Sequence[Sequence[str]]) -> list[str]:
    """Return the first layer of each stage but the first."""
    check_layers(model, stages)
    calls = Counter(name for layers in stages for name in layers)
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
            by_identity.setdefault(id(parameter), []).append(name)
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
    known = {name.removeprefix(INNER): it for name, it in module.named_parameters(remove_duplicate=False)}
    return next(known[name] for name in names if name in known)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of a stage by the model's own names, without what modules keep beside tensors."""
    kept = module.state_dict().items()
    return {name.removeprefix(INNER): it.detach().clone() for name, it in kept if isinstance(it, Tensor)}
