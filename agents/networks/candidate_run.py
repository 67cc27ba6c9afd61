"""Whole simulations by the network `candidates`, compiled: greedy, or sampled and recorded for training."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.candidates import is_wait, pick_candidate
from ...cluster.kernels.compiled import kernel
from ...cluster.kernels.counter_random import uniform
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.state import Simulation
from ...envs.candidate_features import Rows, write_candidates
from ...envs.common_features import time_unit_s
from ..learned.objective import spent_on_objective_s, unit_of_objective_s
from ..parts import ALL
from .candidate_forward import CandidateWeights, network_value, score_candidates

TIE = 1e-4  # logits that differ by less are equal: rounding differs between this and PyTorch


class Record(NamedTuple):
    """Decisions of sampled runs, in the order in which they were made; `size` counts them."""

    observations: NDArray[np.float32]  # (decisions, size) observations
    logits: NDArray[np.float32]  # (decisions, candidates) of the candidates that the list had
    candidates: NDArray[np.int32]  # (decisions,) how many those are
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,)
    row: NDArray[np.int32]  # (decisions,)
    now_s: NDArray[np.float64]  # (decisions,)
    unit_s: NDArray[np.float64]  # (decisions,) of the features' times
    submitted: NDArray[np.int32]  # (decisions,) jobs that were known
    to_go: NDArray[np.float32]  # (decisions,) what was still to come of the objective, as the value tells it
    size: NDArray[np.int64]  # (1,)


@kernel
def _starts_due(sim: Simulation, row: int, candidate: int) -> bool:
    """Say whether a candidate starts the job that is due at once, so that nobody waits for it."""
    return bool(not is_wait(sim, row, candidate) and sim.state.candidate_job[row, candidate] == sim.state.current[row])


@kernel
def take_candidate(sim: Simulation, row: int, candidate: int) -> None:
    """Carry out a candidate of the list: start its job, or wait."""
    if pick_candidate(sim, row, candidate):
        start(sim, row)
    else:
        wait(sim, row)


@kernel
def score_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, observations: Rows, logits: Rows
) -> int:
    """List the candidates of the decision that is due, write their logits, and return how many there are.

    If `waits` is 0, the logit is -inf of candidates that do not start the job that is due. `observations` and `logits`
    have a row of room.
    """
    candidates = write_candidates(sim, row, observations, 0)
    score_candidates(weights, observations, 0, candidates, logits)
    for candidate in range(candidates):
        if not (waits or _starts_due(sim, row, candidate)):
            logits[0, candidate] = -math.inf
    return candidates


@kernel
def first_of_largest(logits: Rows, candidates: int) -> int:
    """Return the candidate of the largest logit in row 0, the first among equals."""
    most = logits[0, 0]
    for candidate in range(1, candidates):
        most = max(most, logits[0, candidate])
    best = 0
    while logits[0, best] < most - TIE:
        best += 1
    return best


@kernel
def decide_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, observations: Rows, logits: Rows
) -> int:
    """Return the candidate of the largest logit at the decision that is due, the first among equals."""
    return first_of_largest(logits, score_by_network(sim, row, weights, waits, observations, logits))


@kernel
def run_on_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, decisions: int, observations: Rows, logits: Rows
) -> bool:
    """Run a row on for so many decisions, greedily; False if it has come to its end before."""
    for _ in range(decisions):
        if not advance(sim, row):
            return False
        take_candidate(sim, row, decide_by_network(sim, row, weights, waits, observations, logits))
    return True


GOES_ON, IS_DUE, HAS_ENDED = range(3)


class Way(NamedTuple):
    """How far a row was run."""

    stage: int  # GOES_ON, IS_DUE where enough jobs were started and a decision is due, or HAS_ENDED
    begun: int  # jobs that were started
    is_fresh: int  # 1 if the last decision started one
    foreseen_s: float  # sum of what the run was foreseen to come to
    times: int  # how often it was


BEGINNING = Way(GOES_ON, 0, 0, 0.0, 0)


@kernel
def run_for_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, starts: int, foresee_from: int, jct: int,
    way: Way, decisions: int, observations: Rows, logits: Rows,
) -> Way:  # fmt: skip
    """Run a row greedily until so many jobs are started and a decision is due, to its end, or for so many decisions.

    On the way, at the first decision after each start from number `foresee_from` on, the value tells what the run comes
    to by its objective. `way` is how far it was run before.
    """
    begun, is_fresh, foreseen_s, times = way.begun, way.is_fresh, way.foreseen_s, way.times
    for _ in range(decisions):
        if not advance(sim, row):
            return Way(HAS_ENDED, begun, is_fresh, foreseen_s, times)
        if begun >= starts:
            return Way(IS_DUE, begun, is_fresh, foreseen_s, times)
        candidates = score_by_network(sim, row, weights, waits, observations, logits)
        if is_fresh and begun >= foresee_from:
            left = network_value(weights, observations, 0, candidates)
            foreseen_s += spent_on_objective_s(sim, row, jct) + left * unit_of_objective_s(sim, row, jct)
            times += 1
        candidate = first_of_largest(logits, candidates)
        is_fresh = 0 if is_wait(sim, row, candidate) else 1
        begun += is_fresh
        take_candidate(sim, row, candidate)
    return Way(GOES_ON, begun, is_fresh, foreseen_s, times)


@kernel
def value_by_network(sim: Simulation, row: int, weights: CandidateWeights, observations: Rows) -> float:
    """Return the network's value of the decision that is due; `observations` has a row of room."""
    return network_value(weights, observations, 0, write_candidates(sim, row, observations, 0))


