"""The network `candidates`, compiled: a decision takes microseconds, without PyTorch (docs/policies.md, Learned)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.kernels.compiled import kernel
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT, Rows
from ..learned.network import LARGEST

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
