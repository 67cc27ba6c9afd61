"""What is believed and done of jobs that came by sbatch, where Slurm says what a real one cannot be made to say.

Slurm's commands are stand-ins here: scripts that note how they are called.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.scheduler.backends.protocol import Attempt, Run, Share
from longshore.scheduler.backends.slurm.backend import SlurmBackend

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
    told = backend.statuses(("ls-held-1", "ls-link-1", "ls-good-1"))
    assert {name: status.run for name, status in told.items()} == {
        "ls-held-1": Run.UNREACHABLE, "ls-link-1": Run.UNREACHABLE, "ls-good-1": Run.ABSENT,
    }  # fmt: skip
    assert "down" in told["ls-held-1"].reason


def test_a_launch_that_comes_after_a_cancelled_attempt_was_forgotten_starts_nothing(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm(squeue=f"echo '{line_of('PENDING')}'", sinfo="echo 'a|a|gpu:i0:1,gpu:i1:1|idle|none'")
    backend = SlurmBackend(tmp_path, {"a": 4}, door=tmp_path / "door")
    (job,) = (held.job for held in backend.held())
    name = f"ls-{job}-1"
    taken(tmp_path, name)
    backend.cancel(name, "not wanted")
    backend.forget(name)
    backend.launch(Attempt(name, job, 1, ("sbatch", "x"), "", {}, is_held=True), (Share("a", (0, 1)),))
    assert "scontrol" not in (tmp_path / "calls").read_text()
