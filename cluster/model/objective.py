"""What a run is judged by: the makespan of jobs that are all submitted at once, else the mean JCT."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Objective = Literal["makespan", "jct"]  # what is minimised


def objective_of(submit_s: NDArray[np.float64]) -> Objective:
    """Return the objective of jobs by their times of submission, of any shape."""
    return "jct" if submit_s.any() else "makespan"
