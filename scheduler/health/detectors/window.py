"""The last step times, for rules with a moving baseline."""

import statistics
from bisect import bisect_left, insort
from collections import deque


class Window:
    """The last values and their median.

    Args:
        most: How many.
    """

    __slots__ = ("_inorder", "_last", "_most")

    def __init__(self, most: int) -> None:
        self._last: deque[float] = deque()
        self._inorder: list[float] = []
        self._most = most

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there can be."""
        return len(self._last) == self._most

    def add(self, value: float) -> None:
        """Take a value in, and forget the oldest if there are too many."""
        if self.is_full:
            del self._inorder[bisect_left(self._inorder, self._last.popleft())]
        self._last.append(value)
        insort(self._inorder, value)

    def median(self) -> float:
        """Return the median."""
        half, odd = divmod(len(self._inorder), 2)
        return self._inorder[half] if odd else (self._inorder[half - 1] + self._inorder[half]) / 2.0

    def deviation(self, middle: float) -> float:
        """Return the standard deviation as the median absolute deviation tells it."""
        return 1.4826 * statistics.median([abs(value - middle) for value in self._inorder])
