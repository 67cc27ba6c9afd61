"""What observations hold, by name and in order; and the patent's own observation.

Times are divided by the mean estimate of the jobs submitted so far (the unit), and everything but the patent's is
clipped to [-FEATURE_CLIP, FEATURE_CLIP]. The size of a node is its number of GPUs. A waiting job's expected run time is
its restart cost, if it was stopped before, and its estimated work times the slowdown of the placement
(docs/simulator.md).

`full` is a row of global features and then a row of features for each item: a node, or a GPU with its node's features.
The best completion with a node takes the picks, then the GPUs still needed of that node, then of others, those with
most usable GPUs first (ties: lowest index), until the job has all. The others must have at least some speed: each
speed of the cluster is tried that is not above the slowest of the picks and the node, fastest first, and the one with
the shortest expected run time is taken, the first of equals. The best of all nodes is chosen in the same way, those
with most usable GPUs first. A node without usable GPUs has no completion, and its features of one are 0.

With `candidate` actions an observation holds global features, then those of each candidate: a job and a set of nodes,
now or after a wait for an expected end. Times are from the decision on; the finish of a candidate is delay + run time,
expected faults included. The jobs ahead are those that cluster/candidates/futures.py imagines after it. Candidates
beyond the end of the list are zero. Jobs of real traces differ by factors of a thousand, so that a share of their mean
means little for most: the features that follow `candidates` and `refused` are ratios.

`patent-literal` is SPEC R2's state to the letter: the GPUs of the job, its estimated run time in hours, and one entry
per GPU that is 0 when it can be used and 1 when it is busy, faulty or picked. `patent` has the GPUs still to pick and
the hours still to run instead of those of the whole job.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.kernels.compiled import kernel
from ..cluster.queue.expected import estimated_work_s
from ..cluster.state.state import MAX_CANDIDATES, Simulation

JOB_SIZE_CLASSES = 6  # classes of the queue's jobs: 1, 2, 3 to 4, 5 to 8, 9 to 16, more GPUs
DRAIN_QUANTILES = 5  # of the nodes' drain times: least, quarters, most


class CandidateGlobals(NamedTuple):
    """Features of the decision as a whole: each field is a column."""

    gpus_per_node_size: int  # GPUs of the job that is due, over the size of the largest node
    log2_gpus: int  # its base 2 logarithm of GPUs, over 5
    estimate: int  # estimated work that it has left
    restarted: int  # 1 if it was stopped before
    usable: int  # share of all GPUs
    busy: int  # share that runs jobs
    down: int  # share out of service
    usable_fastest: int  # usable GPUs on nodes of the highest speed, as a share of theirs
    usable_slowest: int  # the same for the lowest speed
    empty_fastest: int  # wholly free nodes of the highest speed, as a share of theirs
    empty_slowest: int  # the same for the lowest speed
    largest_free: int  # most usable GPUs of a node, over the size of the largest
    queued: int  # natural logarithm of 1 + the jobs that wait, over 4
    queued_gpu_time: int  # their estimated work x GPUs, over GPUs of the cluster x unit x 4
    queued_gpu_time_0: int  # the same by GPUs of the job
    queued_gpu_time_1: int
    queued_gpu_time_2: int
    queued_gpu_time_3: int
    queued_gpu_time_4: int
    queued_gpu_time_5: int
    next_end: int  # time until the next expected end of a running job, 0 if none runs
    last_end: int  # time until the last expected end, 0 if none runs
    running_gpu_time: int  # GPU-time that running jobs are expected to take still, over GPUs of the cluster x unit
    drain_0: int  # time until a node's last job is expected to end
    drain_1: int
    drain_2: int
    drain_3: int
    drain_4: int
    next_large: int  # jobs of the queue before the next that fills the largest node, logarithm as above
    next_large_gpus: int  # its GPUs, over those of the cluster
    longest: int  # longest estimated work in the queue, without the job that is due
    longest_gpus: int  # its GPUs, over those of the cluster
    may_wait: int  # 1 if waiting is allowed
    base_waits: int  # 1 if the base heuristic waits
    candidates: int  # candidates in the list, over 16
    passes: int  # 1 if the order regime lets jobs pass the one that goes first
    by_key: int  # 1 if it orders jobs by a key, such as their estimates
    smallest_first: int  # 1 if the job of the smallest key goes first
    log_estimate: int  # natural logarithm, over 4, of the estimated work of the job that is due over the unit
    log_fault_loss: int  # the same of 1 + the expected cost of a fault over that work; so are the next
    log_waited: int  # 1 + the time that it has waited over its work
    log_running: int  # 1 + the jobs that run
    log_backlog: int  # 1 + the queue's work x GPUs over GPUs of the cluster x its work: its wait, about
    log_drain: int  # 1 + the GPU-time that running jobs still take, over the same
    shorter: int  # share of the queue with less work than it


class CandidateFeatures(NamedTuple):
    """Features of a candidate: each field is a column, counted from the candidate's first."""

    exists: int  # 1 where the list has a candidate
    base: int  # 1 for the base heuristic's
    waits: int  # 1 if it waits first
    delay: int  # how long
    run: int  # run time
    finish: int  # delay + run time
    finish_over_base: int  # that, less the base's
    finish_over_last: int  # that, less the last expected end of a running job
    finish_over_drain: int  # that, less the last expected end on its nodes
    faults: int  # expected faults of its GPUs in that time
    nodes: int  # over 8
    excess_nodes: int  # nodes beyond those that its GPUs fill, over 8
    speed: int  # slowest speed, over the fastest of the cluster
    wasted_speed: int  # speed of its GPUs beyond the slowest, over GPUs x the fastest
    hole: int  # GPUs that its last node has left, over the size of the largest node
    committed: int  # GPU-time, over GPUs of the cluster x unit
    committed_over_base: int  # that, less the base's
    left_fastest: int  # usable GPUs then left on nodes of the highest speed, over those of the cluster
    left_others: int  # and on others
    left_largest: int  # most usable GPUs then left on a node, over the size of the largest
    left_empty: int  # wholly free nodes then left, as a share of all
    takes_lemon: int  # share of its GPUs on lemons
    ahead_start_1: int  # FEATURE_CLIP if never, 0 if none
    ahead_end_1: int
    ahead_start_2: int
    ahead_end_2: int
    ahead_start_3: int
    ahead_end_3: int
    ahead_start_4: int
    ahead_end_4: int
    ahead_start_5: int
    ahead_end_5: int
    ahead_start_6: int
    ahead_end_6: int
    ahead_sum: int  # sum of the ends of all jobs ahead, its own finish included, over AHEAD_JOBS
    ahead_last: int  # last of all ends, those of running jobs included
    ahead_sum_over_base: int
    ahead_last_over_base: int
    due: int  # 1 if its job is the one that is due
    job_log2_gpus: int  # base 2 logarithm of its job's GPUs, over 5
    job_estimate: int  # estimated work that its job has left
    job_waited: int  # natural logarithm of 1 + the time that its job has been in the queue
    rests: int  # 1 if it lets all jobs wait until the next event, and not only the one that is due
    refused: int  # 1 if it breaks the reservation, so that it only passes its job over
    log_run: int  # run time over the unit
    log_finish: int  # finish over the unit
    run_over_least: int  # logarithm of the run time over that of its job on the fastest GPUs
    delay_over_least: int  # logarithm of 1 + the delay over that
    finish_ratio: int  # logarithm of the finish over the base's
    ahead_ratio: int  # 8 x the logarithm of the sum of the ends of all jobs ahead over the base's
    ahead_gain: int  # the base's sum less that sum, over its job's run time on the fastest GPUs
    ahead_now: int  # jobs ahead that start at once, over 8
    job_log_estimate: int  # estimated work that its job has left over the unit
    job_log_waited: int  # 1 + the time that its job has waited over that work


