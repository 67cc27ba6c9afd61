"""Fault models: how often the GPUs, nodes and racks of a cluster fail, and how they recover.

A model is a configuration (the `faults` section of a cluster file) and a function that builds fault rates from it.
Recorded faults are no model: they come from a file of their own (cluster/faults/recorded.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from .configuration import FaultConfiguration, FaultDraw
from .correlated import Correlated, correlated
from .exponential import Exponential, exponential
from .lemon import Lemon, lemon
from .none import NoFaults, none
from .weibull import Weibull, weibull


class FaultModel(NamedTuple):
    """One way in which a cluster fails."""

    configuration: type[FaultConfiguration]
    build: Callable[..., FaultDraw]  # of (cluster, hazard_per_s, configuration, seed)


FAULT_MODELS = {
    "none": FaultModel(NoFaults, none),
    "exponential": FaultModel(Exponential, exponential),
    "weibull": FaultModel(Weibull, weibull),
    "lemon": FaultModel(Lemon, lemon),
    "correlated": FaultModel(Correlated, correlated),
}
