"""A lower bound on the sum of ends by prices: what jobs take where each second of the GPUs has one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from .placements import Needs

SPANS = 64  # of time; 96 raise the bound by 1 % and take twice as long
PIECES = 4  # of a span, in which what a job saves is taken as a straight line
TRIED = np.linspace(-1.0, 1.0, 7)  # worths of a job's work, around what the grid tells, in mean spans
NEARER = 4  # times that worths are tried, each time three times closer around the best
LEAST_WEIGHT = 0.05  # of the middle; without any, work after the last span would cost nothing


class Prices(NamedTuple):
    """The dual solution of the program on a grid of time."""

    second: NDArray[np.float64]  # (kinds, edges) of a second of all GPUs of a kind, straight lines between the edges
    weight: NDArray[np.float64]  # (jobs,) of a job's middle; the rest is that of its run time
    worth_s: NDArray[np.float64]  # (jobs,) of a job's work


class Grid(NamedTuple):
    """Pairs of a job, a pace and a span in which the job may run so."""

    job: NDArray[np.intp]  # (pairs,)
    pace: NDArray[np.intp]  # (pairs,)
    span: NDArray[np.intp]  # (pairs,)
    open_s: NDArray[np.float64]  # (pairs,) length of the span after the job's release
    middle_s: NDArray[np.float64]  # (pairs,) middle of that
    run_s: NDArray[np.float64]  # (pairs,) of the job at that pace


def priced_ends_s(release_s: NDArray[np.float64], needs: Needs) -> float:
    """Return a bound on the sum of ends that knows GPUs of several speeds, and how long a job runs alone.

    Let a job's *middle* be the mean moment of its work. It works no faster than alone, so that its end is at least its
    middle plus half its run time alone. Its end is also at least its release plus the time that it runs, which depends
    on its pace, the speed of its slowest GPU. The least sum of ends under these two rules is a linear program: in each
    second a job runs at one pace at most, and the jobs hold no more GPUs of each pace or faster than there are.

    Give each second of these GPUs a price. Whoever may take more than there are but pays for all has, after what all
    GPUs are worth is taken off again, no larger sum than whoever takes what there is. So any prices give a bound, and
    so do any weights of the two rules that sum to 1, and any worth of a job's work. Those used are the dual solution
    of the program on a coarse grid of time. The bound is then computed from them for continuous time, so that neither
    the grid nor the solver can make it wrong.

    Args:
        release_s: Never decreasing, shape (jobs,).
        needs: Of the same jobs.
    """
    alone_s = float((release_s + needs.run_s).sum())
    edges_s = _edges_s(release_s, needs)
    prices = _prices(release_s, needs, edges_s)
    return alone_s if prices is None else max(alone_s, _bound_s(release_s, needs, edges_s, prices))


def _edges_s(release_s: NDArray[np.float64], needs: Needs) -> NDArray[np.float64]:
    """Return the edges of spans of time, shape (spans + 1,), in which all jobs can be done."""
    busy_s = float(release_s[-1] + needs.shares_s.sum(axis=1).max())
    even = np.linspace(0.0, busy_s, SPANS // 2 + 1)
    by_release = np.quantile(release_s, np.linspace(0.0, 1.0, SPANS // 2 + 1))
    after = busy_s + 2 * needs.run_s.max() * np.linspace(0.0, 1.0, 5) ** 2
    edges: NDArray[np.float64] = np.unique(np.concatenate([even, by_release, after]))
    return edges


def _grid(release_s: NDArray[np.float64], needs: Needs, edges_s: NDArray[np.float64]) -> Grid:
    begin_s = np.maximum(edges_s[:-1], release_s[:, None])
    open_s = edges_s[1:] - begin_s
    able = np.isfinite(needs.pace_run_s).T[:, :, None] & (open_s > 0.0)[:, None, :]
    job, pace, span = np.nonzero(able)
    length_s = open_s[job, span]
    return Grid(job, pace, span, length_s, begin_s[job, span] + length_s / 2, needs.pace_run_s[pace, job])


def _prices(release_s: NDArray[np.float64], needs: Needs, edges_s: NDArray[np.float64]) -> Prices | None:
    """Return the dual solution of the program on the grid; None if the solver finds none.

    Its variables are the seconds of each pair, then each job's end.
    """
    grid, jobs, spans = _grid(release_s, needs, edges_s), release_s.size, edges_s.size - 1
    kinds, pairs, numbers = needs.pace_use.shape[0], grid.job.size, np.arange(jobs)
    moment, one_pace = np.unique(grid.job * spans + grid.span, return_inverse=True)
    opened_s = np.zeros(moment.size)
    opened_s[one_pace] = grid.open_s
    ends = csr_array((-np.ones(jobs), (numbers, numbers)), shape=(jobs, jobs))
    room = [(needs.pace_use[kind, grid.pace, grid.job], grid.span, spans) for kind in range(kinds)]
    rules = [(grid.middle_s / grid.run_s, grid.job, jobs), (np.ones(pairs), grid.job, jobs)]
    free = [_rows(*part, pairs, jobs) for part in (*room, (np.ones(pairs), one_pace, moment.size))]
    tied = [_beside(_rows(*part, pairs, 0), ends) for part in rules]
    limits = np.concatenate([np.tile(np.diff(edges_s), kinds), opened_s, -needs.run_s / 2, -release_s])
    solved = linprog(
        np.concatenate([np.zeros(pairs), np.ones(jobs)]), A_ub=_below([*free, *tied]), b_ub=limits,
        A_eq=_rows(1.0 / grid.run_s, grid.job, jobs, pairs, jobs), b_eq=np.ones(jobs), method="highs",
    )  # fmt: skip
    if solved.status != 0:
        return None
    duals = np.maximum(-solved.ineqlin.marginals, 0.0)
    second = _at_edges(duals[: kinds * spans].reshape(kinds, spans), edges_s)
    weight = np.clip(duals[-2 * jobs : -jobs], LEAST_WEIGHT, 1.0)
    return Prices(second, weight, np.asarray(solved.eqlin.marginals))


def _at_edges(by_span: NDArray[np.float64], edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return prices at the edges of spans, shape (kinds, edges): lines through the middles of the spans."""
    middle_s = (edges_s[1:] + edges_s[:-1]) / 2
    return np.array([np.interp(edges_s, middle_s, row) for row in by_span])


