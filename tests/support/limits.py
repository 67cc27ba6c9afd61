"""How long a test may take, and what of that does not count."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout

from tests.support import processes

GRACE_S = 10.0  # from the exception to the end of the process
ELSEWHERE_S = 300.0  # for what is no test: to collect, to compile, to start a server for many tests, to end
ROUGHLY = 0.5
SLOWED = 6.0  # times the limit at most, where a test waits for a core
LOOK_S = 2.0  # between two looks at the processes of a test, once it has run for as long


class Waits:
    """For how long the processes of a test have been ready and waited for a core, those that have ended among them.

    What daemons of Slurm and Ray start for a test is not known to be its own: so all of the time counts in which any
    process of the machine had to wait.
    """

    def __init__(self) -> None:
        self._pressed_s = _pressed_s()
        self._began_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._before_s = {pid: _waited_s(pid) for pid in _tree()}
        self._last_s: dict[int, float] = {}

    def look(self) -> None:
        """Note what is known of each process that lives: of one that ends nothing is known any more."""
        tree = _tree()
        tree |= {it for it in processes.marked() if it not in tree and _started_s(it) >= self._began_boot_s}
        for pid in tree:
            self._last_s[pid] = max(_waited_s(pid), self._last_s.get(pid, 0.0))

    def sum_s(self) -> float:
        """Return the sum over all processes, which may be more than all of the time: they wait beside each other."""
        self.look()
        last_s = self._last_s.copy()  # a thread may look meanwhile
        own_s = sum(max(seconds - self._before_s.get(pid, 0.0), 0.0) for pid, seconds in last_s.items())
        return max(own_s, _pressed_s() - self._pressed_s)


class Limit:
    """The time that a test has.

    Args:
        item: The test.
        settings: What pytest-timeout knows of it.
        stderr: File descriptor to which stacks are written.
    """

    def __init__(self, item: pytest.Item, settings: Any, stderr: int) -> None:
        self.item, self.settings, self.stderr = item, settings, stderr
        self.stopped_at_s: list[float] = []
        self.is_over = False
        signal.signal(signal.SIGALRM, self._is_late)
        self._begin(float(settings.timeout))

    def _begin(self, seconds: float) -> None:
        self.seconds = seconds
        self.began_s, self.uncounted_s, self.waits = time.monotonic(), 0.0, Waits()
        self._arm(seconds)

    def _arm(self, seconds: float) -> None:
        # Code in C that hears no signal may have waited for a core; on a busy machine it has twice as long.
        grace_s = GRACE_S * min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 2.0)
        most_s = seconds * SLOWED if self.is_over else seconds + grace_s
        signal.setitimer(signal.ITIMER_REAL, seconds)
        faulthandler.dump_traceback_later(most_s, exit=True, file=self.stderr)

    def left_s(self) -> float:
        """Return how many seconds are left."""
        elapsed_s = time.monotonic() - self.began_s - self.uncounted_s
        return self.seconds - max(elapsed_s - self.waits.sum_s(), elapsed_s / SLOWED)

    def _is_late(self, *_: object) -> None:
        """Raise the exception of the end of the time; end this process where that has not ended the test."""
        __tracebackhide__ = True
        if (left_s := self.left_s()) > 0.01:
            self._arm(left_s)
        elif pytest_timeout.is_debugging():
            self.cancel()
        elif self.is_over:
            faulthandler.dump_traceback(self.stderr)
            os._exit(1)
        else:
            self.is_over = True
            self._begin(GRACE_S)
            pytest_timeout.timeout_sigalrm(self.item, self.settings)

    def used(self) -> float:
        """Return the share of its time that is used, roughly where that is little."""
        share = (time.monotonic() - self.began_s) / self.seconds
        return share if share < ROUGHLY else 1.0 - self.left_s() / self.seconds

    def stop(self) -> None:
        """Count no time from now on; what happens instead has an end, too."""
        self.stopped_at_s.append(time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.dump_traceback_later(ELSEWHERE_S, exit=True, file=self.stderr)

    def go_on(self) -> None:
        """Count time again, once for each stop."""
        since_s = self.stopped_at_s.pop()
        if not self.stopped_at_s:
            self.uncounted_s += time.monotonic() - since_s
            self._arm(max(self.left_s(), 0.01))

    def cancel(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.cancel_dump_traceback_later()


class Clock:
    """The limit of the test that runs. It stops for each kernel that Numba compiles, in which LLVM hears no signals."""

    limit: Limit | None = None
    hears_numba = looks = False

    def watch(self, limit: Limit | None) -> None:
        self.limit = limit
        if not self.looks:
            threading.Thread(target=self._look, daemon=True).start()
            self.looks = True
        numba = sys.modules.get("numba.core.event")  # nothing is loaded for this
        if numba and not self.hears_numba:
            numba.Listener.register(Clock)
            numba.register("numba:compile", self)
            self.hears_numba = True

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if (limit := self.limit) and time.monotonic() - limit.began_s > LOOK_S:
                with contextlib.suppress(OSError, KeyError):  # such as no descriptor that is left, in a test of that
                    limit.waits.look()

    def notify(self, event: Any) -> None:
        """Take note of what Numba does."""
        if self.limit and event.is_start:
            self.limit.stop()
        elif self.limit and self.limit.stopped_at_s:
            self.limit.go_on()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let something take time that is no test's own: the start of a server that many share."""
        limit = self.limit
        if limit:
            limit.stop()
        try:
            yield
        finally:
            if limit:
                limit.go_on()


clock = Clock()


def _tree() -> set[int]:
    """Return this process and all that descend from it by parents that live."""
    found, pids = set[int](), [os.getpid()]
    while pids:
        found.add(pid := pids.pop())
        for task in _tasks(pid):
            with contextlib.suppress(OSError):  # it has ended
                pids += map(int, (task / "children").read_text().split())
    return found


def _waited_s(pid: int) -> float:
    """Return for how long a process has been ready and waited for a core."""
    waited_ns = 0
    for task in _tasks(pid):
        with contextlib.suppress(OSError, IndexError):  # it has ended; or this kernel keeps no such account
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


def _pressed_s() -> float:
    """Return for how long some process of the machine has waited for a core since its start; 0 if it does not count."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6
    return 0.0


def _started_s(pid: int) -> float:
    """Return when a process began, in seconds since the machine was started."""
    with contextlib.suppress(OSError):
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return int(ticks) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _tasks(pid: int) -> list[Path]:
    try:
        return [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
