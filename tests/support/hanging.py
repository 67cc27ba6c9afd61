"""A plug-in of pytest: a test that hangs fails, and takes no other test with it.

pytest-timeout's exception ends most. A test that does not hear it, in C or with signals blocked, ends with its process:
pytest-xdist then starts another, which goes on behind that test. Time in which kernels are compiled or a server starts
that many tests share does not count, nor does time in which what a test runs is ready and waits for a core; but a
test never takes more than six times what it has.
"""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout

from tests.support.limits import ELSEWHERE_S, Limit, clock
from tests.support.reports import USED

STDERR = pytest.StashKey[int]()
LIMIT = pytest.StashKey[Limit]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # behind it, pytest will put a file while a test runs


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(ELSEWHERE_S, exit=True, file=config.stash[STDERR])  # threads, what is at exit


class Watch(threading.Thread):
    """Ends what a process of tests left that died, as far as it holds the pipe by which its end would be noticed."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.pipes: list[tuple[Any, Path]] = []

    def add(self, process: Any) -> None:
        """Watch a process; its pipe is known by name, as its number may soon be that of another."""
        self.pipes.append((process, Path(f"/proc/self/fd/{process.stdout.fileno()}").readlink()))
        if not self.is_alive():
            self.start()

    def run(self) -> None:
        while True:
            time.sleep(0.5)
            for process, pipe in [*self.pipes]:
                if process.poll() is not None:
                    self.pipes.remove((process, pipe))
                    end_holders(pipe)


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
    watch.add(node.gateway._io.popen)


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
    clock.watch(item.stash[LIMIT])
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    if LIMIT in item.stash:
        item.stash[LIMIT].cancel()
        del item.stash[LIMIT]
    clock.watch(None)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Give fixtures a time of their own to end in, where the test has failed: pytest-timeout then waits for ever."""
    if LIMIT not in item.stash:
        settings = pytest_timeout._get_item_settings(item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        return (yield)
    finally:
        if LIMIT in item.stash:
            item.user_properties.append((USED, item.stash[LIMIT].used()))
