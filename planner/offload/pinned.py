"""Memory of a GPU, with pinned memory of its host behind it. It was never run on a GPU.

Source: SPEC P4.
"""

import torch
from torch import Tensor


class PinnedPlace:
    """Memory of a GPU, with pinned memory of its host behind it; copies go by a stream of their own.

    Args:
        size_bytes: Of the memory.
        gpu: Whose it is.

    Raises:
        OSError: If the host has no room for it.
    """

    def __init__(self, size_bytes: int, gpu: torch.device) -> None:
        try:
            self._host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise OSError(f"{size_bytes} bytes of pinned memory cannot be had: {error}") from error
        self._buffer = torch.zeros(size_bytes, dtype=torch.uint8, device=gpu)
        self._gpu, self._stream = gpu, torch.cuda.Stream(gpu)
        self._asked = torch.cuda.Event()

    @property
    def buffer(self) -> Tensor:
        """The memory, as bytes."""
        return self._buffer

    def mark(self) -> None:
        """Let the next copy wait for what this thread has asked the GPU to do."""
        self._asked.record(torch.cuda.current_stream(self._gpu))

    def copy_out(self) -> None:
        """Copy the content to the host, and wait for it."""
        self._asked.wait(self._stream)
        with torch.cuda.stream(self._stream):
            self._host.copy_(self._buffer, non_blocking=True)
        self._stream.synchronize()

    def release(self) -> None:
        """Give the memory back to the allocator; views keep the storage, which has none meanwhile."""
        self._buffer.untyped_storage().resize_(0)

    def has_room(self) -> bool:
        """Return whether the GPU has so much memory left, in the allocator's cache or outside of it."""
        free, _ = torch.cuda.mem_get_info(self._gpu)
        cached = torch.cuda.memory_reserved(self._gpu) - torch.cuda.memory_allocated(self._gpu)
        return free + cached > self._host.numel()

    def copy_back(self) -> None:
        """Take memory, copy the content back, and wait for it."""
        try:
            self._buffer.untyped_storage().resize_(self._host.numel())
        except RuntimeError as error:
            raise OSError(f"the GPU has no room: {error}") from error
        with torch.cuda.stream(self._stream):
            self._buffer.copy_(self._host, non_blocking=True)
        self._stream.synchronize()

    def close(self) -> None:
        """Give up the host's memory."""
        self._host = torch.empty(0, dtype=torch.uint8)
