"""Cases run by the compiled engine: whole runs by a heuristic, or one decision at a time."""

import numpy as np
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import Problem
from longshore.cluster.placing import take_gpu
from longshore.cluster.queue.order import may_wait
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.simulator.event_log import events_of
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import INDEX_FROM, Simulation, allocate_log
from tests.reference_faults import plain_uniform
from tests.strategies import Case

EVENTS, ENTRIES = 20_000, 400_000  # room that no test fills


def compiled(case: Case, *, rows: int = 1, index_from: int = INDEX_FROM) -> Simulation:
    """Return a simulation of a case that keeps the events of row 0."""
    log = allocate_log(EVENTS, ENTRIES)
    problem = Problem(case.cluster, case.scenarios, case.process, case.rules)
    return simulation_of(problem, rows=rows, log=log, index_from=index_from)


def at_first_decision(case: Case) -> Simulation:
    sim = compiled(case)
    reset(sim, 0, case.row)
    assert advance(sim, 0)
    return sim


def read_out(sim: Simulation) -> tuple[list[Event], Outcome]:
    assert sim.log.size[1] == 0, "the log is full"
    return events_of(sim.log), outcome_of(sim, slice(0, 1))


def run_heuristic(case: Case, name: str, index_from: int = INDEX_FROM) -> tuple[list[Event], Outcome]:
    return run_policy(case, HEURISTICS[name], index_from)


def run_policy(case: Case, policy: Policy, index_from: int = INDEX_FROM) -> tuple[list[Event], Outcome]:
    sim = compiled(case, index_from=index_from)
    policy.run(sim, np.array([case.row], dtype=np.int64))
    return read_out(sim)


def run_script(case: Case, seed: int, wait_share: float, index_from: int = INDEX_FROM) -> tuple[list[Event], Outcome]:
    """Run what `scripted` of the reference policies would choose."""
    sim = compiled(case, index_from=index_from)
    reset(sim, 0, case.row)
    while advance(sim, 0):
        turn = int(sim.state.decisions[0])
        if may_wait(sim, 0) and plain_uniform(seed, turn, 1000) < wait_share:
            wait(sim, 0)
            continue
        left = usable(sim).tolist()
        for i in range(int(sim.state.need[0])):
            take_gpu(sim, 0, left.pop(int(plain_uniform(seed, turn, i) * len(left))))
        start(sim, 0)
    return read_out(sim)


def usable(sim: Simulation) -> NDArray[np.int64]:
    """Return the GPUs of row 0 that can be picked, ascending."""
    is_open = sim.state.free[0][sim.cluster.gpu_node] > 0  # those of nodes that suit the job
    return np.flatnonzero((sim.state.gpu_job[0] < 0) & (sim.state.gpu_down[0] == 0) & is_open)


def picks(sim: Simulation) -> list[int]:
    """Return the GPUs picked for the job that is due in row 0, ascending."""
    return np.flatnonzero(sim.state.gpu_job[0] == sim.state.current[0]).tolist()
