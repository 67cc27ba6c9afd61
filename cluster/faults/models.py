"""Fault models: how often the parts of a cluster fail, each by its name in FAULT_MODELS."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..kernels.structures import uniform
from ..model.problem import MOST_RESTART_S, MOST_SLOW_FACTOR, FaultProcess, fault_sources
from ..model.topology import Cluster

# The defaults of this package are measured on 584 faults of 400 nodes with 8 GPUs in 348 days
# (InfiniteHBD's trace), but for the share of transient faults, which is Unicron's.
REPAIR_MEAN_S = 133 * 3600.0
REPAIR_SIGMA = round(math.sqrt(2 * math.log(133 / 20)), 3)  # a log-normal time of mean 133 h and median 20 h

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PauseS = Annotated[float, Field(ge=0, le=MOST_RESTART_S)]
Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]

FaultDraw = tuple[NDArray[np.float64], FaultProcess]  # rates of the fault sources, shape (sources,), and the process


class SlowNodes(BaseModel, frozen=True, extra="forbid", strict=True):
    """Nodes that become slow for a while; both times between changes are exponential."""

    a_node_day: Annotated[float, Field(gt=0, le=1000)]  # how often a node that is well becomes slow
    factor: Annotated[float, Field(gt=1, le=MOST_SLOW_FACTOR)]  # by which the compute time of its GPUs grows
    lasts_s: Annotated[float, Field(ge=1, le=MOST_RESTART_S)]  # in the mean


class FaultConfiguration(BaseModel):
    """What follows a fault, recorded ones included. By this model itself nothing fails; the others draw rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str = ""  # its name in FAULT_MODELS, as the cluster file gives it
    transient_probability: Share = 0.73  # a restart is enough
    repair_mean_s: Positive = REPAIR_MEAN_S
    repair_sigma: Annotated[float, Field(ge=0, le=10)] = REPAIR_SIGMA  # log-normal; 0: exponential
    handling: Literal["restart", "switch"] = "restart"  # a fault stops a job; or the job goes on in a ring formed anew
    detection_s: PauseS = 0.0  # from a fault until the scheduler acts on it
    preflight_s: PauseS = 0.0  # check of GPUs before each start
    # A pause of a ring, with `switch`: processes start, the state is copied, groups are formed. Measured on CPUs over
    # loopback are 0.1 to 0.3 s; 30 s allow for the start of a GPU process and for gigabytes of state.
    switch_s: PauseS = 30.0
    spares: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # share of each type's GPUs that wait for a seat, with `switch`
    replacement: Literal["ring", "source"] = "ring"  # how long an iteration with a candidate takes, with `switch`
    slow: SlowNodes | None = None  # None: nodes never are
    backups: Annotated[int, Field(ge=0, le=100)] = 0  # GPUs of a job that may have one at a time, with `switch`

    @model_validator(mode="after")
    def _check_backups_need_switching(self) -> Self:
        if self.backups and self.slow is None:
            raise ValueError("backups are for GPUs of slow nodes; add slow, or leave them out")
        if self.backups and self.handling != "switch":
            raise ValueError("backups join rings that are formed anew; write handling: switch, or leave them out")
        return self

    def draw(self, cluster: Cluster, hazard_per_s: NDArray[np.float64], seed: int) -> FaultDraw:
        """Return how often the parts of a cluster fail, and how.

        Args:
            cluster: The cluster.
            hazard_per_s: Fault rate of each GPU in the long run, shape (gpus,).
            seed: Decides what the model draws.

        Returns:
            Rates of the fault sources, shape (sources,), and the process.
        """
        return source_rates(cluster, np.zeros_like(hazard_per_s)), self.process(1.0)

    def process(self, shape: float) -> FaultProcess:
        """Return the process of faults whose up times have a Weibull shape, without outages."""
        return FaultProcess(shape, self.repair_mean_s, self.repair_sigma, self.transient_probability)


def source_rates(
    cluster: Cluster,
    gpu_per_s: NDArray[np.float64],
    node_per_s: NDArray[np.float64] | float = 0.0,
    rack_per_s: NDArray[np.float64] | float = 0.0,
) -> NDArray[np.float64]:
    """Return the rate of every fault source, shape (sources,): GPUs, then nodes, then racks.

    Args:
        cluster: Gives the numbers of each.
        gpu_per_s: Rate of each GPU, shape (gpus,).
        node_per_s: Rate at which each node fails as a whole, shape (nodes,).
        rack_per_s: Rate at which each rack fails as a whole, shape (racks,).
    """
    gpus, nodes = cluster.gpu_node.size, cluster.speed.size
    rates = np.zeros(fault_sources(cluster))
    rates[:gpus] = gpu_per_s
    rates[gpus : gpus + nodes] = node_per_s
    rates[gpus + nodes :] = rack_per_s
    return rates


