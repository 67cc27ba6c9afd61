"""Masked PPO on batches whose optimum is known, and which only looking ahead reaches."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO

from longshore.agents.heuristics.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import layout_of, schema_of
from longshore.agents.learned.schema import Schema
from longshore.agents.learned.step_policy import LearnedPolicy
from longshore.agents.networks.sb3_policy import MaskedPolicy
from longshore.agents.networks.set import SetNetwork
from longshore.agents.protocol import Policy
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.scenarios import fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.envs.batch import View
from longshore.envs.sb3 import PlacementVecEnv
from tests.bounds import optimal_makespan_s
from tests.test_bounds import RULES, fault_free

# GPUs and work: each is optimal with all long work on the fast node, also if the short jobs come first.
BATCHES = (
    ((1, 4.0), (1, 4.0), (2, 20.0)),
    ((2, 4.0), (1, 20.0), (1, 20.0)),
    ((1, 4.0), (1, 20.0), (1, 4.0), (1, 20.0)),
)
DRAWS = 32  # of each batch: half with either node as the fast one, and a seed of the random policy for each


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def trained(run: Problem, schema: Schema, steps: int) -> LearnedPolicy:
    model = MaskablePPO(
        MaskedPolicy,
        PlacementVecEnv(run, View(schema.action, schema.observation), 48),
        learning_rate=lambda left: 3e-3 * left,
        n_steps=16,
        batch_size=384,
        n_epochs=4,
        gamma=1.0,
        ent_coef=0.03,
        policy_kwargs={"network": schema.network, "layout": layout_of(schema)},
        seed=0,
        device="cpu",
    )
    model.learn(steps)
    network = model.policy.network
    assert isinstance(network, SetNetwork)
    return LearnedPolicy("trained", schema, network)


@pytest.mark.parametrize("action", ["node", "gpu"])
def test_a_policy_learns_the_optimum_that_no_greedy_rule_reaches(action: str) -> None:
    run = problem()
    rows = range(run.scenarios.jobs.size)
    optimum_s = np.array([optimal_makespan_s(run.cluster, run.scenarios, row, run.rules) for row in rows])
    assert (optimum_s == 8.0).all()  # 20 s at speed 2.5, beside which 4 s at speed 1 end in time
    schema = schema_of(
        algorithm="ppo", network="set", action=action, observation="full", waiting=False, node_gpus=(2, 2)
    )
    assert makespans_s(run, trained(run, schema, 16_000)) == pytest.approx(optimum_s, rel=1e-6)
    for name in HEURISTICS:
        assert makespans_s(run, HEURISTICS[name]).mean() > 1.2 * optimum_s.mean(), name
