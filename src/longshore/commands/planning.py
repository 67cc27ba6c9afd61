"""`longshore plan`: find, calibrate, measure, run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..scheduler.commands.options import DURATION, run_time
from .options import MAX_GPUS, refuse_nan
from .progress import console, progress

NO_PLAN = 1  # exit status
MAX_LOCAL_RANKS = 64  # processes on this machine
MAX_BATCH = 10**7  # as in files of plans
HardwareOption = Annotated[
    Path | None,
    typer.Option("--hardware", help="Profile of `longshore plan calibrate` or `measure`; default: an A100's."),
]
ModelArgument = Annotated[
    str, typer.Argument(help="FILE.py:FUNCTION that returns (model, batch), or a table of layers FILE.csv.")
]
TokensOption = Annotated[
    float | None, typer.Option(min=1.0, max=1e18, callback=refuse_nan, help="Tokens of the whole training, as in 1e9.")
]
SamplesOption = Annotated[
    float | None, typer.Option(min=1.0, max=1e15, callback=refuse_nan, help="Samples of it, in place of tokens.")
]
DeadlineOption = Annotated[
    float | None,
    typer.Option(parser=run_time, metavar=DURATION, help="Time for it, such as 24h; default: as fast as possible."),
]
BatchOption = Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Samples of one iteration, on all GPUs together.")]
MostGpusOption = Annotated[
    int | None, typer.Option("--gpus", min=1, max=MAX_GPUS, help="Use at most this number of GPUs, the fastest first.")
]


DegreesOption = Annotated[
    str | None,
    typer.Option(metavar="DxPxT", help="Consider only plans of these degrees, such as 2x2x1."),
]
PlanClusterOption = Annotated[
    Path | None, typer.Option(help="Cluster file (YAML; see examples/); none for ranks of a measured machine.")
]
PlainOption = Annotated[bool, typer.Option("--plain", help="Consider only plans that `longshore plan run` can run.")]
TimeLimitOption = Annotated[
    float, typer.Option(parser=run_time, metavar=DURATION, help="For the profile of the model.")
]
ScheduleOption = Annotated[
    Literal["1f1b", "gpipe"] | None,
    typer.Option(help="Order of forward and backward passes; 1f1b if there are enough micro-batches."),
]
OffloadOption = Annotated[
    Literal["never", "auto", "one-copy"],
    typer.Option(help="Offload state that nothing needs for longer than both copies take, or one."),
]
MemoryLimitOption = Annotated[
    float, typer.Option(min=0.5, max=1e5, callback=refuse_nan, help="For the profile of the model, in GiB.")
]


def find(
    model: ModelArgument,
    cluster: PlanClusterOption = None,
    tokens: TokensOption = None,
    samples: SamplesOption = None,
    deadline: DeadlineOption = None,
    batch: BatchOption = 256,
    gpus: MostGpusOption = None,
    hardware: HardwareOption = None,
    degrees: DegreesOption = None,
    plain: PlainOption = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan here, for `longshore plan run`.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Show every plan considered.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    time_limit: TimeLimitOption = 120.0,
    memory_limit: MemoryLimitOption = 8.0,
) -> None:
    """Find the fewest GPUs that train a model by a deadline, and how to use them: data, pipeline, tensor parallel.

    The exit status is 1 if no plan meets the deadline, or none fits. The model is built without its weights, in a
    process of its own.
    """
    if (tokens is None) == (samples is None):
        raise typer.BadParameter("give either --tokens or --samples")
    with progress("profiling the model") as show:
        from ..cluster.files.output_file import check_outputs
        from ..planner.execution.plan_file import plan_file_of, why_not_runnable, write_plan
        from ..planner.inputs import read_request
        from ..planner.profile.profiling import ProfilingLimits
        from ..planner.report import print_plan_table, print_search_result, result_json
        from ..planner.search import best_by_degrees, find_plan

        check_outputs({"--out": out}, {"MODEL": _model_file(model), "--cluster": cluster, "--hardware": hardware})
        request = read_request(
            model, cluster, hardware, ProfilingLimits(time_limit, memory_limit * 2**30), batch=batch, samples=samples,
            tokens=tokens, deadline_s=deadline, gpus=gpus, degrees=_parse_degrees(degrees), is_plain=plain,
        )  # fmt: skip
        show("searching for a plan")
        result, rows = find_plan(request), list(best_by_degrees(request)) if table else None
        if out is not None and result.plan is not None:
            write_plan(out, plan_file_of(request, result.plan))
    if as_json:
        typer.echo(result_json(request, result, rows))
    else:
        print_search_result(console(), request, result)
        if rows is not None:
            print_plan_table(console(), request, rows, result.plan)
        if out is not None and result.plan is not None:
            typer.echo(f"\n{out}: {_use_text(out, model, why_not_runnable(plan_file_of(request, result.plan)))}")
    raise typer.Exit(0 if result.plan is not None and result.meets else NO_PLAN)


def _use_text(out: Path, model: str, lack: str | None) -> str:
    """Return what a written plan is for; `lack` is what `longshore plan run` cannot do of it."""
    return f"for `longshore plan run {out} {model}`" if lack is None else f"not to be run: {lack}; try --plain"


def _model_file(model: str) -> Path:
    """Return the file that MODEL names, FILE.py:FUNCTION or a table."""
    return Path(model.rpartition(":")[0] or model)


def _parse_degrees(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 7 and int(part) for part in parts):
        raise typer.BadParameter(f"--degrees: {text!r} is not data x pipeline x tensor; write it as in 2x2x1")
    return int(parts[0]), int(parts[1]), int(parts[2])


DISTURBED = 0.2  # mean error of a fit to layers above which a measurement was disturbed; 0.10 on a quiet machine


def calibrate(
    runs: Annotated[Path, typer.Argument(help="Measured runs (csv; docs/planner.md has the columns).")],
    out: Annotated[Path | None, typer.Option(help="Write the hardware profile here (YAML).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the profile; default: that of the file.")] = None,
    peak_flops: Annotated[
        float, typer.Option(min=1e6, max=1e24, callback=refuse_nan, help="Of one GPU, dense, in FLOP/s.")
    ] = 312e12,
    memory_bandwidth: Annotated[
        float, typer.Option(min=1.0, max=1e18, callback=refuse_nan, help="Of a GPU's memory, in bytes/s.")
    ] = 1.5e12,
    intra_bandwidth: Annotated[
        float, typer.Option(min=1.0, max=1e18, callback=refuse_nan, help="Between two GPUs of a node, in bytes/s.")
    ] = 300e9,
    nic_bandwidth: Annotated[
        float, typer.Option(min=1.0, max=1e18, callback=refuse_nan, help="Of a node's network, in bytes/s.")
    ] = 25e9,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=10**6, help="GPUs of each node.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Fit the planner's constants to measured runs; 20 short ones do. Figures of the hardware are an A100's by default.

    It shows which constants the runs do not determine, and the error of predictions of other runs.
    """
    with progress("reading the runs") as show:
        from ..cluster.files.output_file import check_outputs
        from ..planner.calibration import calibrate as fit_profile
        from ..planner.calibration import read_runs
        from ..planner.hardware import MeasuredHardware, write_hardware
        from ..planner.report import print_calibration

        check_outputs({"--out": out}, {"RUNS": runs})
        measured = read_runs(runs)
        show(f"fitting to {measured.gpus.size} runs")
        on = MeasuredHardware(
            peak_flops=peak_flops, memory_bytes_per_s=memory_bandwidth, intra_bytes_per_s=intra_bandwidth,
            nic_bytes_per_s=nic_bandwidth, gpus_per_node=gpus_per_node,
        )  # fmt: skip
        profile = fit_profile(measured, on, name or runs.stem)
        if out is not None:
            write_hardware(out, profile)
    if as_json:
        typer.echo(profile.model_dump_json(indent=2))
        return
    print_calibration(console(), profile, measured)
    if out is not None:
        typer.echo(f"{out}: for `longshore plan find --hardware {out}`")


