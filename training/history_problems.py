"""Problems to train on from a live scheduler's past, and its network's own decisions.

Problems of a live scheduler's past: windows of its jobs as they arrived, on its cluster, with as many faults.

Decision: docs/decisions/0013-learning-from-the-past.md.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import InputError
from ..cluster.model.problem import FaultProcess, Problem, Scenarios, fault_sources, stack
from ..cluster.model.topology import Cluster
from ..cluster.model.workload import Workload, workload_of
from ..cluster.presets.drawn import VALIDATION_SEED, Stream, stream, training_key
from ..cluster.presets.problems import capacity_of, check_size, enough_runs, until_overload, windows_of
from ..cluster.state.border import sound_scenarios
from ..cluster.state.state import CANDIDATES
from ..envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from .asked import LATER_PART, TRAINED_PART, VALIDATED_PART, Asked, Problems
from .history import Past, Seen

LEAST_JOBS = 40  # so that each part has some
TRAINED_WINDOWS, TRAINED_RUNS, VALIDATED_WINDOWS, LATER_WINDOWS = 1024, 4, 16, 24
LATER_SEED = VALIDATION_SEED + 3000  # of draws that no training meets


class Stays(NamedTuple):
    """When jobs were in the system, queued or running; times of the scheduler's clock."""

    enter_s: NDArray[np.float64]  # (jobs,)
    leave_s: NDArray[np.float64]  # (jobs,) inf where that is not known


class History(NamedTuple):
    """What training takes from a past."""

    past: Past
    workload: Workload  # the jobs that ran to their ends, and what was estimated of them
    rank: dict[str, int]  # of each job: priorities, turned round
    stays: Stays  # of all jobs
    begin_s: float  # submission of the first job of the workload


def read_history(path: Path) -> History:
    """Return what a file of decisions tells of a cluster.

    Raises:
        InputError: If it cannot be used, or too few jobs have ended in it.
    """
    past = Past(path)
    ended = [past.asked[job] for job in past.asked if job in past.work_s]
    if len(ended) < LEAST_JOBS:
        problem = f"{len(ended)} jobs have ended in it, too few to train on the first and to validate on the others"
        raise InputError(problem, f"wait until {LEAST_JOBS} have", path=path)
    submitted_s = np.array([it.submitted_s for it in ended])
    workload = workload_of(
        tuple(it.job for it in ended), np.array([it.gpus for it in ended]),
        np.array([past.work_s[it.job] for it in ended]), submitted_s,
        compute_s=np.array([it.compute_s for it in ended]),
        parameter_bytes=np.array([it.parameter_bytes for it in ended]),
        left_out=len(past.asked) - len(ended), users=tuple(it.user for it in ended) if past.has_users else None,
    )  # fmt: skip
    estimate_s = np.array([past.asked[job].estimate_s for job in workload.ids])
    stays = Stays(
        np.array([it.submitted_s for it in past.asked.values()]),
        np.array([past.left_s.get(job, math.inf) for job in past.asked]),
    )
    rank = {job: it.rank for job, it in past.asked.items()}
    return History(past, replace(workload, estimate_s=estimate_s), rank, stays, float(submitted_s.min()))


def history_problems(asked: Asked) -> Problems:
    """Return windows of the first 60 % of a past's jobs to train on, and of the next 10 % to validate on."""
    assert asked.history is not None
    history = read_history(asked.history)
    trained = history_windows(
        history, TRAINED_PART, TRAINED_WINDOWS, TRAINED_RUNS, training_key(asked.seed), disjoint=False
    )
    return Problems((trained,), (_disjoint(history, VALIDATED_PART, VALIDATED_WINDOWS, VALIDATION_SEED),))


def later_problem(history: History) -> Problem:
    """Return windows of the last 30 % of a past's jobs, which training never meets."""
    return _disjoint(history, LATER_PART, LATER_WINDOWS, LATER_SEED)


def tuning_problem(history: History) -> Problem:
    """Return windows of the part that was trained on, for rivals that are tuned there."""
    return _disjoint(history, TRAINED_PART, LATER_WINDOWS, LATER_SEED + 1)


def _disjoint(history: History, part: tuple[float, float], windows: int, seed: int) -> Problem:
    return history_windows(history, part, windows, None, seed, disjoint=True)


def history_windows(
    history: History, part: tuple[float, float], windows: int, runs: int | None, seed: int, *, disjoint: bool
) -> Problem:
    """Return windows of a past's jobs with draws of faults for each.

    Jobs arrive as they did, with the estimates that were known and their priorities, under the scheduler's own rules.

    Args:
        history: The past.
        part: Of its jobs, in order of submission.
        windows: At most.
        runs: Draws of faults for each; enough for an interval if None.
        seed: Of windows and draws.
        disjoint: Take windows that share no job.
    """
    opening = history.past.opening
    assert opening is not None
    cluster, kinds = _classes(opening.cluster, history.past)
    found = windows_of(
        history.workload, windows, part=part, seed=seed, load=None, max_gpus=cluster.gpu_node.size,
        capacity=capacity_of(cluster), disjoint=disjoint,
    )  # fmt: skip
    runs = runs or enough_runs(len(found))
    check_size(len(found) * runs, found[0].jobs, cluster.gpu_node.size, cluster.speed.size)
    each = [window for window in found for _ in range(runs)]
    scenarios = stack(
        cluster, each, fault_seed=stream(seed, Stream.FAULTS).integers(0, 2**32, len(each)),
        source_rate_per_s=fault_rates_per_s(history.past), hazard_per_s=opening.hazard_per_s,
        needs=[np.array([kinds[job] for job in window.ids], dtype=np.int32) for window in each],
    )  # fmt: skip
    ranks = np.array([[history.rank[job] for job in window.ids] for window in each])
    scenarios = sound_scenarios(with_ranks(scenarios, ranks - ranks.min()), cluster)
    return Problem(cluster, scenarios, _process(history.past), until_overload(cluster, scenarios, opening.rules))


