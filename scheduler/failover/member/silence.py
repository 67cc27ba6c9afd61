"""For how long a member has heard nothing from its coordinator.

Source: SPEC F8 to F10.
"""

import time

from ..wire import BEAT_S, SILENCE_S

LONGEST_LOOK_S = 2.0 * BEAT_S  # between two looks; a process that took longer stood still


class Silence:
    """Counts the time in which something could have been heard.

    A machine may stand still for longer than a member may be silent: it is suspended, or moved to another host. Its
    processes hear nothing meanwhile, and yet nobody was silent. They hear what was said as soon as they go on.

    Args:
        first_s: How long the first silence may last, in place of SILENCE_S.
    """

    def __init__(self, first_s: float) -> None:
        self._limit_s, self._silent_s, self._looked_s = first_s, 0.0, time.monotonic()

    @property
    def is_too_long(self) -> bool:
        """Whether it had lasted for too long at the last look."""
        return self._silent_s > self._limit_s

    def look(self) -> float:
        """Return how long it has lasted, in seconds. Look once a beat: of a longer time only a part counts."""
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._silent_s

    def end(self) -> None:
        """Take note that something was heard."""
        self._limit_s, self._silent_s = SILENCE_S, 0.0
