"""Which job may start next (docs/simulator.md, Order regimes), and turning to another job.

`choose_due_job` is the algorithm. A job that leads and does not fit holds a reservation: a shadow time, at which enough
GPUs are expected to be free, and the number of GPUs that are left over then. Jobs pass it that end by the shadow time
or take no more than those; on which nodes they may do so is in keeping.py.
"""

import math

from ..kernels.compiled import kernel
from ..model.problem import lets_jobs_pass, orders_by_work, shortest_job_leads
from ..placing import least_slowdown, make_job_due
from ..state.holding import in_service_for_job, need_class_of, usable_for_class, usable_for_job, usable_on_node
from ..state.state import (
    MAX_OTHERS,
    MAX_SCANNED,
    Ints,
    Simulation,
    has_need_classes,
    has_turns,
    may_hold_other_gpus,
    may_keep_gpus_after_fault,
)
from .expected import estimated_work_s, expected_run_s, sort_expected_ends
from .index import (
    first_job_to_pass,
    hide_job,
    index_if_long,
    longest_waiting_job,
    next_indexed_ageing_s,
    shortest_job,
    shortest_of_line,
    show_hidden,
)
from .turns import LEADING, PASSING, next_line_of

AT_NO_TIME_S = -1.0  # the shadow time while an aged job waits: no job ends by then


@kernel
def choose_due_job(sim: Simulation, row: int) -> int:
    """Return the job that is due, -1 if none may start at this moment; sets the reservation that it must keep.

    1. A job that has reached the ageing bound goes first. While it does not fit, only jobs start that take no GPU that
       suits it (`_job_beside_aged`).
    2. Else the job that leads by the order regime (`reservation_holder`).
    3. While that one does not fit or waits, under `fifo` none; else a job that keeps its reservation
       (`set_reservation`, `_job_to_backfill`).
    """
    state = sim.state
    state.shadow_s[row] = math.inf
    state.extra[row] = 0
    state.reserved_class[row] = 0
    state.aged[row], state.leads[row] = 0, 1
    if state.head[row] < 0:
        return -1
    if sim.rules.ageing_s < math.inf:
        aged = _longest_aged_job(sim, row)
        if aged >= 0 and state.passed[row, aged] != state.moment[row]:  # one that no free GPUs suit holds no other up
            state.aged[row] = 1
            return aged if _fits(sim, row, aged) else _job_beside_aged(sim, row, aged)
    if state.rested[row] == state.moment[row]:
        return -1
    holder = reservation_holder(sim, row)
    if not lets_jobs_pass(sim.rules.order):
        return holder if _fits(sim, row, holder) and state.waited[row] != state.moment[row] else -1
    if _fits(sim, row, holder) and state.passed[row, holder] != state.moment[row]:
        return holder
    if usable_for_class(sim, row, 0) == 0:
        return -1
    set_reservation(sim, row, holder)
    state.leads[row] = 0
    return _job_to_backfill(sim, row, holder)


@kernel
def job_goes_before(sim: Simulation, row: int, job: int, key: float, other: int, other_key: float) -> bool:
    """Return whether a job goes before another: by rank, and within one by the regime's key."""
    rank = sim.scenarios.rank[sim.state.scenario[row]]
    return bool(rank[job] < rank[other] or (rank[job] == rank[other] and key < other_key))


@kernel
def _fits(sim: Simulation, row: int, job: int) -> bool:
    return bool(sim.scenarios.gpus[sim.state.scenario[row], job] <= usable_for_job(sim, row, job))


@kernel
def _gpus_suiting_holder(sim: Simulation, row: int, job: int, holder: int) -> int:
    """Return how many of a running job's GPUs suit another job, which may start on them.

    It may hold fewer or more than it asks for: on a real cluster, rings shrink and have backups by no rule of ours.
    """
    gives, suits = 0, sim.cluster.suits[need_class_of(sim, row, holder)]
    gpu = sim.state.first_gpu[row, job]
    while gpu >= 0:
        if not may_keep_gpus_after_fault(sim) or sim.state.spare[row, gpu] == 0:
            gives += suits[sim.cluster.gpu_node[gpu]]
        gpu = sim.state.gpu_next[row, gpu]
    return gives


