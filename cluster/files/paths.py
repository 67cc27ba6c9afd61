"""What is at a path of a user, where a place that may not be read is an error of one line."""

import os
import stat
import sys
from pathlib import Path

from .errors import InputError

FOLDER_GONE = "the folder in which this was called has been deleted; change to another one (cd)"


def is_present_folder_gone() -> bool:
    """Return whether the present folder has been deleted."""
    try:
        os.getcwd()  # noqa: PTH109  # of which only the error counts
    except FileNotFoundError:
        return True
    return False


def check_present_folder() -> None:
    """Refuse a present folder that has been deleted: some libraries end the whole process there.

    Raises:
        InputError: If it has been.
    """
    if is_present_folder_gone():
        raise InputError(FOLDER_GONE)


def end_if_folder_gone(program: str) -> None:
    """End a program in one line where the present folder has been deleted: PyTorch ends it without a word.

    Raises:
        SystemExit: With 2, if it has been.
    """
    if is_present_folder_gone():
        sys.stderr.write(f"{program}: {FOLDER_GONE}\n")
        raise SystemExit(2)


def exists(path: Path) -> bool:
    """Return whether there is anything at a path.

    Raises:
        InputError: If that cannot be seen.
    """
    return _file_mode(path) is not None


def is_folder(path: Path) -> bool:
    """Return whether a path leads to a folder.

    Raises:
        InputError: If that cannot be seen.
    """
    return stat.S_ISDIR(_file_mode(path) or 0)


def is_file(path: Path) -> bool:
    """Return whether a path leads to a file.

    Raises:
        InputError: If that cannot be seen.
    """
    return stat.S_ISREG(_file_mode(path) or 0)


def _file_mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a null character is in no name
        return None
    except OSError as error:
        fix = "let this user read it, or name another place"
        raise InputError(f"{path} cannot be read: {error.strerror}", fix) from error
