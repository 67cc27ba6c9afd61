"""The simulator once more: slow, plain Python, written from docs/simulator.md and not from the compiled engine.

It keeps every definition where a reader can compare it with the page: no heaps, no indices, no clever order of work.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import PLANNED, FaultProcess, Rules, Scenarios, fault_sources
from longshore.cluster.model.topology import Cluster
from tests.reference_backups import back_up, reliefs_s
from tests.reference_faults import random_outages
from tests.reference_queue import aged_s, bounded, leader, may_wait, offered, passes, take_turn
from tests.reference_slow import end_piece, first_pace, kept_by, note, note_slow_nodes, pace_stream, paced, turn_paces
from tests.reference_state import (
    Job,
    Plan,
    ReferenceState,
    Source,
    overhead_s,
    renew_estimate,
    running,
    slowdown,
    suiting,
    usable_by,
)
from tests.reference_switching import KEPT, POOL, fill_pool, heed, holds_on, leave, release, strike, win_back

ROUNDING = 1e-9  # of a checkpoint interval


Choose = Callable[[ReferenceState, int], list[int] | None]


def simulate(
    cluster: Cluster, scenarios: Scenarios, row: int, process: FaultProcess, rules: Rules, choose: Choose
) -> tuple[list[Event], Outcome]:
    """Return the schedule of one scenario under a policy, and how it ended.

    Args:
        cluster: Where the jobs run.
        scenarios: Of which one row is simulated.
        row: Index of the scenario.
        process: How its fault sources fail.
        rules: Constants.
        choose: Gets the state and a job that may start; returns the GPUs that it shall have, or None to wait.

    Returns:
        The events in order, and an outcome of one scenario, padded as the scenarios are.

    Raises:
        ValueError: If the policy picks GPUs that it cannot have, or waits where it may not.
        RuntimeError: If a job waits and nothing will ever happen again.
    """
    state = first_state(cluster, scenarios, row, process, rules)
    while any(math.isnan(job.finish_s) for job in state.jobs):
        state.now_s = next_moment(state)
        end_runs(state)
        if all(not math.isnan(job.finish_s) for job in state.jobs):
            break
        turn_sources(state)
        turn_paces(state)
        if holds_on(state.rules):
            end_runs(state)
            win_back(state)
            back_up(state)
        submit_jobs(state)
        renew_estimates(state)
        state.passed_over.clear()
        while (job := offered(state)) is not None:
            decide(state, job, choose(state, job))
    return state.events, outcome(state, scenarios.gpus.shape[1])


def first_state(
    cluster: Cluster, scenarios: Scenarios, row: int, process: FaultProcess, rules: Rules
) -> ReferenceState:
    """Return the state before anything happened."""
    gpus = cluster.gpu_node.size
    bounds = cluster.first_gpu.tolist()
    state = ReferenceState(
        rules=rules,
        gpu_node=cluster.gpu_node.tolist(),
        node_gpus=[list(range(first, last)) for first, last in pairwise(bounds)],
        node_rack=cluster.node_rack.tolist(),
        speed=scenarios.speed[row].tolist(),
        intra_bytes_per_s=cluster.intra_bytes_per_s.tolist(),
        nic_bytes_per_s=cluster.nic_bytes_per_s.tolist(),
        uplink_bytes_per_s=cluster.uplink_bytes_per_s.tolist(),
        hazard_per_s=scenarios.hazard_per_s[row].tolist(),
        seed=int(scenarios.fault_seed[row]),
        jobs=[first_job(cluster, scenarios, row, index) for index in range(int(scenarios.jobs[row]))],
        sources=[first_source(cluster, scenarios, row, process, index) for index in range(fault_sources(cluster))],
        gpu_job=[-1] * gpus,
        held_down_by=[set() for _ in range(gpus)],
        down_since_s=[math.nan] * gpus,
    )
    state.node_type, state.peak_flops = cluster.node_type.tolist(), cluster.peak_flops.tolist()
    state.kinds = [frozenset(np.flatnonzero(suited).tolist()) for suited in cluster.suits]
    if rules.switching:
        fill_pool(state)
    if rules.slow_per_s > 0:
        sources, nodes = len(state.sources), len(state.speed)
        state.paces = [first_pace(rules, state.seed, pace_stream(sources, nodes, node)) for node in range(nodes)]
    return state


def first_job(cluster: Cluster, scenarios: Scenarios, row: int, index: int) -> Job:
    suits = cluster.suits[scenarios.needs[row, index]]
    return Job(
        gpus=int(scenarios.gpus[row, index]),
        estimate_s=float(scenarios.estimate_s[row, index]),
        submit_s=float(scenarios.submit_s[row, index]),
        compute_s=float(scenarios.compute_s[row, index]),
        parameter_bytes=float(scenarios.parameter_bytes[row, index]),
        work_s=float(scenarios.work_s[row, index]),
        nodes=frozenset(np.flatnonzero(suits).tolist()),
        rank=int(scenarios.rank[row, index]),
        line=int(scenarios.line[row, index]) if scenarios.line.size else 0,
        plan=plan_of(scenarios, row, index),
    )


def plan_of(scenarios: Scenarios, row: int, index: int) -> Plan | None:
    """Return the plan of a job, None if it has none."""
    if not scenarios.pipeline.size or scenarios.pipeline[row, index] == 0:
        return None
    figures = (getattr(scenarios, name)[row, index].item() for name in PLANNED)
    return Plan(*figures)


def first_source(cluster: Cluster, scenarios: Scenarios, row: int, process: FaultProcess, index: int) -> Source:
    first, last = int(process.outage_first[index]), int(process.outage_first[index + 1])
    rate_per_s = float(scenarios.source_rate_per_s[row, index])
    if last > first:
        starts, ends = process.outage_start_s[first:last].tolist(), process.outage_end_s[first:last].tolist()
        outages = iter(list(zip(starts, ends, strict=True)))
    else:
        outages = random_outages(process, int(scenarios.fault_seed[row]), index, rate_per_s)
    return Source(source_gpus(cluster, index), outages, next(outages, (math.inf, math.inf)))


def source_gpus(cluster: Cluster, source: int) -> list[int]:
    """Return the GPUs that a source takes away: sources are GPUs, then nodes, then racks."""
    gpu_node, node_rack = cluster.gpu_node.tolist(), cluster.node_rack.tolist()
    gpus, nodes = len(gpu_node), len(node_rack)
    if source < gpus:
        return [source]
    if source < gpus + nodes:
        return [gpu for gpu in range(gpus) if gpu_node[gpu] == source - gpus]
    return [gpu for gpu in range(gpus) if node_rack[gpu_node[gpu]] == source - gpus - nodes]


def next_moment(state: ReferenceState) -> float:
    """Return the time of the next finish, turn of a fault source or submission, or when the next job has aged."""
    times = [job.end_s for job in state.jobs]
    times += [source.outage[1] if source.down else source.outage[0] for source in state.sources]
    times += [pace.next_s for pace in state.paces]
    times += reliefs_s(state)
    times += [job.submit_s for job in state.jobs[state.submitted :]]
    times += [aged_s(state, job) for job in bounded(state) if state.now_s < aged_s(state, job)]
    if min(times) == math.inf:
        raise RuntimeError(f"jobs {state.queue} wait for ever: nothing runs, fails, returns or is submitted")
    return min(times)


def end_runs(state: ReferenceState) -> None:
    while ended := [index for index, job in enumerate(state.jobs) if job.end_s == state.now_s]:
        job = state.jobs[ended[0]]
        if not math.isnan(job.struck_s):
            if not heed(state, ended[0]):
                stop(state, ended[0])
            continue
        note(state, "finish", ended[0], job.placement)
        state.overhead_gpu_s += len(job.placement) * job.overhead_s
        job.finish_s = state.now_s
        state.busy_gpu_s += len(job.placement) * (state.now_s - job.start_s)
        vacate(state, job)


def turn_sources(state: ReferenceState) -> None:
    for index, source in enumerate(state.sources):
        while source.outage[source.down] == state.now_s:
            if source.down:
                repair(state, index)
            else:
                fail(state, index)


def fail(state: ReferenceState, index: int) -> None:
    source = state.sources[index]
    source.down = True
    gone = [gpu for gpu in source.gpus if state.held_down_by[gpu] <= {POOL, KEPT}]
    for gpu in source.gpus:
        if not state.held_down_by[gpu]:
            state.down_since_s[gpu] = state.now_s
        state.held_down_by[gpu].add(index)
    if gone:
        note(state, "fault", -1, gone)
    if holds_on(state.rules):
        strike(state, source.gpus)
        return
    for job in sorted({state.gpu_job[gpu] for gpu in gone} - {-1}):
        stop(state, job)


def repair(state: ReferenceState, index: int) -> None:
    source = state.sources[index]
    source.down = False
    source.outage = next(source.outages, (math.inf, math.inf))
    for gpu in source.gpus:
        state.held_down_by[gpu].remove(index)
    back = [gpu for gpu in source.gpus if state.held_down_by[gpu] <= {POOL, KEPT}]
    for gpu in back:
        if not state.held_down_by[gpu]:
            state.down_gpu_s += state.now_s - state.down_since_s[gpu]
            state.down_since_s[gpu] = math.nan
    if back:
        note(state, "repair", -1, back)


def stop(state: ReferenceState, index: int) -> None:
    job = state.jobs[index]
    note(state, "stop", index, job.placement)
    end_piece(state, job)
    kept_s = 0.0
    useful_s = sum(piece[0] for piece in job.pieces)
    if state.rules.checkpoint_s < math.inf:
        intervals = math.floor(useful_s / state.rules.checkpoint_s + ROUNDING)
        kept_s = min(useful_s, intervals * state.rules.checkpoint_s)
    for piece_s, factor, gpus in job.pieces:
        saved_s = min(piece_s, kept_s)
        kept_s -= saved_s
        job.saved_s += saved_s / factor
        job.lost_s += (piece_s - saved_s) * gpus / job.gpus
    job.pieces, job.struck_s = [], math.nan
    job.stops += 1
    while job.estimate_s <= job.saved_s:
        job.estimate_s *= 2
    vacate(state, job)
    job.entered_s, job.came_back = state.now_s, True
    state.queue.insert(0, index)


def vacate(state: ReferenceState, job: Job) -> None:
    """Take a job off its GPUs, and off those that it keeps."""
    for gpu in kept_by(state, state.jobs.index(job)):
        release(state, gpu)
    job.slowed_s = math.nan
    for gpu in job.placement:
        leave(state, gpu)
    job.placement, job.end_s, job.pieces = [], math.inf, []


def submit_jobs(state: ReferenceState) -> None:
    while state.submitted < len(state.jobs) and state.jobs[state.submitted].submit_s == state.now_s:
        note(state, "submit", state.submitted, [])
        state.jobs[state.submitted].entered_s = state.now_s
        state.queue.append(state.submitted)
        state.submitted += 1


def renew_estimates(state: ReferenceState) -> None:
    """Double the estimates that running jobs have outlived."""
    for job in running(state):
        renew_estimate(state, job)


def decide(state: ReferenceState, job: int, gpus: list[int] | None) -> None:
    """Do what the policy chose for an offered job, or pass the job over if the choice is refused."""
    state.decisions += 1
    if gpus is None:
        if not may_wait(state, job):
            raise ValueError(f"the policy waits with job {job} at {state.now_s} s, where it may not")
        state.passed_over.add(job)
        return
    check_placement(state, job, gpus)
    first = leader(state)
    held = len(suiting(state, first, gpus)) if first is not None else 0
    if first is not None and first != job and not passes(state, first, job, slowdown(state, job, gpus), held):
        state.passed_over.add(job)
        return
    start(state, job, sorted(gpus))


def check_placement(state: ReferenceState, job: int, gpus: list[int]) -> None:
    needed = state.jobs[job].gpus
    if len(set(gpus)) != needed or len(gpus) != needed:
        raise ValueError(f"the policy gives job {job} the GPUs {gpus}, it needs {needed}")
    if not set(gpus) <= set(usable_by(state, job)):
        raise ValueError(f"the policy gives job {job} the GPUs {gpus}, usable are {usable_by(state, job)}")


def start(state: ReferenceState, index: int, gpus: list[int]) -> None:
    job = state.jobs[index]
    take_turn(state, index)
    job.came_back = False
    state.queue.remove(index)
    job.wait_s += state.now_s - job.entered_s
    job.placement, job.start_s = gpus, state.now_s
    job.slowdown, job.overhead_s = paced(state, index, gpus), overhead_s(state, index)
    job.end_s = state.now_s + (job.overhead_s + (job.work_s - job.saved_s) * job.slowdown)
    if math.isnan(job.first_start_s):
        job.first_start_s = state.now_s
    for gpu in gpus:
        state.gpu_job[gpu] = index
    note_slow_nodes(state, index)
    note(state, "start", index, gpus)


def outcome(state: ReferenceState, columns: int) -> Outcome:
    """Return how a finished run ended, as one scenario of as many columns."""

    def padded(values: list[float]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.array([values + [0.0] * (columns - len(values))])

    makespan_s = state.now_s
    still_down = [makespan_s - since_s for since_s in state.down_since_s if not math.isnan(since_s)]
    return Outcome(
        finish_s=padded([job.finish_s for job in state.jobs]),
        first_start_s=padded([job.first_start_s for job in state.jobs]),
        stops=padded([job.stops for job in state.jobs]).astype(np.int32),
        lost_s=padded([job.lost_s for job in state.jobs]),
        wait_s=padded([job.wait_s for job in state.jobs]),
        makespan_s=np.array([makespan_s]),
        busy_gpu_s=np.array([state.busy_gpu_s]),
        down_gpu_s=np.array([state.down_gpu_s + sum(still_down)]),
        overhead_gpu_s=np.array([state.overhead_gpu_s]),
        finished=np.array([len(state.jobs)], dtype=np.int32),
        job_events=np.array([sum(event.job >= 0 for event in state.events)], dtype=np.int64),
        decisions=np.array([state.decisions], dtype=np.int64),
        switches=np.array([state.switches], dtype=np.int64),
        slowed=np.array([state.slowed], dtype=np.int64),
        backups=np.array([state.backups], dtype=np.int64),
        backup_gpu_s=np.array([state.backup_gpu_s]),
    )
