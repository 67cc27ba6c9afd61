"""Which elements of a product are wrong.

Source: SPEC C2. The bounds are those of rounding: a sum of products in fp32, and for the halves one rounding of it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}  # largest relative error of one rounding
FP32_UNITS = 12.0  # of the sum of absolute values; 3.6 were measured
HALF_UNITS, HALF_ROUNDING = 8.0, 1.01


class Wrong(NamedTuple):
    """The element that is furthest off."""

    row: int
    column: int
    got: float
    wanted: float
    limit: float  # how far off it may be
    elements: int  # that are wrong


def limits(dtype: str, exact: NDArray[np.float64], absolute: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far off each element may be.

    Args:
        dtype: fp32, bf16 or fp16.
        exact: Product of the rounded inputs in float64, shape (rows, columns).
        absolute: Product of their absolute values, the same shape.
    """
    if dtype == "fp32":
        return FP32_UNITS * UNIT["fp32"] * absolute
    return HALF_ROUNDING * UNIT[dtype] * np.abs(exact) + HALF_UNITS * UNIT["fp32"] * absolute


def furthest_off(got: NDArray[np.float64], exact: NDArray[np.float64], limit: NDArray[np.float64]) -> Wrong | None:
    """Return the element that is furthest beyond its limit, None if none is; what is no number is beyond it."""
    off = np.abs(got - exact)
    wrong = ~(off <= limit)  # not `>`: a NaN is wrong
    if not wrong.any():
        return None
    excess = np.where(wrong, np.nan_to_num(off / limit, nan=np.inf, posinf=np.inf), -1.0)
    row, column = (int(at) for at in np.unravel_index(int(excess.argmax()), excess.shape))
    return Wrong(row, column, float(got[row, column]), float(exact[row, column]), float(limit[row, column]),
                 int(wrong.sum()))  # fmt: skip


def first_difference(got: NDArray[np.signedinteger], wanted: NDArray[np.signedinteger]) -> tuple[int, int, int] | None:
    """Return row and column of the first element with another bit, and how many have; None if all are the same.

    Args:
        got: The bits of each element as a whole number, shape (rows, columns).
        wanted: The same.
    """
    differs = got != wanted
    if not differs.any():
        return None
    row, column = (int(at) for at in np.argwhere(differs)[0])
    return row, column, int(differs.sum())
