"""Options that several commands take."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..cluster.files.input_problems import name_advice
from ..cluster.model.orders import ORDER_REGIMES
from ..scheduler.commands.options import DURATION, parse_duration

if TYPE_CHECKING:
    from ..cluster.presets.problems import Regime

MAX_GPUS = 1_000_000  # as in cluster files


def in_words(names: Iterable[str]) -> str:
    """Return names as a help text lists them."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def order_name(text: str) -> str:
    """Return the name of an order that an option takes.

    Raises:
        typer.BadParameter: If there is no such regime.
    """
    if text not in ORDER_REGIMES:
        raise typer.BadParameter(f"there is no order {text!r}; {name_advice(text, ORDER_REGIMES)}")
    return text


def refuse_nan(value: float | None) -> float | None:
    """Refuse nan, which passes every bound.

    Raises:
        typer.BadParameter: If it is nan.
    """
    if value is not None and value != value:
        raise typer.BadParameter("nan is no number")
    return value


ClusterOption = Annotated[Path | None, typer.Option("--cluster", help="Cluster file (YAML; see examples/).")]
TraceOption = Annotated[Path | None, typer.Option("--trace", help="Job trace, any format of `longshore trace`.")]
FaultsOption = Annotated[
    Path | None, typer.Option("--faults", help="Recorded faults (JSON), instead of the cluster file's fault model.")
]
OrderOption = Annotated[
    str,
    typer.Option(
        parser=order_name,
        metavar="NAME",
        help=f"Which waiting job may start next: {in_words(ORDER_REGIMES)}.",
    ),
]
AgeingOption = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration, metavar=DURATION,
        help="How long a waiting job may be overtaken, such as 72h; default: for ever.",
    ),
]  # fmt: skip
WaitingOption = Annotated[bool, typer.Option("--waiting/--no-waiting", help="Let policies wait for better GPUs.")]
EstimatesOption = Annotated[
    Literal["exact", "log-normal", "class-mean", "history"] | None,
    typer.Option(
        help="What policies know of run times: exact, with log-normal errors, the mean of ended jobs with the same "
        "number of GPUs (class-mean), or of those of the same user and name first (history). Default: those of the "
        "trace, or exact."
    ),
]
ProfileOption = Annotated[
    str | None, typer.Option(help="Of generated jobs: philly (the default), philly-long, itp or itp-short.")
]
ArrivalsOption = Annotated[
    Literal["profile", "poisson", "batch"] | None,
    typer.Option(help="Of generated jobs; default: as in the profile, with bursts."),
]
PlansOption = Annotated[
    Literal["fixed", "best", "offload"],
    typer.Option(
        help="By which plan a job runs that has some: the first one of the trace (fixed), or the one of the fewest "
        "GPUs that ends as soon and costs no more GPU-time (best), also if it puts state into host memory (offload)."
    ),
]
SigmaOption = Annotated[
    float, typer.Option(min=0.0, max=5.0, callback=refuse_nan, help="Spread of log-normal estimates.")
]
OracleOption = Annotated[
    bool,
    typer.Option("--oracle", help="Policies know the true fault rates; else they estimate them from faults so far."),
]
TurnsOption = Annotated[
    bool,
    typer.Option(
        "--turns/--no-turns",
        help="Users of the trace take turns in the queue, as under `serve`.",
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything that is drawn.")]
MaxGpusOption = Annotated[
    int | None, typer.Option(min=1, max=2**31 - 1, help="Cut larger jobs to this number of GPUs.")
]
LoadOption = Annotated[
    float | None, typer.Option(min=0.01, max=100.0, callback=refuse_nan, help="Scale arrivals to this offered load.")
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="What is to be least: mean-jct, p99-jct, slowdown (mean) or makespan; or several, as in "
        "mean-jct:2,slowdown (with the weights 2 and 1). Default: the makespan of a batch, else the mean JCT.",
    ),
]
RivalsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A policy file (NAME.zip), a name from `longshore policy list`, or rollout:NAME; repeatable. "
        "All heuristics run too."
    ),
]
WorkloadsOption = Annotated[
    int | None,
    typer.Option(min=1, max=10**5, help="Workloads (200), or windows of the trace (at most 24, which share no job)."),
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
        help="Cut larger jobs to this number of GPUs: 3/4 of the cluster, 48 for windows without a cluster file.",
    ),
]
HeuristicsOption = Annotated[
    bool, typer.Option("--heuristics/--no-heuristics", help="All heuristics as rivals; else eft, if none is named.")
]


def regime_of(order: str, ageing_s: float | None, *, waiting: bool, oracle: bool, turns: bool) -> "Regime":
    """Return the order regime of options."""
    from ..cluster.presets.problems import Regime

    return Regime(order, float("inf") if ageing_s is None else ageing_s, waiting, oracle, turns)
