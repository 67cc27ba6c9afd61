"""Where offloaded state is kept: in pinned memory of the host, or in a file without a name.

On a machine without GPUs, the GNU library's heap is set to release freed memory. By default it keeps up to 200 MB, and
state that returns would be added to that.

Source: SPEC P4.
"""

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

# Larger pieces are mapped separately, and released once they are freed. With a smaller limit steps take 1.5 times as
# long, as each of their tensors gets new pages.
LARGE_BYTES = 8_000_000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of `mallopt`
OF_USERS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_LIBC = ctypes.CDLL(None, use_errno=True)


def limit_heap() -> None:
    """Limit the freed memory that the heap keeps, except with settings of a user, or other C libraries."""
    if hasattr(_LIBC, "mallopt") and not any(name in os.environ for name in OF_USERS):
        _LIBC.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        _LIBC.mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
        _LIBC.mallopt(M_ARENA_MAX, 1)  # or the thread of backward passes has its own heap


def trim_heap() -> None:
    """Release the freed memory that the heap keeps."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


OFFLOAD_PREFIX = "longshore-offload-"
MODE = 0o600


def open_reserved_file(folder: Path, size_bytes: int) -> int:
    """Return a new file, open to read and write, whose whole size is reserved on the disk.

    Raises:
        OSError: If there is no room, or no such folder.
    """
    file = _open_nameless_file(folder)
    try:
        os.posix_fallocate(file, 0, size_bytes)
    except OSError:
        os.close(file)
        raise
    return file


def _open_nameless_file(folder: Path) -> int:
    remove_left_files(folder)
    with suppress(OSError, AttributeError):  # not every file system or system has it
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, MODE)
    file, name = tempfile.mkstemp(prefix=OFFLOAD_PREFIX, dir=folder)
    Path(name).unlink(missing_ok=True)
    return file


def remove_left_files(folder: Path) -> None:
    """Remove files of processes that were killed before they removed the name.

    This may remove a file that another process has just made: that needs only the open file, and removes the name next.
    """
    for path in folder.glob(f"{OFFLOAD_PREFIX}*"):
        with suppress(OSError):  # another user's, or removed
            path.unlink()


BUFFERS = 256  # of one call to read or write
SPARE_SHARE = 0.05  # of the machine's memory, that a copy back leaves free
Storage = torch.UntypedStorage
Storages = Sequence[Storage]


class OffloadPlace(Protocol):
    """Reserved room for offloaded state."""

    def order_after_queued_work(self) -> None:
        """Make the next copy wait for what this thread has queued on the device."""

    def copy_out(self, storages: Storages) -> None:
        """Copy content here.

        Raises:
            OSError: If that fails; the content is still in memory.
        """

    def release(self, storages: Storages) -> None:
        """Release their memory on the device, once the content is here.

        Raises:
            OSError: If that fails; the content is still here.
        """

    def has_room(self) -> bool:
        """Return whether the device has memory for the content."""

    def copy_back(self, storages: Storages) -> None:
        """Allocate memory again, and copy content back into it.

        Raises:
            OSError: If that fails; the content is lost.
        """

    def close(self) -> None:
        """Release the room."""


class FilePlace:
    """A file. It is written and read, not mapped, so it does not count as memory of the process.

    Raises:
        OSError: If there is no room for it.
    """

    def __init__(self, size_bytes: int, folder: Path) -> None:
        self._file, self._size_bytes = open_reserved_file(folder, size_bytes), size_bytes
        self._total_bytes = system_memory_bytes()["MemTotal"]

    def order_after_queued_work(self) -> None:
        """Do nothing: a CPU has no queue."""

    def copy_out(self, storages: Storages) -> None:
        """Write content."""
        _transfer_all(os.pwritev, self._file, storages)

    def release(self, storages: Storages) -> None:
        """Release whole pages to the machine; their addresses stay reserved."""
        for address, size in (_own_pages(storage) for storage in storages):
            if size and _LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def has_room(self) -> bool:
        """Return whether the machine has that much free memory, and a little more."""
        return system_memory_bytes()["MemAvailable"] > self._size_bytes + SPARE_SHARE * self._total_bytes

    def copy_back(self, storages: Storages) -> None:
        """Read content, after trimming the heap."""
        trim_heap()
        _transfer_all(os.preadv, self._file, storages)

    def close(self) -> None:
        """Close the file, which removes it."""
        os.close(self._file)


def _transfer_all(call: Callable[[int, list[memoryview], int], int], file: int, storages: Storages) -> None:
    left = [_memory_view(storage) for storage in storages]
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


def _own_pages(storage: Storage) -> tuple[int, int]:
    """Return the address of the pages that belong to it alone, and their bytes."""
    begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    return begin, max(0, end - begin)


def _memory_view(storage: Storage) -> memoryview:
    return memoryview((ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def system_memory_bytes() -> dict[str, int]:
    """Return the system's memory figures, by its names."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


