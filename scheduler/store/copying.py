"""Copies of a store in SQLite: taken while others write to it, and put in its place."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ...cluster.files.paths import exists
from .database import VERSION_TABLE, StoreError, is_known_revision, restore_mark_path
from .events import SCHEDULER_LEASE, LeaseRow

_LEASE = "SELECT owner, token, expires_s FROM lease WHERE name = ?"
BESIDE = ("", "-wal", "-shm")  # what SQLite keeps beside a file, too


def back_up(file: Path, target: Path) -> int:
    """Write a copy of a store as it is at one moment, for its owner alone, and return its size in bytes.

    Args:
        file: Of the store; who writes to it goes on.
        target: Where the copy will be; it is whole or not there.

    Raises:
        StoreError: If it cannot be read, is damaged, is no store, or cannot be copied there.
        InputError: If the folder of the copy cannot be read.
    """
    if exists(target):
        raise StoreError(f"{target}: is there already; give another path")
    with _draft_beside(target) as draft:
        _copy(file, draft)
        draft.rename(target)
        _sync_folder(target.parent)
    return target.stat().st_size


def swap_in_backup(backup: Path, file: Path, stamp: str) -> Path | None:
    """Put a copy in the place of a store that no process has open.

    If this is cut off, a mark stays beside the file with which no store is opened; calling it again makes it whole. No
    mark stays of one that fails before anything is moved.

    Args:
        backup: The copy; it stays.
        file: Of the store, which may not be there.
        stamp: Makes the name of the replaced one unique.

    Returns:
        Where the replaced one is; None if there was none.

    Raises:
        StoreError: If the copy cannot be read, is damaged, is no store, or is a newer version's.
    """
    mark = restore_mark_path(file)
    with _draft_beside(file) as draft:
        _copy(backup, draft)
        is_resumed = mark.exists()  # one that was cut off may have moved some of the old store
        if is_resumed:
            stamp = mark.read_text(encoding="utf-8") or stamp
        aside = file.with_name(f"{file.name}.{stamp}")
        if aside.exists() and not is_resumed:
            raise StoreError(f"{aside}: is there already; try again in a second")
        try:
            _replace(file, draft, aside, mark, stamp)
        except OSError:
            if not is_resumed and not any(Path(f"{aside}{end}").exists() for end in BESIDE):
                mark.unlink(missing_ok=True)
            raise
    return aside if aside.exists() else None


def _replace(file: Path, draft: Path, aside: Path, mark: Path, stamp: str) -> None:
    """Move a store aside and a draft into its place, with a mark beside them meanwhile."""
    if not (mark.exists() and mark.read_text(encoding="utf-8")):  # else a full disk would leave it without its stamp
        mark.write_text(stamp, encoding="utf-8")
    _sync_folder(file.parent)
    # The log of a file has to stay with it: without it, what was written last is lost.
    for end in BESIDE:
        if not Path(f"{aside}{end}").exists():
            with suppress(FileNotFoundError):
                Path(f"{file}{end}").rename(f"{aside}{end}")
    draft.rename(file)
    _sync_folder(file.parent)
    mark.unlink()


def lease_in_file(file: Path) -> LeaseRow | None:
    """Return the scheduler's lease in a store, None if no scheduler ever had one or it cannot be read."""
    try:
        with closing(_connect(file)) as store:
            found = store.execute(_LEASE, (SCHEDULER_LEASE,)).fetchone()
    except sqlite3.Error:
        return None
    return None if found is None else LeaseRow(str(found[0]), int(found[1]), float(found[2]))


def processes_with_open(file: Path) -> list[int]:
    """Return the processes of this machine that have a file open, as far as they can be seen."""
    try:
        wanted = file.stat()
    except OSError:
        return []
    found = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or has ended
            if any(_is_handle_of(handle, wanted) for handle in (process / "fd").iterdir()):
                found.add(int(process.name))
    return sorted(found - {os.getpid()})


def _is_handle_of(handle: Path, wanted: os.stat_result) -> bool:
    try:
        seen = handle.stat()
    except OSError:
        return False
    return (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)


def _copy(source: Path, target: Path) -> None:
    """Copy a store as it is at one moment.

    Raises:
        StoreError: If it cannot be, is damaged, or is no store of a version that is known here.
    """
    try:
        # In one step: a write by another process would let one of several steps begin anew, for ever.
        with closing(_connect(source)) as read, closing(sqlite3.connect(target)) as written:
            _check_version(read, source)
            read.backup(written, pages=-1)
            written.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
            problem = written.execute("PRAGMA quick_check(1)").fetchone()[0]
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{source}: cannot be copied: {error}") from error
    if problem != "ok":
        raise StoreError(f"{source}: is damaged: {problem}")


def _connect(file: Path) -> sqlite3.Connection:
    # rw: a file that is not there is not made; ro could not read the log of one that no process has open.
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=30.0)


def _check_version(read: sqlite3.Connection, file: Path) -> None:
    """Refuse what is no store of a version that is known here."""
    tables = {row[0] for row in read.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if VERSION_TABLE not in tables:
        raise StoreError(f"{file}: is no store of Longshore")
    version = read.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    if version is None or not is_known_revision(str(version[0])):
        raise StoreError(f"{file}: a newer version of Longshore has written it; use that version")


@contextmanager
def _draft_beside(target: Path) -> Iterator[Path]:
    """Give a name beside a file for its draft, which is for its owner alone, and which is removed at the end."""
    draft = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        yield draft
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error}") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            Path(f"{draft}{end}").unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
