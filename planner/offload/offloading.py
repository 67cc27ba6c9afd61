"""Offloading of the state of one rank: a thread copies it out while nothing needs it, and back in time.

Source: SPEC P4.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from ...cluster.files.errors import CheckpointError
from ..memory import CopyTimes, OffloadMode, copy_back_begins_s, offload_pays, offload_reason, unhidden_copy_s
from . import places
from .places import FilePlace, OffloadPlace, PinnedPlace, Storage, Storages

ROOM_POLL_S = 0.01  # between two checks for room
REMEMBERED = 5  # copies each way by which the next are predicted


class _StateLocation(Enum):
    here = auto()
    leaving = auto()
    away = auto()
    closed = auto()


class StateMover:
    """One piece of state that is offloaded.

    Args:
        place: Where it goes.
        storages: Its memory. Both copies are made once, to measure them.

    Raises:
        OSError: If it cannot be copied.
    """

    def __init__(self, place: OffloadPlace, storages: Storages) -> None:
        self._place, self._storages = place, storages
        self._turn = threading.Condition()
        self._at, self._needed, self._back_at_s = _StateLocation.here, False, 0.0
        self._lost: Exception | None = None
        self.refused: OSError | None = None  # why the state could not be copied out, and stays
        self.trips = 0
        self._outs, self._backs = (deque[tuple[float, float]](maxlen=REMEMBERED) for _ in range(2))
        place.order_after_queued_work()
        self._outs.append(_time_copy(lambda: place.copy_out(storages)))
        self._backs.append(_time_copy(lambda: place.copy_back(storages)))
        self._thread = threading.Thread(target=self._run, name="longshore-offload", daemon=True)
        self._thread.start()

    @property
    def is_away(self) -> bool:
        """Whether its memory is released."""
        with self._turn:
            return self._at is _StateLocation.away

    @property
    def copies(self) -> CopyTimes:
        """Predicted times of the next copies, from the last ones."""
        (out_s, out_core_s), (back_s, back_core_s) = (
            map(median, zip(*copies, strict=True)) for copies in (self._outs, self._backs)
        )
        return CopyTimes(out_s, back_s, out_core_s, back_core_s)

    def copy_out(self, storages: Storages, back_at_s: float) -> None:
        """Offload the state; nothing may touch it until `wait_until_back` returns.

        Args:
            storages: Its memory; not more than the reserved room.
            back_at_s: When the copy back begins, by `time.perf_counter`.
        """
        with self._turn:
            if self._at is not _StateLocation.here or self.refused is not None:
                return
            self._place.order_after_queued_work()
            self._storages = storages
            self._at, self._needed, self._back_at_s = _StateLocation.leaving, False, back_at_s
            self._turn.notify_all()

    def set_back_at(self, back_at_s: float) -> None:
        """Set again when the copy back begins."""
        with self._turn:
            self._back_at_s = back_at_s
            self._turn.notify_all()

    def wait_until_back(self) -> float:
        """Wait until the state is in memory; return how long that took.

        Raises:
            CheckpointError: If it cannot be copied back.
        """
        began_s = time.perf_counter()
        with self._turn:
            self._needed = True
            self._turn.notify_all()
            while self._at in (_StateLocation.leaving, _StateLocation.away) and self._lost is None:
                self._turn.wait()
        if self._lost is not None:
            raise CheckpointError(f"offloaded state cannot be read back: {self._lost}") from self._lost
        return time.perf_counter() - began_s

    def close(self) -> None:
        """End the thread; the state stays in memory."""
        self.wait_until_back()
        with self._turn:
            self._at = _StateLocation.closed
            self._turn.notify_all()
        self._thread.join()
        self._place.close()

    def _run(self) -> None:
        try:
            self._make_trips()
        except Exception as error:  # CUDA reports errors of earlier kernels here, too
            self._lost = error
            self._mark_in_memory()  # no thread may wait for this one

    def _make_trips(self) -> None:
        while self._wait_for_copy_out():
            try:
                copy = _time_copy(lambda: self._place.copy_out(self._storages))
            except OSError as error:
                self.refused = error
                self._mark_in_memory()
                continue
            self._outs.append(copy)
            if not self._needed:
                self._release_memory()
                self._wait_to_copy_back()
                try:
                    self._backs.append(_time_copy(lambda: self._place.copy_back(self._storages)))
                except OSError as error:
                    self._lost = error
                self.trips += 1
            self._mark_in_memory()

    def _wait_for_copy_out(self) -> bool:
        with self._turn:
            while self._at is _StateLocation.here:
                self._turn.wait()
            return self._at is _StateLocation.leaving

    def _release_memory(self) -> None:
        """Release the memory; state whose memory cannot be released returns at once."""
        try:
            self._place.release(self._storages)
        except OSError as error:
            self.refused = error
        with self._turn:
            self._at = _StateLocation.away

    def _wait_to_copy_back(self) -> None:
        """Wait until it is time and there is room; if the state is needed, do not wait for room."""
        with self._turn:
            while not self._needed and self.refused is None:
                left_s = self._back_at_s - time.perf_counter()
                if left_s <= 0.0:
                    if self._place.has_room():
                        return
                    left_s = ROOM_POLL_S
                self._turn.wait(None if left_s == inf else left_s)

    def _mark_in_memory(self) -> None:
        with self._turn:
            self._at = _StateLocation.here
            self._turn.notify_all()


def _time_copy(copy: Callable[[], None]) -> tuple[float, float]:
    """Return the time of a copy, and what it kept a core busy."""
    began_s, core_s = time.perf_counter(), time.thread_time()
    copy()
    return time.perf_counter() - began_s, time.thread_time() - core_s


MIN_STORAGE_BYTES = 512  # smaller tensors, such as the count of steps, stay


def optimizer_storages(optimizer: torch.optim.Optimizer) -> list[Storage]:
    """Return the memory of an optimizer's state."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return _releasable_storages(value for value in values if isinstance(value, Tensor))


