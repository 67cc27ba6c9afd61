"""Logs for programs: one JSON object a line.

Source: docs/metrics.md.
"""

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum


class LogFormat(StrEnum):
    """How a scheduler writes its log."""

    TEXT = "text"  # warnings for people
    JSON = "json"  # everything, for programs


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
