"""What is believed of a Slurm that says little, late, or something else than the supervisors.

Only its `squeue` is a stand-in here, which says what a real one cannot be made to say.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.scheduler.backends.local.folders import spec_of
from longshore.scheduler.backends.local.ranks import encode_spec
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.backends.slurm.commands import SLURM_TIMES, SlurmTimes
from longshore.scheduler.backends.slurm.submission import comment_of
from longshore.scheduler.model.states import Run
from longshore.scheduler.rules.attempts import ExitClass, classify_end
from tests.scheduler.backends.attempts import own_folder, shell_attempt, wait_for_end, wait_until_running
from tests.scheduler.backends.slurm_backends import IMPATIENT, NODES, ON_A, backend_of

Saying = Callable[..., SlurmBackend]


@pytest.fixture
def backend(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmBackend]:
    yield backend_of(slurm_cluster, tmp_path)
    slurm_cluster.end_jobs()


@pytest.fixture
def saying(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saying:
    """A fresh backend whose squeue is a script, and notes each call."""

    def make(script: str, times: SlurmTimes = SLURM_TIMES) -> SlurmBackend:
        path = tmp_path / "bin" / "squeue"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\necho >> {tmp_path}/calls\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
        return backend_of(slurm_cluster, tmp_path, times)

    return make


def test_the_marker_is_believed_and_not_a_slurm_that_says_completed(backend: SlurmBackend, saying: Saying) -> None:
    attempt = shell_attempt("exit 1")
    backend.launch(attempt, ON_A)
    wait_for_end(backend, attempt)
    other = saying(f"echo '1|COMPLETED|{comment_of(attempt.name)}'")
    assert classify_end(other.status(attempt.name))[0] is ExitClass.USER


def test_what_slurm_stopped_at_a_limit_has_outlived_its_limit(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, saying: Saying
) -> None:
    attempt = shell_attempt("trap 'exit 0' TERM; while :; do sleep 0.05; done")
    backend.launch(attempt, ON_A)
    wait_until_running(backend, attempt)
    slurm_cluster.call("scancel", "--name", attempt.name)
    assert wait_for_end(backend, attempt).reason == "stopped by Slurm"
    other = saying(f"echo '1|TIMEOUT|{comment_of(attempt.name)}'")
    assert classify_end(other.status(attempt.name))[0] is ExitClass.LIMIT


@pytest.mark.few(1)
@pytest.mark.parametrize("script", ["exit 1", "true", "exec sleep 1000"])
def test_a_slurm_that_says_nothing_ends_no_job(backend: SlurmBackend, saying: Saying, script: str) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ON_A)
    wait_until_running(backend, attempt)
    other = saying(script, IMPATIENT)
    assert (other.status(attempt.name).run, other.is_proven_gone(attempt.name)) == (Run.RUNNING, False)


@pytest.mark.full
def test_five_thousand_jobs_take_one_question_and_running_ones_do_not_wait_for_the_answer(
    backend: SlurmBackend, saying: Saying, tmp_path: Path
) -> None:
    running = shell_attempt("exec sleep 1000")
    backend.launch(running, ON_A)
    wait_until_running(backend, running)
    waiting = [shell_attempt("true") for _ in range(5000)]
    for attempt in waiting:
        own_folder(tmp_path, attempt).mkdir()
        spec = spec_of(attempt, ON_A, NODES, tmp_path)
        (own_folder(tmp_path, attempt) / "spec.json").write_bytes(encode_spec(spec))
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n}|PENDING|{comment_of(each.name)}\n" for n, each in enumerate(waiting, 10)))
    names = (*(each.name for each in waiting), running.name)

    reported = saying(f"[ -e {tmp_path}/slow ] && exec sleep 1000; cat {lines}").statuses(names)
    assert {reported[each.name].run for each in waiting} == {Run.PENDING}
    assert reported[running.name].run is Run.RUNNING
    assert (tmp_path / "calls").read_text() == "\n"

    (tmp_path / "slow").touch()
    reported = SlurmBackend(tmp_path, NODES, conf=None, times=IMPATIENT).statuses(names)
    assert {reported[each.name].run for each in waiting} == {Run.UNREACHABLE}
    assert reported[running.name].run is Run.RUNNING
