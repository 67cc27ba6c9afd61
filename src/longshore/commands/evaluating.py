"""`longshore evaluate` and `longshore simulate`."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import name_advice
from ..cluster.model.orders import ORDER_REGIMES
from ..scheduler.commands.options import DURATION, parse_duration
from .options import (  # fmt: skip
    AgeingOption,
    ArrivalsOption,
    ClusterOption,
    EstimatesOption,
    FaultsOption,
    HeuristicsOption,
    LoadOption,
    MaxGpusOption,
    ObjectiveOption,
    OracleOption,
    OrderOption,
    PlansOption,
    ProfileOption,
    RivalsOption,
    RunsOption,
    SeedOption,
    ShareOfGpusOption,
    SigmaOption,
    TraceOption,
    TurnsOption,
    WaitingOption,
    WorkloadsOption,
    in_words,
    order_name,
    regime_of,
)
from .progress import compile_first, console, progress

if TYPE_CHECKING:
    from ..cluster.model.outcome import Weighting
    from ..cluster.presets.problems import Regime

WEEK_S = 604_800.0  # ageing bound where all orders are tried: what goes by size must not leave a job behind for ever
EveryOrderOption = Annotated[
    str | None,
    typer.Option(
        "--order", parser=order_name, metavar="NAME",
        help=f"One order only: {in_words(ORDER_REGIMES)}. Default: all of them, side by side.",
    ),
]  # fmt: skip
AnyAgeingOption = Annotated[
    float | None,
    typer.Option(
        "--ageing", parser=parse_duration, metavar=DURATION,
        help="How long a waiting job may be overtaken, such as 72h; default: a week, or for ever with --order.",
    ),
]  # fmt: skip
AnyWaitingOption = Annotated[
    bool | None,
    typer.Option("--waiting/--no-waiting", help="Let policies wait for better GPUs; default: yes, no with --order."),
]


NamedOption = Annotated[
    str | None,
    typer.Option(
        "--preset", metavar="NAME",
        help="Scenarios like those of a preset of `longshore train`, which no training has seen, under its order and "
        "waiting: hetero64, hetero64-stream, patent4, patent64, patent4-ours, patent64-ours; or, with --trace, traces, "
        "philly or itp.",
    ),
]  # fmt: skip


def evaluate(
    policy: RivalsOption = None,
    trace: TraceOption = None,
    cluster: ClusterOption = None,
    faults: FaultsOption = None,
    preset: NamedOption = None,
    order: EveryOrderOption = None,
    ageing: AnyAgeingOption = None,
    waiting: AnyWaitingOption = None,
    oracle: OracleOption = False,
    turns: TurnsOption = True,
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
    objective: ObjectiveOption = None,
    plans: PlansOption = "fixed",
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write the report's figures as files into this folder.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the same figures here.")] = None,
) -> None:
    """Compare orders and policies on the same workloads and faults, and recommend one.

    Without --order, every order with every policy, and the answer in words. With --order or --preset: the
    policies under one order only. Without a trace and a cluster: the preset hetero64.

    With a trace: windows of 96 jobs at a load of 0.85; with --policy, --order or --objective from its last 30 %. If
    its jobs have plans, also what these save over one fixed layout.

    With a cluster file: its cluster and faults, generated jobs if no trace.
    """
    with progress("starting"):
        from ..eval.command import evaluate_request
        from ..eval.setting import EvaluationRequest, JobsRequest

    request = EvaluationRequest(
        policies=tuple(policy or ()), trace=trace, cluster=cluster, faults=faults, workloads=workloads, runs=runs,
        preset=preset, regime=_regime(preset, order, ageing, waiting, oracle=oracle, turns=turns), load=load,
        max_gpus=max_gpus, every_order=order is None and preset is None, objective=_weighting(objective), sigma=sigma,
        seed=seed, estimates=estimates, heuristics=heuristics, report=report, pictures=pictures,
        drawn=JobsRequest(profile, arrivals), json_out=json_out, plans=plans,
        command=shlex.join(["longshore", *sys.argv[1:]]),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )  # fmt: skip
    evaluate_request(request, console(), progress, compile_first)


def _weighting(objective: str | None) -> "Weighting | None":
    from ..cluster.model.outcome import weighting_of

    return None if objective is None else weighting_of(objective)


def _regime(
    preset: str | None, order: str | None, ageing_s: float | None, waiting: bool | None, *, oracle: bool, turns: bool
) -> "Regime":
    """Return the regime of the options, or that of a preset; where all orders are tried, what holds under each.

    Raises:
        InputError: If there is no such preset.
    """
    if preset is not None:
        from ..cluster.presets.named import NAMED

        if (known := NAMED.get(preset)) is None:
            raise InputError(f"there is no preset {preset!r}", name_advice(preset, NAMED), field="--preset")
        order, waiting = order or known.order, known.waiting if waiting is None else waiting
    if order is not None:
        return regime_of(order, ageing_s, waiting=bool(waiting), oracle=oracle, turns=turns)
    return regime_of(
        "fifo", WEEK_S if ageing_s is None else ageing_s, waiting=waiting is not False, oracle=oracle, turns=turns
    )


def simulate(
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/).")],
    policy: Annotated[
        str, typer.Option(help="A name from `longshore policy list`, a policy file (NAME.zip), or rollout:NAME.")
    ] = "pack",
    trace: TraceOption = None,
    faults: FaultsOption = None,
    order: OrderOption = "fifo",
    ageing: AgeingOption = None,
    waiting: WaitingOption = False,
    oracle: OracleOption = False,
    turns: TurnsOption = True,
    estimates: EstimatesOption = None,
    sigma: SigmaOption = 0.5,
    profile: ProfileOption = None,
    arrivals: ArrivalsOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="Only the first N jobs; 200 without a trace.")
    ] = None,
    load: LoadOption = None,
    max_gpus: MaxGpusOption = None,
    plans: PlansOption = "fixed",
    seed: SeedOption = 0,
    events: Annotated[Path | None, typer.Option(help="Write the schedule here (JSON lines).")] = None,
    jobs_out: Annotated[Path | None, typer.Option(help="Write the jobs here (JSON).")] = None,
    cluster_out: Annotated[Path | None, typer.Option(help="Write the cluster here (JSON).")] = None,
) -> None:
    """Run one workload under one policy, and write the schedule for others to check.

    Without a trace, jobs are generated like those of a Philly cluster at a load of 0.8.
    """
    with progress("starting"):
        from ..eval.setting import JobsRequest
        from ..eval.simulate import SimulationRequest, simulate_request

    request = SimulationRequest(
        cluster=cluster, policy=policy, trace=trace, faults=faults,
        regime=regime_of(order, ageing, waiting=waiting, oracle=oracle, turns=turns),
        estimates=estimates, sigma=sigma, drawn=JobsRequest(profile, arrivals), jobs=jobs, load=load, max_gpus=max_gpus,
        seed=seed, events=events, jobs_out=jobs_out, cluster_out=cluster_out, plans=plans,
    )  # fmt: skip
    simulate_request(request, console(), progress, compile_first)
