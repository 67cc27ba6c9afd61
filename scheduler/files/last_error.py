"""The error by which a program says in its log why it ended. Standard library only."""

import os
import re
import stat

TAIL_BYTES = 1 << 14  # of a log that are looked at
MOST = 300  # characters of an error
_BEGIN = "Traceback (most recent call last):"
_RANK = re.compile(r"^(?:\[rank\d+\]: ?)+")  # that PyTorch writes before each line
_ERROR = re.compile(
    r"longshore: (?=the ring is lost: )(?P<words>.+)"  # what Longshore itself says
    r"|(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:: .*)?"  # an error that Python tells without a traceback
    r"|(?:/.*|\S*)python[\d.]*: .+"  # a script that it cannot begin; its own path may have spaces
)


def error_in(text: str) -> str:
    """Return the last error that a log tells of in one line that a terminal may show; "" if there is none.

    That is the line below a traceback, whatever it is, or one that looks like an error of Python.
    """
    found, is_below = "", False
    for line in (_RANK.sub("", it) for it in text.splitlines()):
        if line.endswith(_BEGIN):
            is_below = True
        elif is_below and line and not line[0].isspace():
            found, is_below = line, False
        elif match := _ERROR.fullmatch(line):
            found = match["words"] or line
    shown = "".join(it if it.isprintable() else " " for it in found).strip()
    return shown if len(shown) <= MOST else shown[: MOST - 3] + "..."


def last_error(name: str, folder: int | None = None, since: int = 0) -> str:
    """Return the last error that a log tells of, "" if there is none or the log cannot be read.

    Args:
        name: Path of the log; a job may have put anything in its place.
        folder: Descriptor of the folder that it is in.
        since: Offset from which it counts.
    """
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        seen = os.fstat(opened)
        if not stat.S_ISREG(seen.st_mode):
            return ""
        begin = max(since, seen.st_size - TAIL_BYTES)
        return error_in(os.pread(opened, TAIL_BYTES, begin).decode(errors="replace"))
    except OSError:
        return ""
    finally:
        os.close(opened)
