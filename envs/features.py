"""The `full` observation, compiled; envs/layout.py has its features in order."""

import math

import numpy as np
from numpy.typing import NDArray

from ..cluster.kernels.compiled import kernel
from ..cluster.placing import SEVERAL_RACKS, common_divisor, is_planned, order_nodes, slowdown_of
from ..cluster.queue.expected import estimated_work_s, expected_run_s, revise_end_s
from ..cluster.queue.order import may_wait
from ..cluster.queue.turns import has_turns, line_up
from ..cluster.state.holding import usable_on
from ..cluster.state.state import Simulation
from .layout import (
    AHEAD_COUNT,
    AHEAD_ESTIMATE,
    AHEAD_GPUS,
    FEATURE_CLIP,
    GLOBAL,
    GLOBALS,
    GPU_COLUMN,
    LOOK_AHEAD,
    NODE_COLUMN,
    NODE_FEATURES,
)


@kernel
def clip(value: float) -> float:
    """Return a value within the bounds of all features."""
    return min(max(value, -FEATURE_CLIP), FEATURE_CLIP)


@kernel
def time_unit_s(sim: Simulation, row: int) -> float:
    """Return the unit of times: the mean estimate of the jobs submitted so far, which a live scheduler has too."""
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
    """Return the share of usable GPUs, and of wholly free nodes, among the nodes of one speed."""
    first_gpu, speeds = sim.cluster.first_gpu, sim.scenarios.speed[sim.state.scenario[row]]
    usable, gpus, empty, nodes = 0, 0, 0, 0
    for node in range(speeds.size):
        size = first_gpu[node + 1] - first_gpu[node]
        free = sim.state.free[row, node]
        counts = int(speeds[node] == speed)  # multiplied, as branch prediction fails on speeds
        usable += counts * free
        gpus += counts * size
        empty += counts * (free == size)
        nodes += counts
    return usable / gpus, empty / nodes


Rows = NDArray[np.float32]
GLOBAL_COUNT, NODE_COUNT = len(GLOBALS), len(NODE_FEATURES)
GPU_FEATURE_COUNT = len(GPU_COLUMN)


@kernel
def _run_with_rest(sim: Simulation, row: int, node: int, nodes: int, least_speed: float) -> tuple[float, float]:
    """Return run time and slowest speed if the picks continue with a node and then with those of at least a speed.

    After the node, those with most usable GPUs come first, in the order of `trial_order`. The run time is inf if the
    job does not fit.
    """
    state, cluster = sim.state, sim.cluster
    scenario, job = state.scenario[row], state.current[row]
    speeds = sim.scenarios.speed
    need = state.need[row]
    count, several = state.picked_nodes[row], state.picked_rack[row] == SEVERAL_RACKS
    rack, speed = state.picked_rack[row], state.picked_speed[row]
    intra, nic, uplink = state.picked_intra[row], state.picked_nic[row], state.picked_uplink[row]
    for place in range(-1, nodes):
        other = node if place < 0 else sim.scratch.trial_order[row, place]
        if place >= 0 and (other == node or speeds[scenario, other] < least_speed):
            continue
        gives = min(need, state.free[row, other])
        need -= gives
        count += state.taken[row, other] == 0
        speed = min(speed, speeds[scenario, other])
        if sim.rules.ring:
            if gives + state.taken[row, other] > 1:
                intra = min(intra, cluster.intra_bytes_per_s[other])
            nic = min(nic, cluster.nic_bytes_per_s[other])
            several = several or (rack >= 0 and rack != cluster.node_rack[other])
            rack = cluster.node_rack[other]
            uplink = min(uplink, cluster.uplink_bytes_per_s[rack])
        if need == 0:
            break
    if need > 0:
        return math.inf, speed
    grain = _grain_with_rest(sim, row, node, nodes, least_speed) if is_planned(sim, scenario, job) else 0
    slowdown = slowdown_of(sim, scenario, job, count, speed, intra, nic, uplink if several else math.inf, grain)
    return expected_run_s(sim, row, job, slowdown), speed


@kernel
def _grain_with_rest(sim: Simulation, row: int, node: int, nodes: int, least_speed: float) -> int:
    """Return the largest number that divides what each node gives if the picks continue as in `_run_with_rest`."""
    state, speeds = sim.state, sim.scenarios.speed[sim.state.scenario[row]]
    need, grain = state.need[row], 0
    for other in range(state.free.shape[1]):
        if state.free[row, other] == 0:
            grain = common_divisor(grain, state.taken[row, other])
    for place in range(-1, nodes):
        other = node if place < 0 else sim.scratch.trial_order[row, place]
        if place >= 0 and (other == node or speeds[other] < least_speed):
            continue
        gives = min(need, state.free[row, other])
        need -= gives
        grain = common_divisor(grain, state.taken[row, other] + gives)
    return grain


