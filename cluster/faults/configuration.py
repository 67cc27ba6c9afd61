"""What a fault model is, and what all have in common: repairs, transient faults, and the arrays they build."""

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..model.scenarios import MOST_RESTART_S, MOST_SLOW_FACTOR, FaultProcess, fault_sources
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
    factor: Annotated[float, Field(gt=1, le=MOST_SLOW_FACTOR)]  # its GPUs compute so many times as long
    lasts_s: Annotated[float, Field(ge=1, le=MOST_RESTART_S)]  # in the mean


class FaultConfiguration(BaseModel):
    """The part of a fault model's configuration that concerns what follows a fault, recorded ones included."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str = ""  # the name that it is registered under, as the cluster file gives it
    transient_probability: Share = 0.73  # a restart is enough
    repair_mean_s: Positive = REPAIR_MEAN_S
    repair_sigma: Annotated[float, Field(ge=0, le=10)] = REPAIR_SIGMA  # log-normal; 0: exponential
    handling: Literal["restart", "switch"] = "restart"  # a fault stops a job; or the job goes on in a ring formed anew
    detection_s: PauseS = 0.0  # from a fault until anybody acts on it
    preflight_s: PauseS = 0.0  # check of GPUs before each start
    # A pause of a ring, with `switch`: processes start, the state is copied, groups are formed. Measured on CPUs over
    # loopback are 0.1 to 0.3 s; 30 s allow for the start of a GPU process and for gigabytes of state.
    switch_s: PauseS = 30.0
    spares: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # share of each type's GPUs that wait for a seat, with `switch`
    replacement: Literal["ring", "source"] = "ring"  # how long an iteration with a candidate takes, with `switch`
    slow: SlowNodes | None = None  # nodes never are if left out
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
