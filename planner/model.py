"""The step-time model: time and memory of an iteration, from shapes, constants and hardware.

A micro-batch of a stage takes

    flops / (peak * e) + tensor_bytes / tensor_bytes_per_s + layer_s * layers + tensor_layer_s * tensor layers,
    e = efficiency * x / (x + half_elements),    x = elements of the micro-batch's activation on one GPU

and an iteration with m micro-batches over p stages, whose pace is that of the slowest,

    micro_batch_s * (m + (p - 1) / v) + gradient_bytes / bandwidth + optimizer_bytes / memory bandwidth + iteration_s

The eight constants are fitted to measured runs of decoders (GPT and similar). One dense decoder layer has
24 s h^2 + 4 s^2 h forward FLOPs for a sample, and 12 h^2 parameters; the head has 2 s h V FLOPs. The last stage is the
slowest, as it holds the head too.

Ranks of a machine without GPUs have a host profile instead, measured on the machine. Several ranks may share a core, so
the speed of a rank depends on the number of busy ranks. `simulate_schedule` takes that into account: each rank does its
passes in the order of the schedule, each as soon as its inputs have arrived. All replicas of a stage do the same at the
same time. With a core for each rank and equal stages, the result is the formula above.

Source: SPEC P4, P1; the constants are fitted to measured runs (docs/planner.md); mixed precision with Adam: 2 bytes of
weights, 2 of gradients, 12 of optimizer (docs/planner.md).
"""

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from ..cluster.model.training_plan import MemorySaving

OFFLOAD_MARGIN_S = 0.005  # error of predictions that is allowed for; a copy back begins that much earlier, too


class OffloadMode(StrEnum):
    """Whether state is offloaded."""

    never = "never"
    auto = "auto"  # if it is idle for longer than both copies take
    one_copy = "one-copy"  # as in the source: if it is idle for longer than one copy takes


class CopyTimes(NamedTuple):
    """Times of the copies of one piece of state."""

    out_s: float
    back_s: float
    out_core_s: float = 0.0  # of these, what keeps a core busy
    back_core_s: float = 0.0


def offload_pays(idle_s: float, copies: CopyTimes, how: OffloadMode) -> bool:
    """Return whether to offload state that is idle for a time."""
    if how is OffloadMode.never:
        return False
    return idle_s > (copies.out_s if how is OffloadMode.one_copy else copies.out_s + copies.back_s) + OFFLOAD_MARGIN_S


def copy_back_begins_s(needed_at_s: float, copies: CopyTimes) -> float:
    """Return when the copy back has to begin."""
    return needed_at_s - copies.back_s - OFFLOAD_MARGIN_S


def unhidden_copy_s(wait_s: float, copies: CopyTimes, *, both_in_wait: bool, has_own_core: bool) -> float:
    """Return how much longer a step takes if the state is offloaded in it.

    Args:
        wait_s: For other ranks; the state is needed at its end. The copy back begins no earlier than the wait.
        copies: Their times.
        both_in_wait: Whether the copy out, too, is in the wait; else it runs while the rank computes.
        has_own_core: Whether copies run beside the computation, and do not take its core.
    """
    late_s = max(0.0, copies.back_s + (copies.out_s if both_in_wait else 0.0) - wait_s)
    return late_s if both_in_wait or has_own_core else late_s + copies.out_core_s


def offload_reason(state_name: str, size_bytes: int, idle_s: float, copies: CopyTimes, how: OffloadMode) -> str:
    """Return in one line whether state is offloaded, and why."""
    goes = offload_pays(idle_s, copies, how)
    sides = [f"{1e3 * copies.out_s:.1f} ms out"]
    sides += [] if how is OffloadMode.one_copy else [f"{1e3 * copies.back_s:.1f} ms back"]
    sides += [f"{1e3 * OFFLOAD_MARGIN_S:.0f} ms margin"]
    return (
        f"{state_name} ({size_bytes / 1e6:.1f} MB) {'is offloaded' if goes else 'stays'}: it is idle for "
        f"{1e3 * idle_s:.1f} ms, {'more' if goes else 'not more'} than {' + '.join(sides)}"
    )