@kernel
def _compute_reservation(sim: Simulation, row: int, holder: int) -> None:
    """Set the shadow time and the extra GPUs for the job that holds the reservation."""
    state = sim.state
    gpus = sim.scenarios.gpus[state.scenario[row]]
    free = usable_for_job(sim, row, holder)
    waits, several = free >= gpus[holder], has_need_classes(sim) or may_hold_other_gpus(sim, row)
    state.shadow_s[row] = math.inf
    state.extra[row] = 0
    count = sort_expected_ends(sim, row)
    i = 0
    while i < count and (waits or free < gpus[holder]):
        waits = False
        end_s = state.ends_s[row, i]
        while i < count and state.ends_s[row, i] == end_s:
            job = state.ends_job[row, i]
            free += _gpus_suiting_holder(sim, row, job, holder) if several else gpus[job]
            i += 1
        if free >= gpus[holder]:
            state.shadow_s[row] = end_s
            state.extra[row] = free - gpus[holder]


@kernel
def set_reservation(sim: Simulation, row: int, holder: int) -> None:
    """Set the shadow time and the extra GPUs, as they stand in the state if nothing has changed since they were found.

    After a placement that was refused, for instance.
    """
    state = sim.state
    usable = usable_for_job(sim, row, holder)
    if has_need_classes(sim):
        _note_reserved_class(sim, row, holder)
    if (
        state.reserved_for[row] == holder + 1
        and state.reserved_moment[row] == state.moment[row]
        and state.reserved_usable[row] == usable
    ):
        state.shadow_s[row] = state.reserved_shadow_s[row]
        state.extra[row] = state.reserved_extra[row]
        return
    _compute_reservation(sim, row, holder)
    state.reserved_for[row] = holder + 1
    state.reserved_moment[row] = state.moment[row]
    state.reserved_usable[row] = usable
    state.reserved_shadow_s[row] = state.shadow_s[row]
    state.reserved_extra[row] = state.extra[row]


@kernel
def _note_reserved_class(sim: Simulation, row: int, holder: int) -> None:
    """Note whose GPUs are reserved, and how many usable ones jobs of each class find elsewhere."""
    need_class = need_class_of(sim, row, holder)
    sim.state.reserved_class[row] = need_class
    suits, beside = sim.cluster.suits, sim.scratch.class_beside
    for own in range(suits.shape[0]):
        beside[row, own] = 0
        for node in range(suits.shape[1]):
            if suits[own, node] > suits[need_class, node]:
                beside[row, own] += usable_on_node(sim, row, node)


@kernel
def _least_reserved_gpus(sim: Simulation, row: int, job: int) -> int:
    """Return the fewest GPUs of use to the holder of the reservation that a job can take."""
    gpus = int(sim.scenarios.gpus[sim.state.scenario[row], job])
    if not has_need_classes(sim):
        return gpus
    return max(0, gpus - int(sim.scratch.class_beside[row, need_class_of(sim, row, job)]))


@kernel
def _picked_reserved_gpus(sim: Simulation, row: int) -> int:
    """Return how many GPUs of use to the holder of the reservation are picked for the current job, which has all."""
    held, suits = 0, sim.cluster.suits[sim.state.reserved_class[row]]
    for node in range(suits.size):
        held += sim.state.taken[row, node] * suits[node]
    return held


@kernel
def ends_in_time(sim: Simulation, row: int, run_s: float) -> bool:
    """Return whether a job that is expected to run so long ends by the shadow time if it starts at once."""
    return bool(sim.state.now_s[row] + run_s <= sim.state.shadow_s[row])


