"""Output of jobs, made harmless to show: whatever a program wrote, it is plain text in a page."""

import re
from typing import NamedTuple

from ..log_tail import BLOCK_BYTES, Read, near_end

TAIL_BYTES = BLOCK_BYTES  # shown at first
MOST_BYTES = 256 << 10  # read at once when following

# Escape sequences: CSI, then strings (OSC, DCS, SOS, PM, APC) up to their end, then all two-character ones.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
# Control characters but tab and newline, and the marks that turn the direction of text round.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CUT_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]{0,256}\x1b?|[ -/]*)\Z")


class Part(NamedTuple):
    """A piece of output."""

    text: str
    offset: int  # where to go on
    is_cut: bool = False  # something stands before it


def plain_text(text: str) -> str:
    """Return text without escape sequences and control characters; of a line that was overwritten, its last form.

    A line that goes on at the beginning of the text, or after its end, stays a line of its own.
    """
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    begins, ends = lines[0].startswith("\r"), lines[-1].endswith("\r")
    return _CONTROLS.sub("", "\n" * begins + shown + "\n" * ends)


def whole_characters(data: bytes) -> bytes:
    """Return bytes without a character or an escape sequence that is cut off at their end."""
    found = _CUT_ESCAPE.search(data, max(0, len(data) - 512))
    data = data if found is None else data[: found.start()]
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needs else data
    return data


def part_after(read: Read, offset: int, *, is_over: bool) -> Part:
    """Return what stands behind an offset.

    Args:
        read: Reads the output.
        offset: Where to begin.
        is_over: Nothing will follow, so that nothing is held back.
    """
    data, after = read(offset, MOST_BYTES)
    kept = data if is_over else whole_characters(data)
    return Part(plain_text(kept.decode("utf-8", "replace")), after - (len(data) - len(kept)))


def tail(read: Read, *, is_over: bool) -> Part:
    """Return the last part of an output, from the beginning of a line on."""
    begin = max(0, near_end(read) - TAIL_BYTES)
    data, after = read(begin, 4 * TAIL_BYTES)
    cut = begin > 0
    if cut:
        data = data[data.find(b"\n") + 1 :]
    kept = data if is_over else whole_characters(data)
    return Part(plain_text(kept.decode("utf-8", "replace")), after - (len(data) - len(kept)), cut)
