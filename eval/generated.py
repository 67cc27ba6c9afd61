"""Jobs that `simulate` and `evaluate` draw where no trace is given."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import nearest
from ..cluster.model.workload import Workload
from ..cluster.workloads.generator import Arrivals, generate
from ..cluster.workloads.profiles import PROFILES

PROFILE = "philly"


@dataclass(frozen=True, slots=True)
class JobsRequest:
    """What generated jobs look like; None where nothing was asked."""

    profile: str | None = None  # of PROFILES
    arrivals: Arrivals | None = None

    def check(self, trace: Path | None, load: float | None) -> None:
        """Refuse options that cannot be followed.

        Raises:
            InputError: Naming the option.
        """
        for option, value in (("--profile", self.profile), ("--arrivals", self.arrivals)):
            if value is not None and trace is not None:
                raise InputError("a trace has its own jobs", "leave one of the two out", field=option)
        if self.profile is not None and self.profile not in PROFILES:
            problem = f"there is no profile {self.profile!r}"
            raise InputError(problem, nearest(self.profile, PROFILES), field="--profile")
        if self.arrivals == "batch" and load is not None:
            raise InputError("a batch submits all jobs at once", "leave one of the two out", field="--load")

    def draw(self, jobs: int, *, load: float, capacity: int, rng: np.random.Generator) -> Workload:
        """Return one workload for a cluster that is worth so many GPUs of speed 1."""
        profile = PROFILES[self.profile or PROFILE]
        return generate(profile, jobs, load=load, cluster_gpus=capacity, rng=rng, arrivals=self.arrivals or "profile")

    @property
    def text(self) -> str:
        """What is drawn, in words; empty if nothing was asked."""
        if self.profile is None and self.arrivals is None:
            return ""
        arrivals = "its own" if self.arrivals in (None, "profile") else self.arrivals
        return f"drawn from the profile {self.profile or PROFILE}, arrivals {arrivals}"
