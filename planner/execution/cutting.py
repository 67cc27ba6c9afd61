"""A model cut into the stages of a plan, and the passes of a training step through a stage.

A model cut into the stages of a plan, by PyTorch's export of it: what each computes, and what crosses each cut.

Export writes down what the model computes for a micro-batch. So values that skip a stage, arguments that a later stage
needs, and parameters that two stages have are found, and not taken on trust.

The passes of a step through what a process has of the model: all of it, or a stage.

A whole model needs no schedule. So a training without a pipeline neither loads nor is bound by what carries values from
stage to stage.

Source: SPEC P1.
"""

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_structure, tree_unflatten

from ...cluster.files.errors import InputError
from ..model import Schedule
from ..profile.building import BuildError, Built, built, function_of, run
from ..profile.recording import OUTSIDE
from ..sharing import Kind


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


CPU = torch.device("cpu")
Around = Callable[[Kind, Callable[..., Any]], Callable[..., Any]]  # puts something around a pass of some kind
Loss = Callable[[Any, Tensor | None], Tensor]  # what a micro-batch adds to the loss, by its output and target


class Passes(Protocol):
    """Forward and backward passes of all micro-batches of a step; gradients add up in the parameters."""

    def step(self, batch: Any, target: Tensor) -> None:
        """Go through a step.

        Args:
            batch: All samples of the step.
            target: Of all samples.
        """
        ...


class WholePasses:
    """Passes through a whole model: the micro-batches one after the other.

    Args:
        module: The model.
        micro_batch: Samples of a micro-batch.
        micro_batches: Of a step.
        loss: What a micro-batch adds to it.
        around: Put around each pass.
    """

    def __init__(self, module: nn.Module, micro_batch: int, micro_batches: int, loss: Loss, around: Around) -> None:
        self._micro_batches = micro_batches

        def forward(number: int, batch: Any, target: Tensor) -> Tensor:
            first = number * micro_batch
            args, kwargs = arguments(some_of(batch, first, micro_batch))
            return loss(module(*args, **kwargs), some_of(target, first, micro_batch))

        def backward(_number: int, found: Tensor) -> None:
            torch.autograd.backward(found)

        self._forward, self._backward = around(Kind.forward, forward), around(Kind.backward, backward)

    def step(self, batch: Any, target: Tensor) -> None:
        """Go through a step."""
        for number in range(self._micro_batches):
            self._backward(number, self._forward(number, batch, target))


class StagePasses:
    """Passes through a stage, by a schedule of torch.distributed.pipelining.

    Args:
        part: The stage, with the forms of what it gets and gives.
        place: Which stage it is, of how many.
        group: The processes of the pipeline.
        schedule: In which order a stage does its passes.
        micro_batches: Of a step.
        loss: What a micro-batch adds to it, on the last stage.
        around: Put around each pass.
    """

    def __init__(
        self, part: Part, place: tuple[int, int], group: dist.ProcessGroup, schedule: Schedule, micro_batches: int,
        loss: Loss, around: Around,
    ) -> None:  # fmt: skip
        # late: a training without a pipeline need not wait for it
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        self._is_first, self._is_last = place[0] == 0, place[0] == place[1] - 1
        stage: Any = PipelineStage(part.module, *place, CPU, part.inputs, part.outputs, group=group)
        stage.forward_one_chunk = around(Kind.forward, stage.forward_one_chunk)
        stage.backward_one_chunk = around(Kind.backward, stage.backward_one_chunk)
        self._checked = part.module.register_forward_hook(self._check_output)
        by_name = {Schedule.one_forward_one_backward: Schedule1F1B, Schedule.gpipe: ScheduleGPipe}
        self._schedule = by_name[schedule](stage, micro_batches, loss, scale_grads=False)

    def step(self, batch: Any, target: Tensor) -> None:
        """Go through a step."""
        args, kwargs = arguments(batch) if self._is_first else ((), {})
        try:
            self._schedule.step(*args, target=target if self._is_last else None, return_outputs=False, **kwargs)
        except RuntimeError as error:  # PyTorch's, around what went wrong in a pass
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from error
            raise

    def _check_output(self, module: nn.Module, inputs: object, output: object) -> None:
        """Look once whether schedules can carry what the stage returns.

        Raises:
            InputError: If not.
        """
        self._checked.remove()
        parts = output if isinstance(output, tuple | list) else (output,)
        if not all(isinstance(it, Tensor) for it in parts):
            got = type(next(it for it in parts if not isinstance(it, Tensor))).__name__
            fix = "return a tensor, or a tuple of tensors, from forward, or plan with --degrees Dx1x1"
            raise InputError(f"the model returns a {got}, which torch.distributed.pipelining does not carry", fix)
