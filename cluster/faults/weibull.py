"""GPUs that fail one by one, and again soon after."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..model.topology import Cluster
from .configuration import FaultConfiguration, FaultDraw, FaultModel, fault_process, source_rates

DEFAULT_SHAPE = 0.62  # measured on the times between faults of InfiniteHBD's trace
Shape = Annotated[float, Field(ge=0.1, le=10)]


class Weibull(FaultConfiguration):
    """Configuration of Weibull up times; with a shape below 1 faults come in bursts."""

    shape: Shape = DEFAULT_SHAPE


def weibull(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: Weibull, seed: int) -> FaultDraw:
    """Return faults of single GPUs with Weibull up times of mean 1 / hazard; nothing is drawn.

    Args:
        cluster: The cluster.
        hazard_per_s: Fault rate of each GPU in the long run, shape (gpus,).
        configuration: The shape, and what follows a fault.
        seed: Not used.

    Returns:
        Rates of shape (sources,), and the process.
    """
    return source_rates(cluster, hazard_per_s), fault_process(configuration, configuration.shape)


MODEL = FaultModel(Weibull, weibull)
