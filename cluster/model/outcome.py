"""What a simulation returns, its metrics, and the objective that a user minimises.

An objective is one figure of a run, or several with weights. Several are combined by their weighted geometric mean: one
per cent less of a figure counts by its weight, whatever its unit and size. So no reference is needed to weigh hours
against slowdowns.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError
from ..files.input_problems import name_advice
from .problem import Scenarios

OVERLOAD_QUEUE_SHARE = 0.25  # of the GPU-time of all jobs; at a load of 4/3 so much waits at the last submission
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


class RunMetrics(NamedTuple):
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
            cluster_gpus: int, work_s: NDArray[np.float64]) -> RunMetrics:  # fmt: skip
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
    return RunMetrics(
        makespan_s=outcome.makespan_s,
        mean_jct_s=np.nanmean(jct, axis=1),
        p99_jct_s=np.nanpercentile(jct, 99, axis=1),
        useful_utilisation=useful / np.maximum(outcome.makespan_s * cluster_gpus, 1e-9),
        lost_gpu_s=lost,
        restarts=outcome.stops.sum(axis=1).astype(np.float64),
        longest_wait_s=outcome.wait_s.max(axis=1),
        mean_slowdown=np.nanmean(jct / slowdown_base_s(work_s), axis=1),
    )


def slowdown_base_s(work_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what a job's JCT is divided by for its slowdown, of the same shape."""
    return np.maximum(work_s, SLOWDOWN_S)


def overloaded(outcome: Outcome, scenarios: Scenarios) -> NDArray[np.bool_]:
    """Return which scenarios requested more than the cluster could do under this policy, shape (scenarios,).

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
    grew = (end > half) & (end > OVERLOAD_QUEUE_SHARE * gpu_s.sum(axis=1))
    is_overloaded: NDArray[np.bool_] = grew | (outcome.finished < scenarios.jobs)
    return is_overloaded


def _waiting_gpu_s(
    outcome: Outcome, scenarios: Scenarios, gpu_s: NDArray[np.float64], moment_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the GPU-time of the jobs that wait for their first start at a moment of each scenario."""
    start_s = np.where(outcome.first_start_s < 0.0, np.inf, outcome.first_start_s)
    waits = (scenarios.submit_s <= moment_s[:, None]) & (start_s > moment_s[:, None])
    waiting: NDArray[np.float64] = (gpu_s * waits).sum(axis=1)
    return waiting


Objective = Literal["makespan", "jct"]  # what is minimised


def objective_of(submit_s: NDArray[np.float64]) -> Objective:
    """Return the objective of jobs by their times of submission, of any shape."""
    return "jct" if submit_s.any() else "makespan"


MIN_FIGURE = 1e-9  # a figure of 0 has no logarithm


class RunFigures(Protocol):
    """What has the figures of runs, each of any one shape."""

    @property
    def makespan_s(self) -> NDArray[np.float64]:
        """End of the last job."""

    @property
    def mean_jct_s(self) -> NDArray[np.float64]:
        """Mean JCT."""

    @property
    def p99_jct_s(self) -> NDArray[np.float64]:
        """JCT that 99 % of jobs stay below."""

    @property
    def mean_slowdown(self) -> NDArray[np.float64]:
        """Mean of JCT over work."""


class ObjectiveFigure(NamedTuple):
    """A figure that can be minimised."""

    field: str  # of RunMetrics
    title: str


OBJECTIVES = {
    "mean-jct": ObjectiveFigure("mean_jct_s", "mean JCT"),
    "p99-jct": ObjectiveFigure("p99_jct_s", "p99 JCT"),
    "slowdown": ObjectiveFigure("mean_slowdown", "mean slowdown"),
    "makespan": ObjectiveFigure("makespan_s", "makespan"),
}


class Weighting(NamedTuple):
    """Figures with weights, which count beside each other."""

    weights: Mapping[str, float]  # by name, in the order of OBJECTIVES

    @property
    def text(self) -> str:
        """As a user writes it."""
        if len(self.weights) == 1:
            return next(iter(self.weights))
        return ",".join(f"{name}:{weight:g}" for name, weight in self.weights.items())

    @property
    def title(self) -> str:
        """As tables call it."""
        return OBJECTIVES[self.text].title if len(self.weights) == 1 else "weighted objective"

    @property
    def field(self) -> str:
        """As fields of figures and of JSON call it."""
        return OBJECTIVES[self.text].field if len(self.weights) == 1 else "weighted_objective"

    @property
    def is_time(self) -> bool:
        """Whether its unit is the second."""
        return all(OBJECTIVES[name].field.endswith("_s") for name in self.weights)

    def weight(self, name: str) -> float:
        """Return the share of a figure, of 1 in all; 0 if it is none of these."""
        return self.weights.get(name, 0.0) / sum(self.weights.values())

    def cost(self, figures: RunFigures) -> NDArray[np.float64]:
        """Return what is minimised, of the figures' shape."""
        values: list[NDArray[np.float64]] = [getattr(figures, OBJECTIVES[name].field) for name in self.weights]
        if len(values) == 1:
            return values[0]
        shares = [self.weight(name) for name in self.weights]
        logs = [share * np.log(np.maximum(one, MIN_FIGURE)) for share, one in zip(shares, values, strict=True)]
        cost: NDArray[np.float64] = np.exp(np.sum(logs, axis=0))
        return cost


def weighting_of_figure(name: str) -> Weighting:
    """Return the weighting of a single figure."""
    return Weighting({name: 1.0})


def usual_weighting(submit_s: NDArray[np.float64]) -> Weighting:
    """Return what is minimised by default: the makespan of a batch, else the mean JCT."""
    return weighting_of_figure("makespan" if objective_of(submit_s) == "makespan" else "mean-jct")


def weighting_of(text: str) -> Weighting:
    """Return the weighting in a text: `p99-jct`, or `mean-jct:0.7,p99-jct:0.3`; weights that are omitted are 1.

    Raises:
        InputError: If a figure is not known or named twice, or a weight is no positive number.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in OBJECTIVES:
            raise InputError(f"there is no objective {name!r}", name_advice(name, OBJECTIVES), field="--objective")
        if name in weights:
            raise InputError(f"{name} stands there twice", "give it one weight", field="--objective")
        weights[name] = _parsed_weight(part, number) if colon else 1.0
    if len(weights) == 1:
        return weighting_of_figure(next(iter(weights)))
    return Weighting({name: weights[name] for name in OBJECTIVES if name in weights})


def _parsed_weight(part: str, number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not 1e-3 <= weight <= 1e3:
        raise InputError(
            f"{part.strip()!r} has no weight from 0.001 to 1000", "write it as in mean-jct:0.7,p99-jct:0.3",
            field="--objective",
        )  # fmt: skip
    return weight