# Kernels write by these columns, so that the classes above alone define the order.
DECISION = CandidateGlobals(*range(len(CandidateGlobals._fields)))
CANDIDATE = CandidateFeatures(*range(len(CandidateFeatures._fields)))
CANDIDATE_GLOBALS, CANDIDATE_FEATURES = CandidateGlobals._fields, CandidateFeatures._fields


FEATURE_CLIP = 8.0
LOOK_AHEAD = 6  # jobs of the queue that are described one by one


class GlobalFeatures(NamedTuple):
    """Features of the decision as a whole, but for those of the queue: each field is a column."""

    gpus_per_node_size: int  # GPUs that the job needs, over the size of the largest node
    log2_gpus: int  # its base 2 logarithm of GPUs, over 5
    need_share: int  # share of them still to pick
    estimate: int  # estimated work that it has left
    restarted: int  # 1 if the job was stopped before
    saved: int  # work that its checkpoints hold
    picked_nodes: int  # nodes that were picked for it
    picked_speed: int  # slowest speed picked, over the fastest of the cluster; 1 before the first pick
    best_run: int  # shortest expected run time of the best completions of all nodes
    best_speed: int  # slowest speed of that completion, over the fastest of the cluster
    usable: int  # share of all GPUs
    busy: int  # share that runs jobs, picks not counted
    down: int  # share out of service
    usable_fastest: int  # usable GPUs on nodes of the highest speed, as a share of theirs
    usable_slowest: int  # the same for the lowest speed
    empty_fastest: int  # wholly free nodes of the highest speed, as a share of theirs
    empty_slowest: int  # the same for the lowest speed
    largest_free: int  # most usable GPUs of a node, over the size of the largest
    queued: int  # natural logarithm of 1 + the jobs that wait, the one that is due among them, over 4
    queued_gpu_time: int  # their estimated work x GPUs, over GPUs of the cluster x unit x 4
    next_end: int  # time until the next expected end of a running job, 0 if none runs
    last_end: int  # time until the last expected end, 0 if none runs
    mean_end: int  # time until the GPU's job is expected to end, 0 where none runs; mean of all GPUs
    may_wait: int  # 1 if the policy may let the next event pass


