"""The evaluation of one layout for ranks of a machine without GPUs: balance the layers, and simulate the schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from .model import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    HOST_NUMBER_BYTES,
    Array,
    HostProfile,
    LayerRates,
    Seconds,
    StageWork,
    all_reduce_bytes,
    play,
    schedule_of,
    usable_bytes,
)
from .partition import Cuts, StageCosts, partition, sums
from .plan import FoundPlan, IterationTimes, Misfit, PlanLayout, PlanStage
from .pool import GpuType
from .profile.profiling import ModelProfile
from .profile.recording import OUTSIDE
from .request import LayerArrays, MemoryCosts, PlanRequest, memory


def max_stages(profile: ModelProfile) -> int:
    """Return the most stages of a model: what is computed outside of all layers stays with the last layer."""
    return max(1, len(profile.layers) - _is_outside(profile))


def _is_outside(profile: ModelProfile) -> bool:
    return profile.layers[-1].name == OUTSIDE


@dataclass(frozen=True, slots=True)
class _HostCase:
    """A layout with the costs of its layers."""

    request: PlanRequest
    host: HostProfile
    rank: GpuType
    layout: PlanLayout
    micro_batches: int
    forward_s: Array  # (layers,) of a micro-batch, for a single busy rank
    backward_s: Array
    needs: MemoryCosts
    costs: list[StageCosts]  # of each stage


def evaluate_on_host(request: PlanRequest, host: HostProfile, rank: GpuType, layout: PlanLayout) -> FoundPlan | Misfit:
    """Return the plan of a layout, or that it does not fit into memory.

    Args:
        request: The model and the batch.
        host: Rates of its ranks.
        rank: One of them, as a GPU.
        layout: Of at most as many ranks, with no tensor parallelism.
    """
    case = _case(request, host, rank, layout)
    cuts = _cuts(case, bounded=True)
    if cuts is None:
        return _misfit(case)
    works = [_work(case, cuts, k) for k in range(layout.pipeline)]
    schedule = schedule_of(case.micro_batches, layout.pipeline)
    step_s, spent = play(works, case.micro_batches, schedule, layout.data, host.speeds)
    stages = tuple(_stage(case, cuts, k, spent[k]) for k in range(layout.pipeline))
    return FoundPlan(
        layout, case.micro_batches, stages, _times(step_s, spent), request.iterations, host.accuracy.bound_factor
    )


def pass_s(layers: LayerArrays, rates: LayerRates, flops: Array, micro_batch: int) -> Array:
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


def _case(request: PlanRequest, host: HostProfile, rank: GpuType, layout: PlanLayout) -> _HostCase:
    micro_batches, layers = request.batch // (layout.data * layout.micro_batch), request.layers
    forward_s = pass_s(layers, host.forward, layers.forward_flops, layout.micro_batch)
    backward_s = pass_s(layers, host.backward, layers.backward_flops, layout.micro_batch)
    needs = memory(layers, layout.saving, layout.data, 1, layout.micro_batch, copies=layout.pipeline > 1)
    # The work per iteration grows with a stage's parameters: spread over its micro-batches.
    once_s = host.update_parameter_s
    if layout.data > 1:
        once_s += host.reduce[layout.data - 2].byte_s * HOST_NUMBER_BYTES
    time_s = sums((forward_s + backward_s + once_s * layers.parameters / micro_batches).tolist())
    room = usable_bytes(rank.memory_bytes) - needs.working_bytes
    held = [min(layout.pipeline - k, micro_batches) for k in range(layout.pipeline)]
    costs = [
        StageCosts(time_s, sums((needs.state_bytes + micro_batches * needs.kept_bytes).tolist()), room)
        for micro_batches in held
    ]
    return _HostCase(request, host, rank, layout, micro_batches, forward_s, backward_s, needs, costs)


def _cuts(case: _HostCase, *, bounded: bool) -> Cuts | None:
    """Return the cuts; none is before what is computed outside of all layers, which cannot be a stage."""
    costs = [cost if bounded else StageCosts(cost.memory_bytes, cost.memory_bytes, inf) for cost in case.costs]
    if not _is_outside(case.request.profile) or case.request.layers.count == 1:
        return partition(costs)
    found = partition([StageCosts(_joined(cost.time_s), _joined(cost.memory_bytes), cost.max_bytes) for cost in costs])
    return None if found is None else (*found[:-1], case.request.layers.count)


def _joined(total: Sequence[float]) -> list[float]:
    return [*total[:-2], total[-1]]


def _misfit(case: _HostCase) -> Misfit:
    cuts = _cuts(case, bounded=False)
    assert cuts is not None  # with no bound, all cuts fit
    needed = max(_needed_bytes(case, cuts, k) for k in range(case.layout.pipeline))
    return Misfit(case.layout, case.rank.name, needed, case.rank.memory_bytes)


def _needed_bytes(case: _HostCase, cuts: Cuts, k: int) -> float:
    held = case.costs[k].memory_bytes
    return (held[cuts[k + 1]] - held[cuts[k]] + case.needs.working_bytes) * FRAGMENTATION + CONTEXT_BYTES


def _work(case: _HostCase, cuts: Cuts, k: int) -> StageWork:
    """Return the work of a stage, for a single busy rank."""
    held, host, members = slice(cuts[k], cuts[k + 1]), case.host, case.layout.data
    layers = case.request.layers
    parameters = float((layers.parameters[held] + layers.tied_parameters[held]).sum())
    # The members of a sum were all busy when it was measured.
    gradients_s = host.reduce_s(members, HOST_NUMBER_BYTES * parameters) * host.speeds[members - 1]
    seconds = Seconds(
        float(case.forward_s[held].sum()), float(case.backward_s[held].sum()), gradients_s, host.update_s(parameters)
    )
    return StageWork(seconds, host.send_s(_sent_bytes(case, cuts, k)))


def _sent_bytes(case: _HostCase, cuts: Cuts, k: int) -> float:
    is_last = k + 1 == case.layout.pipeline
    return 0.0 if is_last else float(case.request.layers.output_bytes[cuts[k + 1] - 1]) * case.layout.micro_batch


def _stage(case: _HostCase, cuts: Cuts, k: int, spent: Seconds) -> PlanStage:
    held, layers, layout = slice(cuts[k], cuts[k + 1]), case.request.layers, case.layout
    micro_batch_s = (spent.forward_s + spent.backward_s) / case.micro_batches
    trained = float(layers.parameters[held].sum())
    summed = all_reduce_bytes(np.array(float(layout.data)), np.array(HOST_NUMBER_BYTES * trained))
    samples = case.micro_batches * layout.micro_batch
    return PlanStage(
        first_layer=cuts[k], last_layer=cuts[k + 1] - 1, gpu_type=case.rank.name, gpus=layout.data,
        micro_batch_s=micro_batch_s, compute_s=micro_batch_s, tensor_s=0.0,
        flops=float((layers.forward_flops[held] + layers.backward_flops[held]).sum()) * samples,
        parameters=trained + float(layers.frozen_parameters[held].sum()), trained_parameters=trained,
        memory_bytes=_needed_bytes(case, cuts, k), gpu_memory_bytes=case.rank.memory_bytes,
        tensor_bytes=0.0, next_bytes=_sent_bytes(case, cuts, k), ring_bytes=float(summed),
        seconds=spent,
    )  # fmt: skip


def _times(step_s: float, spent: list[Seconds]) -> IterationTimes:
    worst = max(spent, key=lambda seconds: seconds.total_s)
    wait_s = max(0.0, round(step_s - worst.total_s, 12))  # rounding may leave a tiny rest
    return IterationTimes(
        compute_s=worst.forward_s + worst.backward_s, tensor_s=0.0, fixed_s=0.0, bubble_s=wait_s,
        gradients_s=worst.gradients_s, optimizer_s=worst.optimizer_s, iteration_s=0.0,
    )  # fmt: skip
