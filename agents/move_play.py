"""Whole simulations by the network `moves`, compiled: greedy, or sampled and recorded for training."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.compiled import kernel
from ..cluster.engine import advance, reset, start, wait
from ..cluster.moves import is_wait, pick_move
from ..cluster.random import uniform
from ..cluster.state import Simulation
from ..envs.move_features import Rows, write_moves
from .forward import MovesWeights, score_moves

TIE = 1e-4  # logits that differ by less are equal: rounding differs between this and PyTorch


class Record(NamedTuple):
    """Decisions of sampled runs, in the order in which they were made; `size` counts them."""

    seen: NDArray[np.float32]  # (decisions, size) observations
    logits: NDArray[np.float32]  # (decisions, moves) of the moves that the list had
    moves: NDArray[np.int32]  # (decisions,) how many those are
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,)
    row: NDArray[np.int32]  # (decisions,)
    size: NDArray[np.int64]  # (1,)


@kernel
def _starts_due(sim: Simulation, row: int, move: int) -> bool:
    """Say whether a move starts the job that is due at once, so that nobody waits for it."""
    return bool(not is_wait(sim, row, move) and sim.state.move_job[row, move] == sim.state.current[row])


@kernel
def best_move(sim: Simulation, row: int, logits: Rows, moves: int, waits: int) -> int:
    """Return the move of the largest logit, the first among equals; if `waits` is 0, one that starts the due job."""
    most = -math.inf
    for move in range(moves):
        if waits or _starts_due(sim, row, move):
            most = max(most, logits[0, move])
    best = 0
    while logits[0, best] < most - TIE or not (waits or _starts_due(sim, row, best)):
        best += 1
    return best


@kernel
def take_move(sim: Simulation, row: int, move: int) -> None:
    """Carry out a move of the list: start its job, or wait."""
    if pick_move(sim, row, move):
        start(sim, row)
    else:
        wait(sim, row)


@kernel
def decide_by_network(sim: Simulation, row: int, weights: MovesWeights, waits: int, seen: Rows, logits: Rows) -> int:
    """Return the network's move of the decision that is due; `seen` and `logits` have a row of room."""
    moves = write_moves(sim, row, seen, 0)
    score_moves(weights, seen, 0, moves, logits)
    return best_move(sim, row, logits, moves, waits)


@kernel
def play_on_by_network(sim: Simulation, row: int, weights: MovesWeights, waits: int, seen: Rows, logits: Rows) -> None:
    """Play a row to its end, greedily."""
    while advance(sim, row):
        take_move(sim, row, decide_by_network(sim, row, weights, waits, seen, logits))


@kernel
def play_by_network(
    sim: Simulation, scenarios: NDArray[np.int64], weights: MovesWeights, waits: int, seen: Rows, logits: Rows
) -> None:
    """Play one scenario in each row, from its beginning to its end, greedily."""
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        play_on_by_network(sim, row, weights, waits, seen, logits)


@kernel
def _sample(record: Record, at: int, moves: int, u: float) -> int:
    """Draw a move by its probability; write it and its log-probability."""
    logits = record.logits
    most = logits[at, 0]
    for move in range(1, moves):
        most = max(most, logits[at, move])
    total = 0.0
    for move in range(moves):
        total += math.exp(logits[at, move] - most)
    chosen, left = 0, u * total
    for move in range(moves):
        left -= math.exp(logits[at, move] - most)
        chosen = move
        if left <= 0.0:
            break
    record.chosen[at] = chosen
    record.log_probability[at] = logits[at, chosen] - most - math.log(total)
    return chosen


@kernel
def sample_runs(
    sim: Simulation, scenarios: NDArray[np.int64], weights: MovesWeights, seed: int, first_row: int, record: Record
) -> bool:
    """Play one scenario in each row by sampled moves and record every decision; False if there was no room for all.

    The numbers that are drawn depend on the seed, the row's number `first_row` + row and the decision alone.
    """
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        decision = 0
        while advance(sim, row):
            at = record.size[0]
            if at == record.chosen.size:
                return False
            moves = write_moves(sim, row, record.seen, at)
            score_moves(weights, record.seen, at, moves, record.logits)
            record.moves[at] = moves
            record.row[at] = first_row + row
            record.size[0] += 1
            take_move(sim, row, _sample(record, at, moves, uniform(seed, first_row + row, decision)))
            decision += 1
    return True
