"""How Ctrl-C and SIGTERM end a program: as an exception of its main thread, so that `finally` keeps what it keeps."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

log = logging.getLogger(__name__)

BY_SIGNAL = 128  # exit status of what a signal has ended, as of a shell: its number is added
_AGAIN_S = 0.1  # after which a lost wish comes again


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM end what runs here as Ctrl-C does, and neither of the two be lost; off the main thread, do nothing.

    Python drops an exception that a signal raises while an object is deleted, and the program would go on: then the
    signal comes again. An object that was left half made fails as it is deleted, which tells people nothing. Ctrl-C
    stays ignored where it is.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        SystemExit: At SIGTERM, with 128 and its number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets nobody else handle signals
        return
    came = 0

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = number
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(BY_SIGNAL + number)

    def take_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        if not came:
            hook(dropped)
        elif isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit):
            with suppress(RuntimeError):  # the interpreter is at its end
                again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), came))
                again.daemon = True
                again.start()
        else:
            log.debug("as a signal ended this: %r", dropped.exc_value)

    hook, sys.unraisablehook = sys.unraisablehook, take_dropped
    stops = [signal.SIGTERM, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else [])]
    before = {number: signal.signal(number, end) for number in stops}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if not came:  # else what the exception holds is deleted only now
            sys.unraisablehook = hook
