"""Only for the letter of the patent: its observation (SPEC R2), and the same of the rest of the job.

`patent-literal` is SPEC R2's state to the letter: the GPUs of the job, its estimated run time in hours, and one entry
per GPU that is 0 when it can be used and 1 when it is busy, faulty or picked. `patent` has the GPUs still to pick and
the hours still to run instead of those of the whole job.
"""

import numpy as np
from numpy.typing import NDArray

from ..cluster.kernels.compiled import kernel
from ..cluster.queue.expected import estimated_work_s
from ..cluster.state.state import Simulation

PATENT_GLOBALS = {"patent": ("gpus", "estimate_h"), "patent-literal": ("job_gpus", "job_estimate_h")}
PATENT_FEATURES = ("used",)  # of each GPU
Rows = NDArray[np.float32]


@kernel
def write_patent(sim: Simulation, row: int, out: Rows, at: int) -> None:
    """Write GPUs still to pick, hours still to run, and 1 for each GPU that cannot be used."""
    out[at, 0] = sim.state.need[row]
    out[at, 1] = estimated_work_s(sim, row, sim.state.current[row]) / 3600.0
    _write_used(sim, row, out, at)


@kernel
def write_literal_patent(sim: Simulation, row: int, out: Rows, at: int) -> None:
    """Write the patent's state: GPUs and estimated hours of the whole job, and 1 for each GPU that cannot be used.

    Source: SPEC R2.
    """
    scenario, job = sim.state.scenario[row], sim.state.current[row]
    out[at, 0] = sim.scenarios.gpus[scenario, job]
    out[at, 1] = sim.scenarios.estimate_s[scenario, job] / 3600.0
    _write_used(sim, row, out, at)


@kernel
def _write_used(sim: Simulation, row: int, out: Rows, at: int) -> None:
    state = sim.state
    for gpu in range(state.gpu_job.shape[1]):
        usable = state.gpu_job[row, gpu] < 0 and state.gpu_down[row, gpu] == 0
        usable = usable and state.free[row, sim.cluster.gpu_node[gpu]] > 0  # 0 where the job cannot use the node
        out[at, 2 + gpu] = 0.0 if usable else 1.0
