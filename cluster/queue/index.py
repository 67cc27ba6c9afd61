"""An index of a long queue: the next job that may start is found in logarithmic time.

It is a tree over leaves, one for each job of the scenario. They stand in the order of the GPUs that jobs ask for, so
that the jobs that fit on a number of GPUs are the first leaves; where needs differ, that holds in each class. Each
node knows of the waiting jobs below it the one that the order regime offers first, the shortest run that one of them
can have, and the one that has waited longest. Node 1 is the top, below node n are 2 n and 2 n + 1. Jobs that were
passed over are hidden until the next moment, so that no search meets them again.

Where users take turns, each job has a second leaf behind all of these: there the leaves of each line of jobs (turns.py)
stand side by side, so that any search may be of all jobs or of one line. The line that has its turn first is the first,
of those in the rotation, in which a job is found; it is searched for only if there is one in any.

A short queue has no index: a walk along it is faster. The index is made at the first search in a queue of at least
`index_from` jobs, follows the queue from then on, and is dropped when the queue is half as long.
"""

import math

from ..kernels.compiled import kernel
from ..kernels.structures import push, remove
from ..model.problem import orders_by_work
from ..placing import least_slowdown
from ..state.holding import need_class_of, usable_for_class
from ..state.state import Simulation, has_need_classes, has_turns
from .expected import estimated_work_s, expected_run_s
from .turns import PASSING, line_of, next_line_of

NO_LEAVES, EMPTY, KEPT = range(3)  # `index_stage`


@kernel
def _slot_of_size(sim: Simulation, need_class: int, gpus: int) -> int:
    """Return the place in `index_first` of the jobs of a class that ask for `gpus` GPUs."""
    return need_class * (sim.cluster.gpu_node.size + 2) + gpus


@kernel
def assign_leaves(sim: Simulation, row: int) -> None:
    """Give each job of the scenario its leaf, by class, GPUs and then number, and empty the index."""
    state = sim.state
    gpus, jobs = sim.scenarios.gpus[state.scenario[row]], sim.scenarios.jobs[state.scenario[row]]
    first, sizes = state.index_first, state.index_first.shape[1]
    for size in range(sizes):
        first[row, size] = 0
    for job in range(jobs):
        first[row, _slot_of_size(sim, need_class_of(sim, row, job), gpus[job]) + 1] += 1
    for size in range(1, sizes):
        first[row, size] += first[row, size - 1]
    for job in range(jobs):
        size = _slot_of_size(sim, need_class_of(sim, row, job), gpus[job])
        leaf = first[row, size]
        first[row, size] += 1
        state.index_leaf[row, job] = leaf
        state.index_job[row, leaf] = job
        state.index_young_place[row, job] = -1
    for size in range(sizes - 1, 0, -1):  # each count has moved on to that of the next size
        first[row, size] = first[row, size - 1]
    first[row, 0] = 0
    if has_turns(sim):
        _assign_leaves_by_line(sim, row, jobs)
    for node in range(state.index_best.shape[1]):
        write_tree_node(sim, row, node, -1, math.inf, math.inf, -1, math.inf)
    state.index_young_count[row] = 0
    state.index_stage[row] = EMPTY
    state.index_hidden[row] = 0


@kernel
def _assign_leaves_by_line(sim: Simulation, row: int, jobs: int) -> None:
    """Give each job its leaf among those of its line, in the order of its other one."""
    state = sim.state
    first, lines = state.index_line, state.index_line.shape[1] - 1
    for line in range(lines + 1):
        first[row, line] = 0
    for job in range(jobs):
        first[row, line_of(sim, row, job)] += 1
    after = 2 * jobs
    for line in range(lines, -1, -1):
        after -= first[row, line]
        first[row, line] = after
    for leaf in range(jobs):
        job = state.index_job[row, leaf]
        line = line_of(sim, row, job)
        own = first[row, line]
        first[row, line] += 1
        state.index_own_leaf[row, job] = own
        state.index_job[row, own] = job
    for line in range(lines, 0, -1):  # each has moved on to that of the next line
        first[row, line] = first[row, line - 1]
    first[row, 0] = jobs


@kernel
def write_tree_node(
    sim: Simulation, row: int, node: int, best: int, key: float, run_s: float, oldest: int, since_s: float
) -> None:
    """Write what a node knows of the jobs below it."""
    state = sim.state
    state.index_best[row, node], state.index_key[row, node] = best, key
    state.index_run_s[row, node] = run_s
    state.index_oldest[row, node], state.index_since_s[row, node] = oldest, since_s


