"""Batches whose optimum is known, and which only a policy with foresight reaches."""

import numpy as np

from longshore.agents.protocol import Policy
from longshore.cluster.model.problem import Problem, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from tests.batches import RULES, fault_free

# GPUs and work: each is optimal with all long work on the fast node, also if the short jobs come first.
BATCHES = (
    ((1, 4.0), (1, 4.0), (2, 20.0)),
    ((2, 4.0), (1, 20.0), (1, 20.0)),
    ((1, 4.0), (1, 20.0), (1, 4.0), (1, 20.0)),
)
DRAWS = 32  # of each batch: half with either node as the fast one, and a seed of the random policy for each


def problem() -> Problem:
    cluster = grid_cluster(2, 2, speed=np.array([1.0, 2.5]))
    workloads = []
    for jobs in BATCHES:
        gpus, work_s = (np.array(column) for column in zip(*jobs, strict=True))
        workloads += [workload_of(tuple(map(str, range(len(jobs)))), gpus, work_s, np.zeros(len(jobs)))] * DRAWS
    scenarios = stack(
        cluster, workloads, fault_seed=np.arange(len(workloads)), source_rate_per_s=np.zeros(fault_sources(cluster))
    )
    speed = scenarios.speed.copy()
    speed[::2] = speed[::2, ::-1]
    return Problem(cluster, scenarios._replace(speed=speed), fault_free(cluster), RULES._replace(waiting=False))


def makespans_s(run: Problem, policy: Policy) -> np.ndarray:
    rows = run.scenarios.jobs.size
    sim = simulation_of(run, rows=rows)
    policy.run(sim, np.arange(rows))
    return outcome_of(sim).makespan_s
