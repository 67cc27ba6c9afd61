"""Files that a command writes: refused before the long work if they cannot be written, so that no result is lost."""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError

log = logging.getLogger(__name__)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Refuse outputs that cannot be written, that are one file, or that are a file which is read.

    Args:
        outputs: Path of each option that names a file to write; None where it is not given.
        inputs: Path of each option that names a file to read.

    Raises:
        InputError: Naming the option.
    """
    taken = {path.resolve(): option for option, path in inputs.items() if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        problem, fix = _write_obstacle(path)
        if problem:
            raise InputError(f"{path}: {problem}", fix, field=option)
        other = taken.setdefault(path.resolve(), option)
        is_device = path.exists() and not path.is_file()
        if other != option and not is_device:
            raise InputError(f"{path} is also the file of {other}", "give another path", field=option)


def check_csv(option: str, path: Path) -> None:
    """Refuse an output that would hold CSV under the suffix of another format; none at all is fine.

    Raises:
        InputError: Naming the option.
    """
    if path.suffix.lower() not in ("", ".csv"):
        raise InputError(f"{path}: only csv is written, not {path.suffix!r}", "end it in .csv", field=option)


def write_text(path: Path, text: str) -> None:
    """Write a file, in place of an older one.

    What UTF-8 has no form for, such as the bytes of a file's name that are no text, is written as JSON escapes it.

    Raises:
        InputError: If it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", "give another path", path=path) from error


def encodable_text(text: str) -> str:
    """Return text with what UTF-8 has no form for written out, as in names of files that are no text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def in_one_line(text: str) -> str:
    """Return text in one line, without what would steer a terminal: names and causes may come from any user."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in encodable_text(text)).split())


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; what stands there then replaces a file at once, or not at all if the writing fails."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()  # half a file would keep a full disk full
        raise


@contextmanager
def file_errors_reported(folder: Path) -> Iterator[None]:
    """Report an error of the file system below a folder, such as a full disk, as what the outside did.

    Raises:
        InputError: In place of an OSError, with the file where it is known, else the folder.
    """
    try:
        yield
    except (ConnectionError, ChildProcessError, TimeoutError):  # of another process, such as what reads the output
        raise
    except OSError as error:
        fix = "give the same command again once that is mended"
        raise InputError(f"cannot go on: {error.strerror or error}", fix, path=error.filename or folder) from error


LOCK = ".lock"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Let no other process write into a folder that locks it, too. Where no file can be locked, all may.

    Raises:
        InputError: If another one has locked it.
    """
    number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock_file(number, folder)
        yield
    finally:
        os.close(number)


def _lock_file(number: int, folder: Path) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError("another process writes here", "wait for it, or give another --logdir", path=folder) from error
    except OSError:
        log.debug("%s: files cannot be locked", folder)


def make_folder(path: Path, option: str) -> None:
    """Make a folder to write into, unless it is there.

    Raises:
        InputError: If that cannot be, or nothing may be written there, naming the option.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}", "give another folder", field=option) from error
    if not os.access(path, os.W_OK):
        raise InputError(f"{path}: may not be written", "give another folder", field=option)


def _write_obstacle(path: Path) -> tuple[str, str]:
    """Return what stands against writing a file and what to do about it, both empty if nothing does."""
    try:
        if path.is_dir():
            return "is a folder", "give the path of a file"
        if not path.exists() and not path.parent.is_dir():
            return f"there is no folder {path.parent}", "make it, or give another path"
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            return "may not be written", "give another path"
    except OSError as error:  # such as a name that is too long
        return f"cannot be written: {error.strerror}", "give another path"
    return "", ""