@kernel
def best_completion(sim: Simulation, row: int, node: int, nodes: int) -> tuple[float, float]:
    """Return the shortest run time, and its slowest speed, if the picks of the current job continue with a node.

    `trial_order` must hold the `nodes` nodes with usable GPUs. All speeds not above the node's and the picks' are
    tried as the least that the other nodes must have.
    """
    state = sim.state
    scenario = state.scenario[row]
    speed = min(state.picked_speed[row], sim.scenarios.speed[scenario, node])
    best_s, best_speed = _run_with_rest(sim, row, node, nodes, speed)
    if state.free[row, node] >= state.need[row]:
        return best_s, best_speed
    while True:
        slower = 0.0
        for other in range(sim.cluster.speed.size):
            if slower < sim.scenarios.speed[scenario, other] < speed:
                slower = sim.scenarios.speed[scenario, other]
        if slower == 0.0:
            return best_s, best_speed
        speed = slower
        run_s, slowest = _run_with_rest(sim, row, node, nodes, speed)
        if run_s < best_s:
            best_s, best_speed = run_s, slowest


@kernel
def _write_ends(sim: Simulation, row: int, unit_s: float, out: Rows, at: int, table: Rows, items: int) -> float:
    """Write when running jobs are expected to end, for the cluster and each node; return the last time from now."""
    state = sim.state
    now_s = state.now_s[row]
    first_s, last_s, sum_s = math.inf, 0.0, 0.0
    for i in range(state.running[row]):
        job = state.run_heap[row, i]
        left_s = revise_end_s(sim, row, job) - now_s
        first_s, last_s = min(first_s, left_s), max(last_s, left_s)
        left = np.float32(clip(left_s / unit_s))
        gpu, last_node = state.first_gpu[row, job], -1
        while gpu >= 0:
            sum_s += left_s
            node = sim.cluster.gpu_node[gpu]
            if node != last_node:
                first = items + NODE_COUNT * node
                table[at, first + NODE_COLUMN.first_end] = min(table[at, first + NODE_COLUMN.first_end], left)
                table[at, first + NODE_COLUMN.last_end] = max(table[at, first + NODE_COLUMN.last_end], left)
            gpu, last_node = state.gpu_next[row, gpu], node
    out[at, GLOBAL.next_end] = clip(first_s / unit_s) if first_s < math.inf else 0.0
    out[at, GLOBAL.last_end] = clip(last_s / unit_s)
    out[at, GLOBAL.mean_end] = clip(sum_s / unit_s / state.gpu_job.shape[1])
    return last_s


@kernel
def _write_queue(sim: Simulation, row: int, unit_s: float, size: int, out: Rows, at: int) -> None:
    """Write the first jobs of the queue behind the current one."""
    state = sim.state
    scenario, current = state.scenario[row], state.current[row]
    turned, after = has_turns(sim), 0
    count = line_up(sim, row, LOOK_AHEAD + 1) if turned else 0
    job = state.head[row]
    for i in range(LOOK_AHEAD):
        if turned:
            after += after < count and sim.scratch.lined_up[row, after] == current
            job = sim.scratch.lined_up[row, after] if after < count else -1
            after += 1
        elif job == current:
            job = state.next_job[row, job]
        if job < 0:
            out[at, AHEAD_GPUS + AHEAD_COUNT * i] = 0.0
            out[at, AHEAD_ESTIMATE + AHEAD_COUNT * i] = 0.0
            continue
        out[at, AHEAD_GPUS + AHEAD_COUNT * i] = clip(sim.scenarios.gpus[scenario, job] / size)
        out[at, AHEAD_ESTIMATE + AHEAD_COUNT * i] = clip(estimated_work_s(sim, row, job) / unit_s)
        job = state.next_job[row, job]


@kernel
def _write_capacity(sim: Simulation, row: int, out: Rows, at: int) -> None:
    """Write the shares of usable GPUs and of wholly free nodes at the highest and the lowest speed."""
    high, low = sim.traits.max_speed[sim.state.scenario[row]], lowest_speed(sim, row)
    out[at, GLOBAL.usable_fastest], out[at, GLOBAL.empty_fastest] = open_at_speed(sim, row, high)
    out[at, GLOBAL.usable_slowest], out[at, GLOBAL.empty_slowest] = open_at_speed(sim, row, low)


