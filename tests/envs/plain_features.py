"""The `full` observation once more: slow and plain, from the description of each feature in envs/layout.py."""

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from longshore.envs.batch import Batch
from longshore.envs.layout import FEATURE_CLIP, GLOBALS, GPU_FEATURES, LOOK_AHEAD, NODE_FEATURES
from tests.plain_turns import LEADING, in_turns, lined_up, queue_of
from tests.reference import first_state
from tests.reference_state import ReferenceState, slowdown

Completion = tuple[float, float]  # expected run time in s, slowest speed
OF_COMPLETION = ("run", "run_over_best", "best", "end_over_last", "committed", "speed_excess")  # 0 without one


class Decision:
    """What is known at the decision that is due in a row of a batch, in plain lists."""

    def __init__(self, batch: Batch, row: int) -> None:
        state, scenarios, scenario = batch.sim.state, batch.sim.scenarios, int(batch.sim.state.scenario[row])
        self.rules, self.cluster = batch.problem.rules, batch.problem.cluster
        self.unit_s = float(scenarios.estimate_s[scenario, : int(state.submitted[row])].mean())
        self.now_s = float(state.now_s[row])
        self.job = int(state.current[row])
        self.gpus = scenarios.gpus[scenario].tolist()
        # 0 for a job without a plan
        self.pipeline = scenarios.pipeline[scenario].tolist() or [0] * len(self.gpus)
        self.scenarios, self.scenario, self.process = scenarios, scenario, batch.problem.process
        self.suits = self.cluster.suits[scenarios.needs[scenario]].tolist()  # (jobs, nodes)
        self.compute_s = scenarios.compute_s[scenario].tolist()
        self.parameter_bytes = scenarios.parameter_bytes[scenario].tolist()
        self.speed = scenarios.speed[scenario].tolist()
        self.hazard_per_s = scenarios.hazard_per_s[scenario].tolist()
        self.gpu_job = state.gpu_job[row].tolist()
        self.gpu_down = [count > 0 for count in state.gpu_down[row].tolist()]
        self.gpu_node = self.cluster.gpu_node.tolist()
        self.nodes = range(len(self.speed))
        self.size = Counter(self.gpu_node)
        self.stops = state.stops[row].tolist()
        self.saved_s = state.saved_s[row].tolist()
        self.queue = lined_up(batch.sim, row)  # as users take turns
        self.standing = queue_of(batch.sim, row)
        self.leading = in_turns(batch.sim, row, LEADING)[0] if self.rules.turns and self.queue else self.standing
        self.queued_s = state.queued_s[row].tolist()
        self.estimates_s = state.guess_s[row].tolist()
        self.started = {
            job: (float(state.start_s[row, job]), float(state.overhead_s[row, job]), float(state.slowdown[row, job]))
            for job in set(self.gpu_job) - {-1, self.job}
        }

    def free(self, node: int) -> int:
        return self.usable(node) if self.suits[self.job][node] else 0

    def usable(self, node: int) -> int:
        """Usable GPUs of a node, whomever they suit."""
        return sum(
            self.gpu_job[gpu] < 0 and not self.gpu_down[gpu] for gpu, at in enumerate(self.gpu_node) if at == node
        )

    def used(self) -> list[bool]:
        """Whether each GPU is held, out of service or of no use to the job."""
        gpus = zip(self.gpu_job, self.gpu_down, self.gpu_node, strict=True)
        return [job >= 0 or down or not self.suits[self.job][node] for job, down, node in gpus]

    def taken(self, node: int) -> int:
        return sum(self.gpu_job[gpu] == self.job for gpu, at in enumerate(self.gpu_node) if at == node)

    def need(self) -> int:
        return int(self.gpus[self.job]) - sum(self.taken(node) for node in self.nodes)

    def work_left_s(self, job: int) -> float:
        estimate_s = float(self.estimates_s[job])
        while estimate_s <= self.saved_s[job]:
            estimate_s *= 2
        return estimate_s - float(self.saved_s[job])

    def time_left_s(self, job: int) -> float:
        """Time until a running job's expected end."""
        start_s, overhead_s, slowdown = self.started[job]
        while True:
            end_s = start_s + (overhead_s + self.work_left_s(job) * slowdown)
            if end_s > self.now_s:
                return end_s - self.now_s
            self.estimates_s[job] *= 2

    def reference(self) -> ReferenceState:
        """The same cluster and jobs in the reference simulation, which supports plans."""
        return first_state(self.cluster, self.scenarios, self.scenario, self.process, self.rules)

    def slowdown(self, given: dict[int, int]) -> float:
        """Slowdown of the job on some GPUs of each node (docs/simulator.md)."""
        slowest, gpus = min(self.speed[node] for node in given), self.gpus[self.job]
        if not self.rules.ring:
            return float((1 + self.rules.node_penalty * (len(given) - 1)) / slowest)
        if self.pipeline[self.job]:
            state = self.reference()
            ranks = [gpu for node, count in given.items() for gpu in state.node_gpus[node][:count]]
            return slowdown(state, self.job, ranks)
        if gpus == 1:
            return float(1 / slowest)
        links = [self.cluster.intra_bytes_per_s[node] for node, count in given.items() if count > 1]
        if len(given) > 1:
            links += [self.cluster.nic_bytes_per_s[node] for node in given]
        racks = {int(self.cluster.node_rack[node]) for node in given}
        if len(racks) > 1:
            links += [self.cluster.uplink_bytes_per_s[rack] for rack in racks]
        fits = gpus <= self.rules.reference_gpus
        reference = self.rules.reference_intra_bytes_per_s if fits else self.rules.reference_nic_bytes_per_s
        volume, compute_s = 2 * (gpus - 1) / gpus * self.parameter_bytes[self.job], self.compute_s[self.job]
        return float((compute_s / slowest + volume / min(links)) / (compute_s + volume / reference))

    def run_s(self, given: dict[int, int]) -> float:
        restart_s = self.rules.restart_s if self.stops[self.job] else 0.0
        return restart_s + self.work_left_s(self.job) * self.slowdown(given)

    def picks(self) -> dict[int, int]:
        return {node: self.taken(node) for node in self.nodes if self.taken(node)}

    def most_usable_first(self) -> list[int]:
        return sorted((node for node in self.nodes if self.free(node)), key=lambda node: (-self.free(node), node))

    def completion(self, node: int) -> Completion:
        """The best completion with a node: expected run time (inf if there is none) and slowest speed."""
        fastest = min([self.speed[node], *(self.speed[other] for other in self.picks())])
        tried = [self._completion(node, speed) for speed in sorted(set(self.speed), reverse=True) if speed <= fastest]
        return min(tried, key=lambda found: found[0])

    def _completion(self, node: int, least_speed: float) -> Completion:
        given, need = self.picks(), self.need()
        for other in [node, *(other for other in self.most_usable_first() if other != node)]:
            if need and (other == node or self.speed[other] >= least_speed):
                gives = min(need, self.free(other))
                given[other] = given.get(other, 0) + gives
                need -= gives
        slowest = min(self.speed[other] for other in given)
        return (math.inf if need else self.run_s(given)), slowest

    def may_wait(self) -> bool:
        return self.rules.waiting and bool(self.started) and not self.binds(self.job)

    def binds(self, job: int) -> bool:
        """Say whether a waiting job has aged, and the GPUs in service could hold it."""
        suits = self.suits[job]
        in_service = sum(
            bool(suits[node]) and not down for node, down in zip(self.gpu_node, self.gpu_down, strict=True)
        )
        return bool(self.now_s >= self.queued_s[job] + self.rules.ageing_s and self.gpus[job] <= in_service)


