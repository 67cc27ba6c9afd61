"""The folders of attempts, which hold all that is known of them."""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ....cluster.files.errors import BackendError
from ...files.durable import is_there, make_folder, open_folder, read_whole, write_first

_NAME = re.compile(r"ls-[a-z0-9-]{1,60}")
_ID_BYTES = 64


class Folders:
    """The folders of all attempts, by their names.

    Args:
        folder: Where they are; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._attempts = folder.absolute() / "attempts"
        self._attempts.mkdir(parents=True, exist_ok=True)

    def identity(self) -> str:
        """Return what tells these folders from all others, also when they are moved; made up if they are new.

        Raises:
            BackendError: If it cannot be read or written.
        """
        with told_as_backend_error("attempts.id"):
            folder = open_folder(str(self._attempts.parent))
            try:
                write_first(folder, "attempts.id", os.urandom(8).hex().encode())
                return read_whole(folder, "attempts.id", _ID_BYTES).decode("ascii").strip()
            finally:
                os.close(folder)

    def path(self, name: str) -> Path:
        """Return where the folder of an attempt is.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        if not _NAME.fullmatch(name):
            raise BackendError(f"{name!r} is no name of an attempt: ls-, then 1 to 60 of a-z, 0-9 and -")
        return self._attempts / name

    def names_with(self, file: str) -> list[str]:
        """Return the names of all attempts in whose folder there is a file, or of which that may not be seen.

        None of the folders is opened.

        Raises:
            BackendError: If that cannot be seen.
        """
        with told_as_backend_error("attempts"), os.scandir(self._attempts) as entries:
            return sorted(
                it.name for it in entries
                if _NAME.fullmatch(it.name) and it.is_dir(follow_symlinks=False) and _may_hold(it.path, file)
            )  # fmt: skip

    @contextmanager
    def open(self, name: str) -> Iterator[int | None]:
        """Open an attempt's folder, which may not be there; that of all attempts has to be, else nothing is known.

        Raises:
            OSError: If nothing is known.
        """
        attempts = open_folder(str(self._attempts))
        try:
            folder = open_folder(name, inside=attempts)
        except FileNotFoundError:
            folder = None
        finally:
            os.close(attempts)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    @contextmanager
    def make(self, name: str) -> Iterator[int]:
        """Open an attempt's folder, and make it first if need be.

        Raises:
            OSError: If it cannot be made.
        """
        attempts = open_folder(str(self._attempts))
        try:
            make_folder(attempts, name)
            folder = open_folder(name, inside=attempts)
        finally:
            os.close(attempts)
        try:
            yield folder
        finally:
            os.close(folder)


def _may_hold(path: str, file: str) -> bool:
    """Say whether a folder holds a file; it may if nobody is let to see that, as a job can see to.

    Raises:
        OSError: If that cannot be told.
    """
    try:
        return is_there(None, f"{path}/{file}")
    except PermissionError:
        return True


@contextmanager
def told_as_backend_error(name: str) -> Iterator[None]:
    """Let what goes wrong with an attempt's files be an error of the backend.

    Raises:
        BackendError: If it does.
    """
    try:
        yield
    except OSError as error:
        raise BackendError(f"{name}: {error}") from error


def delete_but(folder: int, proofs: Collection[str]) -> None:
    """Delete all in a folder but logs and the markers without which its attempt could start a second time.

    Args:
        folder: Descriptor of the folder.
        proofs: Names of those markers.

    Raises:
        OSError: If something cannot be deleted.
    """
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if name in proofs:
            continue
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif not re.fullmatch(r"rank-\d+\.log", name):
            os.unlink(name, dir_fd=folder)
