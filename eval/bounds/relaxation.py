"""Lower bounds on when jobs can be done, for jobs with releases and shares of limits (eval/bounds/placements.py)."""

import heapq

import numpy as np
from numpy.typing import NDArray

from .placements import Needs
from .prices import priced_ends_s


def least_makespan_s(release_s: NDArray[np.float64], needs: Needs) -> float:
    """Return a time before which not all jobs can have ended.

    A job ends no earlier than its release and its run time. The jobs that are released at a moment or later do all
    their work after it, and take at least the sum of their shares of each limit.

    Args:
        release_s: Never decreasing, shape (jobs,).
        needs: Of the same jobs.
    """
    alone = float((release_s + needs.run_s).max())
    later = np.cumsum(needs.shares_s[:, ::-1], axis=1)[:, ::-1]
    return max(alone, float((release_s + later).max()))


def least_mean_jct_s(release_s: NDArray[np.float64], needs: Needs) -> float:
    """Return a time that the mean of finish minus release cannot be below: the larger of two bounds.

    The first runs all jobs on one machine, for each limit. A job has the whole machine for itself, for its share. Each
    schedule of the cluster is one of the machine too, in which no job ends later and jobs may share the machine. On
    one machine with releases nothing has a smaller sum of ends than to run the job with the shortest remaining time
    (Schrage 1968).

    The second is `priced_ends_s`, which is also no less than each job alone.
    """
    first = max(shortest_remaining_ends_s(release_s, row) for row in np.unique(needs.shares_s, axis=0))
    second = priced_ends_s(release_s, needs)
    return float(max(first, second) - release_s.sum()) / release_s.size


def shortest_remaining_ends_s(release_s: NDArray[np.float64], run_s: NDArray[np.float64]) -> float:
    """Return the sum of ends on one machine that always runs the job with the shortest remaining time.

    Args:
        release_s: Never decreasing, shape (jobs,).
        run_s: Shape (jobs,).
    """
    left: list[float] = []
    total_s, now_s = 0.0, 0.0
    for release, run in zip(release_s.tolist(), run_s.tolist(), strict=True):
        while left and now_s + left[0] <= release:
            now_s += heapq.heappop(left)
            total_s += now_s
        if left:
            heapq.heapreplace(left, left[0] - (release - now_s))
        now_s = release
        heapq.heappush(left, run)
    while left:
        now_s += heapq.heappop(left)
        total_s += now_s
    return total_s
