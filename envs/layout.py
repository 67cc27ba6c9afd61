"""What observations hold, by name and in order.

`source` is SPEC R2's state: the job's GPUs, its estimated run time in hours, and one entry per GPU that is 0 when it
can be used and 1 when it is busy, faulty or picked.

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

import numpy as np
from numpy.typing import NDArray

CLIP = 8.0
LOOK_AHEAD = 6  # jobs of the queue that are described one by one

GLOBALS = (
    "gpus_per_node_size",  # GPUs that the job needs, over the size of the largest node
    "log2_gpus",  # its base 2 logarithm of GPUs, over 5
    "need_share",  # share of them still to pick
    "estimate",  # estimated work that it has left
    "restarted",  # 1 if the job was stopped before
    "saved",  # work that its checkpoints hold
    "picked_nodes",  # nodes that were picked for it
    "picked_speed",  # slowest speed picked, over the fastest of the cluster; 1 before the first pick
    "best_run",  # shortest expected run time of the best completions of all nodes
    "best_speed",  # slowest speed of that completion, over the fastest of the cluster
    "usable",  # share of all GPUs
    "busy",  # share that runs jobs, picks not counted
    "down",  # share out of service
    "usable_fastest",  # usable GPUs on nodes of the highest speed, as a share of theirs
    "usable_slowest",  # the same for the lowest speed
    "empty_fastest",  # wholly free nodes of the highest speed, as a share of theirs
    "empty_slowest",  # the same for the lowest speed
    "largest_free",  # most usable GPUs of a node, over the size of the largest
    "queued",  # natural logarithm of 1 + the jobs that wait, the one that is due among them, over 4
    "queued_gpu_time",  # their estimated work x GPUs, over GPUs of the cluster x unit x 4
    "next_end",  # time until the next expected end of a running job, 0 if none runs
    "last_end",  # time until the last expected end, 0 if none runs
    "mean_end",  # time until the GPU's job is expected to end, 0 where none runs; mean of all GPUs
    "may_wait",  # 1 if the policy may let the next event pass
    # The first jobs of the queue, without the one that is due: GPUs over the size of the largest node, estimated work
    *(f"{name}_{i}" for i in range(LOOK_AHEAD) for name in ("ahead_gpus", "ahead_estimate")),
)
NODE_FEATURES = (
    "free",  # usable GPUs over size
    "fits",  # 1 if all GPUs still needed fit
    "gives",  # GPUs that it would give, over size
    "hole",  # GPUs that it would have left, over size
    "speed",  # over the fastest of the cluster
    "slows",  # 1 if it is slower than all picks, of which there are some
    "faults",  # expected faults of the GPUs that it would give: their number x mean hazard of the node x best run time
    "lemon",  # 1 if its mean hazard is over 5 times the lower median of all nodes
    "taken",  # GPUs picked here, over size
    "down",  # GPUs out of service, over size
    "busy",  # GPUs that run jobs, over size
    "first_end",  # time until the first expected end of a job here, CLIP if nothing runs
    "last_end",  # time until the last, 0 if nothing runs
    "run",  # expected run time of the best completion with this node
    "run_over_best",  # that over the shortest of all nodes, less 1
    "best",  # 1 if no other node has a shorter one
    "end_over_last",  # that run time, less the time until the last expected end in the cluster
    "committed",  # GPU-time of that run, over GPUs of the cluster x unit
    "speed_excess",  # speed of the node over the slowest of that completion, less 1
    "share_of_job",  # GPUs that it would give, over those still needed
)
# 1 or 0: usable, runs another job, is out of service, is picked for the job that is due; then those of its node
GPU_FEATURES = ("usable", "gpu_busy", "gpu_down", "picked", *NODE_FEATURES)


def observation_size(observation: str, action: str, gpus: int, nodes: int) -> int:
    """Return the length of an observation."""
    if observation == "source":
        return 2 + gpus
    return len(GLOBALS) + (nodes * len(NODE_FEATURES) if action == "node" else gpus * len(GPU_FEATURES))


def bounds(observation: str, size: int, cluster_gpus: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lowest and highest values of an observation, each of shape (size,)."""
    if observation == "source":
        high = np.ones(size, dtype=np.float32)
        high[0], high[1] = cluster_gpus, np.finfo(np.float32).max  # hours have no bound, and checkers want a finite one
        return np.zeros(size, dtype=np.float32), high
    return np.full(size, -CLIP, dtype=np.float32), np.full(size, CLIP, dtype=np.float32)
