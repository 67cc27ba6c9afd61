"""The evaluation of layouts: lower bounds for all of them at once, then times and memory of one.

The lower bounds save the evaluation of most layouts. A bound that is too high would hide a good plan, so tests compare
each with the evaluated plan.

A plan may offload its optimizer state to host memory during the forward and backward passes. The state leaves after an
update, while the first micro-batches fill the memory for activations, and returns while gradients are summed. The part
of the copies that this does not hide makes an iteration longer. planner/offload/ has the same rule.

Source: SPEC P1, P4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .model import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    NUMBER_BYTES,
    OPTIMIZER_BYTES,
    OPTIMIZER_STATE_BYTES,
    STATE_BYTES,
    Array,
    Copies,
    HardwareRates,
    HostProfile,
    IterationWork,
    MicroBatchWork,
    Offload,
    Seconds,
    all_reduce_bytes,
    compute_s,
    iteration_s,
    kept_share,
    micro_batch_s,
    pays,
    synchronisation_s,
    unhidden_s,
    usable_bytes,
)
from .on_host import evaluate_on_host
from .partition import Cuts, StageCosts, partition, sums
from .plan import SAVINGS, FoundPlan, IterationTimes, Misfit, PlanLayout, PlanLayouts, PlanStage
from .pool import GpuType, slowest
from .request import Chain, LayerArrays, MemoryCosts, PlanRequest, memory, pieces, stage_types


def with_copies(plan: FoundPlan, types: Sequence[GpuType]) -> FoundPlan | None:
    """Return a plan with the time of its offload copies, None if host memory has no room or they do not pay.

    Args:
        plan: Whose stages offload state.
        types: GPUs of each stage.
    """
    sum_s = _sum_at_the_end_s(plan)
    idle_s = plan.step_s - sum_s - plan.times.optimizer_s
    late_s = 0.0
    for k, (stage, gpu_type) in enumerate(zip(plan.stages, types, strict=True)):
        if gpu_type.host_bytes_per_s <= 0.0 or stage.away_bytes > gpu_type.host_room_bytes:
            return None
        each_s = stage.away_bytes / gpu_type.host_bytes_per_s
        copies = Copies(each_s, each_s)
        if not pays(idle_s, copies, Offload.auto):
            return None
        back_s = unhidden_s(sum_s, copies, both_in_wait=False, has_own_core=True)
        late_s = max(late_s, back_s + max(0.0, copies.out_s - _filling_s(plan, stage, k)))
    return replace(plan, times=replace(plan.times, offload_s=late_s))


def _sum_at_the_end_s(plan: FoundPlan) -> float:
    """Return how long gradients are summed once all passes are done.

    With ZeRO-3 each micro-batch gathers weights twice and sums gradients once, and only the last of these is behind it.
    """
    if plan.layout.saving.zero == 3:
        return plan.times.gradients_s / (3.0 * plan.micro_batches)
    return plan.times.gradients_s


def _filling_s(plan: FoundPlan, stage: PlanStage, k: int) -> float:
    """Return how long a stage runs forward passes before its activations are all there (1F1B)."""
    held = min(plan.layout.pipeline - k, plan.micro_batches)
    return held * stage.seconds.forward_s / plan.micro_batches


@dataclass(frozen=True, slots=True)
class _LayoutCase:
    """A layout with the costs of its layers on each stage."""

    request: PlanRequest
    layout: PlanLayout
    micro_batches: int
    types: list[GpuType]  # of each stage
    work: MicroBatchWork  # (layers,)
    needs: MemoryCosts
    costs: list[StageCosts]  # of each stage
    is_away: bool = False  # whether optimizer state is offloaded during the passes


def evaluate(request: PlanRequest, chain: Chain, layout: PlanLayout) -> FoundPlan | Misfit:
    """Return the plan of a layout, or that it does not fit into memory.

    Args:
        request: The model and the batch.
        chain: GPU types, in the order in which they are taken.
        layout: Of at most as many GPUs.
    """
    if isinstance(request.hardware, HostProfile):
        return evaluate_on_host(request, request.hardware, chain[0], layout)
    case = _case(request, chain, layout)
    cuts = partition(case.costs)
    if cuts is not None:
        return _plan(case, cuts)
    plan = _with_state_away(case) if request.offload else None
    return _misfit(case) if plan is None else plan


def _plan(case: _LayoutCase, cuts: Cuts) -> FoundPlan:
    request, layout = case.request, case.layout
    stages = tuple(_stage(case, cuts, k) for k in range(layout.pipeline))
    times = _times(case, stages)
    return FoundPlan(
        layout, case.micro_batches, stages, times, request.iterations, request.hardware.accuracy.bound_factor
    )


def _with_state_away(case: _LayoutCase) -> FoundPlan | None:
    """Return the plan with offloaded optimizer state; None if that does not fit or pay."""
    away = replace(case, is_away=True, costs=[])
    away.costs.extend(_costs(away))
    cuts = partition(away.costs)
    return None if cuts is None else with_copies(_plan(away, cuts), case.types)


def _case(request: PlanRequest, chain: Chain, layout: PlanLayout) -> _LayoutCase:
    types = stage_types(chain, layout)
    degree = [np.full((1, 1), float(value)) for value in (layout.tensor, layout.micro_batch, layout.saving.recomputes)]
    work = MicroBatchWork(*(column[0] for column in pieces(request.layers, *degree)))
    micro_batches = request.batch // (layout.data * layout.micro_batch)
    needs = memory(
        request.layers, layout.saving, layout.data, layout.tensor, layout.micro_batch, copies=layout.pipeline > 1
    )
    case = _LayoutCase(request, layout, micro_batches, types, work, needs, [])
    case.costs.extend(_costs(case))
    return case


def _costs(case: _LayoutCase) -> list[StageCosts]:
    of_type: dict[GpuType, list[float]] = {}
    found = []
    for k, gpu_type in enumerate(case.types):
        if gpu_type not in of_type:
            each_s = micro_batch_s(case.work, gpu_type.peak_flops, case.request.constants(gpu_type))
            of_type[gpu_type] = sums(each_s.tolist())
        needed = sums(_layer_bytes(case, k).tolist())
        found.append(
            StageCosts(of_type[gpu_type], needed, usable_bytes(gpu_type.memory_bytes) - case.needs.working_bytes)
        )
    return found


def _layer_bytes(case: _LayoutCase, stage: int) -> Array:
    """Return the memory of each layer on a stage, shape (layers,): early stages hold more micro-batches (1F1B)."""
    held = min(case.layout.pipeline - stage, case.micro_batches)
    state, kept = case.needs.state_bytes, held * case.needs.kept_bytes
    if not case.is_away:
        return state + kept
    # In the passes the optimizer state is away; in the update all state is there, and no activations.
    needed: Array = np.maximum(state - case.needs.optimizer_bytes + kept, state)
    return needed


def _misfit(case: _LayoutCase) -> Misfit:
    by_memory = [StageCosts(cost.memory_bytes, cost.memory_bytes, inf) for cost in case.costs]
    cuts = partition(by_memory)
    assert cuts is not None  # with no bound, all cuts fit
    needed = [_needed_bytes(case, cuts, k) for k in range(len(case.types))]
    worst = int(np.argmax([need / gpu_type.memory_bytes for need, gpu_type in zip(needed, case.types, strict=True)]))
    it = case.types[worst]
    return Misfit(case.layout, it.name, needed[worst], it.memory_bytes)


def _needed_bytes(case: _LayoutCase, cuts: Cuts, stage: int) -> float:
    held = case.costs[stage].memory_bytes
    asked_for = held[cuts[stage + 1]] - held[cuts[stage]] + case.needs.working_bytes
    return asked_for * FRAGMENTATION + CONTEXT_BYTES


def _stage(case: _LayoutCase, cuts: Cuts, k: int) -> PlanStage:
    request, layout, it = case.request, case.layout, case.types[k]
    held = slice(cuts[k], cuts[k + 1])
    constants = request.constants(it)
    part = MicroBatchWork(*(column[held] for column in case.work))
    trained = float((request.layers.parameters[held]).sum()) / layout.tensor
    frozen = float((request.layers.frozen_parameters[held]).sum()) / layout.tensor
    gradients = float(all_reduce_bytes(np.array(float(layout.data)), np.array(NUMBER_BYTES * trained)))
    sends = request.layers.output_bytes[cuts[k + 1] - 1] * layout.micro_batch if k + 1 < layout.pipeline else 0.0
    return PlanStage(
        first_layer=cuts[k], last_layer=cuts[k + 1] - 1, gpu_type=it.name, gpus=it.gpus,
        micro_batch_s=float(micro_batch_s(part, it.peak_flops, constants).sum()),
        compute_s=float(compute_s(part, it.peak_flops, constants).sum()),
        tensor_s=float(part.tensor_bytes.sum() / constants.tensor_bytes_per_s),
        flops=float(part.flops.sum()) * case.micro_batches,
        parameters=trained + frozen, trained_parameters=trained, memory_bytes=_needed_bytes(case, cuts, k),
        gpu_memory_bytes=it.memory_bytes,
        tensor_bytes=float(part.tensor_bytes.sum()), next_bytes=float(sends), ring_bytes=gradients,
        seconds=_seconds(case, held, it),
        away_bytes=float(case.needs.optimizer_bytes[held].sum()) if case.is_away else 0.0,
    )  # fmt: skip


def _seconds(case: _LayoutCase, held: slice, gpu_type: GpuType) -> Seconds:
    """Return the seconds of a stage in an iteration: passes by their FLOPs; recomputation counts as backward."""
    request, layout, m = case.request, case.layout, case.micro_batches
    part = MicroBatchWork(*(column[held] for column in case.work))
    taken_s = float(micro_batch_s(part, gpu_type.peak_flops, request.constants(gpu_type)).sum()) * m
    forward_flops = float(request.layers.forward_flops[held].sum()) * layout.micro_batch / layout.tensor
    share = forward_flops / max(float(part.flops.sum()), 1.0)
    parameters = float(request.layers.parameters[held].sum()) / layout.tensor
    frozen_bytes = float(request.layers.frozen_bytes[held].sum()) / layout.tensor
    gradients_s, optimizer_s = _after_s(case, gpu_type, parameters, frozen_bytes)
    return Seconds(share * taken_s, (1.0 - share) * taken_s, gradients_s, optimizer_s)


def iteration_work(
    parameters: Array, frozen_bytes: Array, data: Array, micro_batches: Array, zero: Array, is_inside: Array,
    steps: Array,
) -> IterationWork:  # fmt: skip
    """Return the work of iterations beside their micro-batches, arrays of the shape of the arguments.

    Args:
        parameters: That a GPU trains; with ZeRO-3, that it works with.
        frozen_bytes: Of weights that it holds, or works with, and does not train.
        data: Data-parallel members.
        micro_batches: Of each.
        zero: Stage of ZeRO.
        is_inside: 1 where all is on one node, else 0.
        steps: Micro-batches, with those that the pipeline takes to fill and empty.
    """
    summed = np.where(zero == 3, 0.0, all_reduce_bytes(data, NUMBER_BYTES * parameters))
    # ZeRO-3 gathers weights twice and sums gradients once, for every micro-batch.
    each = 3.0 * NUMBER_BYTES * parameters + 2.0 * frozen_bytes
    gathered = np.where(zero == 3, each * micro_batches * (data - 1.0) / data, 0.0)
    return IterationWork(
        steps=steps,
        inside_bytes=np.where(is_inside > 0, summed + gathered, 0.0),
        across_bytes=np.where(is_inside > 0, 0.0, summed),
        gathered_bytes=np.where(is_inside > 0, 0.0, gathered),
        optimizer_bytes=OPTIMIZER_BYTES * parameters / np.where(zero > 0, data, 1.0),
    )


def _after_s(case: _LayoutCase, gpu_type: GpuType, parameters: float, frozen_bytes: float) -> tuple[float, float]:
    """Return the time of gradients and of the optimizer, on a GPU that trains a number of parameters."""
    request, layout = case.request, case.layout
    constants = request.constants(gpu_type)
    machine = HardwareRates(
        gpu_type.peak_flops, request.fitted.measured_on.memory_bytes_per_s, gpu_type.nic_bytes_per_s
    )
    figures = (
        parameters, frozen_bytes, layout.data, case.micro_batches, layout.saving.zero,
        layout.gpus <= gpu_type.gpus_per_node, case.micro_batches + layout.pipeline - 1,
    )  # fmt: skip
    done = iteration_work(*(np.array(float(figure)) for figure in figures))
    none = done._replace(optimizer_bytes=np.zeros(()))
    gradients_s = float(synchronisation_s(none, machine, constants))
    return gradients_s, float(synchronisation_s(done, machine, constants)) - gradients_s


def _times(case: _LayoutCase, stages: tuple[PlanStage, ...]) -> IterationTimes:
    layout, whole = case.layout, slowest(case.types)
    # Weights that are not trained count in ZeRO-3 alone, which has one stage.
    frozen_bytes = float(case.request.layers.frozen_bytes.sum()) / layout.tensor
    most = max(stage.trained_parameters for stage in stages)
    gradients_s, optimizer_s = _after_s(case, whole, most, frozen_bytes)
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


RECOMPUTES = np.array([float(saving.recomputes) for saving in SAVINGS])
ZERO = np.array([float(saving.zero) for saving in SAVINGS])


class _MicroBatchBounds(NamedTuple):
    """Times of a micro-batch on the fastest type, by case: arrays of shape (cases,)."""

    total_s: Array
    compute_s: Array
    longest_s: Array  # of any layer
    block_s: Array  # of the fastest block


def best(chain: Chain) -> GpuType:
    """Return a type with the best of each figure of a chain."""
    figures = list(zip(*chain, strict=True))[2:]
    return GpuType("best", sum(gpu_type.gpus for gpu_type in chain), *(max(column) for column in figures))


def min_step_s(request: PlanRequest, chain: Chain, found: PlanLayouts) -> Array:
    """Return a lower bound of an iteration by each layout, shape (layouts,)."""
    gpu_type = best(chain)
    constants, p, m = request.constants(gpu_type), found.pipeline, request.batch // (found.data * found.micro_batch)
    least = _micro_batch_bounds(request, gpu_type, found)
    # One of the stages has at least its share of the blocks, and at least its share of everything.
    blocks = np.ceil(float(request.layers.is_block.sum()) / p) * least.block_s
    balanced = np.maximum(least.total_s / p, least.compute_s / _speeds(chain, found))
    micro_s = np.maximum(np.maximum(blocks, balanced), least.longest_s)
    parameters = float(request.layers.parameters.sum()) / (p * found.tensor)
    frozen_bytes = float(request.layers.frozen_bytes.sum()) / (p * found.tensor)
    done = iteration_work(
        parameters, frozen_bytes, found.data.astype(np.float64), m.astype(np.float64), ZERO[found.saving],
        (found.gpus <= gpu_type.gpus_per_node).astype(np.float64), (m + p - 1).astype(np.float64),
    )  # fmt: skip
    machine = HardwareRates(
        gpu_type.peak_flops, request.fitted.measured_on.memory_bytes_per_s, gpu_type.nic_bytes_per_s
    )
    return iteration_s(micro_s, done, machine, constants) * (1.0 - 1e-9)  # sums of other orders round otherwise


def _micro_batch_bounds(request: PlanRequest, gpu_type: GpuType, found: PlanLayouts) -> _MicroBatchBounds:
    """Compute each case of tensor degree, micro-batch and recomputation once."""
    kinds = np.stack([found.tensor, found.micro_batch, RECOMPUTES[found.saving].astype(np.int64)], axis=1)
    key = (kinds[:, 0] * 1_000_000 + kinds[:, 1]) * 2 + kinds[:, 2]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    work = pieces(request.layers, *(kinds[first][:, [column]].astype(np.float64) for column in range(3)))
    constants = request.constants(gpu_type)
    each_s = micro_batch_s(work, gpu_type.peak_flops, constants)
    products_s = compute_s(work, gpu_type.peak_flops, constants).sum(axis=1)
    is_block = request.layers.is_block > 0
    block_s = each_s[:, is_block].min(axis=1) if is_block.any() else np.zeros(first.size)
    return _MicroBatchBounds(
        *(values[which] for values in (each_s.sum(axis=1), products_s, each_s.max(axis=1), block_s))
    )


def _speeds(chain: Chain, found: PlanLayouts) -> Array:
    """Return the sum of the speeds of all stages, relative to the fastest type, shape (layouts,)."""
    each, total, before, passed = found.data * found.tensor, np.zeros(found.data.size), np.zeros(found.data.size), 0
    for gpu_type in chain:
        passed += gpu_type.gpus
        ends_here = np.minimum(found.pipeline, passed // each).astype(np.float64)  # the slowest GPU comes last
        total += (ends_here - before) * gpu_type.peak_flops / chain[0].peak_flops
        before = ends_here
    return np.maximum(total, 1e-30)


def may_fit(request: PlanRequest, chain: Chain, found: PlanLayouts) -> NDArray[np.bool_]:
    """Return which layouts may fit into memory; for the others no cuts do. Shape (layouts,)."""
    layers, usable = request.layers, max(usable_bytes(gpu_type.memory_bytes) for gpu_type in chain)
    zero, data = ZERO[found.saving], found.data.astype(np.float64)
    kept = 1.0 - OPTIMIZER_STATE_BYTES / STATE_BYTES  # of the state, what ZeRO-1 does not spread
    state = STATE_BYTES * np.where(zero == 3, 1 / data, np.where(zero == 1, kept + (1 - kept) / data, 1.0))
    share = _kept_share(found)
    again = RECOMPUTES[found.saving] > 0
    per_sample = np.where(again, _kept_by_recomputing(layers, share), layers.saved_bytes.sum() * share)
    frozen = layers.frozen_bytes.sum() / found.tensor / np.where(zero == 3, data, 1.0)
    states, activations = layers.parameters.sum() / found.tensor * state + frozen, per_sample * found.micro_batch
    needed = states + activations
    if request.offload:
        optimizer = OPTIMIZER_STATE_BYTES / STATE_BYTES * np.where(zero == 1, 1 / data / state * STATE_BYTES, 1.0)
        needed = np.maximum(states - (states - frozen) * optimizer + activations, states)
    fits: NDArray[np.bool_] = needed <= usable * found.pipeline * (1.0 + 1e-9)
    return fits


def _kept_share(found: PlanLayouts) -> Array:
    degrees = np.unique(found.tensor)
    shares = np.array([kept_share(int(degree)) for degree in degrees])
    return shares[np.searchsorted(degrees, found.tensor)]


def _kept_by_recomputing(layers: LayerArrays, share: Array) -> Array:
    inputs = float((layers.input_elements * layers.is_block).sum()) * NUMBER_BYTES
    others: Array = float((layers.saved_bytes * (1.0 - layers.is_block)).sum()) * share
    return inputs + others
