"""Moments as people read them, in the time zone of whoever asks."""

from datetime import datetime
from typing import Any


def moment(at_s: float | None) -> str:
    """Return a moment to the minute, `-` for none; the year stands in place of the time if it is another one."""
    if at_s is None:
        return "-"
    at = datetime.fromtimestamp(at_s).astimezone()
    return at.strftime("%b %d %H:%M" if at.year == datetime.now().astimezone().year else "%b %d  %Y")


def clock(at_s: float) -> str:
    """Return a moment to the second."""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ended_s(job: dict[str, Any]) -> float | None:
    """Return when a job ended, None if it has not."""
    at_s: float | None = job["ended_s"]
    return at_s


def ran_s(job: dict[str, Any], now_s: float) -> float | None:
    """Return how long the last attempt of a job has run or ran, None if none of its ranks were seen."""
    if job["started_s"] is None:
        return None
    until_s = job["released_s"]
    return float((now_s if until_s is None else until_s) - job["started_s"])
