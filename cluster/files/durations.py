"""Durations as people write them: 30s, 15m, 2h, 3d, 1h30m."""

import re

UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = rf"({_NUMBER})(ms|s|m|h|d|w)"
_DURATION = re.compile(rf"(?:{_PART})+")


def seconds_of(text: str) -> float:
    """Return the seconds that a duration has.

    Raises:
        ValueError: If it is none, with how one is written.
    """
    if _DURATION.fullmatch(text):
        return sum(float(number) * UNITS_S[unit] for number, unit in re.findall(_PART, text))
    if re.fullmatch(_NUMBER, text):
        raise ValueError(f"{text!r} has no unit; write {text}s, {text}m, {text}h or {text}d")
    raise ValueError(f"{text!r} is no duration; write 30s, 15m, 2h, 3d, or several together as in 1h30m")


def duration_text(duration_s: float) -> str:
    """Return a duration in its two largest units, such as 12s, 3m 20s, 2h 05m or 4d 07h."""
    whole_s = max(0, int(duration_s))
    minutes, seconds = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"


def exact_duration_text(duration_s: float) -> str:
    """Return a duration in full: 2h 05m, but 2h 5m 30s and 90.5s."""
    short = duration_text(duration_s)
    if seconds_of(short.replace(" ", "")) == duration_s:
        return short
    left_s, parts = duration_s, []
    for unit in ("d", "h", "m"):
        count, left_s = divmod(left_s, UNITS_S[unit])
        parts += [f"{count:.0f}{unit}"] if count else []
    return " ".join([*parts, *([f"{left_s:g}s"] if left_s else [])])
