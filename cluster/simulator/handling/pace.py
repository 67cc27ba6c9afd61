"""Nodes become slow and well again, and jobs on them run slower meanwhile (docs/simulator.md, Slow nodes).

Source: SPEC P3.
"""

import math

from ...kernels.compiled import kernel
from ...state.holding import held_gpus, is_struck
from ...state.state import Simulation
from ..event_log import SLOW, WELL, begin_event, name_gpu
from ..fault_process import next_pace_s
from .progress import note_slow_nodes, present_slowdown, run_from_here, settle


@kernel
def next_change_s(sim: Simulation, row: int) -> float:
    """Return when a node becomes slow or well next, inf for never."""
    time_s = math.inf
    for node in range(sim.state.pace_s.shape[1]):
        time_s = min(time_s, sim.state.pace_s[row, node])
    return time_s


@kernel
def change_paces(sim: Simulation, row: int) -> None:
    """Let the nodes whose time has come become slow, or well, lowest first; the jobs on them go on at another pace."""
    state, cluster = sim.state, sim.cluster
    for node in range(cluster.speed.size):
        while state.pace_s[row, node] <= state.now_s[row]:
            _turn(sim, row, node)
            for gpu in range(cluster.first_gpu[node], cluster.first_gpu[node + 1]):
                if state.gpu_job[row, gpu] >= 0:
                    _change_pace(sim, row, state.gpu_job[row, gpu])


@kernel
def _turn(sim: Simulation, row: int, node: int) -> None:
    """Let a node become slow, or well if it is slow, and set when it changes next."""
    state, first_gpu = sim.state, sim.cluster.first_gpu
    state.pace_k[row, node] += state.node_slow[row, node]
    state.node_slow[row, node] = 1 - state.node_slow[row, node]
    state.pace_s[row, node] = next_pace_s(sim, row, node)
    if begin_event(sim, row, SLOW if state.node_slow[row, node] == 1 else WELL, -1):
        for gpu in range(first_gpu[node], first_gpu[node + 1]):
            name_gpu(sim, gpu)


@kernel
def _change_pace(sim: Simulation, row: int, job: int) -> None:
    """Let a running job go on as fast as its GPUs are now; what is left of a pause stays as it is.

    One that stands still after a fault does so when it goes on.
    """
    state = sim.state
    if is_struck(sim, row, job):
        return
    note_slow_nodes(sim, row, job)
    if present_slowdown(sim, row, job) == state.slowdown[row, job]:
        return
    pause_s = max(0.0, state.start_s[row, job] + state.overhead_s[row, job] - state.now_s[row])
    settle(sim, row, job, state.now_s[row], held_gpus(sim, row, job))
    run_from_here(sim, row, job, pause_s)