def with_ranks(scenarios: Scenarios, rank: NDArray[np.int64]) -> Scenarios:
    """Return scenarios whose jobs have ranks, shape (scenarios, jobs): users take their turns at each by itself."""
    if not scenarios.line.size:
        return scenarios._replace(rank=rank)
    line = np.empty_like(scenarios.line)
    for row, (users, ranks) in enumerate(zip(scenarios.line.tolist(), rank.tolist(), strict=True)):
        pairs = list(zip(users, ranks, strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        line[row] = [numbers[pair] for pair in pairs]
    return scenarios._replace(rank=rank, line=line)


def _classes(cluster: Cluster, past: Past) -> tuple[Cluster, dict[str, int]]:
    """Return a cluster that knows which nodes suit the jobs of a past, and the class of each job's needs."""
    types = list(dict.fromkeys([(), *(it.types for it in past.asked.values())]))
    suits = np.array([np.isin(cluster.node_type, kind) if kind else np.ones(cluster.speed.size) for kind in types])
    number = {kind: place for place, kind in enumerate(types)}
    kinds = {job: number[it.types] for job, it in past.asked.items()}
    return cluster._replace(suits=np.ascontiguousarray(suits, dtype=np.int32)), kinds


def fault_rates_per_s(past: Past) -> NDArray[np.float64]:
    """Return the rate of faults of each source, shape (sources,): what was counted, with one fault at the fleet's rate.

    A GPU that has not failed yet may fail all the same, and one that failed once is not known to do so often.
    """
    opening = past.opening
    assert opening is not None
    gpus, nodes = opening.cluster.gpu_node.size, opening.cluster.speed.size
    rates = np.zeros(fault_sources(opening.cluster))
    for first, size, counted in ((0, gpus, past.gpu_faults), (gpus, nodes, past.node_faults)):
        faults = np.array([counted[number] for number in range(size)], dtype=np.float64)
        if faults.any() and past.observed_s > 0.0:
            mean_per_s = float(faults.mean()) / past.observed_s
            rates[first : first + size] = (faults + 1.0) / (past.observed_s + 1.0 / mean_per_s)
    return rates


def _process(past: Past) -> FaultProcess:
    """Return how faults are repaired: as long as it took in the mean, or as the cluster file says if nothing failed."""
    opening = past.opening
    assert opening is not None
    mean_s = float(np.mean(past.repairs_s)) if past.repairs_s else opening.repair_mean_s
    none = np.zeros(0)
    return FaultProcess(
        shape=1.0, repair_mean_s=max(mean_s, 1.0), repair_sigma=0.0, transient_probability=0.0,
        outage_first=np.zeros(fault_sources(opening.cluster) + 1, dtype=np.int32), outage_start_s=none,
        outage_end_s=none,
    )  # fmt: skip


def to_go_of(stays: Stays, seen: Seen) -> float:
    """Return what was still to come at a decision, as the value of a network tells it; nan where that is not known.

    It is the mean time that the jobs then in the system still spent there, of those whose end is known.
    """
    inside = (stays.enter_s <= seen.now_s) & (stays.leave_s > seen.now_s) & np.isfinite(stays.leave_s)
    if not inside.any() or seen.unit_s <= 0.0:
        return math.nan
    return float((stays.leave_s[inside] - seen.now_s).mean()) / seen.unit_s


SIZE = CANDIDATE_GLOBAL_COUNT + CANDIDATES * CANDIDATE_FEATURE_COUNT


class Logged(NamedTuple):
    """Decisions among candidates."""

    observations: NDArray[np.float32]  # (decisions, SIZE)
    candidates: NDArray[np.int32]  # (decisions,) of the list
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,) by which it was drawn; nan where it was not
    to_go: NDArray[np.float32]  # (decisions,) what was still to come, as the value tells it


def logged_decisions(path: Path) -> Logged:
    """Return the decisions among candidates in the part of a past that is trained on.

    Those of which it is not known what followed are left out.

    Raises:
        InputError: If the file cannot be used.
    """
    history = read_history(path)
    last = max(round(TRAINED_PART[1] * history.workload.jobs) - 1, 0)
    end_s = history.begin_s + float(history.workload.submit_s[last])
    able = [it for it in history.past.seen if it.now_s < end_s and it.observation.size == SIZE]
    to_go = np.array([to_go_of(history.stays, it) for it in able], dtype=np.float32)
    known = np.flatnonzero(np.isfinite(to_go))
    kept = [able[at] for at in known]
    observations = np.array([it.observation for it in kept], dtype=np.float32).reshape(-1, SIZE)
    # The first feature is 1 where the list has a candidate.
    listed = observations[:, CANDIDATE_GLOBAL_COUNT::CANDIDATE_FEATURE_COUNT] > 0.0
    return Logged(
        observations, listed.sum(axis=1).astype(np.int32), np.array([it.action for it in kept], dtype=np.int64),
        np.array([it.log_probability for it in kept], dtype=np.float32), to_go[known],
    )  # fmt: skip
