"""Binary heaps of small whole numbers, ordered by a key and then by the number itself.

A heap is four arrays over rows: key (rows, items), heap (rows, items), place (rows, items) with -1 for what is not in
the heap, and count (rows,). Everything is in place; nothing is allocated.
"""

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@kernel
def _before(key: Floats, row: int, a: int, b: int) -> bool:
    return key[row, a] < key[row, b] or (key[row, a] == key[row, b] and a < b)


@kernel
def _rise(key: Floats, heap: Ints, place: Ints, row: int, at: int) -> None:
    item = heap[row, at]
    while at > 0:
        parent = (at - 1) >> 1
        above = heap[row, parent]
        if not _before(key, row, item, above):
            break
        heap[row, at] = above
        place[row, above] = at
        at = parent
    heap[row, at] = item
    place[row, item] = at


@kernel
def sink(key: Floats, heap: Ints, place: Ints, count: Ints, row: int, at: int) -> None:
    """Move the item at a place down to where its key belongs."""
    item = heap[row, at]
    size = count[row]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        below = heap[row, child]
        if child + 1 < size and _before(key, row, heap[row, child + 1], below):
            child += 1
            below = heap[row, child]
        if not _before(key, row, below, item):
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
    _rise(key, heap, place, row, at)


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
    sink(key, heap, place, count, row, at)
    _rise(key, heap, place, row, place[row, last])


@kernel
def heapify(key: Floats, heap: Ints, place: Ints, count: Ints, row: int) -> None:
    """Order a heap whose items were put in anyhow."""
    for at in range(count[row] // 2 - 1, -1, -1):
        sink(key, heap, place, count, row, at)
    for at in range(count[row]):
        place[row, heap[row, at]] = at
