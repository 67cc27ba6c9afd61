"""The presets `patent4` and `patent64`, the setting of the patent: identical GPUs that fail unequally often."""

import numpy as np
from numpy.typing import NDArray

from ..model.problem import Problem
from ..model.scenarios import Scenarios, fault_sources
from ..model.topology import Cluster, grid_cluster
from ..model.workload import DEFAULT_COMPUTE_S, DEFAULT_PARAMETER_BYTES
from .hetero64 import (
    GPU_FAULTS_PER_S,
    JOB_GPUS,
    JOB_GPUS_PROBABILITY,
    LEMON_FACTOR,
    fault_process,
    numbered_draws,
    work_s,
)
from .hetero64 import rules as hetero64_rules

PATENT_JOBS = {4: 16, 64: 64}  # jobs of each scenario, by the cluster's GPUs
HIGHEST_PER_S = LEMON_FACTOR * GPU_FAULTS_PER_S  # one fault in 60 h, as on the lemon of `hetero64`
DECADES = 2.0
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def patent(scenarios: int, seed: int, *, gpus: int, first: int = 0) -> Problem:
    """Return scenarios of the preset: a pool of GPUs of speed 1, all jobs submitted at the start, strict FIFO.

    Every GPU is a node of its own and nothing is charged for spreading a job, so that which GPUs a job gets matters
    by their faults alone. The jobs are those of `hetero64` that ask no more than half of the GPUs; faults, checkpoints
    and restarts are as there. Scenario i depends on `seed`, `first` + i and `gpus` only.

    Args:
        scenarios: How many to draw.
        seed: Key of all random numbers, at least 0.
        gpus: 4 or 64.
        first: Number of the first scenario, at least 0.

    Raises:
        ValueError: If a number is none of these.

    Source: SPEC R2 to R5, R11.
    """
    if scenarios < 1 or seed < 0 or first < 0 or gpus not in PATENT_JOBS:
        raise ValueError(
            f"scenarios must be at least 1, seed and first at least 0, gpus one of {list(PATENT_JOBS)}; "
            f"got {scenarios}, {seed}, {first}, {gpus}"
        )
    cluster = grid_cluster(gpus, 1)
    rules = hetero64_rules()._replace(node_penalty=0.0)
    return Problem(cluster, _scenarios(cluster, scenarios, seed, first), fault_process(), rules)


def hazards_per_s(gpus: int) -> NDArray[np.float64]:
    """Return the fault rate of each GPU, shape (gpus,): spread evenly over two decades of its logarithm.

    The rates belong to the cluster and are the same in all scenarios: [n, t, s] shows no fault rates, so what a policy
    knows of them it must have learned. Their order has no system that a rule by index could use.
    """
    rank = ((np.arange(gpus) + 1.0) * GOLDEN % 1.0).argsort().argsort()
    rates: NDArray[np.float64] = HIGHEST_PER_S * 10.0 ** (-DECADES * rank / (gpus - 1))
    return rates


def _scenarios(cluster: Cluster, scenarios: int, seed: int, first: int) -> Scenarios:
    gpus, jobs = cluster.gpu_node.size, PATENT_JOBS[cluster.gpu_node.size]
    rows = numbered_draws(scenarios, seed, first, 1 + 3 * jobs)
    size, radius, angle = np.split(rows[:, 1:], 3, axis=1)
    sizes = JOB_GPUS[gpus >= 2 * JOB_GPUS]
    bounds = np.cumsum(JOB_GPUS_PROBABILITY[: sizes.size])
    work = work_s(radius, angle)
    hazard = np.broadcast_to(hazards_per_s(gpus), (scenarios, gpus)).copy()
    rates = np.zeros((scenarios, fault_sources(cluster)))
    rates[:, :gpus] = hazard
    return Scenarios(
        jobs=np.full(scenarios, jobs, dtype=np.int32),
        gpus=sizes[np.searchsorted(bounds[:-1] / bounds[-1], size, side="right")],
        work_s=work,
        estimate_s=work.copy(),
        submit_s=np.zeros(work.shape),
        compute_s=np.full(work.shape, DEFAULT_COMPUTE_S),
        parameter_bytes=np.full(work.shape, DEFAULT_PARAMETER_BYTES),
        rank=np.zeros(work.shape, dtype=np.int64),
        needs=np.zeros(work.shape, dtype=np.int32),
        speed=np.ones((scenarios, gpus)),
        hazard_per_s=hazard,
        source_rate_per_s=rates,
        fault_seed=(rows[:, 0] * 2.0**32).astype(np.int64),
    )
