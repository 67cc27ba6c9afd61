"""The command line. Heavy modules are imported by the command that needs them, so that --help is instant."""

import io
import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cluster.errors import LongshoreError, PluginError
from .scheduler.commands.adding import add_commands

if TYPE_CHECKING:
    from rich.console import Console

    from .envs.problems import Regime
    from .training.keeper import Progress as Stand

PIPE_COLUMNS = 160  # of output that goes to no terminal: wide enough for every table in one piece
MOST_GPUS = 1_000_000  # as in cluster files
FIRST_USE = "starting (the first use compiles for half a minute)"
INTERRUPTED = 130  # exit status after Ctrl-C, as of a shell

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Place deep-learning training jobs on the GPUs of shared, mixed, fault-prone clusters.",
)
trace_app = typer.Typer(no_args_is_help=True, help="Look at job traces, convert them, and take samples.")
app.add_typer(trace_app, name="trace")
add_commands(app)


class Order(StrEnum):
    """Order regimes (docs/simulator.md)."""

    fifo = "fifo"
    easy = "easy"
    easy_shortest = "easy-shortest"
    shortest = "shortest"


class Estimates(StrEnum):
    """What policies know of run times (docs/clusters.md)."""

    exact = "exact"
    log_normal = "log-normal"
    class_mean = "class-mean"


class Arrivals(StrEnum):
    """How generated jobs arrive (docs/clusters.md)."""

    profile = "profile"
    poisson = "poisson"
    batch = "batch"


def _number(value: float | None) -> float | None:
    """Refuse what is no number: nan passes every bound."""
    if value is not None and value != value:
        raise typer.BadParameter("nan is no number")
    return value


ClusterOption = Annotated[Path | None, typer.Option("--cluster", help="Cluster file (YAML; see examples/).")]
TraceOption = Annotated[Path | None, typer.Option("--trace", help="Job trace, any format of `longshore trace`.")]
FaultsOption = Annotated[
    Path | None, typer.Option("--faults", help="Recorded faults (JSON), instead of the cluster file's fault model.")
]
OrderOption = Annotated[Order, typer.Option(help="Which waiting job may start next.")]
AgeingOption = Annotated[
    float,
    typer.Option(
        "--ageing-h", min=0.0, callback=_number, help="Hours after which a waiting job is overtaken by nobody."
    ),
]
WaitingOption = Annotated[bool, typer.Option("--waiting/--no-waiting", help="Let policies wait for better GPUs.")]
EstimatesOption = Annotated[
    Estimates | None,
    typer.Option(help="What policies know of run times; if left out, what the trace says, or else exact."),
]
ProfileOption = Annotated[
    str | None, typer.Option(help="Of generated jobs: philly (the default), philly-long, itp or itp-short.")
]
ArrivalsOption = Annotated[
    Arrivals | None, typer.Option(help="Of generated jobs; as in the profile, with bursts, if left out.")
]
SigmaOption = Annotated[float, typer.Option(min=0.0, max=5.0, callback=_number, help="Spread of log-normal estimates.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything that is drawn.")]
MaxGpusOption = Annotated[
    int | None, typer.Option(min=1, max=2**31 - 1, help="Cut jobs that ask more GPUs to so many.")
]
LoadOption = Annotated[
    float | None, typer.Option(min=0.01, max=100.0, callback=_number, help="Scale arrivals to this offered load.")
]
RivalsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A checkpoint (NAME.zip), a name from `longshore policies`, or rollout:NAME; may be given several times. "
        "All heuristics play too."
    ),
]
WorkloadsOption = Annotated[
    int | None,
    typer.Option(min=1, max=10**5, help="Workloads (200), or windows of the trace (24, or as many as share no job)."),
]
RunsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10**4,
        help="Draws of faults for each window (8; more if windows are few), or for each generated workload (1).",
    ),
]
ShareOfGpusOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=2**31 - 1,
        help="Cut jobs that ask more GPUs to so many: 3/4 of the cluster, 48 for windows without a cluster file.",
    ),
]
HeuristicsOption = Annotated[
    bool, typer.Option("--heuristics/--no-heuristics", help="All heuristics as rivals; else eft, if none is named.")
]


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"Longshore {version('longshore')}")
        raise typer.Exit


