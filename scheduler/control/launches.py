"""Launches that a backend did not take: when each is tried again, and what was told of it."""

from typing import NamedTuple

FIRST_S, LONGEST_S = 0.5, 30.0  # until a launch is tried again, doubled with each failure


class _Failed(NamedTuple):
    times: int
    again_s: float
    words: str


class Launches:
    """Attempts whose last launch failed, by their names."""

    def __init__(self) -> None:
        self._failed: dict[str, _Failed] = {}

    def is_due(self, name: str, now_s: float) -> bool:
        """Say whether an attempt may be launched now."""
        it = self._failed.get(name)
        # A wait that is longer than any is that of a clock that was set back.
        return it is None or not 0.0 < it.again_s - now_s <= LONGEST_S

    def fail(self, name: str, words: str, now_s: float) -> bool:
        """Note that a launch failed, and return whether that was not told in these words the last time."""
        before = self._failed.get(name, _Failed(0, now_s, ""))
        wait_s = min(FIRST_S * 2.0 ** min(before.times, 32), LONGEST_S)
        self._failed[name] = _Failed(before.times + 1, now_s + wait_s, words)
        return words != before.words

    def words(self, name: str) -> str:
        """Return why the last launch of an attempt failed, "" if it did not."""
        it = self._failed.get(name)
        return "" if it is None else it.words

    def why_not(self, job: str) -> str:
        """Return why the last launch of a job failed, "" if it did not. Any thread may ask."""
        attempts = f"ls-{job}-"
        return next((it.words for name, it in list(self._failed.items()) if name.startswith(attempts)), "")

    def end(self, name: str) -> None:
        """Forget an attempt: it was launched, or will not be."""
        self._failed.pop(name, None)
