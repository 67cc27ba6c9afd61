"""`longshore trace`: list, download, plan, inspect, convert, sample."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import MAX_GPUS, LoadOption, MaxGpusOption, SeedOption, SigmaOption, refuse_nan
from .progress import console, download_progress, progress

if TYPE_CHECKING:
    from ..cluster.traces.download import PublicTrace

CatalogueOption = Annotated[
    Path | None, typer.Option(help="Another table of traces (docs/formats.md), such as your group's own.")
]


def list_traces(catalogue: CatalogueOption = None) -> None:
    """List the public traces that can be downloaded."""
    from rich.table import Table

    from ..cluster.traces.download import OURS, read_catalogue

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("name", "bytes", "licence", "good for"):
        table.add_column(title, justify="right" if title == "bytes" else "left", no_wrap=title in ("name", "bytes"))
    for trace in read_catalogue(catalogue or OURS).values():
        table.add_row(trace.name, f"{trace.size_bytes:,}" if trace.size_bytes else "?", trace.licence, trace.good_for)
    console().print(table)


def download_trace(
    name: Annotated[str | None, typer.Argument(help="Name of a trace; default: list all.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, or folder for an archive; or where to put it.")
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(envvar="LONGSHORE_MIRROR", help="Base URL instead of https://raw.githubusercontent.com."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=3600.0, callback=refuse_nan, help="Seconds without data after which it gives up."),
    ] = 30.0,
    catalogue: CatalogueOption = None,
) -> None:
    """Download a public trace: one fixed version, checked by its SHA-256.

    An interrupted download continues. An existing file is only checked.
    """
    if name is None:
        list_traces(catalogue)
        return
    from ..cluster.traces.download import MIRROR, OURS, download, read_catalogue, target_of, trace_named

    trace = trace_named(name, read_catalogue(catalogue or OURS))
    target = target_of(trace, output)
    typer.echo(f"{trace.name}: {trace.good_for}")
    typer.echo(f"licence: {trace.licence}")
    typer.echo(f"from: https://github.com/{trace.repository}, {trace.path} at {trace.commit}")
    with download_progress(trace.name) as show:
        new = download(trace, target, mirror=mirror or MIRROR, timeout_s=timeout, report=show)
    typer.echo(f"{target}: {'downloaded' if new else 'already there'}, SHA-256 checked")
    _print_files(trace, target)


def _print_files(trace: "PublicTrace", target: Path) -> None:
    if trace.members is not None:
        files = sorted(path.name for path in target.glob(trace.members))
        typer.echo(f"files: {', '.join(files)}")


def plan_trace(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write.")],
    models: Annotated[Path, typer.Option(help="Decoders (YAML; examples/plan/models.yaml).")],
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/) that plans are for.")],
    hardware: Annotated[
        Path | None, typer.Option(help="Profile of `longshore plan calibrate`; default: an A100's.")
    ] = None,
    max_gpus: MaxGpusOption = None,
    seed: SeedOption = 0,
) -> None:
    """Give each job of a trace a model and the plans by which it may be trained.

    Traces have no models: one is drawn for each job among those that fit its GPUs and its time. Jobs with more GPUs
    than 3/4 of the cluster are cut to that, or to --max-gpus.
    """
    with progress("reading the input") as show:
        from ..cluster.files.errors import InputError
        from ..cluster.files.output_file import check_csv, check_outputs
        from ..cluster.model.workload import with_gpus_cut
        from ..cluster.presets.cluster_file import read_cluster
        from ..cluster.traces.read import read_trace
        from ..cluster.traces.write import write_trace
        from ..planner.hardware import DEFAULT, read_gpu_hardware
        from ..planner.jobs import PlanTables, attach_plans, read_models

        check_csv("OUTPUT", output)
        read = {"FILE": file, "--models": models, "--cluster": cluster, "--hardware": hardware}
        check_outputs({"OUTPUT": output}, read)
        setup, decoders = read_cluster(cluster), read_models(models)
        if not setup.rules.ring:
            problem = f"{cluster} has the simple model of run times, which knows no links"
            raise InputError(problem, "write run_time: {model: ring} there", field="--cluster")
        profile = DEFAULT if hardware is None else read_gpu_hardware(hardware)
        most = max_gpus or max(1, setup.cluster.gpu_node.size * 3 // 4)
        jobs = with_gpus_cut(read_trace(file), most)
        show(f"planning {jobs.jobs} jobs")
        workload, count = attach_plans(jobs, decoders, PlanTables(setup, profile, most), seed)
        write_trace(workload, output)
    typer.echo(f"{output}: {jobs.jobs} jobs, {jobs.jobs - count['']} with plans")
    for decoder in decoders:
        if count[decoder.name]:
            typer.echo(f"  {count[decoder.name]} train {decoder.name}")
    if count[""]:
        why = "too short for any model, no batch is split over their GPUs, or no type has enough"
        typer.echo(f"  {count['']} have no plan: {why}")


FormatOption = Annotated[str | None, typer.Option("--format", help="Its format; default: detected.")]


def inspect_trace(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    trace_format: FormatOption = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=MAX_GPUS, help="Also show the load on that many GPUs.")] = None,
    estimates: Annotated[
        bool, typer.Option("--estimates", help="Also show how far each kind of run-time estimate is off.")
    ] = False,
    sigma: SigmaOption = 0.5,
    seed: SeedOption = 0,
) -> None:
    """Show the statistics of a trace."""
    from ..cluster.model.workload import describe
    from ..cluster.presets.problems import Stream, stream
    from ..cluster.traces.read import detect_format, format_description, read_trace
    from ..cluster.workloads.estimates import estimate_errors
    from ..eval.table import print_estimate_errors, print_trace_statistics

    name = trace_format or detect_format(file)
    workload = read_trace(file, trace_format=name)
    print_trace_statistics(console(), format_description(name), describe(workload), gpus)
    if estimates:
        print_estimate_errors(console(), estimate_errors(workload, sigma, stream(seed, Stream.ESTIMATES)))


def convert_trace(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write (docs/formats.md).")],
    trace_format: FormatOption = None,
) -> None:
    """Write a trace in Longshore's own format, which every command reads."""
    from ..cluster.files.output_file import check_csv, check_outputs
    from ..cluster.traces.read import read_trace
    from ..cluster.traces.write import write_trace

    check_csv("OUTPUT", output)
    check_outputs({"OUTPUT": output}, {"FILE": file})
    workload = read_trace(file, trace_format=trace_format)
    write_trace(workload, output)
    typer.echo(f"{output}: {workload.jobs} jobs ({workload.left_out} rows omitted)")