class Constants(NamedTuple):
    """Eight figures of GPUs, network and training software, fitted to measured runs."""

    efficiency: float  # best share of the peak in matrix products
    half_elements: float  # elements of a micro-batch's activation at which half of that share is reached
    tensor_bytes_per_s: float  # of the all-reduces of tensor parallelism, inside a node
    inside_bytes_per_s: float  # of the all-reduce of gradients inside a node
    across_bytes_per_s: float  # of the all-reduce of gradients across nodes
    layer_s: float  # fixed cost of a decoder layer for each micro-batch
    tensor_layer_s: float  # fixed cost of tensor parallelism, for each layer and micro-batch
    iteration_s: float  # fixed cost of an iteration


# Where a fit starts, and what it is regularised to: from datasheets of the A100.
PRIOR = Constants(0.55, 0.30e6, 150e9, 100e9, 20e9, 1e-3, 0.5e-3, 5e-3)


Array = NDArray[np.float64]
OPTIMIZER_BYTES = 20.0  # that Adam in mixed precision reads and writes for each parameter
NUMBER_BYTES = 2.0  # of a weight, a gradient or an activation: fp16 or bf16


class MicroBatchWork(NamedTuple):
    """The work of a micro-batch on one GPU, by layer, by stage or by run: arrays of one shape."""

    flops: Array  # forward, backward, and recomputation
    elements: Array  # of the activation that its matrix products multiply
    tensor_bytes: Array  # that the all-reduces of tensor parallelism send
    layers: Array  # decoder layers, or others in their measure
    tensor_layers: Array  # the same where there is tensor parallelism, else 0


class IterationWork(NamedTuple):
    """The work of an iteration beside its micro-batches, on the busiest GPU: arrays of one shape."""

    steps: Array  # micro-batches, and the steps to fill and empty the pipeline
    inside_bytes: Array  # of gradients that a GPU sends inside its node
    across_bytes: Array  # of gradients that a GPU sends across nodes
    gathered_bytes: Array  # that ZeRO-3 sends across nodes, with no wait between
    optimizer_bytes: Array  # that the optimizer reads and writes


class HardwareRates(NamedTuple):
    """Figures of the hardware's datasheet; each a number, or an array like the work."""

    peak_flops: Array | float
    memory_bytes_per_s: Array | float
    nic_bytes_per_s: Array | float  # of a node's network


def compute_s(work: MicroBatchWork, peak_flops: Array | float, constants: Constants) -> Array:
    """Return the time of the matrix products of each piece, in its shape."""
    # e = efficiency / (1 + half / x): nothing to multiply takes no time.
    slower: Array = 1.0 + constants.half_elements / np.maximum(work.elements, 1.0)
    products_s: Array = work.flops * slower / (peak_flops * constants.efficiency)
    return products_s


def tensor_and_fixed_s(work: MicroBatchWork, constants: Constants) -> Array:
    """Return the time of each piece that does not depend on the GPU's speed: tensor parallelism and fixed costs."""
    taken_s: Array = (
        work.tensor_bytes / constants.tensor_bytes_per_s
        + constants.layer_s * work.layers
        + constants.tensor_layer_s * work.tensor_layers
    )
    return taken_s


def micro_batch_s(work: MicroBatchWork, peak_flops: Array | float, constants: Constants) -> Array:
    """Return the time of each piece, in its shape."""
    return compute_s(work, peak_flops, constants) + tensor_and_fixed_s(work, constants)


def iteration_s(micro_batches_s: Array, work: IterationWork, machine: HardwareRates, constants: Constants) -> Array:
    """Return the time of each iteration, in the shape of the work.

    Args:
        micro_batches_s: Time of a micro-batch on the slowest stage, in the same shape.
        work: What else it does.
        machine: Memory and network.
        constants: Fitted ones.
    """
    taken_s: Array = micro_batches_s * work.steps + synchronisation_s(work, machine, constants)
    return taken_s + constants.iteration_s


def synchronisation_s(work: IterationWork, machine: HardwareRates, constants: Constants) -> Array:
    """Return the time of gradients and optimizer of each iteration, in the shape of the work."""
    taken_s: Array = (
        work.inside_bytes / constants.inside_bytes_per_s
        + work.across_bytes / constants.across_bytes_per_s
        + work.gathered_bytes / machine.nic_bytes_per_s
        + work.optimizer_bytes / machine.memory_bytes_per_s
    )
    return taken_s


