"""`longshore tune`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..cluster.files.output_file import in_one_line
from ..cluster.files.unwinding import BY_SIGNAL
from .options import ClusterOption, FaultsOption, ObjectiveOption
from .progress import compile_first, progress
from .training import (
    AlgorithmOption,
    LogdirOption,
    MayWaitOption,
    OrdersOption,
    PresetOption,
    StepsOption,
    TracesOption,
    WeightSeedOption,
)

if TYPE_CHECKING:
    from ..training.tuning import Crew, Tuned

TrialsOption = Annotated[int, typer.Option(min=1, max=10_000, help="Training runs in all; a larger number goes on.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Trials at once, each on one core.")]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run trials on this Ray cluster, HOST:PORT; all its nodes must have Longshore, the files and --logdir.",
    ),
]


def tune(
    trace: TracesOption = None,
    cluster: ClusterOption = None,
    faults: FaultsOption = None,
    order: OrdersOption = None,
    preset: PresetOption = None,
    algo: AlgorithmOption = None,
    steps: StepsOption = None,
    seed: WeightSeedOption = 0,
    waiting: MayWaitOption = None,
    objective: ObjectiveOption = None,
    logdir: LogdirOption = Path("runs"),
    trials: TrialsOption = 20,
    jobs: JobsOption = 1,
    ray: RayOption = None,
) -> None:
    """Search for better hyper-parameters of `longshore train`. The same command goes on after Ctrl-C or SIGTERM."""
    with progress("starting"):
        from ..training.config import config_of, with_objective
        from ..training.run import rehearsals_for
        from ..training.tuning import tune as search

    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=None, action=None, observation=None,
        reward=None, waiting=waiting, traces=trace or (), cluster=cluster, faults=faults, threads=1,
        orders=order or (),
    )  # fmt: skip
    config = config if objective is None else with_objective(config, objective)
    # Those that ran elsewhere, too, find the files by these paths.
    config = config.model_copy(update=_absolute(config.traces, config.cluster, config.faults))

    def crew() -> "Crew":
        if ray is None:  # else it is compiled where the trials run
            compile_first(rehearsals_for(config.algorithm))
        return _crew(ray, jobs)

    tuned = search(config, logdir.absolute(), crew, _say, trials=trials, jobs=jobs)
    for line in _table(tuned):
        typer.echo(line)
    chosen = {"--preset": preset, "--algo": algo, "--steps": steps, "--cluster": cluster, "--faults": faults}
    chosen |= {"--objective": objective}
    words = ["longshore", "train", *(word for path in trace or () for word in ("--trace", str(path)))]
    words += [word for option, value in chosen.items() if value is not None for word in (option, str(value))]
    words += [word for name in order or () for word in ("--order", name)]
    words += [] if waiting is None else ["--waiting" if waiting else "--no-waiting"]
    if tuned.best is not None:
        typer.echo(f"Use them by: {shlex.join([*words, '--parameters', str(tuned.parameters)])}")
    if not tuned.finished:
        typer.echo("interrupted; the same command goes on")
        raise typer.Exit(BY_SIGNAL + tuned.interrupted_by)


def _absolute(traces: tuple[str, ...], cluster: str | None, faults: str | None) -> dict[str, object]:
    found: dict[str, object] = {"traces": tuple(str(Path(path).absolute()) for path in traces)}
    return found | {
        name: None if path is None else str(Path(path).absolute())
        for name, path in (("cluster", cluster), ("faults", faults))
    }


def _crew(ray: str | None, jobs: int) -> "Crew":
    from ..training.tuning import Processes, RayTasks

    return Processes(jobs) if ray is None else RayTasks(ray)


def _say(line: str) -> None:
    typer.echo(in_one_line(line), err=True)


def _table(tuned: "Tuned") -> list[str]:
    """Return a line for each trial, and what is the best."""
    from ..training.tuning import text_of

    lines = ["trial  state     validation  hyper-parameters"]
    for it in tuned.trials:
        percent = "" if it.percent is None else f"{it.percent:+.2f} %"
        lines.append(f"{it.number:5d}  {it.state:8}  {percent:>10}  {text_of(it.parameters)}")
    if tuned.best is None:
        return [*lines, "no trial has finished"]
    best = tuned.best
    return [*lines, f"The best is trial {best.number}: {text_of(best.parameters)}", f"Its run: {best.folder}"]
