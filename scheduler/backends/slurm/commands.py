"""Slurm's commands, each with a deadline: a controller that hangs leaves them waiting for ever."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ....cluster.files.errors import BackendError
from .times import TIMES, Times


class Commands:
    """Runs Slurm's commands as this user.

    Args:
        conf: Slurm's configuration; where Slurm looks for it by itself if left out.
        times: Deadline and rest.

    Raises:
        BackendError: If Slurm's commands are not there.
    """

    def __init__(self, conf: Path | None, times: Times = TIMES) -> None:
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
            BackendError: If it fails or does not end in time: what it was to do may have been done.
        """
        rest_s = self._rest_until_s - time.monotonic()
        if rest_s > 0.0:
            raise BackendError(f"{name}: Slurm's controller did not answer; it is asked again in {rest_s:.0f} s")
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
