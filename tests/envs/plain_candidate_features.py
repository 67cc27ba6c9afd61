"""The observation with `candidate` actions once more, from the description of each feature in envs/layout.py."""

import math

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.model.problem import ORDERS
from longshore.cluster.state.state import MAX_CANDIDATES, State
from longshore.envs.batch import Batch
from longshore.envs.layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS
from tests.envs.plain_features import Decision, clipped, plain_globals
from tests.plain_candidates import (
    AHEAD,
    SHOWN,
    Candidate,
    given_by,
    held,
    listed,
    look_ahead,
    node_hazard_per_s,
    usable_after,
)
from tests.reference_state import least_slowdown

NO_COMPLETION = (1.0, 1.0)  # of features that only the other observation has


def plain_candidate_features(batch: Batch, row: int) -> NDArray[np.float32]:
    """Return the observation of the decision that is due in a row, given the list of its candidates."""
    seen, candidates = Decision(batch, row), listed(batch.sim, row)
    values = plain_globals(seen, NO_COMPLETION) | _queue(seen) | _drains(seen)
    values |= {"base_waits": candidates[0].delay_s > 0.0, "candidates": len(candidates) / 16} | _scales(seen)
    features = [clipped(values[name]) for name in CANDIDATE_GLOBALS]
    described = [_candidate(seen, candidate) for candidate in candidates]
    for number, values in enumerate(described):
        values["base"] = number == 0
        values["rests"] = values["waits"] and number > 0 and seen.rules.order != ORDERS["fifo"]
        at_once = number == int(candidates[0].delay_s > 0.0)
        values["refused"] = at_once and _is_refused(seen, candidates[number], batch.sim.state, row)
        for name in ("finish", "committed", "ahead_sum", "ahead_last"):
            values[f"{name}_over_base"] = clipped(values[name]) - clipped(described[0][name])
        ratios = _ratios(seen, candidates[number], candidates[0], values["sum_s"], described[0]["sum_s"])
        features += [clipped((values | ratios)[name]) for name in CANDIDATE_FEATURES]
    features += [0.0] * (len(CANDIDATE_FEATURES) * (MAX_CANDIDATES - len(candidates)))
    return np.array(features, dtype=np.float32)


def _is_refused(seen: Decision, candidate: Candidate, state: State, row: int) -> bool:
    """Say whether the due job's set at once breaks the reservation, of which nodes count that its holder may use."""
    given = given_by(usable_after(seen, 0.0), candidate.nodes, seen.gpus[seen.job])
    held = sum(gpus * seen.cluster.suits[state.reserved_class[row], node] for node, gpus in given.items())
    return bool(held > state.extra[row] and seen.now_s + seen.run_s(given) > state.shadow_s[row])


def size_class(gpus: int) -> int:
    """Return the class of a job: 1, 2, 3 to 4, 5 to 8, 9 to 16 or more GPUs."""
    return sum(gpus > most for most in (1, 2, 4, 8, 16))


def _queue(seen: Decision) -> dict[str, float]:
    others = [job for job in seen.queue if job != seen.job]
    size, cluster_gpus = max(seen.size.values()), len(seen.gpu_node)
    values = {f"queued_gpu_time_{one}": 0.0 for one in range(6)}
    for job in seen.queue:
        share = seen.work_left_s(job) * seen.gpus[job] / (4 * seen.unit_s * cluster_gpus)
        values[f"queued_gpu_time_{size_class(seen.gpus[job])}"] += share
    large = next((job for job in others if seen.gpus[job] >= size), None)
    before = len(seen.queue) if large is None else seen.queue.index(large)
    longest = max(others, key=seen.work_left_s, default=None)
    return values | {
        "next_large": math.log(1 + before) / 4,
        "next_large_gpus": 0.0 if large is None else seen.gpus[large] / cluster_gpus,
        "longest": 0.0 if longest is None else seen.work_left_s(longest) / seen.unit_s,
        "longest_gpus": 0.0 if longest is None else seen.gpus[longest] / cluster_gpus,
    }


