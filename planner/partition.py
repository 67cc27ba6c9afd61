"""Layers partitioned into stages: contiguous, the slowest stage as fast as possible, no stage over its memory.

Layers on stages: contiguous, the slowest stage as fast as can be, no stage over its memory.

A stage that starts at a layer takes as many layers as fit under a time and its memory. Whether all layers are placed
so says whether the time can be reached: part of what fits fits too, so taking fewer never helps those behind. There is
one exception. Where a stage cannot take even the next layer, it may help if those before it take fewer, as no stage may
be empty; there all ways are followed. The least time is found by halving, and is exact: in the end no time below it can
be reached.

Source: SPEC P1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, nextafter
from typing import NamedTuple

import numpy as np

from .model import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    HOST_NUMBER_BYTES,
    Array,
    GpuType,
    HostProfile,
    LayerRates,
    Seconds,
    StageWork,
    all_reduce_bytes,
    play,
    schedule_of,
    usable_bytes,
)
from .plan import FoundPlan, Layout, Misfit, Stage, Times
from .profile.profiling import ModelProfile
from .profile.recording import OUTSIDE
from .question import Layers, MemoryCosts, Question, memory

Cuts = tuple[int, ...]  # (stages + 1,) stage k has layers cuts[k] to cuts[k + 1] - 1


class StageCosts(NamedTuple):
    """What the layers cost on one stage, as sums from the first layer on: both of length layers + 1."""

    time_s: Sequence[float]
    memory_bytes: Sequence[float]
    most_bytes: float  # that the stage may hold


def sums(values: Sequence[float]) -> list[float]:
    """Return the sums of the first 0, 1, 2 and so on of the values."""
    return [0.0, *accumulate(values)]


def partition(stages: Sequence[StageCosts]) -> Cuts | None:
    """Return the cuts with the least time of the slowest stage; None if the layers do not fit into memory.

    Every stage gets a layer at least.
    """
    cuts = _filled(stages, inf)
    if cuts is None:
        return None
    low, high = 0.0, slowest_s(stages, cuts)
    while True:
        # Halving first; below it ends at the greatest number under the time that was reached.
        middle = (low + high) / 2.0
        below = nextafter(high, -inf)
        middle = below if middle >= below or high - low < 1e-9 * high else middle
        found = _filled(stages, middle)
        if found is not None:
            cuts, high = found, slowest_s(stages, found)
        elif middle == below:
            return cuts
        else:
            low = middle


def slowest_s(stages: Sequence[StageCosts], cuts: Cuts) -> float:
    """Return the time of the slowest stage."""
    return max(stage.time_s[cuts[k + 1]] - stage.time_s[cuts[k]] for k, stage in enumerate(stages))


def _filled(stages: Sequence[StageCosts], most_s: float) -> Cuts | None:
    """Return the cuts of stages that each take what they can, in order; None if layers are left."""
    layers, count = len(stages[0].time_s) - 1, len(stages)
    cuts = [0]
    for k, stage in enumerate(stages):
        start = cuts[-1]
        end = min(_last_under(stage.time_s, start, most_s), _last_under(stage.memory_bytes, start, stage.most_bytes))
        end = min(end, layers - (count - 1 - k))  # those behind need a layer each
        if end <= start:
            return _followed(stages, most_s)
        cuts.append(end)
    return tuple(cuts) if cuts[-1] == layers else None


def _followed(stages: Sequence[StageCosts], most_s: float) -> Cuts | None:
    """Return the same as `_filled` by following every place where a stage may end."""
    layers = len(stages[0].time_s) - 1
    came_from: list[dict[int, int]] = [{0: 0}]  # for each stage, where it may end, and where it then began
    for stage in stages:
        ends, reached = dict[int, int](), 0
        for start in sorted(came_from[-1]):
            last = min(
                _last_under(stage.time_s, start, most_s), _last_under(stage.memory_bytes, start, stage.most_bytes)
            )
            # Places up to the last one of an earlier start are known already.
            ends.update(dict.fromkeys(range(max(start, reached) + 1, last + 1), start))
            reached = max(reached, last)
        came_from.append(ends)
    cuts, at = list[int](), layers
    for ends in reversed(came_from):
        if at not in ends:
            return None
        cuts.append(at)
        at = ends[at]
    return tuple(reversed(cuts))


def _last_under(total: Sequence[float], start: int, most: float) -> int:
    """Return the greatest end so that what is from start to it is at most so much."""
    end = bisect_right(total, total[start] + most) - 1
    # The sum of rounded numbers may be off by a bit: what counts is the difference, as it is told afterwards.
    while end + 1 < len(total) and total[end + 1] - total[start] <= most:
        end += 1
    while end > start and total[end] - total[start] > most:
        end -= 1
    return end


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
