"""Lower bounds on when jobs can be done, for jobs with releases and shares of limits (eval/bounds/placements.py)."""

import heapq

import numpy as np
from numpy.typing import NDArray

SPANS = 64  # of time, in which a second costs the same: more change the bound by less than 1 %
STEPS = 50  # halvings of an interval


def least_makespan_s(
    release_s: NDArray[np.float64], run_s: NDArray[np.float64], shares_s: NDArray[np.float64]
) -> float:
    """Return a time before which not all jobs can have ended.

    A job ends no earlier than its release and its run time. The jobs that are released at a moment or later do all
    their work after it, and take at least the sum of their shares of each limit.

    Args:
        release_s: Never decreasing, shape (jobs,).
        run_s: Shape (jobs,).
        shares_s: Shape (limits, jobs).
    """
    alone = float((release_s + run_s).max())
    later = np.cumsum(shares_s[:, ::-1], axis=1)[:, ::-1]
    return max(alone, float((release_s + later).max()))


def least_mean_jct_s(
    release_s: NDArray[np.float64], run_s: NDArray[np.float64], shares_s: NDArray[np.float64]
) -> float:
    """Return a time that the mean of finish minus release cannot be below: the largest of two bounds.

    The first runs all jobs on one machine, for each limit: a job takes its share there, whole machine for itself. Each
    schedule of the cluster is one of the machine too, where no job ends later, and where jobs may share the machine.
    On one machine with releases nothing has a smaller sum of ends than to run the job with the shortest remaining
    time (Schrage 1968).

    The second is `priced_ends_s`.
    """
    first = max(shortest_remaining_ends_s(release_s, row) for row in _different(shares_s))
    second = priced_ends_s(release_s, run_s, shares_s)
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


def priced_ends_s(release_s: NDArray[np.float64], run_s: NDArray[np.float64], shares_s: NDArray[np.float64]) -> float:
    """Return a bound on the sum of ends that knows both the shares and how long a job runs alone.

    Let a job's *middle* be the mean moment of its work. It works no faster than alone, so its end is at least its
    middle plus half its run time. The sum of middles is smallest in a linear program: each second a job may do at most
    the part of its work that it does alone, and the shares of each limit sum to at most 1.

    A second of a limit is given a price. Whoever may break the limits but pays has, after what all limits are worth is
    taken off again, no larger sum than whoever keeps them. So any prices give a bound. Those used are the dual
    solution of the program on a coarse grid of time; the bound is then computed without the grid. Neither the grid
    nor the solver can make it wrong.
    """
    edges_s = _edges_s(release_s, run_s, shares_s)
    limits = _binding(shares_s)
    prices = _prices(release_s, run_s, limits, edges_s)
    priced_s = _least_middles_s(release_s, run_s, limits, prices, edges_s)
    alone_s = float((release_s + run_s / 2).sum())
    return max(priced_s, alone_s) + float(run_s.sum()) / 2


def _different(shares_s: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.unique(shares_s, axis=0)


def _binding(shares_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first limit, and of the others the one that all jobs together take longest for."""
    others = shares_s[1:]
    if not others.size:
        return shares_s
    return np.vstack([shares_s[:1], others[others.sum(axis=1).argmax()]])


def _edges_s(
    release_s: NDArray[np.float64], run_s: NDArray[np.float64], shares_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the edges of spans of time, shape (spans + 1,), in which all jobs can be done with all limits kept."""
    end_s = float(release_s[-1] + shares_s.sum(axis=1).max() + run_s.max())
    even = np.linspace(0.0, end_s, SPANS // 2 + 1)
    by_release = np.quantile(release_s, np.linspace(0.0, 1.0, SPANS // 2 + 1))
    edges: NDArray[np.float64] = np.unique(np.concatenate([even, by_release]))
    return edges


def _prices(
    release_s: NDArray[np.float64], run_s: NDArray[np.float64], shares_s: NDArray[np.float64],
    edges_s: NDArray[np.float64],
) -> NDArray[np.float64]:  # fmt: skip
    """Return a price for each limit and span, shape (limits, spans): 0 where the solver finds none."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, vstack

    begin_s = np.maximum(edges_s[:-1], release_s[:, None])
    open_s = edges_s[1:] - begin_s  # (jobs, spans)
    job, span = np.nonzero(open_s > 0.0)
    spans, count = edges_s.size - 1, job.size
    middle_s = begin_s[job, span] + open_s[job, span] / 2
    column = np.arange(count)
    limits = [csr_array((row[job], (span, column)), shape=(spans, count)) for row in shares_s]
    whole = csr_array((np.ones(count), (job, column)), shape=(release_s.size, count))
    room = np.tile(np.diff(edges_s), shares_s.shape[0])
    most = np.minimum(open_s[job, span] / run_s[job], 1.0)
    solved = linprog(
        middle_s, A_ub=vstack(limits), b_ub=room, A_eq=whole, b_eq=np.ones(release_s.size),
        bounds=np.column_stack([np.zeros(count), most]), method="highs",
    )  # fmt: skip
    if solved.status != 0:
        return np.zeros((shares_s.shape[0], spans))
    prices: NDArray[np.float64] = np.maximum(-solved.ineqlin.marginals, 0.0)
    return prices.reshape(shares_s.shape[0], spans)


def _least_middles_s(
    release_s: NDArray[np.float64], run_s: NDArray[np.float64], shares_s: NDArray[np.float64],
    prices: NDArray[np.float64], edges_s: NDArray[np.float64],
) -> float:  # fmt: skip
    """Return the least sum of middles and prices paid, less what all limits are worth.

    A second of a job costs `t + prices`, which rises within a span. A job takes the cheapest seconds of as long as it
    runs: all that cost less than some bound. With any bound, `bound - (what it saves below the bound)` is no more than
    what the job pays. After the last edge nothing has a price.
    """
    extra = np.column_stack([shares_s.T @ prices, np.zeros(release_s.size)])  # (jobs, spans + 1)
    begin_s = np.maximum(edges_s, release_s[:, None])
    end_s = np.append(edges_s[1:], np.inf)
    low, high = release_s.copy(), np.maximum(release_s, edges_s[-1]) + run_s
    for _ in range(STEPS):
        bound = (low + high) / 2
        taken_s = np.clip(np.minimum(bound[:, None] - extra, end_s) - begin_s, 0.0, None).sum(axis=1)
        low, high = np.where(taken_s < run_s, bound, low), np.where(taken_s < run_s, high, bound)
    reach = high[:, None] - extra
    last_s = np.minimum(reach, end_s)
    saved = np.where(last_s > begin_s, (2 * reach - begin_s - last_s) / 2 * (last_s - begin_s), 0.0).sum(axis=1)
    worth = float((prices * np.diff(edges_s)).sum())
    return float((high - saved / run_s).sum()) - worth
