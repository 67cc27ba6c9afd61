"""The state of one rank, put away where that pays: of the optimizer between updates, parameters during sums.

Source: SPEC P4.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from ..model.break_even import Offload, back_at_s, pays, reason, unhidden_s
from . import heap
from .moving import Mover
from .pinned import PinnedPlace
from .places import FilePlace, Place, Storages
from .state import of_optimizer, of_parameters

REMEMBERED = 5  # steps by which the next is predicted


class PartMeasured(BaseModel):
    """What became of one part of a rank's state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    what: str
    size_bytes: int
    trips: int  # steps in which it was out
    idle_s: float  # for which nothing needs it in a step
    out_s: float
    back_s: float
    core_s: float  # for which both copies keep a core busy
    unhidden_s: float  # by which a trip makes a step longer, predicted
    waited_s: float  # for it to come back, in the mean of trips


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for.

    Args:
        how: Whether state is put away.
        folder: Of the files, on a machine without GPUs.
        has_own_core: Whether copies run beside the computation, and do not take its core.
    """

    how: Offload
    folder: Path
    has_own_core: bool


class Expected:
    """A time that is predicted by those of the last steps; the very first is long, and counts until others come."""

    def __init__(self) -> None:
        self._seen = deque[float](maxlen=REMEMBERED)
        self._is_first = True

    def add(self, seconds: float) -> None:
        """Take in another one."""
        if len(self._seen) == 1 and self._is_first:
            self._seen.clear()
            self._is_first = False
        self._seen.append(seconds)

    @property
    def seconds(self) -> float:
        """What the next is expected to be; 0 if nothing is known."""
        return median(self._seen) if self._seen else 0.0


class _Part:
    """One part of the state: all of it is in memory, or all is out."""

    def __init__(self, what: str, wish: Wish, rank: int, say: Callable[[str], None]) -> None:
        self._what, self._wish, self._rank = what, wish, rank
        self._say: Callable[[str], object] = lambda text: say(f"rank {rank}: {text}")
        self._mover: Mover | None = None
        self._size_bytes, self._waited_s, self._told = 0, 0.0, set[bool]()
        self.away_bytes = 0  # while nothing needs it

    def reserve(self, storages: Storages, device: torch.device) -> None:
        """Reserve room; without it the state stays in memory."""
        self._size_bytes = sum(it.nbytes() for it in storages)
        if not storages:
            self._say(f"there is no {self._what} to put away")
            return
        try:
            self._mover = Mover(_place(self._size_bytes, device, self._wish.folder), storages)
        except OSError as error:
            self._stop(error)

    def leave(self, storages: Storages, idle_s: float) -> None:
        """Let the state go if that pays, where nothing needs it for so long; until `expect` it stays out."""
        if self._mover is None:
            return
        if self._mover.refused is not None:
            self._stop(self._mover.refused)
            return
        if sum(it.nbytes() for it in storages) > self._size_bytes:
            self._stop(OSError("it has grown"))
            return
        copies, how = self._mover.copies, self._wish.how
        goes = pays(idle_s, copies, how)
        if goes not in self._told:
            self._told.add(goes)
            self._say(reason(self._what, self._size_bytes, idle_s, copies, how))
        self.away_bytes = self._size_bytes if goes else 0
        if goes:
            self._mover.leave(storages, inf)

    def expect(self, needed_at_s: float) -> None:
        """Say when the state is needed."""
        if self._mover is not None:
            self._mover.expect(back_at_s(needed_at_s, self._mover.copies))

    def need(self) -> None:
        """Wait until the state is in memory."""
        if self._mover is not None:
            self._waited_s += self._mover.need()

    def measured(self, idle_s: float, sync_s: float) -> PartMeasured | None:
        """Return what became of it, if it could be put away at all; of an idle time the last part is the sum's."""
        if self._mover is None:
            return None
        copies, trips = self._mover.copies, self._mover.trips
        goes = pays(idle_s, copies, self._wish.how)
        own = self._wish.has_own_core
        longer_s = unhidden_s(sync_s, copies, both_in_wait=idle_s <= sync_s, has_own_core=own) if goes else 0.0
        return PartMeasured(
            rank=self._rank, what=self._what, size_bytes=self._size_bytes, trips=trips, idle_s=idle_s,
            out_s=copies.out_s, back_s=copies.back_s, core_s=copies.out_core_s + copies.back_core_s,
            waited_s=self._waited_s / max(1, trips),
            unhidden_s=longer_s,
        )  # fmt: skip

    def close(self) -> None:
        """Give up the room elsewhere; the state stays in memory."""
        mover, self._mover, self.away_bytes = self._mover, None, 0
        if mover is not None:
            mover.close()

    def _stop(self, error: OSError) -> None:
        size = f"{self._size_bytes / 1e6:.1f} MB"
        self._say(f"{self._what} ({size}) stays in memory: {error.strerror or error}; training goes on")
        self.close()


def _place(size: int, device: torch.device, folder: Path) -> Place:
    return PinnedPlace(size, device) if device.type == "cuda" else FilePlace(size, folder)


class Offloading:
    """What of a rank's state is put away, step by step.

    Args:
        wish: What is asked for.
        rank: Who it is.
        optimizer: Whose state nothing needs between two updates.
        parameters: Which nothing needs while gradients are summed.
        say: Prints a line.
    """

    def __init__(
        self,
        wish: Wish,
        rank: int,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        say: Callable[[str], None],
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        if parameters[0].device.type == "cpu":
            heap.keep_little()
        part = partial(_Part, wish=wish, rank=rank, say=say)
        self._state, self._weights = part("optimizer state"), part("parameters")
        self._idle, self._sync = Expected(), Expected()
        self._is_reserved = False
        self._idle_since_s = self._sync_since_s = time.perf_counter()

    def step_begins(self) -> None:
        """Take the time, before there is any state."""
        if not self._is_reserved:
            self._idle_since_s = time.perf_counter()

    def sync_begins(self) -> None:
        """Gradients are about to be summed: nothing needs parameters until that has ended.

        The optimizer's state comes back from here on, and not sooner: what was kept for the way back is gone by now.
        """
        now_s = self._sync_since_s = time.perf_counter()
        sync_s = self._sync.seconds
        if sync_s:
            self._weights.leave(of_parameters(self._parameters), sync_s)
            self._weights.expect(now_s + sync_s)
        self._state.expect(now_s + sync_s)

    def sync_ended(self) -> None:
        """Gradients are summed: return when all state is in memory."""
        now_s = time.perf_counter()
        self._idle.add(now_s - self._idle_since_s)
        self._sync.add(now_s - self._sync_since_s)
        self._state.need()
        self._weights.need()

    def update_ended(self) -> None:
        """Parameters are updated: nothing needs the optimizer's state until the next sum has ended."""
        if not self._is_reserved:
            self._is_reserved = True
            device = self._parameters[0].device
            self._state.reserve(of_optimizer(self._optimizer), device)
            self._weights.reserve(of_parameters(self._parameters), device)
        self._idle_since_s = time.perf_counter()
        self._state.leave(of_optimizer(self._optimizer), self._idle.seconds)

    @property
    def away_bytes(self) -> int:
        """State that is put away in a step."""
        return self._state.away_bytes + self._weights.away_bytes

    def measured(self) -> list[PartMeasured]:
        """Return what became of each part."""
        sync_s = self._sync.seconds
        found = [self._state.measured(self._idle.seconds, sync_s), self._weights.measured(sync_s, sync_s)]
        return [it for it in found if it is not None]

    def close(self) -> None:
        """Bring all back, and end."""
        self._state.close()
        self._weights.close()
