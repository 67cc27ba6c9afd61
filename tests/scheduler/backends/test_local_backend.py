import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.durable import open_folder, write_first, write_whole
from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.local.folders import read_progress, spec_of
from longshore.scheduler.backends.local.ranks import (
    decode_spec,
    drop_beginning,
    encode_spec,
    log_name,
    open_log,
    read_log,
)
from longshore.scheduler.backends.protocol import Attempt, RefusedError
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import (
    NODES,
    ONE_GPU,
    THREE_GPUS,
    command_attempt,
    own_folder,
    shell_attempt,
    until,
    wait_for_end,
    wait_until_running,
)

NO_SPECS = [b"", b"{torn", b"[]", b"{}", b"\xff", b"[" * 100_000, b" " * (5 << 20)]


@pytest.mark.parametrize("content", NO_SPECS, ids=range(len(NO_SPECS)))
def test_a_damaged_file_of_an_attempt_is_an_error_of_the_backend_for_its_logs(
    tmp_path: Path, backend: LocalBackend, content: bytes
) -> None:
    own = tmp_path / "attempts" / "ls-job-1"
    own.mkdir()
    (own / "spec.json").write_bytes(content)
    with pytest.raises(BackendError):
        backend.logs("ls-job-1", 0, 0, 10)
    (own / "spec.json").unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    opened = open_folder(str(tmp_path))
    yield opened
    os.close(opened)


def cut_short(folder: Path, attempt: Attempt) -> None:
    """Leave what a launch leaves that was cut short before it started a supervisor."""
    own = own_folder(folder, attempt)
    (own / "work").mkdir(parents=True)
    opened = open_folder(str(own))
    write_first(opened, "spec.json", encode_spec(spec_of(attempt, ONE_GPU, NODES, own / "work")))
    os.close(opened)


def test_ranks_know_their_gpu_and_their_place(backend: LocalBackend) -> None:
    attempt = shell_attempt("env", environment={"CUDA_VISIBLE_DEVICES": "7", "RANK": "9", "MODEL": "vgg"})
    backend.launch(attempt, THREE_GPUS)
    wait_for_end(backend, attempt)
    logs = [backend.logs(attempt.name, rank, 0, 1 << 20)[0].decode() for rank in range(3)]
    reported = [dict(line.split("=", 1) for line in log.splitlines()) for log in logs]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in reported] == ["1,3", "1,3", "0"]
    assert [one["LONGSHORE_GPUS"] for one in reported] == ["1,3", "1,3", "0"]
    assert [one["LONGSHORE_NODE"] for one in reported] == ["a", "a", "b"]
    assert [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in reported] == [
        ("0", "0", "2"), ("1", "1", "2"), ("2", "0", "1"),
    ]  # fmt: skip
    assert len({one["MASTER_PORT"] for one in reported}) == 1
    assert {one["CUDA_DEVICE_ORDER"] for one in reported} == {"PCI_BUS_ID"}
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["MODEL"]) for one in reported} == {("3", "127.0.0.1", "vgg")}
    assert {(one["LONGSHORE_JOB"], one["LONGSHORE_ATTEMPT"]) for one in reported} == {(attempt.job, attempt.name)}


