"""Plans and calibrations, printed for people and as JSON.

Source: SPEC P1.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..cluster.files.durations import duration_text, exact_duration_text
from .calibration import RELIABLE_RUNS, MeasuredRuns
from .hardware import HardwareProfile, HostProfile
from .memory import CONTEXT_BYTES, FRAGMENTATION
from .plan import FoundPlan, IterationTimes, Misfit, PlanStage
from .request import PlanRequest
from .search import SearchResult

# The meaning of each constant, its unit, and that in SI units.
MEANINGS = {
    "efficiency": ("best share of a GPU's peak that matrix products reach", "", 1.0),
    "half_elements": ("size of a micro-batch's activation that reaches half of it", "M elements", 1e6),
    "tensor_bytes_per_s": ("bandwidth of tensor parallelism, inside a node", "GB/s", 1e9),
    "inside_bytes_per_s": ("bandwidth of the sum of gradients, inside a node", "GB/s", 1e9),
    "across_bytes_per_s": ("bandwidth of the sum of gradients, across nodes", "GB/s", 1e9),
    "layer_s": ("fixed cost of a decoder layer, for each micro-batch", "ms", 1e-3),
    "tensor_layer_s": ("fixed cost of tensor parallelism, for each layer and micro-batch", "ms", 1e-3),
    "iteration_s": ("fixed cost of an iteration", "ms", 1e-3),
}


def constants_table(hardware: HardwareProfile) -> Table:
    """Return a table of every constant, with its value and what it means."""
    table = Table("constant", "value", "meaning", box=None, pad_edge=False)
    for name, value in hardware.as_constants._asdict().items():
        meaning, unit, in_si = MEANINGS[name]
        unsure = "; the runs do not determine it" if name in hardware.not_identified else ""
        table.add_row(name, f"{value / in_si:.3g} {unit}".strip(), meaning + unsure)
    on, accuracy = hardware.measured_on, hardware.accuracy
    bound = f"times the prediction: {accuracy.bound_share:.0%} of runs take at most that long"
    table.add_row("bound_factor", f"{accuracy.bound_factor:.3g}", bound)
    memory = "memory bandwidth of a GPU, for the optimizer"
    table.add_row("memory_bytes_per_s", f"{on.memory_bytes_per_s / 1e9:.4g} GB/s", memory)
    return table


def host_table(host: HostProfile) -> Table:
    """Return a table of the rates of a machine's ranks, with what each means."""
    table = Table("constant", "value", "meaning", box=None, pad_edge=False)
    for way, rates in (("forward", host.forward), ("backward", host.backward)):
        for name, unit, in_si, meaning in (
            ("flop_s", "ms/GFLOP", 1e-12, "matrix products"),
            ("kept_byte_s", "ms/MB", 1e-9, "numbers that are kept for the backward pass"),
            ("parameter_s", "ms/M", 1e-9, "parameters, whatever the micro-batch"),
            ("layer_s", "ms", 1e-3, "fixed cost of a decoder layer, for each micro-batch"),
        ):
            table.add_row(f"{way} {name}", f"{getattr(rates, name) / in_si:.3g} {unit}", meaning)
    speeds = ", ".join(f"{speed:.2f}" for speed in host.speeds)
    table.add_row("speeds", speeds, f"of a rank if 1, 2, 3 and so on are busy, on {host.cores} cores")
    exchanges = [("reduce", cost, f"sum of gradients over {cost.members} members") for cost in host.reduce]
    for name, cost, meaning in (*exchanges, ("send", host.send, "activations to the next stage")):
        table.add_row(name, f"{1e3 * cost.start_s:.3g} ms + {cost.byte_s / 1e-9:.3g} ms/MB", meaning)
    updated = f"{1e3 * host.update_start_s:.3g} ms + {host.update_parameter_s / 1e-9:.3g} ms/M"
    table.add_row("update", updated, "optimizer, for a million parameters")
    bound = f"times the prediction: {host.accuracy.bound_share:.0%} of layers take at most that long"
    table.add_row("bound_factor", f"{host.accuracy.bound_factor:.3g}", bound)
    return table


MAX_TABLE_ROWS = 60


def print_search_result(console: Console, request: PlanRequest, result: SearchResult) -> None:
    """Print the plan, or that there is none."""
    profile, trained = request.profile, request.profile.trained_parameters
    of_these = "" if trained == profile.parameters else f" ({_amount_text(trained).strip()} trained)"
    console.print(
        f"{profile.name}: {_amount_text(profile.parameters)} parameters{of_these} in {len(profile.layers)} layers, "
        f"{_amount_text(profile.forward_flops)}FLOP forward for a sample; profiled {profile.rung}"
    )
    for note in profile.notes:
        console.print(f"note: {note}")
    console.print()
    for line in result_sentences(request, result):
        console.print(line)
    if result.plan is not None:
        _print_plan(console, request, result.plan)