@kernel
def delays_no_job(sim: Simulation, row: int, job: int, run_s: float, reserved_gpus: int) -> bool:
    """Return whether a job that is expected to run for `run_s` keeps the reservation if it starts at once.

    It takes `reserved_gpus` GPUs that suit the holder of the reservation too.
    """
    return bool(reserved_gpus <= sim.state.extra[row] or ends_in_time(sim, row, run_s))


@kernel
def keeps_reservation(sim: Simulation, row: int, slowdown: float) -> bool:
    """Return whether the current job, started on its picks with this slowdown, delays no other job."""
    job = sim.state.current[row]
    held = (
        _picked_reserved_gpus(sim, row) if has_need_classes(sim) else sim.scenarios.gpus[sim.state.scenario[row], job]
    )
    return delays_no_job(sim, row, job, expected_run_s(sim, row, job, slowdown), held)


@kernel
def _has_aged(sim: Simulation, row: int, job: int) -> bool:
    """Return whether a waiting job is past the ageing bound, and as many GPUs as it asks for are in service for it."""
    state = sim.state
    # The sum, not the difference: `next_ageing_s` sets the clock to it, and rounding must not undo that.
    return bool(
        state.now_s[row] >= state.queued_s[row, job] + sim.rules.ageing_s
        and sim.scenarios.gpus[state.scenario[row], job] <= in_service_for_job(sim, row, job)
    )


@kernel
def _longest_aged_job(sim: Simulation, row: int) -> int:
    """Return the job that has waited longest among those past the ageing bound, -1 if there is none.

    Under `fifo` that is the job that leads or none: the bound must let no job overtake it. A job that asks for more
    GPUs than are in service for it is not among them: until a repair, nothing that is kept for it would help it.
    """
    state = sim.state
    if lets_jobs_pass(sim.rules.order) and index_if_long(sim, row):
        longest = longest_waiting_job(sim, row, sim.cluster.gpu_node.size - state.down[row])
        return longest if longest >= 0 and _has_aged(sim, row, longest) else -1
    best = -1
    job = state.head[row] if lets_jobs_pass(sim.rules.order) else reservation_holder(sim, row)
    while job >= 0:
        if (best < 0 or state.queued_s[row, job] < state.queued_s[row, best]) and _has_aged(sim, row, job):
            best = job
        job = state.next_job[row, job] if lets_jobs_pass(sim.rules.order) else -1
    return best


@kernel
def next_ageing_s(sim: Simulation, row: int) -> float:
    """Return when a waiting job next reaches the ageing bound, inf for never; under `fifo`, the job that leads."""
    state = sim.state
    least_s = math.inf
    if sim.rules.ageing_s == math.inf:
        return least_s
    if lets_jobs_pass(sim.rules.order) and index_if_long(sim, row):
        return next_indexed_ageing_s(sim, row)
    job = state.head[row] if lets_jobs_pass(sim.rules.order) or state.head[row] < 0 else reservation_holder(sim, row)
    while job >= 0:
        aged_s = state.queued_s[row, job] + sim.rules.ageing_s
        if state.now_s[row] < aged_s < least_s:
            least_s = aged_s
        job = state.next_job[row, job] if lets_jobs_pass(sim.rules.order) else -1
    return least_s


@kernel
def _shortest_job(sim: Simulation, row: int) -> int:
    """Return the waiting job of lowest rank and smallest key, the first in the queue among equals."""
    if index_if_long(sim, row):
        return shortest_job(sim, row)
    return _shortest_from(sim, row, sim.state.head[row], sim.state.next_job)


@kernel
def _shortest_of_line(sim: Simulation, row: int, line: int) -> int:
    """Return the waiting job of a line of smallest key, the first among equals."""
    if index_if_long(sim, row):
        return shortest_of_line(sim, row, line)
    return _shortest_from(sim, row, sim.state.line_head[row, line], sim.state.next_in_line)


@kernel
def _shortest_from(sim: Simulation, row: int, best: int, following: Ints) -> int:
    """Return the job of lowest rank and smallest key of a job and those that follow it."""
    least, job = estimated_work_s(sim, row, best), following[row, best]
    while job >= 0:
        key = estimated_work_s(sim, row, job)
        if job_goes_before(sim, row, job, key, best, least):
            best, least = job, key
        job = following[row, job]
    return best


