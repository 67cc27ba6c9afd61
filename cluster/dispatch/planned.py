"""Run times of jobs that have a plan (cluster/model/plans.py), as the simulator asks for them.

Where no job has a plan nothing of all this happens.
"""

from ..kernels.compiled import kernel
from ..model.plans import Iteration, iteration_s, reference_iteration_s
from ..state.state import Simulation


@kernel
def has_plans(sim: Simulation) -> bool:
    """Say whether jobs may have plans."""
    return bool(sim.scenarios.pipeline.shape[1] > 0)


@kernel
def is_planned(sim: Simulation, scenario: int, job: int) -> bool:
    """Say whether a job has a plan."""
    return has_plans(sim) and sim.scenarios.pipeline[scenario, job] > 0


@kernel
def iteration_of(sim: Simulation, scenario: int, job: int) -> Iteration:
    """Return what an iteration of a job does that has a plan."""
    jobs = sim.scenarios
    pipeline, tensor = jobs.pipeline[scenario, job], jobs.tensor[scenario, job]
    return Iteration(
        jobs.gpus[scenario, job] // (pipeline * tensor),
        pipeline,
        tensor,
        jobs.compute_s[scenario, job],
        jobs.fixed_s[scenario, job],
        jobs.parameter_bytes[scenario, job],
        jobs.edge_bytes[scenario, job],
        jobs.tensor_bytes[scenario, job],
    )


@kernel
def planned_slowdown(
    sim: Simulation, scenario: int, job: int, share: float, speed: float, inside: float, across: float, grain: int
) -> float:
    """Return run time over work of a job that has a plan; the last arguments are those of `iteration_s`."""
    rules, iteration = sim.rules, iteration_of(sim, scenario, job)
    reference_s = reference_iteration_s(
        iteration, rules.reference_gpus, rules.reference_intra_bytes_per_s, rules.reference_nic_bytes_per_s
    )
    return float(iteration_s(iteration, share, speed, inside, across, grain) / reference_s)


@kernel
def common_divisor(number: int, other: int) -> int:
    """Return the largest number that divides both; that of 0 and a number is the number."""
    while other > 0:
        number, other = other, number % other
    return number


@kernel
def picked_grain(sim: Simulation, row: int) -> int:
    """Return the largest number that divides the GPUs that each node gives to the current job, 0 if none does."""
    grain = 0
    for node in range(sim.state.taken.shape[1]):
        grain = common_divisor(grain, sim.state.taken[row, node])
    return grain