@app.callback()
def _longshore(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    del version  # its callback has shown it


@app.command()
def simulate(
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/).")],
    policy: Annotated[
        str, typer.Option(help="A name from `longshore policies`, or a checkpoint (NAME.zip), or rollout:NAME.")
    ] = "pack",
    trace: TraceOption = None,
    faults: FaultsOption = None,
    order: OrderOption = Order.fifo,
    ageing_h: AgeingOption = float("inf"),
    waiting: WaitingOption = False,
    estimates: EstimatesOption = None,
    sigma: SigmaOption = 0.5,
    profile: ProfileOption = None,
    arrivals: ArrivalsOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="Only the first so many jobs; 200 without a trace.")
    ] = None,
    load: LoadOption = None,
    max_gpus: MaxGpusOption = None,
    seed: SeedOption = 0,
    events: Annotated[Path | None, typer.Option(help="Write the schedule here (JSON lines).")] = None,
    jobs_out: Annotated[Path | None, typer.Option(help="Write the jobs here (JSON).")] = None,
    cluster_out: Annotated[Path | None, typer.Option(help="Write the cluster here (JSON).")] = None,
) -> None:
    """Run one workload under one policy, and write the schedule for others to check.

    Without a trace, jobs are generated like those of a Philly cluster at a load of 0.8.
    """
    with _progress(FIRST_USE):
        from .eval.generated import JobsRequest
        from .eval.simulate import SimulationRequest, simulate_request

    request = SimulationRequest(
        cluster=cluster, policy=policy, trace=trace, faults=faults, regime=_regime(order, ageing_h, waiting),
        estimates=estimates.value if estimates else None, sigma=sigma,
        drawn=JobsRequest(profile, arrivals.value if arrivals else None),
        jobs=jobs, load=load, max_gpus=max_gpus, seed=seed, events=events, jobs_out=jobs_out, cluster_out=cluster_out,
    )  # fmt: skip
    simulate_request(request, _console(), _progress)


@app.command()
def train(
    preset: Annotated[
        str, typer.Option(help="hetero64, source4, source64; or philly, itp (with --trace).")
    ] = "hetero64",
    algo: Annotated[
        str,
        typer.Option(help="ppo, a2c (both with masks), group (group-relative policy gradient), or distil (rollouts)."),
    ] = "ppo",
    steps: Annotated[
        float | None,
        typer.Option(min=1, help="Environment steps, 2e6 if left out; distil: decisions labelled, 1.75e5."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=999_999, help="Of weights, scenarios and sampling.")] = 0,
    logdir: Annotated[Path, typer.Option(help="Where the run's folder goes; TensorBoard reads it.")] = Path("runs"),
    network: Annotated[
        str | None,
        typer.Option(help="set (any cluster size), mlp (the source's five layers), or moves, for candidates."),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(help="node, gpu, or candidate (a whole placement): what one step picks; group: candidate."),
    ] = None,
    observation: Annotated[
        str | None, typer.Option(help="full, or source: [n, t, s] only, with gpu actions; the preset's own.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="potential, dt, jct or best_of_random; the preset's own if left out.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(help="off; dynamic (the source's, unsound); geppo (ppo only); vtrace (a2c only); the preset's."),
    ] = None,
    order: OrderOption = Order.fifo,
    ageing_h: AgeingOption = float("inf"),
    waiting: WaitingOption = False,
    trace: TraceOption = None,
    init: Annotated[
        Path | None, typer.Option(help="Checkpoint of the network moves to begin with; group and distil.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Cores that learning takes; results are the same.")] = 2,
) -> None:
    """Train a policy. The same command goes on where an interrupted run stopped; Ctrl-C keeps everything."""
    with _progress(FIRST_USE):
        from .training.config import config_of
        from .training.run import train as run

    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=network, action=action,
        observation=observation, reward=reward, waiting=waiting, trace=trace, threads=threads,
        order=order.value, ageing_h=ageing_h, replay=replay, init=init,
    )  # fmt: skip
    with _training_progress(config.steps) as tell:
        result = run(config, logdir, tell)
    state = "trained" if result.finished else "interrupted; the same command goes on"
    typer.echo(
        f"{state}: {result.best}, {result.score.text} against "
        f"{result.rival} on {result.scenarios} validation workloads\nFigures: tensorboard --logdir {logdir}"
    )
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


