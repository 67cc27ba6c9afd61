"""Pinned memory against a twin of CUDA's streams, in which an operation knows what it comes behind. No GPU is here.

The twin omits bytes, time and memory: it shows whether a copy may meet kernels that are still under way.
"""

import gc
import math
import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from longshore.cluster.files.errors import CheckpointError
from longshore.planner.offload import places
from longshore.planner.offload.offloading import StateMover

PATIENCE_S = 20.0


class Stream:
    def __init__(self, cuda: "Cuda") -> None:
        self.cuda = cuda
        self.behind: set[str] = set()  # what has ended before the next operation begins


class Event:
    def __init__(self, *, blocking: bool = False) -> None:
        self._behind: set[str] = set()
        self._blocking = blocking

    def record(self, stream: Stream) -> None:
        self._behind, self._cuda = set(stream.behind), stream.cuda

    def wait(self, stream: Stream) -> None:
        stream.behind |= self._behind

    def synchronize(self) -> None:
        assert self._blocking, "the core would be busy"
        self._cuda.may_break("synchronize")


class Storage:
    """Memory of the GPU."""

    def __init__(self, cuda: "Cuda") -> None:
        self._cuda, self.size = cuda, 4096

    def nbytes(self) -> int:
        return self.size

    def resize_(self, size: int) -> None:
        self._cuda.may_break("take memory" if size else "give memory")
        self.size, self.taken_on = size, self._cuda.current


class Cuda:
    """What is used of `torch`."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.computes = self.current = Stream(self)
        self.copies: list[set[str]] = []  # behind what each began
        self.breaks = ""  # what fails, and all that is asked after it: so it is with errors of CUDA
        self.broken = False
        self.pinned, self.refuses = dict[int, int](), 0
        self.cuda = SimpleNamespace(
            Stream=lambda _: Stream(self), Event=Event, current_stream=lambda _: self.current, stream=self.on,
            device=lambda _: nullcontext(), cudart=lambda: self, check_error=self.check_error,
            mem_get_info=self.free, memory_reserved=lambda _: 0, memory_allocated=lambda _: 0,
        )  # fmt: skip

    def may_break(self, asked: str) -> None:
        self.broken |= asked == self.breaks
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def free(self, _: object) -> tuple[int, int]:
        self.may_break("look for room")
        return 1 << 30, 1 << 30

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def empty(self, size: int, **_: object) -> "Tensor":
        return Tensor(self, size, "copy back")

    def frombuffer(self, memory: mmap.mmap, **_: object) -> "Tensor":
        return Tensor(self, len(memory), "copy out")

    def check_error(self, error: int) -> None:
        if error:
            raise RuntimeError("out of memory")

    def cudaHostRegister(self, at: int, size: int, flags: int) -> int:  # noqa: N802  # CUDA's name
        assert at not in self.pinned
        assert not flags
        self.pinned[at] = size
        return self.refuses

    def cudaHostUnregister(self, at: int) -> int:  # noqa: N802
        del self.pinned[at]
        return 0


class Tensor:
    def __init__(self, cuda: Cuda, size: int, copy: str) -> None:
        self._cuda, self._size, self._copy = cuda, size, copy

    def __getitem__(self, _: slice) -> "Tensor":
        return self

    def set_(self, _: Storage) -> "Tensor":
        return self

    def numel(self) -> int:
        return self._size

    def data_ptr(self) -> int:
        return id(self)

    def copy_(self, _: "Tensor", **__: object) -> None:
        self._cuda.may_break(self._copy)
        self._cuda.copies.append(set(self._cuda.current.behind))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    twin = Cuda()
    monkeypatch.setattr(places, "torch", twin)
    return twin


def test_copies_begin_behind_the_kernels_that_may_use_the_memory(cuda: Cuda) -> None:
    place, state = places.PinnedPlace(4096, torch.device("cuda", 0)), cast("Any", [Storage(cuda)])
    cuda.computes.behind.add("update")
    place.order_after_queued_work()
    place.copy_out(state)
    assert "update" in cuda.copies[-1]
    place.release(state)
    # Its activations were freed here already, and so may lie where the state comes back to.
    cuda.computes.behind.add("backward pass")
    place.copy_back(state)
    assert "backward pass" in cuda.copies[-1]
    assert state[0].size == 4096
    assert state[0].taken_on is cuda.computes  # else the allocator may give what kernels there still use


def test_exactly_the_requested_memory_is_pinned_and_released_once_also_without_close(cuda: Cuda) -> None:
    place = places.PinnedPlace(5000, torch.device("cuda", 0))
    assert list(cuda.pinned.values()) == [5000]
    place.close()
    place.close()
    assert cuda.pinned == {}
    place = places.PinnedPlace(5000, torch.device("cuda", 0))
    del place
    gc.collect()
    assert cuda.pinned == {}


def test_without_memory_to_pin_there_is_an_error_of_a_place(cuda: Cuda) -> None:
    cuda.refuses = 2
    with pytest.raises(OSError, match="5000 bytes of pinned memory cannot be allocated: out of memory"):
        places.PinnedPlace(5000, torch.device("cuda", 0))


@pytest.mark.parametrize(
    "breaks", ["copy out", "synchronize", "give memory", "look for room", "take memory", "copy back"]
)
@pytest.mark.parametrize("back_at_s", [0.0, math.inf])
def test_no_thread_waits_for_ever_after_an_error_of_cuda_and_all_are_reported(
    breaks: str, back_at_s: float, cuda: Cuda
) -> None:
    state = cast("Any", [Storage(cuda)])
    mover = StateMover(places.PinnedPlace(4096, torch.device("cuda", 0)), state)
    cuda.breaks = breaks
    mover.copy_out(state, back_at_s)
    reported, until_s = list[str](), time.monotonic() + PATIENCE_S
    while back_at_s == 0.0 and not cuda.broken and time.monotonic() < until_s:
        time.sleep(0.001)  # all is tried there before anybody needs the state

    def wait() -> None:
        for call in (mover.wait_until_back, mover.close):
            try:
                call()
            except CheckpointError as error:
                reported.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert cuda.broken or back_at_s > 0.0
    assert cuda.broken == bool(reported or mover.refused)
    assert all("illegal memory access" in it for it in [*reported, *([str(mover.refused)] if mover.refused else [])])
