"""Imagined futures: simulations in which all that a policy cannot know is estimated or drawn anew.

Also what a candidate leads to: the next jobs of the queue in order after it, without faults or arrivals. Each starts as
soon as enough GPUs are free, on the quick set (node_sets.py), never before the one ahead of it. Where policies may
wait, it also waits for better GPUs, as `patient` does, but for few ends.

Source: field trials of rollouts; the information is that of docs/policies.md, What policies know.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..kernels.compiled import kernel
from ..kernels.structures import heapify, uniform
from ..model.problem import Problem, Scenarios
from ..queue.expected import revise_end_s, whole_work_s
from ..queue.index import forget_index
from ..queue.turns import line_up_jobs
from ..simulator.faults import repair_time_s
from ..simulator.simulation import simulation_of
from ..state.holding import held_gpus, is_struck, need_class_of
from ..state.state import AHEAD_JOBS, Simulation, State, Traits, has_need_classes, has_turns
from .node_sets import (
    RUN_TIE,
    WAIT_PATIENCE,
    add_job_gpus,
    find_quick_set,
    holding_speed_level,
    imagine_ends,
    least_run_s,
    reset_trial_free,
    set_trial_free,
)

PRESENT, FUTURE, TRIAL = range(3)  # rows of an imagination: the moment of the decision, one future from it, a try in it
LIST = [name for name in State._fields if name.startswith(("candidate", "base_"))]  # of candidates, as it was made
REPAIR_TRIES = 64  # draws of a repair time that is longer than what has passed of it


def imagination_of(sim: Simulation) -> Simulation:
    """Return a simulation of three rows in which decisions of another can be tried out."""
    one = Scenarios(*map(_copy_of_first_row, sim.scenarios))
    one.jobs[:] = 0  # `set_present` writes them
    process = sim.process
    if process.outage_start_s.size:  # recorded faults are the future; their mean length is experience
        process = process._replace(
            repair_mean_s=float((process.outage_end_s - process.outage_start_s).mean()),
            outage_first=np.zeros_like(process.outage_first),
            outage_start_s=np.zeros(0),
            outage_end_s=np.zeros(0),
        )
    rules = sim.rules._replace(estimated_hazards=False)  # faults that are only imagined teach nothing
    imagined = simulation_of(Problem(sim.cluster, one, process, rules), rows=3)
    # Traits are of the shapes of theirs: `set_present` copies those of any scenario.
    traits = Traits(*map(_copy_of_first_row, sim.traits))
    return Simulation(sim.cluster, one, traits, process, rules, imagined.state, imagined.log)


def _copy_of_first_row(array: Any) -> Any:
    return array[:1].copy()


def set_present(imagined: Simulation, sim: Simulation, row: int) -> None:
    """Put row PRESENT at a decision of another simulation, of which nothing changes.

    Estimates take the place of what is not known: of the work of jobs, and of the ends of those that run. Jobs that are
    not submitted yet do not exist. Faults are those of single GPUs, at the rates that policies know at this moment,
    and policies know the same rates in all futures. Nodes that are slow stay so, and no others become slow.
    """
    scenario = int(sim.state.scenario[row])
    _copy_row_of_arrays(sim.scenarios, scenario, imagined.scenarios, 0)
    _copy_row_of_arrays(sim.traits, scenario, imagined.traits, 0)
    for name in sim.state._fields:
        if not name.startswith("index_"):  # the imagination makes an index of its queue for itself
            getattr(imagined.state, name)[PRESENT] = getattr(sim.state, name)[row]
    forget_index(imagined, PRESENT)
    imagined.state.scenario[:] = 0
    imagined.scenarios.jobs[0] = sim.state.submitted[row]
    rates = imagined.scenarios.source_rate_per_s[0]
    gpus = sim.cluster.gpu_node.size
    rates[:gpus], rates[gpus:] = imagined.state.gpu_hazard_per_s[PRESENT], 0.0
    imagined.state.pace_s[PRESENT] = math.inf
    _replace_unknown_by_estimates(imagined)


def _copy_row_of_arrays(sources: Iterable[Any], source_row: int, targets: Iterable[Any], target_row: int) -> None:
    """Copy row `source_row` of arrays to row `target_row` of others."""
    for source, target in zip(sources, targets, strict=True):
        target[target_row] = source[source_row]


def copy_candidates_back(imagined: Simulation, sim: Simulation, row: int) -> None:
    """Let a decision have the candidates that were listed of it in row PRESENT, where everything known is the same."""
    for name in LIST:
        getattr(sim.state, name)[row] = getattr(imagined.state, name)[PRESENT]


@kernel
def _replace_unknown_by_estimates(imagined: Simulation) -> None:
    """Replace what is not known of jobs in row PRESENT by its estimate."""
    state = imagined.state
    for i in range(state.running[PRESENT]):
        job = state.run_heap[PRESENT, i]
        end_s = revise_end_s(imagined, PRESENT, job)
        if not is_struck(imagined, PRESENT, job):  # else it is when the fault is detected, whatever the work
            state.end_s[PRESENT, job] = end_s
    for job in range(imagined.scenarios.jobs[0]):
        imagined.scenarios.work_s[0, job] = whole_work_s(imagined, PRESENT, job)
    heapify(state.end_s, state.run_heap, state.run_place, state.running, PRESENT)


def copy_row(imagined: Simulation, source: int, target: int) -> None:
    """Copy everything that changes in one row to another."""
    _copy_row_of_arrays(imagined.state, source, imagined.state, target)


@contextmanager
def without_faults(imagined: Simulation) -> Iterator[None]:
    """Let no source fail in futures that are drawn and run meanwhile; repairs end as ever."""
    rates = imagined.scenarios.source_rate_per_s
    kept = rates.copy()
    rates[:] = 0.0
    try:
        yield
    finally:
        rates[:] = kept


@kernel
def draw_future(imagined: Simulation, seed: int) -> None:
    """Draw anew in row FUTURE when fault sources fail and come back, given how long they have been as they are.

    Args:
        imagined: The imagination; row FUTURE is a copy of PRESENT.
        seed: Key of the future's random numbers.
    """
    state, process = imagined.state, imagined.process
    imagined.scenarios.fault_seed[0] = seed
    now_s = state.now_s[FUTURE]
    count, k = 0, 0
    for source in range(state.source_s.shape[1]):
        rate = imagined.scenarios.source_rate_per_s[0, source]
        passed_s = now_s - state.source_since_s[FUTURE, source]
        state.source_k[FUTURE, source] = k  # counted anew, so that nothing hangs on counters of the true process
        state.source_place[FUTURE, source] = -1
        if state.source_failed[FUTURE, source] == 1:
            left_s = _remaining_repair_s(seed, source, k, passed_s, process.repair_mean_s, process.repair_sigma)
            state.source_s[FUTURE, source] = now_s + left_s
        elif rate > 0.0:
            state.source_s[FUTURE, source] = now_s + _remaining_up_time_s(
                seed, source, k, passed_s, rate, process.shape
            )
        else:
            state.source_s[FUTURE, source] = math.inf
        if state.source_s[FUTURE, source] < math.inf:
            state.source_heap[FUTURE, count] = source
            count += 1
    state.source_count[FUTURE] = count
    heapify(state.source_s, state.source_heap, state.source_place, state.source_count, FUTURE)


@kernel
def _remaining_up_time_s(seed: int, source: int, k: int, passed_s: float, rate_per_s: float, shape: float) -> float:
    """Return how long a source stays up that has been up for so long: Weibull of mean 1 / rate, conditioned on that."""
    log_u = -math.log(uniform(seed, source, 4 * k))
    if shape == 1.0:
        return log_u / rate_per_s
    scale_s = 1.0 / (rate_per_s * math.gamma(1.0 + 1.0 / shape))
    whole_s = scale_s * ((passed_s / scale_s) ** shape + log_u) ** (1.0 / shape)
    return float(max(whole_s - passed_s, 0.0))


@kernel
def _remaining_repair_s(seed: int, source: int, k: int, passed_s: float, mean_s: float, sigma: float) -> float:
    """Return how long a repair still takes that has gone on for so long."""
    if sigma == 0.0:
        return repair_time_s(seed, source, k, mean_s, sigma, 0.0)
    for attempt in range(REPAIR_TRIES):
        whole_s = repair_time_s(seed, source, k + attempt * 65536, mean_s, sigma, 0.0)
        if whole_s > passed_s:
            return whole_s - passed_s
    return mean_s  # far out in the tail


MAX_LATER_ENDS = 4  # later ends for which an imagined job may wait


class Moment(NamedTuple):
    """A moment that is imagined; `trial_free` holds the GPUs that are usable then."""

    time_s: float
    at: int  # running jobs that have ended; `ends_s` goes on there
    ended: int  # jobs ahead that have ended; `ahead_order` goes on there
    usable: int  # GPUs, by any job; `_usable_gpus_at` returns those that suit one job


@kernel
def _usable_gpus_at(sim: Simulation, row: int, job: int, moment: Moment) -> int:
    """Return the usable GPUs of the nodes that suit a job at the moment that `trial_free` is of."""
    if not has_need_classes(sim):
        return moment.usable
    usable, need_class = 0, need_class_of(sim, row, job)
    for node in range(sim.cluster.speed.size):
        usable += sim.scratch.trial_free[row, node] * sim.cluster.suits[need_class, node]
    return usable


@kernel
def _imagine_start(sim: Simulation, row: int, ahead: int, job: int, start_s: float, run_s: float, size: int) -> None:
    """Let a job take what it needs of the first `size` nodes of `best_set`, as number `ahead` of those imagined."""
    state, scratch = sim.state, sim.scratch
    order = scratch.ahead_order
    first = ahead * state.free.shape[1]
    need = sim.scenarios.gpus[state.scenario[row], job]
    for i in range(size):
        node = scratch.best_set[row, i]
        gives = min(need, scratch.trial_free[row, node])
        need -= gives
        set_trial_free(sim, row, node, scratch.trial_free[row, node] - gives)
        scratch.ahead_node[row, first + i] = node
        scratch.ahead_gives[row, first + i] = gives
    end_s = start_s + run_s
    scratch.ahead_job[row, ahead] = job
    scratch.ahead_start_s[row, ahead] = start_s
    scratch.ahead_end_s[row, ahead] = end_s
    scratch.ahead_size[row, ahead] = size
    # Those that have ended stand first, and as no job ends before this start, the insertion stops there.
    at = ahead
    while at > 0 and scratch.ahead_end_s[row, order[row, at - 1]] > end_s:
        order[row, at] = order[row, at - 1]
        at -= 1
    order[row, at] = ahead


@kernel
def _next_end_s(sim: Simulation, row: int, jobs_ahead: int, moment: Moment) -> float:
    """Return when the next job ends of those that run or are imagined so far, inf for never."""
    state = sim.state
    end_s = math.inf
    if moment.at < state.running[row]:
        end_s = state.ends_s[row, moment.at]
    if moment.ended < jobs_ahead:
        end_s = min(end_s, sim.scratch.ahead_end_s[row, sim.scratch.ahead_order[row, moment.ended]])
    return end_s


@kernel
def _add_imagined_gpus(sim: Simulation, row: int, ahead: int, sign: int) -> None:
    """Add the GPUs of a job ahead to `trial_free`, or take them away again if `sign` is -1."""
    scratch, first = sim.scratch, ahead * sim.state.free.shape[1]
    for i in range(first, first + scratch.ahead_size[row, ahead]):
        node = scratch.ahead_node[row, i]
        set_trial_free(sim, row, node, scratch.trial_free[row, node] + sign * scratch.ahead_gives[row, i])


@kernel
def _imagine_next_ends(sim: Simulation, row: int, jobs_ahead: int, moment: Moment) -> Moment:
    """Free the GPUs of all that end next, which something must; return the moment after."""
    state, scratch = sim.state, sim.scratch
    count = state.running[row]
    gpus = sim.scenarios.gpus[state.scenario[row]]
    end_s = _next_end_s(sim, row, jobs_ahead, moment)
    at, ended, usable = moment.at, moment.ended, moment.usable
    while ended < jobs_ahead and scratch.ahead_end_s[row, scratch.ahead_order[row, ended]] == end_s:
        place = scratch.ahead_order[row, ended]
        _add_imagined_gpus(sim, row, place, 1)
        usable += gpus[scratch.ahead_job[row, place]]
        ended += 1
    if at < count and state.ends_s[row, at] == end_s:
        first = at
        at = imagine_ends(sim, row, first, count)
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
    reset_trial_free(sim, row)
    job, now_s, delay_s = state.candidate_job[row, candidate], state.now_s[row], state.candidate_delay_s[row, candidate]
    moment = Moment(now_s, 0, 0, state.usable[row] - sim.scenarios.gpus[state.scenario[row], job])
    # The difference, as the delay was computed: rounding must not keep the GPUs of that very end.
    while delay_s > 0.0 and moment.at < count and state.ends_s[row, moment.at] - now_s <= delay_s:
        moment = _imagine_next_ends(sim, row, 0, moment)
    size = state.candidate_size[row, candidate]
    for i in range(size):
        sim.scratch.best_set[row, i] = state.candidate_node[row, candidate * nodes + i]
    _imagine_start(sim, row, 0, job, now_s + delay_s, state.candidate_s[row, candidate], size)
    return Moment(now_s + delay_s, moment.at, 0, moment.usable)


@kernel
def _undo_imagined_ends(sim: Simulation, row: int, later: Moment, moment: Moment) -> None:
    """Let `trial_free` be that of a moment from which time has passed to a later one."""
    for at in range(moment.at, later.at):
        add_job_gpus(sim, row, sim.state.ends_job[row, at], -1)
    for ended in range(moment.ended, later.ended):
        _add_imagined_gpus(sim, row, sim.scratch.ahead_order[row, ended], -1)


@kernel
def _wait_for_better_set(
    sim: Simulation, row: int, jobs_ahead: int, job: int, moment: Moment
) -> tuple[Moment, float, int]:
    """Let time pass to the end that gains a job most; return that moment, run time and size of the quick set there.

    `moment` itself is the best if no end gains anything.
    """
    levels = sim.traits.levels[sim.state.scenario[row]]
    run_s, _, size = find_quick_set(sim, row, job, holding_speed_level(sim, row, job))
    best, best_s, most_s = moment, run_s, RUN_TIE * run_s
    bound_s, tried = least_run_s(sim, row, job, levels[0]), 0
    later = moment
    while tried < MAX_LATER_ENDS:
        wait_s = _next_end_s(sim, row, jobs_ahead, later) - moment.time_s
        if WAIT_PATIENCE * (run_s - bound_s) - wait_s <= most_s:
            break  # no later end can gain more, even if all GPUs were free then
        later = _imagine_next_ends(sim, row, jobs_ahead, later)
        tried += 1
        level = holding_speed_level(sim, row, job)
        if WAIT_PATIENCE * (run_s - least_run_s(sim, row, job, levels[level])) - wait_s > most_s:
            later_s, _, later_size = find_quick_set(sim, row, job, level)
            gain_s = WAIT_PATIENCE * (run_s - later_s) - wait_s
            if gain_s > most_s:
                best, best_s, size, most_s = later, later_s, later_size, gain_s
    if later.at + later.ended > best.at + best.ended:
        _undo_imagined_ends(sim, row, later, best)
        best_s, _, size = find_quick_set(sim, row, job, holding_speed_level(sim, row, job))
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
    length = line_up_jobs(sim, row, AHEAD_JOBS) if turned else state.queued[row]
    job = state.head[row]
    while places < AHEAD_JOBS and at < length:
        if turned:
            job = scratch.lined_up[row, at]
        at += 1
        if job == scratch.ahead_job[row, 0]:
            job = state.next_job[row, job]
            continue
        while _usable_gpus_at(sim, row, job, moment) < gpus[job] and _next_end_s(sim, row, places, moment) < math.inf:
            moment = _imagine_next_ends(sim, row, places, moment)
        if _usable_gpus_at(sim, row, job, moment) < gpus[job]:
            scratch.ahead_start_s[row, places] = math.inf
            scratch.ahead_end_s[row, places] = math.inf
            return places + 1
        if sim.rules.waiting:
            moment, run_s, size = _wait_for_better_set(sim, row, places, job, moment)
        else:
            run_s, _, size = find_quick_set(sim, row, job, holding_speed_level(sim, row, job))
        _imagine_start(sim, row, places, job, moment.time_s, run_s, size)
        moment = Moment(moment.time_s, moment.at, moment.ended, moment.usable - gpus[job])
        places += 1
        job = state.next_job[row, job]
    return places