def parameter_storages(parameters: Sequence[nn.Parameter]) -> list[Storage]:
    """Return the memory of parameters."""
    return _releasable_storages(parameter.data for parameter in parameters)


def _releasable_storages(tensors: Iterable[Tensor]) -> list[Storage]:
    """Return each large storage once, if its memory may be released: shared memory may not."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return [storage for storage in found.values() if storage.nbytes() >= MIN_STORAGE_BYTES and storage.resizable()]


class PartMeasured(BaseModel, frozen=True, extra="forbid"):
    """Measurements of one part of a rank's state."""

    rank: int
    what: str
    size_bytes: int
    trips: int  # steps in which it was offloaded
    idle_s: float  # per step
    out_s: float
    back_s: float
    core_s: float  # of a core, for both copies
    unhidden_s: float  # predicted time that a trip adds to a step
    waited_s: float  # for the copy back, in the mean of trips


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """Options of offloading.

    Args:
        how: Whether state is offloaded.
        folder: Of the files, on a machine without GPUs.
        has_own_core: Whether copies run beside the computation, and do not take its core.
    """

    how: OffloadMode
    folder: Path
    has_own_core: bool


class MedianForecast:
    """The prediction of a time: the median of the last steps. The first is long, and is dropped after the second."""

    def __init__(self) -> None:
        self._seen = deque[float](maxlen=REMEMBERED)
        self._is_first = True

    def add(self, seconds: float) -> None:
        """Add a measured time."""
        if len(self._seen) == 1 and self._is_first:
            self._seen.clear()
            self._is_first = False
        self._seen.append(seconds)

    @property
    def seconds(self) -> float:
        """The predicted time; 0 if unknown."""
        return median(self._seen) if self._seen else 0.0


