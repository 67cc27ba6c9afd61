"""The observation with `candidate` actions, compiled; envs/layout.py has its features in order."""

import math

import numpy as np
from numpy.typing import NDArray

from ..cluster.candidates.candidates import is_rest, is_wait, list_candidates
from ..cluster.candidates.futures import imagine_candidate, imagine_queue
from ..cluster.candidates.node_sets import least_run_s
from ..cluster.kernels.compiled import kernel
from ..cluster.kernels.structures import kth_smallest
from ..cluster.model.problem import goes_by_work, passes, shortest_leads
from ..cluster.queue.expected import estimated_work_s, expected_fault_loss_s
from ..cluster.queue.order import may_wait
from ..cluster.queue.turns import has_turns, line_up
from ..cluster.state.state import AHEAD_JOBS, AHEAD_SHOWN, MAX_CANDIDATES, Simulation
from .features import clip, largest_node, lowest_speed, open_at_speed, time_unit_s
from .layout import CANDIDATE, CANDIDATE_FEATURES, CANDIDATE_GLOBALS, DECISION, DRAIN_QUANTILES, JOB_SIZE_CLASSES

Rows = NDArray[np.float32]
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
    return clip(math.log(max(one_s, MIN_TIME_S) / max(other_s, MIN_TIME_S)))


@kernel
def _log_over(one_s: float, other_s: float) -> float:
    """Return the logarithm of 1 + a time of at least 0 over another."""
    return clip(math.log1p(max(one_s, 0.0) / max(other_s, MIN_TIME_S)))


@kernel
def _size_class(gpus: int) -> int:
    place = 0
    while place < JOB_SIZE_CLASSES - 1 and gpus > 1 << place:
        place += 1
    return place