def test_a_launch_that_was_cut_short_waits_and_is_made_up_for(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("exit 4")
    cut_short(tmp_path, attempt)
    assert backend.status(attempt.name).run is Run.PENDING
    assert not backend.is_proven_gone(attempt.name)
    backend.launch(attempt, ONE_GPU)
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [4]


def test_a_launch_that_was_cut_short_can_be_cancelled_for_good(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("touch started")
    cut_short(tmp_path, attempt)
    backend.cancel(attempt.name, "no longer wanted")
    status = backend.status(attempt.name)
    assert (status.run, status.reason, status.ends) == (Run.EXITED, "cancelled", ())
    assert backend.is_proven_gone(attempt.name)
    backend.launch(attempt, ONE_GPU)
    assert wait_for_end(backend, attempt) == status
    assert not (own_folder(tmp_path, attempt) / "work" / "started").exists()


def test_what_a_canceller_said_first_is_kept(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    backend.cancel(attempt.name, "first")
    backend.cancel(attempt.name, "second")
    assert json.loads((own_folder(tmp_path, attempt) / "cancel.json").read_text())["reason"] == "first"


@pytest.mark.parametrize("name", ["", "ls-", "ls-a/../b", "../ls-a", "ls-A", "ls-a\n", "ls-" + "a" * 61, "ls-%2e%2e"])
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, backend: LocalBackend, name: str) -> None:
    for ask in (backend.status, backend.is_proven_gone, backend.forget):
        with pytest.raises(BackendError):
            ask(name)
    with pytest.raises(BackendError):
        backend.cancel(name, "")
    with pytest.raises(BackendError):
        backend.logs(name, 0, 0, 10)
    assert list((tmp_path / "attempts").iterdir()) == []


@pytest.mark.parametrize("rank", [-1, 1, 1 << 20, "../spec.json", "0/../../x"])
def test_only_ranks_have_logs(backend: LocalBackend, rank: int) -> None:
    attempt = shell_attempt("true")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    with pytest.raises(BackendError):
        backend.logs(attempt.name, rank, 0, 10)


@pytest.mark.parametrize("trick", ["ln -s /etc/passwd", "mkfifo", "mkdir"])
def test_a_log_that_the_job_made_something_else_is_not_read(tmp_path: Path, backend: LocalBackend, trick: str) -> None:
    attempt = shell_attempt(f'cd "${{LONGSHORE_PROGRESS%/*}}"; rm rank-0.log; {trick} rank-0.log')
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    with pytest.raises(BackendError):
        backend.logs(attempt.name, 0, 0, 10)


def test_an_attempts_folder_that_the_job_made_a_link_is_not_followed(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("true")
    (tmp_path / "attempts" / attempt.name).symlink_to("/etc")
    assert backend.status(attempt.name).run is Run.UNREACHABLE
    with pytest.raises(BackendError):
        backend.launch(attempt, ONE_GPU)
    (tmp_path / "attempts" / attempt.name).unlink()


def test_the_progress_of_a_job_is_reported(backend: LocalBackend) -> None:
    write = 'echo \'{"step": 120, "saved_s": 300.5}\' > new.json; mv new.json "$LONGSHORE_PROGRESS"; exec sleep 1000'
    attempt = shell_attempt(write)
    backend.launch(attempt, ONE_GPU)
    assert until(lambda: backend.status(attempt.name).progress) == {"step": 120.0, "saved_s": 300.5}


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("", {}),
        ("[1, 2]", {}),
        ('{"step": 1', {}),
        ('{"step": 1, "loss": NaN, "up": Infinity, "down": -1e999}', {"step": 1.0}),
        ('{"step": true, "name": "x", "list": [1], "none": null, "loss": 0.5}', {"loss": 0.5}),
        ('{"step": 1' + "0" * 400 + "}", {}),
        ("[" * 4000, {}),
        ('{"a":' * 800, {}),
        ("{" + ",".join(f'"k{i}": {i}' for i in range(17)) + "}", {}),
        ('{"step": 1}' + " " * 4096, {}),
        ('{"st\udcffep": 1}', {}),
    ],
)
def test_of_the_progress_only_a_few_finite_numbers_are_believed(
    folder: int, content: str, reported: dict[str, float]
) -> None:
    write_whole(folder, "progress.json", content.encode(errors="surrogateescape"))
    assert read_progress(folder) == reported


def test_a_pipe_in_place_of_the_progress_is_not_waited_for(tmp_path: Path, folder: int) -> None:
    os.mkfifo(tmp_path / "progress.json")
    assert read_progress(folder) == {}


def test_a_log_gives_its_beginning_back_and_keeps_its_offsets(tmp_path: Path, folder: int) -> None:
    log = open_log(folder, 0)
    block, blocks, keep_bytes = 1 << 16, 64, 1 << 20
    for i in range(blocks):
        os.write(log, bytes([i]) * block)
    os.fsync(log)
    drop_beginning(log, keep_bytes)
    os.write(log, b"end")
    os.close(log)
    held = (tmp_path / log_name(0)).stat()
    with (tmp_path / log_name(0)).open("rb") as reading:
        content, after = read_log(reading.fileno(), 0, 1 << 30)
    assert after == held.st_size == blocks * block + 3
    assert content.endswith(b"end")
    kept = keep_bytes + 3 if held.st_blocks * 512 < 2 * keep_bytes else held.st_size
    assert len(content) == kept


@pytest.mark.parametrize(
    "attempt",
    [
        command_attempt(()),
        command_attempt(("no-such-program",)),
        command_attempt(("./no-such-program",)),
        command_attempt(("/etc/passwd",)),
        command_attempt(("true", "a\0b")),
        command_attempt(("true", "\ud800")),
        command_attempt(("true",), environment={"A=B": ""}),
        command_attempt(("true",), environment={"": "x"}),
        Attempt("ls-refused-1", "refused", 1, ("true",), "no/absolute/path", {}),
        Attempt("ls-refused-1", "refused", 1, ("true",), "/no/such/folder", {}),
    ],
)
def test_what_would_fail_at_its_start_is_refused(tmp_path: Path, backend: LocalBackend, attempt: Attempt) -> None:
    with pytest.raises(RefusedError):
        backend.launch(attempt, ONE_GPU)
    assert backend.status(attempt.name).run is Run.ABSENT
    assert not own_folder(tmp_path, attempt).exists()


def test_a_job_runs_in_the_folder_that_it_names(tmp_path: Path, backend: LocalBackend) -> None:
    (tmp_path / "here").mkdir()
    program = tmp_path / "here" / "program"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o755)
    attempt = Attempt(shell_attempt("").name, "job", 1, ("./program",), str(tmp_path / "here"), {})
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    assert backend.logs(attempt.name, 0, 0, 1000)[0].decode() == f"{tmp_path / 'here'}\n"


def test_what_is_forgotten_leaves_its_logs_and_its_proof(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("echo out; touch file; mkdir -p a/b; ln -s /etc link")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    backend.forget(attempt.name)
    assert sorted(path.name for path in own_folder(tmp_path, attempt).iterdir()) == ["exit.json", "rank-0.log"]
    assert Path("/etc/passwd").exists()


def test_a_running_attempt_keeps_its_supervisor_when_it_is_asked_about(backend: LocalBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    for _ in range(20):
        assert not backend.is_proven_gone(attempt.name)
        assert backend.status(attempt.name).run is Run.RUNNING


def test_a_spec_is_read_as_it_was_written(tmp_path: Path) -> None:
    attempt = shell_attempt("true", grace_s=2.5, environment={"KEY": "värde", "B": "\n"})
    spec = spec_of(attempt, THREE_GPUS, NODES, tmp_path)
    assert decode_spec(encode_spec(spec)) == spec
    assert spec.limit_s is None
