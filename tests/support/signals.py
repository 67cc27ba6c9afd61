"""A plug-in of pytest: however the tests are started, signals do in them what they do at a terminal.

It also ends, with the tests, all that they started.
"""

import os
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import processes


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    processes.take_signals_back()
    worker = getattr(config, "workerinput", {}).get("workerid", "")  # its mark begins with that of the run
    marks = os.environ.get(processes.MARK), worker or uuid.uuid4().hex
    os.environ[processes.MARK] = ".".join(filter(None, marks))
    if not worker and config.getoption("dist", "no") != "no":  # it runs no test itself
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the tests end what they started, as by Ctrl-C


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    processes.end_started()
    if not hasattr(config, "workerinput"):
        processes.end_marked()


def caught_signals() -> tuple[bool, bool]:
    """Return whether this process handles SIGINT and SIGTERM; what Python was last told may have been undone in C."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
    assert caught
    interrupt, terminate = (int(caught[1], 16) >> number - 1 & 1 == 1 for number in (signal.SIGINT, signal.SIGTERM))
    return interrupt, terminate


@pytest.fixture(autouse=True)
def signals_are_left_alone() -> Iterator[None]:
    """Let no test change what a signal does to the tests after it: another would die, and only in some orders."""
    before = caught_signals()
    yield
    assert caught_signals() == before, "this test leaves SIGINT or SIGTERM handled in another way"
