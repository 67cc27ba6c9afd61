"""A model cut into the stages of a plan, and the passes of a training step through a stage.

PyTorch's export of the model for a micro-batch shows what each stage computes, and what crosses each cut: values that
skip a stage, arguments that a later stage needs, and parameters that two stages have.

A whole model needs no schedule. A training without a pipeline neither loads torch.distributed.pipelining nor is limited
by it.

Source: SPEC P1.
"""

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_structure, tree_unflatten

from ...cluster.files.errors import InputError
from ...cluster.files.signals import SigtermExit
from ..profile.building import BuildError, BuiltModel, build_function_of, call_build, run_file
from ..profile.profiling import OUTSIDE, file_and_function
from ..schedule import Schedule
from ..sharing import PassKind


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Run the user's code, which must not end the process: with status 0 that would count as a completed training.

    Raises:
        BuildError: If the code ends the process.
    """
    try:
        yield
    except SigtermExit:
        raise
    except SystemExit as error:
        problem = f"the file ended the process with status {error.code or 0}"
        raise BuildError(f"{problem}; let it only define its functions") from error


@dataclass(frozen=True, slots=True)
class Script:
    """The model to train, from the user's file."""

    made: BuiltModel
    module: ModuleType

    @property
    def has_data(self) -> bool:
        """Whether the file has training data; otherwise the example of `build` is repeated."""
        return callable(getattr(self.module, "data", None))

    def samples(self, first: int, count: int) -> tuple[Any, Tensor | None]:
        """Return samples of the training: inputs of the model, and their target.

        Args:
            first: Number of the first of them, in the whole training.
            count: Their number.

        Raises:
            BuildError: If the file returns other shapes.
        """
        if not self.has_data:
            example = self.made.with_samples(count)
            return example.batch, example.target
        given = self.module.data(first, count)
        batch, target = given if self.made.target is not None else (given, None)
        if isinstance(batch, Mapping):
            batch = {name: batch[name] for name in self.made.batch}  # in the order of the example
        tensors = [tensor for tensor in tree_leaves((batch, target)) if isinstance(tensor, Tensor)]
        if not tensors or any(not tensor.dim() or tensor.shape[0] != count for tensor in tensors):
            raise BuildError(
                f"data({first}, {count}) returned tensors of shapes {[tuple(tensor.shape) for tensor in tensors]}; "
                "the first dimension of each should count samples"
            )
        return batch, target

    def loss_of(self, output: Any, target: Tensor | None) -> Tensor:
        """Return the loss of the model's output for some samples.

        Raises:
            BuildError: If it is no single number.
        """
        found = self.made.loss_of(output, None if self.made.target is None else target)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise BuildError("the output of the model is no single number; let build return a loss as well")
        return found.reshape(())

    @refuse_exit()
    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the file's optimizer for some of the parameters; AdamW by default."""
        make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = getattr(self.module, "optimizer", adamw)
        return make(parameters)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the default optimizer."""
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


@refuse_exit()
def load_script(target: str, seed: int) -> Script:
    """Return the model of a file, with its initial weights.

    Args:
        target: `FILE.py:FUNCTION`, or a file with the function `build`.
        seed: Of the initial weights.

    Raises:
        BuildError: If it cannot be trained.
        Exception: Any that the file raises.
    """
    path, function = file_and_function(target)
    if not path.is_file():
        raise BuildError(f"there is no file {path}; give FILE.py:FUNCTION")
    module = run_file(str(path))
    torch.manual_seed(seed)
    made = call_build(build_function_of(module, function))
    made.model.train()
    whole = made.samples
    if any(
        not tensor.dim() or tensor.shape[0] != whole
        for tensor in tree_leaves((made.batch, made.target))
        if isinstance(tensor, Tensor)
    ):
        raise BuildError("a tensor of the example batch has no dimension of samples; its first should count them")
    return Script(made, module)


def slice_samples(values: Any, first: int, count: int) -> Any:
    """Return `count` samples of a batch or of its targets; values other than tensors are the same for all."""
    return tree_map(lambda value: value[first : first + count] if isinstance(value, Tensor) else value, values)


def model_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a batch, a tensor, tuple or dict, as arguments of a model."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


Nodes = Sequence[fx.Node]
INNER = "inner."  # before the model's names in a stage


class ModelStage(NamedTuple):
    """A stage, with the forms of its inputs and outputs: tensors without content."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class CutModel(NamedTuple):
    """A model in stages."""

    stages: tuple[ModelStage, ...]
    # Stages that have a parameter, by its names, of which a stage may know only some: each has a copy, and their
    # gradients are summed.
    shared: dict[tuple[str, ...], list[int]]
    unused: dict[str, Tensor]  # weights that no stage uses, by the model's own names