def _rows(values: NDArray[np.float64], row: NDArray[np.intp], rows: int, pairs: int, more: int) -> csr_array:
    """Return a matrix with one value for each pair, and columns of zeros behind."""
    return coo_array((values, (row, np.arange(pairs))), shape=(rows, pairs + more)).tocsr()


def _beside(left: csr_array, right: csr_array) -> csr_array:
    from scipy.sparse import hstack

    return hstack([left, right]).tocsr()


def _below(parts: list[csr_array]) -> csr_array:
    from scipy.sparse import vstack

    return vstack(parts).tocsr()


def _bound_s(release_s: NDArray[np.float64], needs: Needs, edges_s: NDArray[np.float64], prices: Prices) -> float:
    """Return the bound that prices give, for continuous time."""
    alike = prices.weight * needs.run_s / 2 + (1 - prices.weight) * release_s
    width_s = float(np.diff(edges_s).mean())
    best_s, jobs_s = prices.worth_s, np.zeros(release_s.size)
    for turn in range(NEARER):
        worth_s = best_s + width_s * TRIED[:, None] / 3.0**turn
        found_s = np.array([one - _saved_s(release_s, needs, edges_s, prices, one) for one in worth_s])
        best_s, jobs_s = worth_s[found_s.argmax(axis=0), np.arange(best_s.size)], found_s.max(axis=0)
    all_gpus_s = prices.second.sum(axis=0)
    return float((alike + jobs_s).sum() - ((all_gpus_s[1:] + all_gpus_s[:-1]) / 2 * np.diff(edges_s)).sum())


def _saved_s(
    release_s: NDArray[np.float64], needs: Needs, edges_s: NDArray[np.float64], prices: Prices,
    worth_s: NDArray[np.float64],
) -> NDArray[np.float64]:  # fmt: skip
    """Return at least what each job saves in all seconds where its work costs less than it is worth, shape (jobs,).

    A second at a pace does 1 / run time of the work. It costs the weighted moment of this work, the rest of the weight
    as run time, and the price of the GPUs. Of the paces a job takes the one that saves most, or none. Within a span
    that is a convex function of time, so straight lines between some of its points lie above it.
    """
    parts = np.linspace(0.0, 1.0, PIECES + 1)
    begin_s = np.maximum(edges_s[:-1], release_s[:, None])  # (jobs, spans)
    open_s = np.maximum(edges_s[1:] - begin_s, 0.0)
    time_s = begin_s[:, :, None] + open_s[:, :, None] * parts  # (jobs, spans, parts)
    share = (time_s - edges_s[:-1, None]) / np.diff(edges_s)[:, None]  # of the span that has gone by
    late_s = np.maximum(edges_s[-1], release_s)
    saved, after, ends_s = np.zeros(time_s.shape), np.zeros(release_s.size), late_s.copy()
    for pace, taken_s in enumerate(needs.pace_run_s):
        able = np.isfinite(taken_s)
        run_s = np.where(able, taken_s, 1.0)
        fixed = np.where(able, 1 - prices.weight, np.inf)
        price = needs.pace_use[:, pace].T @ prices.second  # (jobs, edges)
        price = price[:, :-1, None] + np.diff(price, axis=1)[:, :, None] * share  # (jobs, spans, parts)
        left = (worth_s[:, None, None] - prices.weight[:, None, None] * time_s) / run_s[:, None, None]
        saved = np.maximum(saved, left - fixed[:, None, None] - price)
        after = np.maximum(after, (worth_s - prices.weight * late_s) / run_s - fixed)
        last_s = (worth_s - (1 - prices.weight) * run_s) / prices.weight
        ends_s = np.maximum(ends_s, np.where(able, last_s, late_s))
    lines = (saved[:, :, :-1] + saved[:, :, 1:]).sum(axis=2) / 2 * open_s / PIECES
    tail = after * (ends_s - late_s) / 2
    return np.asarray(lines.sum(axis=1) + tail)