@kernel
def leaf_range_of_class(sim: Simulation, row: int, need_class: int, gpus: int) -> tuple[int, int]:
    """Return the first leaf of the jobs of a class that ask for at most `gpus` GPUs and the one after the last."""
    leaves, first = sim.state.index_best.shape[1] // 2, sim.state.index_first
    return (
        leaves + int(first[row, _slot_of_size(sim, need_class, 0)]),
        leaves + int(first[row, _slot_of_size(sim, need_class, gpus) + 1]),
    )


@kernel
def _first_leaf_of_line(sim: Simulation, row: int, line: int, need_class: int, gpus: int) -> int:
    """Return the first leaf of a line whose job is of a class and asks for `gpus` GPUs, or stands behind those."""
    state = sim.state
    needed = sim.scenarios.gpus[state.scenario[row]]
    left, right = state.index_line[row, line], state.index_line[row, line + 1]
    while left < right:
        middle = (left + right) >> 1
        job = state.index_job[row, middle]
        own = need_class_of(sim, row, job)
        if own < need_class or (own == need_class and needed[job] < gpus):
            left = middle + 1
        else:
            right = middle
    return int(left)


@kernel
def leaf_range_of_line(sim: Simulation, row: int, line: int, need_class: int, gpus: int) -> tuple[int, int]:
    """Do what `leaf_range_of_class` does for the jobs of one line."""
    leaves = sim.state.index_best.shape[1] // 2
    first = _first_leaf_of_line(sim, row, line, need_class, 0)
    after = _first_leaf_of_line(sim, row, line, need_class, gpus + 1)
    return leaves + first, leaves + after


LONGEST_RUN_S = (
    1.7976931348623157e308  # the largest number, which stands for runs that are longer: inf is that of no job
)


@kernel
def _has_smaller_key(sim: Simulation, row: int, key: float, leaf: int, other_key: float, other: int) -> bool:
    """Return whether a leaf's key is smaller than another's; among equals, whether its job is before; -1 is none."""
    if leaf < 0 or other < 0:
        return leaf >= 0
    if key != other_key:
        return key < other_key
    state = sim.state
    return bool(
        state.index_place[row, state.index_job[row, leaf]] < state.index_place[row, state.index_job[row, other]]
    )


@kernel
def _leaf_goes_before(sim: Simulation, row: int, key: float, leaf: int, other_key: float, other: int) -> bool:
    """Return whether a leaf's job goes before another's: by key, and by rank first if jobs go by work."""
    if leaf >= 0 and other >= 0 and orders_by_work(sim.rules.order):
        state = sim.state
        rank = sim.scenarios.rank[state.scenario[row]]
        own, others = rank[state.index_job[row, leaf]], rank[state.index_job[row, other]]
        if own != others:
            return bool(own < others)
    return bool(_has_smaller_key(sim, row, key, leaf, other_key, other))


