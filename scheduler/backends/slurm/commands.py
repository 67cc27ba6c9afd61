"""Slurm's commands, each with a deadline, and what can be chosen of the Slurm backend."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ....cluster.files.errors import BackendError


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """Of the Slurm backend, in seconds."""

    deadline_s: float = 5.0  # of a command; squeue takes 0.04 s for 1,000 jobs
    rest_s: float = 5.0  # after a missed deadline, in which the next calls fail at once: the scheduler has other work
    old_s: float = 1.0  # minimum between two polls of jobs of sbatch
    idle_poll_s: float = 10.0  # between two polls while the list of all jobs is not read
    again_s: float = 5.0  # between two tries to end the same job
    stray_s: float = 60.0  # for which a lost node has to be back: within it Slurm kills what was left there


SLURM_TIMES = SlurmTimes()


class Commands:
    """Runs Slurm's commands as this user.

    Args:
        conf: Slurm's configuration; by default where Slurm finds it itself.
        times: Deadline and rest.

    Raises:
        BackendError: If Slurm's commands are not installed.
    """

    def __init__(self, conf: Path | None, times: SlurmTimes = SLURM_TIMES) -> None:
        self._paths = {name: _find(name) for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")}
        # Nothing of the caller's environment, where SBATCH_ and SQUEUE_ variables would change what is meant.
        self._environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        if conf is not None:
            self._environment["SLURM_CONF"] = str(conf)
        self._times, self._rest_until_s = times, 0.0

    @property
    def srun(self) -> str:
        """Path of srun."""
        return self._paths["srun"]

    def call(self, name: str, arguments: Sequence[str], stdin: str = "") -> str:
        """Run a command and return what it prints.

        Args:
            name: Of the command.
            arguments: For it.
            stdin: What it reads.

        Raises:
            BackendError: If it fails or does not end in time: it may have had its effect.
        """
        rest_s = self._rest_until_s - time.monotonic()
        if rest_s > 0.0:
            raise BackendError(f"{name}: Slurm's controller did not answer; it is called again in {rest_s:.0f} s")
        try:
            done = subprocess.run(
                [self._paths[name], *arguments], input=stdin, env=self._environment, cwd="/",
                capture_output=True, text=True, errors="replace", timeout=self._times.deadline_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            self._rest_until_s = time.monotonic() + self._times.rest_s
            within = f"within {self._times.deadline_s:.0f} s"
            raise BackendError(f"{name}: Slurm's controller did not answer {within}") from error
        except OSError as error:
            raise BackendError(f"{name} cannot be run: {error}") from error
        if done.returncode != 0:
            raise BackendError(f"{name} failed: {' '.join(done.stderr.split())}")
        return done.stdout


def _find(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BackendError(f"no program {name} on the path; install Slurm's commands (Debian: slurm-client)")
    return path


SLURM_NAME_WORDS = "At most 253 letters, digits and characters of _.,+-"
Word = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.,+-]+$", max_length=253, description=SLURM_NAME_WORDS)
]  # of Slurm's names, or several of them


class SlurmSettings(BaseModel):
    """Which Slurm, and what all of its jobs are submitted with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    conf: Path | None = None  # Slurm's configuration; by default where Slurm finds it itself
    account: Word | None = None
    partition: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    sbatch_socket: Path | None = None  # where job_submit.lua connects; without it, users' own sbatch is left alone

    @property
    def options(self) -> tuple[str, ...]:
        """Options of each sbatch."""
        given = self.model_dump(exclude={"conf", "sbatch_socket"}, exclude_none=True)
        return tuple(f"--{name}={value}" for name, value in given.items())
