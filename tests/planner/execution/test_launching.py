"""Processes of a plan end together, however one of them or their launcher ends."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.cluster.files.errors import InputError
from longshore.planner.execution import launching
from longshore.planner.execution.launching import RANKS_MODULE, launch_ranks
from longshore.planner.hardware import HostProfile
from tests.support import processes

LAUNCH = """\
import sys
from longshore.planner.execution.launching import launch_ranks
launch_ranks(3, [sys.argv[1]], module="tests.planner.execution.waiting")
"""


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 120.0
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_killed_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    files = tmp_path / "temporary"
    files.mkdir()
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(files)}
    with processes.start([sys.executable, "-c", LAUNCH, tmp_path], env=path, stderr=processes.DEVNULL) as launcher:
        until(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)))
        launcher.send_signal(how)
        launcher.wait()
    assert how is signal.SIGKILL or not list(files.glob("longshore*"))
    ranks = [int((tmp_path / str(rank)).read_text()) for rank in range(3)]
    until(lambda: not any(map(lives, ranks)))


def test_a_process_whose_launcher_ended_early_ends_itself() -> None:
    someone_else = str(os.getppid())
    line = [sys.executable, "-m", RANKS_MODULE, "--launcher", someone_else, "this"]
    done = processes.run(line, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (127, "")


@pytest.mark.full
def test_a_process_that_fails_ends_the_others_and_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank 2 ended with status 3 and wrote: KeyError: 'what went wrong'"):
        launch_ranks(3, [str(tmp_path), "3"], module="tests.planner.execution.waiting")
    assert not any(lives(int(path.read_text())) for path in tmp_path.iterdir())


def test_ranks_that_end_before_their_work_is_done_have_failed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rank [01] ended with status 0, before its work was done"):
        launch_ranks(2, [str(tmp_path), "hard"], module="tests.planner.execution.waiting")


def test_where_no_rank_could_be_started_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "RANKS_MODULE", "no_such_module")
    with pytest.raises(InputError, match=r"that starts the ranks ended with status 1 and wrote: .*no_such_module"):
        launch_ranks(2, [])


@pytest.mark.parametrize("ranks", [1, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 3))])
def test_a_machine_is_measured_with_any_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    launch_ranks(ranks, [str(tmp_path / "host.json")], module="tests.planner.measuring_fast")
    host = HostProfile.model_validate_json((tmp_path / "host.json").read_text())
    assert (host.ranks, [cost.members for cost in host.reduce]) == (ranks, list(range(2, ranks + 1)))
    assert (host.send.byte_s > 0.0 or host.send.start_s > 0.0) == (ranks > 1)
