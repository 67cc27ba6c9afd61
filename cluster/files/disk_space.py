"""Free space on the disks of a scheduler, and a reserve of it, so that ends and cancels can always be written."""

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

RESERVE = "reserve"  # name of the file
RESERVE_BYTES = 32 << 20  # at most; ends and cancels of thousands of jobs


class DiskSpace:
    """Watches the free space where a scheduler writes. Any thread may use it.

    Args:
        folders: On the disks; the reserve is in the first.
        least_free_bytes: With less, no job is admitted and none is started; 0 for no bound.
    """

    def __init__(self, folders: Sequence[Path], least_free_bytes: int) -> None:
        self.least_free_bytes = least_free_bytes
        self._folders, self._reserve, self._one = folders, folders[0] / RESERVE, threading.Lock()
        self._draft = self._reserve.with_suffix(".draft")
        self._reserve_bytes = min(RESERVE_BYTES, least_free_bytes // 4)
        self._was_low = False

    def free_bytes(self) -> int:
        """Return what is left on the fullest of the disks, without the reserve.

        Raises:
            OSError: If it cannot be read.
        """
        found = [os.statvfs(folder) for folder in self._folders]
        return min(disk.f_bavail * disk.f_frsize for disk in found)

    def is_low(self) -> bool:
        """Return whether there is too little for more jobs; an unreadable disk has none."""
        try:
            return self.free_bytes() < self.least_free_bytes
        except OSError:
            return self.least_free_bytes > 0

    def reason_against_starts(self) -> str:
        """Return why no job may start, "" if there is room for more."""
        return "nothing starts, as the disk that the scheduler writes to is nearly full" if self.is_low() else ""

    def adjust_reserve(self) -> None:
        """Give the reserve up where nothing else is left, and take it again where there is plenty.

        Raises:
            OSError: If it cannot be read.
        """
        free_bytes = self.free_bytes()
        self._log_change(free_bytes)
        if free_bytes < self._reserve_bytes // 4:
            self.release_reserve()
        elif free_bytes >= self.least_free_bytes + self._reserve_bytes:
            self._create_reserve()

    def release_reserve(self) -> bool:
        """Give the reserve up, and return whether there was one."""
        with self._one:
            self._remove_draft()
            try:
                self._reserve.unlink()
            except OSError:
                return False
        log.error("the disk of %s is full: its reserve is given up, so that ends can be written", self._reserve.parent)
        return True

    def _create_reserve(self) -> None:
        """Create the reserve, or a larger one; it gets its name once it is whole, as this process may end meanwhile."""
        with self._one:
            if self._kept_bytes() >= self._reserve_bytes:
                return
            try:
                file = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(file, 0, self._reserve_bytes)
                finally:
                    os.close(file)
                self._draft.rename(self._reserve)
            except OSError as error:
                self._remove_draft()
                log.warning("%s: no reserve can be kept: %s", self._reserve, error)

    def _remove_draft(self) -> None:
        with suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def _kept_bytes(self) -> int:
        """Return the size of the reserve, 0 if there is none."""
        try:
            return self._reserve.stat().st_size
        except OSError:
            return 0

    def _log_change(self, free_bytes: int) -> None:
        is_low = free_bytes < self.least_free_bytes
        if is_low and not self._was_low:
            log.error(
                "%d bytes are left where the scheduler writes: until there are %d, no job is admitted and none starts",
                free_bytes, self.least_free_bytes,
            )  # fmt: skip
        elif self._was_low and not is_low:
            log.warning("there is room again: jobs are admitted and start")
        self._was_low = is_low
