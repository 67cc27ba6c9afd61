"""A circuit breaker: a policy that misses again and again is left alone for a while."""

import time

MOST_IN_A_ROW = 3  # misses of a process that goes on; one that is over rests at once
FIRST_REST_S, LONGEST_REST_S = 5.0, 600.0  # doubled with each rest
FORGIVEN_AFTER = 100  # answers in a row, after which the next rest is the first again


class Breaker:
    """Counts misses and answers, and says when a policy rests.

    Args:
        first_rest_s: How long the first time; then twice as long with each rest.
    """

    def __init__(self, *, first_rest_s: float = FIRST_REST_S) -> None:
        self._first_rest_s = first_rest_s
        self._misses, self._answers, self._rests = 0, 0, 0
        self._rest_until = 0.0  # of `time.monotonic`

    @property
    def is_open(self) -> bool:
        """Whether the policy rests."""
        return time.monotonic() < self._rest_until

    def answered(self) -> None:
        """Note an answer of use."""
        self._misses = 0
        self._answers += 1
        if self._answers == FORGIVEN_AFTER:
            self._rests = 0

    def missed(self, *, is_over: bool) -> bool:
        """Note a miss; return whether the policy is to rest.

        Args:
            is_over: Whether its process is.
        """
        self._misses += 1
        self._answers = 0
        if not is_over and self._misses < MOST_IN_A_ROW:
            return False
        rest_s = min(LONGEST_REST_S, self._first_rest_s * 2.0**self._rests)
        self._misses, self._rests, self._rest_until = 0, min(self._rests + 1, 20), time.monotonic() + rest_s
        return True

    def close(self) -> None:
        """End a rest, for there is a new version of the policy."""
        self._misses, self._rests, self._rest_until = 0, 0, 0.0
