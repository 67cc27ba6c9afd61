"""Which job may start next: the order regimes of docs/simulator.md."""

import math

from .compiled import kernel
from .placing import least_slowdown
from .scenarios import ORDERS
from .state import Simulation

FIFO, EASY, SHORTEST = ORDERS["fifo"], ORDERS["easy"], ORDERS["shortest"]


@kernel
def estimated_work_s(sim: Simulation, row: int, job: int) -> float:
    """Return the estimated work that a job has left; the estimate doubles until it exceeds what is saved."""
    state = sim.state
    while state.guess_s[row, job] <= state.saved_s[row, job]:
        state.guess_s[row, job] *= 2.0
    return state.guess_s[row, job] - state.saved_s[row, job]


@kernel
def expected_run_s(sim: Simulation, row: int, job: int, slowdown: float) -> float:
    """Return how long a waiting job is expected to run if it starts at once."""
    overhead_s = sim.rules.restart_s if sim.state.stops[row, job] > 0 else 0.0
    return overhead_s + estimated_work_s(sim, row, job) * slowdown


@kernel
def expected_end_s(sim: Simulation, row: int, job: int) -> float:
    """Return a running job's expected end; the estimate doubles until that lies in the future."""
    state = sim.state
    end_s = state.now_s[row]
    while end_s <= state.now_s[row]:
        work_s = estimated_work_s(sim, row, job)
        end_s = state.start_s[row, job] + (state.overhead_s[row, job] + work_s * state.slowdown[row, job])
        if end_s <= state.now_s[row]:
            state.guess_s[row, job] *= 2.0
    return end_s


@kernel
def expected_fault_loss_s(sim: Simulation) -> float:
    """Return what policies reckon that a fault costs a job, in seconds.

    One and a half checkpoint intervals (half of one is lost on average, and a whole one is allowed for the way back to
    GPUs) and the restart: 1.75 h in the preset `hetero64`.
    """
    checkpoint_s = sim.rules.checkpoint_s
    return (1.5 * checkpoint_s if checkpoint_s < math.inf else 0.0) + sim.rules.restart_s


@kernel
def sort_expected_ends(sim: Simulation, row: int) -> int:
    """Write the running jobs into `ends_s` and `ends_job` by expected end, then index; return their number."""
    state = sim.state
    ends_s, ends_job = state.ends_s, state.ends_job
    count = state.running[row]
    for i in range(count):
        job = state.run_heap[row, i]
        end_s = expected_end_s(sim, row, job)
        at = i
        # Insertion: the heap is nearly in order, and few jobs run at once.
        while at > 0 and (
            ends_s[row, at - 1] > end_s or (ends_s[row, at - 1] == end_s and ends_job[row, at - 1] > job)
        ):
            ends_s[row, at] = ends_s[row, at - 1]
            ends_job[row, at] = ends_job[row, at - 1]
            at -= 1
        ends_s[row, at] = end_s
        ends_job[row, at] = job
    return count


@kernel
def _reserve(sim: Simulation, row: int, holder: int) -> None:
    """Set the shadow time and the extra GPUs for the job that holds the reservation."""
    state = sim.state
    gpus = sim.scenarios.gpus[state.scenario[row]]
    free = state.usable[row]
    waits = free >= gpus[holder]
    state.shadow_s[row] = math.inf
    state.extra[row] = 0
    count = sort_expected_ends(sim, row)
    i = 0
    while i < count and (waits or free < gpus[holder]):
        waits = False
        end_s = state.ends_s[row, i]
        while i < count and state.ends_s[row, i] == end_s:
            free += gpus[state.ends_job[row, i]]
            i += 1
        if free >= gpus[holder]:
            state.shadow_s[row] = end_s
            state.extra[row] = free - gpus[holder]


@kernel
def keeps_reservation(sim: Simulation, row: int, slowdown: float) -> bool:
    """Say whether the current job, started with this slowdown, delays nobody."""
    state = sim.state
    job = state.current[row]
    if sim.scenarios.gpus[state.scenario[row], job] <= state.extra[row]:
        return True
    return state.now_s[row] + expected_run_s(sim, row, job, slowdown) <= state.shadow_s[row]


