"""A test that hangs, in whatever way, fails; the tests before and behind it pass, and the run ends."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.processes import run

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support.going_on import GoesOn
pytest_plugins = ["tests.support.signals", "tests.support.hanging"]
def pytest_xdist_make_scheduler(config, log): return GoesOn(config, log)
def pytest_configure():
    from tests.support import limits
    limits.GRACE_S = 0.5
"""
FILE = """
import ctypes, faulthandler, os, signal, subprocess, threading, time, pytest
from tests.support import processes
@pytest.fixture
def ends():
    yield
    if {teardown}: time.sleep(1000)
def test_before(): pass
def test_it(ends):
    {body}
def test_behind(): pass
"""
IGNORES = "trap '' TERM INT; sleep 1000"
HANGS = {
    "in Python": "time.sleep(1000)",
    "in a loop": "while True: pass",
    # No signal ends it, and it keeps Python's lock.
    "in C": "mutex = (ctypes.c_long * 9)(); [ctypes.PyDLL(None).pthread_mutex_lock(mutex) for _ in range(2)]",
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(1000)",
    "alarm ignored": "signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(1000)",
    "exception swallowed": """
    while True:
        try: time.sleep(1000)
        except BaseException: pass
""",
    "waits for a child": f"subprocess.Popen(['sh', '-c', {IGNORES!r}]).__exit__(None, None, None)",
    "waits for our child": f"with processes.start(['sh', '-c', {IGNORES!r}]) as it: it.wait()",
    "a fork holds its pipes": "os.fork() or time.sleep(1000); os.kill(os.getpid(), signal.SIGKILL)",
    "a thread that does not end": "threading.Thread(target=time.sleep, args=[1000]).start(); assert False",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "crashed": "faulthandler._sigsegv()",
    "exits": "os._exit(0)",
    "its end hangs": "assert False",
}  # fmt: skip


def outcomes(out: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) \S*::(test_\w+)\[?", out, re.MULTILINE):
        found.setdefault(name, set()).add(outcome)
    return found


SOME = ("in Python", "in C", "a fork holds its pipes", "its end hangs")


@pytest.mark.timeout(200)  # a whole run of tests, which starts a process for each that dies
@pytest.mark.parametrize("hangs", [SOME, pytest.param([*HANGS], marks=pytest.mark.full)], ids=["some", "all"])
def test_a_test_that_hangs_fails_alone(tmp_path: Path, hangs: Sequence[str]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for number, how in enumerate(hangs):
        text = FILE.format(body=HANGS[how], teardown=how == "its end hangs").replace("test_", f"test_{number}_")
        (tmp_path / f"test_{number}.py").write_text(text)
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=0.5", "-n", "2", "-rA"]
    line += ["--max-worker-restart", str(len(hangs)), "--dist", "loadfile"]
    done = run(line, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    found = outcomes(done.stdout)
    for number, how in enumerate(hangs):
        assert found.get(f"test_{number}_before") == {"PASSED"}, how
        assert "FAILED" in found.get(f"test_{number}_it", ()), how
        assert found.get(f"test_{number}_behind") == {"PASSED"}, how
    assert done.returncode == 1
