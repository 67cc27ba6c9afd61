"""Lower bounds on makespan and mean JCT of scenarios (docs/evaluation.md, "How far from the best possible")."""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

from ..cluster.model.problem import Problem, Rules, Scenarios, reference_iteration_by_rules_s
from ..cluster.model.topology import Cluster
from ..cluster.model.workload import Iteration

MIN_SLOWDOWN, MAX_SLOWDOWN = 1e-60, 1e60  # the simulator holds slowdowns within these
MAX_PACES = 4  # distinct speeds where each second is priced
MAX_FILTERS = 24  # distinct ways to count large jobs that are tried


class ScenarioJobs(NamedTuple):
    """The jobs of one scenario."""

    gpus: NDArray[np.int32]  # (jobs,)
    work_s: NDArray[np.float64]  # (jobs,)
    submit_s: NDArray[np.float64]  # (jobs,)
    compute_s: NDArray[np.float64]  # (jobs,)
    parameter_bytes: NDArray[np.float64]  # (jobs,)
    fixed_s: NDArray[np.float64]  # (jobs,) of an iteration by a plan, 0 without one
    planned_s: NDArray[np.float64]  # (jobs,) of an iteration by a plan on the reference placement, 0 without one


class JobMinimums(NamedTuple):
    """What each job takes at least, whatever GPUs it runs on."""

    run_s: NDArray[np.float64]  # (jobs,) from start to end without a fault
    shares_s: NDArray[np.float64]  # (limits, jobs) run time x share of a limit that all jobs share
    pace_run_s: NDArray[np.float64]  # (paces, jobs) run time where the slowest GPU is of a pace, inf if it cannot be
    pace_use: NDArray[np.float64]  # (kinds, paces, jobs) share of the GPUs of a pace or faster while it runs so


def job_minimums(cluster: Cluster, speed: NDArray[np.float64], rules: Rules, jobs: ScenarioJobs) -> JobMinimums:
    """Return what jobs take at least.

    Each row of `shares_s` is one limit of the cluster. At no moment can the shares of the running jobs sum to more
    than 1, so that jobs which are run from a moment on take at least the sum of their `shares_s`.

    The first limit is speed: a running job holds GPUs, and the speeds of all GPUs held sum to at most those of the
    cluster. A job's slowest GPU sets its pace, so its GPUs are at least as fast as the one whose speed its run time is
    counted by. The least product of both over all speeds is what it needs, on whatever GPUs it runs, also if faults
    make it run on several sets of them.

    The others count GPUs, and see what the first does not: a job of more than half the cluster's GPUs runs beside no
    other such job. With n GPUs of G, and a number q up to G / 2, a job counts as 1 if it needs more than G - q GPUs, as
    nothing if it needs fewer than q, else as n / G. Beside a job that counts as 1 fewer than q GPUs are left, and jobs
    that run there count as nothing; without one, the GPUs held are at most G.

    Args:
        cluster: The cluster.
        speed: Of each node's GPUs, shape (nodes,).
        rules: Give the model of run time.
        jobs: None may need more GPUs than the cluster has.

    Source: the counting of large jobs is a dual feasible function (Fekete and Schepers 2001).
    """
    slowdown, area = np.full(jobs.gpus.size, np.inf), np.full(jobs.gpus.size, np.inf)
    sizes = np.diff(cluster.first_gpu)
    for slowest in np.unique(speed):
        fast = speed >= slowest
        for job_gpus in np.unique(jobs.gpus):
            if sizes[fast].sum() < job_gpus:
                continue
            mine = jobs.gpus == job_gpus
            least = _least_slowdown(cluster, fast, float(slowest), int(job_gpus), rules, jobs, mine)
            held = float(np.sort(np.repeat(speed[fast], sizes[fast]))[:job_gpus].sum())
            slowdown[mine] = np.minimum(slowdown[mine], least)
            area[mine] = np.minimum(area[mine], least * held)
    run_s = slowdown * jobs.work_s
    by_speed = area * jobs.work_s / float(speed @ sizes)
    shares_s = np.vstack([by_speed, *_counted_shares_s(jobs.gpus, int(sizes.sum()), run_s)])
    return JobMinimums(
        run_s, shares_s, *_pace_run_and_use(cluster, _rounded_up_speeds(speed), rules, jobs, run_s, shares_s)
    )


