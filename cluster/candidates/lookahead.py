"""What a candidate leads to: the next jobs of the queue imagined in order after it, without faults or arrivals.

Each job starts as soon as enough GPUs are free, on the quick set (node_sets.py), never before the one ahead of it.
Where policies may wait, it also waits for better GPUs, as `patient` does, but looks at few ends.
"""

import math
from typing import NamedTuple

from ..dispatch.turns import has_turns, line_up
from ..kernels.compiled import kernel
from ..state.holding import held_gpus
from ..state.state import AHEAD, Simulation
from ..state.usable import class_of, has_classes
from .free_nodes import imagine_now, set_free
from .node_sets import PATIENCE, TIE, holding_level, imagine_end, imagine_gpus, least_run_s, quick_set

LOOKS = 4  # later ends that an imagined job looks at


class Moment(NamedTuple):
    """A moment that is imagined; `trial_free` holds the GPUs that are usable then."""

    time_s: float
    at: int  # running jobs that have ended; `ends_s` goes on there
    ended: int  # jobs ahead that have ended; `ahead_order` goes on there
    usable: int  # GPUs, by whomever; `_usable_then` says how many of them by a job


@kernel
def _usable_then(sim: Simulation, row: int, job: int, moment: Moment) -> int:
    """Return the usable GPUs of the nodes that suit a job at the moment that `trial_free` is of."""
    if not has_classes(sim):
        return moment.usable
    usable, kind = 0, class_of(sim, row, job)
    for node in range(sim.cluster.speed.size):
        usable += sim.scratch.trial_free[row, node] * sim.cluster.suits[kind, node]
    return usable


@kernel
def _imagine_start(sim: Simulation, row: int, place: int, job: int, start_s: float, run_s: float, size: int) -> None:
    """Let a job take what it needs of the first `size` nodes of `best_set`, as number `place` of those imagined."""
    state, scratch = sim.state, sim.scratch
    order = scratch.ahead_order
    first = place * state.free.shape[1]
    need = sim.scenarios.gpus[state.scenario[row], job]
    for i in range(size):
        node = scratch.best_set[row, i]
        gives = min(need, scratch.trial_free[row, node])
        need -= gives
        set_free(sim, row, node, scratch.trial_free[row, node] - gives)
        scratch.ahead_node[row, first + i] = node
        scratch.ahead_gives[row, first + i] = gives
    end_s = start_s + run_s
    scratch.ahead_job[row, place] = job
    scratch.ahead_start_s[row, place] = start_s
    scratch.ahead_end_s[row, place] = end_s
    scratch.ahead_size[row, place] = size
    # Those that have ended stand first, and as nobody ends before this start, the insertion stops there.
    at = place
    while at > 0 and scratch.ahead_end_s[row, order[row, at - 1]] > end_s:
        order[row, at] = order[row, at - 1]
        at -= 1
    order[row, at] = place


@kernel
def _next_end_s(sim: Simulation, row: int, places: int, moment: Moment) -> float:
    """Return when the next job ends of those that run or are imagined so far, inf for never."""
    state = sim.state
    end_s = math.inf
    if moment.at < state.running[row]:
        end_s = state.ends_s[row, moment.at]
    if moment.ended < places:
        end_s = min(end_s, sim.scratch.ahead_end_s[row, sim.scratch.ahead_order[row, moment.ended]])
    return end_s


@kernel
def _imagine_gives(sim: Simulation, row: int, place: int, sign: int) -> None:
    """Add the GPUs of a job ahead to `trial_free`, or take them away again if `sign` is -1."""
    scratch, first = sim.scratch, place * sim.state.free.shape[1]
    for i in range(first, first + scratch.ahead_size[row, place]):
        node = scratch.ahead_node[row, i]
        set_free(sim, row, node, scratch.trial_free[row, node] + sign * scratch.ahead_gives[row, i])


@kernel
def _release(sim: Simulation, row: int, places: int, moment: Moment) -> Moment:
    """Free the GPUs of all that end next, which something must; return the moment after."""
    state, scratch = sim.state, sim.scratch
    count = state.running[row]
    gpus = sim.scenarios.gpus[state.scenario[row]]
    end_s = _next_end_s(sim, row, places, moment)
    at, ended, usable = moment.at, moment.ended, moment.usable
    while ended < places and scratch.ahead_end_s[row, scratch.ahead_order[row, ended]] == end_s:
        place = scratch.ahead_order[row, ended]
        _imagine_gives(sim, row, place, 1)
        usable += gpus[scratch.ahead_job[row, place]]
        ended += 1
    if at < count and state.ends_s[row, at] == end_s:
        first = at
        at = imagine_end(sim, row, first, count)
        for i in range(first, at):
            usable += held_gpus(sim, row, state.ends_job[row, i])
    return Moment(end_s, at, ended, usable)