@app.command()
def evaluate(
    policy: RivalsOption = None,
    trace: TraceOption = None,
    cluster: ClusterOption = None,
    faults: FaultsOption = None,
    order: OrderOption = Order.fifo,
    ageing_h: AgeingOption = float("inf"),
    waiting: WaitingOption = False,
    estimates: EstimatesOption = None,
    sigma: SigmaOption = 0.5,
    profile: ProfileOption = None,
    arrivals: ArrivalsOption = None,
    workloads: WorkloadsOption = None,
    runs: RunsOption = None,
    load: LoadOption = None,
    max_gpus: ShareOfGpusOption = None,
    seed: SeedOption = 2026,
    heuristics: HeuristicsOption = True,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write the report's figures as files into this folder.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the same figures here.")] = None,
) -> None:
    """Compare policies on the same workloads and faults.

    Without a trace and a cluster: the preset hetero64.

    With a trace: windows of 96 jobs from its last 30 %, at a load of 0.85.

    With a cluster file: its cluster and faults, generated jobs if no trace.
    """
    with _progress(FIRST_USE):
        from .eval.command import evaluate_request
        from .eval.generated import JobsRequest
        from .eval.setting import EvaluationRequest

    request = EvaluationRequest(
        policies=tuple(policy or ()), trace=trace, cluster=cluster, faults=faults,
        regime=_regime(order, ageing_h, waiting), workloads=workloads, runs=runs, load=load,
        max_gpus=max_gpus, estimates=estimates.value if estimates else None, sigma=sigma,
        drawn=JobsRequest(profile, arrivals.value if arrivals else None), seed=seed,
        heuristics=heuristics, report=report, pictures=pictures, json_out=json_out,
        command=shlex.join(["longshore", *sys.argv[1:]]), date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )  # fmt: skip
    evaluate_request(request, _console(), _progress)


@trace_app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    trace_format: Annotated[
        str | None, typer.Option("--format", help="Its format, if it is not to be guessed.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=MOST_GPUS, help="Also show the load on so many GPUs.")] = None,
) -> None:
    """Show the statistics of a trace."""
    from .cluster.trace_statistics import describe
    from .cluster.traces.detect import detect_format, read_trace
    from .eval.terminal import print_trace

    name = trace_format or detect_format(file)
    print_trace(_console(), name, describe(read_trace(file, trace_format=name)), gpus)


@trace_app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write (docs/formats.md).")],
    trace_format: Annotated[
        str | None, typer.Option("--format", help="Its format, if it is not to be guessed.")
    ] = None,
) -> None:
    """Write a trace in Longshore's own format, which every command reads."""
    from .cluster.output_file import check_csv, check_outputs
    from .cluster.trace_statistics import write_trace
    from .cluster.traces.detect import read_trace

    check_csv("OUTPUT", output)
    check_outputs({"OUTPUT": output}, {"FILE": file})
    workload = read_trace(file, trace_format=trace_format)
    write_trace(workload, output)
    typer.echo(f"{output}: {workload.jobs} jobs ({workload.left_out} rows left out)")


