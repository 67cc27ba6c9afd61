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


class _Wish:
    """A wish to end, which comes again where Python drops it."""

    def __init__(self) -> None:
        self.came = 0  # number of its signal, 0 while there is none
        self._hook = sys.unraisablehook
        self._again: threading.Timer | None = None

    def come(self, number: int, _frame: FrameType | None) -> None:
        """Take it from a signal."""
        self.came = number
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(BY_SIGNAL + number)

    def take_dropped(self, dropped: "sys.UnraisableHookArgs") -> None:
        """Take an exception that Python drops."""
        if not self.came:
            self._hook(dropped)
        elif not isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit):
            log.debug("as a signal ended this: %r", dropped.exc_value)
        elif self._again is None:
            with suppress(RuntimeError):  # the interpreter is at its end
                self._again = threading.Timer(_AGAIN_S, self._ask)
                self._again.daemon = True
                self._again.start()

    def _ask(self) -> None:
        self._again = None
        os.kill(os.getpid(), self.came)

    def leave(self) -> None:
        """Ask no more, and let Python tell what it drops unless this has come: only now is deleted what it left."""
        if self._again is not None:
            self._again.cancel()
        if not self.came:
            sys.unraisablehook = self._hook


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
    wish = _Wish()
    stops = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        stops.append(signal.SIGINT)
    sys.unraisablehook = wish.take_dropped
    before = {number: signal.signal(number, wish.come) for number in stops}
    try:
        yield
    finally:
        wish.leave()
        for number, handler in before.items():
            signal.signal(number, handler)