class _StatePart:
    """One part of the state: all of it is in memory, or all is offloaded."""

    def __init__(self, what: str, options: OffloadOptions, rank: int, print_line: Callable[[str], None]) -> None:
        self._what, self._options, self._rank = what, options, rank
        self._print_line: Callable[[str], object] = lambda text: print_line(f"rank {rank}: {text}")
        self._mover: StateMover | None = None
        self._size_bytes, self._waited_s, self._printed = 0, 0.0, set[bool]()
        self.away_bytes = 0  # while nothing needs it

    def reserve_room(self, storages: Storages, device: torch.device) -> None:
        """Reserve room; without it the state stays in memory."""
        self._size_bytes = sum(storage.nbytes() for storage in storages)
        if not storages:
            self._print_line(f"there is no {self._what} to offload")
            return
        try:
            self._mover = StateMover(_make_place(self._size_bytes, device, self._options.folder), storages)
        except OSError as error:
            self._stay_in_memory(error)

    def offload_if_it_pays(self, storages: Storages, idle_s: float) -> None:
        """Offload the state if that pays for an idle time; it stays out until `set_needed_at`."""
        if self._mover is None:
            return
        if self._mover.refused is not None:
            self._stay_in_memory(self._mover.refused)
            return
        if sum(storage.nbytes() for storage in storages) > self._size_bytes:
            self._stay_in_memory(OSError("it has grown"))
            return
        copies, how = self._mover.copies, self._options.how
        goes = offload_pays(idle_s, copies, how)
        if goes not in self._printed:
            self._printed.add(goes)
            self._print_line(offload_reason(self._what, self._size_bytes, idle_s, copies, how))
        self.away_bytes = self._size_bytes if goes else 0
        if goes:
            self._mover.copy_out(storages, inf)

    def set_needed_at(self, needed_at_s: float) -> None:
        """Set when the state is needed."""
        if self._mover is not None:
            self._mover.set_back_at(copy_back_begins_s(needed_at_s, self._mover.copies))

    def wait_until_back(self) -> None:
        """Wait until the state is in memory."""
        if self._mover is not None:
            self._waited_s += self._mover.wait_until_back()

    def measurements(self, idle_s: float, sync_s: float) -> PartMeasured | None:
        """Return measurements, if it could be offloaded at all; the sum of gradients ends the idle time."""
        if self._mover is None:
            return None
        copies, trips = self._mover.copies, self._mover.trips
        goes = offload_pays(idle_s, copies, self._options.how)
        own = self._options.has_own_core
        longer_s = unhidden_copy_s(sync_s, copies, both_in_wait=idle_s <= sync_s, has_own_core=own) if goes else 0.0
        return PartMeasured(
            rank=self._rank, what=self._what, size_bytes=self._size_bytes, trips=trips, idle_s=idle_s,
            out_s=copies.out_s, back_s=copies.back_s, core_s=copies.out_core_s + copies.back_core_s,
            waited_s=self._waited_s / max(1, trips),
            unhidden_s=longer_s,
        )  # fmt: skip

    def close(self) -> None:
        """Release the room elsewhere; the state stays in memory."""
        mover, self._mover, self.away_bytes = self._mover, None, 0
        if mover is not None:
            mover.close()

    def _stay_in_memory(self, error: OSError) -> None:
        size = f"{self._size_bytes / 1e6:.1f} MB"
        self._print_line(f"{self._what} ({size}) stays in memory: {error.strerror or error}; training continues")
        self.close()


def _make_place(size_bytes: int, device: torch.device, folder: Path) -> OffloadPlace:
    return PinnedPlace(size_bytes, device) if device.type == "cuda" else FilePlace(size_bytes, folder)


class Offloading:
    """The offloading of a rank's state, step by step.

    Args:
        options: How to offload.
        rank: Its number.
        optimizer: Its state is idle between two updates.
        parameters: They are idle while gradients are summed; none on a stage that trains nothing.
        print_line: Prints a line.
    """

    def __init__(
        self,
        options: OffloadOptions,
        rank: int,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        print_line: Callable[[str], None],
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._device = parameters[0].device if parameters else torch.device("cpu")
        if self._device.type == "cpu":
            places.limit_heap()
        part = partial(_StatePart, options=options, rank=rank, print_line=print_line)
        self._state, self._weights = part("optimizer state"), part("parameters")
        self._idle, self._sync = MedianForecast(), MedianForecast()
        self._is_reserved = False
        self._idle_since_s = self._sync_since_s = time.perf_counter()

    def begin_step(self) -> None:
        """Record the time, before there is any state."""
        if not self._is_reserved:
            self._idle_since_s = time.perf_counter()

    def begin_sync(self) -> None:
        """Gradients are about to be summed: parameters are idle until that has ended.

        The optimizer's state returns from here on, and not sooner: activations are released by now.
        """
        now_s = self._sync_since_s = time.perf_counter()
        sync_s = self._sync.seconds
        if sync_s:
            self._weights.offload_if_it_pays(parameter_storages(self._parameters), sync_s)
            self._weights.set_needed_at(now_s + sync_s)
        self._state.set_needed_at(now_s + sync_s)

    def end_sync(self) -> None:
        """Gradients are summed: return when all state is in memory."""
        now_s = time.perf_counter()
        self._idle.add(now_s - self._idle_since_s)
        self._sync.add(now_s - self._sync_since_s)
        self._state.wait_until_back()
        self._weights.wait_until_back()

    def end_update(self) -> None:
        """Parameters are updated: the optimizer's state is idle until the next sum has ended."""
        if not self._is_reserved:
            self._is_reserved = True
            self._state.reserve_room(optimizer_storages(self._optimizer), self._device)
            self._weights.reserve_room(parameter_storages(self._parameters), self._device)
        self._idle_since_s = time.perf_counter()
        self._state.offload_if_it_pays(optimizer_storages(self._optimizer), self._idle.seconds)

    @property
    def away_bytes(self) -> int:
        """State that is offloaded in a step."""
        return self._state.away_bytes + self._weights.away_bytes

    def measurements(self) -> list[PartMeasured]:
        """Return the measurements of each part."""
        sync_s = self._sync.seconds
        found = [self._state.measurements(self._idle.seconds, sync_s), self._weights.measurements(sync_s, sync_s)]
        return [part for part in found if part is not None]

    def close(self) -> None:
        """Bring all state back, and end."""
        self._state.close()
        self._weights.close()
