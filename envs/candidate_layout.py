"""What an observation with `candidate` actions holds, in order: global features, then those of each candidate.

Times are from the decision on, divided by the mean estimate of the jobs submitted so far (the unit), and everything is
clipped to [-CLIP, CLIP]. A candidate is a job and a set of nodes, now or after a wait for an expected end; its finish
is delay + run time, expected faults included. The jobs ahead are those that cluster/candidates/lookahead.py imagines
after it. Candidates that the list does not have are zero.
"""

from ..cluster.state.state import SHOWN

SIZES = 6  # classes of the queue's jobs: 1, 2, 3 to 4, 5 to 8, 9 to 16, more GPUs
QUANTILES = 5  # of the nodes' drain times: least, quarters, most

CANDIDATE_GLOBALS = (
    "gpus_per_node_size",  # GPUs of the job that is due, over the size of the largest node
    "log2_gpus",  # its base 2 logarithm of GPUs, over 5
    "estimate",  # estimated work that it has left
    "restarted",  # 1 if it was stopped before
    "usable",  # share of all GPUs
    "busy",  # share that runs jobs
    "down",  # share out of service
    "usable_fastest",  # usable GPUs on nodes of the highest speed, as a share of theirs
    "usable_slowest",  # the same for the lowest speed
    "empty_fastest",  # wholly free nodes of the highest speed, as a share of theirs
    "empty_slowest",  # the same for the lowest speed
    "largest_free",  # most usable GPUs of a node, over the size of the largest
    "queued",  # natural logarithm of 1 + the jobs that wait, over 4
    "queued_gpu_time",  # their estimated work x GPUs, over GPUs of the cluster x unit x 4
    *(f"queued_gpu_time_{size}" for size in range(SIZES)),  # the same by GPUs of the job
    "next_end",  # time until the next expected end of a running job, 0 if none runs
    "last_end",  # time until the last expected end, 0 if none runs
    "running_gpu_time",  # GPU-time that running jobs are expected to take still, over GPUs of the cluster x unit
    *(f"drain_{quantile}" for quantile in range(QUANTILES)),  # time until a node's last job is expected to end
    "next_large",  # jobs of the queue before the next that fills the largest node, all if none does, logarithm as above
    "next_large_gpus",  # its GPUs, over those of the cluster
    "longest",  # longest estimated work in the queue, the job that is due left out
    "longest_gpus",  # its GPUs, over those of the cluster
    "may_wait",  # 1 if waiting is allowed
    "base_waits",  # 1 if the base heuristic waits
    "candidates",  # candidates in the list, over 16
)
CANDIDATE_FEATURES = (
    "exists",  # 1 where the list has a candidate
    "base",  # 1 for the base heuristic's
    "waits",  # 1 if it waits first
    "delay",  # how long
    "run",  # run time
    "finish",  # delay + run time
    "finish_over_base",  # that, less the base's
    "finish_over_last",  # that, less the last expected end of a running job
    "finish_over_drain",  # that, less the last expected end on its nodes
    "faults",  # expected faults of its GPUs in that time
    "nodes",  # over 8
    "excess_nodes",  # nodes beyond those that its GPUs fill, over 8
    "speed",  # slowest speed, over the fastest of the cluster
    "wasted_speed",  # speed of its GPUs beyond the slowest, over GPUs x the fastest
    "hole",  # GPUs that its last node has left, over the size of the largest node
    "committed",  # GPU-time, over GPUs of the cluster x unit
    "committed_over_base",  # that, less the base's
    "left_fastest",  # usable GPUs then left on nodes of the highest speed, over those of the cluster
    "left_others",  # and on others
    "left_largest",  # most usable GPUs then left on a node, over the size of the largest
    "left_empty",  # wholly free nodes then left, as a share of all
    "takes_lemon",  # share of its GPUs on lemons
    *(f"{name}_{job}" for job in range(1, SHOWN) for name in ("ahead_start", "ahead_end")),  # CLIP if never, 0 if none
    "ahead_sum",  # sum of the ends of all jobs ahead, its own finish included, over AHEAD
    "ahead_last",  # last of all ends, those of running jobs included
    "ahead_sum_over_base",
    "ahead_last_over_base",
    "due",  # 1 if its job is the one that is due
    "job_log2_gpus",  # base 2 logarithm of its job's GPUs, over 5
    "job_estimate",  # estimated work that its job has left
    "job_waited",  # natural logarithm of 1 + the time that its job has been in the queue
    "rests",  # 1 if it lets all jobs wait until the next event, and not only the one that is due
    "refused",  # 1 if it breaks the reservation, so that it only passes its job over
)