def all_reduce_bytes(members: Array, volume_bytes: Array) -> Array:
    """Return what each member of a ring sends when it sums a volume over all, in their common shape."""
    sent: Array = 2.0 * (members - 1.0) / members * volume_bytes
    return sent


FULL, SELECTIVE, NONE = 2.0, 1.0, 0.0  # how much of a layer is computed twice


class MeasuredRuns(NamedTuple):
    """Runs of decoders, each array of shape (runs,)."""

    gpus: Array
    batch: Array  # global, in samples
    micro_batch: Array
    hidden: Array
    layers: Array
    sequence: Array
    vocabulary: Array
    tensor: Array  # degrees of parallelism
    pipeline: Array
    data: Array
    recompute: Array  # FULL, SELECTIVE or NONE
    interleave: Array  # parts of the model on each stage
    zero3: Array  # 1 where parameters are spread over all members, else 0
    iteration_s: Array  # as measured


def select_runs(runs: MeasuredRuns, rows: NDArray[np.int64]) -> MeasuredRuns:
    """Return some of the runs, by their indices."""
    return MeasuredRuns(*(column[rows] for column in runs))


class DecoderWork(NamedTuple):
    """The work of runs, for predictions with any constants."""

    micro_batch: MicroBatchWork
    iteration: IterationWork
    machine: HardwareRates


def decoder_work_of(runs: MeasuredRuns, machine: HardwareRates, gpus_per_node: int) -> DecoderWork:
    """Return the work of each run on its slowest stage, arrays of shape (runs,)."""
    t, p, d = runs.tensor, runs.pipeline, runs.data
    local = runs.layers / p
    parameters = 12.0 * runs.hidden**2 * local / t + runs.vocabulary * runs.hidden / t
    micro_batches = runs.batch / (d * runs.micro_batch)
    summed = np.where(runs.zero3 > 0, 0.0, all_reduce_bytes(d, NUMBER_BYTES * parameters))
    gathered = 3.0 * NUMBER_BYTES * parameters * micro_batches * (d - 1.0) / d
    is_inside = runs.gpus <= gpus_per_node
    iteration = IterationWork(
        steps=micro_batches + (p - 1.0) / runs.interleave,
        inside_bytes=np.where(is_inside, summed, 0.0),
        across_bytes=np.where(is_inside, 0.0, summed),
        gathered_bytes=np.where(runs.zero3 > 0, gathered, 0.0),
        optimizer_bytes=OPTIMIZER_BYTES * parameters,
    )
    return DecoderWork(_micro_batch_work(runs, local), iteration, machine)


def _micro_batch_work(runs: MeasuredRuns, layers_per_stage: Array) -> MicroBatchWork:
    t, b, s, h = runs.tensor, runs.micro_batch, runs.sequence, runs.hidden
    layer = 24.0 * s * h**2 + 4.0 * s**2 * h
    # Selective recomputation does the products of attention a second time, and no others.
    passes = np.where(runs.recompute == FULL, 4.0, 3.0)
    again = np.where(runs.recompute == SELECTIVE, 4.0 * s**2 * h, 0.0)
    reduces = np.where(runs.recompute == FULL, 6.0, 4.0)  # all-reduces of a layer
    head = 3.0 * 2.0 * s * h * runs.vocabulary
    activation = b * s * h
    return MicroBatchWork(
        flops=b / t * ((passes * layer + again) * layers_per_stage + head),
        elements=activation / t,
        tensor_bytes=all_reduce_bytes(t, reduces * layers_per_stage * activation * NUMBER_BYTES),
        layers=layers_per_stage,
        tensor_layers=np.where(t > 1, layers_per_stage, 0.0),
    )


def predicted_iteration_s(work: DecoderWork, constants: Constants) -> Array:
    """Return the iteration time of each run, shape (runs,)."""
    each_s = micro_batch_s(work.micro_batch, work.machine.peak_flops, constants)
    return iteration_s(each_s, work.iteration, work.machine, constants)


Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


