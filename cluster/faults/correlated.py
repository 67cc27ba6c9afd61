"""Faults that take a whole node or a whole rack away, besides those of single GPUs."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ..model.topology import Cluster
from .configuration import FaultConfiguration, FaultDraw, FaultModel, Share, fault_process, source_rates
from .weibull import Shape


class Correlated(FaultConfiguration):
    """Configuration of faults with different reach; what is left of the shares hits single GPUs.

    24 % of the faults of InfiniteHBD's trace are cables, NICs, fans, power supplies and boards; 5.7 % of its incidents
    (14.6 % of the node faults) hit several nodes at the same moment.
    """

    node_share: Share = 0.24
    rack_share: Share = 0.057
    shape: Shape = 1.0

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if self.node_share + self.rack_share > 1:
            raise ValueError(f"node_share and rack_share add up to {self.node_share + self.rack_share:g}, over 1")
        return self


def correlated(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: Correlated, seed: int) -> FaultDraw:
    """Return faults of GPUs, nodes and racks that together are as many as the hazards say; nothing is drawn.

    Args:
        cluster: The cluster.
        hazard_per_s: Fault rate of each GPU, shape (gpus,); a node's faults are those of its GPUs, a rack's those
            of its nodes, of which the shares hit the node or the rack as one.
        configuration: The shares, the shape of up times, and what follows a fault.
        seed: Not used.

    Returns:
        Rates of shape (sources,), and the process.
    """
    node_share, rack_share = configuration.node_share, configuration.rack_share
    of_node = np.add.reduceat(hazard_per_s, cluster.first_gpu[:-1])
    of_rack = np.add.reduceat(of_node, cluster.first_node[:-1])
    # Rounding may leave a hair below 0 where the shares add up to 1.
    single = max(0.0, 1.0 - node_share - rack_share)
    rates = source_rates(cluster, single * hazard_per_s, node_share * of_node, rack_share * of_rack)
    return rates, fault_process(configuration, configuration.shape)


MODEL = FaultModel(Correlated, correlated)
