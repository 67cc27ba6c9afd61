"""Measured runs of a model: rows of their file, and runs drawn by known constants."""

import numpy as np

from longshore.planner.calibration import FULL, MeasuredRuns, decoder_work_of, predicted_iteration_s
from longshore.planner.hardware import MeasuredHardware
from longshore.planner.step_time import Constants

HEAD = "gpus,batch,micro_batch,hidden,layers,sequence,tensor,pipeline,data,iteration_s\n"
ROW = "8,64,2,1024,24,1024,2,2,2,0.5\n"
TRUE = Constants(0.8, 0.2e6, 200e9, 120e9, 12e9, 2e-3, 0.4e-3, 5e-3)


def made_runs(count: int, noise: float, seed: int = 0) -> MeasuredRuns:
    """Return runs that take the time of the formula with constants TRUE, times log-normal noise."""
    rng = np.random.default_rng(seed)
    tensor, pipeline, data = (
        rng.choice(choices, count).astype(float) for choices in ([1, 2, 4, 8], [1, 2, 4], [1, 2, 8])
    )
    runs = MeasuredRuns(
        gpus=tensor * pipeline * data, batch=data * 64, micro_batch=rng.choice([1.0, 2.0, 4.0], count),
        hidden=rng.choice([1024.0, 2048.0, 8192.0], count), layers=np.full(count, 24.0),
        sequence=np.full(count, 1024.0), vocabulary=np.full(count, 51_200.0), tensor=tensor, pipeline=pipeline,
        data=data, recompute=np.full(count, FULL), interleave=np.ones(count), zero3=np.zeros(count),
        iteration_s=np.ones(count),
    )  # fmt: skip
    exact = predicted_iteration_s(decoder_work_of(runs, MeasuredHardware()), TRUE)
    return runs._replace(iteration_s=exact * np.exp(noise * rng.standard_normal(count)))
