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
_AGAIN_S = 0.1  # after which a lost wish comes again


class Terminated(SystemExit):
    """SIGTERM came. Code that takes any SystemExit for an error of a plug-in raises this one on."""


class _Wish:
    """A wish to end, which comes again where Python drops it: while an object is deleted, most often."""

    def __init__(self) -> None:
        self.came = 0  # number of its signal, 0 while there is none
        self.is_lost = False  # as Python dropped it, and it has not come again
        self._hook = sys.unraisablehook
        self._again: threading.Timer | None = None
        self._left = False
        self._asks = threading.Lock()  # of the timer and the end, never of a signal

    def come(self, number: int, frame: FrameType | None) -> None:
        """Take it from a signal."""
        self.came = number
        self.is_lost = False
        if self._again is not None:
            self._again.cancel()
        if _is_in_hook(frame):
            self._lose()  # Python would drop this one too, and perhaps has just dropped another
        else:
            self.end()

    def end(self) -> NoReturn:
        """Raise what ends the program."""
        raise KeyboardInterrupt if self.came == signal.SIGINT else Terminated(BY_SIGNAL + self.came)

    def take_dropped(self, dropped: "sys.UnraisableHookArgs") -> None:
        """Take an exception that Python drops."""
        of_wish = isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit)
        if not self.came or (self._left and of_wish):
            self._hook(dropped)
        elif not of_wish:
            log.debug("as a signal ended this: %r", dropped.exc_value)
        else:
            self._lose()

    def _lose(self) -> None:
        """Let it come again: soon, or as the block ends where no thread can be started."""
        if self.is_lost:
            return
        self.is_lost = True
        with suppress(RuntimeError):
            self._again = threading.Timer(_AGAIN_S, self._ask)
            self._again.daemon = True
            self._again.start()

    def _ask(self) -> None:
        with self._asks:
            if self.is_lost and not self._left:
                os.kill(os.getpid(), self.came)

    def leave(self) -> None:
        """Ask no more. Show again what Python drops, unless this came: what it left half made is deleted only now."""
        with self._asks:
            self._left = True
        if not self.came:
            sys.unraisablehook = self._hook


def _is_in_hook(frame: FrameType | None) -> bool:
    """Say whether a signal came while Python was dropping an exception; a flag would be set too late for some."""
    while frame is not None and frame.f_code is not _Wish.take_dropped.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM end what runs here as Ctrl-C does, and neither of the two be lost; off the main thread, do nothing.

    Python drops an exception that a signal raises while an object is deleted, and the program would go on: then the
    signal comes again. An object that was left half made fails as it is deleted, which tells people nothing: after a
    signal such failures are shown no more, to the end of the program. A signal that is ignored stays ignored.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        Terminated: At SIGTERM, a SystemExit with 128 and its number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets no other thread handle signals
        return
    wish = _Wish()
    sys.unraisablehook = wish.take_dropped
    before = {number: signal.signal(number, wish.come) for number in heeded()}
    try:
        yield
    finally:
        wish.leave()
        for number, handler in before.items():
            signal.signal(number, handler)
        if wish.is_lost:  # it goes before whatever else has ended the block
            wish.end()


def heeded() -> tuple[signal.Signals, ...]:
    """Return those of SIGINT and SIGTERM that are not ignored, as SIGINT is in the background of a script."""
    return tuple(it for it in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(it) is not signal.SIG_IGN)