class NodeFeatures(NamedTuple):
    """Features of a node: each field is a column, counted from the node's first."""

    free: int  # usable GPUs over size
    fits: int  # 1 if all GPUs still needed fit
    gives: int  # GPUs that it would give, over size
    hole: int  # GPUs that it would have left, over size
    speed: int  # over the fastest of the cluster
    slows: int  # 1 if it is slower than all picks, of which there are some
    faults: int  # expected of the GPUs that it would give: their number x mean hazard of the node x best run time
    lemon: int  # 1 if its mean hazard is over 5 times the lower median of all nodes
    taken: int  # GPUs picked here, over size
    down: int  # GPUs out of service, over size
    busy: int  # GPUs that run jobs, over size
    first_end: int  # time until the first expected end of a job here, FEATURE_CLIP if nothing runs
    last_end: int  # time until the last, 0 if nothing runs
    run: int  # expected run time of the best completion with this node
    run_over_best: int  # that over the shortest of all nodes, less 1
    best: int  # 1 if no other node has a shorter one
    end_over_last: int  # that run time, less the time until the last expected end in the cluster
    committed: int  # GPU-time of that run, over GPUs of the cluster x unit
    speed_excess: int  # speed of the node over the slowest of that completion, less 1
    share_of_job: int  # GPUs that it would give, over those still needed


class GpuFeatures(NamedTuple):
    """Features of a GPU beside those of its node, 1 or 0: each field is a column, counted from the GPU's first."""

    usable: int
    gpu_busy: int  # it runs another job
    gpu_down: int  # it is out of service
    picked: int  # it is picked for the job that is due


