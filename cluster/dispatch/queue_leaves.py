"""Where jobs stand among the leaves of the index of a long queue (queue_index.py)."""

import math

from ..kernels.compiled import kernel
from ..state.state import Simulation
from ..state.usable import class_of
from .turns import has_turns, line_of

NO_LEAVES, EMPTY, KEPT = range(3)  # `index_stage`


@kernel
def _size_of(sim: Simulation, kind: int, gpus: int) -> int:
    """Return the place in `index_first` of the jobs of a class that ask for so many GPUs."""
    return kind * (sim.cluster.gpu_node.size + 2) + gpus


@kernel
def lay_out(sim: Simulation, row: int) -> None:
    """Give each job of the scenario its leaf, by class, GPUs and then number, and empty the index."""
    state = sim.state
    gpus, jobs = sim.scenarios.gpus[state.scenario[row]], sim.scenarios.jobs[state.scenario[row]]
    first, sizes = state.index_first, state.index_first.shape[1]
    for size in range(sizes):
        first[row, size] = 0
    for job in range(jobs):
        first[row, _size_of(sim, class_of(sim, row, job), gpus[job]) + 1] += 1
    for size in range(1, sizes):
        first[row, size] += first[row, size - 1]
    for job in range(jobs):
        size = _size_of(sim, class_of(sim, row, job), gpus[job])
        leaf = first[row, size]
        first[row, size] += 1
        state.index_leaf[row, job] = leaf
        state.index_job[row, leaf] = job
        state.index_young_place[row, job] = -1
    for size in range(sizes - 1, 0, -1):  # each count has moved on to that of the next size
        first[row, size] = first[row, size - 1]
    first[row, 0] = 0
    if has_turns(sim):
        _lay_lines(sim, row, jobs)
    for node in range(state.index_best.shape[1]):
        write_node(sim, row, node, -1, math.inf, math.inf, -1, math.inf)
    state.index_young_count[row] = 0
    state.index_stage[row] = EMPTY
    state.index_hidden[row] = 0


@kernel
def _lay_lines(sim: Simulation, row: int, jobs: int) -> None:
    """Give each job its leaf among those of its line, in the order of its other one."""
    state = sim.state
    first, lines = state.index_line, state.index_line.shape[1] - 1
    for line in range(lines + 1):
        first[row, line] = 0
    for job in range(jobs):
        first[row, line_of(sim, row, job)] += 1
    after = 2 * jobs
    for line in range(lines, -1, -1):
        after -= first[row, line]
        first[row, line] = after
    for leaf in range(jobs):
        job = state.index_job[row, leaf]
        line = line_of(sim, row, job)
        own = first[row, line]
        first[row, line] += 1
        state.index_own_leaf[row, job] = own
        state.index_job[row, own] = job
    for line in range(lines, 0, -1):  # each has moved on to that of the next line
        first[row, line] = first[row, line - 1]
    first[row, 0] = jobs


@kernel
def write_node(
    sim: Simulation, row: int, node: int, best: int, key: float, run_s: float, oldest: int, since_s: float
) -> None:
    """Write what a node knows of the jobs below it."""
    state = sim.state
    state.index_best[row, node], state.index_key[row, node] = best, key
    state.index_run_s[row, node] = run_s
    state.index_oldest[row, node], state.index_since_s[row, node] = oldest, since_s


@kernel
def leaves_of(sim: Simulation, row: int, kind: int, gpus: int) -> tuple[int, int]:
    """Return the first leaf of the jobs of a class that ask for at most so many GPUs and the one after the last."""
    leaves, first = sim.state.index_best.shape[1] // 2, sim.state.index_first
    return (
        leaves + int(first[row, _size_of(sim, kind, 0)]),
        leaves + int(first[row, _size_of(sim, kind, gpus) + 1]),
    )


@kernel
def _leaf_from(sim: Simulation, row: int, line: int, kind: int, gpus: int) -> int:
    """Return the first leaf of a line whose job is of a class and asks for so many GPUs, or stands behind those."""
    state = sim.state
    asked = sim.scenarios.gpus[state.scenario[row]]
    left, right = state.index_line[row, line], state.index_line[row, line + 1]
    while left < right:
        middle = (left + right) >> 1
        job = state.index_job[row, middle]
        own = class_of(sim, row, job)
        if own < kind or (own == kind and asked[job] < gpus):
            left = middle + 1
        else:
            right = middle
    return int(left)


@kernel
def leaves_of_line(sim: Simulation, row: int, line: int, kind: int, gpus: int) -> tuple[int, int]:
    """Do what `leaves_of` does for the jobs of one line."""
    leaves = sim.state.index_best.shape[1] // 2
    return leaves + _leaf_from(sim, row, line, kind, 0), leaves + _leaf_from(sim, row, line, kind, gpus + 1)
