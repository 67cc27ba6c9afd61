"""The candidates at a decision: each is a job with a whole placement, or waiting (docs/policies.md, Candidates).

The first candidate is that of the base heuristic, `patient` (`eft-hazard` where no job may wait). The others are the
sets of nodes with the earliest finish, the tightest sets, sets of slow nodes only, sets for other jobs that may start
at this moment, and waiting. Only minimal sets count, of which every node is needed, and nodes that are alike are
one class: equal sets appear once.
"""

import math

from ..kernels.compiled import kernel
from ..model.problem import passes
from ..placing import take_node
from ..queue.expected import expected_fault_loss_s, sort_expected_ends
from ..queue.order import delays_no_job, list_others, may_turn, may_wait, turn_to
from ..state.holding import has_classes
from ..state.state import MAX_CANDIDATES, OFFERS, Simulation
from .node_sets import (
    RUN_TIE,
    WAIT_PATIENCE,
    best_set,
    bound_s,
    imagine_end,
    imagine_now,
    keep_if_better,
    least_run_s,
    lowest_level,
    set_cost,
    tight_set,
)
from .offers import classify_all, offer_sets, set_sign


@kernel
def _keep_best(sim: Simulation, row: int, candidate: int, job: int, delay_s: float, found: tuple[float, int, int],
               sign: int) -> None:  # fmt: skip
    """Write the set in `best_set` as a candidate; `found` is its run time, hole and number of nodes."""
    state = sim.state
    first = candidate * state.free.shape[1]
    state.candidate_job[row, candidate] = job
    state.candidate_delay_s[row, candidate] = delay_s
    state.candidate_s[row, candidate] = found[0]
    state.candidate_hole[row, candidate] = found[1]
    state.candidate_size[row, candidate] = found[2]
    state.candidate_sign[row, candidate] = sign
    for place in range(found[2]):
        state.candidate_node[row, first + place] = sim.scratch.best_set[row, place]


@kernel
def _plan_wait(sim: Simulation, row: int, candidate: int, job: int, run_s: float, fault_loss_s: float) -> float:
    """Write the best wait for an expected end as a candidate; return its gain, as of `patient` (docs/policies.md).

    A wait that gains nothing is written all the same.
    """
    state = sim.state
    count = sort_expected_ends(sim, row)
    imagine_now(sim, row)
    largest_s = WAIT_PATIENCE * (run_s - least_run_s(sim, row, job, sim.traits.levels[state.scenario[row], 0]))
    most_s = -math.inf
    at = 0
    while at < count:
        delay_s = state.ends_s[row, at] - state.now_s[row]
        at = imagine_end(sim, row, at, count)
        if most_s > -math.inf and (
            WAIT_PATIENCE * run_s - delay_s <= max(most_s, 0.0) or largest_s - delay_s <= most_s
        ):
            break  # no later end gains anything if the job then takes no time at all, or more on the fastest GPUs
        if most_s > -math.inf and WAIT_PATIENCE * (run_s - bound_s(sim, row, job)) - delay_s <= most_s:
            continue
        found = best_set(sim, row, job, fault_loss_s)
        gain_s = WAIT_PATIENCE * (run_s - found[0]) - delay_s
        if gain_s > most_s:
            most_s = gain_s
            _keep_best(sim, row, candidate, job, delay_s, found, -1)
    return most_s


@kernel
def _copy_candidate(sim: Simulation, row: int, source: int, target: int) -> None:
    state = sim.state
    nodes = state.free.shape[1]
    state.candidate_job[row, target] = state.candidate_job[row, source]
    state.candidate_delay_s[row, target] = state.candidate_delay_s[row, source]
    state.candidate_s[row, target] = state.candidate_s[row, source]
    state.candidate_hole[row, target] = state.candidate_hole[row, source]
    state.candidate_size[row, target] = state.candidate_size[row, source]
    state.candidate_sign[row, target] = state.candidate_sign[row, source]
    for place in range(state.candidate_size[row, source]):
        state.candidate_node[row, target * nodes + place] = state.candidate_node[row, source * nodes + place]


