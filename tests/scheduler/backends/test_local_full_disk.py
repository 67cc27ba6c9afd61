"""A disk that is full when an attempt ends, and a clock that was set back: never taken for success, never forgotten."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.model.states import Run
from longshore.scheduler.rules.attempts import ExitClass, classify_end
from tests.scheduler.backends.attempts import (
    NODES,
    ONE_GPU,
    end_all,
    kill_supervisor,
    lives,
    number_in,
    own_folder,
    shell_attempt,
    supervisor_of,
    until,
    wait_for_end,
    wait_until_running,
)
from tests.support.small_disk import small_disk

BLOCK = 1 << 12


class Disk:
    """Where attempts are, and how to fill it and to make room again.

    Args:
        folder: On it.
        fill: Lets nothing more be written there by the supervisor of an attempt.
        free: Undoes that.
    """

    def __init__(self, folder: Path, fill: Callable[[Attempt], None], free: Callable[[Attempt], None]) -> None:
        self.folder, self.fill, self.free = folder, fill, free


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Disk]:
    """A file system of its own."""
    folder = tmp_path / "small"

    def fill(_: Attempt) -> None:
        with (folder / "filling").open("wb", buffering=0) as file:
            for size in (BLOCK, 1):
                with suppress(OSError):  # There is no more room.
                    while True:
                        file.write(bytes(size))

    with small_disk(folder, 256 << 10, lambda: end_all(folder)):
        yield Disk(folder, fill, lambda _: (folder / "filling").unlink())


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Disk]:
    """A supervisor that may write no byte more, as where a quota is used up; nobody has to be root for that."""

    def limit(attempt: Attempt, most: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.prlimit(supervisor_of(tmp_path, attempt).pid, resource.RLIMIT_FSIZE, (most, hard))

    yield Disk(tmp_path, lambda attempt: limit(attempt, 0), lambda attempt: limit(attempt, resource.RLIM_INFINITY))
    end_all(tmp_path)


@pytest.fixture(params=["small", "limited"])
def disk(request: pytest.FixtureRequest) -> Disk:
    it: Disk = request.getfixturevalue(request.param)
    return it


def ended_unrecorded(disk: Disk, outside: Path) -> tuple[LocalBackend, Attempt]:
    """Return an attempt whose rank has ended well while nothing could be written of it."""
    backend = LocalBackend(disk.folder, NODES)
    attempt = shell_attempt(f"echo $$ > {outside}/rank.pid; while [ ! -e {outside}/go ]; do sleep 0.02; done")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    rank = number_in(outside / "rank.pid")
    disk.fill(attempt)
    (outside / "go").touch()
    until(lambda: not lives(rank))
    return backend, attempt


def test_an_end_on_a_full_disk_is_written_once_there_is_room(disk: Disk, tmp_path: Path) -> None:
    backend, attempt = ended_unrecorded(disk, tmp_path)
    assert backend.status(attempt.name).run is Run.RUNNING
    assert not backend.is_proven_gone(attempt.name)
    disk.free(attempt)
    assert [(end.code, end.signal) for end in wait_for_end(backend, attempt).ends] == [(0, 0)]


def test_an_end_that_could_never_be_written_is_a_loss_with_its_cause_and_no_success(disk: Disk, tmp_path: Path) -> None:
    backend, attempt = ended_unrecorded(disk, tmp_path)
    kill_supervisor(disk.folder, attempt)
    until(lambda: backend.is_proven_gone(attempt.name))
    status = backend.status(attempt.name)
    assert (status.run, status.ends) == (Run.LOST, ())
    assert classify_end(status) == (
        ExitClass.AMBIGUOUS, "no record of how it ended: supervisor lost: it was killed",
    )  # fmt: skip


@pytest.mark.parametrize(("code", "exit_class"), [(0, ExitClass.SUCCESS), (3, ExitClass.USER)])
def test_an_attempt_that_ended_before_it_began_by_a_clock_that_was_set_back_ended_as_it_did(
    tmp_path: Path, code: int, exit_class: ExitClass
) -> None:
    backend = LocalBackend(tmp_path, NODES)
    attempt = shell_attempt(f"exit {code}")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    path = own_folder(tmp_path, attempt) / "exit.json"
    marker = json.loads(path.read_text())
    marker["ends"] = [[*end[:3], max(end[3] - 3600.0, 0.0)] for end in marker["ends"]]
    path.write_text(json.dumps(marker))
    assert classify_end(backend.status(attempt.name))[0] is exit_class
    assert backend.is_proven_gone(attempt.name)


def test_the_first_end_that_was_written_stays(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, NODES)
    attempt = shell_attempt("exit 3")
    backend.launch(attempt, ONE_GPU)
    first = wait_for_end(backend, attempt)
    backend.cancel(attempt.name, "too late")
    backend.launch(attempt, ONE_GPU)
    assert wait_for_end(LocalBackend(tmp_path, NODES), attempt) == first
