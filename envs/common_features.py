"""What the observations of nodes, GPUs and candidates have in common, compiled."""

import math

from ..cluster.kernels.compiled import kernel
from ..cluster.state.state import Simulation
from .layout import CLIP


@kernel
def clip(value: float) -> float:
    """Return a value within the bounds of all features."""
    return min(max(value, -CLIP), CLIP)


@kernel
def time_unit_s(sim: Simulation, row: int) -> float:
    """Return the unit of times: the mean estimate of the jobs submitted so far, which a live scheduler knows too."""
    return float(sim.state.estimates_s[row] / sim.state.estimated[row])


@kernel
def largest_node(sim: Simulation) -> int:
    """Return the GPUs of the largest node."""
    first_gpu, size = sim.cluster.first_gpu, 1
    for node in range(sim.cluster.speed.size):
        size = max(size, first_gpu[node + 1] - first_gpu[node])
    return size


@kernel
def lowest_speed(sim: Simulation, row: int) -> float:
    """Return the speed of the slowest nodes."""
    speeds, low = sim.scenarios.speed[sim.state.scenario[row]], math.inf
    for node in range(speeds.size):
        low = min(low, speeds[node])
    return low


@kernel
def open_at_speed(sim: Simulation, row: int, speed: float) -> tuple[float, float]:
    """Return, of the nodes of one speed, which share of their GPUs is usable and which share of them is wholly free."""
    first_gpu, speeds = sim.cluster.first_gpu, sim.scenarios.speed[sim.state.scenario[row]]
    usable, gpus, empty, nodes = 0, 0, 0, 0
    for node in range(speeds.size):
        size = first_gpu[node + 1] - first_gpu[node]
        free = sim.state.free[row, node]
        counts = int(speeds[node] == speed)  # multiplied rather than branched on: no processor guesses speeds
        usable += counts * free
        gpus += counts * size
        empty += counts * (free == size)
        nodes += counts
    return usable / gpus, empty / nodes
