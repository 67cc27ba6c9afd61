"""What is believed and done of jobs that came by sbatch, where Slurm says what a real one cannot be made to say.

Slurm's commands are stand-ins here: scripts that note how they are called.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Share
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.backends.slurm.commands import SlurmTimes
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import until

STAMP = f"longshore:1795372952:{'a' * 20}:1x2:x"
NAMES = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")

Slurm = Callable[..., None]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Make some of Slurm's commands scripts; all others fail."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def say(**scripts: str) -> None:
        for name in NAMES:
            script = scripts.get(name, "echo down >&2; exit 1")
            (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n{script}\n')
            (folder / name).chmod(0o755)

    say()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return say


def line_of(state: str, priority: int = 0, restarts: int = 0) -> str:
    """Return what squeue says of the one job."""
    return f"17|{state}|{priority}|0|{restarts}|N/A|1:00|nobody|{STAMP}|"


def taken(folder: Path, name: str) -> Path:
    """Return the folder of an attempt that has been taken for the job."""
    own = folder / "attempts" / name
    own.mkdir()
    (own / "taken.json").write_text(
        f'{{"attempt":"{name}","stamp":"{STAMP}","number":"17","restarts":0,"placement":[["a",[0,1]]]}}'
    )
    return own


def test_an_attempt_that_cannot_be_read_hides_no_other(slurm: Slurm, tmp_path: Path) -> None:
    slurm()
    backend = SlurmBackend(tmp_path, {"a": 4})
    backend.cancel("ls-good-1", "not wanted")
    held = taken(tmp_path, "ls-held-1")
    (tmp_path / "attempts" / "ls-link-1").symlink_to(held)
    reported = backend.statuses(("ls-held-1", "ls-link-1", "ls-good-1"))
    assert {name: status.run for name, status in reported.items()} == {
        "ls-held-1": Run.UNREACHABLE, "ls-link-1": Run.UNREACHABLE, "ls-good-1": Run.ABSENT,
    }  # fmt: skip
    assert "down" in reported["ls-held-1"].reason


def test_a_launch_that_comes_after_a_cancelled_attempt_was_forgotten_starts_nothing(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm(squeue=f"echo '{line_of('PENDING')}'", sinfo="echo 'a|a|gpu:i0:1,gpu:i1:1|idle|none'")
    backend = SlurmBackend(tmp_path, {"a": 4}, sbatch_socket=tmp_path / "sbatch")
    (job,) = (held.job for held in backend.external_jobs())
    name = f"ls-{job}-1"
    taken(tmp_path, name)
    backend.cancel(name, "not wanted")
    backend.forget(name)
    backend.launch(Attempt(name, job, 1, ("sbatch", "x"), "", {}, is_external=True), (Share("a", (0, 1)),))
    assert "scontrol" not in (tmp_path / "calls").read_text()


def test_a_cancelled_attempt_that_slurm_requeued_from_a_lost_node_is_gone_only_a_while_after_the_node_is_back(
    slurm: Slurm, tmp_path: Path
) -> None:
    def slurm_says(state: str) -> None:
        slurm(squeue=f"echo '{line_of('PENDING', restarts=1)}'", sinfo=f"echo 'a|a|gpu:i0:1,gpu:i1:1|{state}|none'")
        backend._view.invalidate()

    backend = SlurmBackend(tmp_path, {"a": 2}, sbatch_socket=tmp_path / "sbatch", times=SlurmTimes(stray_s=0.5))
    slurm_says("down*")
    (job,) = (held.job for held in backend.external_jobs())
    name = f"ls-{job}-1"
    taken(tmp_path, name)
    backend.cancel(name, "not wanted")
    assert (backend.status(name).reason, backend.is_proven_gone(name)) == ("cancelled", False)
    slurm_says("idle")
    assert not backend.is_proven_gone(name)
    until(lambda: backend.is_proven_gone(name))


def test_a_refused_job_that_does_not_end_at_once_is_ended_later(slurm: Slurm, tmp_path: Path) -> None:
    comment, job = tmp_path / "comment", line_of("PENDING").removesuffix(f"{STAMP}|")
    comment.write_text(STAMP)
    scontrol = f"""
        case "$*" in
            *AdminComment=*) echo "$*" | sed 's/.*AdminComment=//' > {comment};;
            *show*) echo "   AdminComment=$(cat {comment})";;
        esac
    """
    slurm(squeue=f'echo "{job}$(cat {comment})|"', scontrol=scontrol)
    # With less than the job asks for
    backend = SlurmBackend(
        tmp_path, {"a": 1}, sbatch_socket=tmp_path / "sbatch", times=SlurmTimes(old_s=0.0, again_s=0.0)
    )
    with pytest.raises(BackendError, match="scancel failed"):
        backend.external_jobs()
    slurm(squeue=f'echo "{job}$(cat {comment})|"', scontrol=scontrol, scancel=f"touch {tmp_path}/ended")
    backend.external_jobs()
    assert (tmp_path / "ended").exists()
    assert "refused: 1 nodes with 2 GPUs each" in comment.read_text()