def sample_trace(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write.")],
    jobs: Annotated[int, typer.Option(min=1, help="Consecutive jobs of the window.")] = 96,
    first: Annotated[float, typer.Option(min=0.0, max=1.0, help="Take it after this share of the trace.")] = 0.0,
    last: Annotated[float, typer.Option(min=0.0, max=1.0, help="Take it before this share of the trace.")] = 1.0,
    load: LoadOption = None,
    gpus: Annotated[int, typer.Option(min=1, max=MAX_GPUS, help="GPUs that the load is offered to.")] = 64,
    max_gpus: MaxGpusOption = None,
    trace_format: FormatOption = None,
    seed: SeedOption = 0,
) -> None:
    """Write a window of consecutive jobs."""
    import numpy as np

    from ..cluster.files.output_file import check_csv, check_outputs
    from ..cluster.model.workload import sample_windows
    from ..cluster.traces.read import read_trace
    from ..cluster.traces.write import write_trace

    check_csv("OUTPUT", output)
    check_outputs({"OUTPUT": output}, {"FILE": file})
    rng = np.random.default_rng(seed)
    window = sample_windows(
        read_trace(file, trace_format=trace_format), jobs, 1, rng, first=first, last=last, max_gpus=max_gpus, load=load,
        cluster_gpus=gpus,
    )[0]  # fmt: skip
    write_trace(window, output)
    typer.echo(f"{output}: {window.jobs} jobs over {window.submit_s[-1] / 3600:.1f} h")
