"""GPUs that fail one by one, without memory."""

import numpy as np
from numpy.typing import NDArray

from ..model.topology import Cluster
from .configuration import FaultConfiguration, FaultDraw, FaultModel, fault_process, source_rates


class Exponential(FaultConfiguration):
    """Configuration of exponential up times."""


def exponential(
    cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: Exponential, seed: int
) -> FaultDraw:
    """Return faults of single GPUs with exponential up times; nothing is drawn.

    Args:
        cluster: The cluster.
        hazard_per_s: Fault rate of each GPU, shape (gpus,).
        configuration: What follows a fault.
        seed: Not used.

    Returns:
        Rates of shape (sources,), and the process.
    """
    return source_rates(cluster, hazard_per_s), fault_process(configuration, 1.0)


MODEL = FaultModel(Exponential, exponential)
