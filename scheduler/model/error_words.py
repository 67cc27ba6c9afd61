"""Errors in words."""

import traceback
from pathlib import PurePath

MOST_WORDS = 300  # characters


def words_of(error: BaseException) -> str:
    """Return what an error is in one line: its class, its words, and where it was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    words = f"{type(error).__name__}{': ' if lines else ''}{lines[0].strip()[:MOST_WORDS] if lines else ''}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{words} ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else words
