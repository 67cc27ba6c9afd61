"""The network `candidates`, compiled: one decision in microseconds, and whole runs by such decisions.

`decide_by_network` is one decision, step by step. The forward pass follows it, then runs that take the best candidate,
then runs that draw candidates for training.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.candidates import is_wait, list_candidates, pick_candidate
from ...cluster.kernels.compiled import kernel
from ...cluster.kernels.structures import uniform
from ...cluster.model.outcome import Objective
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.state import Simulation
from ...envs.features import (
    CANDIDATE_FEATURE_COUNT,
    CANDIDATE_GLOBAL_COUNT,
    Rows,
    time_unit_s,
    write_candidate_features,
    write_candidates,
)
from ..learned.network import LOGIT_TIE, MAX_OUTPUT
from ..protocol import TO_THE_END

Row = NDArray[np.float32]
Indices = NDArray[np.int64]


class CandidateWeights(NamedTuple):
    """Weights of a CandidateNetwork, inputs first, and scratch for one decision."""

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
def decide_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, observations: Rows, logits: Rows
) -> int:
    """Return the candidate to take at the decision that is due.

    1. List the candidates: whole placements, now or after a wait, the base heuristic's first.
    2. Write their features: those of the decision as a whole, then those of each candidate.
    3. Score them by the network: a logit each.
    4. Close those that let the job that is due wait, if the policy never learned to.
    5. Choose the largest logit, the first of equals.

    Args:
        sim: The simulation; a job must be due in the row. Its state holds the list, and the number of candidates.
        row: Row of the decision.
        weights: Of the network.
        waits: 1 if the policy learned to wait.
        observations: Takes the features in row 0.
        logits: Takes the logits in row 0.
    """
    candidates = list_candidates(sim, row)
    write_candidate_features(sim, row, candidates, observations, 0)
    score_candidates(weights, observations, 0, candidates, logits)
    if not waits:
        close_waits(sim, row, candidates, logits)
    return first_of_largest(logits, candidates)


@kernel
def take_candidate(sim: Simulation, row: int, candidate: int) -> None:
    """Carry out a candidate of the list: start its job, or wait."""
    if pick_candidate(sim, row, candidate):
        start(sim, row)
    else:
        wait(sim, row)


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
    """Write the logits of observations, which list `listed` candidates each, into the same rows of `logits`."""
    for at in range(listed.size):
        score_candidates(weights, observations, at, listed[at], logits)


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
    """Append the features that are not 0 to `count` values, with the rows of their weights; return the new count."""
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
    """Write a layer's output for the context: the global features, the candidates' mean, and the first of them."""
    mean, values, rows = weights.scratch[2], weights.scratch[3], weights.rows
    reads = weights.features
    for feature in range(reads):
        together = np.float32(0.0)
        for candidate in range(candidates):
            together += observations[CANDIDATE_GLOBAL_COUNT + candidate * CANDIDATE_FEATURE_COUNT + feature]
        mean[feature] = together / np.float32(candidates)
    base = CANDIDATE_GLOBAL_COUNT + CANDIDATE_FEATURE_COUNT  # the base's weights follow those of the mean
    count = _gather(observations, 0, weights.globals, 0, 0, values, rows)
    count = _gather(mean, 0, reads, CANDIDATE_GLOBAL_COUNT, count, values, rows)
    count = _gather(observations, CANDIDATE_GLOBAL_COUNT, reads, base, count, values, rows)
    for unit in range(bias.size):
        total[unit] = bias[unit]
    _add_rows(total, count, values, rows, layer, 0, bias.size)


@kernel
def _bounded(output: float) -> float:
    """Return an output of the network as a finite number, the lowest in place of NaN."""
    if not output > -MAX_OUTPUT:  # true for NaN too
        return -MAX_OUTPUT
    return min(output, MAX_OUTPUT)


@kernel
def close_waits(sim: Simulation, row: int, candidates: int, logits: Rows) -> None:
    """Write a logit of -inf for candidates that do not start the job that is due at once."""
    state = sim.state
    for candidate in range(candidates):
        if is_wait(sim, row, candidate) or state.candidate_job[row, candidate] != state.current[row]:
            logits[0, candidate] = -math.inf


@kernel
def first_of_largest(logits: Rows, candidates: int) -> int:
    """Return the candidate of the largest logit in row 0, the first among equals."""
    most = logits[0, 0]
    for candidate in range(1, candidates):
        most = max(most, logits[0, candidate])
    best = 0
    while logits[0, best] < most - LOGIT_TIE:
        best += 1
    return best


@kernel
def network_value(weights: CandidateWeights, observations: Rows, at: int, candidates: int) -> float:
    """Return the value of an observation, row `at` of `observations`, which lists `candidates` candidates."""
    hidden = weights.scratch[0]
    _write_context(weights, weights.value, weights.value_bias, observations[at], candidates, hidden)
    value = weights.value_offset[0]
    for unit in range(weights.value_bias.size):
        value += max(hidden[unit], np.float32(0.0)) * weights.value_score[unit]
    return _bounded(float(value))


@kernel
def value_by_network(sim: Simulation, row: int, weights: CandidateWeights, observations: Rows) -> float:
    """Return the network's value of the decision that is due; `observations` has at least one row."""
    return network_value(weights, observations, 0, write_candidates(sim, row, observations, 0))


