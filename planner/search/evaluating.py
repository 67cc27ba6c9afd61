"""One layout worked out: its layers balanced over stages, its times and its memory.

Source: SPEC P1.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ..model.host import HostProfile
from ..model.memory import CONTEXT_BYTES, FRAGMENTATION, usable_bytes
from ..model.playing import Seconds
from ..model.pool import GpuType, slowest
from ..model.step_time import (
    NUMBER_BYTES,
    OPTIMIZER_BYTES,
    Array,
    Machine,
    Pieces,
    Rounds,
    all_reduce_bytes,
    compute_s,
    micro_batch_s,
    synchronisation_s,
)
from .copies import with_copies
from .costs import MemoryCosts, memory, pieces
from .layouts import Layout
from .on_host import evaluate_on_host
from .partition import Cuts, StageCosts, partition, sums
from .plan import Misfit, Plan, Stage, Times
from .question import Chain, Question, stage_types


@dataclass(frozen=True, slots=True)
class _Case:
    """A layout with what its layers cost on each stage."""

    asked: Question
    layout: Layout
    micro_batches: int
    types: list[GpuType]  # of each stage
    work: Pieces  # (layers,)
    needs: MemoryCosts
    costs: list[StageCosts]  # of each stage
    is_away: bool = False  # whether the optimizer's state is in host memory during the passes


def evaluate(asked: Question, chain: Chain, layout: Layout) -> Plan | Misfit:
    """Return the plan of a layout, or that it does not fit into memory.

    Args:
        asked: The question.
        chain: GPU types, in the order in which they are taken.
        layout: Of at most as many GPUs.
    """
    if isinstance(asked.hardware, HostProfile):
        return evaluate_on_host(asked, asked.hardware, chain[0], layout)
    case = _case(asked, chain, layout)
    cuts = partition(case.costs)
    if cuts is not None:
        return _plan(case, cuts)
    plan = _with_state_away(case) if asked.offload else None
    return _misfit(case) if plan is None else plan


def _plan(case: _Case, cuts: Cuts) -> Plan:
    asked, layout = case.asked, case.layout
    stages = tuple(_stage(case, cuts, k) for k in range(layout.pipeline))
    times = _times(case, stages)
    return Plan(layout, case.micro_batches, stages, times, asked.iterations, asked.hardware.accuracy.bound_factor)


def _with_state_away(case: _Case) -> Plan | None:
    """Return the plan with the optimizer's state in host memory during the passes; None if that does not fit or pay."""
    away = replace(case, is_away=True, costs=[])
    away.costs.extend(_costs(away))
    cuts = partition(away.costs)
    return None if cuts is None else with_copies(_plan(away, cuts), case.types)


def _case(asked: Question, chain: Chain, layout: Layout) -> _Case:
    types = stage_types(chain, layout)
    degree = [np.full((1, 1), float(it)) for it in (layout.tensor, layout.micro_batch, layout.saving.recomputes)]
    work = Pieces(*(column[0] for column in pieces(asked.layers, *degree)))
    micro_batches = asked.batch // (layout.data * layout.micro_batch)
    needs = memory(
        asked.layers, layout.saving, layout.data, layout.tensor, layout.micro_batch, copies=layout.pipeline > 1
    )
    case = _Case(asked, layout, micro_batches, types, work, needs, [])
    case.costs.extend(_costs(case))
    return case


def _costs(case: _Case) -> list[StageCosts]:
    of_type: dict[GpuType, list[float]] = {}
    found = []
    for k, it in enumerate(case.types):
        if it not in of_type:
            each_s = micro_batch_s(case.work, it.peak_flops, case.asked.constants(it))
            of_type[it] = sums(each_s.tolist())
        needed = sums(_layer_bytes(case, k).tolist())
        found.append(StageCosts(of_type[it], needed, usable_bytes(it.memory_bytes) - case.needs.working_bytes))
    return found


def _layer_bytes(case: _Case, stage: int) -> Array:
    """Return the memory of each layer on a stage, shape (layers,): early stages hold more micro-batches (1F1B)."""
    held = min(case.layout.pipeline - stage, case.micro_batches)
    state, kept = case.needs.state_bytes, held * case.needs.kept_bytes
    if not case.is_away:
        return state + kept
    # In the passes nothing of the optimizer is there, and in the update all state and nothing that layers kept.
    needed: Array = np.maximum(state - case.needs.optimizer_bytes + kept, state)
    return needed


def _misfit(case: _Case) -> Misfit:
    by_memory = [StageCosts(it.memory_bytes, it.memory_bytes, inf) for it in case.costs]
    cuts = partition(by_memory)
    assert cuts is not None  # with no bound, all cuts fit
    needed = [_needed_bytes(case, cuts, k) for k in range(len(case.types))]
    worst = int(np.argmax([need / it.memory_bytes for need, it in zip(needed, case.types, strict=True)]))
    it = case.types[worst]
    return Misfit(case.layout, it.name, needed[worst], it.memory_bytes)


