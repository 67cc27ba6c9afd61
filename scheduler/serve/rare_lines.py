"""Lines of a log that anybody can cause, written once a minute at most."""

import logging
import time
from collections.abc import Callable

EVERY_S = 60.0


class Seldom(logging.Filter):
    """Lets each kind of line through once a minute, with the number of those that it held back before.

    Args:
        passed_s: By a clock that nobody sets.
    """

    def __init__(self, passed_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._passed_s = passed_s
        self._last: dict[str, tuple[float, int]] = {}  # time of the last line and lines held back since, by kind

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a line is to be written."""
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        at_s, kind = self._passed_s(), str(record.msg)
        last_s, held = self._last.get(kind, (float("-inf"), 0))
        if at_s - last_s < EVERY_S:
            self._last[kind] = last_s, held + 1
            return False
        self._last[kind] = at_s, 0
        if held:
            record.msg = f"{record.getMessage()} ({held} more times since the last such line)"
            record.args = ()
        return True