@kernel
def _update_tree_above(sim: Simulation, row: int, leaf: int) -> None:
    """Bring the nodes above a leaf that has changed up to date."""
    state = sim.state
    best, key, run_s = state.index_best, state.index_key, state.index_run_s
    oldest, since_s = state.index_oldest, state.index_since_s
    node = (state.index_best.shape[1] // 2 + leaf) >> 1
    while node > 0:
        a, b = 2 * node, 2 * node + 1
        winner = a if _leaf_goes_before(sim, row, key[row, a], best[row, a], key[row, b], best[row, b]) else b
        older = a if _has_smaller_key(sim, row, since_s[row, a], oldest[row, a], since_s[row, b], oldest[row, b]) else b
        shortest_s = min(run_s[row, a], run_s[row, b])
        if (
            best[row, node] == best[row, winner]
            and key[row, node] == key[row, winner]
            and run_s[row, node] == shortest_s
            and oldest[row, node] == oldest[row, older]
            and since_s[row, node] == since_s[row, older]
        ):
            return
        best[row, node], key[row, node], run_s[row, node] = best[row, winner], key[row, winner], shortest_s
        oldest[row, node], since_s[row, node] = oldest[row, older], since_s[row, older]
        node >>= 1


@kernel
def _order_key(sim: Simulation, row: int, job: int) -> float:
    """Return what a job is ordered by: its expected work, or its place in the queue, as the order regime has it."""
    if orders_by_work(sim.rules.order):
        return estimated_work_s(sim, row, job)
    return float(sim.state.index_place[row, job])


@kernel
def _offer_job(sim: Simulation, row: int, job: int) -> None:
    """Let a job of the queue be found by `first_job_to_pass`."""
    key = _order_key(sim, row, job)
    run_s = min(expected_run_s(sim, row, job, least_slowdown(sim, row, job)), LONGEST_RUN_S)
    _write_leaf_offer(sim, row, sim.state.index_leaf[row, job], key, run_s)
    if has_turns(sim):
        _write_leaf_offer(sim, row, sim.state.index_own_leaf[row, job], key, run_s)


@kernel
def _write_leaf_offer(sim: Simulation, row: int, leaf: int, key: float, run_s: float) -> None:
    """Write what a leaf offers: its job, by its key and its shortest run."""
    state = sim.state
    node = state.index_best.shape[1] // 2 + leaf
    state.index_best[row, node], state.index_key[row, node], state.index_run_s[row, node] = leaf, key, run_s
    _update_tree_above(sim, row, leaf)


@kernel
def _enter_index(sim: Simulation, row: int, job: int, place: int) -> None:
    state = sim.state
    leaf = state.index_leaf[row, job]
    node = state.index_best.shape[1] // 2 + leaf
    state.index_place[row, job] = place
    state.index_oldest[row, node], state.index_since_s[row, node] = leaf, state.queued_s[row, job]
    _offer_job(sim, row, job)
    if state.passed[row, job] == state.moment[row]:
        hide_job(sim, row, job)
    if state.now_s[row] < state.queued_s[row, job] + sim.rules.ageing_s < math.inf:
        push(state.queued_s, state.index_young, state.index_young_place, state.index_young_count, row, job)


@kernel
def _leave_index(sim: Simulation, row: int, job: int) -> None:
    """Take a job that is not hidden out of the index."""
    state = sim.state
    _clear_leaf(sim, row, state.index_leaf[row, job])
    if has_turns(sim):
        _clear_leaf(sim, row, state.index_own_leaf[row, job])
    if state.index_young_place[row, job] >= 0:
        remove(state.queued_s, state.index_young, state.index_young_place, state.index_young_count, row, job)


@kernel
def _clear_leaf(sim: Simulation, row: int, leaf: int) -> None:
    write_tree_node(sim, row, sim.state.index_best.shape[1] // 2 + leaf, -1, math.inf, math.inf, -1, math.inf)
    _update_tree_above(sim, row, leaf)


@kernel
def index_enqueued_last(sim: Simulation, row: int, job: int) -> None:
    """Write a job that has come to the end of the queue into the index, if that is kept."""
    state = sim.state
    if state.index_stage[row] == KEPT:
        _show_passed_earlier(sim, row)
        before = state.previous_job[row, job]
        _enter_index(sim, row, job, state.index_place[row, before] + 1 if before >= 0 else 0)


@kernel
def index_enqueued_first(sim: Simulation, row: int, job: int) -> None:
    """Write a job that has come to the head of the queue into the index, if that is kept."""
    state = sim.state
    if state.index_stage[row] == KEPT:
        _show_passed_earlier(sim, row)
        after = state.next_job[row, job]
        _enter_index(sim, row, job, state.index_place[row, after] - 1 if after >= 0 else 0)


@kernel
def unindex_dequeued(sim: Simulation, row: int, job: int) -> None:
    """Take a job that has left the queue out of the index, and give that up if the queue is short."""
    state = sim.state
    if state.index_stage[row] != KEPT:
        return
    if 2 * state.queued[row] >= state.index_from[row]:
        _show_if_hidden(sim, row, job)
        _leave_index(sim, row, job)
        return
    show_hidden(sim, row, 0)
    _leave_index(sim, row, job)
    other = state.head[row]
    while other >= 0:
        _leave_index(sim, row, other)
        other = state.next_job[row, other]
    state.index_stage[row] = EMPTY


@kernel
def index_if_long(sim: Simulation, row: int) -> bool:
    """Return whether the queue has an index, which is made if the queue is long."""
    state = sim.state
    if state.index_stage[row] != KEPT:
        if state.queued[row] < state.index_from[row] or state.index_best.shape[1] == 0:
            return False
        if state.index_stage[row] == NO_LEAVES:
            assign_leaves(sim, row)
        state.index_moment[row] = state.moment[row]
        job, place = state.head[row], 0
        while job >= 0:
            _enter_index(sim, row, job, place)
            job, place = state.next_job[row, job], place + 1
        state.index_stage[row] = KEPT
    _show_passed_earlier(sim, row)
    return True


@kernel
def _show_passed_earlier(sim: Simulation, row: int) -> None:
    """Show the jobs that were passed over at an earlier moment."""
    state = sim.state
    if state.index_moment[row] != state.moment[row]:
        show_hidden(sim, row, 0)
        state.index_moment[row] = state.moment[row]


@kernel
def forget_index(sim: Simulation, row: int) -> None:
    """Give the index up: the queue or its jobs are about to change in a way that it does not follow."""
    sim.state.index_stage[row] = NO_LEAVES


@kernel
def hide_job(sim: Simulation, row: int, job: int) -> None:
    """Let a waiting job not be found by `first_job_to_pass`, until the next moment or `show_hidden`."""
    state = sim.state
    if state.index_best[row, state.index_best.shape[1] // 2 + state.index_leaf[row, job]] < 0:
        return
    _hide_leaf(sim, row, state.index_leaf[row, job])
    if has_turns(sim):
        _hide_leaf(sim, row, state.index_own_leaf[row, job])
    state.index_hidden_job[row, state.index_hidden[row]] = job
    state.index_hidden[row] += 1


@kernel
def _hide_leaf(sim: Simulation, row: int, leaf: int) -> None:
    state = sim.state
    node = state.index_best.shape[1] // 2 + leaf
    state.index_best[row, node], state.index_key[row, node], state.index_run_s[row, node] = -1, math.inf, math.inf
    _update_tree_above(sim, row, leaf)


@kernel
def show_hidden(sim: Simulation, row: int, kept: int) -> None:
    """Let all hidden jobs be found again but the first `kept`."""
    state = sim.state
    for at in range(kept, state.index_hidden[row]):
        _offer_job(sim, row, state.index_hidden_job[row, at])
    state.index_hidden[row] = kept


@kernel
def _show_if_hidden(sim: Simulation, row: int, job: int) -> None:
    """Let a job be found again if it is hidden."""
    state = sim.state
    at, hidden = 0, state.index_hidden[row]
    while at < hidden and state.index_hidden_job[row, at] != job:
        at += 1
    if at < hidden:
        state.index_hidden[row] -= 1
        state.index_hidden_job[row, at] = state.index_hidden_job[row, hidden - 1]
        _offer_job(sim, row, job)


@kernel
def hide_passed_over(sim: Simulation, row: int, job: int) -> None:
    """Hide a waiting job that is passed over, if the index is kept."""
    if sim.state.index_stage[row] == KEPT and index_if_long(sim, row):
        hide_job(sim, row, job)


@kernel
def shortest_job(sim: Simulation, row: int) -> int:
    """Return the waiting job of lowest rank and smallest key, hidden or not, the first in the queue among equals."""
    state = sim.state
    leaf, key = state.index_best[row, 1], state.index_key[row, 1]
    for at in range(state.index_hidden[row]):
        job = state.index_hidden_job[row, at]
        own = _order_key(sim, row, job)
        if _leaf_goes_before(sim, row, own, state.index_leaf[row, job], key, leaf):
            leaf, key = state.index_leaf[row, job], own
    return int(state.index_job[row, leaf])


@kernel
def shortest_of_line(sim: Simulation, row: int, line: int) -> int:
    """Return the waiting job of a line of smallest key, hidden or not, the first in the queue among equals."""
    state = sim.state
    leaf, key = -1, math.inf
    left, right = state.index_line[row, line], state.index_line[row, line + 1]
    left, right = left + state.index_best.shape[1] // 2, right + state.index_best.shape[1] // 2
    while left < right:
        if left & 1:
            if _has_smaller_key(sim, row, state.index_key[row, left], state.index_best[row, left], key, leaf):
                leaf, key = state.index_best[row, left], state.index_key[row, left]
            left += 1
        if right & 1:
            right -= 1
            if _has_smaller_key(sim, row, state.index_key[row, right], state.index_best[row, right], key, leaf):
                leaf, key = state.index_best[row, right], state.index_key[row, right]
        left >>= 1
        right >>= 1
    for at in range(state.index_hidden[row]):
        job = state.index_hidden_job[row, at]
        if line_of(sim, row, job) == line:
            own = _order_key(sim, row, job)
            if _has_smaller_key(sim, row, own, state.index_own_leaf[row, job], key, leaf):
                leaf, key = state.index_own_leaf[row, job], own
    return int(state.index_job[row, leaf])


@kernel
def _may_end_by(sim: Simulation, row: int, run_s: float, until_s: float) -> bool:
    """Return whether a run that starts at once may end by then; an infinite one is that of no job."""
    return run_s < math.inf and sim.state.now_s[row] + run_s <= until_s


@kernel
def _first_leaf_below(sim: Simulation, row: int, top: int, until_s: float, found: int) -> int:
    """Return the leaf offered first of one found so far and those below a node whose runs may end in time."""
    state = sim.state
    leaves = state.index_best.shape[1] // 2
    node = top
    while True:
        best = state.index_best[row, node]
        if _may_end_by(sim, row, state.index_run_s[row, node], until_s) and (
            found < 0
            or _leaf_goes_before(
                sim, row, state.index_key[row, node], best, state.index_key[row, leaves + found], found
            )
        ):
            if not _may_end_by(sim, row, state.index_run_s[row, leaves + best], until_s):
                node *= 2
                continue
            found = best
        while node != top and node & 1:
            node >>= 1
        if node == top:
            return int(found)
        node += 1


@kernel
def _first_leaf_of_class(
    sim: Simulation, row: int, line: int, need_class: int, gpus: int, until_s: float, found: int
) -> int:
    """Return the leaf offered first of one found so far and the jobs of a class that fit and may end in time.

    Of one line, or of all if `line` is -1.
    """
    left, right = (
        leaf_range_of_class(sim, row, need_class, gpus)
        if line < 0
        else leaf_range_of_line(sim, row, line, need_class, gpus)
    )
    while left < right:  # the nodes that hold these leaves and no others
        if left & 1:
            found = _first_leaf_below(sim, row, left, until_s, found)
            left += 1
        if right & 1:
            right -= 1
            found = _first_leaf_below(sim, row, right, until_s, found)
        left >>= 1
        right >>= 1
    return found


@kernel
def first_job_to_pass(sim: Simulation, row: int) -> int:
    """Return the job offered first of those that fit, keep the reservation and are not hidden; -1 if there is none."""
    job = _first_to_pass_of_line(sim, row, -1)
    if job < 0 or not has_turns(sim):
        return job
    line, job = sim.state.first_line[row, PASSING], -1
    while line >= 0 and job < 0:
        job = _first_to_pass_of_line(sim, row, line)
        line = next_line_of(sim, row, PASSING, line)
    return job


@kernel
def _first_to_pass_of_line(sim: Simulation, row: int, line: int) -> int:
    """Do what `first_job_to_pass` does for the jobs of one line, or for all at once if it is -1."""
    state = sim.state
    found = -1
    for need_class in range(sim.cluster.suits.shape[0]):
        usable = usable_for_class(sim, row, need_class)
        harmless = state.extra[row] + sim.scratch.class_beside[row, need_class]
        found = _first_leaf_of_class(sim, row, line, need_class, min(harmless, usable), math.inf, found)
        found = _first_leaf_of_class(sim, row, line, need_class, usable, state.shadow_s[row], found)
    return int(state.index_job[row, found]) if found >= 0 else -1


@kernel
def longest_waiting_job(sim: Simulation, row: int, gpus: int) -> int:
    """Return the job that has waited longest of those that `gpus` GPUs in service could hold, -1 if there is none."""
    state = sim.state
    found = -1
    for need_class in range(sim.cluster.suits.shape[0]):
        most = min(gpus, int(state.class_in_service[row, need_class])) if has_need_classes(sim) else gpus
        left, right = leaf_range_of_class(sim, row, need_class, most)
        while left < right:
            if left & 1:
                found = _oldest_leaf_below(sim, row, left, found)
                left += 1
            if right & 1:
                right -= 1
                found = _oldest_leaf_below(sim, row, right, found)
            left >>= 1
            right >>= 1
    return int(state.index_job[row, found]) if found >= 0 else -1


@kernel
def _oldest_leaf_below(sim: Simulation, row: int, node: int, found: int) -> int:
    """Return the leaf that has waited longest of one found so far and those below a node."""
    oldest, since_s = sim.state.index_oldest, sim.state.index_since_s
    leaf = oldest[row, node]
    found_s = since_s[row, oldest.shape[1] // 2 + found] if found >= 0 else math.inf
    return int(leaf if _has_smaller_key(sim, row, since_s[row, node], leaf, found_s, found) else found)


@kernel
def next_indexed_ageing_s(sim: Simulation, row: int) -> float:
    """Return when a waiting job next reaches the ageing bound, inf for never."""
    state = sim.state
    while state.index_young_count[row] > 0:
        job = state.index_young[row, 0]
        aged_s = state.queued_s[row, job] + sim.rules.ageing_s
        if aged_s > state.now_s[row]:
            return float(aged_s)
        remove(state.queued_s, state.index_young, state.index_young_place, state.index_young_count, row, job)
    return math.inf