@trace_app.command()
def sample(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write.")],
    jobs: Annotated[int, typer.Option(min=1, help="Consecutive jobs of the window.")] = 96,
    first: Annotated[float, typer.Option(min=0.0, max=1.0, help="Take it after this share of the trace.")] = 0.0,
    last: Annotated[float, typer.Option(min=0.0, max=1.0, help="Take it before this share of the trace.")] = 1.0,
    load: LoadOption = None,
    gpus: Annotated[int, typer.Option(min=1, max=MOST_GPUS, help="GPUs that the load is offered to.")] = 64,
    max_gpus: MaxGpusOption = None,
    seed: SeedOption = 0,
) -> None:
    """Write a window of consecutive jobs."""
    import numpy as np

    from .cluster.output_file import check_csv, check_outputs
    from .cluster.trace_statistics import write_trace
    from .cluster.traces.detect import read_trace
    from .cluster.windows import sample_windows

    check_csv("OUTPUT", output)
    check_outputs({"OUTPUT": output}, {"FILE": file})
    rng = np.random.default_rng(seed)
    window = sample_windows(
        read_trace(file), jobs, 1, rng, first=first, last=last, max_gpus=max_gpus, load=load, cluster_gpus=gpus
    )[0]
    write_trace(window, output)
    typer.echo(f"{output}: {window.jobs} jobs over {window.submit_s[-1] / 3600:.1f} h")


@app.command()
def policies() -> None:
    """List the policies that can be named."""
    from .agents.registry import find_policy, policy_names

    for name in policy_names():
        try:
            found = find_policy(name)
        except PluginError as error:
            typer.echo(f"{name:16s} cannot be used: {error}")
        else:
            typer.echo(f"{name:16s} {found.about}{' (only with --waiting)' if found.waits else ''}")
    typer.echo("\nA learned policy is named by the path of its checkpoint (NAME.zip, as `longshore train` writes).")
    typer.echo("rollout:NAME tries the alternatives of any of them out in imagined futures before it decides;")
    typer.echo("rollout:NAME@20ms takes no more than so long for it; rollout:NAME.zip@h16 cuts futures off after so")
    typer.echo("many started jobs, where the checkpoint's value tells what is still to come; @20ms,h16 is both.")
    for path in sorted((Path(__file__).parent / "checkpoints").glob("*.zip")):
        typer.echo(f"Shipped: {path}")


def _regime(order: Order, ageing_h: float, waiting: bool) -> "Regime":
    from .envs.problems import Regime

    return Regime(order.value, ageing_h * 3600.0, waiting)


def _console() -> "Console":
    """Return standard output, in which names and paths are shown as they are."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=PIPE_COLUMNS)


@contextmanager
def _progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done: in a status line, or line by line where the output is no terminal."""
    from rich.text import Text

    console = _console()
    if console.is_terminal:
        with console.status(Text(f"{first} ...")) as status:
            yield lambda text: status.update(Text(f"{text} ..."))
    else:
        console.print(f"{first} ...")
        yield lambda text: console.print(f"{text} ...")


@contextmanager
def _training_progress(steps: int) -> Iterator[Callable[["Stand"], None]]:
    """Show how far training is: a bar, or a line for each update where the output is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, first = _console(), "compiling and playing the heuristics ..."
    if not console.is_terminal:
        console.print(first)
        yield lambda stand: console.print(f"{100 * min(1.0, stand.steps / steps):3.0f} %  {_stand_text(stand)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(first, total=steps)
        yield lambda stand: bar.update(task, completed=stand.steps, description=_stand_text(stand))


class _Warnings(logging.Handler):
    """Shows warnings on standard error as it is at the moment: a status line moves out of their way."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"longshore: warning: {record.getMessage()}", err=True)


def _stand_text(stand: "Stand") -> str:
    score = f", {stand.score.percent:+.1f} % against {stand.rival}" if stand.score else ""
    steps = f"{stand.steps / 1e6:.2f} M" if stand.steps >= 1e6 else f"{stand.steps:,}"
    return f"{steps} steps, {stand.steps_per_s:,.0f}/s{score}"


def main() -> None:
    """Run the command line; what the outside did wrong becomes one line and exit status 2."""
    logging.basicConfig(handlers=[_Warnings()], level=logging.WARNING, force=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII only shows a question mark
    try:
        app(prog_name="longshore")
    except LongshoreError as error:
        typer.echo(f"longshore: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
