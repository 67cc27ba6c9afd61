"""The log of a scheduler: lines for people or for programs, repeats counted, and the last lines of an output.

Source: docs/operate.md, Metrics.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

SUMMARY_EVERY_S = 60.0


class Repeats:
    """One kind of message."""

    def __init__(self) -> None:
        self._words, self._logged_s, self._more = "", float("-inf"), 0

    def message_to_log(self, words: str, now_s: float) -> str:
        """Return what is to be logged of a message now, "" for nothing: other words at once, the same once a minute.

        Args:
            words: The message.
            now_s: By a monotonic clock.
        """
        if words == self._words and now_s < self._logged_s + SUMMARY_EVERY_S:
            self._more += 1
            return ""
        again = f" ({self._more} times more since the last line)" if words == self._words and self._more else ""
        self._words, self._logged_s, self._more = words, now_s, 0
        return words + again

    def forget(self) -> None:
        """Note that the condition is over: the next message is logged at once."""
        self._words, self._logged_s, self._more = "", float("-inf"), 0


Read = Callable[[int, int], tuple[bytes, int]]  # offset and most bytes to bytes and the offset after them

BLOCK_BYTES = 64 << 10


def offset_near_end(read: Read) -> int:
    """Return an offset at most `BLOCK_BYTES` before the end of an output."""
    low, high = 0, BLOCK_BYTES
    while read(high, 1)[0]:
        low, high = high, 2 * high
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if read(middle, 1)[0] else (low, middle)
    return low


def tail_offset(read: Read, lines: int, most_bytes: int) -> int:
    """Return the offset at which the last lines of an output begin.

    Args:
        read: Reads the output.
        lines: How many; fewer where they are longer than the bytes.
        most_bytes: How long they are at most.
    """
    if lines == 0:
        return _end_offset(read)
    end, size = _end_offset(read), BLOCK_BYTES
    while True:
        size = min(size, most_bytes)
        data, after = read(max(0, end - size), min(size, end))
        begin = after - len(data)  # behind a hole it is later than what was asked for
        whole = data.removesuffix(b"\n")
        if whole.count(b"\n") >= lines:
            return begin + len(whole.rsplit(b"\n", lines)[0]) + 1  # at once: there may be a million lines
        if size >= min(end, most_bytes):
            return begin if size >= end else begin + data.find(b"\n") + 1
        size *= 4


def _end_offset(read: Read) -> int:
    offset = offset_near_end(read)
    while (part := read(offset, 4 * BLOCK_BYTES))[0]:
        offset = part[1]
    return offset


REPEATS_S = 60.0  # in which a line that is the same is only counted
MAX_REMEMBERED_LINES = 1000  # that are remembered


class LogFormat(StrEnum):
    """How a scheduler writes its log."""

    TEXT = "text"  # warnings for people
    JSON = "json"  # everything, for programs


class _Line:
    """A line that was written, and how often it would have been again since."""

    __slots__ = ("again", "at_s", "since")

    def __init__(self, at_s: float, since: str) -> None:
        self.at_s, self.since, self.again = at_s, since, 0


class RepeatFilter(logging.Filter):
    """Lets a warning or an error through once a minute, with how often it came; and its traceback once.

    Args:
        clock_s: Time that only grows, in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._lines: OrderedDict[tuple[str, int, str], _Line] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        if record.levelno < logging.WARNING:
            return True
        now_s, text = self._clock_s(), record.getMessage()
        key = (record.name, record.levelno, text)
        line = self._lines.pop(key, None)
        if line is None:
            self._lines[key] = _Line(now_s, _local_time(record))
            if len(self._lines) > MAX_REMEMBERED_LINES:
                self._lines.popitem(last=False)
            return True
        self._lines[key] = line
        line.again += 1
        if now_s - line.at_s < REPEATS_S:
            return False
        record.msg, record.args = f"{text} ({line.again} times since {line.since})", ()
        record.exc_info = record.exc_text = None  # it was written the first time
        line.at_s, line.since, line.again = now_s, _local_time(record), 0
        return True


def _local_time(record: logging.LogRecord) -> str:
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


def add_repeat_filters() -> None:
    """Let lines of this process' log that repeat be counted instead of written again and again."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatFilter())