@contextmanager
def _as_os_error(problem: str) -> Iterator[None]:
    """Raise errors of CUDA as those of a place."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{problem}: {error}") from error


def _unpin(library: Any, host: Tensor) -> None:
    library.cudaHostUnregister(host.data_ptr())


class PinnedPlace:
    """Pinned memory; copies go by a stream of their own.

    Raises:
        OSError: If the host has no room for it.
    """

    def __init__(self, size_bytes: int, gpu: torch.device) -> None:
        self._gpu = gpu
        with _as_os_error(f"{size_bytes} bytes of pinned memory cannot be allocated"):
            self._host = self._allocate_pinned(size_bytes)
        self._sizes = list[int]()
        self._stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._queued = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._taken = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._computes = torch.cuda.current_stream(gpu)

    def order_after_queued_work(self) -> None:
        """Make the next copy wait for what this thread has queued on the GPU."""
        self._computes = torch.cuda.current_stream(self._gpu)
        self._queued.record(self._computes)

    def copy_out(self, storages: Storages) -> None:
        """Copy content here, and wait for it."""
        self._sizes = [storage.nbytes() for storage in storages]
        with _as_os_error("it cannot be copied to the host"), torch.cuda.stream(self._stream):
            self._queued.wait(self._stream)
            for host, gpu in self._host_and_gpu_pairs(storages):
                host.copy_(gpu, non_blocking=True)
            self._wait_for_copies()

    def release(self, storages: Storages) -> None:
        """Release their memory to PyTorch's allocator."""
        for storage in storages:
            storage.resize_(0)

    def has_room(self) -> bool:
        """Return whether the GPU has that much free memory, in the allocator's cache or outside of it."""
        free, _ = torch.cuda.mem_get_info(self._gpu)
        cached = torch.cuda.memory_reserved(self._gpu) - torch.cuda.memory_allocated(self._gpu)
        return free + cached > self._host.numel()

    def copy_back(self, storages: Storages) -> None:
        """Allocate memory again, copy content back, and wait for it.

        The allocator may return memory that kernels, queued before it was free, still read: on their stream that is
        harmless. So memory is allocated there, and the copy, on another stream, begins after them.
        """
        with _as_os_error("there is no memory for it"), torch.cuda.stream(self._computes):
            for storage, size in zip(storages, self._sizes, strict=True):
                storage.resize_(size)
            self._taken.record(self._computes)
        with _as_os_error("it cannot be copied back"), torch.cuda.stream(self._stream):
            self._taken.wait(self._stream)
            for host, gpu in self._host_and_gpu_pairs(storages):
                gpu.copy_(host, non_blocking=True)
            self._wait_for_copies()

    def close(self) -> None:
        """Release the memory."""
        self._unpin()
        self._host = torch.empty(0, dtype=torch.uint8)

    def _allocate_pinned(self, size_bytes: int) -> Tensor:
        """Return memory of exactly this size: PyTorch's own has the next power of two, and stays after its end.

        It is aligned to a page, so that nothing else is pinned, and is shared, so that a fork does not copy it.
        """
        host = torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)
        library = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._gpu):
            torch.cuda.check_error(library.cudaHostRegister(host.data_ptr(), size_bytes, 0))
        # The memory lives as long as it is pinned, even without `close`.
        self._unpin = weakref.finalize(self, _unpin, library, host)
        self._unpin.atexit = False  # CUDA may be shut down by then, and the system releases all memory
        return host

    def _wait_for_copies(self) -> None:
        """Wait on an event that lets the core sleep; a stream would keep it busy."""
        self._copied.record(self._stream)
        self._copied.synchronize()

    def _host_and_gpu_pairs(self, storages: Storages) -> Iterator[tuple[Tensor, Tensor]]:
        at = 0
        for storage in storages:
            gpu = torch.empty(0, dtype=torch.uint8, device=self._gpu).set_(storage)
            yield self._host[at : at + storage.nbytes()], gpu
            at += storage.nbytes()
