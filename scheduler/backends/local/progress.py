"""What a job tells of itself, in a file that it may write as it likes."""

import json
import math

from ...files.durable import read_whole

_MOST_BYTES = 4096
_MOST_KEYS = 16


def read_progress(folder: int) -> dict[str, float]:
    """Return the finite numbers in an attempt's `progress.json`; none if it is not a small JSON object.

    Args:
        folder: Descriptor of the attempt's folder.
    """
    try:
        told = json.loads(read_whole(folder, "progress.json", _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(told, dict) or len(told) > _MOST_KEYS:
        return {}
    return {key: number for key, value in told.items() if (number := _finite(value)) is not None}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
