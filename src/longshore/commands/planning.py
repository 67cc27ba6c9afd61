"""`longshore plan`."""

from pathlib import Path
from typing import Annotated

import typer

from ..scheduler.commands.durations import DURATION, run_time
from .options import number
from .progress import console, progress

HardwareOption = Annotated[
    Path | None,
    typer.Option("--hardware", help="Hardware profile of `longshore planner calibrate`; that of an A100 if left out."),
]


def plan(
    model: Annotated[str, typer.Argument(help="FILE.py:FUNCTION that returns (model, batch), or a table FILE.csv.")],
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/).")],
    tokens: Annotated[
        float | None, typer.Option(min=1.0, max=1e18, callback=number, help="Tokens of the whole training, as in 1e9.")
    ] = None,
    samples: Annotated[
        float | None, typer.Option(min=1.0, max=1e15, callback=number, help="Samples of it, in place of tokens.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(parser=run_time, metavar=DURATION, help="Time for it, such as 24h; as fast as can be if left out."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=10**7, help="Samples of one iteration, on all GPUs together.")] = 256,
    gpus: Annotated[int | None, typer.Option(min=1, max=10**6, help="Use at most so many GPUs, fastest first.")] = None,
    hardware: HardwareOption = None,
    table: Annotated[bool, typer.Option("--table", help="Show every plan that was looked at.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    time_limit: Annotated[
        float, typer.Option(parser=run_time, metavar=DURATION, help="For the profile of the model.")
    ] = 120.0,
    memory_limit: Annotated[
        float, typer.Option(min=0.5, max=1e5, callback=number, help="For the profile of the model, in GiB.")
    ] = 8.0,
) -> None:
    """Find the fewest GPUs that train a model by a deadline, and how to use them: data, pipeline, tensor parallel.

    The model is built without its weights, in a process of its own.
    """
    if (tokens is None) == (samples is None):
        raise typer.BadParameter("give either --tokens or --samples")
    with progress("profiling the model") as tell:
        from ..planner.asking import Request, ask
        from ..planner.profile.profiling import Limits
        from ..planner.report.as_json import choice_json
        from ..planner.report.terminal import print_choice, print_table
        from ..planner.search.choosing import choose, every_plan

        limits = Limits(time_limit, memory_limit * 2**30)
        asked = ask(Request(model, cluster, hardware, deadline, tokens, samples, batch, gpus, limits))
        tell("looking for a plan")
        choice = choose(asked)
        rows = list(every_plan(asked)) if table else None
    if as_json:
        typer.echo(choice_json(asked, choice, rows))
        return
    print_choice(console(), asked, choice)
    if rows is not None:
        typer.echo()
        print_table(console(), asked, rows)
