"""`longshore train` and `longshore tune`."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..cluster.files.errors import InputError
from ..cluster.files.output_file import in_one_line
from ..cluster.files.plugins import registered
from ..cluster.files.signals import BY_SIGNAL
from ..cluster.model.orders import ORDER_REGIMES
from .options import AgeingOption, ClusterOption, FaultsOption, ObjectiveOption, OracleOption, TurnsOption, in_words
from .progress import compile_first, progress, training_progress

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..training.config import TrainingConfig
    from ..training.run import TrainingResult
    from ..training.run_folder import OnProgress
    from ..training.tuning import StudyState, TrialRunner

PresetOption = Annotated[
    str | None,
    typer.Option(
        help="traces (with --trace; then the default), hetero64 (else the default), hetero64-stream, history, philly, "
        "itp; patent4 and patent64 (the patent's method to the letter), patent4-ours and patent64-ours (our variant)."
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        help="ppo, a2c (both with masks), group (group-relative policy gradient), or distil (rollouts). "
        "Default: group with traces, else ppo."
    ),
]
TracesOption = Annotated[
    list[Path] | None,
    typer.Option("--trace", help="Job trace, any format of `longshore trace`; repeatable."),
]
HistoryOption = Annotated[
    Path | None,
    typer.Option("--history", help="Decisions of a live scheduler, as `longshore store decisions` writes them."),
]
OnlineOption = Annotated[
    Path | None,
    typer.Option(
        "--online",
        metavar="POLICY",
        help="Continue in rounds as the history grows; better ones replace this policy file, which a scheduler serves.",
    ),
]
OrdersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--order",
        metavar="NAME",
        help=f"Which waiting job may start next: {in_words(ORDER_REGIMES)}; several times to learn under several.",
    ),
]
LoadsOption = Annotated[
    list[float] | None,
    typer.Option(
        "--load", min=0.01, max=100.0, help="Offered load of the windows of traces; several times for several."
    ),
]
KnownOption = Annotated[
    str | None, typer.Option("--estimates", help="What is known of run times: exact, log-normal, class-mean, or mixed.")
]
MayWaitOption = Annotated[
    bool | None, typer.Option("--waiting/--no-waiting", help="Let policies wait for better GPUs; with traces they may.")
]
StepsOption = Annotated[
    float | None, typer.Option(min=1, help="Environment steps, default 2e6; distil: labelled decisions, 1.75e5.")
]
WeightSeedOption = Annotated[int, typer.Option(min=0, max=999_999, help="Of weights, scenarios and sampling.")]
LogdirOption = Annotated[Path, typer.Option(help="Where the run's folder goes; TensorBoard reads it.")]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"What scores the actions: {in_words(registered('networks'))} (docs/training.md); default: the preset's "
        "own.",
    ),
]
ActionOption = Annotated[
    str | None, typer.Option(help="node, gpu, or candidate (a whole placement): what one step picks; group: candidate.")
]
ObservationOption = Annotated[
    str | None,
    typer.Option(
        help="full; with gpu actions also patent-literal (the patent's n, t and s, of the whole job at each pick) or "
        "patent (the same of what is left of the job). The preset's own if omitted."
    ),
]
RewardOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"What a step pays: {in_words(registered('rewards'))} (docs/environments.md); default: the preset's own.",
    ),
]
ReplayOption = Annotated[
    str | None,
    typer.Option(
        help="Whether updates learn from earlier samples, too. off; the patent's, which is unsound: literal (of the "
        "buffer the number of samples in the periods that have just ended), literal-all (all of the buffer) or dynamic "
        "(our variant: the number of a rollout, from the last rollouts); sound: geppo (ppo), vtrace (a2c). "
        "The preset's own if omitted."
    ),
]
BufferOption = Annotated[
    int | None,
    typer.Option(
        "--buffer",
        min=1,
        max=10**9,
        metavar="SAMPLES",
        help="Samples that replay keeps; when it is full, the oldest fall out (with literal and literal-all one by "
        "one, else as whole rollouts). Four rollouts (geppo: three) if omitted.",
    ),
]
EnvironmentsOption = Annotated[
    int | None,
    typer.Option(
        "--environments",
        min=1,
        max=16_384,
        help="Clusters that ppo and a2c run side by side; a rollout is 128 steps of each (a2c: 16, geppo: 64). "
        "The preset's own if omitted: 512, patent4 64 (a2c: 128), patent64 128 (a2c: 256).",
    ),
]
RandomRunsOption = Annotated[
    int | None,
    typer.Option(
        "--random-runs",
        min=1,
        max=1000,
        metavar="N",
        help="The reward best_of_random compares each workload with the best of N random runs of it; 5 if omitted.",
    ),
]
InitOption = Annotated[
    Path | None,
    typer.Option(help="Policy file to begin with; group and distil take one of the network candidates."),
]
ParametersOption = Annotated[
    Path | None, typer.Option(help="Hyper-parameters (YAML or JSON), as `longshore tune` writes them.")
]
ThreadsOption = Annotated[int, typer.Option(min=1, max=1024, help="Cores that learning takes; results are the same.")]


def train(
    trace: TracesOption = None,
    history: HistoryOption = None,
    online: OnlineOption = None,
    cluster: ClusterOption = None,
    faults: FaultsOption = None,
    order: OrdersOption = None,
    ageing: AgeingOption = None,
    load: LoadsOption = None,
    estimates: KnownOption = None,
    init: InitOption = None,
    parameters: ParametersOption = None,
    objective: ObjectiveOption = None,
    preset: PresetOption = None,
    algo: AlgorithmOption = None,
    steps: StepsOption = None,
    seed: WeightSeedOption = 0,
    logdir: LogdirOption = Path("runs"),
    network: NetworkOption = None,
    action: ActionOption = None,
    observation: ObservationOption = None,
    reward: RewardOption = None,
    random_runs: RandomRunsOption = None,
    replay: ReplayOption = None,
    buffer: BufferOption = None,
    environments: EnvironmentsOption = None,
    waiting: MayWaitOption = None,
    oracle: OracleOption = False,
    turns: TurnsOption = True,
    threads: ThreadsOption = 2,
) -> None:
    """Train a policy. The same command continues an interrupted run; Ctrl-C and SIGTERM lose nothing."""
    with progress("starting"):
        from ..training.config import config_of, with_numbers, with_objective, with_parameter_file
        from ..training.rehearsals import rehearsals_for
        from ..training.run import learn, open_run

    beginning = _initial_checkpoint(init, online, history, objective)
    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=network, action=action,
        observation=observation, reward=reward, waiting=waiting, traces=trace or (), cluster=cluster, faults=faults,
        loads=load or (), estimates=estimates, threads=threads, orders=order or (), history=history,
        ageing_h=math.inf if ageing is None else ageing / 3600.0, replay=replay, init=beginning, oracle=oracle,
        turns=turns,
    )  # fmt: skip
    config = with_numbers(config, random_runs=random_runs, buffer=buffer, environments=environments)
    config = config if parameters is None else with_parameter_file(config, parameters)
    config = config if objective is None else with_objective(config, objective)
    if online is not None:
        _learn_online(config, online, logdir)
    with progress("drawing workloads"):
        run = open_run(config, logdir)
    compile_first(rehearsals_for(config.algorithm))
    with training_progress(config.steps) as show:
        result = learn(run, show)
    _print_result(result, logdir, config)


def _initial_checkpoint(
    init: Path | None, online: Path | None, history: Path | None, objective: str | None
) -> Path | None:
    """Return the checkpoint to begin with, which is the one that is served where there is one.

    Raises:
        InputError: If options do not go together.
    """
    if online is None:
        return init
    if history is None:
        raise InputError("it learns from a live scheduler's decisions", "give --history", field="--online")
    if objective is not None:
        raise InputError("rounds are judged by the mean JCT", "omit it", field="--objective")
    if init is not None:
        raise InputError("each round begins with the policy that is served", "omit it", field="--init")
    return online


def _learn_online(config: "TrainingConfig", served: Path, logdir: Path) -> NoReturn:
    from ..training.online import learn_online
    from ..training.rehearsals import rehearsals_for

    def showing() -> "AbstractContextManager[OnProgress]":
        compile_first(rehearsals_for(config.algorithm))
        return training_progress(config.steps)

    learned = learn_online(config, served, logdir, showing, _print_training_line)
    raise typer.Exit(BY_SIGNAL + learned.interrupted_by)


def _print_training_line(line: str) -> None:
    typer.echo(in_one_line(line))


def _print_result(result: "TrainingResult", logdir: Path, config: "TrainingConfig") -> None:
    """Print how a run ended; after an interruption, exit with the status of the signal."""
    is_over = result.finished and not result.interrupted_by
    state = "trained" if is_over else "interrupted; the same command continues"
    typer.echo(
        f"{state}: {result.best}, {result.score.text} against "
        f"{result.rival} on {result.scenarios} validation workloads\nFigures: tensorboard --logdir {logdir}"
    )
    if result.later:
        from ..training.validation import MEAN_JCT, recommendation

        by, which = config.weighting or MEAN_JCT, "`patient`, tuned,"
        if config.weighting is not None:
            which += " and the best order and heuristic for it"
        title = f"{by.title[0].upper()}{by.title[1:]}"
        typer.echo(f"{title} against {which} on the last 30 % of the jobs, which training never saw:")
        for comparison in result.later:
            typer.echo(f"  {comparison.text}")
        typer.echo(recommendation(result.later, by))
    if not is_over:
        raise typer.Exit(BY_SIGNAL + result.interrupted_by)


TrialsOption = Annotated[int, typer.Option(min=1, max=10_000, help="Training runs in all; a larger number continues.")]
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
    """Search for better hyper-parameters of `longshore train`. The same command continues after Ctrl-C or SIGTERM."""
    with progress("starting"):
        from ..training.config import config_of, with_objective
        from ..training.rehearsals import rehearsals_for
        from ..training.tuning import tune as search

    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=None, action=None, observation=None,
        reward=None, waiting=waiting, traces=trace or (), cluster=cluster, faults=faults, threads=1,
        orders=order or (),
    )  # fmt: skip
    config = config if objective is None else with_objective(config, objective)
    # Those that ran elsewhere, too, find the files by these paths.
    config = config.model_copy(update=_absolute_paths(config.traces, config.cluster, config.faults))

    def runner() -> "TrialRunner":
        if ray is None:  # else it is compiled where the trials run
            compile_first(rehearsals_for(config.algorithm))
        return _trial_runner(ray, jobs)

    tuned = search(config, logdir.absolute(), runner, _print_tuning_line, trials=trials, jobs=jobs)
    for line in _trial_lines(tuned):
        typer.echo(line)
    chosen = {"--preset": preset, "--algo": algo, "--steps": steps, "--cluster": cluster, "--faults": faults}
    chosen |= {"--objective": objective, "--seed": seed or None, "--logdir": None if logdir == Path("runs") else logdir}
    words = ["longshore", "train", *(word for path in trace or () for word in ("--trace", str(path)))]
    words += [word for option, value in chosen.items() if value is not None for word in (option, str(value))]
    words += [word for name in order or () for word in ("--order", name)]
    words += [] if waiting is None else ["--waiting" if waiting else "--no-waiting"]
    if tuned.best is not None:
        typer.echo(f"Use them by: {shlex.join([*words, '--parameters', str(tuned.parameter_file)])}")
    if not tuned.finished:
        typer.echo("interrupted; the same command continues")
        raise typer.Exit(BY_SIGNAL + tuned.interrupted_by)


def _absolute_paths(traces: tuple[str, ...], cluster: str | None, faults: str | None) -> dict[str, object]:
    found: dict[str, object] = {"traces": tuple(str(Path(path).absolute()) for path in traces)}
    return found | {
        name: None if path is None else str(Path(path).absolute())
        for name, path in (("cluster", cluster), ("faults", faults))
    }


def _trial_runner(ray: str | None, jobs: int) -> "TrialRunner":
    from ..training.tuning import ProcessTrialRunner, RayTrialRunner

    return ProcessTrialRunner(jobs) if ray is None else RayTrialRunner(ray)


def _print_tuning_line(line: str) -> None:
    typer.echo(in_one_line(line), err=True)


def _trial_lines(tuned: "StudyState") -> list[str]:
    """Return a line for each trial, and what is the best."""
    from ..training.tuning import parameters_text

    lines = ["trial  state     validation  hyper-parameters"]
    for trial in tuned.trials:
        percent = "" if trial.percent is None else f"{trial.percent:+.2f} %"
        lines.append(f"{trial.number:5d}  {trial.state:8}  {percent:>10}  {parameters_text(trial.parameters)}")
    if tuned.best is None:
        return [*lines, "no trial has finished"]
    best = tuned.best
    return [*lines, f"The best is trial {best.number}: {parameters_text(best.parameters)}", f"Its run: {best.folder}"]
