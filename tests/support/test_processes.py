"""The processes that tests start begin the same way wherever the tests run, and do not outlive them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import PIPE, TimeoutExpired, run, start

ROOT = Path(__file__).parents[2]
NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
# Signals 32 and 33 are the C library's own, which no program can set.
STATUS = r"""
import re
masks = re.findall(r"Sig(?:Blk|Ign):\s*(\w+)", open("/proc/self/status").read())
print(*(hex(int(mask, 16) & ~(3 << 31)) for mask in masks))
"""
DEFAULTS = f"0x0 {hex(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)}"  # none blocked, Python's own ignored
# A parent that ends at once, and whose child in the same group holds the pipe.
LEAVES = "import os, time; pid = os.fork(); print(pid or os.getpid(), flush=True) if pid else time.sleep(1000)"


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    give_up = time.monotonic() + 10
    while is_alive(pid):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def in_a_process_that(prepares: Callable[[], None], code: str) -> str:
    """Return what code writes in a process that is started with signals of its own."""
    line = [sys.executable, "-c", f"from tests.support.processes import *\n{code}"]
    done = subprocess.run(line, cwd=ROOT, preexec_fn=prepares, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def ignoring() -> None:
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def blocking() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {*NUMBERS, signal.SIGALRM})


def both() -> None:
    ignoring()
    blocking()


@pytest.mark.parametrize("prepare", [ignoring, blocking, both])
@pytest.mark.parametrize("where", ["main thread", "other thread"])
def test_a_child_has_default_signals_whatever_its_parent_ignores_or_blocks(
    prepare: Callable[[], None], where: str
) -> None:
    code = f"""
import sys, threading
def work(): print(run([sys.executable, "-c", {STATUS!r}], check=True, capture_output=True).stdout, end="")
thread = threading.Thread(target=work)
work() if {where!r} == "main thread" else (thread.start(), thread.join())
"""
    assert in_a_process_that(prepare, code) == DEFAULTS


@pytest.mark.parametrize("prepare", [ignoring, blocking, both])
def test_these_tests_are_interrupted_whoever_ignored_it_before_them(prepare: Callable[[], None]) -> None:
    code = """
take_signals_back()
os.kill(os.getpid(), signal.SIGHUP)  # without effect, where it was ignored: the tests go on behind a closed terminal
try: os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt: print("interrupted")
"""
    if prepare is blocking:
        code = code.replace("os.kill(os.getpid(), signal.SIGHUP)", "")
    assert in_a_process_that(prepare, code) == "interrupted"


def test_a_wait_that_is_not_given_an_end_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WAIT_S", 0.1)
    for how in ("wait", "communicate"):
        with start(["sleep", "1000"]) as process:
            with pytest.raises(TimeoutExpired):
                getattr(process, how)()
            assert ends(process.pid)


@pytest.mark.full
def test_a_command_that_takes_too_long_is_killed_with_its_group_and_says_what_it_wrote() -> None:
    with pytest.raises(TimeoutExpired) as late:
        run(["sh", "-c", "sleep 1000 & echo $$ $!; wait"], check=True, capture_output=True, timeout_s=2.0)
    pids = [int(it) for it in bytes(late.value.output or b"").split()]
    assert len(pids) == 2
    assert all(ends(it) for it in pids)


@pytest.mark.parametrize("handler", ["SIG_IGN", "lambda *_: None"])
def test_a_process_that_does_not_end_by_itself_ends_with_its_context(handler: str) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.{handler}); print(flush=True)"
    code = code.replace("signal.lambda", "lambda") + "; signal.pause(); signal.pause()"
    with start([sys.executable, "-c", code], stdout=PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.terminate()
    assert ends(process.pid)


def test_what_a_process_leaves_in_its_group_ends_with_its_context() -> None:
    with start([sys.executable, "-c", LEAVES], stdout=PIPE, text=True) as process:
        assert process.stdout
        left = int(process.stdout.readline())
        process.wait()
        assert is_alive(left)
    assert ends(left)


def test_what_a_process_puts_into_another_session_ends_with_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.MARK, f"{os.environ[processes.MARK]}.of-this-test")  # it ends no other test's
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True, **none).pid)"
    left = int(
        run([sys.executable, "-c", f"none = dict(stdout=-3, stderr=-3); {code}"], check=True, stdout=PIPE).stdout
    )
    assert is_alive(left)
    assert list(processes.end_marked()) == [left]
    assert ends(left)


def test_a_failure_says_what_the_command_wrote() -> None:
    with pytest.raises(processes.CalledProcessError) as failed:
        run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=True, capture_output=True)
    assert (failed.value.returncode, failed.value.stdout, failed.value.stderr) == (3, "out\n", "err\n")
    assert [*failed.value.__notes__[0].split()][2:] == ["out", "err"]
