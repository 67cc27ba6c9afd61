"""What observations hold, by name and in order.

`patent-literal` is SPEC R2's state to the letter: the GPUs of the job, its estimated run time in hours, and one entry
per GPU that is 0 when it can be used and 1 when it is busy, faulty or picked. `patent` tells the GPUs still to pick and
the hours still to run instead of those of the whole job.

`full` is a row of global features and then a row of features for each item: a node, or a GPU with its node's features.
Times are divided by the mean estimate of the jobs submitted so far (the unit), and everything is clipped to
[-CLIP, CLIP].
The size of a node is its number of GPUs. A waiting job's expected run time is its restart cost, if it was stopped
before, and its estimated work times the slowdown of the placement (docs/simulator.md).

The best completion with a node takes the picks, then of that node as many GPUs as are needed, then of others, those
with most usable GPUs first (ties: lowest index), until the job has all. The others must have at least some speed: each
speed of the cluster is tried that is not above the slowest of the picks and the node, fastest first, and the one with
the shortest expected run time is taken, the first of equals; so it is with the best of all nodes, which are looked at
most usable GPUs first. A node without usable GPUs has no completion, and its features of one are 0.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.state.state import CANDIDATES
from .candidate_layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS

CLIP = 8.0
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
    first_end: int  # time until the first expected end of a job here, CLIP if nothing runs
    last_end: int  # time until the last, 0 if nothing runs
    run: int  # expected run time of the best completion with this node
    run_over_best: int  # that over the shortest of all nodes, less 1
    best: int  # 1 if no other node has a shorter one
    end_over_last: int  # that run time, less the time until the last expected end in the cluster
    committed: int  # GPU-time of that run, over GPUs of the cluster x unit
    speed_excess: int  # speed of the node over the slowest of that completion, less 1
    share_of_job: int  # GPUs that it would give, over those still needed


class OwnFeatures(NamedTuple):
    """What a GPU does not share with its node, 1 or 0: each field is a column, counted from the GPU's first."""

    usable: int
    gpu_busy: int  # it runs another job
    gpu_down: int  # it is out of service
    picked: int  # it is picked for the job that is due


# Kernels write by these columns, so that the order stands in the classes above and nowhere else.
GLOBAL = GlobalFeatures(*range(len(GlobalFeatures._fields)))
NODE = NodeFeatures(*range(len(NodeFeatures._fields)))
OWN = OwnFeatures(*range(len(OwnFeatures._fields)))
AHEAD_GPUS, AHEAD_ESTIMATE = len(GLOBAL), len(GLOBAL) + 1  # of the first job of the queue behind the one that is due
AHEAD_COUNT = 2  # columns of each of these jobs: GPUs over the size of the largest node, and estimated work

GLOBALS = (
    *GlobalFeatures._fields,
    *(f"{name}_{i}" for i in range(LOOK_AHEAD) for name in ("ahead_gpus", "ahead_estimate")),
)
NODE_FEATURES = NodeFeatures._fields
GPU_FEATURES = (*OwnFeatures._fields, *NODE_FEATURES)  # a GPU's own, then those of its node


def observation_size(observation: str, action: str, gpus: int, nodes: int) -> int:
    """Return the length of an observation."""
    if observation != "full":
        return 2 + gpus
    if action == "candidate":
        return len(CANDIDATE_GLOBALS) + CANDIDATES * len(CANDIDATE_FEATURES)
    return len(GLOBALS) + (nodes * len(NODE_FEATURES) if action == "node" else gpus * len(GPU_FEATURES))


def action_count(action: str, gpus: int, nodes: int, *, waiting: bool) -> int:
    """Return the number of actions. Waiting is the last one if it is allowed, or one of the candidates."""
    if action == "candidate":
        return CANDIDATES
    return (nodes if action == "node" else gpus) + int(waiting)


def bounds(observation: str, size: int, cluster_gpus: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lowest and highest values of an observation, each of shape (size,)."""
    if observation != "full":
        high = np.ones(size, dtype=np.float32)
        high[0], high[1] = cluster_gpus, np.finfo(np.float32).max  # hours have no bound, and checkers want a finite one
        return np.zeros(size, dtype=np.float32), high
    return np.full(size, -CLIP, dtype=np.float32), np.full(size, CLIP, dtype=np.float32)
