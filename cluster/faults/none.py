"""No faults."""

import numpy as np
from numpy.typing import NDArray

from ..model.topology import Cluster
from .configuration import FaultConfiguration, FaultDraw, FaultModel, fault_process, source_rates


class NoFaults(FaultConfiguration):
    """Configuration of a cluster that never fails."""


def none(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: NoFaults, seed: int) -> FaultDraw:
    """Return rates of 0, shape (sources,)."""
    return source_rates(cluster, np.zeros_like(hazard_per_s)), fault_process(configuration, 1.0)


MODEL = FaultModel(NoFaults, none)
