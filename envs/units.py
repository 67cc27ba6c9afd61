"""Scales that make rewards and features of different workloads alike."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.scenarios import Scenarios
from ..cluster.topology import Cluster


class Units(NamedTuple):
    """One value a scenario; kernels read them beside the simulation."""

    typical_s: NDArray[np.float64]  # (scenarios,) mean estimate of the jobs: the unit of times in observations
    ideal_s: NDArray[np.float64]  # (scenarios,) work of all jobs over the cluster's speed: the unit of rewards


def units_of(cluster: Cluster, scenarios: Scenarios) -> Units:
    """Return the scales of each scenario."""
    jobs = np.maximum(scenarios.jobs, 1)
    sizes = np.diff(cluster.first_gpu)
    work = (scenarios.work_s * scenarios.gpus).sum(axis=1)
    typical = scenarios.estimate_s.sum(axis=1) / jobs
    return Units(np.maximum(typical, 1e-9), np.maximum(work / (scenarios.speed * sizes).sum(axis=1), 1e-9))
