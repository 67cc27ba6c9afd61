"""What can be chosen of the Slurm backend."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

WORDS = "At most 253 letters, digits and characters of _.,+-"
Word = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.,+-]+$", max_length=253, description=WORDS)
]  # of Slurm's names, or several of them


class SlurmSettings(BaseModel):
    """Which Slurm, and what all of its jobs are submitted with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    conf: Path | None = None  # Slurm's configuration; where Slurm looks for it by itself if left out
    account: Word | None = None
    partition: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    sbatch_socket: Path | None = None  # where job_submit.lua asks; users' own sbatch is left alone if left out

    @property
    def options(self) -> tuple[str, ...]:
        """Options of each sbatch."""
        given = self.model_dump(exclude={"conf", "sbatch_socket"}, exclude_none=True)
        return tuple(f"--{name}={value}" for name, value in given.items())
