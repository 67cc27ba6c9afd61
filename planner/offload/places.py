"""Room for the content of tensors whose memory is given back: on a machine without GPUs, a file.

Source: SPEC P4.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from . import heap
from .host_file import reserved_file

BUFFERS = 256  # of one call to read or write
SPARE_SHARE = 0.05  # of the machine's memory, which a copy back leaves free
_LIBRARY = ctypes.CDLL(None, use_errno=True)
Storage = torch.UntypedStorage
Storages = Sequence[Storage]


class Place(Protocol):
    """Room that is reserved."""

    @property
    def size_bytes(self) -> int:
        """How much there is."""

    def mark(self) -> None:
        """Let the next copy wait for what this thread has asked the device to do."""

    def copy_out(self, storages: Storages) -> None:
        """Copy content here.

        Raises:
            OSError: If that fails; the content still is in memory.
        """

    def release(self, storages: Storages) -> None:
        """Give their memory back to the device, once content is here.

        Raises:
            OSError: If that fails; the content still is here.
        """

    def has_room(self) -> bool:
        """Return whether the device has memory for so much."""

    def copy_back(self, storages: Storages) -> None:
        """Take memory again, and copy content back into it.

        Raises:
            OSError: If that fails; the content is lost.
        """

    def close(self) -> None:
        """Give up the room."""


class FilePlace:
    """A file. It is written and read, not mapped, so it is no memory of the process.

    Args:
        size_bytes: How much room is reserved.
        folder: Of the file.

    Raises:
        OSError: If there is no room for it.
    """

    def __init__(self, size_bytes: int, folder: Path) -> None:
        self._file, self._size_bytes = reserved_file(folder, size_bytes), size_bytes
        self._total_bytes = memory_bytes()["MemTotal"]

    @property
    def size_bytes(self) -> int:
        """How much room there is."""
        return self._size_bytes

    def mark(self) -> None:
        """Do nothing: what was asked of a CPU is done."""

    def copy_out(self, storages: Storages) -> None:
        """Write content."""
        _move(os.pwritev, self._file, storages)

    def release(self, storages: Storages) -> None:
        """Give whole pages back to the machine; their addresses stay taken."""
        for address, size in (_pages(it) for it in storages):
            if size and _LIBRARY.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def has_room(self) -> bool:
        """Return whether the machine has so much memory left, and a little more."""
        return memory_bytes()["MemAvailable"] > self._size_bytes + SPARE_SHARE * self._total_bytes

    def copy_back(self, storages: Storages) -> None:
        """Read content, in place of what the heap has kept."""
        heap.give_back()
        _move(os.preadv, self._file, storages)

    def close(self) -> None:
        """Close the file, which ends it."""
        os.close(self._file)


def _move(call: Callable[[int, list[memoryview], int], int], file: int, storages: Storages) -> None:
    left = [_bytes(it) for it in storages]
    left.reverse()
    at = 0
    while left:
        done = call(file, left[: -BUFFERS - 1 : -1], at)
        if not done:
            raise OSError(f"the file ends at byte {at}")
        at += done
        while left and done >= len(left[-1]):
            done -= len(left.pop())
        if done:
            left[-1] = left[-1][done:]


def _pages(storage: Storage) -> tuple[int, int]:
    """Return where pages that belong to it alone begin, and how many bytes they have."""
    begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    return begin, max(0, end - begin)


def _bytes(storage: Storage) -> memoryview:
    return memoryview((ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def memory_bytes() -> dict[str, int]:
    """Return what the system says of its memory, by its names."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
