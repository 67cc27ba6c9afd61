"""`longshore simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import (  # fmt: skip
    AgeingOption,
    ArrivalsOption,
    EstimatesOption,
    FaultsOption,
    LoadOption,
    MaxGpusOption,
    OracleOption,
    OrderOption,
    Plans,
    PlansOption,
    ProfileOption,
    SeedOption,
    SigmaOption,
    TraceOption,
    TurnsOption,
    WaitingOption,
    regime_of,
)
from .progress import compile_first, console, progress


def simulate(
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/).")],
    policy: Annotated[
        str, typer.Option(help="A name from `longshore policies`, or a checkpoint (NAME.zip), or rollout:NAME.")
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
        int | None, typer.Option(min=1, max=10**6, help="Only the first so many jobs; 200 without a trace.")
    ] = None,
    load: LoadOption = None,
    max_gpus: MaxGpusOption = None,
    plans: PlansOption = Plans.fixed,
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
        estimates=estimates.value if estimates else None, sigma=sigma,
        drawn=JobsRequest(profile, arrivals.value if arrivals else None),
        jobs=jobs, load=load, max_gpus=max_gpus, seed=seed, events=events, jobs_out=jobs_out, cluster_out=cluster_out,
        plans=plans.value,
    )  # fmt: skip
    simulate_request(request, console(), progress, compile_first)