class MeasuredHardware(BaseModel, frozen=True, extra="forbid", strict=True):
    """The datasheet of the GPUs and the network on which the runs were measured."""

    peak_flops: Positive = 312e12  # of one GPU: an A100 in bf16, without sparsity
    memory_bytes_per_s: Positive = 1.5e12  # of one GPU
    intra_bytes_per_s: Positive = 300e9  # between two GPUs of a node: NVLink of an A100
    nic_bytes_per_s: Positive = 25e9  # of a node: 200 Gbit/s
    gpus_per_node: Annotated[int, Field(ge=1, le=1_000_000)] = 8


def scaled_to_bandwidths(
    constants: Constants, measured: MeasuredHardware, intra_bytes_per_s: float, nic_bytes_per_s: float
) -> Constants:
    """Return constants for GPUs with other bandwidths, inside and across nodes: shares of the datasheet's stay."""
    inside, across = intra_bytes_per_s / measured.intra_bytes_per_s, nic_bytes_per_s / measured.nic_bytes_per_s
    return constants._replace(
        tensor_bytes_per_s=constants.tensor_bytes_per_s * inside,
        inside_bytes_per_s=constants.inside_bytes_per_s * inside,
        across_bytes_per_s=constants.across_bytes_per_s * across,
    )


class FittedConstants(BaseModel, frozen=True, extra="forbid", strict=True):
    """The constants in a file."""

    efficiency: Annotated[float, Field(gt=0, le=10)]
    half_elements: Positive
    tensor_bytes_per_s: Positive
    inside_bytes_per_s: Positive
    across_bytes_per_s: Positive
    layer_s: Positive
    tensor_layer_s: Positive
    iteration_s: Positive


class Accuracy(BaseModel, frozen=True, extra="forbid", strict=True):
    """The error of predictions for runs that were not in the fit."""

    runs: Annotated[int, Field(ge=1)]
    mean_error: Annotated[float, Field(ge=0)]  # mean of |predicted / measured - 1|
    bias: float  # mean of predicted / measured - 1
    bound_share: Share  # of runs that the bound covers
    bound_factor: Positive  # the bound is the predicted time times this


