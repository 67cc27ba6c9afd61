"""`longshore trace`."""

from pathlib import Path
from typing import Annotated

import typer

from .downloading import download_trace, list_traces
from .options import MOST_GPUS, LoadOption, MaxGpusOption, SeedOption, SigmaOption
from .progress import console
from .trace_planning import PLAN_EXAMPLE, plan_trace

app = typer.Typer(no_args_is_help=True, help="Look at job traces, convert them, sample them, and download public ones.")
app.command("plan", epilog=PLAN_EXAMPLE)(plan_trace)
app.command("list", epilog="Example: longshore trace list")(list_traces)
app.command("download", epilog="Example: longshore trace download philly_vc_2869ce")(download_trace)

FormatOption = Annotated[str | None, typer.Option("--format", help="Its format, if it is not to be found out.")]


@app.command(epilog="Example: longshore trace inspect jobs.csv --gpus 64")
def inspect(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    trace_format: FormatOption = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=MOST_GPUS, help="Also show the load on so many GPUs.")] = None,
    estimates: Annotated[
        bool, typer.Option("--estimates", help="Also show how far each kind of run-time estimate is off.")
    ] = False,
    sigma: SigmaOption = 0.5,
    seed: SeedOption = 0,
) -> None:
    """Show the statistics of a trace."""
    from ..cluster.presets.streams import Stream, stream
    from ..cluster.traces.detect import detect_format, format_words, read_trace
    from ..cluster.traces.statistics import describe
    from ..cluster.workloads.estimates import estimate_errors
    from ..eval.table import print_errors, print_trace

    name = trace_format or detect_format(file)
    workload = read_trace(file, trace_format=name)
    print_trace(console(), format_words(name), describe(workload), gpus)
    if estimates:
        print_errors(console(), estimate_errors(workload, sigma, stream(seed, Stream.ESTIMATES)))


@app.command(epilog="Example: longshore trace convert jobs.swf jobs.csv")
def convert(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write (docs/formats.md).")],
    trace_format: FormatOption = None,
) -> None:
    """Write a trace in Longshore's own format, which every command reads."""
    from ..cluster.files.output_file import check_csv, check_outputs
    from ..cluster.traces.detect import read_trace
    from ..cluster.traces.statistics import write_trace

    check_csv("OUTPUT", output)
    check_outputs({"OUTPUT": output}, {"FILE": file})
    workload = read_trace(file, trace_format=trace_format)
    write_trace(workload, output)
    typer.echo(f"{output}: {workload.jobs} jobs ({workload.left_out} rows left out)")


@app.command(epilog="Example: longshore trace sample jobs.csv window.csv --jobs 96 --load 0.8")
def sample(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write.")],
    jobs: Annotated[int, typer.Option(min=1, help="Consecutive jobs of the window.")] = 96,
    first: Annotated[float, typer.Option(min=0.0, max=1.0, help="Take it after this share of the trace.")] = 0.0,
    last: Annotated[float, typer.Option(min=0.0, max=1.0, help="Take it before this share of the trace.")] = 1.0,
    load: LoadOption = None,
    gpus: Annotated[int, typer.Option(min=1, max=MOST_GPUS, help="GPUs that the load is offered to.")] = 64,
    max_gpus: MaxGpusOption = None,
    trace_format: FormatOption = None,
    seed: SeedOption = 0,
) -> None:
    """Write a window of consecutive jobs."""
    import numpy as np

    from ..cluster.files.output_file import check_csv, check_outputs
    from ..cluster.traces.detect import read_trace
    from ..cluster.traces.statistics import write_trace
    from ..cluster.workloads.windows import sample_windows

    check_csv("OUTPUT", output)
    check_outputs({"OUTPUT": output}, {"FILE": file})
    rng = np.random.default_rng(seed)
    window = sample_windows(
        read_trace(file, trace_format=trace_format), jobs, 1, rng, first=first, last=last, max_gpus=max_gpus, load=load,
        cluster_gpus=gpus,
    )[0]  # fmt: skip
    write_trace(window, output)
    typer.echo(f"{output}: {window.jobs} jobs over {window.submit_s[-1] / 3600:.1f} h")