def _rounded_up_speeds(speed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return speeds of which only some differ, none lower than it was, shape (nodes,)."""
    kinds = np.unique(speed)
    last = [part[-1] for part in np.array_split(kinds, min(kinds.size, MAX_PACES))]
    return np.asarray(last)[np.searchsorted(last, speed)]


def _pace_run_and_use(
    cluster: Cluster, speed: NDArray[np.float64], rules: Rules, jobs: ScenarioJobs, run_s: NDArray[np.float64],
    shares_s: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return `pace_run_s` and `pace_use`.

    A pace is the speed of a job's slowest GPU. A job of a pace holds all its GPUs among those of this pace or faster.
    Of still faster ones it holds at least as many as those that are slower than these cannot give. The last kind is
    no pace, but the way to count large jobs by which they take longest.
    """
    sizes, paces = np.diff(cluster.first_gpu), np.unique(speed)
    room = np.array([sizes[speed >= pace].sum() for pace in paces])
    taken_s, use = np.full((paces.size, jobs.gpus.size), np.inf), np.zeros((paces.size + 1, paces.size, jobs.gpus.size))
    for place, pace in enumerate(paces):
        for job_gpus in np.unique(jobs.gpus[jobs.gpus <= room[place]]):
            mine = jobs.gpus == job_gpus
            least = _least_slowdown(cluster, speed >= pace, float(pace), int(job_gpus), rules, jobs, mine)
            taken_s[place, mine] = least * jobs.work_s[mine]
        for kind in range(paces.size):
            elsewhere = max(0, int(room[place] - room[kind]))
            use[kind, place] = np.maximum(jobs.gpus - elsewhere, 0) / room[kind]
    counted_s = shares_s[1:]
    use[-1] = counted_s[counted_s.sum(axis=1).argmax()] / run_s
    return taken_s, use


def _least_slowdown(
    cluster: Cluster, fast: NDArray[np.bool_], speed: float, job_gpus: int, rules: Rules, jobs: ScenarioJobs,
    mine: NDArray[np.bool_],
) -> NDArray[np.float64]:  # fmt: skip
    """Return a slowdown that no placement on some nodes, whose slowest GPU has a speed, is below, shape (mine,)."""
    sizes = np.diff(cluster.first_gpu)[fast]
    nodes = int(np.searchsorted(np.cumsum(np.sort(sizes)[::-1]), job_gpus) + 1)
    if not rules.ring:
        found = np.full(int(mine.sum()), (1.0 + rules.node_penalty * (nodes - 1)) / speed)
    elif job_gpus == 1:
        found = np.full(int(mine.sum()), 1.0 / speed)
    else:
        compute_s = jobs.compute_s[mine]
        volume = 2.0 * (job_gpus - 1) / job_gpus * jobs.parameter_bytes[mine]
        large = job_gpus > rules.reference_gpus
        reference = rules.reference_nic_bytes_per_s if large else rules.reference_intra_bytes_per_s
        link = _fastest_link(cluster, fast, job_gpus, nodes)
        found = (compute_s / speed + volume / link) / (compute_s + volume / reference)
    if rules.ring and jobs.planned_s[mine].any():
        planned_s = jobs.planned_s[mine]  # links, which plans use in many ways, are taken to cost no time
        least_s = jobs.compute_s[mine] / speed + jobs.fixed_s[mine]
        found = np.where(planned_s > 0.0, least_s / np.maximum(planned_s, 1e-300), found)
    bounded: NDArray[np.float64] = np.clip(found, MIN_SLOWDOWN, MAX_SLOWDOWN)
    return bounded


def _fastest_link(cluster: Cluster, fast: NDArray[np.bool_], job_gpus: int, nodes: int) -> float:
    """Return a bandwidth that no ring of a number of GPUs on some nodes exceeds, on one node or on more."""
    holds_all = fast & (np.diff(cluster.first_gpu) >= job_gpus)
    inside = float(cluster.intra_bytes_per_s[holds_all].max(initial=0.0))
    if fast.sum() < 2:
        return inside
    # A ring of k nodes is no faster than the k-th fastest link of all nodes.
    across = float(np.sort(cluster.nic_bytes_per_s[fast])[::-1][max(nodes, 2) - 1])
    return max(inside, across)


def _counted_shares_s(
    gpus: NDArray[np.int32], cluster_gpus: int, run_s: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Return run time x share of each way to count GPUs; only those that differ."""
    bounds = np.unique(
        np.concatenate([[1], gpus[gpus <= cluster_gpus // 2], cluster_gpus - gpus[2 * gpus > cluster_gpus] + 1])
    )
    bounds = bounds[(bounds >= 1) & (2 * bounds <= max(cluster_gpus, 2))]
    picked = bounds[np.unique(np.linspace(0, bounds.size - 1, min(bounds.size, MAX_FILTERS)).astype(int))]
    rows = [
        np.where(gpus > cluster_gpus - q, 1.0, np.where(gpus < q, 0.0, gpus / cluster_gpus)) * run_s for q in picked
    ]
    return list(np.unique(np.array(rows), axis=0))


SPANS = 64  # of time; 96 raise the bound by 1 % and take twice as long
PIECES = 4  # of a span, in which what a job saves is taken as a straight line
TRIED = np.linspace(-1.0, 1.0, 7)  # worths of a job's work, around that of the grid, in mean spans
NEARER = 4  # times that worths are tried, each time three times closer around the best
MIN_WEIGHT = 0.05  # of the middle; without any, work after the last span would cost nothing


class Prices(NamedTuple):
    """The dual solution of the program on a grid of time."""

    per_second: NDArray[np.float64]  # (kinds, edges) of all GPUs of a kind; a straight line between two edges
    weight: NDArray[np.float64]  # (jobs,) of a job's middle; the rest is that of its run time
    worth_s: NDArray[np.float64]  # (jobs,) of a job's work


def priced_ends_bound_s(release_s: NDArray[np.float64], minimums: JobMinimums) -> float:
    """Return a bound on the sum of ends that knows GPUs of several speeds, and how long a job runs alone.

    Let a job's *middle* be the mean moment of its work. It works no faster than alone, so that its end is at least its
    middle plus half its run time alone. Its end is also at least its release plus the time that it runs, which depends
    on its pace, the speed of its slowest GPU. The least sum of ends under these two rules is a linear program: in each
    second a job runs at one pace at most, and the jobs hold no more GPUs of each pace or faster than there are.

    Give each second of these GPUs a price. A schedule that may take more GPUs than there are, but pays for all, has no
    larger sum than one that takes what there is, once the worth of all GPUs is subtracted. So any prices give a bound,
    and so do any weights of the two rules that sum to 1, and any worth of a job's work. Those used are the dual
    solution of the program on a coarse grid of time. The bound is then computed from them for continuous time, so that
    neither the grid nor the solver can make it wrong.

    Args:
        release_s: Never decreasing, shape (jobs,).
        minimums: Of the same jobs.
    """
    alone_s = float((release_s + minimums.run_s).sum())
    edges_s = _time_edges_s(release_s, minimums)
    prices = _solve_prices(release_s, minimums, edges_s)
    return alone_s if prices is None else max(alone_s, _priced_bound_s(release_s, minimums, edges_s, prices))


def _time_edges_s(release_s: NDArray[np.float64], minimums: JobMinimums) -> NDArray[np.float64]:
    """Return the edges of spans of time, shape (spans + 1,), in which all jobs can be done."""
    busy_s = float(release_s[-1] + minimums.shares_s.sum(axis=1).max())
    even = np.linspace(0.0, busy_s, SPANS // 2 + 1)
    by_release = np.quantile(release_s, np.linspace(0.0, 1.0, SPANS // 2 + 1))
    after = busy_s + 2 * minimums.run_s.max() * np.linspace(0.0, 1.0, 5) ** 2
    edges: NDArray[np.float64] = np.unique(np.concatenate([even, by_release, after]))
    return edges


def _solve_prices(release_s: NDArray[np.float64], minimums: JobMinimums, edges_s: NDArray[np.float64]) -> Prices | None:
    """Return the dual solution of the program on the grid; None if the solver finds none.

    Its variables are the seconds of each pair of a job and a pace in a span in which the job may run so, then each
    job's end.
    """
    begin_s = np.maximum(edges_s[:-1], release_s[:, None])
    open_s = edges_s[1:] - begin_s  # (jobs, spans) length of the span after the job's release
    job, pace, span = np.nonzero(np.isfinite(minimums.pace_run_s).T[:, :, None] & (open_s > 0.0)[:, None, :])
    middle_s, run_s = begin_s[job, span] + open_s[job, span] / 2, minimums.pace_run_s[pace, job]
    jobs, spans = release_s.size, edges_s.size - 1
    kinds, pairs, numbers = minimums.pace_use.shape[0], job.size, np.arange(jobs)
    moment, one_pace = np.unique(job * spans + span, return_inverse=True)
    opened_s = np.zeros(moment.size)
    opened_s[one_pace] = open_s[job, span]
    ends = csr_array((-np.ones(jobs), (numbers, numbers)), shape=(jobs, jobs))
    room = [(minimums.pace_use[kind, pace, job], span, spans) for kind in range(kinds)]
    rules = [(middle_s / run_s, job, jobs), (np.ones(pairs), job, jobs)]
    free = [_pair_matrix(*part, pairs, jobs) for part in (*room, (np.ones(pairs), one_pace, moment.size))]
    tied = [hstack([_pair_matrix(*part, pairs, 0), ends]).tocsr() for part in rules]
    limits = np.concatenate([np.tile(np.diff(edges_s), kinds), opened_s, -minimums.run_s / 2, -release_s])
    solved = linprog(
        np.concatenate([np.zeros(pairs), np.ones(jobs)]), A_ub=vstack([*free, *tied]).tocsr(), b_ub=limits,
        A_eq=_pair_matrix(1.0 / run_s, job, jobs, pairs, jobs), b_eq=np.ones(jobs), method="highs",
    )  # fmt: skip
    if solved.status != 0:
        return None
    duals = np.maximum(-solved.ineqlin.marginals, 0.0)
    # At the edges of the spans, prices are on lines through their middles.
    middles_s, by_span = (edges_s[1:] + edges_s[:-1]) / 2, duals[: kinds * spans].reshape(kinds, spans)
    second = np.array([np.interp(edges_s, middles_s, row) for row in by_span])
    weight = np.clip(duals[-2 * jobs : -jobs], MIN_WEIGHT, 1.0)
    return Prices(second, weight, np.asarray(solved.eqlin.marginals))


def _pair_matrix(
    values: NDArray[np.float64], row: NDArray[np.intp], rows: int, pairs: int, zero_columns: int
) -> csr_array:
    """Return a matrix with one value for each pair, and columns of zeros behind."""
    return coo_array((values, (row, np.arange(pairs))), shape=(rows, pairs + zero_columns)).tocsr()


def _priced_bound_s(
    release_s: NDArray[np.float64], minimums: JobMinimums, edges_s: NDArray[np.float64], prices: Prices
) -> float:
    """Return the bound that prices give, for continuous time."""
    alike = prices.weight * minimums.run_s / 2 + (1 - prices.weight) * release_s
    width_s = float(np.diff(edges_s).mean())
    best_s, jobs_s = prices.worth_s, np.zeros(release_s.size)
    for turn in range(NEARER):
        worth_s = best_s + width_s * TRIED[:, None] / 3.0**turn
        found_s = np.array([one - _max_saved_s(release_s, minimums, edges_s, prices, one) for one in worth_s])
        best_s, jobs_s = worth_s[found_s.argmax(axis=0), np.arange(best_s.size)], found_s.max(axis=0)
    all_gpus_s = prices.per_second.sum(axis=0)
    return float((alike + jobs_s).sum() - ((all_gpus_s[1:] + all_gpus_s[:-1]) / 2 * np.diff(edges_s)).sum())


def _max_saved_s(
    release_s: NDArray[np.float64], minimums: JobMinimums, edges_s: NDArray[np.float64], prices: Prices,
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
    share = (time_s - edges_s[:-1, None]) / np.diff(edges_s)[:, None]  # of the span that has passed
    late_s = np.maximum(edges_s[-1], release_s)
    saved, after, ends_s = np.zeros(time_s.shape), np.zeros(release_s.size), late_s.copy()
    for pace, taken_s in enumerate(minimums.pace_run_s):
        able = np.isfinite(taken_s)
        run_s = np.where(able, taken_s, 1.0)
        fixed = np.where(able, 1 - prices.weight, np.inf)
        price = minimums.pace_use[:, pace].T @ prices.per_second  # (jobs, edges)
        price = price[:, :-1, None] + np.diff(price, axis=1)[:, :, None] * share  # (jobs, spans, parts)
        left = (worth_s[:, None, None] - prices.weight[:, None, None] * time_s) / run_s[:, None, None]
        saved = np.maximum(saved, left - fixed[:, None, None] - price)
        after = np.maximum(after, (worth_s - prices.weight * late_s) / run_s - fixed)
        last_s = (worth_s - (1 - prices.weight) * run_s) / prices.weight
        ends_s = np.maximum(ends_s, np.where(able, last_s, late_s))
    lines = (saved[:, :, :-1] + saved[:, :, 1:]).sum(axis=2) / 2 * open_s / PIECES
    tail = after * (ends_s - late_s) / 2
    return np.asarray(lines.sum(axis=1) + tail)


def least_makespan_s(release_s: NDArray[np.float64], minimums: JobMinimums) -> float:
    """Return a time before which not all jobs can have ended.

    A job ends no earlier than its release and its run time. The jobs that are released at a moment or later do all
    their work after it, and take at least the sum of their shares of each limit.

    Args:
        release_s: Never decreasing, shape (jobs,).
        minimums: Of the same jobs.
    """
    alone = float((release_s + minimums.run_s).max())
    later = np.cumsum(minimums.shares_s[:, ::-1], axis=1)[:, ::-1]
    return max(alone, float((release_s + later).max()))


def least_mean_jct_s(release_s: NDArray[np.float64], minimums: JobMinimums) -> float:
    """Return a time that the mean of finish minus release cannot be below: the larger of two bounds.

    The first runs all jobs on one machine, for each limit. A job has the whole machine for itself, for its share. Each
    schedule of the cluster is one of the machine too, in which no job ends later and jobs may share the machine. On
    one machine with releases nothing has a smaller sum of ends than to run the job with the shortest remaining time
    (Schrage 1968).

    The second is `priced_ends_bound_s`, which is also no less than each job alone.
    """
    first = max(shortest_remaining_ends_s(release_s, row) for row in np.unique(minimums.shares_s, axis=0))
    second = priced_ends_bound_s(release_s, minimums)
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


BOUND_ROUNDING = 1e-9  # of a bound: the simulator sums times in another order
LOWER_BOUNDS = {"makespan_s": least_makespan_s, "mean_jct_s": least_mean_jct_s}


def lower_bounds(
    problem: Problem,
    figure: str,
    rows: NDArray[np.intp] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, count: None,
) -> NDArray[np.float64]:
    """Return what a figure cannot be below, shape (rows,); nan of a figure that has no bound.

    They hold for any policy, order regime, ageing bound and waiting, and for a scheduler that knows all jobs and
    faults beforehand. Faults, repairs, restarts and lost work only ever add time, so that the bounds are those of a
    cluster where nothing fails.

    Args:
        problem: The scenarios.
        figure: Its name; those of LOWER_BOUNDS have bounds.
        rows: Scenarios to bound, shape (rows,); all by default.
        on_progress: Called with the number of scenarios that are done, and that of all.
    """
    scenarios = problem.scenarios
    numbers = np.arange(scenarios.jobs.size) if rows is None else rows
    if figure not in LOWER_BOUNDS:
        return np.full(numbers.size, np.nan)
    known: dict[bytes, float] = {}
    found = np.empty(numbers.size)
    for place, row in enumerate(numbers.tolist()):
        jobs = _scenario_jobs(problem, row)
        minimums = job_minimums(problem.cluster, scenarios.speed[row], problem.rules, jobs)
        key = b"".join(part.tobytes() for part in (jobs.submit_s, *minimums))
        if key not in known:  # draws of faults of the same jobs have the same bounds
            on_progress(place, numbers.size)
            known[key] = LOWER_BOUNDS[figure](jobs.submit_s, minimums)
        found[place] = known[key]
    return found * (1.0 - BOUND_ROUNDING)


def _scenario_jobs(problem: Problem, row: int) -> ScenarioJobs:
    scenarios, count = problem.scenarios, int(problem.scenarios.jobs[row])
    names = [name for name in ScenarioJobs._fields if name not in ("fixed_s", "planned_s")]
    columns = {name: getattr(scenarios, name)[row, :count] for name in names}
    planned_s, fixed_s = np.zeros(count), np.zeros(count)
    if scenarios.pipeline.size:
        fixed_s = scenarios.fixed_s[row, :count]
        for job in np.flatnonzero(scenarios.pipeline[row, :count]):
            planned_s[job] = reference_iteration_by_rules_s(_planned_iteration(scenarios, row, int(job)), problem.rules)
    return ScenarioJobs(**columns, fixed_s=fixed_s, planned_s=planned_s)


def _planned_iteration(scenarios: Scenarios, row: int, job: int) -> Iteration:
    """Return what an iteration of a job does that has a plan."""
    names = {"gradient_bytes": "parameter_bytes"}
    figures = {name: getattr(scenarios, names.get(name, name))[row, job].item() for name in Iteration._fields[1:]}
    data = int(scenarios.gpus[row, job]) // (figures["pipeline"] * figures["tensor"])
    return Iteration(data, **figures)