def log_ratio(one_s: float, other_s: float) -> float:
    return clipped(math.log(one_s) - math.log(other_s))


def log_over(one_s: float, other_s: float) -> float:
    return clipped(math.log(1 + max(one_s, 0.0) / other_s))


def _scales(seen: Decision) -> dict[str, float]:
    order = next(name for name, number in ORDERS.items() if number == seen.rules.order)
    own_s, cluster_gpus = seen.work_left_s(seen.job), len(seen.gpu_node)
    left_s = sum(seen.time_left_s(job) for job in seen.gpu_job if job in seen.started)
    lost_s = 1.5 * seen.rules.checkpoint_s if seen.rules.checkpoint_s < math.inf else 0.0
    backlog_s = sum(seen.work_left_s(job) * seen.gpus[job] for job in seen.queue)
    return {
        "passes": order != "fifo",
        "by_key": order in ("easy-shortest", "shortest"),
        "smallest_first": order == "shortest",
        "log_fault_loss": log_over(lost_s + seen.rules.restart_s, own_s) / 4,
        "log_estimate": log_ratio(own_s, seen.unit_s) / 4,
        "log_waited": log_over(seen.now_s - seen.queued_s[seen.job], own_s) / 4,
        "log_running": math.log(1 + len(seen.started)) / 4,
        "log_backlog": log_over(backlog_s / cluster_gpus, own_s) / 4,
        "log_drain": log_over(left_s / cluster_gpus, own_s) / 4,
        "shorter": sum(seen.work_left_s(job) < own_s for job in seen.queue) / len(seen.queue),
    }


def _least_run_s(seen: Decision, job: int) -> float:
    """Return the run time of a job on the fastest GPUs, all on one node without any limit of its links."""
    gpus, high, rules = seen.gpus[job], max(seen.speed), seen.rules
    restart_s = rules.restart_s if seen.stops[job] else 0.0
    if rules.ring and seen.pipeline[job]:
        return restart_s + seen.work_left_s(job) * least_slowdown(seen.reference(), job)
    volume, compute_s = 2 * (gpus - 1) / gpus * seen.parameter_bytes[job], seen.compute_s[job]
    fits = gpus <= rules.reference_gpus
    reference = rules.reference_intra_bytes_per_s if fits else rules.reference_nic_bytes_per_s
    slowdown = compute_s / high / (compute_s + volume / reference) if rules.ring and gpus > 1 else 1 / high
    return float(restart_s + seen.work_left_s(job) * slowdown)


def _ratios(seen: Decision, candidate: Candidate, base: Candidate, sum_s: float, base_sum_s: float) -> dict[str, float]:
    work_s, least_s = seen.work_left_s(candidate.job), _least_run_s(seen, candidate.job)
    finish_s = candidate.delay_s + candidate.run_s
    return {
        "log_run": log_ratio(candidate.run_s, seen.unit_s) / 4,
        "log_finish": log_ratio(finish_s, seen.unit_s) / 4,
        "run_over_least": log_ratio(candidate.run_s, least_s),
        "delay_over_least": log_over(candidate.delay_s, least_s),
        "finish_ratio": log_ratio(finish_s, base.delay_s + base.run_s),
        "ahead_ratio": 8 * log_ratio(sum_s, base_sum_s),
        "ahead_gain": (base_sum_s - sum_s) / least_s,
        "job_log_estimate": log_ratio(work_s, seen.unit_s) / 4,
        "job_log_waited": log_over(seen.now_s - seen.queued_s[candidate.job], work_s) / 4,
    }


def drain_s(seen: Decision, node: int) -> float:
    """Return the time until a node's last job is expected to end."""
    return max((seen.time_left_s(job) for job in seen.started if node in held(seen, job)), default=0.0)