def _needed_bytes(case: _Case, cuts: Cuts, stage: int) -> float:
    held = case.costs[stage].memory_bytes
    asked_for = held[cuts[stage + 1]] - held[cuts[stage]] + case.needs.working_bytes
    return asked_for * FRAGMENTATION + CONTEXT_BYTES


def _stage(case: _Case, cuts: Cuts, k: int) -> Stage:
    asked, layout, it = case.asked, case.layout, case.types[k]
    held = slice(cuts[k], cuts[k + 1])
    constants = asked.constants(it)
    part = Pieces(*(column[held] for column in case.work))
    trained = float((asked.layers.parameters[held]).sum()) / layout.tensor
    frozen = float((asked.layers.frozen_parameters[held]).sum()) / layout.tensor
    gradients = float(all_reduce_bytes(np.array(float(layout.data)), np.array(NUMBER_BYTES * trained)))
    sends = asked.layers.output_bytes[cuts[k + 1] - 1] * layout.micro_batch if k + 1 < layout.pipeline else 0.0
    return Stage(
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


def _seconds(case: _Case, held: slice, it: GpuType) -> Seconds:
    """Return what a stage takes in an iteration: passes by their FLOPs, and what is computed again as backward."""
    asked, layout, m = case.asked, case.layout, case.micro_batches
    part = Pieces(*(column[held] for column in case.work))
    taken_s = float(micro_batch_s(part, it.peak_flops, asked.constants(it)).sum()) * m
    forward_flops = float(asked.layers.forward_flops[held].sum()) * layout.micro_batch / layout.tensor
    share = forward_flops / max(float(part.flops.sum()), 1.0)
    parameters = float(asked.layers.parameters[held].sum()) / layout.tensor
    frozen_bytes = float(asked.layers.frozen_bytes[held].sum()) / layout.tensor
    gradients_s, optimizer_s = _after_s(case, it, parameters, frozen_bytes)
    return Seconds(share * taken_s, (1.0 - share) * taken_s, gradients_s, optimizer_s)


def rounds(
    parameters: Array, frozen_bytes: Array, data: Array, micro_batches: Array, zero: Array, is_inside: Array,
    steps: Array,
) -> Rounds:  # fmt: skip
    """Return what iterations do beside their micro-batches, arrays of the shape of the arguments.

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
    return Rounds(
        steps=steps,
        inside_bytes=np.where(is_inside > 0, summed + gathered, 0.0),
        across_bytes=np.where(is_inside > 0, 0.0, summed),
        gathered_bytes=np.where(is_inside > 0, 0.0, gathered),
        optimizer_bytes=OPTIMIZER_BYTES * parameters / np.where(zero > 0, data, 1.0),
    )


def _after_s(case: _Case, it: GpuType, parameters: float, frozen_bytes: float) -> tuple[float, float]:
    """Return the time of gradients and of the optimizer, on a GPU that trains so many parameters."""
    asked, layout = case.asked, case.layout
    constants = asked.constants(it)
    machine = Machine(it.peak_flops, asked.fitted.measured_on.memory_bytes_per_s, it.nic_bytes_per_s)
    figures = (
        parameters, frozen_bytes, layout.data, case.micro_batches, layout.saving.zero, layout.gpus <= it.gpus_per_node,
        case.micro_batches + layout.pipeline - 1,
    )  # fmt: skip
    done = rounds(*(np.array(float(it)) for it in figures))
    none = done._replace(optimizer_bytes=np.zeros(()))
    gradients_s = float(synchronisation_s(none, machine, constants))
    return gradients_s, float(synchronisation_s(done, machine, constants)) - gradients_s


def _times(case: _Case, stages: tuple[Stage, ...]) -> Times:
    layout, whole = case.layout, slowest(case.types)
    # Weights that are not trained count in ZeRO-3 alone, which has one stage.
    frozen_bytes = float(case.asked.layers.frozen_bytes.sum()) / layout.tensor
    most = max(stage.trained_parameters for stage in stages)
    gradients_s, optimizer_s = _after_s(case, whole, most, frozen_bytes)
    worst, m = max(stages, key=lambda it: it.micro_batch_s), case.micro_batches
    return Times(
        compute_s=worst.compute_s * m,
        tensor_s=worst.tensor_s * m,
        fixed_s=(worst.micro_batch_s - worst.compute_s - worst.tensor_s) * m,
        bubble_s=worst.micro_batch_s * (layout.pipeline - 1),
        gradients_s=gradients_s,
        optimizer_s=optimizer_s,
        iteration_s=case.asked.constants(whole).iteration_s,
    )