def clipped(value: float) -> float:
    return min(max(value, -FEATURE_CLIP), FEATURE_CLIP)


def plain_features(batch: Batch, row: int) -> NDArray[np.float32]:
    """Return the `full` observation of the decision that is due in a row."""
    seen = Decision(batch, row)
    completions = {node: seen.completion(node) for node in seen.most_usable_first()}
    best = min(completions.values(), key=lambda found: found[0])
    values = plain_globals(seen, best)
    features = [values[name] for name in GLOBALS]
    of_node = [_node(seen, node, completions.get(node), best[0]) for node in seen.nodes]
    if batch.view.action == "node":
        features += [of_node[node][name] for node in seen.nodes for name in NODE_FEATURES]
    else:
        for gpu, node in enumerate(seen.gpu_node):
            both = _gpu(seen, gpu) | of_node[node]
            features += [both[name] for name in GPU_FEATURES]
    return np.array([clipped(value) for value in features], dtype=np.float32)


def plain_globals(seen: Decision, best: Completion) -> dict[str, float]:
    job, gpus, cluster_gpus = seen.job, seen.gpus[seen.job], len(seen.gpu_node)
    largest, high = max(seen.size.values()), max(seen.speed)
    ends = {other: seen.time_left_s(other) / seen.unit_s for other in seen.started}
    behind = [other for other in seen.queue if other != job][:LOOK_AHEAD]
    work = sum(seen.work_left_s(other) * seen.gpus[other] for other in seen.queue)
    values = {
        "gpus_per_node_size": gpus / largest,
        "log2_gpus": math.log2(gpus) / 5,
        "need_share": seen.need() / gpus,
        "estimate": seen.work_left_s(job) / seen.unit_s,
        "restarted": seen.stops[job] > 0,
        "saved": seen.saved_s[job] / seen.unit_s,
        "picked_nodes": len(seen.picks()),
        "picked_speed": min((seen.speed[node] for node in seen.picks()), default=high) / high,
        "best_run": best[0] / seen.unit_s,
        "best_speed": best[1] / high,
        "usable": sum(map(seen.free, seen.nodes)) / cluster_gpus,
        "busy": sum(other in seen.started for other in seen.gpu_job) / cluster_gpus,
        "down": sum(seen.gpu_down) / cluster_gpus,
        "largest_free": max(map(seen.free, seen.nodes)) / largest,
        "queued": math.log(1 + len(seen.queue)) / 4,
        "queued_gpu_time": work / (cluster_gpus * seen.unit_s * 4),
        "next_end": min(ends.values(), default=0.0),
        "last_end": max(ends.values(), default=0.0),
        "mean_end": sum(ends.get(other, 0.0) for other in seen.gpu_job) / cluster_gpus,
        "may_wait": seen.may_wait(),
    }
    for name, speed in (("fastest", high), ("slowest", min(seen.speed))):
        alike = [node for node in seen.nodes if seen.speed[node] == speed]
        values[f"usable_{name}"] = sum(map(seen.free, alike)) / sum(seen.size[node] for node in alike)
        values[f"empty_{name}"] = sum(seen.free(node) == seen.size[node] for node in alike) / len(alike)
    for i in range(LOOK_AHEAD):
        values[f"ahead_gpus_{i}"] = seen.gpus[behind[i]] / largest if i < len(behind) else 0.0
        values[f"ahead_estimate_{i}"] = seen.work_left_s(behind[i]) / seen.unit_s if i < len(behind) else 0.0
    return values


