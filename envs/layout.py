"""What observations hold, by name and in order.

`source` is SPEC R2's state: the job's GPUs, its estimated run time in hours, and one entry per GPU that is 0 when it
can be used and 1 when it is busy, faulty or picked.

`full` is a row of global features and then a row of features for each item: a node, or a GPU with its node's features.
Times are divided by the mean estimate of the scenario's jobs, counts by the size of a node or the cluster, and
everything is clipped to [-CLIP, CLIP].
"""

import numpy as np
from numpy.typing import NDArray

CLIP = 8.0
LOOK_AHEAD = 6  # jobs of the queue that are described one by one

GLOBALS = (
    "gpus_per_node_size",  # GPUs that the job needs, over the size of the largest node
    "log2_gpus",
    "need_share",  # share of them still to pick
    "estimate",  # estimated work
    "restarted",  # 1 if the job was stopped before
    "saved",  # work that its checkpoints hold
    "picked_nodes",
    "picked_speed",  # slowest speed picked, over the fastest of the cluster; 1 before the first pick
    "best_run",  # run time on the best set of nodes that holds the picks
    "best_speed",  # slowest speed of that set, over the fastest of the cluster
    "usable",  # share of all GPUs
    "busy",
    "down",
    "usable_fastest",  # usable GPUs on nodes of the highest speed, as a share of theirs
    "usable_slowest",  # the same for the lowest speed
    "empty_fastest",  # wholly free nodes of the highest speed, as a share of theirs
    "empty_slowest",
    "largest_free",  # most usable GPUs of a node, over its size
    "queued",  # log of the jobs that wait
    "queued_gpu_time",  # work that waits, over GPUs x mean estimate
    "next_end",  # time until the next expected end
    "last_end",  # time until the last expected end
    "mean_end",  # time until the expected ends, by GPU
    "may_wait",
    *(f"{name}_{i}" for i in range(LOOK_AHEAD) for name in ("ahead_gpus", "ahead_estimate")),
)
NODE_FEATURES = (
    "free",  # usable GPUs over size
    "fits",  # 1 if all GPUs still needed fit
    "gives",  # GPUs that it would give, over size
    "hole",  # GPUs that it would have left, over size
    "speed",  # over the fastest of the cluster
    "slows",  # 1 if it would be the slowest pick
    "faults",  # expected faults of the GPUs that it would give, during the job's run
    "lemon",
    "taken",  # GPUs picked here, over size
    "down",
    "busy",
    "first_end",  # time until the first expected end of a job here
    "last_end",  # time until the last, 0 if nothing runs
    "run",  # run time of the job if this node is next and the best completion follows
    "run_over_best",  # that over the best run time, less 1
    "best",  # 1 if no other node is better by that measure
    "end_over_last",  # end of that run against the last expected end of the cluster
    "committed",  # GPU-time of that run, over GPUs x mean estimate
    "speed_excess",  # speed of the node over the slowest of that run, less 1
    "share_of_job",  # GPUs that it would give, over those still needed
)
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