@kernel
def reservation_holder(sim: Simulation, row: int) -> int:
    """Return the job of the queue that leads, and holds the reservation; the queue is not empty."""
    state, head = sim.state, sim.state.head[row]
    if not has_turns(sim):
        return _shortest_job(sim, row) if shortest_job_leads(sim.rules.order) else head
    if shortest_job_leads(sim.rules.order):
        return _shortest_of_line(sim, row, state.first_line[row, LEADING])
    return head if state.came_back[row, head] == 1 else state.line_head[row, state.first_line[row, LEADING]]


@kernel
def may_pass(sim: Simulation, row: int, job: int) -> bool:
    """Return whether a job behind the holder of the reservation may start if its placement is the fastest possible."""
    state = sim.state
    if not _fits(sim, row, job) or state.passed[row, job] == state.moment[row]:
        return False
    run_s = expected_run_s(sim, row, job, least_slowdown(sim, row, job))
    return delays_no_job(sim, row, job, run_s, _least_reserved_gpus(sim, row, job))


@kernel
def all_may_pass(sim: Simulation, row: int) -> bool:
    """Return whether every job behind the holder of the reservation may pass it."""
    return bool(sim.rules.backfill_depth >= sim.state.queued[row] - 1)


@kernel
def _job_to_backfill(sim: Simulation, row: int, holder: int) -> int:
    """Return the job that may pass the holder of the reservation, which may not start; -1 if there is none."""
    state = sim.state
    if all_may_pass(sim, row) and index_if_long(sim, row):
        return first_job_to_pass(sim, row)
    if not has_turns(sim):
        return _job_to_backfill_from(sim, row, holder, state.head[row], state.next_job)
    line, found = state.first_line[row, PASSING], -1
    while line >= 0 and found < 0:
        found = _job_to_backfill_from(sim, row, holder, state.line_head[row, line], state.next_in_line)
        line = next_line_of(sim, row, PASSING, line)
    return found


@kernel
def _job_to_backfill_from(sim: Simulation, row: int, holder: int, job: int, following: Ints) -> int:
    """Return the job that may pass the holder of the reservation, of a job and those that follow it; -1 for none."""
    by_key, left = orders_by_work(sim.rules.order), sim.rules.backfill_depth
    best, least = -1, math.inf
    while job >= 0 and left > 0:
        if job != holder:
            left -= 1
            if may_pass(sim, row, job):
                if not by_key:
                    return job
                key = estimated_work_s(sim, row, job)
                if best < 0 or job_goes_before(sim, row, job, key, best, least):
                    best, least = job, key
        job = following[row, job]
    return best


@kernel
def _job_beside_aged(sim: Simulation, row: int, aged: int) -> int:
    """Return the job that may start while an aged one waits: it takes no GPU that suits that one; -1 for none."""
    state = sim.state
    if not has_need_classes(sim) or not lets_jobs_pass(sim.rules.order) or state.rested[row] == state.moment[row]:
        return -1
    _note_reserved_class(sim, row, aged)
    state.shadow_s[row] = AT_NO_TIME_S
    job = _job_to_backfill(sim, row, aged)
    state.leads[row] = 0
    state.aged[row] = 1 if job >= 0 and _has_aged(sim, row, job) else 0
    return job


@kernel
def may_wait(sim: Simulation, row: int) -> bool:
    """Return whether the policy may let the next event pass instead of placing the current job."""
    return sim.rules.waiting and sim.state.running[row] > 0 and sim.state.aged[row] == 0


@kernel
def may_turn_to_other(sim: Simulation, row: int) -> bool:
    """Return whether the policy may turn to another job than the one that is due: where it may let that one wait.

    While an aged job waits the policy may turn to no other, whatever is due beside it.
    """
    return bool(lets_jobs_pass(sim.rules.order) and may_wait(sim, row) and sim.state.shadow_s[row] != AT_NO_TIME_S)


