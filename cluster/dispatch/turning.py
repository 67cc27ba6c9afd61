"""Turning to another job of the queue than the one that the order regime offers: to which, and when it is allowed."""

from ..kernels.compiled import kernel
from ..state.state import LOOKED_AT, OTHERS, Simulation
from .expected import estimated_work_s
from .order import (
    AT_NO_TIME_S,
    all_may_pass,
    goes_before,
    may_pass,
    may_wait,
    next_job,
    order_key,
    reservation_holder,
    reserve,
)
from .orders.table import is_by_key, passes
from .placing import begin_picks
from .queue_index import first_to_pass, hide, is_indexed, show_hidden
from .turns import PASSING, has_turns, next_line_of


@kernel
def may_turn(sim: Simulation, row: int) -> bool:
    """Say whether the policy may turn to another job than the one that is due: where it may let that one wait.

    While an aged job waits nobody turns to another, whatever is due beside it.
    """
    return bool(passes(sim.rules.order) and may_wait(sim, row) and sim.state.shadow_s[row] != AT_NO_TIME_S)


@kernel
def _other_key(sim: Simulation, row: int, job: int) -> float:
    """Return what the jobs to turn to are chosen by: the key of the regime, or the expected work if it has none."""
    return order_key(sim, row, job) if is_by_key(sim.rules.order) else estimated_work_s(sim, row, job)


@kernel
def _insert_other(sim: Simulation, row: int, job: int, first: int, count: int) -> int:
    """Put a job in its place in `other_job`, behind the first so many of `count`; return how many then stand there."""
    others = sim.scratch.other_job
    key, at = _other_key(sim, row, job), min(count, OTHERS)
    while at > first:
        before = others[row, at - 1]
        if not goes_before(sim, row, job, key, before, _other_key(sim, row, before)):
            break
        if at < OTHERS:
            others[row, at] = before
        at -= 1
    if at < OTHERS:
        others[row, at] = job
    return min(count + 1, OTHERS)


@kernel
def _find_others(sim: Simulation, row: int, holder: int, due: int) -> int:
    """Do what `list_others` does by the index of the queue."""
    state = sim.state
    hidden = state.index_hidden[row]
    hide(sim, row, holder)
    hide(sim, row, due)
    count, by_key = 0, is_by_key(sim.rules.order)
    for _ in range(OTHERS if by_key else LOOKED_AT):
        job = first_to_pass(sim, row)
        if job < 0:
            break
        count = _insert_other(sim, row, job, count if by_key else 0, count)  # by key they come as they are offered
        hide(sim, row, job)
    show_hidden(sim, row, hidden)
    return count


@kernel
def list_others(sim: Simulation, row: int) -> int:
    """Write the jobs that the policy may turn to into `other_job`; return their number, OTHERS at most.

    Where the regime has no key they are the shortest of the first LOOKED_AT that would be offered if each before were
    passed over. The state then holds the reservation that they must keep, and no longer that of the job that is due.
    """
    state = sim.state
    holder, due = reservation_holder(sim, row), state.current[row]
    reserve(sim, row, holder)
    if all_may_pass(sim, row) and is_indexed(sim, row):
        return _find_others(sim, row, holder, due)
    if has_turns(sim):
        return _list_in_turns(sim, row, holder, due)
    by_key = is_by_key(sim.rules.order)
    count, seen = 0, 0
    job, left = state.head[row], sim.rules.backfill_depth
    while job >= 0 and left > 0 and (by_key or seen < LOOKED_AT):
        left -= job != holder
        if job not in (holder, due) and may_pass(sim, row, job):
            count = _insert_other(sim, row, job, 0, count)
            seen += 1
        job = state.next_job[row, job]
    return count


@kernel
def _list_in_turns(sim: Simulation, row: int, holder: int, due: int) -> int:
    """Do what `list_others` does where users take turns, without an index: line by line."""
    state, by_key = sim.state, is_by_key(sim.rules.order)
    count, seen = 0, 0
    line = state.first_line[row, PASSING]
    while line >= 0 and (count < OTHERS if by_key else seen < LOOKED_AT):
        first = count if by_key else 0
        job, left = state.line_head[row, line], sim.rules.backfill_depth
        while job >= 0 and left > 0 and (by_key or seen < LOOKED_AT):
            left -= job != holder
            if job not in (holder, due) and may_pass(sim, row, job):
                count = _insert_other(sim, row, job, first, count)
                seen += 1
            job = state.next_in_line[row, job]
        line = next_line_of(sim, row, PASSING, line)
    return count


@kernel
def turn_to(sim: Simulation, row: int, job: int) -> bool:
    """Make another job of the queue the one that is due, or the first again; False if the regime forbids it.

    Nothing may be picked yet. The job must keep the reservation as if all jobs before it had been passed over, but they
    were not: they are offered again at the same moment once it has started.
    """
    if job != next_job(sim, row):
        if not may_turn(sim, row):
            return False
        holder = reservation_holder(sim, row)
        reserve(sim, row, holder)
        if job == holder or not may_pass(sim, row, job):
            next_job(sim, row)
            return False
        sim.state.leads[row] = 0
    begin_picks(sim, row, job)
    return True