@kernel
def _held_by(sim: Simulation, row: int, job: int, count: int) -> int:
    """Return how many GPUs of use to the holder of the reservation a job takes of the first nodes of `trial_set`."""
    gpus = int(sim.scenarios.gpus[sim.state.scenario[row], job])
    if not has_classes(sim):
        return gpus
    held, suits = 0, sim.cluster.suits[sim.state.reserved_class[row]]
    for place in range(count):
        node = sim.scratch.trial_set[row, place]
        gives = min(gpus, sim.scratch.trial_free[row, node])
        gpus -= gives
        held += gives * suits[node]
    return held


@kernel
def _try_best(sim: Simulation, row: int, job: int, count: int) -> bool:
    """Copy `best_set` to `trial_set`; return whether the job may start on it now, by the reservation in the state."""
    state = sim.state
    for place in range(count):
        sim.scratch.trial_set[row, place] = sim.scratch.best_set[row, place]
    if state.shadow_s[row] == math.inf:
        return True
    return delays_no_job(sim, row, job, set_cost(sim, row, job, count, 0.0)[0], _held_by(sim, row, job, count))


@kernel
def _add_offers(sim: Simulation, row: int, candidates: int, most: int, job: int) -> int:
    """Write the offers as further candidates, `most` in all, but none that is alike to one so far; return the number.

    Those that break the reservation are omitted.
    """
    state, scratch = sim.state, sim.scratch
    nodes = state.free.shape[1]
    for place in range(OFFERS):
        size = scratch.offer_size[row, place]
        known = size == 0 or candidates == most
        for candidate in range(candidates):
            known = known or state.candidate_sign[row, candidate] == scratch.offer_sign[row, place]
        if known:
            continue
        for i in range(size):
            scratch.best_set[row, i] = scratch.offer_node[row, place * nodes + i]
        if _try_best(sim, row, job, size):
            found = (scratch.offer_s[row, place], scratch.offer_hole[row, place], size)
            _keep_best(sim, row, candidates, job, 0.0, found, scratch.offer_sign[row, place])
            candidates += 1
    return candidates


@kernel
def _add_set(sim: Simulation, row: int, candidates: int, job: int, found: tuple[float, int, int]) -> int:
    """Write `best_set` as a further candidate of another job, unless it is listed or breaks the reservation."""
    state = sim.state
    if not _try_best(sim, row, job, found[2]):
        return candidates
    sign = set_sign(sim, row, found[2])
    for candidate in range(candidates):
        if state.candidate_job[row, candidate] == job and state.candidate_sign[row, candidate] == sign:
            return candidates
    _keep_best(sim, row, candidates, job, 0.0, found, sign)
    return candidates + 1


@kernel
def _add_others(sim: Simulation, row: int, candidates: int, most: int, others: int, fault_loss_s: float) -> int:
    """Write candidates of jobs that the policy may turn to, `most` in all: the best set of each, then the tightest."""
    state, lowest = sim.state, lowest_level(sim, row)
    for place in range(others):
        if candidates < most:
            job = sim.scratch.other_job[row, place]
            candidates = _add_set(sim, row, candidates, job, best_set(sim, row, job, fault_loss_s))
    for place in range(others):
        if candidates < most:
            job = sim.scratch.other_job[row, place]
            count = tight_set(sim, row, job, lowest, 0, state.free.shape[1], 1)
            found = keep_if_better(sim, row, job, count, fault_loss_s, (math.inf, 0, 0))
            candidates = _add_set(sim, row, candidates, job, found)
    return candidates


