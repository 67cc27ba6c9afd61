"""Which signals go to all processes of a job, and which to one of them alone.

Source: SPEC C8.
"""

import os
import select
import signal
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from ..failover.processes.tools import ending_with

SAME_S = 1.0  # within which all processes of a job get a signal that goes to all of them
_REPORT = struct.Struct("<id")  # a signal, and when it came


class Witness:
    """A process beside this one, which reports the signals that it gets.

    A second SIGTERM means "at once" to many programs. So nothing is to hand on to a command what that has got already:
    shells and supervisors signal the group of a job, and Slurm all its processes. Who stops a container signals its
    first process alone.

    Args:
        numbers: The signals that it looks for; it ends with this process.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._reads, writes = os.pipe()
        self._reports: list[tuple[int, float]] = []
        own = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            self._pid = os.fork()
            if not self._pid:
                _watch(own, writes, numbers)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writes)

    def saw(self, number: int) -> bool:
        """Say whether it has got a signal, too, that this process got just now; wait for that if need be."""
        began_s = time.monotonic()
        self._reports = [it for it in self._reports if it[1] > began_s - SAME_S]
        while True:
            for report in self._reports:
                if report[0] == number:
                    self._reports.remove(report)
                    return True
            left_s = began_s + SAME_S - time.monotonic()
            if left_s <= 0.0 or not select.select([self._reads], [], [], left_s)[0]:
                return False
            if not (came := os.read(self._reads, 64 * _REPORT.size)):
                return False  # it was killed
            self._reports += [it for it in _REPORT.iter_unpack(came) if it[1] > began_s - SAME_S]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _watch(parent: int, writes: int, numbers: Sequence[signal.Signals]) -> None:
    """Report each signal, until the parent is gone."""
    try:
        ending_with(parent)()
        while True:
            os.write(writes, _REPORT.pack(signal.sigwait(numbers), time.monotonic()))
    finally:
        os._exit(0)  # whatever happened: this is no second copy of the parent
