"""`longshore train`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from .options import AgeingOption, Order, OrderOption, TraceOption, WaitingOption
from .progress import INTERRUPTED, progress, training_progress


def train(
    preset: Annotated[
        str, typer.Option(help="hetero64, patent4, patent64; or philly, itp (with --trace).")
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
        typer.Option(
            help="set (any cluster size), mlp (the patent's five layers), or candidates, for actions of that name."
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(help="node, gpu, or candidate (a whole placement): what one step picks; group: candidate."),
    ] = None,
    observation: Annotated[
        str | None,
        typer.Option(help="full, or patent (n, t and s only) with gpu actions; the preset's own if left out."),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="potential, dt, jct or best_of_random; the preset's own if left out.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(help="off; dynamic (the patent's, unsound); geppo (ppo only); vtrace (a2c only); the preset's."),
    ] = None,
    order: OrderOption = Order.fifo,
    ageing: AgeingOption = None,
    waiting: WaitingOption = False,
    trace: TraceOption = None,
    init: Annotated[
        Path | None, typer.Option(help="Checkpoint of the network candidates to begin with; group and distil.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Cores that learning takes; results are the same.")] = 2,
) -> None:
    """Train a policy. The same command goes on where an interrupted run stopped; Ctrl-C keeps everything."""
    with progress("starting"):
        from ..training.config import config_of
        from ..training.run import train as run

    config = config_of(
        preset=preset, algorithm=algo, steps=steps, seed=seed, network=network, action=action,
        observation=observation, reward=reward, waiting=waiting, trace=trace, threads=threads,
        order=order.value, ageing_h=math.inf if ageing is None else ageing / 3600.0, replay=replay, init=init,
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
