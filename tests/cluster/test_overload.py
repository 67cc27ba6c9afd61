"""When a cluster was asked more than it could do."""

from typing import Any

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import overloaded
from longshore.cluster.model.problem import Problem, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import scaled_to_load, workload_of
from longshore.cluster.presets.drawn import fault_process, rules
from longshore.cluster.presets.problems import rules_until_overload
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from tests.eval.runs import outcome, scenarios


def overloaded_at(load: float, *, order: int = 0, jobs: int = 400, limit_s: float = np.inf) -> bool:
    """Return whether Poisson arrivals of exponential jobs overload 8 GPUs without faults."""
    rng = np.random.default_rng(3)
    submit_s, work_s = np.cumsum(rng.exponential(1.0, jobs)), rng.exponential(100.0, jobs)
    drawn = workload_of(tuple(map(str, range(jobs))), np.ones(jobs, dtype=np.int32), work_s, submit_s)
    workload = scaled_to_load(drawn, load, 8)
    cluster = grid_cluster(1, 8)
    run = stack(
        cluster, [workload], fault_seed=np.zeros(1, dtype=np.int64), source_rate_per_s=np.zeros(fault_sources(cluster))
    )
    its_rules = rules()._replace(order=order, limit_s=limit_s)
    sim = simulation_of(Problem(cluster, run, fault_process(), its_rules))
    HEURISTICS["pack"].run(sim, np.array([0]))
    return bool(overloaded(outcome_of(sim), run)[0])


@pytest.mark.parametrize("order", [0, 3])
@pytest.mark.parametrize(("load", "overloaded"), [(0.5, False), (0.8, False), (1.5, True), (3.0, True)])
def test_a_load_beyond_what_the_cluster_can_do_is_an_overload(load: float, overloaded: bool, order: int) -> None:  # noqa: FBT001
    assert overloaded_at(load, order=order) == overloaded


def test_a_run_that_was_cut_off_is_overloaded_however_low_the_load() -> None:
    assert overloaded_at(0.5, limit_s=2000.0)


def test_a_batch_waits_but_is_not_overloaded() -> None:
    late = outcome(np.full((1, 4), 9e5))._replace(first_start_s=np.array([[0.0, 1.0, 2e5, 3e5]]))
    assert not overloaded(late, scenarios(1)).any()


def test_the_queue_must_hold_a_quarter_and_more_than_at_half_time() -> None:
    """Jobs of 1, 2, 3 and 8 GPUs and an hour each are submitted at 0, 10, 20 and 30 s; half time is 15 s."""
    arriving = scenarios(4, arrival_s=10.0)
    starts_s = np.array(
        [
            [0.0, 10.0, 20.0, 31.0],  # 8 of 14 wait at the end, none at half time
            [0.0, 10.0, 20.0, 30.0],  # no job waits
            [0.0, 10.0, 40.0, 30.0],  # 3 of 14 are less than a quarter
            [40.0, 40.0, 40.0, 30.0],  # 6 of 14, and 3 at half time
        ]
    )
    run = outcome(np.full((4, 4), 9e3))._replace(first_start_s=starts_s)
    assert overloaded(run, arriving).tolist() == [True, False, False, True]
    drained = run._replace(first_start_s=np.array([[40.0, 40.0, 20.0, 30.0]] * 4))  # 3 of 14 at both
    assert not overloaded(drained, arriving).any()


@pytest.mark.parametrize(
    "pauses",
    [{}, {"preflight_s": 300.0}, {"restart_s": 300.0}, {"detection_s": 300.0}, {"switching": True, "switch_s": 300.0}],
)
def test_no_run_is_cut_off_before_one_gpu_could_have_done_all(pauses: dict[str, Any]) -> None:
    """Each job pauses once, as at its start or at a fault, which jobs of some seconds do for most of their time."""
    jobs, cluster = 1000, grid_cluster(1, 1)
    work_s, submit_s = np.full(jobs, 5.0), np.arange(jobs, dtype=np.float64)
    workload = workload_of(tuple(map(str, range(jobs))), np.ones(jobs, dtype=np.int32), work_s, submit_s)
    run = stack(
        cluster, [workload], fault_seed=np.zeros(1, dtype=np.int64), source_rate_per_s=np.zeros(fault_sources(cluster))
    )
    without = rules()._replace(restart_s=0.0)
    limit_s = rules_until_overload(cluster, run, without._replace(**pauses)).limit_s
    assert limit_s > submit_s[-1] + jobs * (5.0 + sum(value for name, value in pauses.items() if name.endswith("_s")))