def result_sentences(request: PlanRequest, result: SearchResult) -> Iterator[str]:
    """Yield the result in sentences."""
    plan = result.plan
    if plan is None:
        yield from _nothing_fits_sentences(request, result)
        return
    bound = f"{request.hardware.accuracy.bound_share:.0%} bound"
    if request.deadline_s is None:
        yield f"The fastest plan takes {duration_text(plan.total_s)} ({bound}: {duration_text(plan.bound_s)})."
    elif result.meets:
        yield (
            f"{_gpus_text(plan)} meet the deadline of {exact_duration_text(request.deadline_s)}: "
            f"{duration_text(plan.total_s)} predicted, {bound} {duration_text(plan.bound_s)}."
        )
        if plan.gpus > 1 and result.with_fewer_gpus is None:
            yield ("Fewer do not hold the model." if request.degrees is None else "Other degrees were not searched.")
        elif result.with_fewer_gpus is not None:
            fewer = result.with_fewer_gpus
            yield f"Fewer do not: {_gpus_text(fewer)} have a bound of {duration_text(fewer.bound_s)}."
    else:
        yield (
            f"No plan meets the deadline of {exact_duration_text(request.deadline_s)}. The fastest has a {bound} of "
            f"{duration_text(plan.bound_s)}, {duration_text(plan.bound_s - request.deadline_s)} too long."
        )
        yield from _more_gpus_sentences(request, result)


def _more_gpus_sentences(request: PlanRequest, result: SearchResult) -> Iterator[str]:
    more = result.with_more_gpus
    if isinstance(request.hardware, HostProfile):
        yield f"The profile is of {request.hardware.ranks} ranks; whether more ranks meet it was not measured."
    elif request.degrees is not None and more is None:
        yield "Other degrees were not searched."
    elif more is None and result.plan is None:
        yield "No number of these GPUs is enough: each has too little memory."
    elif more is None:
        yield "No number of these GPUs is enough: a batch has no work for more GPUs than samples. Try a larger --batch."
    else:
        yield f"{_gpus_text(more)} are enough ({degrees_text(more)}), with a bound of {duration_text(more.bound_s)}."


def _nothing_fits_sentences(request: PlanRequest, result: SearchResult) -> Iterator[str]:
    yield "No plan fits into the memory of these GPUs."
    near = result.closest
    if near is not None:
        needed, there = _gb_text(near.needed_bytes), _gb_text(near.gpu_memory_bytes)
        more = f"a little more than {needed}" if needed == there else needed
        yield (
            f"The nearest, {near.layout.data} x {near.layout.pipeline} x {near.layout.tensor} with "
            f"{near.layout.saving}, needs {more} on a GPU, of which {_gb_text(CONTEXT_BYTES)} is for libraries; "
            f"{near.gpu_type} has {there}."
        )
    yield from _more_gpus_sentences(request, result)


def _print_plan(console: Console, request: PlanRequest, plan: FoundPlan) -> None:
    layout, times = plan.layout, plan.times
    console.print()
    console.print(f"plan        {plan.kind}: {degrees_text(plan)}")
    console.print(
        f"batch       {request.batch} samples: {plan.micro_batches} micro-batches of {layout.micro_batch} on each of "
        f"{layout.data} members; {plan.iterations:,} iterations"
    )
    console.print(f"memory      {layout.saving if layout.saving.value != 'none' else 'fits as it is'}")
    console.print(
        f"iteration   {time_text(plan.step_s)} = {time_text(times.compute_s)} matrix products + "
        f"{time_text(times.tensor_s)} tensor parallelism + {time_text(times.fixed_s)} launches + "
        f"{time_text(times.bubble_s)} empty pipeline + {time_text(times.gradients_s)} gradients + "
        f"{time_text(times.optimizer_s)} optimizer + "
        f"{time_text(times.iteration_s)} fixed"
    )
    console.print(f"cost        {plan.gpu_hours:,.1f} GPU-hours")
    console.print()
    console.print(_stage_table(request, plan))
    console.print(
        f"Memory has {100 * (FRAGMENTATION - 1):.0f} % for fragmentation and {_gb_text(CONTEXT_BYTES)} for libraries "
        "in it. No memory figure has been compared with a GPU."
    )
    console.print()
    hardware = request.hardware
    if isinstance(hardware, HostProfile):
        console.print(
            f"Measured on {hardware.name}; layers outside of the fit are {hardware.accuracy.mean_error:.1%} off. "
            "Schedules are simulated, as ranks share cores."
        )
        console.print(host_table(hardware))
        return
    console.print(
        f"Constants fitted to {hardware.accuracy.runs} runs ({hardware.name}); runs outside of the fit are "
        f"{hardware.accuracy.mean_error:.1%} off. Bandwidths are scaled by the cluster file's, speed by its peak_flops."
    )
    console.print(constants_table(hardware))


