"""Where the last lines of an output begin; no backend can be asked for the length of one."""

from collections.abc import Callable

Read = Callable[[int, int], tuple[bytes, int]]  # offset and most bytes to bytes and the offset after them

BLOCK_BYTES = 64 << 10


def near_end(read: Read) -> int:
    """Return an offset at most `BLOCK_BYTES` before the end of an output."""
    low, high = 0, BLOCK_BYTES
    while read(high, 1)[0]:
        low, high = high, 2 * high
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if read(middle, 1)[0] else (low, middle)
    return low


def tail_offset(read: Read, lines: int, most_bytes: int) -> int:
    """Return the offset at which the last lines of an output begin.

    Args:
        read: Reads the output.
        lines: How many; fewer where they are longer than the bytes.
        most_bytes: How long they are at most.
    """
    if lines == 0:
        return _end(read)
    end, size = _end(read), BLOCK_BYTES
    while True:
        size = min(size, most_bytes)
        data, after = read(max(0, end - size), min(size, end))
        begin = after - len(data)  # behind a hole it is later than what was asked for
        whole = data.removesuffix(b"\n")
        if whole.count(b"\n") >= lines:
            return begin + len(whole.rsplit(b"\n", lines)[0]) + 1  # at once: there may be a million lines
        if size >= min(end, most_bytes):
            return begin if size >= end else begin + data.find(b"\n") + 1
        size *= 4


def _end(read: Read) -> int:
    offset = near_end(read)
    while (part := read(offset, 4 * BLOCK_BYTES))[0]:
        offset = part[1]
    return offset