@kernel
def run_on_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, decisions: int, observations: Rows, logits: Rows
) -> bool:
    """Run a row on for at most N decisions, greedily; False if it has ended before."""
    for _ in range(decisions):
        if not advance(sim, row):
            return False
        take_candidate(sim, row, decide_by_network(sim, row, weights, waits, observations, logits))
    return True


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
        run_on_by_network(sim, row, weights, waits, TO_THE_END, observations, logits)


@kernel
def unit_of_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the unit of an objective, of mean JCT if `jct` is 1 and else of the makespan."""
    jobs = sim.state.queued[row] + sim.state.running[row] if jct else 1
    return float(time_unit_s(sim, row) * max(jobs, 1))


@kernel
def spent_on_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the cost of a run so far by one of the two objectives."""
    return float(sim.state.job_time_s[row] if jct else sim.state.now_s[row])


def objective_unit_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the unit of an objective in seconds: that of the features' times, for `jct` once for each job present."""
    return float(unit_of_objective_s(sim, row, int(objective == "jct")))


def spent_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the cost of a run so far: the time, or for `jct` that of all jobs in the system together."""
    return float(spent_on_objective_s(sim, row, int(objective == "jct")))


IN_PROGRESS, DECISION_DUE, RUN_ENDED = range(3)


class RunProgress(NamedTuple):
    """How far a row was run."""

    stage: int  # IN_PROGRESS, DECISION_DUE once enough jobs were started, or RUN_ENDED
    started: int  # jobs
    has_started: int  # 1 if the last decision started one
    predicted_s: float  # sum of predictions of the run's cost
    predictions: int


RUN_BEGIN = RunProgress(IN_PROGRESS, 0, 0, 0.0, 0)


@kernel
def run_for_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, starts: int, foresee_from: int, jct: int,
    before: RunProgress, decisions: int, observations: Rows, logits: Rows,
) -> RunProgress:  # fmt: skip
    """Run a row greedily until N jobs are started and a decision is due, to its end, or for some decisions.

    On the way, at the first decision after each start from number `foresee_from` on, the value predicts the run's cost
    by its objective. `before` is how far the row was run before.
    """
    started, has_started, predicted_s, predictions = (
        before.started, before.has_started, before.predicted_s, before.predictions
    )  # fmt: skip
    for _ in range(decisions):
        if not advance(sim, row):
            return RunProgress(RUN_ENDED, started, has_started, predicted_s, predictions)
        if started >= starts:
            return RunProgress(DECISION_DUE, started, has_started, predicted_s, predictions)
        candidate = decide_by_network(sim, row, weights, waits, observations, logits)
        if has_started and started >= foresee_from:
            left = network_value(weights, observations, 0, int(sim.state.candidates[row]))
            predicted_s += spent_on_objective_s(sim, row, jct) + left * unit_of_objective_s(sim, row, jct)
            predictions += 1
        has_started = 0 if is_wait(sim, row, candidate) else 1
        started += has_started
        take_candidate(sim, row, candidate)
    return RunProgress(IN_PROGRESS, started, has_started, predicted_s, predictions)


class SampledRuns(NamedTuple):
    """Decisions of sampled runs, in their order; `size` counts them."""

    observations: NDArray[np.float32]  # (decisions, size) observations
    logits: NDArray[np.float32]  # (decisions, candidates) of the listed candidates
    candidates: NDArray[np.int32]  # (decisions,) their number
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,)
    row: NDArray[np.int32]  # (decisions,)
    now_s: NDArray[np.float64]  # (decisions,)
    unit_s: NDArray[np.float64]  # (decisions,) of the features' times
    submitted: NDArray[np.int32]  # (decisions,) jobs submitted so far
    to_go: NDArray[np.float32]  # (decisions,) remaining cost by the objective, as the value predicts it
    size: NDArray[np.int64]  # (1,)


@kernel
def _sample(record: SampledRuns, at: int, candidates: int, u: float) -> int:
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
def _write_to_go(sim: Simulation, row: int, jct: int, first: int, record: SampledRuns) -> None:
    """Write the remaining cost at the decisions of a run that has ended, which begin at `first` of the record.

    That is the time until the end of the run; or, if `jct` is 1, the mean over the jobs then in the system of the time
    that each still spends there. Unfinished jobs of a run that was cut off count until then.
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
    record: SampledRuns,
) -> bool:  # fmt: skip
    """Run one scenario in each row by sampled candidates and record every decision; False if the record is too small.

    The draws depend on the seed, the row's number `first_row` + row and the decision alone. The remaining cost is that
    of the makespan, or of the jobs' times in the system if `jct` is 1.
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