def _drains(seen: Decision) -> dict[str, float]:
    drains = sorted(drain_s(seen, node) / seen.unit_s for node in seen.nodes)
    values = {f"drain_{quarter}": drains[(len(drains) - 1) * quarter // 4] for quarter in range(5)}
    left = [seen.time_left_s(job) for job in seen.gpu_job if job in seen.started]
    return values | {"running_gpu_time": sum(left) / seen.unit_s / len(seen.gpu_node)}


def _candidate(seen: Decision, candidate: Candidate) -> dict[str, float]:
    gpus, cluster_gpus, size = seen.gpus[candidate.job], len(seen.gpu_node), max(seen.size.values())
    given = given_by(usable_after(seen, candidate.delay_s), candidate.nodes, gpus)
    finish_s, high = candidate.delay_s + candidate.run_s, max(seen.speed)
    last_s = max((seen.time_left_s(job) for job in seen.started), default=0.0)
    slowest = min(seen.speed[node] for node in given)
    hazards = [node_hazard_per_s(seen, node) for node in seen.nodes]
    median = sorted(hazards)[(len(hazards) - 1) // 2]
    values = {
        "exists": 1.0,
        "waits": candidate.delay_s > 0.0,
        "delay": candidate.delay_s / seen.unit_s,
        "run": candidate.run_s / seen.unit_s,
        "finish": finish_s / seen.unit_s,
        "finish_over_last": (finish_s - last_s) / seen.unit_s,
        "finish_over_drain": (finish_s - max(drain_s(seen, node) for node in given)) / seen.unit_s,
        "faults": sum(count * hazards[node] for node, count in given.items()) * candidate.run_s,
        "nodes": len(given) / 8,
        "excess_nodes": (len(given) - math.ceil(gpus / size)) / 8,
        "speed": slowest / high,
        "wasted_speed": sum(count * (seen.speed[node] - slowest) for node, count in given.items()) / (gpus * high),
        "hole": candidate.hole / size,
        "committed": gpus * candidate.run_s / seen.unit_s / cluster_gpus,
        "due": candidate.job == seen.job,
        "job_log2_gpus": math.log2(gpus) / 5,
        "job_estimate": seen.work_left_s(candidate.job) / seen.unit_s,
        "job_waited": math.log(1 + max(seen.now_s - seen.queued_s[candidate.job], 0.0) / seen.unit_s),
        "takes_lemon": sum(count for node, count in given.items() if hazards[node] > 5 * median) / gpus,
    }
    return values | _consequences(seen, candidate, last_s)


def _consequences(seen: Decision, candidate: Candidate, last_s: float) -> dict[str, float]:
    left, ahead = look_ahead(seen, candidate)
    cluster_gpus, size, high = len(seen.gpu_node), max(seen.size.values()), max(seen.speed)
    ends_s = [job.end_s - seen.now_s for job in ahead if job.end_s < math.inf]
    values = {
        "left_fastest": sum(gpus for node, gpus in left.items() if seen.speed[node] == high) / cluster_gpus,
        "left_others": sum(gpus for node, gpus in left.items() if seen.speed[node] < high) / cluster_gpus,
        "left_largest": max(left.values()) / size,
        "left_empty": sum(gpus == seen.size[node] for node, gpus in left.items()) / len(left),
        "ahead_sum": sum(ends_s) / seen.unit_s / AHEAD,
        "ahead_last": max(*ends_s, last_s) / seen.unit_s,
        "ahead_now": sum(job.start_s <= seen.now_s for job in ahead[1:]) / 8,
        "sum_s": sum(ends_s),
    }
    for place in range(1, SHOWN):
        start_s, end_s = (ahead[place].start_s, ahead[place].end_s) if place < len(ahead) else (seen.now_s, seen.now_s)
        values[f"ahead_start_{place}"] = (start_s - seen.now_s) / seen.unit_s
        values[f"ahead_end_{place}"] = (end_s - seen.now_s) / seen.unit_s
    return values
