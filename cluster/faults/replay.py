"""Outages as they happened, from a fault trace."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..scenarios import FaultProcess, fault_sources
from ..topology import Cluster
from .configuration import FaultDraw


class Outages(NamedTuple):
    """Outages of each fault source, in order and not overlapping."""

    first: NDArray[np.int32]  # (sources + 1,) outages of source s: first[s] to first[s + 1] - 1
    start_s: NDArray[np.float64]  # (outages,)
    end_s: NDArray[np.float64]  # (outages,)


def replay(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: Outages, seed: int) -> FaultDraw:
    """Return outages of a trace as a fault process; nothing is drawn.

    Args:
        cluster: The cluster.
        hazard_per_s: Not used.
        configuration: When each source is away.
        seed: Not used.

    Returns:
        Rates of 0, shape (sources,), and the process.

    Raises:
        ValueError: If the outages are not those of the cluster's sources, out of order or overlapping.
    """
    first, start_s, end_s = configuration
    sources = fault_sources(cluster)
    if first.shape != (sources + 1,) or first[0] != 0 or first[-1] != start_s.size or start_s.shape != end_s.shape:
        raise ValueError(f"first has shape {first.shape} for {start_s.size} outages, expected {(sources + 1,)}")
    source = np.repeat(np.arange(sources), np.diff(first))
    together = source[1:] == source[:-1]
    if (end_s < start_s).any() or (start_s[1:] < end_s[:-1])[together].any():
        raise ValueError("the outages of a source must be in order and must not overlap")
    return np.zeros(sources), FaultProcess(1.0, 1.0, 0.0, 0.0, first, start_s, end_s)