def measure(
    out: Annotated[Path, typer.Option(help="Write the profile of this machine here (YAML).")],
    ranks: Annotated[
        int, typer.Option(min=1, max=MAX_LOCAL_RANKS, help="Processes that plans may have, of one thread each.")
    ] = 4,
) -> None:
    """Measure this machine for plans without GPUs: layers, sums of gradients, and ranks that share cores.

    It takes half a minute. Let nothing else run meanwhile.
    """
    with progress(f"measuring {ranks} ranks"):
        from ..cluster.files.output_file import check_outputs
        from ..planner.execution.launching import measure_host
        from ..planner.hardware import write_hardware
        from ..planner.report import host_table

        check_outputs({"--out": out}, {})
        host = measure_host(ranks)
        write_hardware(out, host)
    console().print(host_table(host))
    error = host.accuracy.mean_error
    advice = "; another program may have disturbed it: measure again" if error > DISTURBED else ""
    typer.echo(f"\nThe error on layers outside of the fit is {error:.1%}{advice}.")
    typer.echo(f"{out}: for `longshore plan find --hardware {out}`")


def run(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan of `longshore plan find --out`.")],
    model: Annotated[str, typer.Argument(help="FILE.py:FUNCTION that returns (model, batch, loss, target).")],
    steps: Annotated[int, typer.Option(min=1, max=10**9, help="Iterations.")] = 20,
    schedule: ScheduleOption = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Of the initial weights.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Folder for the weights, stage-0.pt and so on.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; training continues from the newest.")
    ] = None,
    checkpoint_s: Annotated[
        float, typer.Option(min=0.0, max=1e9, help="Seconds between two checkpoints; the last step has one too.")
    ] = 600.0,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write losses and measured times here.")] = None,
    offload: OffloadOption = "never",
    offload_folder: Annotated[
        Path | None, typer.Option(help="Folder for offloaded state; default: that of temporary files.")
    ] = None,
    ranks_per_device: Annotated[
        int, typer.Option(min=1, max=64, help="Neighbours that take turns: one computes while others wait or sum.")
    ] = 1,
) -> None:
    """Train by a plan with processes on this machine, and show what was predicted beside what it took.

    On a cluster, submit a job of the same number of ranks with the command `python -m longshore.stage PLAN MODEL`.
    """
    from ..cluster.files.errors import InputError
    from ..cluster.files.output_file import check_outputs
    from ..planner.execution.launching import launch_ranks
    from ..planner.execution.plan_file import read_plan

    check_outputs({"--json": as_json}, {"PLAN": plan_file, "MODEL": _model_file(model)})
    plan = read_plan(plan_file)
    ranks, pipelines = plan.ranks, plan.pipeline > 1
    if ranks > MAX_LOCAL_RANKS:
        fix = f"submit a job of {ranks} GPUs with the command `python -m longshore.stage PLAN MODEL`"
        problem = f"the plan has {ranks} ranks, and this machine runs at most {MAX_LOCAL_RANKS}"
        raise InputError(problem, fix, field="PLAN")
    typer.echo(f"{ranks} processes, one thread each")
    options = {
        "--steps": steps, "--schedule": schedule, "--seed": seed, "--save": save, "--json": as_json,
        "--checkpoints": checkpoints, "--checkpoint-s": checkpoint_s,
        "--offload": offload, "--offload-folder": offload_folder,
        "--ranks-per-device": ranks_per_device,
    }  # fmt: skip
    given = [str(part) for name, value in options.items() if value is not None for part in (name, value)]
    launch_ranks(ranks, [str(plan_file), model, *given], pipelines=pipelines)