class Exponential(FaultConfiguration):
    """Faults of single GPUs with exponential up times; nothing is drawn."""

    def draw(self, cluster: Cluster, hazard_per_s: NDArray[np.float64], seed: int) -> FaultDraw:
        """Return the hazards themselves."""
        return source_rates(cluster, hazard_per_s), self.process(1.0)


DEFAULT_SHAPE = 0.62  # measured on the times between faults of InfiniteHBD's trace
Shape = Annotated[float, Field(ge=0.1, le=10)]


class Weibull(FaultConfiguration):
    """Faults of single GPUs with Weibull up times of mean 1 / hazard; with a shape below 1 they come in bursts."""

    shape: Shape = DEFAULT_SHAPE

    def draw(self, cluster: Cluster, hazard_per_s: NDArray[np.float64], seed: int) -> FaultDraw:
        """Return the hazards themselves; nothing is drawn."""
        return source_rates(cluster, hazard_per_s), self.process(self.shape)


# 5 % of the nodes have 24.5 % of the faults: 0.245 / 0.05 against 0.755 / 0.95.
DEFAULT_FACTOR = 6.17


class Lemon(FaultConfiguration):
    """Faults of single GPUs where some nodes are lemons, which bear `lemon_factor` times the fault rate of the others.

    The hazard is the mean over lemons and others, so a seed changes which nodes fail, not how many faults are
    expected over all seeds.
    """

    lemon_share: Share = 0.05
    lemon_factor: Annotated[float, Field(ge=1, le=1e6)] = DEFAULT_FACTOR
    shape: Shape = 1.0

    def draw(self, cluster: Cluster, hazard_per_s: NDArray[np.float64], seed: int) -> FaultDraw:
        """Return the hazards where each node is a lemon with the probability `lemon_share`."""
        first = fault_sources(cluster)  # streams beyond those of the fault sources; slow nodes have those behind
        drawn = np.array([uniform(seed, first + node, 0) for node in range(cluster.speed.size)])
        factor = np.where(drawn < self.lemon_share, self.lemon_factor, 1.0)
        mean_factor = 1.0 + self.lemon_share * (self.lemon_factor - 1.0)
        rates = source_rates(cluster, hazard_per_s * factor[cluster.gpu_node] / mean_factor)
        return rates, self.process(self.shape)


class Correlated(FaultConfiguration):
    """Faults with different reach, which add up to the hazards; what is left of the shares hits single GPUs.

    24 % of the faults of InfiniteHBD's trace are cables, NICs, fans, power supplies and boards; 5.7 % of its incidents
    (14.6 % of the node faults) hit several nodes at the same moment.
    """

    node_share: Share = 0.24
    rack_share: Share = 0.057
    shape: Shape = 1.0

    @model_validator(mode="after")
    def _check_shares_add_up(self) -> Self:
        if self.node_share + self.rack_share > 1:
            raise ValueError(f"node_share and rack_share add up to {self.node_share + self.rack_share:g}, over 1")
        return self

    def draw(self, cluster: Cluster, hazard_per_s: NDArray[np.float64], seed: int) -> FaultDraw:
        """Return rates of GPUs, nodes and racks; nothing is drawn.

        A node's faults are those of its GPUs, a rack's those of its nodes. The shares of them hit the node or the
        rack as one.
        """
        of_node = np.add.reduceat(hazard_per_s, cluster.first_gpu[:-1])
        of_rack = np.add.reduceat(of_node, cluster.first_node[:-1])
        # Rounding may leave a hair below 0 where the shares add up to 1.
        single = max(0.0, 1.0 - self.node_share - self.rack_share)
        rates = source_rates(cluster, single * hazard_per_s, self.node_share * of_node, self.rack_share * of_rack)
        return rates, self.process(self.shape)


FAULT_MODELS: dict[str, type[FaultConfiguration]] = {
    "correlated": Correlated,
    "exponential": Exponential,
    "lemon": Lemon,
    "none": FaultConfiguration,
    "weibull": Weibull,
}