@kernel
def run_by_network(
    sim: Simulation,
    scenarios: NDArray[np.int64],
    weights: CandidateWeights,
    waits: int,
    observations: Rows,
    logits: Rows,
) -> None:
    """Run one scenario in each row, from its beginning to its end, greedily."""
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        run_on_by_network(sim, row, weights, waits, ALL, observations, logits)


@kernel
def _sample(record: Record, at: int, candidates: int, u: float) -> int:
    """Draw a candidate by its probability; write it and its log-probability."""
    logits = record.logits
    most = logits[at, 0]
    for candidate in range(1, candidates):
        most = max(most, logits[at, candidate])
    total = 0.0
    for candidate in range(candidates):
        total += math.exp(logits[at, candidate] - most)
    chosen, left = 0, u * total
    for candidate in range(candidates):
        left -= math.exp(logits[at, candidate] - most)
        chosen = candidate
        if left <= 0.0:
            break
    record.chosen[at] = chosen
    record.log_probability[at] = logits[at, chosen] - most - math.log(total)
    return chosen


@kernel
def _write_to_go(sim: Simulation, row: int, jct: int, first: int, record: Record) -> None:
    """Write what was still to come at the decisions of a run that has ended, which begin at `first` of the record.

    That is the time until the end of the run; or, if `jct` is 1, the mean over the jobs that were then in the system of
    the time that each still spent there. Jobs that the run was cut off before count until then.
    """
    state = sim.state
    for at in range(first, record.size[0]):
        now_s = record.now_s[at]
        total_s, jobs = state.now_s[row] - now_s, 1
        if jct:
            total_s, jobs = 0.0, 0
            for job in range(record.submitted[at]):
                ended_s = state.finish_s[row, job]
                left_s = (ended_s if ended_s > 0.0 else state.now_s[row]) - now_s
                total_s += max(left_s, 0.0)
                jobs += left_s > 0.0
        record.to_go[at] = total_s / max(jobs, 1) / record.unit_s[at]


@kernel
def sample_runs(
    sim: Simulation, scenarios: NDArray[np.int64], weights: CandidateWeights, seed: int, first_row: int, jct: int,
    record: Record,
) -> bool:  # fmt: skip
    """Run one scenario in each row by sampled candidates and record every decision; False if there was no room for all.

    The numbers that are drawn depend on the seed, the row's number `first_row` + row and the decision alone. What is
    still to come is that of the makespan, of the jobs' times in the system if `jct` is 1.
    """
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        decision, first = 0, record.size[0]
        while advance(sim, row):
            at = record.size[0]
            if at == record.chosen.size:
                return False
            candidates = write_candidates(sim, row, record.observations, at)
            score_candidates(weights, record.observations, at, candidates, record.logits)
            record.candidates[at] = candidates
            record.row[at] = first_row + row
            record.now_s[at] = sim.state.now_s[row]
            record.unit_s[at] = time_unit_s(sim, row)
            record.submitted[at] = sim.state.submitted[row]
            record.size[0] += 1
            take_candidate(sim, row, _sample(record, at, candidates, uniform(seed, first_row + row, decision)))
            decision += 1
        _write_to_go(sim, row, jct, first, record)
    return True
