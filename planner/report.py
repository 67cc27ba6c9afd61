"""A plan and a calibration, printed for people and as JSON.

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

from ..cluster.files.durations import duration_text, exact_text
from .calibration import ENOUGH
from .model import CONTEXT_BYTES, FRAGMENTATION, MEANINGS, HardwareProfile, HostProfile, Runs
from .plan import FoundPlan, Misfit, Stage, Times
from .profile.profiling import ModelProfile
from .question import Question
from .search import Choice


def constants_table(hardware: HardwareProfile) -> Table:
    """Return a table of every constant, with its value and what it means."""
    table = Table("constant", "value", "meaning", box=None, pad_edge=False)
    for name, value in hardware.values._asdict().items():
        meaning = MEANINGS[name]
        unsure = "; the runs do not tell it" if name in hardware.not_identified else ""
        table.add_row(name, f"{value / meaning.in_si:.3g} {meaning.unit}".strip(), meaning.text + unsure)
    on, accuracy = hardware.measured_on, hardware.accuracy
    bound = f"times the prediction: at most so long are {accuracy.bound_share:.0%} of runs"
    table.add_row("bound_factor", f"{accuracy.bound_factor:.3g}", bound)
    memory = "memory of a GPU, which the optimizer goes through"
    table.add_row("memory_bytes_per_s", f"{on.memory_bytes_per_s / 1e9:.4g} GB/s", memory)
    return table


def host_table(host: HostProfile) -> Table:
    """Return a table of what ranks of a machine do in a second, with what it means."""
    table = Table("constant", "value", "meaning", box=None, pad_edge=False)
    for way, rates in (("forward", host.forward), ("backward", host.backward)):
        for name, unit, in_si, meaning in (
            ("flop_s", "ms/GFLOP", 1e-12, "matrix products"),
            ("kept_byte_s", "ms/MB", 1e-9, "numbers that are kept for the way back"),
            ("parameter_s", "ms/M", 1e-9, "parameters, whatever the micro-batch"),
            ("layer_s", "ms", 1e-3, "fixed cost of a decoder layer, for each micro-batch"),
        ):
            table.add_row(f"{way} {name}", f"{getattr(rates, name) / in_si:.3g} {unit}", meaning)
    speeds = ", ".join(f"{it:.2f}" for it in host.speeds)
    table.add_row("speeds", speeds, f"of a rank where 1, 2, 3 and so on are busy, on {host.cores} cores")
    for it in host.reduce:
        told = f"{1e3 * it.start_s:.3g} ms + {it.byte_s / 1e-9:.3g} ms/MB"
        table.add_row("reduce", told, f"sum of gradients over {it.members} members")
    sent = f"{1e3 * host.send.start_s:.3g} ms + {host.send.byte_s / 1e-9:.3g} ms/MB"
    table.add_row("send", sent, "activations to the next stage")
    updated = f"{1e3 * host.update_start_s:.3g} ms + {host.update_parameter_s / 1e-9:.3g} ms/M"
    table.add_row("update", updated, "optimizer, for a million parameters")
    bound = f"times the prediction: at most so long are {host.accuracy.bound_share:.0%} of layers"
    table.add_row("bound_factor", f"{host.accuracy.bound_factor:.3g}", bound)
    return table


MOST_ROWS = 60


def print_choice(console: Console, asked: Question, choice: Choice) -> None:
    """Print the plan, or that there is none."""
    profile = asked.profile
    console.print(
        f"{profile.name}: {_amount(profile.parameters)} parameters{_trained(profile)} in {len(profile.layers)} layers, "
        f"{_amount(profile.forward_flops)}FLOP forward for a sample; profiled {profile.rung}"
    )
    for note in profile.notes:
        console.print(f"note: {note}")
    console.print()
    for line in verdict(asked, choice):
        console.print(line)
    if choice.plan is not None:
        _print_plan(console, asked, choice.plan)


def _trained(profile: ModelProfile) -> str:
    trained = profile.trained_parameters
    return "" if trained == profile.parameters else f" ({_amount(trained).strip()} trained)"


def verdict(asked: Question, choice: Choice) -> Iterator[str]:
    """Say in sentences what the answer is."""
    plan = choice.plan
    if plan is None:
        yield from _nothing_fits(asked, choice)
        return
    bound = f"{asked.hardware.accuracy.bound_share:.0%} bound"
    if asked.deadline_s is None:
        yield f"The fastest plan takes {duration_text(plan.total_s)} ({bound}: {duration_text(plan.bound_s)})."
    elif choice.meets:
        yield (
            f"{_gpus(plan)} meet the deadline of {exact_text(asked.deadline_s)}: "
            f"{duration_text(plan.total_s)} predicted, {bound} {duration_text(plan.bound_s)}."
        )
        if plan.gpus > 1 and choice.fewer is None:
            yield "Fewer do not hold the model." if asked.degrees is None else "No plan of other degrees was looked at."
        elif choice.fewer is not None:
            yield f"Fewer do not: {_gpus(choice.fewer)} have a bound of {duration_text(choice.fewer.bound_s)}."
    else:
        yield (
            f"No plan meets the deadline of {exact_text(asked.deadline_s)}. The fastest has a {bound} of "
            f"{duration_text(plan.bound_s)}, {duration_text(plan.bound_s - asked.deadline_s)} too long."
        )
        yield from _what_would_do(asked, choice)


def _what_would_do(asked: Question, choice: Choice) -> Iterator[str]:
    more = choice.would_do
    if isinstance(asked.hardware, HostProfile):
        yield f"The profile is of {asked.hardware.ranks} ranks; whether more would do was not measured."
    elif asked.degrees is not None and more is None:
        yield "No plan of other degrees was looked at."
    elif more is None and choice.plan is None:
        yield "No number of these GPUs would do: each has too little memory."
    elif more is None:
        yield "No number of these GPUs would do: more than the samples of a batch share no work. Try a larger --batch."
    else:
        yield f"{_gpus(more)} would do ({layout_words(more)}), with a bound of {duration_text(more.bound_s)}."


def _nothing_fits(asked: Question, choice: Choice) -> Iterator[str]:
    yield "No plan fits into the memory of these GPUs."
    near = choice.closest
    if near is not None:
        needed, there = _gb(near.needed_bytes), _gb(near.gpu_memory_bytes)
        more = f"a little more than {needed}" if needed == there else needed
        yield (
            f"The nearest, {near.layout.data} x {near.layout.pipeline} x {near.layout.tensor} with "
            f"{near.layout.saving}, needs {more} on a GPU, of which {_gb(CONTEXT_BYTES)} is for libraries; "
            f"{near.gpu_type} has {there}."
        )
    yield from _what_would_do(asked, choice)


def _print_plan(console: Console, asked: Question, plan: FoundPlan) -> None:
    layout, times = plan.layout, plan.times
    console.print()
    console.print(f"plan        {plan.kind}: {layout_words(plan)}")
    console.print(
        f"batch       {asked.batch} samples: {plan.micro_batches} micro-batches of {layout.micro_batch} on each of "
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
    console.print(_stage_table(asked, plan))
    console.print(
        f"Memory has {100 * (FRAGMENTATION - 1):.0f} % for fragmentation and {_gb(CONTEXT_BYTES)} for libraries in it. "
        "No memory figure has been compared with a GPU."
    )
    console.print()
    hardware = asked.hardware
    if isinstance(hardware, HostProfile):
        console.print(
            f"Measured on {hardware.name}; layers left out of the fit are {hardware.accuracy.mean_error:.1%} off. "
            "Schedules are played through, as ranks share cores."
        )
        console.print(host_table(hardware))
        return
    console.print(
        f"Constants fitted to {hardware.accuracy.runs} runs ({hardware.name}); runs left out are "
        f"{hardware.accuracy.mean_error:.1%} off. Bandwidths are scaled by the cluster file's, speed by its peak_flops."
    )
    console.print(constants_table(hardware))


def _stage_table(asked: Question, plan: FoundPlan) -> Table:
    table = Table("stage", "layers", "GPUs", "micro-batch", "FLOP each GPU", "memory", box=None, pad_edge=False)
    table.add_column("sends each GPU")
    for (first, count), stage in _alike(plan.stages):
        name = str(first) if count == 1 else f"{first} to {first + count - 1}"
        table.add_row(
            name, _layer_names(asked, stage, plan.stages[first + count - 1]), f"{stage.gpus} {stage.gpu_type}",
            time_text(stage.micro_batch_s), f"{_amount(stage.flops)}", f"{_gb(stage.memory_bytes)} of "
            f"{_gb(stage.gpu_memory_bytes)}", _edges(stage),
        )  # fmt: skip
    return table


def _alike(stages: Sequence[Stage]) -> Iterator[tuple[tuple[int, int], Stage]]:
    """Yield each run of stages that differ in their layers alone, with its first index and how many they are."""
    first = 0
    for _, group in groupby(stages, key=lambda it: (it.last_layer - it.first_layer, it.gpu_type, it.flops)):
        members = list(group)
        yield (first, len(members)), members[0]
        first += len(members)


def _layer_names(asked: Question, first: Stage, last: Stage) -> str:
    names = asked.profile.layers
    if first.first_layer == last.last_layer:
        return names[first.first_layer].name
    return f"{names[first.first_layer].name} ... {names[last.last_layer].name}"


def _edges(stage: Stage) -> str:
    parts = [(stage.tensor_bytes, "tensor group, a micro-batch"), (stage.next_bytes, "next stage, a micro-batch")]
    told = [
        f"{_amount(volume)}B ({what})" for volume, what in (*parts, (stage.ring_bytes, "ring, an iteration")) if volume
    ]
    return ", ".join(told) or "nothing"


def print_table(
    console: Console, asked: Question, found: Sequence[FoundPlan | Misfit], chosen: FoundPlan | None
) -> None:
    """Print all plans, fastest first, then those that do not fit, with what binds them; the chosen one is marked."""
    table = Table(
        "GPUs", "type", "DP x PP x TP", "micro-batch", "memory", "iteration", "all", "bound", box=None, pad_edge=False
    )
    table.add_column("verdict")
    console.print()
    rows = ordered(found)
    at = rows.index(chosen) if chosen in rows else -1
    for number in (*range(min(MOST_ROWS, len(rows))), *([at] if at >= MOST_ROWS else [])):
        it = rows[number]
        layout = it.layout
        start = (
            str(layout.gpus),
            it.gpu_type if isinstance(it, Misfit) else " + ".join(it.gpu_types),
            f"{layout.data} x {layout.pipeline} x {layout.tensor}",
            str(layout.micro_batch),
            str(layout.saving),
        )
        if isinstance(it, FoundPlan):
            table.add_row(
                *start, time_text(it.step_s), duration_text(it.total_s), duration_text(it.bound_s),
                f"{binding(asked, it)}: chosen" if number == at else binding(asked, it),
            )  # fmt: skip
        else:
            table.add_row(*start, "", "", "", binding(asked, it))
    console.print(table)
    if len(found) > MOST_ROWS:
        console.print(f"{len(found) - MOST_ROWS} more; --json has all of them")


def ordered(found: Sequence[FoundPlan | Misfit]) -> list[FoundPlan | Misfit]:
    """Return plans by their time, then what does not fit by what it lacks."""
    plans = sorted((it for it in found if isinstance(it, FoundPlan)), key=lambda it: (it.step_s, it.gpus))
    others = sorted(
        (it for it in found if isinstance(it, Misfit)), key=lambda it: it.needed_bytes / it.gpu_memory_bytes
    )
    return [*plans, *others]


def binding(asked: Question, it: FoundPlan | Misfit) -> str:
    """Say what keeps a plan from being chosen."""
    if isinstance(it, Misfit):
        return f"memory: needs {_gb(it.needed_bytes)} on a GPU, {it.gpu_type} has {_gb(it.gpu_memory_bytes)}"
    if asked.deadline_s is not None and it.bound_s > asked.deadline_s:
        return f"time: {duration_text(it.bound_s - asked.deadline_s)} too long"
    return "meets the deadline" if asked.deadline_s is not None else "fits"


def _gpus(plan: FoundPlan) -> str:
    return f"{plan.gpus:,} GPU{'s' if plan.gpus > 1 else ''} ({' + '.join(plan.gpu_types)})"


def layout_words(plan: FoundPlan) -> str:
    """Return the degrees of a plan."""
    layout = plan.layout
    return f"data {layout.data} x pipeline {layout.pipeline} x tensor {layout.tensor} = {plan.gpus:,} GPUs"


def time_text(seconds: float) -> str:
    """Return a time in s or ms."""
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _amount(value: float) -> str:
    for scale, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "


OF_TRACES = ("offload_s", "away_bytes")  # 0 but in plans for jobs of a trace


def choice_json(asked: Question, choice: Choice, table: Sequence[FoundPlan | Misfit] | None) -> str:
    """Return the answer as JSON text; docs/planner.md has the fields."""
    profile = asked.profile
    said: dict[str, Any] = {
        "model": {
            "name": profile.name, "rung": profile.rung, "parameters": profile.parameters,
            "trained_parameters": profile.trained_parameters, "least_samples": profile.least_samples,
            "forward_flops": profile.forward_flops, "layers": [layer.name for layer in profile.layers],
            "notes": list(profile.notes),
        },
        "batch": asked.batch, "iterations": asked.iterations, "deadline_s": asked.deadline_s,
        "meets_deadline": choice.meets,
        "plan": _plan(choice.plan), "would_do": _plan(choice.would_do),
        "fewer": _plan(choice.fewer), "closest": _misfit(choice.closest),
        "looked_at": choice.looked_at, "worked_out": choice.worked_out,
        "hardware": asked.hardware.model_dump(mode="json"),
    }  # fmt: skip
    if table is not None:
        said["table"] = [
            {
                **(_row(it) if isinstance(it, FoundPlan) else _misfit(it) or {}),
                "verdict": binding(asked, it),
                "chosen": it == choice.plan,
            }
            for it in ordered(table)
        ]
    return json.dumps(said, indent=2)


def _plan(plan: FoundPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        **_row(plan), "micro_batches": plan.micro_batches, "kind": plan.kind, "gpu_hours": plan.gpu_hours,
        "times": _figures(plan.times),
        "sub_tasks": [{**_figures(stage), "seconds": stage.seconds._asdict()} for stage in plan.stages],
    }  # fmt: skip


def _figures(of: Times | Stage) -> dict[str, Any]:
    return {name: value for name, value in asdict(of).items() if name not in OF_TRACES}


def _row(plan: FoundPlan) -> dict[str, Any]:
    return {
        "gpus": plan.gpus, **plan.layout._asdict(), "gpu_types": list(plan.gpu_types),
        "step_s": plan.step_s, "total_s": plan.total_s, "bound_s": plan.bound_s,
    }  # fmt: skip


def _misfit(it: Misfit | None) -> dict[str, Any] | None:
    if it is None:
        return None
    return {
        "gpus": it.layout.gpus, **it.layout._asdict(), "gpu_type": it.gpu_type, "needed_bytes": it.needed_bytes,
        "gpu_memory_bytes": it.gpu_memory_bytes,
    }  # fmt: skip


def print_calibration(console: Console, profile: HardwareProfile, runs: Runs) -> None:
    """Print what came of a calibration."""
    on = profile.accuracy
    console.print(
        f"{on.runs} runs. Predictions of runs that were left out are {on.mean_error:.1%} off in the mean "
        f"({'too long' if on.bias > 0 else 'too short'} by {abs(on.bias):.1%}). {on.bound_share:.0%} of them took no "
        f"longer than {on.bound_factor:.3g} times the prediction."
    )
    console.print()
    console.print(constants_table(profile))
    console.print()
    for line in advice(profile, runs):
        console.print(line)


def advice(profile: HardwareProfile, runs: Runs) -> Iterator[str]:
    """Say what the runs lack."""
    if profile.not_identified:
        names = ", ".join(profile.not_identified)
        yield f"The runs do not tell {names}: these stay near the datasheet. Plans that hang on them are less sure."
    if profile.accuracy.runs < ENOUGH:
        yield f"{profile.accuracy.runs} runs are few: below {ENOUGH}, how far predictions are off is a matter of luck."
    columns = {"micro_batch": runs.micro_batch, "tensor": runs.tensor, "pipeline": runs.pipeline, "data": runs.data}
    same = [name for name, column in columns.items() if np.unique(column).size == 1]
    if same:
        yield f"All runs have the same {' and '.join(same)}: measure some that differ."