@kernel
def _add_all(sim: Simulation, row: int, candidates: int, most: int, fault_loss_s: float) -> int:
    """Write the offers and the candidates of other jobs, each under the reservation it must keep; return the number."""
    state = sim.state
    own = state.shadow_s[row], state.extra[row], state.reserved_class[row]
    others = list_others(sim, row) if may_turn(sim, row) else 0
    theirs = state.shadow_s[row], state.extra[row], state.reserved_class[row]
    state.shadow_s[row], state.extra[row], state.reserved_class[row] = own
    candidates = _add_offers(sim, row, candidates, most - others, state.current[row])
    if others > 0 and has_classes(sim):
        classify_all(sim, row)  # they may take nodes that do not suit the job that is due
    state.shadow_s[row], state.extra[row], state.reserved_class[row] = theirs
    candidates = _add_others(sim, row, candidates, most, others, fault_loss_s)
    state.shadow_s[row], state.extra[row], state.reserved_class[row] = own
    return candidates


@kernel
def list_candidates(sim: Simulation, row: int) -> int:
    """Write the candidates of the decision that is due, the base heuristic's first; return their number, at least 1.

    `ends_s` and `ends_job` then hold the expected ends of the running jobs.
    """
    state = sim.state
    job, fault_loss_s = state.current[row], expected_fault_loss_s(sim)
    imagine_now(sim, row)
    found = best_set(sim, row, job, fault_loss_s)
    _keep_best(sim, row, 0, job, 0.0, found, 0)
    state.base_refused[row] = 0 if _try_best(sim, row, job, found[2]) else 1
    at_once, wait = 0, MAX_CANDIDATES - 1
    waiting = may_wait(sim, row)
    gain_s = -math.inf
    if waiting:
        gain_s = _plan_wait(sim, row, wait, job, found[0], fault_loss_s)
        imagine_now(sim, row)
    else:
        sort_expected_ends(sim, row)
    state.base_waits[row] = 1 if gain_s > RUN_TIE * found[0] else 0
    if state.base_waits[row]:  # the base's own candidate comes first, and its best set at once second
        at_once = 1
        _copy_candidate(sim, row, 0, at_once)
        _copy_candidate(sim, row, wait, 0)
    offer_sets(sim, row, job, fault_loss_s)
    first = at_once * state.free.shape[1]
    for place in range(found[2]):
        sim.scratch.trial_set[row, place] = state.candidate_node[row, first + place]
    state.candidate_sign[row, at_once] = set_sign(sim, row, found[2])
    candidates = _add_all(sim, row, at_once + 1, wait, fault_loss_s)
    if waiting and (at_once == 0 or passes(sim.rules.order)):  # where no job passes, the base's wait is one for all
        _copy_candidate(sim, row, wait, candidates)
        candidates += 1
    state.candidates[row] = candidates
    return candidates


@kernel
def is_wait(sim: Simulation, row: int, candidate: int) -> bool:
    """Return whether a candidate of the list is to wait."""
    return bool(sim.state.candidate_delay_s[row, candidate] > 0.0)


@kernel
def is_rest(sim: Simulation, row: int, candidate: int) -> bool:
    """Return whether a candidate lets all jobs wait; the base's own wait passes over the job that is due alone."""
    return bool(candidate > 0 and passes(sim.rules.order) and is_wait(sim, row, candidate))


@kernel
def pick_candidate(sim: Simulation, row: int, candidate: int) -> bool:
    """Pick the GPUs of a candidate of the list; False, with nothing picked, if it is to wait.

    The candidate's job is then the one that is due. After a candidate that lets all jobs wait, `wait` ends the moment.
    """
    state = sim.state
    if is_wait(sim, row, candidate):
        if is_rest(sim, row, candidate):
            state.rested[row] = state.moment[row]
        return False
    if state.candidate_job[row, candidate] != state.current[row]:
        turn_to(sim, row, state.candidate_job[row, candidate])
    first = candidate * state.free.shape[1]
    for place in range(state.candidate_size[row, candidate]):
        take_node(sim, row, state.candidate_node[row, first + place])
    return True
