"""GPUs that a ring is given and leaves: what the local backend keeps of that, and what of a member is found."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.local.ring_files import RING, places_file, read_added_place
from longshore.scheduler.backends.local.ring_host import MemberTraces, SparedProcesses, kill_members
from longshore.scheduler.backends.protocol import MemberPlace
from tests.scheduler.backends.attempts import until
from tests.support import processes

NAME = "ls-job-1"
ORPHAN = "import os, time; os.setsid() if os.fork() == 0 else os._exit(0); time.sleep(1000)"


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    (tmp_path / "attempts" / NAME / RING).mkdir(parents=True)
    return LocalBackend(tmp_path, {"a": 4})


def test_the_local_backend_runs_rings(backend: LocalBackend) -> None:
    assert backend.capabilities.runs_rings


def test_a_gpu_is_added_once_and_its_rank_is_never_another_gpus(backend: LocalBackend, tmp_path: Path) -> None:
    ring = tmp_path / "attempts" / NAME / RING
    for _ in range(2):
        backend.add_to_ring(NAME, 2, "a", 3)
    assert read_added_place(ring, 2) == ("a", 3)
    with pytest.raises(BackendError, match="rank 2"):
        backend.add_to_ring(NAME, 2, "a", 1)
    assert read_added_place(ring, 2) == ("a", 3)


@pytest.mark.parametrize("name", ["ls-other-1", "../x", "ls-"])
def test_nothing_is_added_to_what_is_no_attempt(backend: LocalBackend, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BackendError):
        backend.add_to_ring(name, 2, "a", 3)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[1]",
        '[["a"]]',
        '[[0, "a", "x", true, false, 0, 1]]',
        '[[0, "a", 0, true, false, "x", 1]]',
        '[[0, "a", 0, true, false]]',
        '[["a", 0, true, false, 0, 1]]',
        '[[1, "a", 0, true, false, 0, 1]]',
        '[[true, "a", 0, true, false, 0, 1]]',
        '[[0, "a", 0, 1, false, 0, 1]]',
        '{"a": 1}',
        "[" * 9999,
    ],
)
def test_places_that_make_no_sense_are_not_known(backend: LocalBackend, tmp_path: Path, content: str) -> None:
    (tmp_path / "attempts" / NAME / RING / places_file(0)).write_text(content)
    assert backend.ring_places(NAME) is None


def test_a_pipe_in_the_place_of_a_file_blocks_no_reader(backend: LocalBackend, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "attempts" / NAME / RING / places_file(0))
    assert backend.ring_places(NAME) is None


def test_places_are_read_by_rank(backend: LocalBackend, tmp_path: Path) -> None:
    places = [[0, "a", 0, True, False, 2, 77], [1, "a", 1, False, True, 1, 0]]
    (tmp_path / "attempts" / NAME / RING / places_file(0)).write_text(json.dumps(places))
    assert backend.ring_places(NAME) == [
        MemberPlace("a", 0, member=2, pid=77),
        MemberPlace("a", 1, is_used=False, is_left=True, member=1),
    ]


@pytest.fixture
def started() -> Iterator[list[processes.Process[bytes]]]:
    made: list[processes.Process[bytes]] = []
    yield made
    for process in made:
        process.end()


@pytest.mark.parametrize("trace", ["environment", "log", "session"])
def test_what_a_member_left_behind_is_killed_and_others_are_not(
    tmp_path: Path, started: list[processes.Process[bytes]], trace: str
) -> None:
    log = tmp_path / "rank-1.log"
    clean = {"PATH": os.environ["PATH"]}
    marks = {"LONGSHORE_ATTEMPT": NAME, "LONGSHORE_RING_MEMBER": "1"} if trace == "environment" else {}
    command = [sys.executable, "-c", ORPHAN]
    with log.open("ab") as output:
        its = output if trace == "log" else processes.DEVNULL
        line = command if trace != "session" else ["sh", "-c", "sleep 1000 &"]
        left = processes.start(line, env={**clean, **marks}, stdout=its)
        other = processes.start(
            [sys.executable, "-c", "import time; time.sleep(1000)"],
            env={**clean, "LONGSHORE_ATTEMPT": NAME, "LONGSHORE_RING_MEMBER": "2"},
        )  # fmt: skip
    started += [left, other]
    left.wait()
    traces = MemberTraces(NAME, [1], [left.pid], log)
    no_process = -1  # the parent of this process may have other children: those of tests beside it
    others = SparedProcesses(os.getpid(), no_process, [], [other.pid])
    assert kill_members([traces], others) == [False]  # it was there
    until(lambda: kill_members([traces], others) == [True])
    assert other.poll() is None


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["closed", "other"])
@pytest.mark.parametrize("how", ["session", "orphan", "parent"])
def test_a_rank_is_not_left_while_a_process_lives_that_cannot_be_looked_into(
    tmp_path: Path, how: str, kind: str
) -> None:
    if kind == "other" and os.getuid() != 0:
        pytest.skip("only root can start processes of other users")
    command = [sys.executable, "-m", "tests.scheduler.backends.hidden_process", how, kind, str(tmp_path / "log")]
    done = processes.run(command, capture_output=True, check=True)
    left, found = json.loads(done.stdout)
    try:
        assert not any(lives and is_left for lives, is_left in found)
        # One that is known and of the same user is killed, and then nothing is left.
        assert found[-1] == ([False, True] if kind == "closed" and how != "orphan" else [True, False])
    finally:
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
