"""One layout worked out for ranks of a machine without GPUs: layers balanced, and the schedule played through."""

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
from .plan import FoundPlan, Layout, Misfit, Stage, Times
from .pool import GpuType
from .profile.profiling import ModelProfile
from .profile.recording import OUTSIDE
from .question import Layers, MemoryCosts, Question, memory


def stages_at_most(profile: ModelProfile) -> int:
    """Return how many stages a model may have: what is computed outside of all layers stays with the last layer."""
    return max(1, len(profile.layers) - _is_outside(profile))


def _is_outside(profile: ModelProfile) -> bool:
    return profile.layers[-1].name == OUTSIDE


@dataclass(frozen=True, slots=True)
class _Case:
    """A layout with what its layers cost."""

    asked: Question
    host: HostProfile
    rank: GpuType
    layout: Layout
    micro_batches: int
    forward_s: Array  # (layers,) of a micro-batch, for a rank that is alone
    backward_s: Array
    needs: MemoryCosts
    costs: list[StageCosts]  # of each stage


def evaluate_on_host(asked: Question, host: HostProfile, rank: GpuType, layout: Layout) -> FoundPlan | Misfit:
    """Return the plan of a layout, or that it does not fit into memory.

    Args:
        asked: The question.
        host: What its ranks do in a second.
        rank: One of them, as a GPU.
        layout: Of at most as many ranks, with no tensor parallelism.
    """
    case = _case(asked, host, rank, layout)
    cuts = _cuts(case, bounded=True)
    if cuts is None:
        return _misfit(case)
    works = [_work(case, cuts, k) for k in range(layout.pipeline)]
    schedule = schedule_of(case.micro_batches, layout.pipeline)
    step_s, spent = play(works, case.micro_batches, schedule, layout.data, host.speeds)
    stages = tuple(_stage(case, cuts, k, spent[k]) for k in range(layout.pipeline))
    return FoundPlan(
        layout, case.micro_batches, stages, _times(step_s, spent), asked.iterations, host.accuracy.bound_factor
    )


def pass_s(layers: Layers, rates: LayerRates, flops: Array, micro_batch: int) -> Array:
    """Return the time of a micro-batch in each layer, one way, for a rank that is alone; shape (layers,).

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


def _case(asked: Question, host: HostProfile, rank: GpuType, layout: Layout) -> _Case:
    micro_batches, layers = asked.batch // (layout.data * layout.micro_batch), asked.layers
    forward_s = pass_s(layers, host.forward, layers.forward_flops, layout.micro_batch)
    backward_s = pass_s(layers, host.backward, layers.backward_flops, layout.micro_batch)
    needs = memory(layers, layout.saving, layout.data, 1, layout.micro_batch, copies=layout.pipeline > 1)
    # What a stage does once in an iteration grows with its parameters: each layer has its share of a micro-batch.
    once_s = host.update_parameter_s
    if layout.data > 1:
        once_s += host.reduce[layout.data - 2].byte_s * HOST_NUMBER_BYTES
    time_s = sums((forward_s + backward_s + once_s * layers.parameters / micro_batches).tolist())
    room = usable_bytes(rank.memory_bytes) - needs.working_bytes
    held = [min(layout.pipeline - k, micro_batches) for k in range(layout.pipeline)]
    costs = [StageCosts(time_s, sums((needs.state_bytes + it * needs.kept_bytes).tolist()), room) for it in held]
    return _Case(asked, host, rank, layout, micro_batches, forward_s, backward_s, needs, costs)


def _cuts(case: _Case, *, bounded: bool) -> Cuts | None:
    """Return the cuts; none before what is computed outside of all layers, as no stage could be made of that."""
    costs = [it if bounded else StageCosts(it.memory_bytes, it.memory_bytes, inf) for it in case.costs]
    if not _is_outside(case.asked.profile) or case.asked.layers.count == 1:
        return partition(costs)
    found = partition([StageCosts(_joined(it.time_s), _joined(it.memory_bytes), it.most_bytes) for it in costs])
    return None if found is None else (*found[:-1], case.asked.layers.count)


def _joined(total: Sequence[float]) -> list[float]:
    return [*total[:-2], total[-1]]


def _misfit(case: _Case) -> Misfit:
    cuts = _cuts(case, bounded=False)
    assert cuts is not None  # with no bound, all cuts fit
    needed = max(_needed_bytes(case, cuts, k) for k in range(case.layout.pipeline))
    return Misfit(case.layout, case.rank.name, needed, case.rank.memory_bytes)


def _needed_bytes(case: _Case, cuts: Cuts, k: int) -> float:
    held = case.costs[k].memory_bytes
    return (held[cuts[k + 1]] - held[cuts[k]] + case.needs.working_bytes) * FRAGMENTATION + CONTEXT_BYTES


def _work(case: _Case, cuts: Cuts, k: int) -> StageWork:
    """Return the work of a stage, for a rank that is alone."""
    held, host, members = slice(cuts[k], cuts[k + 1]), case.host, case.layout.data
    layers = case.asked.layers
    parameters = float((layers.parameters[held] + layers.tied_parameters[held]).sum())
    # The members of a sum were all busy when it was measured.
    gradients_s = host.reduce_s(members, HOST_NUMBER_BYTES * parameters) * host.speeds[members - 1]
    seconds = Seconds(
        float(case.forward_s[held].sum()), float(case.backward_s[held].sum()), gradients_s, host.update_s(parameters)
    )
    return StageWork(seconds, host.send_s(_sent_bytes(case, cuts, k)))


def _sent_bytes(case: _Case, cuts: Cuts, k: int) -> float:
    is_last = k + 1 == case.layout.pipeline
    return 0.0 if is_last else float(case.asked.layers.output_bytes[cuts[k + 1] - 1]) * case.layout.micro_batch


def _stage(case: _Case, cuts: Cuts, k: int, spent: Seconds) -> Stage:
    held, layers, layout = slice(cuts[k], cuts[k + 1]), case.asked.layers, case.layout
    micro_batch_s = (spent.forward_s + spent.backward_s) / case.micro_batches
    trained = float(layers.parameters[held].sum())
    summed = all_reduce_bytes(np.array(float(layout.data)), np.array(HOST_NUMBER_BYTES * trained))
    samples = case.micro_batches * layout.micro_batch
    return Stage(
        first_layer=cuts[k], last_layer=cuts[k + 1] - 1, gpu_type=case.rank.name, gpus=layout.data,
        micro_batch_s=micro_batch_s, compute_s=micro_batch_s, tensor_s=0.0,
        flops=float((layers.forward_flops[held] + layers.backward_flops[held]).sum()) * samples,
        parameters=trained + float(layers.frozen_parameters[held].sum()), trained_parameters=trained,
        memory_bytes=_needed_bytes(case, cuts, k), gpu_memory_bytes=case.rank.memory_bytes,
        tensor_bytes=0.0, next_bytes=_sent_bytes(case, cuts, k), ring_bytes=float(summed),
        seconds=spent,
    )  # fmt: skip


def _times(step_s: float, spent: list[Seconds]) -> Times:
    worst = max(spent, key=lambda it: it.total_s)
    wait_s = max(0.0, round(step_s - worst.total_s, 12))  # rounding leaves a trace where there is none
    return Times(
        compute_s=worst.forward_s + worst.backward_s, tensor_s=0.0, fixed_s=0.0, bubble_s=wait_s,
        gradients_s=worst.gradients_s, optimizer_s=worst.optimizer_s, iteration_s=0.0,
    )  # fmt: skip