@kernel
def _write_queue(sim: Simulation, row: int, unit_s: float, size: int, out: Rows, at: int) -> None:
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
    count = line_up(sim, row, SCANNED) if turned else min(state.queued[row], SCANNED)
    job, place = state.head[row], 0
    while place < count:
        if turned:
            job = sim.scratch.lined_up[row, place]
        work_s = estimated_work_s(sim, row, job)
        out[at, DECISION.queued_gpu_time_0 + _size_class(gpus[job])] += (
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
        out[at, DECISION.queued_gpu_time_0 + kind] = clip(out[at, DECISION.queued_gpu_time_0 + kind])
    out[at, DECISION.next_large_gpus] = gpus[large] / cluster_gpus if large >= 0 else 0.0
    out[at, DECISION.shorter] = shorter / max(place, 1)
    out[at, DECISION.longest] = clip(longest_s / unit_s)
    out[at, DECISION.longest_gpus] = gpus[longest] / cluster_gpus if longest >= 0 else 0.0


@kernel
def _write_ends(sim: Simulation, row: int, unit_s: float, out: Rows, at: int) -> float:
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
    out[at, DECISION.next_end] = clip((state.ends_s[row, 0] - now_s) / unit_s) if count > 0 else 0.0
    out[at, DECISION.last_end] = clip(last_s / unit_s)
    out[at, DECISION.running_gpu_time] = clip(sum_s / unit_s / state.gpu_job.shape[1])
    own_s = estimated_work_s(sim, row, state.current[row])
    out[at, DECISION.log_drain] = _log_over(sum_s / state.gpu_job.shape[1], own_s) / 4.0
    ordered = sim.scratch.trial_speed
    for node in range(nodes):
        ordered[row, node] = drain[row, node]
    for quantile in range(DRAIN_QUANTILES):
        drain_s = kth_smallest(ordered, row, nodes, (nodes - 1) * quantile // (DRAIN_QUANTILES - 1))
        out[at, DECISION.drain_0 + quantile] = clip(drain_s / unit_s)
    return last_s


@kernel
def _write_capacity(sim: Simulation, row: int, size: int, out: Rows, at: int) -> None:
    """Write the shares of usable GPUs and of wholly free nodes at the highest and the lowest speed."""
    high, largest = sim.traits.max_speed[sim.state.scenario[row]], 0
    for node in range(sim.cluster.speed.size):
        largest = max(largest, sim.state.free[row, node])
    out[at, DECISION.usable_fastest], out[at, DECISION.empty_fastest] = open_at_speed(sim, row, high)
    low = lowest_speed(sim, row)
    out[at, DECISION.usable_slowest], out[at, DECISION.empty_slowest] = open_at_speed(sim, row, low)
    out[at, DECISION.largest_free] = largest / size


@kernel
def _write_scales(sim: Simulation, row: int, unit_s: float, out: Rows, at: int) -> None:
    """Write the order regime, and the scales of the job that is due, as logarithms."""
    state, order = sim.state, sim.rules.order
    job = state.current[row]
    work_s = estimated_work_s(sim, row, job)
    out[at, DECISION.passes] = 1.0 if passes(order) else 0.0
    out[at, DECISION.by_key] = 1.0 if goes_by_work(order) else 0.0
    out[at, DECISION.smallest_first] = 1.0 if shortest_leads(order) else 0.0
    out[at, DECISION.log_estimate] = _log_ratio(work_s, unit_s) / 4.0
    out[at, DECISION.log_fault_loss] = _log_over(expected_fault_loss_s(sim), work_s) / 4.0
    out[at, DECISION.log_waited] = _log_over(state.now_s[row] - state.queued_s[row, job], work_s) / 4.0
    out[at, DECISION.log_running] = math.log1p(float(state.running[row])) / 4.0
    out[at, DECISION.log_backlog] = _log_over(state.queued_gpu_s[row] / state.gpu_job.shape[1], work_s) / 4.0


@kernel
def _write_globals(sim: Simulation, row: int, unit_s: float, size: int, candidates: int, out: Rows, at: int) -> float:
    """Write the global features; return the last expected end, from now."""
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    cluster_gpus = state.gpu_job.shape[1]
    gpus = sim.scenarios.gpus[scenario, job]
    out[at, DECISION.gpus_per_node_size] = clip(gpus / size)
    out[at, DECISION.log2_gpus] = math.log2(gpus) / 5.0
    out[at, DECISION.estimate] = clip(estimated_work_s(sim, row, job) / unit_s)
    out[at, DECISION.restarted] = 1.0 if state.stops[row, job] > 0 else 0.0
    out[at, DECISION.usable] = state.usable[row] / cluster_gpus
    out[at, DECISION.busy] = state.busy[row] / cluster_gpus
    out[at, DECISION.down] = state.down[row] / cluster_gpus
    _write_capacity(sim, row, size, out, at)
    out[at, DECISION.queued] = math.log1p(float(state.queued[row])) / 4.0
    out[at, DECISION.queued_gpu_time] = clip(state.queued_gpu_s[row] / unit_s / cluster_gpus / 4.0)
    _write_queue(sim, row, unit_s, size, out, at)
    _write_scales(sim, row, unit_s, out, at)
    last_s = _write_ends(sim, row, unit_s, out, at)
    out[at, DECISION.may_wait] = 1.0 if may_wait(sim, row) else 0.0
    out[at, DECISION.base_waits] = state.base_waits[row]
    out[at, DECISION.candidates] = candidates / MAX_CANDIDATES
    return last_s


@kernel
def _write_left(sim: Simulation, row: int, size: int, out: Rows, at: int, first: int) -> None:
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
def _write_nodes(sim: Simulation, row: int, candidate: int, finish_s: float, size: int, unit_s: float, out: Rows,
                 at: int, first: int) -> None:  # fmt: skip
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
    out[at, first + CANDIDATE.finish_over_drain] = clip((finish_s - drain_s) / unit_s)
    out[at, first + CANDIDATE.faults] = clip(hazard * state.candidate_s[row, candidate])
    out[at, first + CANDIDATE.nodes] = clip(count / 8.0)
    out[at, first + CANDIDATE.excess_nodes] = clip((count - (gpus + size - 1) // size) / 8.0)
    out[at, first + CANDIDATE.speed] = slowest / high
    out[at, first + CANDIDATE.wasted_speed] = (total - gpus * slowest) / (gpus * high)
    out[at, first + CANDIDATE.hole] = state.candidate_hole[row, candidate] / size
    out[at, first + CANDIDATE.takes_lemon] = lemons / gpus


@kernel
def _write_ahead(sim: Simulation, row: int, places: int, last_s: float, unit_s: float, out: Rows, at: int,
                 first: int) -> float:  # fmt: skip
    """Write when the jobs ahead start and end; return the sum of their ends, from now."""
    state, scratch = sim.state, sim.scratch
    now_s = state.now_s[row]
    sum_s, latest_s = scratch.ahead_end_s[row, 0] - now_s, last_s
    latest_s = max(latest_s, sum_s)
    column, at_once = first + CANDIDATE.ahead_start_1, 0
    for place in range(1, AHEAD_JOBS):
        start, end = 0.0, 0.0
        if place < places:
            at_once += scratch.ahead_start_s[row, place] <= now_s
            start = clip((scratch.ahead_start_s[row, place] - now_s) / unit_s)
            end = clip((scratch.ahead_end_s[row, place] - now_s) / unit_s)
            if scratch.ahead_end_s[row, place] < math.inf:
                sum_s += scratch.ahead_end_s[row, place] - now_s
                latest_s = max(latest_s, scratch.ahead_end_s[row, place] - now_s)
        if place < AHEAD_SHOWN:
            out[at, column] = start
            out[at, column + 1] = end
            column += 2
    out[at, first + CANDIDATE.ahead_sum] = clip(sum_s / unit_s / AHEAD_JOBS)
    out[at, first + CANDIDATE.ahead_last] = clip(latest_s / unit_s)
    out[at, first + CANDIDATE.ahead_now] = at_once / 8.0
    return float(sum_s)


@kernel
def _write_job(sim: Simulation, row: int, candidate: int, unit_s: float, out: Rows, at: int, first: int) -> None:
    """Write the features of a candidate's job, and whether the candidate rests or is refused."""
    state = sim.state
    job = state.candidate_job[row, candidate]
    out[at, first + CANDIDATE.due] = 1.0 if job == state.current[row] else 0.0
    out[at, first + CANDIDATE.job_log2_gpus] = math.log2(sim.scenarios.gpus[state.scenario[row], job]) / 5.0
    out[at, first + CANDIDATE.job_estimate] = clip(estimated_work_s(sim, row, job) / unit_s)
    waited_s = state.now_s[row] - state.queued_s[row, job]
    # Rounding leaves a wait of nothing a little below 0.
    out[at, first + CANDIDATE.job_waited] = clip(math.log1p(max(waited_s, 0.0) / unit_s))
    work_s = estimated_work_s(sim, row, job)
    out[at, first + CANDIDATE.job_log_estimate] = _log_ratio(work_s, unit_s) / 4.0
    out[at, first + CANDIDATE.job_log_waited] = _log_over(waited_s, work_s) / 4.0
    out[at, first + CANDIDATE.rests] = 1.0 if is_rest(sim, row, candidate) else 0.0
    refused = state.base_refused[row] == 1 and candidate == state.base_waits[row]
    out[at, first + CANDIDATE.refused] = 1.0 if refused else 0.0


@kernel
def _write_ratios(sim: Simulation, row: int, candidate: int, unit_s: float, sum_s: float, base_sum_s: float, out: Rows,
                  at: int, first: int) -> None:  # fmt: skip
    """Write how a candidate compares with the base and with its job's shortest run time, on a logarithmic scale."""
    state = sim.state
    delay_s, run_s = state.candidate_delay_s[row, candidate], state.candidate_s[row, candidate]
    base_finish_s = state.candidate_delay_s[row, 0] + state.candidate_s[row, 0]
    fastest = sim.traits.max_speed[state.scenario[row]]
    least_s = least_run_s(sim, row, state.candidate_job[row, candidate], fastest)
    out[at, first + CANDIDATE.log_run] = _log_ratio(run_s, unit_s) / 4.0
    out[at, first + CANDIDATE.log_finish] = _log_ratio(delay_s + run_s, unit_s) / 4.0
    out[at, first + CANDIDATE.run_over_least] = _log_ratio(run_s, least_s)
    out[at, first + CANDIDATE.delay_over_least] = _log_over(delay_s, least_s)
    out[at, first + CANDIDATE.finish_ratio] = _log_ratio(delay_s + run_s, base_finish_s)
    out[at, first + CANDIDATE.ahead_ratio] = clip(8.0 * _log_ratio(sum_s, base_sum_s))
    out[at, first + CANDIDATE.ahead_gain] = clip((base_sum_s - sum_s) / max(least_s, MIN_TIME_S))


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
    _write_left(sim, row, size, out, at, first)
    places = imagine_queue(sim, row, start)
    out[at, first + CANDIDATE.exists] = 1.0
    out[at, first + CANDIDATE.base] = 1.0 if candidate == 0 else 0.0
    out[at, first + CANDIDATE.waits] = 1.0 if is_wait(sim, row, candidate) else 0.0
    out[at, first + CANDIDATE.delay] = clip(delay_s / unit_s)
    out[at, first + CANDIDATE.run] = clip(run_s / unit_s)
    out[at, first + CANDIDATE.finish] = clip(finish_s / unit_s)
    out[at, first + CANDIDATE.finish_over_last] = clip((finish_s - last_s) / unit_s)
    out[at, first + CANDIDATE.committed] = clip(gpus * run_s / unit_s / state.gpu_job.shape[1])
    _write_nodes(sim, row, candidate, finish_s, size, unit_s, out, at, first)
    sum_s = _write_ahead(sim, row, places, last_s, unit_s, out, at, first)
    _write_ratios(sim, row, candidate, unit_s, sum_s, sum_s if base_sum_s < 0.0 else base_sum_s, out, at, first)
    _write_job(sim, row, candidate, unit_s, out, at, first)
    for over, of in OVER_BASE:
        out[at, first + over] = out[at, first + of] - out[at, base + of]
    return sum_s


@kernel
def write_candidates(sim: Simulation, row: int, out: Rows, at: int) -> int:
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
        out: Takes the features, shape (rows, CANDIDATE_GLOBAL_COUNT + CANDIDATES x CANDIDATE_FEATURE_COUNT).
        at: Row of `out`.
    """
    unit_s = time_unit_s(sim, row)
    size = largest_node(sim)
    last_s = _write_globals(sim, row, unit_s, size, candidates, out, at)
    base, base_sum_s = CANDIDATE_GLOBAL_COUNT, -1.0
    for candidate in range(candidates):
        first = base + candidate * CANDIDATE_FEATURE_COUNT
        sum_s = _write_candidate(sim, row, candidate, size, last_s, unit_s, out, at, first, base, base_sum_s)
        if candidate == 0:
            base_sum_s = sum_s
    for column in range(
        CANDIDATE_GLOBAL_COUNT + candidates * CANDIDATE_FEATURE_COUNT,
        CANDIDATE_GLOBAL_COUNT + MAX_CANDIDATES * CANDIDATE_FEATURE_COUNT,
    ):
        out[at, column] = 0.0
