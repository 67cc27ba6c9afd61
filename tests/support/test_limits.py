"""What counts to the time of a test, and what does not."""

import contextlib
import faulthandler
import os
import shlex
import signal
import sys
import time
import uuid
from types import SimpleNamespace

import pytest

from tests.support import processes
from tests.support.limits import SLOWED, Clock, Limit
from tests.support.processes import start

SPINS = "while True: pass"
CHILD = [sys.executable, "-c", SPINS]
ORPHAN = ["sh", "-c", f"setsid {shlex.quote(sys.executable)} -c {shlex.quote(SPINS)} & exit 0"]


@pytest.fixture
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Limit:
    """A limit that arms no timer, as that of this test has."""
    monkeypatch.setattr(Limit, "_arm", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    return Limit(request.node, SimpleNamespace(timeout=1000.0), 2)


def elapsed_s(limit: Limit) -> float:
    return time.monotonic() - limit.began_s


def test_time_passes(limit: Limit) -> None:
    time.sleep(0.05)
    assert 0.05 / SLOWED <= limit.seconds - limit.left_s() <= elapsed_s(limit)


@pytest.mark.parametrize("line", [CHILD, ORPHAN], ids=["child", "orphan"])
def test_time_in_which_its_processes_wait_for_a_core_does_not_count(
    limit: Limit, line: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.MARK, f"{os.environ[processes.MARK]}.{uuid.uuid4().hex}")
    with contextlib.ExitStack() as stack:
        stack.callback(processes.end_marked)
        for _ in range(2 * (os.cpu_count() or 1) + 1):
            stack.enter_context(start(line))
        give_up = time.monotonic() + 20.0
        while limit.seconds - limit.left_s() > elapsed_s(limit) - 0.05:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        waited_s = limit.waits.sum_s()
    assert waited_s > 0.0
    processes.end_marked()
    assert limit.waits.sum_s() >= waited_s  # also of those that have ended


def test_the_clock_stands_while_kernels_are_compiled_and_shared_servers_start(limit: Limit) -> None:
    clock, begins, ends = Clock(), SimpleNamespace(is_start=True), SimpleNamespace(is_start=False)
    clock.limit = limit
    for event in (begins, begins, ends):  # one kernel may call for another
        clock.notify(event)
    time.sleep(0.1)
    clock.notify(ends)
    with clock.stopped():
        time.sleep(0.1)
    assert 0.2 <= limit.uncounted_s <= elapsed_s(limit)


def test_a_compilation_that_began_before_a_test_does_not_matter(limit: Limit) -> None:
    clock = Clock()
    clock.limit = limit
    clock.notify(SimpleNamespace(is_start=False))
    assert limit.uncounted_s == 0.0