class StageModule(nn.Module):
    """A part of a model, which forwards what later parts need, as each sends only to the next one.

    Args:
        inner: Computes the part.
        taken: Its inputs, in order.
        needed: Inputs that it computes with.
        made: Its own values by their position, -1 for a part that returns a single one.
        given: Its outputs, in order; of the last part, the model's.
    """

    form: TreeSpec | None = None  # of the model's output, on the last part

    def __init__(
        self, inner: fx.GraphModule, taken: Nodes, needed: Nodes, made: dict[fx.Node, int], given: Nodes
    ) -> None:
        super().__init__()
        self.inner = inner
        self._taken, self._needed, self._made, self._given = taken, needed, made, given

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inputs of the next part, or the model's output."""
        values = dict(zip(self._taken, tree_leaves((args, kwargs)), strict=True))
        outcome = self.inner(*(values[node] for node in self._needed))
        own = {node: outcome if at < 0 else outcome[at] for node, at in self._made.items()}
        # Forwarded inputs are views: an input itself must not be an output, as gradients end at it.
        given = [own[node] if node in own else values[node].view_as(values[node]) for node in self._given]
        return tuple(value.contiguous() for value in given) if self.form is None else tree_unflatten(given, self.form)


def cut_into_stages(made: BuiltModel, stages: Sequence[Sequence[str]], micro_batch: int) -> CutModel:
    """Return a model in stages.

    Raises:
        BuildError: If it cannot be cut there.
    """
    # late: slow to load, and needed only for pipelines
    from torch.distributed.pipelining import SplitPoint, pipeline

    firsts = _first_layers(made.model, stages)
    args, kwargs = model_arguments(made.with_samples(micro_batch).batch)
    if not all(isinstance(tensor, Tensor) for tensor in tree_leaves((args, kwargs))):
        raise BuildError("the batch holds more than tensors, so the model is not cut; plan with --degrees Dx1x1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about itself
            pipe = pipeline(made.model, args, kwargs, split_spec=dict.fromkeys(firsts, SplitPoint.BEGINNING))
    except Exception as error:  # a user's model may raise anything
        cause = error.__cause__ or error
        line = " ".join(str(cause).split())[:300]
        problem = f"PyTorch cannot export the model, so it is not cut into stages: {type(cause).__name__}: {line}"
        raise BuildError(f"{problem}; plan with --degrees Dx1x1") from error
    if pipe.num_stages != len(stages):
        raise BuildError(f"the model has {pipe.num_stages} stages and the plan {len(stages)}; plan for this model")
    modules = _stage_modules(pipe.split_gm)
    # Nothing is computed, and no buffer changes: this finds forms only.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args, kwargs = tree_map(mode.from_tensor, (args, kwargs))
        modules[-1].form = tree_structure(made.model(*args, **kwargs))
        parts = tuple(_model_stages(modules, args, kwargs))
    shared = _merge_shared_parameters(made.model, [module.inner for module in modules])
    used = {name for part in parts for name in state_by_name(part.module)}
    return CutModel(
        parts, shared, {name: tensor for name, tensor in state_by_name(made.model).items() if name not in used}
    )


def _model_stages(modules: Sequence[StageModule], args: Any, kwargs: Any) -> Iterator[ModelStage]:
    taken = tree_leaves((args, kwargs))
    for k, module in enumerate(modules):
        given = tree_leaves(module(*args, **kwargs) if k == 0 else module(*taken))
        yield ModelStage(module, tuple(map(_without_content, taken)), tuple(map(_without_content, given)))
        taken = [value.detach().requires_grad_(value.requires_grad) for value in given]


def _without_content(tensor: Tensor) -> Tensor:
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return found.requires_grad_(tensor.requires_grad)


def _stage_modules(whole: fx.GraphModule) -> list[StageModule]:
    """Return the parts of a model that calls one after the other, in a chain."""
    nodes = list(whole.graph.nodes)
    calls = [node for node in nodes if node.op == "call_module"]
    output = next(node for node in nodes if node.op == "output")
    made = [_result_positions(call) for call in calls]
    known, found = [node for node in nodes if node.op == "placeholder"], list[StageModule]()
    for k, call in enumerate(calls):
        inner = whole.get_submodule(str(call.target))
        assert isinstance(inner, fx.GraphModule)
        inner.graph.set_codegen(fx.graph.CodeGen())  # the first part has the model's own signature
        inner.recompile()
        needed_later = {node for later in (*calls[k + 1 :], output) for node in later.all_input_nodes}
        passed = [node for node in (*known, *made[k]) if node in needed_later]
        given = tree_leaves(output.args[0]) if k + 1 == len(calls) else passed
        found.append(StageModule(inner, known, tree_leaves(call.args), made[k], given))
        known = passed
    return found


def _result_positions(call: fx.Node) -> dict[fx.Node, int]:
    """Return the values of a call, each with its position in the call's result."""
    places: dict[fx.Node, int] = {}
    for user in call.users:
        if user.target is operator.getitem:
            place = user.args[1]
            assert isinstance(place, int)
            places[user] = place
    return places or {call: -1}


def check_layers(model: nn.Module, stages: Sequence[Sequence[str]]) -> None:
    """Reject a plan of another model.

    Raises:
        BuildError: If it has a layer that the model lacks.
    """
    known = {name for name, _ in model.named_modules()} | {OUTSIDE}
    if unknown := [name for layers in stages for name in layers if name not in known]:
        raise BuildError(f"the model has no layer {unknown[0]!r} of the plan; plan for this model")


def _first_layers(model: nn.Module, stages: Sequence[Sequence[str]]) -> list[str]:
    """Return the first layer of each stage but the first."""
    check_layers(model, stages)
    calls = Counter(name for layers in stages for name in layers)
    for layers in stages[1:]:
        if layers[0] == OUTSIDE:
            raise BuildError("the last stage has no layer, only computation outside of layers; plan fewer stages")
        if calls[layers[0]] > 1:
            raise BuildError(f"layer {layers[0]!r} runs several times: it is unclear where to cut; plan fewer stages")
    return [layers[0] for layers in stages[1:]]


def _merge_shared_parameters(model: nn.Module, modules: Sequence[nn.Module]) -> dict[tuple[str, ...], list[int]]:
    """Find parameters that several stages have, and keep one copy in each stage under all its names."""
    by_identity: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            by_identity.setdefault(id(parameter), []).append(name)
    holders = {
        tuple(names): [k for k, module in enumerate(modules) if _merge_aliases(module, names)]
        for names in by_identity.values()
    }
    return {names: stages for names, stages in holders.items() if len(stages) > 1}


def _merge_aliases(module: nn.Module, names: Sequence[str]) -> bool:
    """Merge parameters of several names into one; return whether there is any."""
    known = dict(module.named_parameters(remove_duplicate=False))
    own = [name for name in names if name in known]
    for name in own[1:]:
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, known[own[0]])
    return bool(own)


