"""Passes of the scheduler's loop that fail: told of in the log and by /readyz, and tried again less and less often."""

import logging

from ..model.error_words import words_of

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 5.0  # before the next pass, doubled with each failure; the lease lasts 15 s
REPEATED = 3  # in a row, from which on the scheduler is not ready


class TickFailures:
    """How often the loop has failed since it last came to its end."""

    def __init__(self) -> None:
        self._number, self._words = 0, ""

    def count(self, error: Exception) -> float:
        """Note a failure, and return after how many seconds to try again."""
        self._number += 1
        self._words = words_of(error)
        log.error("a tick failed: %s", self._words, exc_info=error)
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._number - 1, 16))

    def end(self) -> None:
        """Note that the loop has come to its end."""
        if self._number:
            log.warning("a tick has come to its end, after %d that failed: %s", self._number, self._words)
        self._number = 0

    @property
    def reason(self) -> str:
        """Why nothing is scheduled, "" while the loop works; its words are no secret."""
        if self._number < REPEATED:
            return ""
        kind = self._words.partition(":")[0].partition(" ")[0]
        return f"the scheduler's loop has failed {self._number} times in a row ({kind}); its log says why"
