"""Signals by which people ask a command to end, at any moment of its life.

Python's own answer to Ctrl-C is a traceback of whatever runs just then. Standard library only, and little of it: it is
imported before all else.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_at_once_if_asked() -> None:
    """End this process by a line and its status, if it is asked to while it has started nothing yet."""

    def end(number: int, _frame: FrameType | None) -> None:
        os.write(2, f"longshore.ring: {told(number)}\n".encode())
        os._exit(128 + number)

    on_wish(end)


def on_wish(do: Callable[[int, FrameType | None], object]) -> None:
    """Call something with the signal's number from now on, to the end of this process."""
    for number in SIGNALS:
        signal.signal(number, do)


def told(number: int) -> str:
    """Return what people read of a wish to end."""
    return f"{signal.Signals(number).name}: all members are ended"
