"""Binary heaps, selection of the k-th smallest, and random numbers as a function of counters, compiled.

A heap holds small whole numbers, ordered by a key and then by the number itself. It is four arrays over rows: key
(rows, items), heap (rows, items), place (rows, items) with -1 for what is not in the heap, and count (rows,).
Everything is in place; nothing is allocated.
"""

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@kernel
def _key_goes_before(key: Floats, row: int, a: int, b: int) -> bool:
    return key[row, a] < key[row, b] or (key[row, a] == key[row, b] and a < b)


@kernel
def _sift_up(key: Floats, heap: Ints, place: Ints, row: int, at: int) -> None:
    item = heap[row, at]
    while at > 0:
        parent = (at - 1) >> 1
        above = heap[row, parent]
        if not _key_goes_before(key, row, item, above):
            break
        heap[row, at] = above
        place[row, above] = at
        at = parent
    heap[row, at] = item
    place[row, item] = at


@kernel
def sift_down(key: Floats, heap: Ints, place: Ints, count: Ints, row: int, at: int) -> None:
    """Move the item at a place down to where its key belongs."""
    item = heap[row, at]
    size = count[row]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        below = heap[row, child]
        if child + 1 < size and _key_goes_before(key, row, heap[row, child + 1], below):
            child += 1
            below = heap[row, child]
        if not _key_goes_before(key, row, below, item):
            break
        heap[row, at] = below
        place[row, below] = at
        at = child
    heap[row, at] = item
    place[row, item] = at


@kernel
def push(key: Floats, heap: Ints, place: Ints, count: Ints, row: int, item: int) -> None:
    """Add an item whose key is set."""
    at = count[row]
    count[row] += 1
    heap[row, at] = item
    _sift_up(key, heap, place, row, at)


@kernel
def remove(key: Floats, heap: Ints, place: Ints, count: Ints, row: int, item: int) -> None:
    """Take an item out."""
    at = place[row, item]
    place[row, item] = -1
    count[row] -= 1
    last = heap[row, count[row]]
    if last == item:
        return
    heap[row, at] = last
    place[row, last] = at
    sift_down(key, heap, place, count, row, at)
    _sift_up(key, heap, place, row, place[row, last])


@kernel
def heapify(key: Floats, heap: Ints, place: Ints, count: Ints, row: int) -> None:
    """Order a heap whose items were added without order."""
    for at in range(count[row] // 2 - 1, -1, -1):
        sift_down(key, heap, place, count, row, at)
    for at in range(count[row]):
        place[row, heap[row, at]] = at


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


MASK = 0xFFFFFFFF
INVERSE = 1.0 / 4503599627370496.0  # 2 ** -52


@kernel
def uniform(seed: int, source: int, k: int) -> float:
    """Return a number in (0, 1) that depends on the three counters only.

    Philox 2x32 with ten rounds; 26 bits of each word of output are used, so that the half
    that is added keeps the result off 0 and 1 without rounding. Plain integers with masks, so that compiled
    code (which wraps at 64 bits) and plain Python (which does not) agree to the bit.

    Args:
        seed: Key, of which 32 bits count.
        source: First counter, of which 32 bits count.
        k: Second counter, of which 32 bits count.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    key = int(seed) & MASK
    left = int(k) & MASK
    right = int(source) & MASK
    for _ in range(10):
        product = 0xD256D193 * left
        high = (product >> 32) & MASK
        left, right = high ^ key ^ right, product & MASK
        key = (key + 0x9E3779B9) & MASK
    return (float((left >> 6) * 67108864 + (right >> 6)) + 0.5) * INVERSE
