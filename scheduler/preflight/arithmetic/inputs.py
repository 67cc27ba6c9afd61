"""Matrices for products: the same on every machine, whatever the version of any library."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Share of factors that are positive. A product's terms then cancel out only in part: it stays large against the sum of
# their absolute values, so that no flipped bit from bit 10 up hides in the tolerance.
_POSITIVE = 0.775


def draws(seed: int, count: int) -> NDArray[np.uint64]:
    """Return numbers of SplitMix64, shape (count,).

    Args:
        seed: At least 0.
        count: How many.
    """
    with np.errstate(over="ignore"):
        state = (np.uint64(seed) + np.uint64(1)) * _MIX_1 + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        return state ^ (state >> np.uint64(31))


def factors(seed: int, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return two matrices, each of shape (size, size); absolute values lie in [0.5, 1), and each row has a sign.

    Args:
        seed: At least 0.
        size: Rows and columns.
    """
    left = _matrix(2 * seed, size)
    right = _matrix(2 * seed + 1, size)
    signs = np.where(draws(3 * seed + 7, 2 * size) >> np.uint64(63), -1.0, 1.0).astype(np.float32)
    return left * signs[:size, None], right * signs[None, size:]


def _matrix(seed: int, size: int) -> NDArray[np.float32]:
    drawn = draws(seed, size * size)
    magnitude = 0.5 + (drawn >> np.uint64(41)).astype(np.float64) * 2.0**-24  # 23 bits
    positive = (drawn & np.uint64(0xFFFF)).astype(np.float64) < _POSITIVE * 65536.0
    return np.where(positive, magnitude, -magnitude).astype(np.float32).reshape(size, size)
