"""Memory whose content can be put away: on a machine without GPUs, of the process, with a file behind it.

Source: SPEC P4.
"""

import mmap
import os
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from .host_file import reserved_file

CHUNK_BYTES = 8 << 20  # of one call: other threads run meanwhile
SPARE_SHARE = 0.05  # of the machine's memory, which a copy back leaves free


class Place(Protocol):
    """Memory of a device, with room elsewhere that is as large and is reserved."""

    @property
    def buffer(self) -> Tensor:
        """The memory, as bytes; tensors in it are views of this."""

    def mark(self) -> None:
        """Let the next copy wait for what this thread has asked the device to do."""

    def copy_out(self) -> None:
        """Copy the content out.

        Raises:
            OSError: If that fails; the content still is in memory.
        """

    def release(self) -> None:
        """Give the memory back; nobody may touch the tensors until the content is back."""

    def has_room(self) -> bool:
        """Return whether the device has room for the content."""

    def copy_back(self) -> None:
        """Take memory, and copy the content back.

        Raises:
            OSError: If that fails; the content is lost.
        """

    def close(self) -> None:
        """Give up the room elsewhere; the content is in memory."""


class FilePlace:
    """Memory of the process, with a file behind it. The file is written and read, not mapped: it is not resident.

    Args:
        size_bytes: Of the memory.
        folder: Of the file.

    Raises:
        OSError: If there is no room for it.
    """

    def __init__(self, size_bytes: int, folder: Path) -> None:
        self._file = reserved_file(folder, size_bytes)
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = memoryview(self._memory)
        self._buffer = torch.frombuffer(self._memory, dtype=torch.uint8)

    @property
    def buffer(self) -> Tensor:
        """The memory, as bytes."""
        return self._buffer

    def mark(self) -> None:
        """Do nothing: what was asked of a CPU is done."""

    def copy_out(self) -> None:
        """Write the content."""
        at, size = 0, len(self._bytes)
        while at < size:
            at += os.pwrite(self._file, self._bytes[at : at + CHUNK_BYTES], at)

    def release(self) -> None:
        """Drop the pages."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    def has_room(self) -> bool:
        """Return whether the machine has so much memory left, and a little more."""
        total, available = memory_bytes()
        return available > len(self._bytes) + SPARE_SHARE * total

    def copy_back(self) -> None:
        """Read the content into new pages."""
        at, size = 0, len(self._bytes)
        while at < size:
            got = os.preadv(self._file, [self._bytes[at : at + CHUNK_BYTES]], at)
            if not got:
                raise OSError(f"the file ends at {at} of {size} bytes")
            at += got

    def close(self) -> None:
        """Close the file, which ends it."""
        os.close(self._file)


def memory_bytes() -> tuple[int, int]:
    """Return the memory of the machine, and what of it can be had."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    known = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return known["MemTotal"], known["MemAvailable"]
