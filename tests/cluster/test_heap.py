"""The heaps in arrays against Python's heapq."""

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.cluster.kernels.structures import heapify, push, remove, sift_down

ITEMS = 12
KEYS = st.sampled_from((0.0, 1.0, 1.5, 2.0, 7.0))  # few, so that many are equal
Heap = tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


def empty() -> Heap:
    """Return key, heap, place and count of two rows; the second is used, the first must stay as it is."""
    rows = (2, ITEMS)
    return np.zeros(rows), np.zeros(rows, np.int32), np.full(rows, -1, np.int32), np.zeros(2, np.int32)


def drained(heap: Heap) -> list[tuple[float, int]]:
    """Return (key, item) in the order in which they come out."""
    key, items, place, count = heap
    out = []
    while count[1]:
        first = int(items[1, 0])
        out.append((float(key[1, first]), first))
        remove(key, items, place, count, 1, first)
    return out


def check(heap: Heap) -> None:
    _, items, place, count = heap
    assert [place[1, item] for item in items[1, : count[1]]] == list(range(count[1]))
    assert (place[1] >= 0).sum() == count[1]
    assert count[0] == 0
    assert (place[0] == -1).all()


@given(st.lists(st.tuples(st.integers(0, ITEMS - 1), KEYS)))
def test_items_come_out_by_key_and_then_by_number(changes: list[tuple[int, float]]) -> None:
    key, items, place, count = heap = empty()
    inside: dict[int, float] = {}
    for item, value in changes:  # what is inside leaves, what is not comes in
        if item in inside:
            del inside[item]
            remove(key, items, place, count, 1, item)
        else:
            key[1, item] = inside[item] = value
            push(key, items, place, count, 1, item)
        check(heap)
    expected = [(value, item) for item, value in inside.items()]
    heapq.heapify(expected)
    assert drained(heap) == [heapq.heappop(expected) for _ in range(len(expected))]


@given(st.lists(KEYS, max_size=ITEMS), KEYS)
def test_a_heap_is_made_of_any_order_and_its_first_item_may_sink(values: list[float], later: float) -> None:
    key, items, place, count = heap = empty()
    key[1, : len(values)] = values
    items[1, : len(values)] = np.arange(len(values))[::-1]
    count[1] = len(values)
    heapify(key, items, place, count, 1)
    check(heap)
    pairs = sorted((value, item) for item, value in enumerate(values))
    if pairs:
        key[1, pairs[0][1]] += later
        sift_down(key, items, place, count, 1, 0)
        check(heap)
        pairs[0] = (pairs[0][0] + later, pairs[0][1])
    assert drained(heap) == sorted(pairs)