class HardwareProfile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A hardware profile, in the format of its file; see docs/planner.md."""

    format: Literal["longshore-hardware-1"] = "longshore-hardware-1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    measured_on: MeasuredHardware = MeasuredHardware()
    constants: FittedConstants
    not_identified: Annotated[tuple[str, ...], Field(strict=False)] = ()  # constants that the runs do not determine
    accuracy: Accuracy

    @property
    def as_constants(self) -> Constants:
        """The constants on the hardware that they were measured on."""
        return Constants(**self.constants.model_dump())


# The result of `longshore plan calibrate` for half of the 109 multi-node runs of Megatron-DeepSpeed on A100 that
# vTrain published (MIT licence): 54 runs on 64 to 512 GPUs. `make bench-planner` fits them again and compares.
DEFAULT = HardwareProfile(
    name="A100, Megatron-DeepSpeed, 64 to 512 GPUs",
    constants=FittedConstants(
        efficiency=0.746, half_elements=0.237e6, tensor_bytes_per_s=130e9, inside_bytes_per_s=99.9e9,
        across_bytes_per_s=10.1e9, layer_s=2.66e-3, tensor_layer_s=0.659e-3, iteration_s=5.1e-3,
    ),
    not_identified=("inside_bytes_per_s", "iteration_s"),
    accuracy=Accuracy(runs=54, mean_error=0.095, bias=-0.029, bound_share=0.9, bound_factor=1.25),
)  # fmt: skip


MAX_HOST_RANKS = 64
HOST_NUMBER_BYTES = 4.0  # of a weight, a gradient or an activation: no machine without GPUs trains in fewer
HostSeconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0, le=10)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class LayerRates(BaseModel, frozen=True, extra="forbid", strict=True):
    """Times of a layer per unit of its figures, one way, for a single busy rank."""

    flop_s: HostSeconds  # for a FLOP of matrix products
    kept_byte_s: (
        HostSeconds  # for a byte that is kept for the backward pass: elementwise functions write and read these
    )
    parameter_s: HostSeconds  # for a parameter, whatever the micro-batch: weights are read, gradients added
    layer_s: HostSeconds  # for the launches of a decoder layer


class ExchangeCost(BaseModel, frozen=True, extra="forbid", strict=True):
    """The time to send, or to sum over members."""

    members: Annotated[int, Field(ge=2, le=MAX_HOST_RANKS)]
    start_s: HostSeconds
    byte_s: HostSeconds  # for a byte of the tensor


class HostProfile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A host profile, in the format of its file; see docs/planner.md."""

    format: Literal["longshore-host-1"] = "longshore-host-1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    cores: Count
    memory_bytes: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
    forward: LayerRates
    backward: LayerRates
    # Of one rank where one, two, three and so on are busy; the first is 1.
    speeds: Annotated[tuple[Speed, ...], Field(strict=False, min_length=1, max_length=MAX_HOST_RANKS)]
    send: ExchangeCost
    reduce: Annotated[tuple[ExchangeCost, ...], Field(strict=False)]  # for two members, three and so on
    update_start_s: HostSeconds  # of the optimizer's step
    update_parameter_s: HostSeconds
    accuracy: Accuracy  # of the time of layers that the rates were not fitted to

    @model_validator(mode="after")
    def _reduces_match_speeds(self) -> "HostProfile":
        if [cost.members for cost in self.reduce] != list(range(2, self.ranks + 1)):
            raise ValueError(f"reduce should have 2 to {self.ranks} members in order, as there are {self.ranks} speeds")
        return self

    @property
    def ranks(self) -> int:
        """Ranks that it was measured with."""
        return len(self.speeds)

    def reduce_s(self, members: int, volume_bytes: float) -> float:
        """Return the time in which N members sum a tensor, if no other rank is busy."""
        if members == 1:
            return 0.0
        found = self.reduce[members - 2]
        return found.start_s + found.byte_s * volume_bytes

    def send_s(self, volume_bytes: float) -> float:
        """Return the time in which a tensor reaches the next stage."""
        return self.send.start_s + self.send.byte_s * volume_bytes

    def update_s(self, parameters: float) -> float:
        """Return the time of the optimizer, for a single busy rank."""
        return self.update_start_s + self.update_parameter_s * parameters


STATE_BYTES = 16.0  # weights, gradients and optimizer of one parameter
OPTIMIZER_STATE_BYTES = 12.0  # of these, what ZeRO-1 spreads
FRAGMENTATION = 1.08  # memory of the allocator over that of tensors: 5 to 10 % are usual
CONTEXT_BYTES = 1e9  # of CUDA and its libraries, on each GPU


def state_bytes_per_parameter(saving: MemorySaving, data: int) -> float:
    """Return the bytes of one parameter on each of N data-parallel members."""
    if saving.zero == 3:
        return STATE_BYTES / data
    if saving.zero == 1:
        return STATE_BYTES - OPTIMIZER_STATE_BYTES + OPTIMIZER_STATE_BYTES / data
    return STATE_BYTES


def optimizer_bytes_per_parameter(saving: MemorySaving, data: int) -> float:
    """Return the optimizer's bytes of one parameter on each of N data-parallel members."""
    return OPTIMIZER_STATE_BYTES / (data if saving.zero else 1)


def kept_activation_share(tensor: Array | float) -> Array | float:
    """Return the share of a layer's activations on each of N tensor-parallel members.

    Of the 34 s b h bytes of a decoder layer, 10 are on every member: inputs of norms, and masks of dropout.
    """
    return (10.0 + 24.0 / tensor) / 34.0


def usable_memory_bytes(memory_bytes: float) -> float:
    """Return the bytes that training may allocate on a GPU; 0 or less if nothing remains."""
    return (memory_bytes - CONTEXT_BYTES) / FRAGMENTATION


SIMULATED_ITERATIONS = 3  # the last counts: a stage may begin an iteration before others end the last


class Schedule(StrEnum):
    """The order of the passes of a stage."""

    one_forward_one_backward = "1f1b"
    gpipe = "gpipe"


class StageSeconds(NamedTuple):
    """The seconds of a stage in an iteration: work for a single busy rank, or time."""

    forward_s: float
    backward_s: float
    gradients_s: float  # sum over replicas
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """The sum."""
        return sum(self)


