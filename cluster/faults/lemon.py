"""A few nodes that fail far more often than the others."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..kernels.counter_random import uniform
from ..model.scenarios import fault_sources
from ..model.topology import Cluster
from .configuration import FaultConfiguration, FaultDraw, FaultModel, Share, fault_process, source_rates
from .weibull import Shape

# 5 % of the nodes have 24.5 % of the faults: 0.245 / 0.05 against 0.755 / 0.95.
DEFAULT_FACTOR = 6.17


class Lemon(FaultConfiguration):
    """Configuration of lemon nodes, which bear `lemon_factor` times the fault rate of the others."""

    lemon_share: Share = 0.05
    lemon_factor: Annotated[float, Field(ge=1, le=1e6)] = DEFAULT_FACTOR
    shape: Shape = 1.0


def lemon(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: Lemon, seed: int) -> FaultDraw:
    """Return faults of single GPUs where each node is a lemon with the probability of the configuration.

    The hazard is the mean over lemons and others, so a seed changes which nodes fail, not how many faults are
    expected over all seeds.

    Args:
        cluster: The cluster.
        hazard_per_s: Fault rate of each GPU before the draw, shape (gpus,).
        configuration: Share and factor of the lemons, shape of up times, and what follows a fault.
        seed: Decides which nodes are lemons.

    Returns:
        Rates of shape (sources,), and the process.
    """
    factor = np.where(_lemon_nodes(cluster, configuration, seed), configuration.lemon_factor, 1.0)
    mean_factor = 1.0 + configuration.lemon_share * (configuration.lemon_factor - 1.0)
    rates = source_rates(cluster, hazard_per_s * factor[cluster.gpu_node] / mean_factor)
    return rates, fault_process(configuration, configuration.shape)


def _lemon_nodes(cluster: Cluster, configuration: Lemon, seed: int) -> NDArray[np.bool_]:
    """Tell for each node whether it is a lemon, from counters beyond those of the fault sources."""
    first = fault_sources(cluster)
    drawn = np.array([uniform(seed, first + node, 0) for node in range(cluster.speed.size)])
    return drawn < configuration.lemon_share


MODEL = FaultModel(Lemon, lemon)