@kernel
def _write_globals(
    sim: Simulation, row: int, unit_s: float, best_s: float, best_speed: float, out: Rows, at: int
) -> None:
    """Write the features of job, picks, cluster and queue, in the order of GLOBALS, but for the expected ends."""
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    high = sim.traits.max_speed[scenario]
    cluster_gpus = state.gpu_job.shape[1]
    size, largest = largest_node(sim), 0
    for node in range(sim.cluster.speed.size):
        largest = max(largest, state.free[row, node])
    gpus = sim.scenarios.gpus[scenario, job]
    out[at, GLOBAL.gpus_per_node_size] = clip(gpus / size)
    out[at, GLOBAL.log2_gpus] = math.log2(gpus) / 5.0
    out[at, GLOBAL.need_share] = state.need[row] / gpus
    out[at, GLOBAL.estimate] = clip(estimated_work_s(sim, row, job) / unit_s)
    out[at, GLOBAL.restarted] = 1.0 if state.stops[row, job] > 0 else 0.0
    out[at, GLOBAL.saved] = clip(state.saved_s[row, job] / unit_s)
    out[at, GLOBAL.picked_nodes] = clip(float(state.picked_nodes[row]))
    out[at, GLOBAL.picked_speed] = state.picked_speed[row] / high if state.picked_nodes[row] > 0 else 1.0
    out[at, GLOBAL.best_run] = clip(best_s / unit_s)
    out[at, GLOBAL.best_speed] = best_speed / high
    out[at, GLOBAL.usable] = state.usable[row] / cluster_gpus
    out[at, GLOBAL.busy] = state.busy[row] / cluster_gpus
    out[at, GLOBAL.down] = state.down[row] / cluster_gpus
    _write_capacity(sim, row, out, at)
    out[at, GLOBAL.largest_free] = largest / size
    out[at, GLOBAL.queued] = math.log1p(float(state.queued[row])) / 4.0
    out[at, GLOBAL.queued_gpu_time] = clip(state.queued_gpu_s[row] / unit_s / cluster_gpus / 4.0)
    out[at, GLOBAL.may_wait] = 1.0 if may_wait(sim, row) else 0.0
    _write_queue(sim, row, unit_s, size, out, at)


@kernel
def _write_node(sim: Simulation, row: int, node: int, run_s: float, out: Rows, at: int, first: int) -> None:
    """Write the features of a node that do not depend on other nodes."""
    state, cluster = sim.state, sim.cluster
    scenario = state.scenario[row]
    size = cluster.first_gpu[node + 1] - cluster.first_gpu[node]
    free, taken, need = state.free[row, node], state.taken[row, node], state.need[row]
    down = 0
    if state.down[row] > 0:
        for gpu in range(cluster.first_gpu[node], cluster.first_gpu[node + 1]):
            down += state.gpu_down[row, gpu] > 0
    gives = min(need, free)
    speed = sim.scenarios.speed[scenario, node]
    out[at, first + NODE_COLUMN.free] = free / size
    out[at, first + NODE_COLUMN.fits] = 1.0 if free >= need else 0.0
    out[at, first + NODE_COLUMN.gives] = gives / size
    out[at, first + NODE_COLUMN.hole] = (free - gives) / size
    out[at, first + NODE_COLUMN.speed] = speed / sim.traits.max_speed[scenario]
    out[at, first + NODE_COLUMN.slows] = 1.0 if speed < state.picked_speed[row] and state.picked_nodes[row] > 0 else 0.0
    faults = gives * state.node_hazard_per_s[row, node] * run_s if gives > 0 else 0.0
    out[at, first + NODE_COLUMN.faults] = clip(faults)
    out[at, first + NODE_COLUMN.lemon] = state.lemon[row, node]
    out[at, first + NODE_COLUMN.taken] = taken / size
    out[at, first + NODE_COLUMN.down] = down / size
    # Neither a GPU that is down is busy, nor one that the job cannot use.
    out[at, first + NODE_COLUMN.busy] = (size - usable_on(sim, row, node) - down - taken) / size
    out[at, first + NODE_COLUMN.share_of_job] = gives / need


