"""Observations, compiled: `full`, and that of candidates. envs/layout.py has their features in order.

`write_full_observation` writes the one and `write_candidate_features` the other.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ..cluster.candidates.candidates import is_wait, lets_all_jobs_wait, list_candidates
from ..cluster.candidates.futures import imagine_candidate, imagine_queue
from ..cluster.candidates.node_sets import least_run_s
from ..cluster.kernels.compiled import kernel
from ..cluster.kernels.structures import kth_smallest
from ..cluster.model.problem import lets_jobs_pass, orders_by_work, shortest_job_leads
from ..cluster.placing import SEVERAL_RACKS, common_divisor, is_planned, order_nodes_by_free, slowdown_of
from ..cluster.queue.expected import estimated_work_s, expected_fault_loss_s, expected_run_s, revise_end_s
from ..cluster.queue.order import may_wait
from ..cluster.queue.turns import line_up_jobs
from ..cluster.state.holding import usable_on_node
from ..cluster.state.state import AHEAD_JOBS, AHEAD_SHOWN, MAX_CANDIDATES, Simulation, has_turns
from .layout import (
    AHEAD_COUNT,
    AHEAD_ESTIMATE,
    AHEAD_GPUS,
    CANDIDATE,
    CANDIDATE_FEATURES,
    CANDIDATE_GLOBALS,
    DECISION,
    DRAIN_QUANTILES,
    FEATURE_CLIP,
    GLOBAL,
    GLOBALS,
    GPU_COLUMN,
    JOB_SIZE_CLASSES,
    LOOK_AHEAD,
    NODE_COLUMN,
    NODE_FEATURES,
)


@kernel
def clip_feature(value: float) -> float:
    """Return a value within the bounds of all features."""
    return min(max(value, -FEATURE_CLIP), FEATURE_CLIP)


@kernel
def time_unit_s(sim: Simulation, row: int) -> float:
    """Return the unit of times: the mean estimate of the jobs submitted so far, which a live scheduler has too."""
    return float(sim.state.estimates_s[row] / sim.state.estimated[row])


@kernel
def largest_node_gpus(sim: Simulation) -> int:
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
def free_shares_at_speed(sim: Simulation, row: int, speed: float) -> tuple[float, float]:
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
def _completion_with_node(sim: Simulation, row: int, node: int, nodes: int, least_speed: float) -> tuple[float, float]:
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
    grain = _completion_grain(sim, row, node, nodes, least_speed) if is_planned(sim, scenario, job) else 0
    slowdown = slowdown_of(sim, scenario, job, count, speed, intra, nic, uplink if several else math.inf, grain)
    return expected_run_s(sim, row, job, slowdown), speed


@kernel
def _completion_grain(sim: Simulation, row: int, node: int, nodes: int, least_speed: float) -> int:
    """Return the largest number that divides what each node of `_completion_with_node` gives."""
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
    best_s, best_speed = _completion_with_node(sim, row, node, nodes, speed)
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
        run_s, slowest = _completion_with_node(sim, row, node, nodes, speed)
        if run_s < best_s:
            best_s, best_speed = run_s, slowest


@kernel
def _write_job_ends(sim: Simulation, row: int, unit_s: float, out: Rows, at: int, table: Rows, items: int) -> float:
    """Write when running jobs are expected to end, for the cluster and each node; return the last time from now."""
    state = sim.state
    now_s = state.now_s[row]
    first_s, last_s, sum_s = math.inf, 0.0, 0.0
    for i in range(state.running[row]):
        job = state.run_heap[row, i]
        left_s = revise_end_s(sim, row, job) - now_s
        first_s, last_s = min(first_s, left_s), max(last_s, left_s)
        left = np.float32(clip_feature(left_s / unit_s))
        gpu, last_node = state.first_gpu[row, job], -1
        while gpu >= 0:
            sum_s += left_s
            node = sim.cluster.gpu_node[gpu]
            if node != last_node:
                first = items + NODE_COUNT * node
                table[at, first + NODE_COLUMN.first_end] = min(table[at, first + NODE_COLUMN.first_end], left)
                table[at, first + NODE_COLUMN.last_end] = max(table[at, first + NODE_COLUMN.last_end], left)
            gpu, last_node = state.gpu_next[row, gpu], node
    out[at, GLOBAL.next_end] = clip_feature(first_s / unit_s) if first_s < math.inf else 0.0
    out[at, GLOBAL.last_end] = clip_feature(last_s / unit_s)
    out[at, GLOBAL.mean_end] = clip_feature(sum_s / unit_s / state.gpu_job.shape[1])
    return last_s


@kernel
def _write_next_jobs(sim: Simulation, row: int, unit_s: float, size: int, out: Rows, at: int) -> None:
    """Write the first jobs of the queue behind the current one."""
    state = sim.state
    scenario, current = state.scenario[row], state.current[row]
    turned, after = has_turns(sim), 0
    count = line_up_jobs(sim, row, LOOK_AHEAD + 1) if turned else 0
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
        out[at, AHEAD_GPUS + AHEAD_COUNT * i] = clip_feature(sim.scenarios.gpus[scenario, job] / size)
        out[at, AHEAD_ESTIMATE + AHEAD_COUNT * i] = clip_feature(estimated_work_s(sim, row, job) / unit_s)
        job = state.next_job[row, job]


@kernel
def _write_cluster_load(sim: Simulation, row: int, unit_s: float, size: int, out: Rows, at: int, first: int) -> None:
    """Write `usable` to `queued_gpu_time`, which both observations have in the same order, from column `first` on."""
    state, shift = sim.state, first - DECISION.usable
    cluster_gpus, largest = state.gpu_job.shape[1], 0
    for node in range(sim.cluster.speed.size):
        largest = max(largest, state.free[row, node])
    out[at, shift + DECISION.usable] = state.usable[row] / cluster_gpus
    out[at, shift + DECISION.busy] = state.busy[row] / cluster_gpus
    out[at, shift + DECISION.down] = state.down[row] / cluster_gpus
    high, low = sim.traits.max_speed[state.scenario[row]], lowest_speed(sim, row)
    usable, empty = free_shares_at_speed(sim, row, high)
    out[at, shift + DECISION.usable_fastest], out[at, shift + DECISION.empty_fastest] = usable, empty
    usable, empty = free_shares_at_speed(sim, row, low)
    out[at, shift + DECISION.usable_slowest], out[at, shift + DECISION.empty_slowest] = usable, empty
    out[at, shift + DECISION.largest_free] = largest / size
    out[at, shift + DECISION.queued] = math.log1p(float(state.queued[row])) / 4.0
    out[at, shift + DECISION.queued_gpu_time] = clip_feature(state.queued_gpu_s[row] / unit_s / cluster_gpus / 4.0)


@kernel
def _write_global_features(
    sim: Simulation, row: int, unit_s: float, best_s: float, best_speed: float, out: Rows, at: int
) -> None:
    """Write the features of job, picks, cluster and queue, in the order of GLOBALS, but for the expected ends."""
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    high = sim.traits.max_speed[scenario]
    size, gpus = largest_node_gpus(sim), sim.scenarios.gpus[scenario, job]
    out[at, GLOBAL.gpus_per_node_size] = clip_feature(gpus / size)
    out[at, GLOBAL.log2_gpus] = math.log2(gpus) / 5.0
    out[at, GLOBAL.need_share] = state.need[row] / gpus
    out[at, GLOBAL.estimate] = clip_feature(estimated_work_s(sim, row, job) / unit_s)
    out[at, GLOBAL.restarted] = 1.0 if state.stops[row, job] > 0 else 0.0
    out[at, GLOBAL.saved] = clip_feature(state.saved_s[row, job] / unit_s)
    out[at, GLOBAL.picked_nodes] = clip_feature(float(state.picked_nodes[row]))
    out[at, GLOBAL.picked_speed] = state.picked_speed[row] / high if state.picked_nodes[row] > 0 else 1.0
    out[at, GLOBAL.best_run] = clip_feature(best_s / unit_s)
    out[at, GLOBAL.best_speed] = best_speed / high
    _write_cluster_load(sim, row, unit_s, size, out, at, GLOBAL.usable)
    out[at, GLOBAL.may_wait] = 1.0 if may_wait(sim, row) else 0.0
    _write_next_jobs(sim, row, unit_s, size, out, at)


@kernel
def _write_node_features(sim: Simulation, row: int, node: int, run_s: float, out: Rows, at: int, first: int) -> None:
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
    out[at, first + NODE_COLUMN.faults] = clip_feature(faults)
    out[at, first + NODE_COLUMN.lemon] = state.lemon[row, node]
    out[at, first + NODE_COLUMN.taken] = taken / size
    out[at, first + NODE_COLUMN.down] = down / size
    # Neither a GPU that is down is busy, nor one that the job cannot use.
    out[at, first + NODE_COLUMN.busy] = (size - usable_on_node(sim, row, node) - down - taken) / size
    out[at, first + NODE_COLUMN.share_of_job] = gives / need


@kernel
def _write_completion_features(
    sim: Simulation, row: int, unit_s: float, run: tuple[float, float], best_s: float, last_s: float,
    table: Rows, at: int, first: int, node: int,
) -> None:  # fmt: skip
    """Write the features by run time and slowest speed of the best completion with a node."""
    scenario, job = sim.state.scenario[row], sim.state.current[row]
    run_s, slowest = run
    share = sim.scenarios.gpus[scenario, job] / sim.state.gpu_job.shape[1]
    table[at, first + NODE_COLUMN.run] = clip_feature(run_s / unit_s)
    table[at, first + NODE_COLUMN.run_over_best] = clip_feature(run_s / best_s - 1.0)
    table[at, first + NODE_COLUMN.best] = 1.0 if run_s <= best_s * (1.0 + 1e-9) else 0.0
    table[at, first + NODE_COLUMN.end_over_last] = clip_feature((run_s - last_s) / unit_s)
    table[at, first + NODE_COLUMN.committed] = clip_feature(share * run_s / unit_s)
    table[at, first + NODE_COLUMN.speed_excess] = clip_feature(sim.scenarios.speed[scenario, node] / slowest - 1.0)


@kernel
def write_full_observation(sim: Simulation, row: int, out: Rows, at: int, table: Rows, items: int) -> None:
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
    places = order_nodes_by_free(sim, row, state.current[row])
    last_s = _write_job_ends(sim, row, unit_s, out, at, table, items)
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
        _write_node_features(sim, row, node, best_s, table, at, first)
        if state.free[row, node] > 0:
            run = (scratch.trial_run_s[row, node], scratch.trial_speed[row, node])
            _write_completion_features(sim, row, unit_s, run, best_s, last_s, table, at, first, node)
        else:
            for feature in range(NODE_COLUMN.run, NODE_COLUMN.speed_excess + 1):
                table[at, first + feature] = 0.0
    _write_global_features(sim, row, unit_s, best_s, best_speed, out, at)


@kernel
def write_gpu_features(sim: Simulation, row: int, table: Rows, out: Rows, at: int) -> None:
    """Write each GPU's own features and its node's, which `write_full_observation` left in `table` from column 0 on."""
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


CANDIDATE_GLOBAL_COUNT, CANDIDATE_FEATURE_COUNT = len(CANDIDATE_GLOBALS), len(CANDIDATE_FEATURES)
MIN_TIME_S = 1e-9  # so that no logarithm is of 0
SCANNED = 256  # jobs of the queue that are read one by one
OVER_BASE = (  # a column, and the column whose difference to the base's it holds
    (CANDIDATE.finish_over_base, CANDIDATE.finish),
    (CANDIDATE.committed_over_base, CANDIDATE.committed),
    (CANDIDATE.ahead_sum_over_base, CANDIDATE.ahead_sum),
    (CANDIDATE.ahead_last_over_base, CANDIDATE.ahead_last),
)


@kernel
def _log_ratio(one_s: float, other_s: float) -> float:
    """Return the logarithm of a ratio of times, clipped as all features are."""
    return clip_feature(math.log(max(one_s, MIN_TIME_S) / max(other_s, MIN_TIME_S)))


@kernel
def _log1p_ratio(one_s: float, other_s: float) -> float:
    """Return the logarithm of 1 + a time of at least 0 over another."""
    return clip_feature(math.log1p(max(one_s, 0.0) / max(other_s, MIN_TIME_S)))


@kernel
def _job_size_class(gpus: int) -> int:
    place = 0
    while place < JOB_SIZE_CLASSES - 1 and gpus > 1 << place:
        place += 1
    return place


@kernel
def _write_candidate_queue(sim: Simulation, row: int, unit_s: float, size: int, out: Rows, at: int) -> None:
    """Write the queue: its work by size, the next large job, the longest, and the share of shorter ones."""
    state = sim.state
    scenario, current = state.scenario[row], state.current[row]
    gpus = sim.scenarios.gpus[scenario]
    cluster_gpus = state.gpu_job.shape[1]
    for place in range(JOB_SIZE_CLASSES):
        out[at, DECISION.queued_gpu_time_0 + place] = 0.0
    large, before, longest, longest_s = -1, 0, -1, 0.0
    shorter, own_s = 0, estimated_work_s(sim, row, current)
    turned = has_turns(sim)
    count = line_up_jobs(sim, row, SCANNED) if turned else min(state.queued[row], SCANNED)
    job, place = state.head[row], 0
    while place < count:
        if turned:
            job = sim.scratch.lined_up[row, place]
        work_s = estimated_work_s(sim, row, job)
        out[at, DECISION.queued_gpu_time_0 + _job_size_class(gpus[job])] += (
            work_s * gpus[job] / (4.0 * unit_s * cluster_gpus)
        )
        shorter += work_s < own_s
        if job != current:
            if large < 0 and gpus[job] >= size:
                large, before = job, place
            if work_s > longest_s:
                longest, longest_s = job, work_s
        place += 1
        job = state.next_job[row, job]
    out[at, DECISION.next_large] = math.log1p(float(before if large >= 0 else place)) / 4.0
    for kind in range(JOB_SIZE_CLASSES):
        out[at, DECISION.queued_gpu_time_0 + kind] = clip_feature(out[at, DECISION.queued_gpu_time_0 + kind])
    out[at, DECISION.next_large_gpus] = gpus[large] / cluster_gpus if large >= 0 else 0.0
    out[at, DECISION.shorter] = shorter / max(place, 1)
    out[at, DECISION.longest] = clip_feature(longest_s / unit_s)
    out[at, DECISION.longest_gpus] = gpus[longest] / cluster_gpus if longest >= 0 else 0.0


@kernel
def _write_drain_times(sim: Simulation, row: int, unit_s: float, out: Rows, at: int) -> float:
    """Write when running jobs are expected to end; leave each node's drain time, from now, in `trial_run_s`."""
    state = sim.state
    now_s, count, nodes = state.now_s[row], state.running[row], state.free.shape[1]
    drain = sim.scratch.trial_run_s
    for node in range(nodes):
        drain[row, node] = 0.0
    sum_s = 0.0
    for i in range(count):
        left_s = state.ends_s[row, i] - now_s
        gpu = state.first_gpu[row, state.ends_job[row, i]]
        while gpu >= 0:
            drain[row, sim.cluster.gpu_node[gpu]] = left_s  # ends come in order
            sum_s += left_s
            gpu = state.gpu_next[row, gpu]
    last_s = state.ends_s[row, count - 1] - now_s if count > 0 else 0.0
    out[at, DECISION.next_end] = clip_feature((state.ends_s[row, 0] - now_s) / unit_s) if count > 0 else 0.0
    out[at, DECISION.last_end] = clip_feature(last_s / unit_s)
    out[at, DECISION.running_gpu_time] = clip_feature(sum_s / unit_s / state.gpu_job.shape[1])
    own_s = estimated_work_s(sim, row, state.current[row])
    out[at, DECISION.log_drain] = _log1p_ratio(sum_s / state.gpu_job.shape[1], own_s) / 4.0
    ordered = sim.scratch.trial_speed
    for node in range(nodes):
        ordered[row, node] = drain[row, node]
    for quantile in range(DRAIN_QUANTILES):
        drain_s = kth_smallest(ordered, row, nodes, (nodes - 1) * quantile // (DRAIN_QUANTILES - 1))
        out[at, DECISION.drain_0 + quantile] = clip_feature(drain_s / unit_s)
    return last_s


@kernel
def _write_order_and_scales(sim: Simulation, row: int, unit_s: float, out: Rows, at: int) -> None:
    """Write the order regime, and the scales of the job that is due, as logarithms."""
    state, order = sim.state, sim.rules.order
    job = state.current[row]
    work_s = estimated_work_s(sim, row, job)
    out[at, DECISION.passes] = 1.0 if lets_jobs_pass(order) else 0.0
    out[at, DECISION.by_key] = 1.0 if orders_by_work(order) else 0.0
    out[at, DECISION.smallest_first] = 1.0 if shortest_job_leads(order) else 0.0
    out[at, DECISION.log_estimate] = _log_ratio(work_s, unit_s) / 4.0
    out[at, DECISION.log_fault_loss] = _log1p_ratio(expected_fault_loss_s(sim), work_s) / 4.0
    out[at, DECISION.log_waited] = _log1p_ratio(state.now_s[row] - state.queued_s[row, job], work_s) / 4.0
    out[at, DECISION.log_running] = math.log1p(float(state.running[row])) / 4.0
    out[at, DECISION.log_backlog] = _log1p_ratio(state.queued_gpu_s[row] / state.gpu_job.shape[1], work_s) / 4.0


@kernel
def _write_candidate_globals(
    sim: Simulation, row: int, unit_s: float, size: int, candidates: int, out: Rows, at: int
) -> float:
    """Write the global features; return the last expected end, from now."""
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    gpus = sim.scenarios.gpus[scenario, job]
    out[at, DECISION.gpus_per_node_size] = clip_feature(gpus / size)
    out[at, DECISION.log2_gpus] = math.log2(gpus) / 5.0
    out[at, DECISION.estimate] = clip_feature(estimated_work_s(sim, row, job) / unit_s)
    out[at, DECISION.restarted] = 1.0 if state.stops[row, job] > 0 else 0.0
    _write_cluster_load(sim, row, unit_s, size, out, at, DECISION.usable)
    _write_candidate_queue(sim, row, unit_s, size, out, at)
    _write_order_and_scales(sim, row, unit_s, out, at)
    last_s = _write_drain_times(sim, row, unit_s, out, at)
    out[at, DECISION.may_wait] = 1.0 if may_wait(sim, row) else 0.0
    out[at, DECISION.base_waits] = state.base_waits[row]
    out[at, DECISION.candidates] = candidates / MAX_CANDIDATES
    return last_s


@kernel
def _write_gpus_left(sim: Simulation, row: int, size: int, out: Rows, at: int, first: int) -> None:
    """Write the GPUs that the candidate leaves usable, which `trial_free` holds."""
    state, cluster = sim.state, sim.cluster
    speeds = sim.scenarios.speed[state.scenario[row]]
    high = sim.traits.max_speed[state.scenario[row]]
    fast, others, largest, empty = 0, 0, 0, 0
    for node in range(speeds.size):
        free = sim.scratch.trial_free[row, node]
        fast += free * (speeds[node] == high)
        others += free * (speeds[node] != high)
        largest = max(largest, free)
        empty += free == cluster.first_gpu[node + 1] - cluster.first_gpu[node]
    cluster_gpus = state.gpu_job.shape[1]
    out[at, first + CANDIDATE.left_fastest] = fast / cluster_gpus
    out[at, first + CANDIDATE.left_others] = others / cluster_gpus
    out[at, first + CANDIDATE.left_largest] = largest / size
    out[at, first + CANDIDATE.left_empty] = empty / speeds.size


@kernel
def _write_candidate_nodes(
    sim: Simulation, row: int, candidate: int, finish_s: float, size: int, unit_s: float, out: Rows, at: int, first: int
) -> None:
    """Write the features of a candidate's nodes; `ahead_gives` holds the GPUs of each, `trial_run_s` drain times."""
    state = sim.state
    scenario, nodes = state.scenario[row], state.free.shape[1]
    speeds, high = sim.scenarios.speed[scenario], sim.traits.max_speed[scenario]
    gpus = sim.scenarios.gpus[scenario, state.candidate_job[row, candidate]]
    slowest, total, hazard, drain_s, lemons = math.inf, 0.0, 0.0, 0.0, 0
    count = state.candidate_size[row, candidate]
    for i in range(count):
        node, gives = state.candidate_node[row, candidate * nodes + i], sim.scratch.ahead_gives[row, i]
        slowest = min(slowest, speeds[node])
        total += gives * speeds[node]
        hazard += gives * state.node_hazard_per_s[row, node]
        drain_s = max(drain_s, sim.scratch.trial_run_s[row, node])
        lemons += gives * state.lemon[row, node]
    out[at, first + CANDIDATE.finish_over_drain] = clip_feature((finish_s - drain_s) / unit_s)
    out[at, first + CANDIDATE.faults] = clip_feature(hazard * state.candidate_s[row, candidate])
    out[at, first + CANDIDATE.nodes] = clip_feature(count / 8.0)
    out[at, first + CANDIDATE.excess_nodes] = clip_feature((count - (gpus + size - 1) // size) / 8.0)
    out[at, first + CANDIDATE.speed] = slowest / high
    out[at, first + CANDIDATE.wasted_speed] = (total - gpus * slowest) / (gpus * high)
    out[at, first + CANDIDATE.hole] = state.candidate_hole[row, candidate] / size
    out[at, first + CANDIDATE.takes_lemon] = lemons / gpus


@kernel
def _write_jobs_ahead(
    sim: Simulation, row: int, places: int, last_s: float, unit_s: float, out: Rows, at: int, first: int
) -> float:
    """Write when the jobs ahead start and end; return the sum of their ends, from now."""
    state, scratch = sim.state, sim.scratch
    now_s = state.now_s[row]
    sum_s = scratch.ahead_end_s[row, 0] - now_s
    latest_s, column, at_once = max(last_s, sum_s), first + CANDIDATE.ahead_start_1, 0
    for place in range(1, AHEAD_JOBS):
        start, end = 0.0, 0.0
        if place < places:
            at_once += scratch.ahead_start_s[row, place] <= now_s
            start = clip_feature((scratch.ahead_start_s[row, place] - now_s) / unit_s)
            end = clip_feature((scratch.ahead_end_s[row, place] - now_s) / unit_s)
            if scratch.ahead_end_s[row, place] < math.inf:
                sum_s += scratch.ahead_end_s[row, place] - now_s
                latest_s = max(latest_s, scratch.ahead_end_s[row, place] - now_s)
        if place < AHEAD_SHOWN:
            out[at, column] = start
            out[at, column + 1] = end
            column += 2
    out[at, first + CANDIDATE.ahead_sum] = clip_feature(sum_s / unit_s / AHEAD_JOBS)
    out[at, first + CANDIDATE.ahead_last] = clip_feature(latest_s / unit_s)
    out[at, first + CANDIDATE.ahead_now] = at_once / 8.0
    return float(sum_s)


@kernel
def _write_candidate_job(
    sim: Simulation, row: int, candidate: int, unit_s: float, out: Rows, at: int, first: int
) -> None:
    """Write the features of a candidate's job, and whether the candidate rests or is refused."""
    state = sim.state
    job = state.candidate_job[row, candidate]
    out[at, first + CANDIDATE.due] = 1.0 if job == state.current[row] else 0.0
    out[at, first + CANDIDATE.job_log2_gpus] = math.log2(sim.scenarios.gpus[state.scenario[row], job]) / 5.0
    out[at, first + CANDIDATE.job_estimate] = clip_feature(estimated_work_s(sim, row, job) / unit_s)
    waited_s = state.now_s[row] - state.queued_s[row, job]
    # Rounding leaves a wait of nothing a little below 0.
    out[at, first + CANDIDATE.job_waited] = clip_feature(math.log1p(max(waited_s, 0.0) / unit_s))
    work_s = estimated_work_s(sim, row, job)
    out[at, first + CANDIDATE.job_log_estimate] = _log_ratio(work_s, unit_s) / 4.0
    out[at, first + CANDIDATE.job_log_waited] = _log1p_ratio(waited_s, work_s) / 4.0
    out[at, first + CANDIDATE.rests] = 1.0 if lets_all_jobs_wait(sim, row, candidate) else 0.0
    refused = state.base_refused[row] == 1 and candidate == state.base_waits[row]
    out[at, first + CANDIDATE.refused] = 1.0 if refused else 0.0


@kernel
def _write_candidate_ratios(sim: Simulation, row: int, candidate: int, unit_s: float, sum_s: float, base_sum_s: float,
                            out: Rows, at: int, first: int) -> None:  # fmt: skip
    """Write how a candidate compares with the base and with its job's shortest run time, on a logarithmic scale."""
    state = sim.state
    delay_s, run_s = state.candidate_delay_s[row, candidate], state.candidate_s[row, candidate]
    base_finish_s = state.candidate_delay_s[row, 0] + state.candidate_s[row, 0]
    fastest = sim.traits.max_speed[state.scenario[row]]
    least_s = least_run_s(sim, row, state.candidate_job[row, candidate], fastest)
    out[at, first + CANDIDATE.log_run] = _log_ratio(run_s, unit_s) / 4.0
    out[at, first + CANDIDATE.log_finish] = _log_ratio(delay_s + run_s, unit_s) / 4.0
    out[at, first + CANDIDATE.run_over_least] = _log_ratio(run_s, least_s)
    out[at, first + CANDIDATE.delay_over_least] = _log1p_ratio(delay_s, least_s)
    out[at, first + CANDIDATE.finish_ratio] = _log_ratio(delay_s + run_s, base_finish_s)
    out[at, first + CANDIDATE.ahead_ratio] = clip_feature(8.0 * _log_ratio(sum_s, base_sum_s))
    out[at, first + CANDIDATE.ahead_gain] = clip_feature((base_sum_s - sum_s) / max(least_s, MIN_TIME_S))


@kernel
def _write_candidate(sim: Simulation, row: int, candidate: int, size: int, last_s: float, unit_s: float, out: Rows,
                     at: int, first: int, base: int, base_sum_s: float) -> float:  # fmt: skip
    """Write one candidate; return the sum of the ends of all jobs ahead, from now.

    `base` is the column of the first candidate, and `base_sum_s` its sum, below 0 if this is it.
    """
    state = sim.state
    gpus = sim.scenarios.gpus[state.scenario[row], state.candidate_job[row, candidate]]
    delay_s, run_s = state.candidate_delay_s[row, candidate], state.candidate_s[row, candidate]
    finish_s = delay_s + run_s
    start = imagine_candidate(sim, row, candidate)
    _write_gpus_left(sim, row, size, out, at, first)
    places = imagine_queue(sim, row, start)
    out[at, first + CANDIDATE.exists] = 1.0
    out[at, first + CANDIDATE.base] = 1.0 if candidate == 0 else 0.0
    out[at, first + CANDIDATE.waits] = 1.0 if is_wait(sim, row, candidate) else 0.0
    out[at, first + CANDIDATE.delay] = clip_feature(delay_s / unit_s)
    out[at, first + CANDIDATE.run] = clip_feature(run_s / unit_s)
    out[at, first + CANDIDATE.finish] = clip_feature(finish_s / unit_s)
    out[at, first + CANDIDATE.finish_over_last] = clip_feature((finish_s - last_s) / unit_s)
    out[at, first + CANDIDATE.committed] = clip_feature(gpus * run_s / unit_s / state.gpu_job.shape[1])
    _write_candidate_nodes(sim, row, candidate, finish_s, size, unit_s, out, at, first)
    sum_s = _write_jobs_ahead(sim, row, places, last_s, unit_s, out, at, first)
    _write_candidate_ratios(
        sim, row, candidate, unit_s, sum_s, sum_s if base_sum_s < 0.0 else base_sum_s, out, at, first
    )
    _write_candidate_job(sim, row, candidate, unit_s, out, at, first)
    for over, of in OVER_BASE:
        out[at, first + over] = out[at, first + of] - out[at, base + of]
    return sum_s


@kernel
def list_and_write_candidates(sim: Simulation, row: int, out: Rows, at: int) -> int:
    """List the candidates of the decision that is due, write their features, and return their number."""
    candidates = list_candidates(sim, row)
    write_candidate_features(sim, row, candidates, out, at)
    return candidates


@kernel
def write_candidate_features(sim: Simulation, row: int, candidates: int, out: Rows, at: int) -> None:
    """Write the observation of a decision: the global features, then those of each candidate.

    Args:
        sim: The simulation; a job must be due in the row, and its candidates must be listed.
        row: Row of the decision.
        candidates: Number of candidates in the list.
        out: Takes the features, shape (rows, CANDIDATE_GLOBAL_COUNT + MAX_CANDIDATES x CANDIDATE_FEATURE_COUNT).
        at: Row of `out`.
    """
    unit_s = time_unit_s(sim, row)
    size = largest_node_gpus(sim)
    last_s = _write_candidate_globals(sim, row, unit_s, size, candidates, out, at)
    base, base_sum_s = CANDIDATE_GLOBAL_COUNT, -1.0
    for candidate in range(candidates):
        first = base + candidate * CANDIDATE_FEATURE_COUNT
        sum_s = _write_candidate(sim, row, candidate, size, last_s, unit_s, out, at, first, base, base_sum_s)
        if candidate == 0:
            base_sum_s = sum_s
    for column in range(base + candidates * CANDIDATE_FEATURE_COUNT, base + MAX_CANDIDATES * CANDIDATE_FEATURE_COUNT):
        out[at, column] = 0.0