def parameter_by_any_name(module: nn.Module, names: Sequence[str]) -> nn.Parameter:
    """Return the parameter of a stage that has one of some names."""
    known = {name.removeprefix(INNER): parameter for name, parameter in module.named_parameters(remove_duplicate=False)}
    return next(known[name] for name in names if name in known)


def state_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a stage's state by the model's own names."""
    kept = module.state_dict().items()
    return {name.removeprefix(INNER): tensor.detach().clone() for name, tensor in kept if isinstance(tensor, Tensor)}


CPU = torch.device("cpu")
Around = Callable[[PassKind, Callable[..., Any]], Callable[..., Any]]  # wraps a pass of some kind
Loss = Callable[[Any, Tensor | None], Tensor]  # of a micro-batch: what its output and target add to the loss


Passes = Callable[[Any, Tensor], None]  # of a step, on all its samples and their targets; gradients accumulate


def whole_model_passes(module: nn.Module, micro_batch: int, micro_batches: int, loss: Loss, around: Around) -> Passes:
    """Return the passes through a whole model: the micro-batches one after the other."""

    def forward(number: int, batch: Any, target: Tensor) -> Tensor:
        first = number * micro_batch
        args, kwargs = model_arguments(slice_samples(batch, first, micro_batch))
        return loss(module(*args, **kwargs), slice_samples(target, first, micro_batch))

    def backward(_number: int, found: Tensor) -> None:
        torch.autograd.backward(found)

    forwards, backwards = around(PassKind.forward, forward), around(PassKind.backward, backward)

    def step(batch: Any, target: Tensor) -> None:
        for number in range(micro_batches):
            backwards(number, forwards(number, batch, target))

    return step


def stage_passes(
    part: ModelStage, index_and_stages: tuple[int, int], group: dist.ProcessGroup, schedule: Schedule,
    micro_batches: int, loss: Loss, around: Around,
) -> Passes:  # fmt: skip
    """Return the passes through a stage, by a schedule of torch.distributed.pipelining.

    The stage is given by its index, and the number of all stages.
    """
    # late: slow to load, and needed only for pipelines
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage: Any = PipelineStage(part.module, *index_and_stages, CPU, part.inputs, part.outputs, group=group)
    stage.forward_one_chunk = around(PassKind.forward, stage.forward_one_chunk)
    stage.backward_one_chunk = around(PassKind.backward, stage.backward_one_chunk)
    by_name = {Schedule.one_forward_one_backward: Schedule1F1B, Schedule.gpipe: ScheduleGPipe}
    made = by_name[schedule](stage, micro_batches, loss, scale_grads=False)

    def check_once(_module: nn.Module, _inputs: object, output: object) -> None:
        hook.remove()
        _check_can_be_sent(output)

    hook = part.module.register_forward_hook(check_once)

    def step(batch: Any, target: Tensor) -> None:
        args, kwargs = model_arguments(batch) if index_and_stages[0] == 0 else ((), {})
        own_target = target if index_and_stages[0] == index_and_stages[1] - 1 else None
        try:
            made.step(*args, target=own_target, return_outputs=False, **kwargs)
        except RuntimeError as error:  # PyTorch's, around the error of a pass
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from error
            raise

    return step


def _check_can_be_sent(output: object) -> None:
    """Check that schedules can send what a stage returns.

    Raises:
        InputError: If not.
    """
    parts = output if isinstance(output, tuple | list) else (output,)
    if not all(isinstance(part, Tensor) for part in parts):
        got = type(next(part for part in parts if not isinstance(part, Tensor))).__name__
        fix = "return a tensor, or a tuple of tensors, from forward, or plan with --degrees Dx1x1"
        raise InputError(f"the model returns a {got}, which torch.distributed.pipelining cannot send", fix)
