"""What a move leads to: the next jobs of the queue imagined in order after it, without faults or arrivals.

Each job starts as soon as enough GPUs are free, on the quick set (node_sets.py), never before the one ahead of it.
"""

import math

from .compiled import kernel
from .node_sets import imagine_end, imagine_now, quick_set
from .order import estimated_work_s
from .state import AHEAD, Simulation

PATIENCE = 0.4


@kernel
def _imagine_start(sim: Simulation, row: int, place: int, job: int, start_s: float, run_s: float, size: int) -> None:
    """Let a job take what it needs of the first `size` nodes of `best_set`, as number `place` of those imagined."""
    state = sim.state
    first = place * state.free.shape[1]
    need = sim.scenarios.gpus[state.scenario[row], job]
    for i in range(size):
        node = state.best_set[row, i]
        gives = min(need, state.trial_free[row, node])
        need -= gives
        state.trial_free[row, node] -= gives
        state.ahead_node[row, first + i] = node
        state.ahead_gives[row, first + i] = gives
    state.ahead_job[row, place] = job
    state.ahead_start_s[row, place] = start_s
    state.ahead_end_s[row, place] = start_s + run_s
    state.ahead_size[row, place] = size


@kernel
def _release(sim: Simulation, row: int, places: int, at: int, count: int, usable: int) -> tuple[float, int, int]:
    """Free the GPUs of whatever ends next; return that time (inf for never), the next running job and usable GPUs."""
    state = sim.state
    nodes = state.free.shape[1]
    gpus = sim.scenarios.gpus[state.scenario[row]]
    time_s = state.ends_s[row, at] if at < count else math.inf
    for place in range(places):
        if state.ahead_size[row, place] > 0:
            time_s = min(time_s, state.ahead_end_s[row, place])
    if time_s == math.inf:
        return time_s, at, usable
    for place in range(places):
        if state.ahead_size[row, place] > 0 and state.ahead_end_s[row, place] <= time_s:
            for i in range(place * nodes, place * nodes + state.ahead_size[row, place]):
                state.trial_free[row, state.ahead_node[row, i]] += state.ahead_gives[row, i]
            usable += gpus[state.ahead_job[row, place]]
            state.ahead_size[row, place] = 0
    if at < count and state.ends_s[row, at] <= time_s:
        before = at
        at = imagine_end(sim, row, at, count)
        for i in range(before, at):
            usable += gpus[state.ends_job[row, i]]
    return time_s, at, usable


@kernel
def imagine_move(sim: Simulation, row: int, move: int) -> tuple[float, int, int]:
    """Imagine a move of the list; `trial_free` then holds what is usable when it has started.

    Returns its start, the next running job to end, and how many GPUs are usable. `ends_s` and `ends_job` must hold the
    running jobs.
    """
    state = sim.state
    count, nodes = state.running[row], state.free.shape[1]
    imagine_now(sim, row)
    usable, at = state.usable[row], 0
    job, delay_s = state.move_job[row, move], state.move_delay_s[row, move]
    start_s = state.now_s[row] + delay_s
    while delay_s > 0.0 and at < count and state.ends_s[row, at] <= start_s:
        _, at, usable = _release(sim, row, 0, at, count, usable)
    size = state.move_size[row, move]
    for i in range(size):
        state.best_set[row, i] = state.move_node[row, move * nodes + i]
    _imagine_start(sim, row, 0, job, start_s, state.move_s[row, move], size)
    return start_s, at, usable - sim.scenarios.gpus[state.scenario[row], job]


@kernel
def _wait_for_better(
    sim: Simulation, row: int, places: int, job: int, time_s: float, at: int, usable: int
) -> tuple[float, int, int]:
    """Let time pass to the end that `patient` would wait for; return the time, the next end and the usable GPUs."""
    if not sim.rules.waiting:
        return time_s, at, usable
    state = sim.state
    nodes = state.free.shape[1]
    scenario = state.scenario[row]
    now_s, before_at, before_usable = time_s, at, usable
    run_s = quick_set(sim, row, job)[0]
    least_s = estimated_work_s(sim, row, job) / sim.traits.max_speed[scenario]
    best_s, most_s = time_s, 0.0
    for node in range(nodes):
        state.kept_free[row, node] = state.trial_free[row, node]
    for place in range(places):
        state.kept_size[row, place] = state.ahead_size[row, place]
    tries = 0
    while tries < 4:
        time_s, at, usable = _release(sim, row, places, at, state.running[row], usable)
        if time_s == math.inf or PATIENCE * (run_s - least_s) - (time_s - now_s) <= most_s:
            break
        gain_s = PATIENCE * (run_s - quick_set(sim, row, job)[0]) - (time_s - now_s)
        if gain_s > most_s:
            best_s, most_s = time_s, gain_s
        tries += 1
    for node in range(nodes):
        state.trial_free[row, node] = state.kept_free[row, node]
    for place in range(places):
        state.ahead_size[row, place] = state.kept_size[row, place]
    time_s, at, usable = now_s, before_at, before_usable
    while time_s < best_s:
        time_s, at, usable = _release(sim, row, places, at, state.running[row], usable)
    return time_s, at, usable


@kernel
def imagine_queue(sim: Simulation, row: int, time_s: float, at: int, usable: int) -> int:
    """Imagine the next jobs after a move, whose `imagine_move` gave the arguments; return how many jobs have a place.

    The move's own is the first of them. `ahead_start_s` and `ahead_end_s` hold them in order; a job that can never
    start has inf in both, and none comes after it.
    """
    state = sim.state
    gpus = sim.scenarios.gpus[state.scenario[row]]
    job, places = state.head[row], 1
    while places < AHEAD and job >= 0:
        if job == state.ahead_job[row, 0]:
            job = state.next_job[row, job]
            continue
        while usable < gpus[job] and time_s < math.inf:
            time_s, at, usable = _release(sim, row, places, at, state.running[row], usable)
        if time_s == math.inf:
            state.ahead_start_s[row, places] = math.inf
            state.ahead_end_s[row, places] = math.inf
            return places + 1
        time_s, at, usable = _wait_for_better(sim, row, places, job, time_s, at, usable)
        run_s, _, size = quick_set(sim, row, job)
        _imagine_start(sim, row, places, job, time_s, run_s, size)
        usable -= gpus[job]
        places += 1
        job = state.next_job[row, job]
    return places