def _node(seen: Decision, node: int, completion: Completion | None, best_s: float) -> dict[str, float]:
    size, free, need = seen.size[node], seen.free(node), seen.need()
    here = [gpu for gpu, at in enumerate(seen.gpu_node) if at == node]
    means = [
        sum(hazard for hazard, at in zip(seen.hazard_per_s, seen.gpu_node, strict=True) if at == other)
        / seen.size[other]
        for other in seen.nodes
    ]
    ends = [seen.time_left_s(seen.gpu_job[gpu]) / seen.unit_s for gpu in here if seen.gpu_job[gpu] in seen.started]
    gives = min(free, need)
    values = {
        "free": free / size,
        "fits": free >= need,
        "gives": gives / size,
        "hole": (free - gives) / size,
        "speed": seen.speed[node] / max(seen.speed),
        "slows": bool(seen.picks()) and all(seen.speed[node] < seen.speed[other] for other in seen.picks()),
        "faults": gives * means[node] * best_s,
        "lemon": means[node] > 5 * sorted(means)[(len(means) - 1) // 2],
        "taken": seen.taken(node) / size,
        "down": sum(seen.gpu_down[gpu] for gpu in here) / size,
        "busy": sum(seen.gpu_job[gpu] in seen.started for gpu in here) / size,
        "first_end": min(ends, default=FEATURE_CLIP),
        "last_end": max(ends, default=0.0),
        "share_of_job": gives / need,
    }
    return (
        values | dict.fromkeys(OF_COMPLETION, 0.0)
        if completion is None
        else values | _run(seen, node, completion, best_s)
    )


def _run(seen: Decision, node: int, completion: Completion, best_s: float) -> dict[str, float]:
    run_s, slowest = completion
    last_s = max((seen.time_left_s(job) for job in seen.started), default=0.0)
    return {
        "run": run_s / seen.unit_s,
        "run_over_best": run_s / best_s - 1,
        "best": run_s <= best_s * (1 + 1e-9),
        "end_over_last": (run_s - last_s) / seen.unit_s,
        "committed": seen.gpus[seen.job] * run_s / (len(seen.gpu_node) * seen.unit_s),
        "speed_excess": seen.speed[node] / slowest - 1,
    }


def _gpu(seen: Decision, gpu: int) -> dict[str, float]:
    held = seen.gpu_job[gpu]
    return {
        "usable": held < 0 and not seen.gpu_down[gpu] and bool(seen.suits[seen.job][seen.gpu_node[gpu]]),
        "gpu_busy": held in seen.started,
        "gpu_down": seen.gpu_down[gpu],
        "picked": held == seen.job,
    }
