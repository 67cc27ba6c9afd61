"""What a simulation gives back, and the metrics that are computed from it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scenarios import Scenarios

OVERLOADED_SHARE = 0.25  # of the GPU-time of all jobs; at a load of 4/3 so much waits at the last submission
SLOWDOWN_S = 600.0  # shorter jobs count as so long: those of a few seconds would alone make the mean slowdown
EVENT_KINDS = ("submit", "start", "stop", "finish", "fault", "repair", "switch", "slow", "well")


class Event(NamedTuple):
    """One line of a schedule."""

    time_s: float
    kind: str  # one of EVENT_KINDS
    job: int  # index of the job, -1 for none
    gpus: tuple[int, ...]  # that the job takes, leaves or goes on with, or that fail, come back or change their pace


class Outcome(NamedTuple):
    """How scenarios ended under one policy. First axis scenario; padded jobs hold 0."""

    finish_s: NDArray[np.float64]  # (scenarios, jobs)
    first_start_s: NDArray[np.float64]  # (scenarios, jobs)
    stops: NDArray[np.int32]  # (scenarios, jobs) how often a fault stopped the job
    lost_s: NDArray[
        np.float64
    ]  # (scenarios, jobs) GPU-time held for nothing until its stops and switches, over the GPUs that the job asks for
    wait_s: NDArray[np.float64]  # (scenarios, jobs) time in the queue, summed over all stays
    makespan_s: NDArray[np.float64]  # (scenarios,) end of the last job, or of the run if it was cut off
    busy_gpu_s: NDArray[np.float64]  # (scenarios,) GPU-time held by jobs
    down_gpu_s: NDArray[np.float64]  # (scenarios,) GPU-time out of service until the makespan
    overhead_gpu_s: NDArray[np.float64]  # (scenarios,) GPU-time of checks, restarts and switches just before the end
    finished: NDArray[np.int32]  # (scenarios,) jobs that ended; fewer than all only if the run was cut off
    job_events: NDArray[np.int64]  # (scenarios,) submissions, starts, stops, switches and finishes
    decisions: NDArray[np.int64]  # (scenarios,) placements and waits that the policy chose
    switches: NDArray[np.int64]  # (scenarios,) how often a ring was formed anew: seats filled, given up or won back
    slowed: NDArray[np.int64]  # (scenarios,) how often a running job has met slow nodes
    backups: NDArray[np.int64]  # (scenarios,) how often a GPU has taken the seat of a slow one
    backup_gpu_s: NDArray[np.float64]  # (scenarios,) GPU-time that jobs held slow GPUs beside their backups


class Metrics(NamedTuple):
    """Figures of each scenario under one policy, all of shape (scenarios,)."""

    makespan_s: NDArray[np.float64]
    mean_jct_s: NDArray[np.float64]
    p99_jct_s: NDArray[np.float64]
    useful_utilisation: NDArray[np.float64]  # share of all GPU-time until the makespan that did work which was kept
    lost_gpu_s: NDArray[np.float64]  # GPU-time lost to faults: since the last checkpoint, restart included
    restarts: NDArray[np.float64]  # stops by faults
    longest_wait_s: NDArray[np.float64]  # of a job in the queue, over all its stays; also of jobs that never ended
    mean_slowdown: NDArray[np.float64]  # of JCT over work, or over 10 min if that is longer


def metrics(outcome: Outcome, jobs: NDArray[np.int32], gpus: NDArray[np.int32], submit_s: NDArray[np.float64],
            cluster_gpus: int, work_s: NDArray[np.float64]) -> Metrics:  # fmt: skip
    """Return the figures of each scenario.

    A job that had not ended when the run was cut off counts as if it ended then: its JCT is longer, never shorter.

    Args:
        outcome: What the simulation gave.
        jobs: Number of jobs, shape (scenarios,).
        gpus: GPUs of each job, shape (scenarios, jobs).
        submit_s: Submission of each job, shape (scenarios, jobs).
        cluster_gpus: GPUs of the cluster.
        work_s: Work of each job, shape (scenarios, jobs).
    """
    real = np.arange(gpus.shape[1]) < jobs[:, None]
    finish_s = np.where(outcome.finish_s > 0.0, outcome.finish_s, outcome.makespan_s[:, None])
    jct = np.where(real, np.maximum(finish_s - submit_s, 0.0), np.nan)
    lost = (outcome.lost_s * gpus).sum(axis=1)
    useful = outcome.busy_gpu_s - lost - outcome.overhead_gpu_s
    return Metrics(
        makespan_s=outcome.makespan_s,
        mean_jct_s=np.nanmean(jct, axis=1),
        p99_jct_s=np.nanpercentile(jct, 99, axis=1),
        useful_utilisation=useful / np.maximum(outcome.makespan_s * cluster_gpus, 1e-9),
        lost_gpu_s=lost,
        restarts=outcome.stops.sum(axis=1).astype(np.float64),
        longest_wait_s=outcome.wait_s.max(axis=1),
        mean_slowdown=np.nanmean(jct / bounded_s(work_s), axis=1),
    )


def bounded_s(work_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what a job's JCT is divided by for its slowdown, of the same shape."""
    return np.maximum(work_s, SLOWDOWN_S)


def overloaded(outcome: Outcome, scenarios: Scenarios) -> NDArray[np.bool_]:
    """Say which scenarios asked more than the cluster could do under this policy, shape (scenarios,).

    A scenario is overloaded if it was cut off before all its jobs had ended; or if, at the last submission, jobs with
    more than a quarter of the workload's GPU-time had never started, and with more than at half that time, so that the
    queue grew to the end. A batch, of which all jobs are submitted at 0, is never so.

    Args:
        outcome: What the simulation gave.
        scenarios: What was run.

    Source: docs/simulator.md, "Overload".
    """
    gpu_s = scenarios.gpus * scenarios.work_s
    last_s = scenarios.submit_s.max(axis=1, initial=0.0)
    end, half = (_waiting_gpu_s(outcome, scenarios, gpu_s, moment_s) for moment_s in (last_s, last_s / 2))
    grew = (end > half) & (end > OVERLOADED_SHARE * gpu_s.sum(axis=1))
    told: NDArray[np.bool_] = grew | (outcome.finished < scenarios.jobs)
    return told


def _waiting_gpu_s(
    outcome: Outcome, scenarios: Scenarios, gpu_s: NDArray[np.float64], moment_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the GPU-time of the jobs that wait for their first start at a moment of each scenario."""
    start_s = np.where(outcome.first_start_s < 0.0, np.inf, outcome.first_start_s)
    waits = (scenarios.submit_s <= moment_s[:, None]) & (start_s > moment_s[:, None])
    waiting: NDArray[np.float64] = (gpu_s * waits).sum(axis=1)
    return waiting
