"""The command line. Heavy modules are imported by the command that needs them, so that --help is instant."""

import logging
import sys
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cluster.errors import InputError, LongshoreError

if TYPE_CHECKING:
    from rich.console import Console

    from .cluster.topology import Cluster
    from .cluster.workload import Workload
    from .envs.problems import Regime

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Place deep-learning training jobs on the GPUs of shared, mixed, fault-prone clusters.",
)
trace_app = typer.Typer(no_args_is_help=True, help="Look at job traces, convert them, and take samples.")
app.add_typer(trace_app, name="trace")


class Order(str, Enum):
    """Order regimes (docs/simulator.md)."""

    fifo = "fifo"
    easy = "easy"
    easy_shortest = "easy-shortest"
    shortest = "shortest"


class Estimates(str, Enum):
    """What policies know of run times (docs/clusters.md)."""

    exact = "exact"
    log_normal = "log-normal"
    class_mean = "class-mean"


ClusterOption = Annotated[Path | None, typer.Option("--cluster", help="Cluster file (YAML; see examples/).")]
TraceOption = Annotated[Path | None, typer.Option("--trace", help="Job trace, any format of `longshore trace`.")]
FaultsOption = Annotated[
    Path | None, typer.Option("--faults", help="Recorded faults (JSON), instead of the cluster file's fault model.")
]
OrderOption = Annotated[Order, typer.Option(help="Which waiting job may start next.")]
AgeingOption = Annotated[
    float, typer.Option("--ageing-h", min=0.0, help="Hours after which a waiting job is overtaken by nobody.")
]
WaitingOption = Annotated[bool, typer.Option("--waiting/--no-waiting", help="Let policies wait for better GPUs.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
MaxGpusOption = Annotated[int | None, typer.Option(min=1, help="Cut jobs that ask more GPUs to so many.")]


@app.command()
def simulate(
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/).")],
    policy: Annotated[str, typer.Option(help="A name from `longshore policies`, or a checkpoint (NAME.zip).")] = "pack",
    trace: TraceOption = None,
    faults: FaultsOption = None,
    order: OrderOption = Order.fifo,
    ageing_h: AgeingOption = float("inf"),
    waiting: WaitingOption = False,
    estimates: Annotated[Estimates, typer.Option(help="What policies know of run times.")] = Estimates.exact,
    sigma: Annotated[float, typer.Option(min=0.0, help="Spread of log-normal estimates.")] = 0.5,
    jobs: Annotated[int | None, typer.Option(min=1, help="Only the first so many jobs; 200 without a trace.")] = None,
    load: Annotated[float | None, typer.Option(min=0.01, help="Scale arrivals to this offered load.")] = None,
    max_gpus: MaxGpusOption = None,
    seed: SeedOption = 0,
    events: Annotated[Path | None, typer.Option(help="Write the schedule here (JSON lines).")] = None,
    jobs_out: Annotated[Path | None, typer.Option(help="Write the jobs here (JSON).")] = None,
    cluster_out: Annotated[Path | None, typer.Option(help="Write the cluster here (JSON).")] = None,
) -> None:
    """Run one workload under one policy, and write the schedule for others to check.

    Without a trace, jobs are generated like those of a Philly cluster at a load of 0.8.
    """
    import numpy as np

    from .agents.registry import find_policy
    from .cluster import schedule_file
    from .cluster.cluster_file import read_cluster
    from .cluster.estimates import with_estimates
    from .cluster.fault_trace import read_fault_trace
    from .cluster.topology import speed_sum
    from .cluster.windows import offered_load
    from .envs.problems import cluster_problem
    from .eval.play import play_recorded
    from .eval.terminal import print_run

    setup = read_cluster(cluster)
    chosen = find_policy(policy)
    workload = _workload(trace, jobs, load, max_gpus, seed, setup.cluster)
    workload = with_estimates(workload, estimates.value, sigma=sigma, rng=np.random.default_rng(seed))
    recorded = read_fault_trace(faults) if faults else None
    regime = _regime(order, ageing_h, waiting)
    problem = cluster_problem(setup, [workload], regime, runs=1, seed=seed, faults=recorded)
    offered = offered_load(workload, round(speed_sum(setup.cluster)))
    console = _console()
    console.print(f"{workload.jobs} jobs on {setup.cluster.gpu_node.size} GPUs under {chosen.name}")
    if np.isfinite(offered) and offered > 1.0:
        _warn(f"overload: the jobs arrive with {offered:.2f} times the work that the cluster can do; waits will grow")
    with console.status("simulating ..."):
        outcome, happened = play_recorded(problem, chosen, 0)
    if events:
        schedule_file.write_events(events, happened, workload.ids)
    if jobs_out:
        schedule_file.write_jobs(jobs_out, problem.scenarios, 0, workload.ids)
    if cluster_out:
        schedule_file.write_cluster(cluster_out, setup.cluster, problem.rules, problem.scenarios, 0)
    print_run(console, outcome, problem.scenarios, setup.cluster.gpu_node.size)
    if outcome.finished[0] < workload.jobs:
        raise InputError(
            f"{workload.jobs - outcome.finished[0]} of {workload.jobs} jobs had not ended after "
            f"{outcome.makespan_s[0] / 3600:.0f} h, and the simulation was cut off",
            "the load is too high, or faults are more frequent than checkpoints",
        )


def _workload(
    trace: Path | None, jobs: int | None, load: float | None, max_gpus: int | None, seed: int, cluster: "Cluster"
) -> "Workload":
    """Return the jobs of a trace, or generated ones."""
    import numpy as np

    from .cluster.generator import generate
    from .cluster.profiles import PROFILES
    from .cluster.topology import speed_sum
    from .cluster.traces.detect import read_trace
    from .cluster.windows import scaled_to_load, with_gpus_cut
    from .cluster.workload import first_jobs

    gpus, capacity = cluster.gpu_node.size, round(speed_sum(cluster))
    if trace is None:
        rng = np.random.default_rng(seed)
        workload = generate(PROFILES["philly"], jobs or 200, load=load or 0.8, cluster_gpus=capacity, rng=rng)
        return with_gpus_cut(workload, min(max_gpus or gpus, gpus))
    workload = first_jobs(read_trace(trace), jobs)
    if workload.left_out:
        _warn(f"{trace}: {workload.left_out} rows ask no GPU or never ran, and are left out")
    workload = with_gpus_cut(workload, max_gpus)
    return workload if load is None else scaled_to_load(workload, load, capacity)


@app.command()
def train(
    preset: Annotated[str, typer.Option(help="hetero64, philly or itp (the last two need --trace).")] = "hetero64",
    algo: Annotated[str, typer.Option(help="ppo: masked PPO.")] = "ppo",
    steps: Annotated[float, typer.Option(min=1, help="Environment steps, such as 2e6.")] = 4e6,
    seed: Annotated[int, typer.Option(min=0, max=999_999, help="Of weights, scenarios and sampling.")] = 0,
    logdir: Annotated[Path, typer.Option(help="Where the run's folder goes; TensorBoard reads it.")] = Path("runs"),
    network: Annotated[str, typer.Option(help="set (any cluster size) or mlp (the source's five layers).")] = "set",
    action: Annotated[str, typer.Option(help="node or gpu: what one step picks.")] = "node",
    observation: Annotated[str, typer.Option(help="full, or source: [n, t, s] only, with gpu actions.")] = "full",
    reward: Annotated[str | None, typer.Option(help="potential, dt or jct; the preset's own if left out.")] = None,
    waiting: WaitingOption = False,
    trace: TraceOption = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the network's arithmetic.")] = 2,
) -> None:
    """Train a policy. The same command goes on where an interrupted run stopped; Ctrl-C keeps everything."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from .training.config import config_of
    from .training.run import Progress as Stand
    from .training.run import train as run

    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=network, action=action,
        observation=observation, reward=reward, waiting=waiting, trace=trace, threads=threads,
    )  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=_console()) as bar:
        task = bar.add_task("compiling and playing the heuristics ...", total=config.steps)

        def tell(stand: Stand) -> None:
            score = f", {stand.score.percent:+.1f} % against {stand.rival}" if stand.score else ""
            text = f"{stand.steps / 1e6:.2f} M steps, {stand.steps_per_s:,.0f}/s{score}"
            bar.update(task, completed=stand.steps, description=text)

        result = run(config, logdir, tell)
    state = "trained" if result.finished else "interrupted; the same command goes on"
    typer.echo(
        f"{state}: {result.best}, {result.score.percent:+.2f} % (+- {result.score.half_width:.2f}) against "
        f"{result.rival} on {result.scenarios} validation workloads\nFigures: tensorboard --logdir {logdir}"
    )


@app.command()
def evaluate(
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A checkpoint or a name; may be given several times. All heuristics play too."),
    ] = None,
    trace: TraceOption = None,
    cluster: ClusterOption = None,
    faults: FaultsOption = None,
    order: OrderOption = Order.fifo,
    ageing_h: AgeingOption = float("inf"),
    waiting: WaitingOption = False,
    workloads: Annotated[int, typer.Option(min=1, help="Workloads, or windows of the trace.")] = 200,
    runs: Annotated[int | None, typer.Option(min=1, help="Fault draws for each window; 8 for traces.")] = None,
    load: Annotated[float | None, typer.Option(min=0.01, help="Offered load of windows; 0.85.")] = None,
    seed: SeedOption = 2026,
    heuristics: Annotated[bool, typer.Option("--heuristics/--no-heuristics", help="All heuristics as rivals.")] = True,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the same figures here.")] = None,
) -> None:
    """Compare policies on the same workloads and faults.

    Without a trace and a cluster: the preset hetero64. With a trace: windows of 96 jobs from its last 30 %. With a
    cluster file: its cluster and faults, and generated jobs if there is no trace.
    """
    from .eval.command import EvaluationRequest, evaluate_request

    request = EvaluationRequest(
        policies=tuple(policy or ()), trace=trace, cluster=cluster, faults=faults,
        regime=_regime(order, ageing_h, waiting), workloads=workloads, runs=runs, load=load, seed=seed,
        heuristics=heuristics, report=report, json_out=json_out,
        command="longshore " + " ".join(sys.argv[1:]), date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )  # fmt: skip
    evaluate_request(request, _console())


@trace_app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    trace_format: Annotated[
        str | None, typer.Option("--format", help="Its format, if it is not to be guessed.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Also show the load on so many GPUs.")] = None,
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
    from .cluster.trace_statistics import write_trace
    from .cluster.traces.detect import read_trace

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
    load: Annotated[float | None, typer.Option(min=0.01, help="Scale arrivals to this offered load.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that the load is offered to.")] = 64,
    max_gpus: MaxGpusOption = None,
    seed: SeedOption = 0,
) -> None:
    """Write a window of consecutive jobs."""
    import numpy as np

    from .cluster.trace_statistics import write_trace
    from .cluster.traces.detect import read_trace
    from .cluster.windows import sample_windows

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
        found = find_policy(name)
        note = " (needs --waiting to differ)" if found.waits else ""
        typer.echo(f"{name:16s} {found.about}{note}")
    typer.echo("\nA checkpoint (NAME.zip, as `longshore train` writes) is named by its path.")


def _regime(order: Order, ageing_h: float, waiting: bool) -> "Regime":
    from .envs.problems import Regime

    return Regime(order.value, ageing_h * 3600.0, waiting)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _warn(message: str) -> None:
    typer.echo(f"longshore: warning: {message}", err=True)


def main() -> None:
    """Run the command line; what the outside did wrong becomes one line and exit status 2."""
    logging.basicConfig(format="longshore: %(message)s", level=logging.WARNING)
    try:
        app()
    except LongshoreError as error:
        typer.echo(f"longshore: {error}", err=True)
        sys.exit(2)