def _stage_table(request: PlanRequest, plan: FoundPlan) -> Table:
    table = Table("stage", "layers", "GPUs", "micro-batch", "FLOP each GPU", "memory", box=None, pad_edge=False)
    table.add_column("sends each GPU")
    for (first, count), stage in _runs_of_alike_stages(plan.stages):
        name = str(first) if count == 1 else f"{first} to {first + count - 1}"
        table.add_row(
            name, _layer_range_text(request, stage, plan.stages[first + count - 1]), f"{stage.gpus} {stage.gpu_type}",
            time_text(stage.micro_batch_s), f"{_amount_text(stage.flops)}", f"{_gb_text(stage.memory_bytes)} of "
            f"{_gb_text(stage.gpu_memory_bytes)}", _traffic_text(stage),
        )  # fmt: skip
    return table


def _runs_of_alike_stages(stages: Sequence[PlanStage]) -> Iterator[tuple[tuple[int, int], PlanStage]]:
    """Yield each run of stages that differ in their layers alone, with its first index and their number."""
    first = 0
    for _, group in groupby(
        stages, key=lambda stage: (stage.last_layer - stage.first_layer, stage.gpu_type, stage.flops)
    ):
        members = list(group)
        yield (first, len(members)), members[0]
        first += len(members)


def _layer_range_text(request: PlanRequest, first: PlanStage, last: PlanStage) -> str:
    names = request.profile.layers
    if first.first_layer == last.last_layer:
        return names[first.first_layer].name
    return f"{names[first.first_layer].name} ... {names[last.last_layer].name}"


def _traffic_text(stage: PlanStage) -> str:
    parts = [(stage.tensor_bytes, "tensor group, a micro-batch"), (stage.next_bytes, "next stage, a micro-batch")]
    sent = [
        f"{_amount_text(volume)}B ({what})"
        for volume, what in (*parts, (stage.ring_bytes, "ring, an iteration"))
        if volume
    ]
    return ", ".join(sent) or "nothing"


def print_plan_table(
    console: Console, request: PlanRequest, found: Sequence[FoundPlan | Misfit], chosen: FoundPlan | None
) -> None:
    """Print all plans, fastest first, then those that do not fit, with their limits; the chosen one is marked."""
    table = Table(
        "GPUs", "type", "DP x PP x TP", "micro-batch", "memory", "iteration", "all", "bound", box=None, pad_edge=False
    )
    table.add_column("verdict")
    console.print()
    rows = order_plans(found)
    at = rows.index(chosen) if chosen in rows else -1
    for number in (*range(min(MAX_TABLE_ROWS, len(rows))), *([at] if at >= MAX_TABLE_ROWS else [])):
        row = rows[number]
        layout = row.layout
        start = (
            str(layout.gpus),
            row.gpu_type if isinstance(row, Misfit) else " + ".join(row.gpu_types),
            f"{layout.data} x {layout.pipeline} x {layout.tensor}",
            str(layout.micro_batch),
            str(layout.saving),
        )
        if isinstance(row, FoundPlan):
            table.add_row(
                *start, time_text(row.step_s), duration_text(row.total_s), duration_text(row.bound_s),
                f"{binding_limit_text(request, row)}: chosen" if number == at else binding_limit_text(request, row),
            )  # fmt: skip
        else:
            table.add_row(*start, "", "", "", binding_limit_text(request, row))
    console.print(table)
    if len(found) > MAX_TABLE_ROWS:
        console.print(f"{len(found) - MAX_TABLE_ROWS} more; --json has all of them")


def order_plans(found: Sequence[FoundPlan | Misfit]) -> list[FoundPlan | Misfit]:
    """Return plans by time, then misfits by the memory that they lack."""
    plans = sorted((row for row in found if isinstance(row, FoundPlan)), key=lambda plan: (plan.step_s, plan.gpus))
    others = sorted(
        (row for row in found if isinstance(row, Misfit)),
        key=lambda misfit: misfit.needed_bytes / misfit.gpu_memory_bytes,
    )
    return [*plans, *others]


def binding_limit_text(request: PlanRequest, found: FoundPlan | Misfit) -> str:
    """Return what keeps a plan from being chosen."""
    if isinstance(found, Misfit):
        needed, there = _gb_text(found.needed_bytes), _gb_text(found.gpu_memory_bytes)
        return f"memory: needs {needed} on a GPU, {found.gpu_type} has {there}"
    if request.deadline_s is not None and found.bound_s > request.deadline_s:
        return f"time: {duration_text(found.bound_s - request.deadline_s)} too long"
    return "meets the deadline" if request.deadline_s is not None else "fits"


