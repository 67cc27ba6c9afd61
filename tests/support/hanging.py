"""A plug-in of pytest: a test that hangs fails, and takes no other test with it.

pytest-timeout's exception ends most. A test that does not hear it, in C or with signals blocked, ends with its process:
pytest-xdist then starts another, which goes on behind that test. Time in which kernels are compiled does not count, nor
does time in which what the test runs was ready and waited for a core, up to three times as much as a test has.
"""

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

GRACE_S = 10.0  # from the exception to the end of the process
ELSEWHERE_S = 300.0  # for what is no test: to collect, to compile, to end
EXCUSED = 3.0  # at most so many times the limit
STDERR = pytest.StashKey[int]()
LIMIT = pytest.StashKey["Limit"]()


class Limit:
    """The time that a test has.

    Args:
        item: The test.
        settings: What pytest-timeout knows of it.
        stderr: File descriptor to which stacks are written.
    """

    def __init__(self, item: pytest.Item, settings: Any, stderr: int) -> None:
        self.item, self.settings, self.stderr = item, settings, stderr
        self.seconds = float(settings.timeout)
        self.began_s, self.waited_s, self.compiled_s = time.monotonic(), _waited_s(), 0.0
        self.compiling_since_s: list[float] = []
        signal.signal(signal.SIGALRM, self._is_late)
        self._arm(self.seconds)

    def _arm(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=self.stderr)

    def left_s(self) -> float:
        """Return how many seconds are left."""
        excused_s = min(max(_waited_s() - self.waited_s, 0.0), EXCUSED * self.seconds)
        return self.seconds + self.compiled_s + excused_s - (time.monotonic() - self.began_s)

    def _is_late(self, *_: object) -> None:
        __tracebackhide__ = True
        if (left_s := self.left_s()) > 0.01:
            self._arm(left_s)
        else:
            pytest_timeout.timeout_sigalrm(self.item, self.settings)

    def on_compile(self, event: Any) -> None:
        """Stop the clock while a kernel is compiled, in which LLVM hears no signals."""
        if event.is_start:
            self.compiling_since_s.append(time.monotonic())
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.dump_traceback_later(ELSEWHERE_S, exit=True, file=self.stderr)
        elif self.compiling_since_s:
            since_s = self.compiling_since_s.pop()
            if not self.compiling_since_s:  # one kernel may call for another
                self.compiled_s += time.monotonic() - since_s
                self._arm(max(self.left_s(), 0.01))

    def cancel(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.cancel_dump_traceback_later()


class Compiling:
    """Passes Numba's events on to the limit of the test that runs."""

    limit: Limit | None = None
    is_registered = False

    def notify(self, event: Any) -> None:
        if self.limit:
            self.limit.on_compile(event)

    def watch(self, limit: Limit | None) -> None:
        self.limit = limit
        numba = sys.modules.get("numba.core.event")  # nothing is loaded for this
        if numba and not self.is_registered:
            numba.Listener.register(Compiling)
            numba.register("numba:compile", self)
            self.is_registered = True


compiling = Compiling()


def _waited_s() -> float:
    """Return for how long this process and what it runs have been ready and waited for a core."""
    waited_ns, pids = 0, [os.getpid()]
    while pids:
        for task in Path(f"/proc/{pids.pop()}/task").glob("*"):
            try:
                waited_ns += int((task / "schedstat").read_text().split()[1])
                pids += map(int, (task / "children").read_text().split())
            except (OSError, IndexError):  # it has ended; or this kernel keeps no such account
                continue
    return waited_ns / 1e9


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # behind it, pytest will put a file while a test runs


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(ELSEWHERE_S, exit=True, file=config.stash[STDERR])  # threads, what is at exit


class Watch(threading.Thread):
    """Ends what a process of tests left that died, as far as it holds the pipe by which its end would be noticed."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.nodes: list[Any] = []

    def run(self) -> None:
        while True:
            time.sleep(0.5)
            for node in [*self.nodes]:
                process = node.gateway._io.popen
                if process.poll() is not None:
                    self.nodes.remove(node)
                    with contextlib.suppress(OSError, ValueError):  # it is closed
                        end_holders(Path(f"/proc/self/fd/{process.stdout.fileno()}").readlink())


def end_holders(pipe: Path) -> None:
    """Kill all other processes that hold a pipe."""
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            pid = int(file.parts[2])
            if pid != os.getpid() and file.readlink() == pipe:
                os.kill(pid, signal.SIGKILL)


watch = Watch()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    watch.nodes.append(node)
    if not watch.is_alive():
        watch.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    faulthandler.dump_traceback_later(ELSEWHERE_S, exit=True, file=session.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    item.stash[LIMIT] = Limit(item, settings, item.config.stash[STDERR])
    compiling.watch(item.stash[LIMIT])
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    if LIMIT in item.stash:
        item.stash[LIMIT].cancel()
        del item.stash[LIMIT]
    compiling.watch(None)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Give fixtures a time of their own to end in, where the test has failed: pytest-timeout then waits for ever."""
    if LIMIT not in item.stash:
        settings = pytest_timeout._get_item_settings(item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    return (yield)
