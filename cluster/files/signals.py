"""How Ctrl-C and SIGTERM end a program: as an exception of its main thread, so that `finally` keeps what it keeps."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

log = logging.getLogger(__name__)

BY_SIGNAL = 128  # exit status of what a signal has ended, as of a shell: its number is added
_RESEND_S = 0.1  # after which a lost signal is sent again


class SigtermExit(SystemExit):
    """SIGTERM came. Code that takes any SystemExit for an error of a plug-in raises this one on."""


class _StopRequest:
    """A request to stop by a signal, sent again where Python drops it: while an object is deleted, most often."""

    def __init__(self) -> None:
        self.number = 0  # of its signal, 0 while there is none
        self.is_lost = False  # as Python dropped it, and it has not been sent again
        self._hook = sys.unraisablehook
        self._resend: threading.Timer | None = None
        self._closed = False
        self._sending = threading.Lock()  # of the timer and the end, never of a signal

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle its signal."""
        self.number = number
        self.is_lost = False
        if self._resend is not None:
            self._resend.cancel()
        if _is_in_hook(frame):
            self._send_again_later()  # Python would drop this one too, and perhaps has just dropped another
        else:
            self.stop()

    def stop(self) -> NoReturn:
        """Raise what ends the program."""
        raise KeyboardInterrupt if self.number == signal.SIGINT else SigtermExit(BY_SIGNAL + self.number)

    def take_dropped(self, dropped: "sys.UnraisableHookArgs") -> None:
        """Handle an exception that Python drops."""
        of_request = isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit)
        if not self.number or (self._closed and of_request):
            self._hook(dropped)
        elif not of_request:
            log.debug("as a signal ended this: %r", dropped.exc_value)
        else:
            self._send_again_later()

    def _send_again_later(self) -> None:
        """Have the signal sent again: soon, or as the block ends where no thread can be started."""
        if self.is_lost:
            return
        self.is_lost = True
        with suppress(RuntimeError):
            self._resend = threading.Timer(_RESEND_S, self._send_signal)
            self._resend.daemon = True
            self._resend.start()

    def _send_signal(self) -> None:
        with self._sending:
            if self.is_lost and not self._closed:
                os.kill(os.getpid(), self.number)

    def close(self) -> None:
        """Send no more. Show again what Python drops, unless a signal came: what it left half made is deleted later."""
        with self._sending:
            self._closed = True
        if not self.number:
            sys.unraisablehook = self._hook


def _is_in_hook(frame: FrameType | None) -> bool:
    """Return whether a signal came while Python was dropping an exception; a flag would be set too late for some."""
    while frame is not None and frame.f_code is not _StopRequest.take_dropped.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM end what runs here as Ctrl-C does, and neither of the two be lost; off the main thread, do nothing.

    Python drops an exception that a signal raises while an object is deleted, and the program would go on: then the
    signal comes again. An object that was left half made fails as it is deleted, which is of no use to people: after
    a signal such failures are not shown any more. A signal that is ignored stays ignored.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        SigtermExit: At SIGTERM, a SystemExit with 128 and its number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets no other thread handle signals
        return
    request = _StopRequest()
    sys.unraisablehook = request.take_dropped
    before = {number: signal.signal(number, request.receive) for number in handled_signals()}
    try:
        yield
    finally:
        request.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        if request.is_lost:  # it goes before what else has ended the block
            request.stop()


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return those of SIGINT and SIGTERM that are not ignored, as SIGINT is in the background of a script."""
    return tuple(number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN)
