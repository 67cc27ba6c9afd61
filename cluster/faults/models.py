"""Fault models: how often the parts of a cluster fail, each by its name in FAULT_MODELS."""

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..files.errors import InputError
from ..files.input_problems import nearest
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


class SlowNodes(BaseModel):
    """Nodes that become slow for a while; both times between changes are exponential."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    a_node_day: Annotated[float, Field(gt=0, le=1000)]  # how often a node that is well becomes slow
    factor: Annotated[float, Field(gt=1, le=MOST_SLOW_FACTOR)]  # by which the compute time of its GPUs grows
    lasts_s: Annotated[float, Field(ge=1, le=MOST_RESTART_S)]  # in the mean


class FaultConfiguration(BaseModel):
    """The part of a fault model's configuration that concerns what follows a fault, recorded ones included."""

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
    def _backups_are_for_slow_nodes_of_jobs_that_switch(self) -> Self:
        if self.backups and self.slow is None:
            raise ValueError("backups are for GPUs of slow nodes; add slow, or leave them out")
        if self.backups and self.handling != "switch":
            raise ValueError("backups join rings that are formed anew; write handling: switch, or leave them out")
        return self


class FaultModel(NamedTuple):
    """One way in which a cluster fails."""

    configuration: type[FaultConfiguration]  # the `faults` section of a cluster file
    build: Callable[..., FaultDraw]  # of (cluster, hazard_per_s, configuration, seed)


def fault_process(configuration: FaultConfiguration, shape: float) -> FaultProcess:
    """Return the process of a configuration whose up times have the given Weibull shape, without outages."""
    return FaultProcess(
        shape=shape,
        repair_mean_s=configuration.repair_mean_s,
        repair_sigma=configuration.repair_sigma,
        transient_probability=configuration.transient_probability,
        outage_first=np.zeros(1, dtype=np.int32),
        outage_start_s=np.zeros(0),
        outage_end_s=np.zeros(0),
    )


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


class NoFaults(FaultConfiguration):
    """Configuration of a cluster that never fails."""


def none(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: NoFaults, seed: int) -> FaultDraw:
    """Return rates of 0, shape (sources,)."""
    return source_rates(cluster, np.zeros_like(hazard_per_s)), fault_process(configuration, 1.0)


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
    """Return whether each node is a lemon, drawn from counters beyond those of the fault sources."""
    first = fault_sources(cluster)
    drawn = np.array([uniform(seed, first + node, 0) for node in range(cluster.speed.size)])
    return drawn < configuration.lemon_share


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
    """Return faults of GPUs, nodes and racks that add up to the hazards; nothing is drawn.

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


FAULT_MODELS = {
    "correlated": FaultModel(Correlated, correlated),
    "exponential": FaultModel(Exponential, exponential),
    "lemon": FaultModel(Lemon, lemon),
    "none": FaultModel(NoFaults, none),
    "weibull": FaultModel(Weibull, weibull),
}


def fault_model(name: str) -> FaultModel:
    """Return a fault model by its name.

    Raises:
        InputError: If there is none of that name.
    """
    if name not in FAULT_MODELS:
        raise InputError(f"there is no fault model {name!r}", nearest(name, FAULT_MODELS))
    return FAULT_MODELS[name]
