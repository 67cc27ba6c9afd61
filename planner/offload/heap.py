"""The heap of a process on the GNU library, set so that what is put away is seen in the process's memory.

By default the heap keeps what computation has freed, as much as 200 MB more or less from run to run. State that comes
back would be added to that.
"""

import ctypes
import os

# Larger pieces are mapped apart, and given back once they are freed. With less, steps take half as long again, as each
# of their tensors gets new pages.
LARGE_BYTES = 8_000_000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of `mallopt`
OF_USERS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_LIBRARY = ctypes.CDLL(None)


def keep_little() -> None:
    """Let the heap keep little of what is freed from here on; leave what a user has set, and other C libraries."""
    if hasattr(_LIBRARY, "mallopt") and not any(it in os.environ for it in OF_USERS):
        _LIBRARY.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        _LIBRARY.mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
        _LIBRARY.mallopt(M_ARENA_MAX, 1)  # backward passes have a thread of their own, which would have its own heap


def give_back() -> None:
    """Give back now what the heap has kept."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)
