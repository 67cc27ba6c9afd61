"""What policies know of fault rates: given rates at the start, then estimates from observed faults.

The estimates change only under the rule `estimated_hazards` (docs/simulator.md, Fault rates).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from ..kernels.structures import kth_smallest
from ..model.problem import DEFAULT_HAZARD_PER_S
from .state import LEMON_RATIO, Simulation

# Chosen on InfiniteHBD's trace (400 nodes, 582 faults in 349 days) by the log-likelihood of each day under what the
# days before it had taught. It changes by 1 % between the neighbours of each.
HALF_LIFE_S = 14 * 86400.0
NODE_FAULTS = 0.25  # the given rate of a node counts as this number of faults
FLEET_FAULTS = 4.0  # and those of all nodes of a type together as this
FORGETTING_PER_S = math.log(2.0) / HALF_LIFE_S


@kernel
def fleet_factor(faults: float, expected: float) -> float:
    """Return by what factor nodes of a type fail more often than at their given rates, by faults and expected ones."""
    return (FLEET_FAULTS + faults) / (FLEET_FAULTS + expected)


@kernel
def estimated_rate_per_s(prior_per_s: float, faults: float, exposure_s: float) -> float:
    """Return the mean of a Gamma distribution of a rate after some faults in some time.

    Args:
        prior_per_s: The mean before. One below the usual rate of GPUs counts for no more time than that rate does.
        faults: Faults, weighted by recency.
        exposure_s: The time in which they came, weighted likewise.
    """
    strength_s = NODE_FAULTS / max(prior_per_s, DEFAULT_HAZARD_PER_S)
    return (strength_s * prior_per_s + faults) / (strength_s + exposure_s)


@kernel
def reset_beliefs(sim: Simulation, row: int) -> None:
    """Set what policies know of fault rates to that of the scenario, with nothing observed."""
    state, scenario = sim.state, sim.state.scenario[row]
    for gpu in range(sim.cluster.gpu_node.size):
        state.gpu_hazard_per_s[row, gpu] = sim.scenarios.hazard_per_s[scenario, gpu]
    for node in range(sim.cluster.speed.size):
        state.node_hazard_per_s[row, node] = sim.traits.node_hazard_per_s[scenario, node]
        state.lemon[row, node] = sim.traits.lemon[scenario, node]
        state.observed_s[row, node] = state.now_s[row]
        state.observed_faults[row, node] = 0.0
        state.observed_gpu_s[row, node] = 0.0
        state.failed_s[row, node] = -1.0


def initial_beliefs(sim: Simulation, scenarios: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return the fields of the state that `reset_beliefs` writes at time 0, as it writes them, one row a scenario."""
    hazard_per_s, lemon = sim.traits.node_hazard_per_s[scenarios], sim.traits.lemon[scenarios]
    nothing = np.zeros_like(hazard_per_s)
    return {
        "gpu_hazard_per_s": sim.scenarios.hazard_per_s[scenarios], "node_hazard_per_s": hazard_per_s, "lemon": lemon,
        "observed_s": nothing, "observed_faults": nothing, "observed_gpu_s": nothing, "failed_s": nothing - 1.0,
    }  # fmt: skip


@kernel
def observe_service_time(sim: Simulation, row: int, node: int) -> None:
    """Count how long a node's GPUs have been in service until now, before one of them goes or comes back.

    The caller checks first whether fault rates are estimated: that costs less than a call for each GPU.
    """
    state, cluster = sim.state, sim.cluster
    passed_s = state.now_s[row] - state.observed_s[row, node]
    state.observed_s[row, node] = state.now_s[row]
    if passed_s <= 0.0:  # a real clock may be set back
        return
    up = 0
    for gpu in range(cluster.first_gpu[node], cluster.first_gpu[node + 1]):
        if state.gpu_down[row, gpu] == 0:
            up += 1
    forgotten = -math.expm1(-FORGETTING_PER_S * passed_s)
    state.observed_gpu_s[row, node] += up * forgotten / FORGETTING_PER_S - forgotten * state.observed_gpu_s[row, node]
    state.observed_faults[row, node] -= forgotten * state.observed_faults[row, node]


@kernel
def observe_faults(sim: Simulation, row: int, first: int, after: int) -> None:
    """Let policies learn from a fault that has just taken GPUs out of service, `first` to `after` - 1.

    It counts once for each node in which a GPU was in service before; so do several that come at one moment.
    """
    if not sim.rules.estimated_hazards:
        return
    state = sim.state
    is_seen = False
    for gpu in range(first, after):
        node = sim.cluster.gpu_node[gpu]
        if state.gpu_down[row, gpu] == 1 and state.failed_s[row, node] != state.now_s[row]:
            is_seen = True
            state.failed_s[row, node] = state.now_s[row]
            state.observed_faults[row, node] += 1.0
    if is_seen:
        estimate_hazards(sim, row)


@kernel
def estimate_hazards(sim: Simulation, row: int) -> None:
    """Let policies know what follows from all that was observed up to now."""
    types = sim.cluster.node_type
    for node in range(types.size):
        observe_service_time(sim, row, node)
    for node in range(types.size):
        if node > 0 and types[node] == types[node - 1]:
            continue
        before = 0
        while types[before] != types[node]:
            before += 1
        if before == node:  # the first of its type
            _estimate_type(sim, row, node)
    _mark_lemons(sim, row)


@kernel
def _estimate_type(sim: Simulation, row: int, first: int) -> None:
    """Estimate the rates of all nodes of a type, of which the first is given."""
    state, cluster = sim.state, sim.cluster
    given = sim.traits.node_hazard_per_s[state.scenario[row]]
    faults, expected = 0.0, 0.0
    for node in range(first, given.size):
        if cluster.node_type[node] == cluster.node_type[first] and given[node] > 0.0:
            faults += state.observed_faults[row, node]
            expected += given[node] * state.observed_gpu_s[row, node]
    factor = fleet_factor(faults, expected)
    for node in range(first, given.size):
        if cluster.node_type[node] != cluster.node_type[first]:
            continue
        rate = estimated_rate_per_s(
            factor * given[node], state.observed_faults[row, node], state.observed_gpu_s[row, node]
        )
        state.node_hazard_per_s[row, node] = rate
        for gpu in range(cluster.first_gpu[node], cluster.first_gpu[node + 1]):
            state.gpu_hazard_per_s[row, gpu] = rate


@kernel
def _mark_lemons(sim: Simulation, row: int) -> None:
    """Find the nodes whose rate is far above the lower median of all."""
    state, ordered = sim.state, sim.scratch.trial_run_s
    nodes = sim.cluster.speed.size
    for node in range(nodes):
        ordered[row, node] = state.node_hazard_per_s[row, node]
    median = kth_smallest(ordered, row, nodes, (nodes - 1) // 2)
    for node in range(nodes):
        state.lemon[row, node] = 1 if state.node_hazard_per_s[row, node] > LEMON_RATIO * median else 0
