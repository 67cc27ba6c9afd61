"""Pinned memory of a host, for content of a GPU's.

Source: SPEC P4.
"""

import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .places import Storages


@contextmanager
def _told(problem: str) -> Iterator[None]:
    """Raise what CUDA raises as what fails with a place."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{problem}: {error}") from error


def _unpin(library: Any, host: Tensor) -> None:
    library.cudaHostUnregister(host.data_ptr())


class PinnedPlace:
    """Pinned memory; copies go by a stream of their own.

    Args:
        size_bytes: How much.
        gpu: Whose content comes here.

    Raises:
        OSError: If the host has no room for it.
    """

    def __init__(self, size_bytes: int, gpu: torch.device) -> None:
        self._gpu = gpu
        with _told(f"{size_bytes} bytes of pinned memory cannot be had"):
            self._host = self._pinned(size_bytes)
        self._sizes = list[int]()
        self._stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._asked = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._taken = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._computes = torch.cuda.current_stream(gpu)

    @property
    def size_bytes(self) -> int:
        """How much room there is."""
        return self._host.numel()

    def mark(self) -> None:
        """Let the next copy wait for what this thread has asked the GPU to do."""
        self._computes = torch.cuda.current_stream(self._gpu)
        self._asked.record(self._computes)

    def copy_out(self, storages: Storages) -> None:
        """Copy content here, and wait for it."""
        self._sizes = [it.nbytes() for it in storages]
        with _told("it cannot be copied to the host"), torch.cuda.stream(self._stream):
            self._asked.wait(self._stream)
            for host, gpu in self._pairs(storages):
                host.copy_(gpu, non_blocking=True)
            self._wait_for_copies()

    def release(self, storages: Storages) -> None:
        """Give their memory back to PyTorch's allocator."""
        for it in storages:
            it.resize_(0)

    def has_room(self) -> bool:
        """Return whether the GPU has so much memory left, in the allocator's cache or outside of it."""
        free, _ = torch.cuda.mem_get_info(self._gpu)
        cached = torch.cuda.memory_reserved(self._gpu) - torch.cuda.memory_allocated(self._gpu)
        return free + cached > self.size_bytes

    def copy_back(self, storages: Storages) -> None:
        """Take memory again, copy content back, and wait for it.

        The allocator may give memory that kernels still read which were asked for before it was free: on their stream
        that is no harm. So memory is taken there, and the copy, on another stream, begins behind them.
        """
        with _told("there is no memory for it"), torch.cuda.stream(self._computes):
            for it, size in zip(storages, self._sizes, strict=True):
                it.resize_(size)
            self._taken.record(self._computes)
        with _told("it cannot be copied back"), torch.cuda.stream(self._stream):
            self._taken.wait(self._stream)
            for host, gpu in self._pairs(storages):
                gpu.copy_(host, non_blocking=True)
            self._wait_for_copies()

    def close(self) -> None:
        """Give up the memory."""
        self._unpin()
        self._host = torch.empty(0, dtype=torch.uint8)

    def _pinned(self, size_bytes: int) -> Tensor:
        """Return memory of just this size: PyTorch's own would be of the next power of two, and stay after its end.

        It begins with a page, so that no other is pinned with it, and is shared, so that a fork does not copy it.
        """
        host = torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)
        library = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._gpu):
            torch.cuda.check_error(library.cudaHostRegister(host.data_ptr(), size_bytes, 0))
        # The memory is kept as long as it is pinned, whoever forgets to close this.
        self._unpin = weakref.finalize(self, _unpin, library, host)
        self._unpin.atexit = False  # CUDA may be gone by then, and the system takes all back
        return host

    def _wait_for_copies(self) -> None:
        """Wait on an event that lets the core sleep; a stream would keep it busy."""
        self._copied.record(self._stream)
        self._copied.synchronize()

    def _pairs(self, storages: Storages) -> Iterator[tuple[Tensor, Tensor]]:
        at = 0
        for storage in storages:
            gpu = torch.empty(0, dtype=torch.uint8, device=self._gpu).set_(storage)
            yield self._host[at : at + storage.nbytes()], gpu
            at += storage.nbytes()