class StageWork(NamedTuple):
    """The work of a stage in an iteration; passes are for one micro-batch."""

    seconds: StageSeconds
    arrives_s: float  # time that the output of a pass travels to the next stage, or back from it


class _SimulatedPass(NamedTuple):
    kind: int  # index in Seconds
    iteration: int
    micro_batch: int


def pass_order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the passes of a stage, each as 0 for forward or 1 for backward and its micro-batch."""
    ahead = micro_batches if schedule is Schedule.gpipe else min(micro_batches, stages - stage)
    found = [(0, micro_batch) for micro_batch in range(ahead)]
    for done in range(micro_batches):
        found.append((1, done))
        found += [(0, ahead + done)] if ahead + done < micro_batches else []
    return found


def simulate_schedule(
    works: Sequence[StageWork], micro_batches: int, schedule: Schedule, replicas: int, speeds: Sequence[float]
) -> tuple[float, list[StageSeconds]]:
    """Simulate a schedule; return the time of an iteration, and how each stage spends it; the rest it waits.

    Args:
        works: Of the stages.
        micro_batches: Of each replica, in an iteration.
        schedule: Order of the passes.
        replicas: Of each stage.
        speeds: Of a rank where one, two, three and so on are busy; beyond them, the last.
    """
    stages = len(works)
    queues = [_simulated_passes(pass_order(schedule, k, stages, micro_batches)) for k in range(stages)]
    at, left = [0] * stages, [-1.0] * stages  # position in the queue; remaining work of a running pass, else -1
    ended: dict[tuple[int, _SimulatedPass], float] = {}
    spent = [[0.0, 0.0, 0.0, 0.0] for _ in range(stages)]
    ends, now = [0.0] * SIMULATED_ITERATIONS, 0.0
    while any(at[k] < len(queues[k]) for k in range(stages)):
        next_arrival = inf
        for k in range(stages):
            if left[k] < 0.0 and at[k] < len(queues[k]):
                ready = _earliest_start_s(works, ended, k, queues[k][at[k]])
                if ready <= now:
                    left[k] = works[k].seconds[queues[k][at[k]].kind]
                else:
                    next_arrival = min(next_arrival, ready)
        busy = [k for k in range(stages) if left[k] >= 0.0]
        speed = speeds[min(len(speeds), len(busy) * replicas) - 1] if busy else 1.0
        step_s = min((left[k] / speed for k in busy), default=inf)
        step_s = min(step_s, next_arrival - now)
        now += step_s
        for k in busy:
            doing = queues[k][at[k]]
            if doing.iteration == SIMULATED_ITERATIONS - 1:
                spent[k][doing.kind] += step_s
            left[k] -= step_s * speed
            if left[k] <= 1e-12:
                ended[k, doing], left[k] = now, -1.0
                at[k] += 1
                ends[doing.iteration] = now
    return ends[-1] - ends[-2], [StageSeconds(*seconds) for seconds in spent]


def _simulated_passes(passes: Sequence[tuple[int, int]]) -> list[_SimulatedPass]:
    once = [*passes, (2, 0), (3, 0)]
    return [
        _SimulatedPass(kind, iteration, micro_batch)
        for iteration in range(SIMULATED_ITERATIONS)
        for kind, micro_batch in once
    ]


def _earliest_start_s(
    works: Sequence[StageWork], ended: dict[tuple[int, _SimulatedPass], float], stage: int, next_pass: _SimulatedPass
) -> float:
    """Return when a stage may begin a pass; infinite while its input is not computed."""
    if next_pass.kind == 0 and stage > 0:
        return ended.get((stage - 1, next_pass), inf) + works[stage - 1].arrives_s
    if next_pass.kind == 1 and stage + 1 < len(works):
        return ended.get((stage + 1, next_pass), inf) + works[stage].arrives_s
    return 0.0


def default_schedule(micro_batches: int, stages: int) -> Schedule:
    """Return the schedule of a plan: 1F1B, which needs least memory, if there is a micro-batch for each stage."""
    return Schedule.one_forward_one_backward if micro_batches >= stages else Schedule.gpipe
