"""The exact optimum against hand-worked cases, and every policy against the optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.model.problem import ORDERS, Scenarios
from longshore.cluster.model.topology import Cluster, grid_cluster
from tests.batches import RULES, batch, batches, fault_free
from tests.bounds import optimal_makespan_s
from tests.reference import simulate
from tests.reference_policies import POLICIES, scripted
from tests.support.budgets import examples


@pytest.mark.parametrize(
    ("speed", "gpus_per_node", "jobs", "optimum_s"),
    [
        ([1.0], 2, [(1, 3.0), (1, 3.0), (1, 2.0), (1, 2.0), (1, 2.0)], 6.0),  # 3 + 3 beside 2 + 2 + 2; LPT gives 7
        ([1.0, 2.0], 1, [(1, 4.0), (1, 4.0), (1, 4.0)], 4.0),  # two on the fast node, one on the slow
        ([1.0, 0.25], 1, [(1, 4.0), (1, 3.0)], 7.0),  # the slow node, with 12 s at least, is better left idle
        ([1.0, 1.0], 2, [(3, 8.0), (1, 10.0)], 10.0),  # three GPUs over two nodes take 8 x 1.25 s
        ([1.0, 1.0], 2, [(1, 9.0), (1, 9.0), (2, 8.0)], 9.0),  # packed; spread, the third takes 10 s
        ([1.0, 2.0, 2.0], 2, [(6, 8.0), (4, 8.0)], 17.0),  # 8 x 1.5 on all, then 8 x 1.25 / 2 on the fast ones
    ],
)
def test_the_optimum_is_the_one_worked_by_hand(
    speed: list[float], gpus_per_node: int, jobs: list[tuple[int, float]], optimum_s: float
) -> None:
    cluster = grid_cluster(len(speed), gpus_per_node, speed=np.array(speed))
    assert optimal_makespan_s(cluster, batch(cluster, jobs), 0, RULES) == optimum_s


def test_jobs_that_arrive_later_are_refused() -> None:
    cluster = grid_cluster(1, 1)
    scenarios = batch(cluster, [(1, 1.0)])
    with pytest.raises(ValueError, match="a batch at 0 s"):
        optimal_makespan_s(cluster, scenarios._replace(submit_s=np.array([[1.0]])), 0, RULES)


@settings(max_examples=examples(100))
@given(batches(), st.sampled_from(sorted(ORDERS.values())))
def test_no_policy_ends_before_the_optimum(made: tuple[Cluster, Scenarios], order: int) -> None:
    cluster, scenarios = made
    rules = RULES._replace(order=order)
    optimum_s = optimal_makespan_s(cluster, scenarios, 0, rules)
    for choose in (*POLICIES.values(), scripted(1), scripted(2, 0.5)):
        _, outcome = simulate(cluster, scenarios, 0, fault_free(cluster), rules, choose)
        assert outcome.makespan_s[0] >= optimum_s


@settings(max_examples=examples(60))
@given(batches(), st.floats(1.0, 3.0))
def test_the_optimum_is_no_less_than_what_work_and_speed_allow(made: tuple[Cluster, Scenarios], factor: float) -> None:
    cluster, scenarios = made
    optimum_s = optimal_makespan_s(cluster, scenarios, 0, RULES)
    capacity = float(np.diff(cluster.first_gpu) @ cluster.speed)
    assert optimum_s >= float((scenarios.gpus * scenarios.work_s).sum()) / capacity - 1e-9
    longer = scenarios._replace(work_s=scenarios.work_s * factor)
    assert optimal_makespan_s(cluster, longer, 0, RULES) >= optimum_s
