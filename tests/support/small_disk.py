"""Small file systems that a test may fill."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import processes

ABANDONED_S = 24 * 3600.0  # after which the lock of a run is that of a run that was killed
RUN_FOLDER = re.compile(r"(.*/pytest-of-[^/]+/(?:pytest|garbage)-[^/]+)/.+")


@contextmanager
def small_disk(folder: Path, size_bytes: int, end: Callable[[], object]) -> Iterator[Path]:
    """A file system of its own in a new folder; skips the test where none may be mounted.

    Args:
        folder: That does not exist yet.
        size_bytes: Of the file system.
        end: Ends the processes that use it. The file `filling` is deleted before.
    """
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder)]
    try:
        done = processes.run(line, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no command `mount` here; on Debian: apt-get install mount")
    if done.returncode != 0:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    try:
        yield folder
        (folder / "filling").unlink(missing_ok=True)
        end()
    finally:
        if folder.is_mount():
            processes.run(["umount", "--lazy", str(folder)], check=True)


def unmount_abandoned(mounts: str, now_s: float) -> None:
    """Unmount what tests left mounted whose processes were killed: pytest could not delete the folders of their runs.

    Args:
        mounts: Content of /proc/self/mounts.
        now_s: Unix time.
    """
    for line in mounts.splitlines():
        point = line.split()[1].encode().decode("unicode_escape")
        run = RUN_FOLDER.fullmatch(point)
        if run is not None and not _is_running(Path(run[1]), now_s):
            processes.run(["umount", "--lazy", point], check=False, capture_output=True)


def _is_running(folder: Path, now_s: float) -> bool:
    """Return whether the run of a folder has not ended: pytest keeps a lock in it until then."""
    try:
        return now_s - (folder / ".lock").stat().st_mtime < ABANDONED_S
    except OSError:
        return False


def unmount_all_abandoned() -> None:
    """Unmount what ended runs of this machine's tests left mounted."""
    mounts = Path("/proc/self/mounts")
    if mounts.exists():
        unmount_abandoned(mounts.read_text(errors="surrogateescape"), time.time())
