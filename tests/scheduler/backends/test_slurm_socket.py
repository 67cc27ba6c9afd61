"""Who answers job_submit.lua where there are two schedulers on a machine."""

import errno
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.slurm.backend import SubmitSocket, _answer_all


def answer_at(path: Path) -> bytes:
    """Return what is answered to a job of four GPUs."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(30.0)
        asking.connect(str(path))
        asking.sendall(b"1\t4\n")
        return asking.recv(256)


def test_a_later_scheduler_takes_the_socket_only_when_the_first_one_has_ended(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sbatch"
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(str(path))
        first.listen()
        later = SubmitSocket(path, {"a": 4}, again_s=0.0)
        later.take_over()
        first.settimeout(30.0)
        first.accept()[0].close()  # It still is who is asked.
    later.take_over()
    assert answer_at(path) == b"hold\n"
    SubmitSocket(path, {})
    assert answer_at(path) == b"hold\n"


def test_what_is_no_socket_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("mine")
    with pytest.raises(BackendError, match="no socket for job_submit"):
        SubmitSocket(tmp_path / "sbatch", {"a": 4})
    assert (tmp_path / "sbatch").read_text() == "mine"


class EndedError(BaseException):
    """The end of a test."""


def test_a_socket_that_accepts_nothing_is_asked_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[str]()
    errors = [OSError(number, "none left") for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)]

    def accept() -> None:
        called.append("accept")
        raise errors.pop() if errors else EndedError

    listener: Any = SimpleNamespace(accept=accept)
    monkeypatch.setattr(time, "sleep", lambda _: called.append("pause"))
    with pytest.raises(EndedError):
        _answer_all(listener, {"a": 4})
    assert called == ["accept", "pause"] * 3 + ["accept"]
