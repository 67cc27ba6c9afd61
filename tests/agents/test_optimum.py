"""Every heuristic of the compiled engine, and untrained networks, against the exact optimum."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import schema_of, untrained_network
from longshore.agents.learned.network import LearnedPolicy
from longshore.cluster.model.problem import ORDERS, Problem, Scenarios
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from tests.batches import RULES, batch, batches, fault_free
from tests.bounds import optimal_makespan_s
from tests.compiled_runs import run_heuristic, run_policy
from tests.strategies import Case
from tests.support.budgets import examples


@settings(max_examples=examples(60))
@given(batches(), st.sampled_from(sorted(ORDERS.values())))
def test_no_heuristic_ends_before_the_optimum(made: tuple[Cluster, Scenarios], order: int) -> None:
    cluster, scenarios = made
    optimum_s = optimal_makespan_s(cluster, scenarios, 0, RULES)
    for waiting in (True, False):
        rules = RULES._replace(order=order, waiting=waiting)
        sim = simulation_of(Problem(cluster, scenarios, fault_free(cluster), rules))
        for name, policy in HEURISTICS.items():
            policy.run(sim, np.array([0]))
            outcome = outcome_of(sim)
            assert outcome.finished[0] == scenarios.jobs[0], name
            assert outcome.makespan_s[0] >= optimum_s, name


@pytest.mark.parametrize("action", ["node", "gpu"])
@settings(max_examples=examples(40))
@given(batches(), st.sampled_from(sorted(ORDERS.values())), st.integers(0, 9))
def test_no_network_ends_before_the_optimum(
    action: str, made: tuple[Cluster, Scenarios], order: int, weights: int
) -> None:
    cluster, scenarios = made
    optimum_s = optimal_makespan_s(cluster, scenarios, 0, RULES)
    torch.manual_seed(weights)
    for waiting in (True, False):
        schema = schema_of(
            algorithm="ppo", network="set", action=action, observation="full", waiting=waiting,
            node_gpus=tuple(np.diff(cluster.first_gpu).tolist()),
        )  # fmt: skip
        policy = LearnedPolicy("untrained", schema, untrained_network(schema))
        rules = RULES._replace(order=order, waiting=waiting)
        outcome = run_policy(Case(cluster, scenarios, 0, fault_free(cluster), rules), policy)[1]
        assert outcome.finished[0] == scenarios.jobs[0]
        assert outcome.makespan_s[0] >= optimum_s


def test_expected_finish_reaches_the_optimum_where_looking_one_job_ahead_is_enough() -> None:
    cluster = grid_cluster(2, 1, speed=np.array([1.0, 2.0]))
    scenarios = batch(cluster, [(1, 4.0), (1, 4.0), (1, 4.0)])
    outcome = run_heuristic(Case(cluster, scenarios, 0, fault_free(cluster), RULES), "eft-wait")[1]
    assert outcome.makespan_s[0] == optimal_makespan_s(cluster, scenarios, 0, RULES) == 4.0