@kernel
def _insert_other(sim: Simulation, row: int, job: int, first: int, count: int) -> int:
    """Put a job in its place in `other_job`, behind `first` of the `count` there; return their new number."""
    others = sim.scratch.other_job
    key, at = estimated_work_s(sim, row, job), min(count, MAX_OTHERS)
    while at > first:
        before = others[row, at - 1]
        if not job_goes_before(sim, row, job, key, before, estimated_work_s(sim, row, before)):
            break
        if at < MAX_OTHERS:
            others[row, at] = before
        at -= 1
    if at < MAX_OTHERS:
        others[row, at] = job
    return min(count + 1, MAX_OTHERS)


@kernel
def _list_others_by_index(sim: Simulation, row: int, holder: int, due: int) -> int:
    """Do what `list_other_jobs` does by the index of the queue."""
    state = sim.state
    hidden = state.index_hidden[row]
    hide_job(sim, row, holder)
    hide_job(sim, row, due)
    count, by_key = 0, orders_by_work(sim.rules.order)
    for _ in range(MAX_OTHERS if by_key else MAX_SCANNED):
        job = first_job_to_pass(sim, row)
        if job < 0:
            break
        count = _insert_other(sim, row, job, count if by_key else 0, count)  # by key they come as they are offered
        hide_job(sim, row, job)
    show_hidden(sim, row, hidden)
    return count


@kernel
def list_other_jobs(sim: Simulation, row: int) -> int:
    """Write the jobs that the policy may turn to into `other_job`; return their number, MAX_OTHERS at most.

    Where the regime has no key they are the shortest of the first MAX_SCANNED that would be offered if each before were
    passed over. The state then holds the reservation that they must keep, and no longer that of the job that is due.
    """
    state = sim.state
    holder, due = reservation_holder(sim, row), state.current[row]
    set_reservation(sim, row, holder)
    if all_may_pass(sim, row) and index_if_long(sim, row):
        return _list_others_by_index(sim, row, holder, due)
    if not has_turns(sim):
        return _list_others_from(sim, row, holder, due, state.head[row], state.next_job, 0, 0, 0)[0]
    by_key, count, seen = orders_by_work(sim.rules.order), 0, 0
    line = state.first_line[row, PASSING]
    while line >= 0 and (count < MAX_OTHERS if by_key else seen < MAX_SCANNED):
        first, job = count if by_key else 0, state.line_head[row, line]
        count, seen = _list_others_from(sim, row, holder, due, job, state.next_in_line, first, count, seen)
        line = next_line_of(sim, row, PASSING, line)
    return count


@kernel
def _list_others_from(
    sim: Simulation, row: int, holder: int, due: int, job: int, following: Ints, first: int, count: int, seen: int
) -> tuple[int, int]:
    """List a job and those that follow it as `list_other_jobs` does, behind the `first` of the `count` listed so far.

    Return how many are listed then, and how many were found in all.
    """
    by_key, left = orders_by_work(sim.rules.order), sim.rules.backfill_depth
    while job >= 0 and left > 0 and (by_key or seen < MAX_SCANNED):
        left -= job != holder
        if job not in (holder, due) and may_pass(sim, row, job):
            count = _insert_other(sim, row, job, first, count)
            seen += 1
        job = following[row, job]
    return count, seen


@kernel
def turn_to(sim: Simulation, row: int, job: int) -> bool:
    """Make another job of the queue the one that is due, or the first again; False if the regime forbids it.

    Nothing may be picked yet. The job must keep the reservation as if all jobs before it had been passed over, but they
    were not: they are offered again at the same moment once it has started.
    """
    if job != choose_due_job(sim, row):
        if not may_turn_to_other(sim, row):
            return False
        holder = reservation_holder(sim, row)
        set_reservation(sim, row, holder)
        if job == holder or not may_pass(sim, row, job):
            choose_due_job(sim, row)
            return False
        sim.state.leads[row] = 0
    make_job_due(sim, row, job)
    return True
