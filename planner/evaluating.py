"""The evaluation of a layout: cut the model into stages, and compute their times and memory.

On GPUs, times are those of the step-time model. On ranks of a machine without GPUs, the schedule of the pipeline is
simulated, as ranks share cores.

A plan may offload its optimizer state to host memory during the forward and backward passes. The state leaves after an
update, while the first micro-batches fill the memory for activations, and returns while gradients are summed. The part
of the copies that this does not hide makes an iteration longer. planner/offload/ has the same rule.

Source: SPEC P1, P4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from .hardware import HOST_NUMBER_BYTES, HostProfile, LayerRates
from .memory import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    CopyTimes,
    OffloadMode,
    offload_pays,
    unhidden_copy_s,
    usable_memory_bytes,
)
from .partition import Cuts, StageCosts, partition, prefix_sums
from .plan import FoundPlan, IterationTimes, Misfit, PlanLayout, PlanStage
from .profile.profiling import OUTSIDE, ModelProfile
from .request import (
    Chain,
    GpuType,
    LayerArrays,
    MemoryCosts,
    PlanRequest,
    effective_type,
    layer_work,
    memory_costs,
    stage_types,
)
from .schedule import StageSeconds, StageWork, default_schedule, simulate_schedule
from .step_time import (
    NUMBER_BYTES,
    OPTIMIZER_BYTES,
    Array,
    IterationWork,
    MicroBatchWork,
    all_reduce_bytes,
    compute_s,
    micro_batch_s,
    synchronisation_s,
)


@dataclass(frozen=True, slots=True)
class _LayoutCase:
    """A layout with the costs of its layers on each stage."""

    request: PlanRequest
    layout: PlanLayout
    micro_batches: int
    types: list[GpuType]  # of each stage
    needs: MemoryCosts
    costs: Sequence[StageCosts] = ()  # of each stage
    is_away: bool = False  # whether optimizer state is offloaded during the passes


def evaluate(request: PlanRequest, chain: Chain, layout: PlanLayout) -> FoundPlan | Misfit:
    """Return the plan of a layout, or that it does not fit into memory.

    1. Compute the time and the memory that each layer takes on each stage.
    2. Cut the layers into stages: the slowest as fast as possible, and none over its memory.
    3. If there are such cuts, compute the time of an iteration, and what each stage computes, needs and sends.
    4. If not, offload the optimizer state, if the request allows it, and repeat steps 1 to 3.
    5. If that does not fit or pay, return the memory that is needed by the cuts that need the least.
    """
    if isinstance(request.hardware, HostProfile):
        return _evaluate_on_host(request, request.hardware, chain[0], layout)
    degree = [np.full((1, 1), float(value)) for value in (layout.tensor, layout.micro_batch, layout.saving.recomputes)]
    work = MicroBatchWork(*(column[0] for column in layer_work(request.layers, *degree)))
    case = _with_costs(_case_without_costs(request, layout, stage_types(chain, layout)), work)  # 1
    cuts = partition(case.costs)  # 2
    if cuts is not None:
        return _plan_of_cuts(case, work, cuts)  # 3
    plan = _plan_with_offload(case, work) if request.offload else None  # 4
    return plan or _misfit(case, partition(_memory_as_time(case.costs)))  # 5


def _case_without_costs(request: PlanRequest, layout: PlanLayout, types: list[GpuType]) -> _LayoutCase:
    """Return a case without its costs."""
    micro_batches, copies = request.batch // (layout.data * layout.micro_batch), layout.pipeline > 1
    needs = memory_costs(
        request.layers, layout.saving, layout.data, layout.tensor, layout.micro_batch, has_tied_copies=copies
    )
    return _LayoutCase(request, layout, micro_batches, types, needs)


def _with_costs(case: _LayoutCase, work: MicroBatchWork) -> _LayoutCase:
    of_type: dict[GpuType, list[float]] = {}
    for gpu_type in case.types:
        if gpu_type not in of_type:
            each_s = micro_batch_s(work, gpu_type.peak_flops, case.request.constants(gpu_type))
            of_type[gpu_type] = prefix_sums(each_s.tolist())
    return replace(case, costs=[_stage_costs(case, k, of_type[gpu_type]) for k, gpu_type in enumerate(case.types)])


def _stage_costs(case: _LayoutCase, stage: int, time_s: list[float]) -> StageCosts:
    """Return the costs of layers on a stage: early stages hold more micro-batches (1F1B)."""
    held = min(case.layout.pipeline - stage, case.micro_batches)
    state, kept = case.needs.state_bytes, held * case.needs.kept_bytes
    needed: Array = state + kept
    if case.is_away:
        # In the passes the optimizer state is away; in the update all state is there, and no activations.
        needed = np.maximum(state - case.needs.optimizer_bytes + kept, state)
    return StageCosts(
        time_s,
        prefix_sums(needed.tolist()),
        usable_memory_bytes(case.types[stage].memory_bytes) - case.needs.working_bytes,
    )


def _needed_memory_bytes(case: _LayoutCase, cuts: Cuts, stage: int) -> float:
    total = case.costs[stage].memory_bytes
    return (total[cuts[stage + 1]] - total[cuts[stage]] + case.needs.working_bytes) * FRAGMENTATION + CONTEXT_BYTES


def _memory_as_time(costs: Sequence[StageCosts]) -> list[StageCosts]:
    """Return costs with which a partition finds the cuts that need the least memory."""
    return [StageCosts(cost.memory_bytes, cost.memory_bytes, inf) for cost in costs]


def _misfit(case: _LayoutCase, cuts: Cuts | None) -> Misfit:
    """Return the memory that a layout needs by some cuts, on the stage that lacks most."""
    assert cuts is not None  # with no bound, all cuts fit
    needed = [_needed_memory_bytes(case, cuts, k) for k in range(len(case.types))]
    worst = int(np.argmax([need / gpu_type.memory_bytes for need, gpu_type in zip(needed, case.types, strict=True)]))
    return Misfit(case.layout, case.types[worst].name, needed[worst], case.types[worst].memory_bytes)


def _plan_of_cuts(case: _LayoutCase, work: MicroBatchWork, cuts: Cuts) -> FoundPlan:
    request, layout = case.request, case.layout
    stages = tuple(_plan_stage(case, work, cuts, k) for k in range(layout.pipeline))
    bound_factor = request.hardware.accuracy.bound_factor
    return FoundPlan(
        layout, case.micro_batches, stages, _iteration_times(case, stages), request.iterations, bound_factor
    )


def _plan_stage(case: _LayoutCase, work: MicroBatchWork, cuts: Cuts, stage: int) -> PlanStage:
    request, layout, gpu_type, m = case.request, case.layout, case.types[stage], case.micro_batches
    held, layers, constants = slice(cuts[stage], cuts[stage + 1]), request.layers, request.constants(gpu_type)
    part = MicroBatchWork(*(column[held] for column in work))
    trained = float(layers.parameters[held].sum()) / layout.tensor
    frozen = float(layers.frozen_parameters[held].sum()) / layout.tensor
    frozen_bytes = float(layers.frozen_bytes[held].sum()) / layout.tensor
    gradients = float(all_reduce_bytes(np.array(float(layout.data)), np.array(NUMBER_BYTES * trained)))
    each_s, flops = float(micro_batch_s(part, gpu_type.peak_flops, constants).sum()), float(part.flops.sum())
    # Passes share the time by their FLOPs; recomputation counts as backward.
    forward_flops = float(layers.forward_flops[held].sum()) * layout.micro_batch / layout.tensor
    forward = forward_flops / max(flops, 1.0)
    gradients_s, optimizer_s = _gradients_and_optimizer_s(case, gpu_type, trained, frozen_bytes)
    return PlanStage(
        first_layer=cuts[stage], last_layer=cuts[stage + 1] - 1, gpu_type=gpu_type.name, gpus=gpu_type.gpus,
        micro_batch_s=each_s, compute_s=float(compute_s(part, gpu_type.peak_flops, constants).sum()),
        tensor_s=float(part.tensor_bytes.sum() / constants.tensor_bytes_per_s), flops=flops * m,
        parameters=trained + frozen, trained_parameters=trained, memory_bytes=_needed_memory_bytes(case, cuts, stage),
        gpu_memory_bytes=gpu_type.memory_bytes, tensor_bytes=float(part.tensor_bytes.sum()),
        next_bytes=_bytes_to_next_stage(case, cuts, stage), ring_bytes=gradients,
        seconds=StageSeconds(forward * (each_s * m), (1.0 - forward) * (each_s * m), gradients_s, optimizer_s),
        away_bytes=float(case.needs.optimizer_bytes[held].sum()) if case.is_away else 0.0,
    )  # fmt: skip


def _iteration_times(case: _LayoutCase, stages: tuple[PlanStage, ...]) -> IterationTimes:
    layout, whole = case.layout, effective_type(case.types)
    # Weights that are not trained count in ZeRO-3 alone, which has one stage.
    frozen_bytes = float(case.request.layers.frozen_bytes.sum()) / layout.tensor
    most = max(stage.trained_parameters for stage in stages)
    gradients_s, optimizer_s = _gradients_and_optimizer_s(case, whole, most, frozen_bytes)
    worst, m = max(stages, key=lambda stage: stage.micro_batch_s), case.micro_batches
    return IterationTimes(
        compute_s=worst.compute_s * m,
        tensor_s=worst.tensor_s * m,
        fixed_s=(worst.micro_batch_s - worst.compute_s - worst.tensor_s) * m,
        bubble_s=worst.micro_batch_s * (layout.pipeline - 1),
        gradients_s=gradients_s,
        optimizer_s=optimizer_s,
        iteration_s=case.request.constants(whole).iteration_s,
    )


def _gradients_and_optimizer_s(
    case: _LayoutCase, gpu_type: GpuType, parameters: float, frozen_bytes: float
) -> tuple[float, float]:
    """Return the time of gradients and of the optimizer, on a GPU that trains a number of parameters."""
    request, layout = case.request, case.layout
    constants, machine = request.constants(gpu_type), request.hardware_rates(gpu_type)
    figures = (
        parameters, frozen_bytes, layout.data, case.micro_batches, layout.saving.zero,
        layout.gpus <= gpu_type.gpus_per_node, case.micro_batches + layout.pipeline - 1,
    )  # fmt: skip
    work = iteration_work(*(np.array(float(figure)) for figure in figures))
    gradients_s = float(synchronisation_s(work._replace(optimizer_bytes=np.zeros(())), machine, constants))
    return gradients_s, float(synchronisation_s(work, machine, constants)) - gradients_s


def iteration_work(
    parameters: Array, frozen_bytes: Array, data: Array, micro_batches: Array, zero: Array, is_inside_node: Array,
    steps: Array,
) -> IterationWork:  # fmt: skip
    """Return the work of iterations beside their micro-batches, arrays of the shape of the arguments.

    Args:
        parameters: That a GPU trains; with ZeRO-3, that it works with.
        frozen_bytes: Of weights that it holds, or works with, and does not train.
        data: Data-parallel members.
        micro_batches: Of each.
        zero: Stage of ZeRO.
        is_inside_node: 1 where all is on one node, else 0.
        steps: Micro-batches, with those that the pipeline takes to fill and empty.
    """
    summed = np.where(zero == 3, 0.0, all_reduce_bytes(data, NUMBER_BYTES * parameters))
    # ZeRO-3 gathers weights twice and sums gradients once, for every micro-batch.
    each = 3.0 * NUMBER_BYTES * parameters + 2.0 * frozen_bytes
    gathered = np.where(zero == 3, each * micro_batches * (data - 1.0) / data, 0.0)
    return IterationWork(
        steps=steps,
        inside_bytes=np.where(is_inside_node > 0, summed + gathered, 0.0),
        across_bytes=np.where(is_inside_node > 0, 0.0, summed),
        gathered_bytes=np.where(is_inside_node > 0, 0.0, gathered),
        optimizer_bytes=OPTIMIZER_BYTES * parameters / np.where(zero > 0, data, 1.0),
    )


def _plan_with_offload(case: _LayoutCase, work: MicroBatchWork) -> FoundPlan | None:
    """Return the plan with offloaded optimizer state; None if that does not fit or pay."""
    away = _with_costs(replace(case, is_away=True), work)
    cuts = partition(away.costs)
    return None if cuts is None else with_offload_time(_plan_of_cuts(away, work, cuts), case.types)


def with_offload_time(plan: FoundPlan, types: Sequence[GpuType]) -> FoundPlan | None:
    """Return a plan with the time of its offload copies, None if host memory has no room or they do not pay."""
    sum_s = _final_gradient_sum_s(plan)
    idle_s = plan.step_s - sum_s - plan.times.optimizer_s
    late_s = 0.0
    for k, (stage, gpu_type) in enumerate(zip(plan.stages, types, strict=True)):
        if gpu_type.host_bytes_per_s <= 0.0 or stage.away_bytes > gpu_type.host_room_bytes:
            return None
        each_s = stage.away_bytes / gpu_type.host_bytes_per_s
        copies = CopyTimes(each_s, each_s)
        if not offload_pays(idle_s, copies, OffloadMode.auto):
            return None
        back_s = unhidden_copy_s(sum_s, copies, both_in_wait=False, has_own_core=True)
        late_s = max(late_s, back_s + max(0.0, copies.out_s - _pipeline_fill_s(plan, stage, k)))
    return replace(plan, times=replace(plan.times, offload_s=late_s))


def _final_gradient_sum_s(plan: FoundPlan) -> float:
    """Return how long gradients are summed once all passes are done.

    With ZeRO-3 each micro-batch gathers weights twice and sums gradients once, and only the last of these is behind it.
    """
    if plan.layout.saving.zero == 3:
        return plan.times.gradients_s / (3.0 * plan.micro_batches)
    return plan.times.gradients_s


def _pipeline_fill_s(plan: FoundPlan, stage: PlanStage, k: int) -> float:
    """Return how long a stage runs forward passes before its activations are all there (1F1B)."""
    held = min(plan.layout.pipeline - k, plan.micro_batches)
    return held * stage.seconds.forward_s / plan.micro_batches


def max_stages_on_host(profile: ModelProfile) -> int:
    """Return the most stages of a model on ranks: what is computed outside of all layers stays with the last layer."""
    return max(1, len(profile.layers) - (profile.layers[-1].name == OUTSIDE))


def _evaluate_on_host(request: PlanRequest, host: HostProfile, rank: GpuType, layout: PlanLayout) -> FoundPlan | Misfit:
    """Return the plan of a layout of ranks without tensor parallelism: balance the layers, simulate the schedule."""
    case, layers = _case_without_costs(request, layout, [rank] * layout.pipeline), request.layers
    forward_s = pass_s_by_layer(layers, host.forward, layers.forward_flops, layout.micro_batch)
    backward_s = pass_s_by_layer(layers, host.backward, layers.backward_flops, layout.micro_batch)
    # The work per iteration grows with a stage's parameters: spread over its micro-batches.
    once_s = host.update_parameter_s
    if layout.data > 1:
        once_s += host.reduce[layout.data - 2].byte_s * HOST_NUMBER_BYTES
    time_s = prefix_sums((forward_s + backward_s + once_s * layers.parameters / case.micro_batches).tolist())
    case = replace(case, costs=[_stage_costs(case, k, time_s) for k in range(layout.pipeline)])
    cuts = _cuts_on_host(request, case.costs)
    if cuts is None:
        return _misfit(case, _cuts_on_host(request, _memory_as_time(case.costs)))
    works = [_stage_work_on_host(case, host, (forward_s, backward_s), cuts, k) for k in range(layout.pipeline)]
    schedule = default_schedule(case.micro_batches, layout.pipeline)
    step_s, spent = simulate_schedule(works, case.micro_batches, schedule, layout.data, host.speeds)
    stages = tuple(_plan_stage_on_host(case, cuts, k, spent[k]) for k in range(layout.pipeline))
    times, bound_factor = _iteration_times_on_host(step_s, spent), host.accuracy.bound_factor
    return FoundPlan(layout, case.micro_batches, stages, times, request.iterations, bound_factor)


def pass_s_by_layer(layers: LayerArrays, rates: LayerRates, flops: Array, micro_batch: int) -> Array:
    """Return the time of a micro-batch in each layer, one way, for a single busy rank; shape (layers,).

    Args:
        layers: Of the model.
        rates: Of the way.
        flops: Of each layer on that way, for one sample.
        micro_batch: Samples.
    """
    per_sample = rates.flop_s * flops + rates.kept_byte_s * layers.saved_bytes
    weights = layers.parameters + layers.tied_parameters + layers.frozen_parameters
    once = rates.parameter_s * weights + rates.layer_s * layers.fixed_costs
    taken_s: Array = micro_batch * per_sample + once
    return taken_s


def _cuts_on_host(request: PlanRequest, costs: Sequence[StageCosts]) -> Cuts | None:
    """Return the cuts; none is before what is computed outside of all layers, which cannot be a stage."""
    count = request.layers.count
    if max_stages_on_host(request.profile) == count:
        return partition(costs)
    joined = [
        StageCosts(
            [*cost.time_s[:-2], cost.time_s[-1]], [*cost.memory_bytes[:-2], cost.memory_bytes[-1]], cost.max_bytes
        )
        for cost in costs
    ]
    found = partition(joined)
    return None if found is None else (*found[:-1], count)


def _stage_work_on_host(
    case: _LayoutCase, host: HostProfile, passes_s: Sequence[Array], cuts: Cuts, stage: int
) -> StageWork:
    """Return the work of a stage, for a single busy rank."""
    held, members, layers = slice(cuts[stage], cuts[stage + 1]), case.layout.data, case.request.layers
    parameters = float((layers.parameters[held] + layers.tied_parameters[held]).sum())
    # The members of a sum were all busy when it was measured.
    gradients_s = host.reduce_s(members, HOST_NUMBER_BYTES * parameters) * host.speeds[members - 1]
    forward_s, backward_s = (float(each_s[held].sum()) for each_s in passes_s)
    return StageWork(
        StageSeconds(forward_s, backward_s, gradients_s, host.update_s(parameters)),
        host.send_s(_bytes_to_next_stage(case, cuts, stage)),
    )


def _bytes_to_next_stage(case: _LayoutCase, cuts: Cuts, stage: int) -> float:
    """Return what a stage sends to the next one for a micro-batch."""
    is_last = stage + 1 == case.layout.pipeline
    return 0.0 if is_last else float(case.request.layers.output_bytes[cuts[stage + 1] - 1] * case.layout.micro_batch)


def _plan_stage_on_host(case: _LayoutCase, cuts: Cuts, stage: int, spent: StageSeconds) -> PlanStage:
    held, layers, layout, rank = (
        slice(cuts[stage], cuts[stage + 1]),
        case.request.layers,
        case.layout,
        case.types[stage],
    )
    each_s = (spent.forward_s + spent.backward_s) / case.micro_batches
    trained = float(layers.parameters[held].sum())
    summed = all_reduce_bytes(np.array(float(layout.data)), np.array(HOST_NUMBER_BYTES * trained))
    samples = case.micro_batches * layout.micro_batch
    return PlanStage(
        first_layer=cuts[stage], last_layer=cuts[stage + 1] - 1, gpu_type=rank.name, gpus=layout.data,
        micro_batch_s=each_s, compute_s=each_s, tensor_s=0.0,
        flops=float((layers.forward_flops[held] + layers.backward_flops[held]).sum()) * samples,
        parameters=trained + float(layers.frozen_parameters[held].sum()), trained_parameters=trained,
        memory_bytes=_needed_memory_bytes(case, cuts, stage), gpu_memory_bytes=rank.memory_bytes,
        tensor_bytes=0.0, next_bytes=_bytes_to_next_stage(case, cuts, stage), ring_bytes=float(summed), seconds=spent,
    )  # fmt: skip


def _iteration_times_on_host(step_s: float, spent: Sequence[StageSeconds]) -> IterationTimes:
    worst = max(spent, key=lambda seconds: seconds.total_s)
    wait_s = max(0.0, round(step_s - worst.total_s, 12))  # rounding may leave a tiny rest
    return IterationTimes(
        compute_s=worst.forward_s + worst.backward_s, tensor_s=0.0, fixed_s=0.0, bubble_s=wait_s,
        gradients_s=worst.gradients_s, optimizer_s=worst.optimizer_s, iteration_s=0.0,
    )  # fmt: skip
