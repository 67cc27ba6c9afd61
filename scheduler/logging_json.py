"""The log of a scheduler: lines for people, or one JSON object a line for programs; what repeats is counted.

Source: docs/metrics.md.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

REPEATS_S = 60.0  # in which a line that is the same is only counted
MOST_LINES = 1000  # that are remembered


class LogFormat(StrEnum):
    """How a scheduler writes its log."""

    TEXT = "text"  # warnings for people
    JSON = "json"  # everything, for programs


class _Line:
    """A line that was written, and how often it would have been again since."""

    __slots__ = ("again", "at_s", "since")

    def __init__(self, at_s: float, since: str) -> None:
        self.at_s, self.since, self.again = at_s, since, 0


class Repeats(logging.Filter):
    """Lets a warning or an error through once a minute, with how often it came; and its traceback once.

    Args:
        clock_s: Time that only grows, in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._lines: OrderedDict[tuple[str, int, str], _Line] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is written."""
        if record.levelno < logging.WARNING:
            return True
        now_s, text = self._clock_s(), record.getMessage()
        key = (record.name, record.levelno, text)
        line = self._lines.pop(key, None)
        if line is None:
            self._lines[key] = _Line(now_s, _clock(record))
            if len(self._lines) > MOST_LINES:
                self._lines.popitem(last=False)
            return True
        self._lines[key] = line
        line.again += 1
        if now_s - line.at_s < REPEATS_S:
            return False
        record.msg, record.args = f"{text} ({line.again} times since {line.since})", ()
        record.exc_info = record.exc_text = None  # it was written the first time
        line.at_s, line.since, line.again = now_s, _clock(record), 0
        return True


def _clock(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created).astimezone():%H:%M}"


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_as_json() -> None:
    """Write the log of this process to standard error as JSON, from level INFO on."""
    lines = logging.StreamHandler()
    lines.setFormatter(JsonLines())
    logging.basicConfig(handlers=[lines], level=logging.INFO, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def count_repeats() -> None:
    """Let lines of this process' log that repeat be counted instead of written again and again."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repeats())