@kernel
def imagine_candidate(sim: Simulation, row: int, candidate: int) -> Moment:
    """Imagine a candidate of the list; return the moment at which it has started.

    `ends_s` and `ends_job` must hold the running jobs.
    """
    state = sim.state
    count, nodes = state.running[row], state.free.shape[1]
    imagine_now(sim, row)
    job, now_s, delay_s = state.candidate_job[row, candidate], state.now_s[row], state.candidate_delay_s[row, candidate]
    moment = Moment(now_s, 0, 0, state.usable[row] - sim.scenarios.gpus[state.scenario[row], job])
    # The difference, as the delay was reckoned: rounding must not keep the GPUs of that very end.
    while delay_s > 0.0 and moment.at < count and state.ends_s[row, moment.at] - now_s <= delay_s:
        moment = _release(sim, row, 0, moment)
    size = state.candidate_size[row, candidate]
    for i in range(size):
        sim.scratch.best_set[row, i] = state.candidate_node[row, candidate * nodes + i]
    _imagine_start(sim, row, 0, job, now_s + delay_s, state.candidate_s[row, candidate], size)
    return Moment(now_s + delay_s, moment.at, 0, moment.usable)


@kernel
def _go_back(sim: Simulation, row: int, later: Moment, moment: Moment) -> None:
    """Let `trial_free` be that of a moment from which time has passed to a later one."""
    for at in range(moment.at, later.at):
        imagine_gpus(sim, row, sim.state.ends_job[row, at], -1)
    for ended in range(moment.ended, later.ended):
        _imagine_gives(sim, row, sim.scratch.ahead_order[row, ended], -1)


@kernel
def _wait_for_better(sim: Simulation, row: int, places: int, job: int, moment: Moment) -> tuple[Moment, float, int]:
    """Let time pass to the end that gains a job most; return that moment, run time and size of the quick set there.

    `moment` itself is the best if no end gains anything.
    """
    levels = sim.traits.levels[sim.state.scenario[row]]
    run_s, _, size = quick_set(sim, row, job, holding_level(sim, row, job))
    best, best_s, most_s = moment, run_s, TIE * run_s
    bound_s, looks = least_run_s(sim, row, job, levels[0]), 0
    later = moment
    while looks < LOOKS:
        wait_s = _next_end_s(sim, row, places, later) - moment.time_s
        if PATIENCE * (run_s - bound_s) - wait_s <= most_s:
            break  # no later end can gain more, even if all GPUs were free then
        later = _release(sim, row, places, later)
        looks += 1
        level = holding_level(sim, row, job)
        if PATIENCE * (run_s - least_run_s(sim, row, job, levels[level])) - wait_s > most_s:
            later_s, _, later_size = quick_set(sim, row, job, level)
            gain_s = PATIENCE * (run_s - later_s) - wait_s
            if gain_s > most_s:
                best, best_s, size, most_s = later, later_s, later_size, gain_s
    if later.at + later.ended > best.at + best.ended:
        _go_back(sim, row, later, best)
        best_s, _, size = quick_set(sim, row, job, holding_level(sim, row, job))
    return best, best_s, size


@kernel
def imagine_queue(sim: Simulation, row: int, moment: Moment) -> int:
    """Imagine the next jobs after a candidate, of the moment of `imagine_candidate`; return how many have a place.

    The candidate's own is the first of them. `ahead_start_s` and `ahead_end_s` hold them in order; a job that can never
    start has inf in both, and none comes after it.
    """
    state, scratch = sim.state, sim.scratch
    gpus = sim.scenarios.gpus[state.scenario[row]]
    turned, at, places = has_turns(sim), 0, 1
    length = line_up(sim, row, AHEAD) if turned else state.queued[row]
    job = state.head[row]
    while places < AHEAD and at < length:
        if turned:
            job = scratch.lined_up[row, at]
        at += 1
        if job == scratch.ahead_job[row, 0]:
            job = state.next_job[row, job]
            continue
        while _usable_then(sim, row, job, moment) < gpus[job] and _next_end_s(sim, row, places, moment) < math.inf:
            moment = _release(sim, row, places, moment)
        if _usable_then(sim, row, job, moment) < gpus[job]:
            scratch.ahead_start_s[row, places] = math.inf
            scratch.ahead_end_s[row, places] = math.inf
            return places + 1
        if sim.rules.waiting:
            moment, run_s, size = _wait_for_better(sim, row, places, job, moment)
        else:
            run_s, _, size = quick_set(sim, row, job, holding_level(sim, row, job))
        _imagine_start(sim, row, places, job, moment.time_s, run_s, size)
        moment = Moment(moment.time_s, moment.at, moment.ended, moment.usable - gpus[job])
        places += 1
        job = state.next_job[row, job]
    return places
