"""Finding the k-th smallest of some numbers without sorting all of them."""

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel


@kernel
def kth_smallest(values: NDArray[np.float64], row: int, count: int, k: int) -> float:
    """Return the k-th smallest, from 0, of the first `count` numbers of a row, which are put into another order.

    Source: Hoare, Algorithm 65: Find, 1961.
    """
    first, last = 0, count - 1
    while first < last:
        pivot = values[row, (first + last) >> 1]
        low, high = first, last
        while low <= high:
            while values[row, low] < pivot:
                low += 1
            while values[row, high] > pivot:
                high -= 1
            if low <= high:
                values[row, low], values[row, high] = values[row, high], values[row, low]
                low += 1
                high -= 1
        if k <= high:
            last = high
        elif k >= low:
            first = low
        else:
            break
    return float(values[row, k])