# Kernels write by these columns, so that the classes above alone define the order.
GLOBAL = GlobalFeatures(*range(len(GlobalFeatures._fields)))
NODE_COLUMN = NodeFeatures(*range(len(NodeFeatures._fields)))
GPU_COLUMN = GpuFeatures(*range(len(GpuFeatures._fields)))
AHEAD_GPUS, AHEAD_ESTIMATE = len(GLOBAL), len(GLOBAL) + 1  # of the first job of the queue behind the one that is due
AHEAD_COUNT = 2  # columns of each of these jobs: GPUs over the size of the largest node, and estimated work

GLOBALS = (
    *GlobalFeatures._fields,
    *(f"{name}_{i}" for i in range(LOOK_AHEAD) for name in ("ahead_gpus", "ahead_estimate")),
)
NODE_FEATURES = NodeFeatures._fields
GPU_FEATURES = (*GpuFeatures._fields, *NODE_FEATURES)  # a GPU's own, then those of its node
PATENT_GLOBALS = {"patent": ("gpus", "estimate_h"), "patent-literal": ("job_gpus", "job_estimate_h")}
PATENT_FEATURES = ("used",)  # of each GPU


def observation_size(observation: str, action: str, gpus: int, nodes: int) -> int:
    """Return the length of an observation."""
    if observation != "full":
        return 2 + gpus
    if action == "candidate":
        return len(CANDIDATE_GLOBALS) + MAX_CANDIDATES * len(CANDIDATE_FEATURES)
    return len(GLOBALS) + (nodes * len(NODE_FEATURES) if action == "node" else gpus * len(GPU_FEATURES))


def action_count(action: str, gpus: int, nodes: int, *, waiting: bool) -> int:
    """Return the number of actions. Waiting is the last one if it is allowed, or one of the candidates."""
    if action == "candidate":
        return MAX_CANDIDATES
    return (nodes if action == "node" else gpus) + int(waiting)


def observation_bounds(
    observation: str, size: int, cluster_gpus: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lowest and highest values of an observation, each of shape (size,)."""
    if observation != "full":
        high = np.ones(size, dtype=np.float32)
        high[0], high[1] = cluster_gpus, np.finfo(np.float32).max  # hours have no bound, and checkers want a finite one
        return np.zeros(size, dtype=np.float32), high
    return np.full(size, -FEATURE_CLIP, dtype=np.float32), np.full(size, FEATURE_CLIP, dtype=np.float32)


@kernel
def write_patent_observation(sim: Simulation, row: int, out: NDArray[np.float32], at: int) -> None:
    """Write GPUs still to pick, hours still to run, and 1 for each GPU that cannot be used."""
    out[at, 0] = sim.state.need[row]
    out[at, 1] = estimated_work_s(sim, row, sim.state.current[row]) / 3600.0
    _write_unusable_gpus(sim, row, out, at)


@kernel
def write_literal_patent_observation(sim: Simulation, row: int, out: NDArray[np.float32], at: int) -> None:
    """Write the patent's state: GPUs and estimated hours of the whole job, and 1 for each GPU that cannot be used.

    Source: SPEC R2.
    """
    scenario, job = sim.state.scenario[row], sim.state.current[row]
    out[at, 0] = sim.scenarios.gpus[scenario, job]
    out[at, 1] = sim.scenarios.estimate_s[scenario, job] / 3600.0
    _write_unusable_gpus(sim, row, out, at)


@kernel
def _write_unusable_gpus(sim: Simulation, row: int, out: NDArray[np.float32], at: int) -> None:
    state = sim.state
    for gpu in range(state.gpu_job.shape[1]):
        usable = state.gpu_job[row, gpu] < 0 and state.gpu_down[row, gpu] == 0
        usable = usable and state.free[row, sim.cluster.gpu_node[gpu]] > 0  # 0 where the job cannot use the node
        out[at, 2 + gpu] = 0.0 if usable else 1.0