@kernel
def _write_run(
    sim: Simulation, row: int, unit_s: float, run: tuple[float, float], best_s: float, last_s: float,
    table: Rows, at: int, first: int, node: int,
) -> None:  # fmt: skip
    """Write the features by run time and slowest speed of the best completion with a node."""
    scenario, job = sim.state.scenario[row], sim.state.current[row]
    run_s, slowest = run
    share = sim.scenarios.gpus[scenario, job] / sim.state.gpu_job.shape[1]
    table[at, first + NODE_COLUMN.run] = clip(run_s / unit_s)
    table[at, first + NODE_COLUMN.run_over_best] = clip(run_s / best_s - 1.0)
    table[at, first + NODE_COLUMN.best] = 1.0 if run_s <= best_s * (1.0 + 1e-9) else 0.0
    table[at, first + NODE_COLUMN.end_over_last] = clip((run_s - last_s) / unit_s)
    table[at, first + NODE_COLUMN.committed] = clip(share * run_s / unit_s)
    table[at, first + NODE_COLUMN.speed_excess] = clip(sim.scenarios.speed[scenario, node] / slowest - 1.0)


@kernel
def write_full(sim: Simulation, row: int, out: Rows, at: int, table: Rows, items: int) -> None:
    """Write the features of a decision.

    Args:
        sim: The simulation; a job must be due in the row.
        row: Row of the decision.
        out: Takes the global features, shape (rows, at least the global features).
        at: Row of `out` and `table`.
        table: Takes the nodes' features from column `items` on, shape (rows, items + nodes x features); may be `out`.
        items: First column of the nodes.
    """
    state, scratch = sim.state, sim.scratch
    unit_s = time_unit_s(sim, row)
    nodes = state.free.shape[1]
    for node in range(nodes):
        scratch.trial_free[row, node] = state.free[row, node]
        table[at, items + NODE_COUNT * node + NODE_COLUMN.first_end] = FEATURE_CLIP
        table[at, items + NODE_COUNT * node + NODE_COLUMN.last_end] = 0.0
    places = order_nodes(sim, row, state.current[row])
    last_s = _write_ends(sim, row, unit_s, out, at, table, items)
    best_s, best_speed = math.inf, 0.0
    for place in range(places):
        node = scratch.trial_order[row, place]
        run = best_completion(sim, row, node, places)
        scratch.trial_run_s[row, node] = run[0]
        scratch.trial_speed[row, node] = run[1]
        if run[0] < best_s:
            best_s, best_speed = run
    for node in range(nodes):
        first = items + NODE_COUNT * node
        _write_node(sim, row, node, best_s, table, at, first)
        if state.free[row, node] > 0:
            run = (scratch.trial_run_s[row, node], scratch.trial_speed[row, node])
            _write_run(sim, row, unit_s, run, best_s, last_s, table, at, first, node)
        else:
            for feature in range(NODE_COLUMN.run, NODE_COLUMN.speed_excess + 1):
                table[at, first + feature] = 0.0
    _write_globals(sim, row, unit_s, best_s, best_speed, out, at)


@kernel
def write_gpus(sim: Simulation, row: int, table: Rows, out: Rows, at: int) -> None:
    """Write each GPU's own features and those of its node, as `write_full` left them in `table` from column 0 on."""
    state = sim.state
    column = GLOBAL_COUNT
    for gpu in range(state.gpu_job.shape[1]):
        held, down = state.gpu_job[row, gpu] >= 0, state.gpu_down[row, gpu] > 0
        picked = held and state.gpu_job[row, gpu] == state.current[row]
        closed = held or down or state.free[row, sim.cluster.gpu_node[gpu]] == 0  # or the job cannot use it
        out[at, column + GPU_COLUMN.usable] = 0.0 if closed else 1.0
        out[at, column + GPU_COLUMN.gpu_busy] = 1.0 if held and not picked else 0.0
        out[at, column + GPU_COLUMN.gpu_down] = 1.0 if down else 0.0
        out[at, column + GPU_COLUMN.picked] = 1.0 if picked else 0.0
        column += GPU_FEATURE_COUNT
        first = NODE_COUNT * sim.cluster.gpu_node[gpu]
        # Four are read before four are written: the compiler, which cannot know that the arrays do not overlap, then
        # moves them as one. One by one takes three times as long.
        for feature in range(0, NODE_COUNT - 3, 4):
            a, b = table[at, first + feature], table[at, first + feature + 1]
            c, d = table[at, first + feature + 2], table[at, first + feature + 3]
            out[at, column + feature], out[at, column + feature + 1] = a, b
            out[at, column + feature + 2], out[at, column + feature + 3] = c, d
        for feature in range(NODE_COUNT - NODE_COUNT % 4, NODE_COUNT):
            out[at, column + feature] = table[at, first + feature]
        column += NODE_COUNT