@kernel
def _aged_job(sim: Simulation, row: int) -> int:
    """Return the job that has waited longest among those past the ageing bound, -1 if there is none.

    Under `fifo` that is the head or none: the bound must not let anybody overtake it.
    """
    state = sim.state
    best = -1
    job = state.head[row]
    while job >= 0:
        # The sum, not the difference: `next_ageing_s` sets the clock to it, and rounding must not undo that.
        if state.now_s[row] >= state.queued_s[row, job] + sim.rules.ageing_s and (
            best < 0 or state.queued_s[row, job] < state.queued_s[row, best]
        ):
            best = job
        job = state.next_job[row, job] if sim.rules.order != FIFO else -1
    return best


@kernel
def next_ageing_s(sim: Simulation, row: int) -> float:
    """Return when a waiting job next reaches the ageing bound, inf for never; under `fifo`, when the head does."""
    state = sim.state
    least_s = math.inf
    if sim.rules.ageing_s == math.inf:
        return least_s
    job = state.head[row]
    while job >= 0:
        aged_s = state.queued_s[row, job] + sim.rules.ageing_s
        if state.now_s[row] < aged_s < least_s:
            least_s = aged_s
        job = state.next_job[row, job] if sim.rules.order != FIFO else -1
    return least_s


@kernel
def _shortest(sim: Simulation, row: int) -> int:
    """Return the waiting job of shortest estimate, the first in the queue among equals."""
    state = sim.state
    best = state.head[row]
    least_s = estimated_work_s(sim, row, best)
    job = state.next_job[row, best]
    while job >= 0:
        work_s = estimated_work_s(sim, row, job)
        if work_s < least_s:
            best, least_s = job, work_s
        job = state.next_job[row, job]
    return best


@kernel
def _backfill(sim: Simulation, row: int, holder: int) -> int:
    """Return the job that may pass the holder of the reservation, -1 if there is none."""
    state = sim.state
    scenario = state.scenario[row]
    by_estimate = sim.rules.order != EASY
    best, least_s = -1, math.inf
    job = state.head[row]
    while job >= 0:
        gpus = sim.scenarios.gpus[scenario, job]
        if job != holder and gpus <= state.usable[row] and state.passed[row, job] != state.moment[row]:
            work_s = estimated_work_s(sim, row, job)
            run_s = expected_run_s(sim, row, job, least_slowdown(sim, row, job))
            fits = gpus <= state.extra[row] or state.now_s[row] + run_s <= state.shadow_s[row]
            if fits and not by_estimate:
                return job
            if fits and work_s < least_s:
                best, least_s = job, work_s
        job = state.next_job[row, job]
    return best


@kernel
def next_job(sim: Simulation, row: int) -> int:
    """Return the job that is due, -1 if none may start at this moment; sets the reservation that it must keep."""
    state = sim.state
    state.shadow_s[row] = math.inf
    state.extra[row] = 0
    state.aged[row] = 0
    head = state.head[row]
    if head < 0:
        return -1
    gpus = sim.scenarios.gpus[state.scenario[row]]
    if sim.rules.ageing_s < math.inf:
        aged = _aged_job(sim, row)
        if aged >= 0:
            state.aged[row] = 1
            return aged if gpus[aged] <= state.usable[row] else -1
    if sim.rules.order == FIFO:
        return head if gpus[head] <= state.usable[row] and state.waited[row] != state.moment[row] else -1
    holder = _shortest(sim, row) if sim.rules.order == SHORTEST else head
    if gpus[holder] <= state.usable[row] and state.passed[row, holder] != state.moment[row]:
        return holder
    if state.usable[row] == 0:
        return -1
    _reserve(sim, row, holder)
    return _backfill(sim, row, holder)


@kernel
def may_wait(sim: Simulation, row: int) -> bool:
    """Say whether the policy may let the next event pass instead of placing the current job."""
    return sim.rules.waiting and sim.state.running[row] > 0 and sim.state.aged[row] == 0
