"""The network `moves` as compiled code: one decision in microseconds, without PyTorch (docs/policies.md, Learned)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.compiled import kernel
from ..envs.move_features import MOVE_COUNT, MOVE_GLOBAL_COUNT, Rows
from .networks import MovesNetwork, members_of


class MovesWeights(NamedTuple):
    """What a MovesNetwork decides and judges by, inputs first, and room for one decision."""

    item: NDArray[np.float32]  # (move features, width)
    context: NDArray[np.float32]  # (global and twice the move features, width)
    context_bias: NDArray[np.float32]  # (width,)
    hidden: NDArray[np.float32]  # (width, width)
    hidden_bias: NDArray[np.float32]  # (width,)
    score: NDArray[np.float32]  # (width,)
    value: NDArray[np.float32]  # (global and twice the move features, width)
    value_bias: NDArray[np.float32]  # (width,)
    value_score: NDArray[np.float32]  # (width,)
    value_offset: NDArray[np.float32]  # (1,)
    scratch: NDArray[np.float32]  # (4, width)
    members: int  # equal blocks on the diagonal of `hidden` outside of which all is 0


def moves_weights(network: MovesNetwork) -> MovesWeights:
    """Return a copy of a network's weights."""
    tensors = network.state_dict()

    def array(name: str) -> NDArray[np.float32]:
        return np.array(tensors[name].numpy().T, dtype=np.float32, order="C")

    return MovesWeights(
        array("item.weight"), array("context.weight"), array("context.bias"), array("hidden.weight"),
        array("hidden.bias"), array("score.weight")[:, 0].copy(), array("value.0.weight"), array("value.0.bias"),
        array("value.2.weight")[:, 0].copy(), array("value.2.bias"),
        np.zeros((4, network.hidden.in_features), np.float32), members_of(network),
    )  # fmt: skip


@kernel
def _write_context(
    layer: Rows, bias: NDArray[np.float32], seen: Rows, at: int, moves: int, total: NDArray[np.float32]
) -> None:
    """Write what a layer makes of the context: the global features, the moves' mean and the first of them."""
    width = total.size
    for unit in range(width):
        total[unit] = bias[unit]
    for feature in range(MOVE_GLOBAL_COUNT):
        value = seen[at, feature]
        if value != 0.0:
            for unit in range(width):
                total[unit] += value * layer[feature, unit]
    for feature in range(MOVE_COUNT):
        mean = np.float32(0.0)
        for move in range(moves):
            mean += seen[at, MOVE_GLOBAL_COUNT + move * MOVE_COUNT + feature]
        mean /= np.float32(moves)
        first = seen[at, MOVE_GLOBAL_COUNT + feature]
        by_mean, by_first = MOVE_GLOBAL_COUNT + feature, MOVE_GLOBAL_COUNT + MOVE_COUNT + feature
        for unit in range(width):
            total[unit] += mean * layer[by_mean, unit] + first * layer[by_first, unit]


@kernel
def score_moves(weights: MovesWeights, seen: Rows, at: int, moves: int, logits: Rows) -> None:
    """Write the logits of the first `moves` moves of an observation, row `at` of `seen`, into row `at` of `logits`."""
    context, first, second = weights.scratch[0], weights.scratch[1], weights.scratch[2]
    _write_context(weights.context, weights.context_bias, seen, at, moves, context)
    width = context.size
    size = width // weights.members
    for move in range(moves):
        for unit in range(width):
            first[unit] = context[unit]
            second[unit] = weights.hidden_bias[unit]
        begin = MOVE_GLOBAL_COUNT + move * MOVE_COUNT
        for feature in range(MOVE_COUNT):
            value = seen[at, begin + feature]
            if value != 0.0:
                for unit in range(width):
                    first[unit] += value * weights.item[feature, unit]
        for unit in range(width):
            value = first[unit]
            if value > 0.0:
                block = unit // size * size
                for other in range(block, block + size):
                    second[other] += value * weights.hidden[unit, other]
        logit = np.float32(0.0)
        for unit in range(width):
            logit += max(second[unit], np.float32(0.0)) * weights.score[unit]
        logits[at, move] = logit


@kernel
def tell_value(weights: MovesWeights, seen: Rows, at: int, moves: int) -> float:
    """Return the value of an observation, row `at` of `seen`, whose list has `moves` moves."""
    hidden = weights.scratch[0]
    _write_context(weights.value, weights.value_bias, seen, at, moves, hidden)
    value = weights.value_offset[0]
    for unit in range(hidden.size):
        value += max(hidden[unit], np.float32(0.0)) * weights.value_score[unit]
    return float(value)