def _gpus_text(plan: FoundPlan) -> str:
    return f"{plan.gpus:,} GPU{'s' if plan.gpus > 1 else ''} ({' + '.join(plan.gpu_types)})"


def degrees_text(plan: FoundPlan) -> str:
    """Return the degrees of a plan."""
    layout = plan.layout
    return f"data {layout.data} x pipeline {layout.pipeline} x tensor {layout.tensor} = {plan.gpus:,} GPUs"


def time_text(seconds: float) -> str:
    """Return a time in s or ms."""
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def _gb_text(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _amount_text(value: float) -> str:
    for scale, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "


TRACE_ONLY = ("offload_s", "away_bytes")  # 0 but in plans for jobs of a trace


def result_json(request: PlanRequest, result: SearchResult, table: Sequence[FoundPlan | Misfit] | None) -> str:
    """Return the result as JSON text; docs/planner.md has the fields."""
    profile = request.profile
    answer: dict[str, Any] = {
        "model": {
            "name": profile.name, "rung": profile.rung, "parameters": profile.parameters,
            "trained_parameters": profile.trained_parameters, "min_samples": profile.min_samples,
            "forward_flops": profile.forward_flops, "layers": [layer.name for layer in profile.layers],
            "notes": list(profile.notes),
        },
        "batch": request.batch, "iterations": request.iterations, "deadline_s": request.deadline_s,
        "meets_deadline": result.meets,
        "plan": _plan_json(result.plan), "with_more_gpus": _plan_json(result.with_more_gpus),
        "with_fewer_gpus": _plan_json(result.with_fewer_gpus), "closest": _misfit_json(result.closest),
        "layouts": result.layouts, "evaluated": result.evaluated,
        "hardware": request.hardware.model_dump(mode="json"),
    }  # fmt: skip
    if table is not None:
        answer["table"] = [
            {
                **(_layout_and_times_json(row) if isinstance(row, FoundPlan) else _misfit_json(row) or {}),
                "verdict": binding_limit_text(request, row),
                "chosen": row == result.plan,
            }
            for row in order_plans(table)
        ]
    return json.dumps(answer, indent=2)


def _plan_json(plan: FoundPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        **_layout_and_times_json(plan), "micro_batches": plan.micro_batches, "kind": plan.kind,
        "gpu_hours": plan.gpu_hours, "times": _figures_json(plan.times),
        "sub_tasks": [{**_figures_json(stage), "seconds": stage.seconds._asdict()} for stage in plan.stages],
    }  # fmt: skip


def _figures_json(times_or_stage: IterationTimes | PlanStage) -> dict[str, Any]:
    return {name: value for name, value in asdict(times_or_stage).items() if name not in TRACE_ONLY}


def _layout_and_times_json(plan: FoundPlan) -> dict[str, Any]:
    return {
        "gpus": plan.gpus, **plan.layout._asdict(), "gpu_types": list(plan.gpu_types),
        "step_s": plan.step_s, "total_s": plan.total_s, "bound_s": plan.bound_s,
    }  # fmt: skip


def _misfit_json(misfit: Misfit | None) -> dict[str, Any] | None:
    if misfit is None:
        return None
    return {
        "gpus": misfit.layout.gpus, **misfit.layout._asdict(), "gpu_type": misfit.gpu_type,
        "needed_bytes": misfit.needed_bytes, "gpu_memory_bytes": misfit.gpu_memory_bytes,
    }  # fmt: skip


def print_calibration(console: Console, profile: HardwareProfile, runs: MeasuredRuns) -> None:
    """Print the result of a calibration."""
    on = profile.accuracy
    console.print(
        f"{on.runs} runs. Predictions of runs outside of the fit are {on.mean_error:.1%} off in the mean "
        f"({'too long' if on.bias > 0 else 'too short'} by {abs(on.bias):.1%}). {on.bound_share:.0%} of them took no "
        f"longer than {on.bound_factor:.3g} times the prediction."
    )
    console.print()
    console.print(constants_table(profile))
    console.print()
    for line in calibration_advice(profile, runs):
        console.print(line)


def calibration_advice(profile: HardwareProfile, runs: MeasuredRuns) -> Iterator[str]:
    """Yield what the runs lack."""
    if profile.not_identified:
        names = ", ".join(profile.not_identified)
        yield f"The runs do not determine {names}: these stay near the datasheet, and plans with them are less certain."
    if profile.accuracy.runs < RELIABLE_RUNS:
        yield f"{profile.accuracy.runs} runs are few: with less than {RELIABLE_RUNS}, the measured error is unreliable."
    columns = {"micro_batch": runs.micro_batch, "tensor": runs.tensor, "pipeline": runs.pipeline, "data": runs.data}
    same = [name for name, column in columns.items() if np.unique(column).size == 1]
    if same:
        yield f"All runs have the same {' and '.join(same)}: measure some that differ."
