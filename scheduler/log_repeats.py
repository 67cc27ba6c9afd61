"""Messages of the log that would come again and again: told at once, then now and then with their count."""

EVERY_S = 60.0


class Repeats:
    """One kind of message."""

    def __init__(self) -> None:
        self._words, self._told_s, self._more = "", float("-inf"), 0

    def told(self, words: str, now_s: float) -> str:
        """Return what is to be logged of a message now, "" for nothing: other words at once, the same once a minute.

        Args:
            words: The message.
            now_s: By a clock that nobody sets.
        """
        if words == self._words and now_s < self._told_s + EVERY_S:
            self._more += 1
            return ""
        again = f" ({self._more} times more since it was last told)" if words == self._words and self._more else ""
        self._words, self._told_s, self._more = words, now_s, 0
        return words + again

    def end(self) -> None:
        """Note that it is over: the next message is told at once."""
        self._words, self._told_s, self._more = "", float("-inf"), 0
