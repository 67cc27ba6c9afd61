"""The first process of a container: the scheduler leaves no zombie, and a command behind checks is asked to end."""

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import processes

SPACE = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--pid", "--fork", "--mount-proc"]
SPACE += ["--kill-child"]
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
from longshore.scheduler.commands.serving import fork_if_first_process

fork_if_first_process()
assert os.getpid() != 1

def orphans(count):
    for _ in range(count):
        if os.fork() == 0:
            for _ in range(2):
                if os.fork() == 0:
                    os._exit(3)
            os._exit(0)
        os.wait()

def states():
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found.append(path.read_text().rpartition(")")[2].split()[0])
        except OSError:
            pass
    return found

orphans(12)
assert [subprocess.run([sys.executable, "-c", f"raise SystemExit({code})"]).returncode for code in (0, 7)] == [0, 7]
until_s = time.monotonic() + 30.0
while "Z" in states() and time.monotonic() < until_s:
    time.sleep(0.02)
print("zombies", states().count("Z"), flush=True)
"""


def in_space(more: str) -> processes.CompletedProcess[str]:
    """Run a program that is the first process of a PID namespace, with what it does in the end."""
    line = [*SPACE, sys.executable, "-c", PROGRAM + textwrap.dedent(more)]
    return processes.run(line, capture_output=True, check=False)


@pytest.fixture(scope="module", autouse=True)
def _may_make_spaces() -> None:
    done = processes.run([*SPACE, "true"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no PID namespace can be made here: {done.stderr.strip()}")


@pytest.mark.parametrize(
    ("more", "status"),
    [("sys.exit(5)", 5), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL), ("", 0)],
)
def test_no_zombie_stays_and_the_status_is_that_of_the_scheduler(more: str, status: int) -> None:
    done = in_space(more)
    assert (done.stdout, done.returncode) == ("zombies 0\n", status), done.stderr


def test_a_signal_to_the_first_process_comes_to_the_scheduler() -> None:
    more = """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(40 + number))
    os.kill(1, signal.SIGTERM)
    time.sleep(30)
    """
    done = in_space(more)
    assert (done.stdout, done.returncode) == ("zombies 0\n", 40 + signal.SIGTERM), done.stderr


COUNTS = """
import os, signal, sys, time
came = []
signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
{ask}
until_s = time.monotonic() + 30.0
while not came and time.monotonic() < until_s:
    time.sleep(0.02)
time.sleep(1.0)
print(len(came), flush=True)
"""


GROUP, ONE = "os.killpg(os.getpgid(os.getppid()), signal.SIGTERM)", "os.kill(os.getppid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    ("space", "before", "ask"),
    [([], [], GROUP), ([], [], ONE), (SPACE, [], ONE), ([], ["setsid"], GROUP), ([], ["setsid"], ONE)],
    ids=["group", "one", "container", "group of another", "one of another group"],
)
def test_a_command_behind_checks_is_asked_once_to_end(
    space: list[str], before: list[str], ask: str, tmp_path: Path
) -> None:
    checks = ["-m", "longshore.preflight", "--level", "0", "--slots", "--scratch", str(tmp_path), "--"]
    command = [*before, sys.executable, "-c", COUNTS.format(ask=ask)]
    done = processes.run([*space, sys.executable, *checks, *command], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
    assert list(tmp_path.iterdir()) == []
