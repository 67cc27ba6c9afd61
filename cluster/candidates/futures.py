"""Imagined futures: a simulation in which everything that a policy cannot know is estimated, or drawn anew.

Source: field trials of rollouts; the information is that of docs/policies.md, What policies know.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..dispatch.expected import revise_end_s, whole_work_s
from ..dispatch.queue_index import forget_index
from ..kernels.compiled import kernel
from ..kernels.counter_random import uniform
from ..kernels.heap import heapify
from ..model.problem import Problem
from ..model.scenarios import Scenarios
from ..simulator.fault_process import repair_time_s
from ..simulator.simulation import simulation_of
from ..state.holding import is_struck
from ..state.state import Simulation, State, Traits

PRESENT, FUTURE, TRIAL = range(3)  # rows of an imagination: the moment of the decision, one future from it, a try in it
LIST = [name for name in State._fields if name.startswith(("candidate", "base_"))]  # of candidates, as it was made
REPAIR_TRIES = 64  # draws of a repair time that is longer than what has passed of it


def imagination_of(sim: Simulation) -> Simulation:
    """Return a simulation of three rows in which decisions of another can be tried out."""
    one = Scenarios(*map(_first, sim.scenarios))
    one.jobs[:] = 0  # `recall` writes them
    process = sim.process
    if process.outage_start_s.size:  # recorded faults are the future; their mean length is experience
        process = process._replace(
            repair_mean_s=float((process.outage_end_s - process.outage_start_s).mean()),
            outage_first=np.zeros_like(process.outage_first),
            outage_start_s=np.zeros(0),
            outage_end_s=np.zeros(0),
        )
    rules = sim.rules._replace(estimated_hazards=False)  # faults that are only imagined teach nothing
    imagined = simulation_of(Problem(sim.cluster, one, process, rules), rows=3)
    traits = Traits(*map(_first, sim.traits))  # of the shapes of theirs: `recall` copies those of any scenario
    return Simulation(sim.cluster, one, traits, process, rules, imagined.state, imagined.log)


def _first(array: Any) -> Any:
    return array[:1].copy()


def recall(imagined: Simulation, sim: Simulation, row: int) -> None:
    """Put row PRESENT at a decision of another simulation, of which nothing changes.

    Estimates take the place of what is not known: of the work of jobs, and of the ends of those that run. Jobs that are
    not submitted yet do not exist. Faults are those of single GPUs, at the rates that policies know at this moment,
    and policies know the same rates in all futures. Nodes that are slow stay so, and no others become slow.
    """
    scenario = int(sim.state.scenario[row])
    _copy(sim.scenarios, scenario, imagined.scenarios, 0)
    _copy(sim.traits, scenario, imagined.traits, 0)
    _copy_state(sim, row, imagined)
    imagined.state.scenario[:] = 0
    imagined.scenarios.jobs[0] = sim.state.submitted[row]
    rates = imagined.scenarios.source_rate_per_s[0]
    gpus = sim.cluster.gpu_node.size
    rates[:gpus], rates[gpus:] = imagined.state.gpu_hazard_per_s[PRESENT], 0.0
    imagined.state.pace_s[PRESENT] = math.inf
    _estimate(imagined)


def _copy(theirs: Iterable[Any], at: int, mine: Iterable[Any], to: int) -> None:
    """Copy row `at` of arrays to row `to` of others."""
    for source, target in zip(theirs, mine, strict=True):
        target[to] = source[at]


def _copy_state(sim: Simulation, row: int, imagined: Simulation) -> None:
    """Copy what changes in a row, but for the index of its queue, which the imagination makes for itself."""
    for name in sim.state._fields:
        if not name.startswith("index_"):
            getattr(imagined.state, name)[PRESENT] = getattr(sim.state, name)[row]
    forget_index(imagined, PRESENT)


def copy_candidates(imagined: Simulation, sim: Simulation, row: int) -> None:
    """Let a decision have the candidates that were listed of it in row PRESENT, where everything known is the same."""
    for name in LIST:
        getattr(sim.state, name)[row] = getattr(imagined.state, name)[PRESENT]


@kernel
def _estimate(imagined: Simulation) -> None:
    """Replace what is not known of jobs in row PRESENT by its estimate."""
    state = imagined.state
    for i in range(state.running[PRESENT]):
        job = state.run_heap[PRESENT, i]
        end_s = revise_end_s(imagined, PRESENT, job)
        if not is_struck(imagined, PRESENT, job):  # else it is when the fault is detected, whatever the work
            state.end_s[PRESENT, job] = end_s
    for job in range(imagined.scenarios.jobs[0]):
        imagined.scenarios.work_s[0, job] = whole_work_s(imagined, PRESENT, job)
    heapify(state.end_s, state.run_heap, state.run_place, state.running, PRESENT)


def copy_row(imagined: Simulation, source: int, target: int) -> None:
    """Copy everything that changes in one row to another."""
    _copy(imagined.state, source, imagined.state, target)


@contextmanager
def without_faults(imagined: Simulation) -> Iterator[None]:
    """Let no source fail in futures that are drawn and run meanwhile; repairs end as ever."""
    rates = imagined.scenarios.source_rate_per_s
    kept = rates.copy()
    rates[:] = 0.0
    try:
        yield
    finally:
        rates[:] = kept


@kernel
def draw_future(imagined: Simulation, seed: int) -> None:
    """Draw anew in row FUTURE when fault sources fail and come back, given how long they have been as they are.

    Args:
        imagined: The imagination; row FUTURE is a copy of PRESENT.
        seed: Key of the future's random numbers.
    """
    state, process = imagined.state, imagined.process
    imagined.scenarios.fault_seed[0] = seed
    now_s = state.now_s[FUTURE]
    count, k = 0, 0
    for source in range(state.source_s.shape[1]):
        rate = imagined.scenarios.source_rate_per_s[0, source]
        passed_s = now_s - state.source_since_s[FUTURE, source]
        state.source_k[FUTURE, source] = k  # counted anew, so that nothing hangs on counters of the true process
        state.source_place[FUTURE, source] = -1
        if state.source_failed[FUTURE, source] == 1:
            left_s = _repair_left_s(seed, source, k, passed_s, process.repair_mean_s, process.repair_sigma)
            state.source_s[FUTURE, source] = now_s + left_s
        elif rate > 0.0:
            state.source_s[FUTURE, source] = now_s + _up_left_s(seed, source, k, passed_s, rate, process.shape)
        else:
            state.source_s[FUTURE, source] = math.inf
        if state.source_s[FUTURE, source] < math.inf:
            state.source_heap[FUTURE, count] = source
            count += 1
    state.source_count[FUTURE] = count
    heapify(state.source_s, state.source_heap, state.source_place, state.source_count, FUTURE)


@kernel
def _up_left_s(seed: int, source: int, k: int, passed_s: float, rate_per_s: float, shape: float) -> float:
    """Return how long a source stays up that has been up for so long: Weibull of mean 1 / rate, conditioned on that."""
    log_u = -math.log(uniform(seed, source, 4 * k))
    if shape == 1.0:
        return log_u / rate_per_s
    scale_s = 1.0 / (rate_per_s * math.gamma(1.0 + 1.0 / shape))
    whole_s = scale_s * ((passed_s / scale_s) ** shape + log_u) ** (1.0 / shape)
    return float(max(whole_s - passed_s, 0.0))


@kernel
def _repair_left_s(seed: int, source: int, k: int, passed_s: float, mean_s: float, sigma: float) -> float:
    """Return how long a repair still takes that has gone on for so long."""
    if sigma == 0.0:
        return repair_time_s(seed, source, k, mean_s, sigma, 0.0)
    for attempt in range(REPAIR_TRIES):
        whole_s = repair_time_s(seed, source, k + attempt * 65536, mean_s, sigma, 0.0)
        if whole_s > passed_s:
            return whole_s - passed_s
    return mean_s  # far out in the tail
