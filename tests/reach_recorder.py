"""A plug-in of pytest that records which test runs which line, and how long each test takes.

`benchmarks/reach.py` loads it, with coverage.py running in all processes. Lines of a fixture count for the test that
sets it up. Processes that a test starts have its name from the environment.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = "LONGSHORE_REACH"  # the environment variable that names where times are written


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    from coverage import Coverage  # only a recording has it

    running = Coverage.current()
    if running is not None:
        running.switch_context(item.nodeid)
    began_s = time.monotonic()
    try:
        return (yield)
    finally:
        if running is not None:
            running.switch_context("")
        path = Path(os.environ[FOLDER]) / f"times-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl"
        with path.open("a", encoding="utf-8") as times:
            times.write(json.dumps([item.nodeid, time.monotonic() - began_s]) + "\n")
