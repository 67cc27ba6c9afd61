"""The network `candidates`, compiled: one decision in microseconds, or whole simulations, greedy or sampled."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.candidates import is_wait, pick_candidate
from ...cluster.kernels.compiled import kernel
from ...cluster.kernels.structures import uniform
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.state import Simulation
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT, Rows, write_candidates
from ...envs.features import time_unit_s
from ..learned.decisions import spent_on_objective_s, unit_of_objective_s
from ..learned.network import LARGEST
from ..protocol import ALL

Row = NDArray[np.float32]
Indices = NDArray[np.int64]


class CandidateWeights(NamedTuple):
    """What a CandidateNetwork decides and judges by, inputs first, and room for one decision."""

    item: NDArray[np.float32]  # (candidate features, width)
    context: NDArray[np.float32]  # (global and twice the candidate features, width)
    context_bias: NDArray[np.float32]  # (width,)
    hidden: NDArray[np.float32]  # (width, width)
    hidden_bias: NDArray[np.float32]  # (width,)
    score: NDArray[np.float32]  # (width,)
    value: NDArray[np.float32]  # (global and twice the candidate features, width)
    value_bias: NDArray[np.float32]  # (width,)
    value_score: NDArray[np.float32]  # (width,)
    value_offset: NDArray[np.float32]  # (1,)
    scratch: NDArray[np.float32]  # (4, the larger of width and inputs of `context`)
    rows: NDArray[np.int64]  # (the same,)
    members: int  # equal blocks on the diagonal of `hidden` outside of which all is 0
    globals: int  # global features that it reads: the weights of those behind them are 0
    features: int  # and features of each candidate
    margin: float  # added to the logit of the first candidate, the base heuristic's


@kernel
def _add_rows(total: Row, count: int, values: Row, rows: Indices, matrix: Rows, begin: int, size: int) -> None:
    """Add to columns `begin` to `begin` + `size` - 1 of a total those of some rows of a matrix, each times a value.

    Eight rows at a time, so that the total is seldom read and written.
    """
    end, at = begin + size, 0
    part = total[begin:end]
    while at + 8 <= count:
        v0, v1, v2, v3 = values[at], values[at + 1], values[at + 2], values[at + 3]
        v4, v5, v6, v7 = values[at + 4], values[at + 5], values[at + 6], values[at + 7]
        m0, m1 = matrix[rows[at], begin:end], matrix[rows[at + 1], begin:end]
        m2, m3 = matrix[rows[at + 2], begin:end], matrix[rows[at + 3], begin:end]
        m4, m5 = matrix[rows[at + 4], begin:end], matrix[rows[at + 5], begin:end]
        m6, m7 = matrix[rows[at + 6], begin:end], matrix[rows[at + 7], begin:end]
        for unit in range(size):
            low = v0 * m0[unit] + v1 * m1[unit] + v2 * m2[unit] + v3 * m3[unit]
            part[unit] += low + (v4 * m4[unit] + v5 * m5[unit] + v6 * m6[unit] + v7 * m7[unit])
        at += 8
    while at < count:
        value, row = values[at], matrix[rows[at], begin:end]
        for unit in range(size):
            part[unit] += value * row[unit]
        at += 1


@kernel
def _gather(observations: Row, begin: int, size: int, first_row: int, count: int, values: Row, rows: Indices) -> int:
    """List what is not 0 of some features behind the first `count`, with the rows of their weights; return how many."""
    for at in range(size):
        value = observations[begin + at]
        if value != 0.0:
            values[count] = value
            rows[count] = first_row + at
            count += 1
    return count


@kernel
def _write_context(
    weights: CandidateWeights, layer: Rows, bias: Row, observations: Row, candidates: int, total: Row
) -> None:
    """Write what a layer makes of the context: the global features, the candidates' mean and the first of them."""
    mean, values, rows = weights.scratch[2], weights.scratch[3], weights.rows
    reads = weights.features
    for feature in range(reads):
        together = np.float32(0.0)
        for candidate in range(candidates):
            together += observations[CANDIDATE_GLOBAL_COUNT + candidate * CANDIDATE_FEATURE_COUNT + feature]
        mean[feature] = together / np.float32(candidates)
    base = CANDIDATE_GLOBAL_COUNT + CANDIDATE_FEATURE_COUNT  # the base's weights stand behind those of the mean
    count = _gather(observations, 0, weights.globals, 0, 0, values, rows)
    count = _gather(mean, 0, reads, CANDIDATE_GLOBAL_COUNT, count, values, rows)
    count = _gather(observations, CANDIDATE_GLOBAL_COUNT, reads, base, count, values, rows)
    for unit in range(bias.size):
        total[unit] = bias[unit]
    _add_rows(total, count, values, rows, layer, 0, bias.size)


@kernel
def _bounded(output: float) -> float:
    """Return what a network tells as a number that one can reckon with: finite, and the lowest in place of none."""
    if not output > -LARGEST:  # as it is for NaN
        return -LARGEST
    return min(output, LARGEST)


@kernel
def score_candidates(weights: CandidateWeights, observations: Rows, at: int, candidates: int, logits: Rows) -> None:
    """Write the logits of the first `candidates` items of observation `at` into row `at` of `logits`."""
    context, first, second = weights.scratch[0], weights.scratch[1], weights.scratch[2]
    values, rows = weights.scratch[3], weights.rows
    _write_context(weights, weights.context, weights.context_bias, observations[at], candidates, context)
    width = weights.hidden_bias.size
    size = width // weights.members
    for candidate in range(candidates):
        for unit in range(width):
            first[unit] = context[unit]
            second[unit] = weights.hidden_bias[unit]
        count = _gather(
            observations[at],
            CANDIDATE_GLOBAL_COUNT + candidate * CANDIDATE_FEATURE_COUNT,
            weights.features,
            0,
            0,
            values,
            rows,
        )
        _add_rows(first, count, values, rows, weights.item, 0, width)
        for begin in range(0, width, size):
            count = 0
            for unit in range(begin, begin + size):
                values[count] = first[unit]
                rows[count] = unit
                count += first[unit] > 0.0
            _add_rows(second, count, values, rows, weights.hidden, begin, size)
        logit = np.float32(0.0)
        for unit in range(width):
            logit += max(second[unit], np.float32(0.0)) * weights.score[unit]
        logits[at, candidate] = _bounded(float(logit))
    logits[at, 0] += np.float32(weights.margin)


@kernel
def score_rows(weights: CandidateWeights, observations: Rows, listed: Indices, logits: Rows) -> None:
    """Write the logits of some observations, whose lists have so many candidates, into the same rows of `logits`."""
    for at in range(listed.size):
        score_candidates(weights, observations, at, listed[at], logits)


@kernel
def network_value(weights: CandidateWeights, observations: Rows, at: int, candidates: int) -> float:
    """Return the value of an observation, row `at` of `observations`, whose list has `candidates` candidates."""
    hidden = weights.scratch[0]
    _write_context(weights, weights.value, weights.value_bias, observations[at], candidates, hidden)
    value = weights.value_offset[0]
    for unit in range(weights.value_bias.size):
        value += max(hidden[unit], np.float32(0.0)) * weights.value_score[unit]
    return _bounded(float(value))


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
