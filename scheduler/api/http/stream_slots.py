"""How many streams are open at once, so that nobody takes them all."""

import threading
from collections import Counter
from collections.abc import Callable

MOST = 100  # streams at once, of all owners


class StreamSlots:
    """Places for streams. An owner has half of those that the others leave at most: one has 50, two together 75.

    Any thread may use it.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open = Counter[str]()
        self._lock = threading.RLock()  # the garbage collector gives places back at any moment

    def take(self, owner: str) -> Callable[[], None] | None:
        """Take a place and return what gives it back, once however often it is called; None if there is none left."""
        with self._lock:
            mine, all_ = self._open[owner], self._open.total()
            if mine >= (self._most - (all_ - mine)) / 2:
                return None
            self._open[owner] += 1
        taken = [owner]

        def give_back() -> None:
            with self._lock:
                for it in taken:
                    self._open[it] -= 1
                taken.clear()
                self._open += Counter()  # owners without any are forgotten

        return give_back

    def open_of(self, owner: str | None = None) -> int:
        """Return how many streams are open, of an owner or of all."""
        with self._lock:
            return self._open.total() if owner is None else self._open[owner]
