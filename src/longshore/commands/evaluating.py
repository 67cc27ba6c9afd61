"""`longshore evaluate`."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from .options import (  # fmt: skip
    AgeingOption,
    ArrivalsOption,
    ClusterOption,
    EstimatesOption,
    FaultsOption,
    HeuristicsOption,
    LoadOption,
    OracleOption,
    OrderOption,
    ProfileOption,
    RivalsOption,
    RunsOption,
    SeedOption,
    ShareOfGpusOption,
    SigmaOption,
    TraceOption,
    WaitingOption,
    WorkloadsOption,
    regime_of,
)
from .progress import console, progress


def evaluate(
    policy: RivalsOption = None,
    trace: TraceOption = None,
    cluster: ClusterOption = None,
    faults: FaultsOption = None,
    order: OrderOption = "fifo",
    ageing: AgeingOption = None,
    waiting: WaitingOption = False,
    oracle: OracleOption = False,
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
    with progress("starting"):
        from ..eval.command import evaluate_request
        from ..eval.generated import JobsRequest
        from ..eval.setting import EvaluationRequest

    request = EvaluationRequest(
        policies=tuple(policy or ()), trace=trace, cluster=cluster, faults=faults,
        regime=regime_of(order, ageing, waiting=waiting, oracle=oracle), workloads=workloads, runs=runs, load=load,
        max_gpus=max_gpus, estimates=estimates.value if estimates else None, sigma=sigma,
        drawn=JobsRequest(profile, arrivals.value if arrivals else None), seed=seed,
        heuristics=heuristics, report=report, pictures=pictures, json_out=json_out,
        command=shlex.join(["longshore", *sys.argv[1:]]), date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )  # fmt: skip
    evaluate_request(request, console(), progress)
