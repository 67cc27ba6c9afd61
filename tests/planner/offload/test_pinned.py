"""Pinned memory against a twin of CUDA's streams, in which an operation knows what it comes behind. No GPU is here.

The twin leaves out bytes, time and memory: it tells whether a copy may meet kernels that are still under way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from longshore.planner.offload import pinned
from longshore.planner.offload.moving import Mover


class Stream:
    def __init__(self, _: object = None) -> None:
        self.behind: set[str] = set()  # what has ended before the next operation begins

    def synchronize(self) -> None: ...


class Event:
    def __init__(self) -> None:
        self._behind: set[str] = set()

    def record(self, stream: Stream) -> None:
        self._behind = set(stream.behind)

    def wait(self, stream: Stream) -> None:
        stream.behind |= self._behind


class Storage:
    """Memory of the GPU."""

    def __init__(self) -> None:
        self.size = 4096

    def nbytes(self) -> int:
        return self.size

    def resize_(self, size: int) -> None:
        self.size = size


class Cuda:
    """What is used of `torch`."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.computes = self.current = Stream()
        self.copies: list[set[str]] = []  # behind what each began
        self.broken = ""
        self.cuda = SimpleNamespace(
            Stream=Stream, Event=Event, current_stream=lambda _: self.current, stream=self.on,
            mem_get_info=lambda _: (1 << 30, 1 << 30), memory_reserved=lambda _: 0, memory_allocated=lambda _: 0,
        )  # fmt: skip

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def empty(self, size: int, **_: object) -> "Tensor":
        return Tensor(self, size)


class Tensor:
    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda, self._size = cuda, size

    def __getitem__(self, _: slice) -> "Tensor":
        return self

    def set_(self, _: Storage) -> "Tensor":
        return self

    def numel(self) -> int:
        return self._size

    def copy_(self, _: "Tensor", **__: object) -> None:
        if self._cuda.broken:
            raise RuntimeError(self._cuda.broken)
        self._cuda.copies.append(set(self._cuda.current.behind))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    twin = Cuda()
    monkeypatch.setattr(pinned, "torch", twin)
    return twin


def test_copies_begin_behind_the_kernels_that_may_use_the_memory(cuda: Cuda) -> None:
    place, state = pinned.PinnedPlace(4096, torch.device("cuda", 0)), cast("Any", [Storage()])
    cuda.computes.behind.add("update")
    place.mark()
    place.copy_out(state)
    assert "update" in cuda.copies[-1]
    place.release(state)
    # Its activations were freed here already, and so may lie where the state comes back to.
    cuda.computes.behind.add("backward pass")
    place.copy_back(state)
    assert "backward pass" in cuda.copies[-1]
    assert state[0].size == 4096


def test_what_cuda_raises_is_no_reason_to_wait_for_ever(cuda: Cuda) -> None:
    state = cast("Any", [Storage()])
    mover = Mover(pinned.PinnedPlace(4096, torch.device("cuda", 0)), state)
    cuda.broken = "CUDA error: an illegal memory access was encountered"
    mover.leave(state, 0.0)
    mover.need()
    assert "illegal memory access" in str(mover.refused)
    mover.close()
