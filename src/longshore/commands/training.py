"""`longshore train`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from .options import AgeingOption, OracleOption, OrderOption, TraceOption, WaitingOption, names
from .progress import INTERRUPTED, progress, training_progress

PresetOption = Annotated[str, typer.Option(help="hetero64, patent4, patent64; or philly, itp (with --trace).")]
AlgorithmOption = Annotated[
    str, typer.Option(help="ppo, a2c (both with masks), group (group-relative policy gradient), or distil (rollouts).")
]
StepsOption = Annotated[
    float | None, typer.Option(min=1, help="Environment steps, 2e6 if left out; distil: decisions labelled, 1.75e5.")
]
WeightSeedOption = Annotated[int, typer.Option(min=0, max=999_999, help="Of weights, scenarios and sampling.")]
LogdirOption = Annotated[Path, typer.Option(help="Where the run's folder goes; TensorBoard reads it.")]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"What scores the actions: {names('networks')} (docs/training.md); the preset's own if left out.",
    ),
]
ActionOption = Annotated[
    str | None, typer.Option(help="node, gpu, or candidate (a whole placement): what one step picks; group: candidate.")
]
ObservationOption = Annotated[
    str | None, typer.Option(help="full, or patent (n, t and s only) with gpu actions; the preset's own if left out.")
]
RewardOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"What a step pays: {names('rewards')} (docs/environments.md); the preset's own if left out.",
    ),
]
ReplayOption = Annotated[
    str | None,
    typer.Option(help="off; dynamic (the patent's, unsound); geppo (ppo only); vtrace (a2c only); the preset's."),
]
InitOption = Annotated[
    Path | None, typer.Option(help="Checkpoint of the network candidates to begin with; group and distil.")
]
ThreadsOption = Annotated[int, typer.Option(min=1, max=1024, help="Cores that learning takes; results are the same.")]


def train(
    preset: PresetOption = "hetero64",
    algo: AlgorithmOption = "ppo",
    steps: StepsOption = None,
    seed: WeightSeedOption = 0,
    logdir: LogdirOption = Path("runs"),
    network: NetworkOption = None,
    action: ActionOption = None,
    observation: ObservationOption = None,
    reward: RewardOption = None,
    replay: ReplayOption = None,
    order: OrderOption = "fifo",
    ageing: AgeingOption = None,
    waiting: WaitingOption = False,
    oracle: OracleOption = False,
    trace: TraceOption = None,
    init: InitOption = None,
    threads: ThreadsOption = 2,
) -> None:
    """Train a policy. The same command goes on where an interrupted run stopped; Ctrl-C keeps everything."""
    with progress("starting"):
        from ..training.config import config_of
        from ..training.run import train as run

    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=network, action=action,
        observation=observation, reward=reward, waiting=waiting, trace=trace, threads=threads,
        order=order, ageing_h=math.inf if ageing is None else ageing / 3600.0, replay=replay, init=init, oracle=oracle,
    )  # fmt: skip
    with training_progress(config.steps) as tell:
        result = run(config, logdir, tell)
    state = "trained" if result.finished else "interrupted; the same command goes on"
    typer.echo(
        f"{state}: {result.best}, {result.score.text} against "
        f"{result.rival} on {result.scenarios} validation workloads\nFigures: tensorboard --logdir {logdir}"
    )
    if not result.finished:
        raise typer.Exit(INTERRUPTED)
