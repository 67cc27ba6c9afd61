"""What is expected of jobs by their estimates: their run times and ends (docs/simulator.md, Estimates)."""

import math

from ..kernels.compiled import kernel
from ..state.holding import unsaved_work_before_switch_s
from ..state.state import Simulation

FEW = 128  # running jobs, up to which sorting by insertion is faster than by a heap


@kernel
def whole_work_s(sim: Simulation, row: int, job: int) -> float:
    """Return the estimated work of a whole job: its estimate, doubled until it exceeds what is saved."""
    work_s: float = sim.state.guess_s[row, job]
    while work_s <= sim.state.saved_s[row, job]:
        work_s *= 2.0
    return work_s


@kernel
def estimated_work_s(sim: Simulation, row: int, job: int) -> float:
    """Return the estimated work that a job has left."""
    return whole_work_s(sim, row, job) - float(sim.state.saved_s[row, job])


@kernel
def start_overhead_s(sim: Simulation, row: int, job: int) -> float:
    """Return how long a job that starts holds its GPUs before it makes progress: the check, and a restart if it is one.

    Source: SPEC R11, C10.
    """
    restart_s = sim.rules.restart_s if sim.state.stops[row, job] > 0 else 0.0
    return sim.rules.preflight_s + restart_s


@kernel
def expected_run_s(sim: Simulation, row: int, job: int, slowdown: float) -> float:
    """Return how long a waiting job is expected to run if it starts at once."""
    return start_overhead_s(sim, row, job) + estimated_work_s(sim, row, job) * slowdown


@kernel
def _end_by_estimate_s(sim: Simulation, row: int, job: int) -> float:
    """Return when a running job ends by its estimate, which may lie in the past."""
    state = sim.state
    work_s = estimated_work_s(sim, row, job) - unsaved_work_before_switch_s(sim, row, job)
    end_s: float = state.start_s[row, job] + (state.overhead_s[row, job] + work_s * state.slowdown[row, job])
    return end_s


@kernel
def revise_end_s(sim: Simulation, row: int, job: int) -> float:
    """Double a running job's estimate until its expected end lies in the future; return that end."""
    state = sim.state
    end_s: float = state.now_s[row]
    while end_s <= state.now_s[row]:
        end_s = _end_by_estimate_s(sim, row, job)
        if end_s <= state.now_s[row]:
            state.guess_s[row, job] *= 2.0
    return end_s


@kernel
def expected_fault_loss_s(sim: Simulation) -> float:
    """Return what a fault costs a job by the policies' estimate, in seconds.

    One and a half checkpoint intervals (half of one is lost on average, and a whole one is allowed for the way back to
    GPUs) and the restart: 1.75 h in the preset `hetero64`.
    """
    checkpoint_s = sim.rules.checkpoint_s
    return (1.5 * checkpoint_s if checkpoint_s < math.inf else 0.0) + sim.rules.restart_s


@kernel
def _ends_before(sim: Simulation, row: int, a: int, b: int) -> bool:
    """Compare two places of `ends_s` and `ends_job`: by end, then by job."""
    ends_s, ends_job = sim.state.ends_s, sim.state.ends_job
    if ends_s[row, a] != ends_s[row, b]:
        return bool(ends_s[row, a] < ends_s[row, b])
    return bool(ends_job[row, a] < ends_job[row, b])


@kernel
def _swap_ends(sim: Simulation, row: int, a: int, b: int) -> None:
    ends_s, ends_job = sim.state.ends_s, sim.state.ends_job
    end_s, job = ends_s[row, a], ends_job[row, a]
    ends_s[row, a], ends_job[row, a] = ends_s[row, b], ends_job[row, b]
    ends_s[row, b], ends_job[row, b] = end_s, job


@kernel
def _sink_end(sim: Simulation, row: int, at: int, size: int) -> None:
    """Move the end at a place of a heap, whose latest stands first, down to where it belongs."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _ends_before(sim, row, child, child + 1):
            child += 1
        if not _ends_before(sim, row, at, child):
            break
        _swap_ends(sim, row, at, child)
        at = child


@kernel
def _sort_all_ends(sim: Simulation, row: int, count: int) -> None:
    """Write all running jobs into `ends_s` and `ends_job`, and sort them."""
    state = sim.state
    for i in range(count):
        job = state.run_heap[row, i]
        state.ends_s[row, i] = revise_end_s(sim, row, job)
        state.ends_job[row, i] = job
    if count <= FEW:
        for i in range(1, count):
            at = i
            # They come from a heap and so are nearly in order.
            while at > 0 and _ends_before(sim, row, at, at - 1):
                _swap_ends(sim, row, at, at - 1)
                at -= 1
        return
    for at in range(count // 2 - 1, -1, -1):
        _sink_end(sim, row, at, count)
    for last in range(count - 1, 0, -1):
        _swap_ends(sim, row, 0, last)
        _sink_end(sim, row, 0, last)


@kernel
def sort_expected_ends(sim: Simulation, row: int) -> int:
    """Let `ends_s` and `ends_job` hold the running jobs by expected end, then index; return their number.

    From the first time on they are kept in that order while jobs start and leave, so that only estimates that were
    outlived since the last time are revised.
    """
    state = sim.state
    count = int(state.running[row])
    if state.ends_kept[row] == 0:
        _sort_all_ends(sim, row, count)
        state.ends_kept[row] = 1
        return count
    while count > 0 and state.ends_s[row, 0] <= state.now_s[row]:
        job = state.ends_job[row, 0]
        end_s = revise_end_s(sim, row, job)
        at = 0
        while at + 1 < count and (
            state.ends_s[row, at + 1] < end_s
            or (state.ends_s[row, at + 1] == end_s and state.ends_job[row, at + 1] < job)
        ):
            state.ends_s[row, at], state.ends_job[row, at] = state.ends_s[row, at + 1], state.ends_job[row, at + 1]
            at += 1
        state.ends_s[row, at], state.ends_job[row, at] = end_s, job
    return count


@kernel
def note_run_start(sim: Simulation, row: int, job: int) -> None:
    """Keep the order of expected ends, and drop the reservation known, when a job has come to those that run."""
    state = sim.state
    state.reserved_for[row] = 0
    if state.ends_kept[row] == 0:
        return
    end_s = _end_by_estimate_s(sim, row, job)
    at = state.running[row] - 1
    while at > 0 and (
        state.ends_s[row, at - 1] > end_s or (state.ends_s[row, at - 1] == end_s and state.ends_job[row, at - 1] > job)
    ):
        state.ends_s[row, at], state.ends_job[row, at] = state.ends_s[row, at - 1], state.ends_job[row, at - 1]
        at -= 1
    state.ends_s[row, at], state.ends_job[row, at] = end_s, job


@kernel
def note_run_end(sim: Simulation, row: int, job: int) -> None:
    """Keep the order of expected ends, and drop the reservation known, when a job has left those that run."""
    state = sim.state
    state.reserved_for[row] = 0
    if state.ends_kept[row] == 0:
        return
    at, count = 0, state.running[row]
    while state.ends_job[row, at] != job:
        at += 1
    for place in range(at, count):
        state.ends_s[row, place] = state.ends_s[row, place + 1]
        state.ends_job[row, place] = state.ends_job[row, place + 1]
