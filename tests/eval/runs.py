"""Small outcomes made by hand, for the tests of eval."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import Scenarios
from longshore.eval.comparison import Comparison, compare

CLUSTER_GPUS = 8
GPUS = np.array([1, 2, 3, 8], dtype=np.int32)
GPU_NODE = np.repeat(np.arange(4, dtype=np.int32), 2)

# GPU 0 fails under job 0, which starts again on GPU 2; job 1 is alone on GPU 3.
EVENTS = [
    Event(0.0, "submit", 0, ()),
    Event(0.0, "submit", 1, ()),
    Event(0.0, "start", 0, (0, 1)),
    Event(0.0, "start", 1, (3,)),
    Event(10.0, "fault", -1, (0,)),
    Event(10.0, "stop", 0, (0, 1)),
    Event(10.0, "start", 0, (1, 2)),
    Event(25.0, "repair", -1, (0,)),
    Event(30.0, "finish", 1, (3,)),
    Event(50.0, "finish", 0, (1, 2)),
]


def scenarios(count: int, *, arrival_s: float = 0.0) -> Scenarios:
    """Return scenarios of four jobs, submitted one after another in steps of `arrival_s`."""
    jobs = np.zeros((count, 4))
    return Scenarios(
        jobs=np.full(count, 4, dtype=np.int32),
        gpus=np.tile(GPUS, (count, 1)),
        work_s=jobs + 3600.0,
        estimate_s=jobs + 3600.0,
        submit_s=jobs + arrival_s * np.arange(4),
        compute_s=jobs + 0.5,
        parameter_bytes=jobs + 2e9,
        rank=np.zeros(jobs.shape, dtype=np.int64),
        needs=np.zeros(jobs.shape, dtype=np.int32),
        speed=np.ones((count, 4)),
        hazard_per_s=np.zeros((count, CLUSTER_GPUS)),
        source_rate_per_s=np.zeros((count, CLUSTER_GPUS + 5)),
        fault_seed=np.arange(count),
    )


def outcome(finish_s: NDArray[np.float64], *, stops: int = 0, lost_s: float = 0.0) -> Outcome:
    """Return the outcome of runs in which all jobs finish as given, shape (scenarios, 4)."""
    count = finish_s.shape[0]
    none = np.zeros(count)
    return Outcome(
        finish_s=finish_s,
        first_start_s=np.zeros_like(finish_s),
        stops=np.full(finish_s.shape, stops, dtype=np.int32),
        lost_s=np.full(finish_s.shape, lost_s),
        wait_s=np.zeros_like(finish_s),
        makespan_s=finish_s.max(axis=1),
        busy_gpu_s=(finish_s * GPUS).sum(axis=1),
        down_gpu_s=none,
        overhead_gpu_s=none,
        finished=np.full(count, 4, dtype=np.int32),
        job_events=np.full(count, 12),
        decisions=np.full(count, 4),
        switches=np.zeros(count, dtype=np.int64),
        slowed=np.zeros(count, dtype=np.int64),
        backups=np.zeros(count, dtype=np.int64),
        backup_gpu_s=none,
    )


def finishes(count: int, seed: int = 1) -> NDArray[np.float64]:
    """Return finish times of about ten hours that differ between scenarios and jobs, shape (scenarios, 4)."""
    return np.random.default_rng(seed).lognormal(np.log(36000.0), 0.3, (count, 4))


def policies(count: int) -> Mapping[str, Outcome]:
    """Return two heuristics and a learned policy that is better than them in most scenarios but not in all."""
    base = finishes(count)
    change = np.random.default_rng(2).normal(0.95, 0.04, (count, 1))
    return {
        "pack": outcome(base, stops=1, lost_s=900.0),
        "random": outcome(base * 1.3, stops=2, lost_s=900.0),
        "<b>ppo</b> $x$": outcome(base * change),
    }


def comparison(count: int) -> Comparison:
    """Return the comparison of these policies."""
    return compare(policies(count), scenarios(count), CLUSTER_GPUS, heuristics=("pack", "random"))
