"""When fault sources fail and when they are back, as a function of counters (docs/simulator.md, Faults)."""

import math

from ..kernels.compiled import kernel
from ..kernels.structures import uniform
from ..state.state import Simulation


@kernel
def up_time_s(seed: int, source: int, k: int, rate_per_s: float, shape: float) -> float:
    """Return the k-th up time of a source: Weibull with mean 1 / rate.

    Source: SPEC R11.
    """
    log_u = -math.log(uniform(seed, source, 4 * k))
    if shape == 1.0:
        return log_u / rate_per_s
    return log_u ** (1.0 / shape) / (rate_per_s * math.gamma(1.0 + 1.0 / shape))


@kernel
def repair_time_s(seed: int, source: int, k: int, mean_s: float, sigma: float, transient_probability: float) -> float:
    """Return the k-th repair time of a source; 0 for a transient fault."""
    if transient_probability > 0.0 and uniform(seed, source, 4 * k + 1) < transient_probability:
        return 0.0
    u = uniform(seed, source, 4 * k + 2)
    if sigma == 0.0:
        return -math.log(u) * mean_s
    z = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * uniform(seed, source, 4 * k + 3))
    return math.exp(sigma * z - 0.5 * sigma * sigma) * mean_s


@kernel
def next_fault_s(sim: Simulation, row: int, source: int, since_s: float) -> float:
    """Return when an up source fails next, inf for never."""
    scenario = sim.state.scenario[row]
    k = sim.state.source_k[row, source]
    rate = sim.scenarios.source_rate_per_s[scenario, source]
    if rate > 0.0:
        return since_s + up_time_s(sim.scenarios.fault_seed[scenario], source, k, rate, sim.process.shape)
    first = sim.process.outage_first
    if source + 1 < first.size and k < first[source + 1] - first[source]:
        return sim.process.outage_start_s[first[source] + k]
    return math.inf


@kernel
def repaired_s(sim: Simulation, row: int, source: int) -> float:
    """Return when a source that fails at the present moment is back."""
    scenario = sim.state.scenario[row]
    k = sim.state.source_k[row, source]
    process = sim.process
    if sim.scenarios.source_rate_per_s[scenario, source] > 0.0:
        seed = sim.scenarios.fault_seed[scenario]
        return sim.state.now_s[row] + repair_time_s(
            seed, source, k, process.repair_mean_s, process.repair_sigma, process.transient_probability
        )
    return process.outage_end_s[process.outage_first[source] + k]


@kernel
def next_pace_s(sim: Simulation, row: int, node: int) -> float:
    """Return when a node becomes slow, or well if it is slow, given that it has just changed; inf for never.

    Both times are exponential. Nodes draw from the streams of random numbers behind those of all fault sources.
    """
    state, rules = sim.state, sim.rules
    if rules.slow_per_s == 0.0:
        return math.inf
    slow, stream = state.node_slow[row, node], state.source_s.shape[1] + node
    u = uniform(sim.scenarios.fault_seed[state.scenario[row]], stream, 2 * state.pace_k[row, node] + slow)
    mean_s = rules.slow_mean_s if slow == 1 else 1.0 / rules.slow_per_s
    return float(state.now_s[row] - math.log(u) * mean_s)
