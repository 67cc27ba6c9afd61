"""Opening files from outside, so that whatever is wrong with them names the file and the line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .errors import InputError

HEAD_CHARACTERS = 4096  # what a format is recognised by


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, with or without a byte-order mark, line ends as they are.

    Raises:
        InputError: If the file cannot be opened or, while it is read, holds bytes that are not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        fix = "unpack the file if it is compressed, or save it as UTF-8"
        raise InputError(f"byte 0x{byte:02x} is not UTF-8 text", fix, path=path, line=_bad_line(path)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "check the name and its rights", path=path) from error


def read_head(path: Path) -> str:
    """Return the first 4,096 characters of a file.

    Raises:
        InputError: If the file cannot be read, or is empty.
    """
    with open_text(path) as file:
        head = file.read(HEAD_CHARACTERS)
    if not head.strip():
        raise InputError("the file is empty", "give a file with jobs", path=path)
    return head


def shown(value: object) -> str:
    """Return a value from a file as a message can show it: quoted if text, and not too long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def _bad_line(path: Path) -> int | None:
    with path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            try:
                content.decode("utf-8")
            except UnicodeDecodeError:
                return line
    return None
