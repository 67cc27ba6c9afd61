"""State that is moved out and back by a thread of its own, while others compute.

Source: SPEC P4.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from math import inf
from statistics import median
from typing import NamedTuple

from ...cluster.files.errors import CheckpointError
from ..model.break_even import Copies
from .places import Place, Storages

LOOK_S = 0.01  # between looks for room
REMEMBERED = 5  # copies each way by which the next are predicted


class _At(Enum):
    here = auto()
    leaving = auto()
    away = auto()
    closed = auto()


class _Copy(NamedTuple):
    took_s: float
    core_s: float


class Mover:
    """One piece of state that comes and goes.

    Args:
        place: Where it goes.
        storages: Its memory. Both copies are tried out at once, to measure them.

    Raises:
        OSError: If it cannot be copied.
    """

    def __init__(self, place: Place, storages: Storages) -> None:
        self._place, self._storages = place, storages
        self._turn = threading.Condition()
        self._at, self._needed, self._back_at_s = _At.here, False, 0.0
        self._lost: Exception | None = None
        self.refused: OSError | None = None  # why the state could not be copied out; it has stayed then
        self.trips = 0
        self._outs, self._backs = (deque[_Copy](maxlen=REMEMBERED) for _ in range(2))
        place.mark()
        self._outs.append(_timed(lambda: place.copy_out(storages)))
        self._backs.append(_timed(lambda: place.copy_back(storages)))
        self._thread = threading.Thread(target=self._run, name="longshore-offload", daemon=True)
        self._thread.start()

    @property
    def is_away(self) -> bool:
        """Whether its memory is given back."""
        with self._turn:
            return self._at is _At.away

    @property
    def copies(self) -> Copies:
        """What the next copies take, by those that were made."""
        outs, backs = (list(zip(*them, strict=True)) for them in (self._outs, self._backs))
        return Copies(median(outs[0]), median(backs[0]), median(outs[1]), median(backs[1]))

    def leave(self, storages: Storages, back_at_s: float) -> None:
        """Let the state go; nobody may touch it until `need` returns.

        Args:
            storages: Its memory; not more than there is room for.
            back_at_s: When the copy back begins, by `time.perf_counter`.
        """
        with self._turn:
            if self._at is not _At.here or self.refused is not None:
                return
            self._place.mark()
            self._storages = storages
            self._at, self._needed, self._back_at_s = _At.leaving, False, back_at_s
            self._turn.notify_all()

    def expect(self, back_at_s: float) -> None:
        """Say anew when the copy back begins."""
        with self._turn:
            self._back_at_s = back_at_s
            self._turn.notify_all()

    def need(self) -> float:
        """Wait until the state is in memory; return how long that took.

        Raises:
            CheckpointError: If it cannot be read back.
        """
        began_s = time.perf_counter()
        with self._turn:
            self._needed = True
            self._turn.notify_all()
            while self._at in (_At.leaving, _At.away) and self._lost is None:
                self._turn.wait()
        if self._lost is not None:
            raise CheckpointError(f"state that was put away cannot be read back: {self._lost}") from self._lost
        return time.perf_counter() - began_s

    def close(self) -> None:
        """End the thread; the state stays in memory."""
        self.need()
        with self._turn:
            self._at = _At.closed
            self._turn.notify_all()
        self._thread.join()
        self._place.close()

    def _run(self) -> None:
        try:
            self._make_trips()
        except Exception as error:  # of any kernel before, which CUDA tells here too: nobody may wait for this thread
            self._lost = error
            self._arrive()

    def _make_trips(self) -> None:
        while self._wait_for_leave():
            try:
                copy = _timed(lambda: self._place.copy_out(self._storages))
            except OSError as error:
                self.refused = error
                self._arrive()
                continue
            self._outs.append(copy)
            if not self._needed:
                self._release()
                self._wait_for_return()
                try:
                    self._backs.append(_timed(lambda: self._place.copy_back(self._storages)))
                except OSError as error:
                    self._lost = error
                self.trips += 1
            self._arrive()

    def _wait_for_leave(self) -> bool:
        with self._turn:
            while self._at is _At.here:
                self._turn.wait()
            return self._at is _At.leaving

    def _release(self) -> None:
        """Give the memory back; what cannot be given back, comes back at once."""
        try:
            self._place.release(self._storages)
        except OSError as error:
            self.refused = error
        with self._turn:
            self._at = _At.away

    def _wait_for_return(self) -> None:
        """Wait until it is time and there is room; who needs the state does not wait for room."""
        with self._turn:
            while not self._needed and self.refused is None:
                left_s = self._back_at_s - time.perf_counter()
                if left_s <= 0.0:
                    if self._place.has_room():
                        return
                    left_s = LOOK_S
                self._turn.wait(None if left_s == inf else left_s)

    def _arrive(self) -> None:
        with self._turn:
            self._at = _At.here
            self._turn.notify_all()


def _timed(copy: Callable[[], None]) -> _Copy:
    began_s, core_s = time.perf_counter(), time.thread_time()
    copy()
    return _Copy(time.perf_counter() - began_s, time.thread_time() - core_s)
