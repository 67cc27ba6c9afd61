"""`longshore simulate`: one workload under one policy, and its schedule as files."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..agents.registry import find_policy
from ..agents.rehearsals import rehearsals_of
from ..cluster.faults.recorded import read_fault_trace
from ..cluster.files.errors import InputError
from ..cluster.files.output_file import check_outputs
from ..cluster.model.outcome import overloaded
from ..cluster.model.problem import Problem, with_layout
from ..cluster.model.topology import Cluster
from ..cluster.model.workload import Workload, describe, first_jobs, scaled_to_load, unique_ids, with_gpus_cut
from ..cluster.presets.cluster_file import read_cluster
from ..cluster.presets.problems import Regime, Stream, capacity_of, cluster_problem, stream
from ..cluster.traces.read import read_trace
from ..cluster.traces.write import write_cluster, write_events, write_jobs
from ..cluster.workloads.estimates import EstimateKind, with_estimates
from .comparison import run_with_events
from .setting import JobsRequest
from .table import CompileFirst, OpenStatus, compile_nothing, print_run

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

GENERATED_JOBS, GENERATED_LOAD = 200, 0.8


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What to simulate, and where the schedule goes. Paths that are None are not read or written."""

    cluster: Path
    policy: str
    trace: Path | None
    faults: Path | None
    regime: Regime
    estimates: EstimateKind | None  # of the trace if None, and exact where jobs are drawn
    sigma: float
    drawn: JobsRequest
    jobs: int | None
    load: float | None
    max_gpus: int | None
    seed: int
    events: Path | None
    jobs_out: Path | None
    cluster_out: Path | None
    plans: str = "fixed"  # by which of its plans each job runs, one of LAYOUTS


def simulate_request(
    request: SimulationRequest,
    console: "Console",
    progress: OpenStatus,
    compile_first: CompileFirst = compile_nothing,
) -> None:
    """Run the simulation, write the schedule and print the run's figures.

    Raises:
        InputError: If a file or an option cannot be used, or the run had to be cut off.
        PluginError: If the policy is not known.
        CheckpointError: If the checkpoint cannot be used.
    """
    outputs = {"--events": request.events, "--jobs-out": request.jobs_out, "--cluster-out": request.cluster_out}
    inputs = {"--cluster": request.cluster, "--trace": request.trace, "--faults": request.faults}
    check_outputs(outputs, inputs)
    request.drawn.check(request.trace, request.load)
    with progress("reading the input"):
        policy = find_policy(request.policy)
        problem, workload = _read_problem(request)
    compile_first(rehearsals_of([policy]))
    with progress(f"simulating {workload.jobs} jobs under {policy.name}"):
        outcome, happened = run_with_events(problem, policy, 0)
    ids = _unique_job_ids(workload)
    if request.events:
        write_events(request.events, happened, ids)
    if request.jobs_out:
        write_jobs(request.jobs_out, problem.scenarios, 0, ids)
    if request.cluster_out:
        write_cluster(request.cluster_out, problem.cluster, problem.rules, problem.scenarios, 0)
    gpus = problem.cluster.gpu_node.size
    console.print(f"{workload.jobs} jobs on {gpus} GPUs under {policy.name}")
    if policy.waits and not request.regime.waiting:
        log.warning("%s would wait for better GPUs, but may not; allow it with --waiting", policy.name)
    if overloaded(outcome, problem.scenarios)[0]:
        log.warning("overload: under %s the queue grew until the last submission, or the run was cut off", policy.name)
    print_run(console, outcome, problem.scenarios, gpus, request.regime.ageing_s)
    for path in filter(None, outputs.values()):
        console.print(f"written: {path}", soft_wrap=True)
    if outcome.finished[0] < workload.jobs:
        raise InputError(
            f"{workload.jobs - outcome.finished[0]} of {workload.jobs} jobs had not ended after "
            f"{outcome.makespan_s[0] / 3600:.0f} h, and the simulation was cut off",
            "the load is too high, or faults are more frequent than checkpoints",
        )


def _read_problem(request: SimulationRequest) -> tuple[Problem, Workload]:
    setup = read_cluster(request.cluster)
    workload = _read_or_draw_workload(request, setup.cluster)
    if request.estimates is not None:
        rng = stream(request.seed, Stream.ESTIMATES)
        workload = with_estimates(workload, request.estimates, sigma=request.sigma, rng=rng)
    faults = read_fault_trace(request.faults) if request.faults else None
    workload = with_layout(workload, request.plans)
    problem = cluster_problem(setup, [workload], request.regime, runs=1, seed=request.seed, faults=faults)
    offered = describe(workload).offered_load(capacity_of(setup.cluster))
    if np.isfinite(offered) and offered > 1.0:
        log.warning("overload: jobs arrive with %.2f times the work that the cluster can do; waits will grow", offered)
    return problem, workload


def _read_or_draw_workload(request: SimulationRequest, cluster: Cluster) -> Workload:
    """Return the jobs of the trace, or generated ones."""
    gpus, capacity = cluster.gpu_node.size, capacity_of(cluster)
    if request.trace is None:
        rng, load = stream(request.seed, Stream.JOBS), request.load or GENERATED_LOAD
        workload = request.drawn.draw(request.jobs or GENERATED_JOBS, load=load, capacity=capacity, rng=rng)
        return with_gpus_cut(workload, min(request.max_gpus or gpus, gpus))
    workload = first_jobs(read_trace(request.trace), request.jobs)
    if workload.left_out:
        log.warning("%s: %d rows need no GPU or never ran, and are dropped", request.trace, workload.left_out)
    if request.jobs and request.jobs > workload.jobs:
        log.warning("%s: it has %d jobs, not %d", request.trace, workload.jobs, request.jobs)
    workload = with_gpus_cut(workload, request.max_gpus)
    return workload if request.load is None else scaled_to_load(workload, request.load, capacity)


def _unique_job_ids(workload: Workload) -> tuple[str, ...]:
    """Return the ids for the files, in which each job must have its own."""
    ids = unique_ids(workload.ids)
    renamed = [(old, new) for old, new in zip(workload.ids, ids, strict=True) if old != new]
    if renamed:
        log.warning("%d jobs have the id of an earlier one; such as %r is written as %r", len(renamed), *renamed[0])
    return ids
