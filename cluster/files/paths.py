"""What is at a path that somebody named, where a place that may not be looked into is a line and no traceback."""

import os
import stat
import sys
from pathlib import Path

from .errors import InputError

GONE = "the folder in which this was called has been deleted; change to another one (cd)"


def is_gone() -> bool:
    """Say whether the present folder has been deleted."""
    try:
        os.getcwd()  # noqa: PTH109  # which is all that is asked
    except FileNotFoundError:
        return True
    return False


def check_present_folder() -> None:
    """Refuse a present folder that has been deleted: some libraries end the whole process there.

    Raises:
        InputError: If it has been.
    """
    if is_gone():
        raise InputError(GONE)


def end_if_gone(program: str) -> None:
    """End a program in one line where the present folder has been deleted: PyTorch ends it without a word.

    Raises:
        SystemExit: With 2, if it has been.
    """
    if is_gone():
        sys.stderr.write(f"{program}: {GONE}\n")
        raise SystemExit(2)


def exists(path: Path) -> bool:
    """Say whether there is anything at a path.

    Raises:
        InputError: If that cannot be seen.
    """
    return _mode(path) is not None


def is_folder(path: Path) -> bool:
    """Say whether a path leads to a folder.

    Raises:
        InputError: If that cannot be seen.
    """
    return stat.S_ISDIR(_mode(path) or 0)


def is_file(path: Path) -> bool:
    """Say whether a path leads to a file.

    Raises:
        InputError: If that cannot be seen.
    """
    return stat.S_ISREG(_mode(path) or 0)


def _mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a null character is in no name
        return None
    except OSError as error:
        fix = "let this user look there, or name another place"
        raise InputError(f"{path} cannot be looked at: {error.strerror}", fix) from error
