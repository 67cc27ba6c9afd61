"""Faults that jobs outlive, worked by hand: who takes a seat, what is lost, and when a job is stopped all the same."""

from typing import Any

import numpy as np
import pytest

from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.simulator.simulation import simulation_of
from tests.cases_by_hand import Jobs, Outages, hand_case
from tests.compiled_runs import run_heuristic
from tests.strategies import Case

LONG_S = 1e6


def run(cluster: Cluster, jobs: Jobs, outages: Outages, **rules: Any) -> tuple[list[tuple[Any, ...]], Outcome]:
    """Return (time, kind, job, GPUs) of each event of a job, and the outcome."""
    events, outcome = run_heuristic(case_of(cluster, jobs, outages, **rules), "first-fit")
    return [tuple(event) for event in events if event.job >= 0 and event.kind != "submit"], outcome


def case_of(cluster: Cluster, jobs: Jobs, outages: Outages, **rules: Any) -> Case:
    return hand_case(cluster, jobs, outages, **({"switching": True, "switch_s": 3.0, "node_penalty": 0.0} | rules))


def test_a_job_goes_on_with_an_idle_gpu_and_loses_no_step() -> None:
    events, outcome = run(grid_cluster(1, 3), [(2, 100.0, 0.0)], {1: [(50.0, LONG_S)]})
    assert events == [(0.0, "start", 0, (0, 1)), (50.0, "switch", 0, (0, 2)), (103.0, "finish", 0, (0, 2))]
    assert (outcome.stops[0, 0], outcome.switches[0], outcome.lost_s[0, 0]) == (0, 1, 0.0)
    assert outcome.overhead_gpu_s[0] == 2 * 3.0


def test_until_a_fault_is_detected_the_job_holds_its_gpus_and_stands_still() -> None:
    events, outcome = run(grid_cluster(1, 3), [(2, 100.0, 0.0)], {1: [(50.0, LONG_S)]}, detection_s=7.0)
    assert events[1:] == [(57.0, "switch", 0, (0, 2)), (110.0, "finish", 0, (0, 2))]
    assert (outcome.lost_s[0, 0], outcome.busy_gpu_s[0]) == (7.0, 220.0)


def test_a_job_that_restarts_waits_for_the_detection_too_and_every_start_is_checked() -> None:
    events, outcome = run(
        grid_cluster(1, 3), [(2, 100.0, 0.0)], {1: [(52.0, LONG_S)]}, detection_s=7.0, preflight_s=2.0, switching=False
    )
    assert events == [
        (0.0, "start", 0, (0, 1)),
        (59.0, "stop", 0, (0, 1)),  # 50 s of work were done, 40 s of them are saved
        (59.0, "start", 0, (0, 2)),
        (59.0 + 2.0 + 5.0 + 60.0, "finish", 0, (0, 2)),
    ]
    assert outcome.lost_s[0, 0] == 59.0 - 40.0
    assert outcome.overhead_gpu_s[0] == 2 * 7.0


def test_without_a_candidate_the_ring_shrinks_and_grows_when_a_gpu_is_back() -> None:
    events, _ = run(grid_cluster(1, 2), [(2, 100.0, 0.0)], {1: [(50.0, 73.0)]})
    assert events == [
        (0.0, "start", 0, (0, 1)),
        (50.0, "switch", 0, (0,)),  # the one left computes the whole batch: 20 s of it are 10 s of work
        (73.0, "switch", 0, (0, 1)),
        (73.0 + 3.0 + 40.0, "finish", 0, (0, 1)),
    ]


def test_a_shrunk_job_gets_a_free_gpu_before_jobs_of_the_queue() -> None:
    jobs: Jobs = [(2, 100.0, 0.0), (1, 60.0, 0.0), (1, 30.0, 1.0)]
    events, _ = run(grid_cluster(1, 3), jobs, {0: [(50.0, LONG_S)]})
    assert events[2:5] == [
        (50.0, "switch", 0, (1,)),
        (60.0, "finish", 1, (2,)),
        (60.0, "switch", 0, (1, 2)),
    ]


def test_a_job_that_loses_all_its_gpus_at_once_goes_back_to_its_checkpoint() -> None:
    events, outcome = run(grid_cluster(2, 2), [(2, 100.0, 0.0)], {4: [(50.0, LONG_S)]})
    assert events[1:3] == [(50.0, "stop", 0, (0, 1)), (50.0, "start", 0, (2, 3))]
    assert (outcome.stops[0, 0], outcome.lost_s[0, 0]) == (1, 10.0)


def test_what_was_done_before_a_switch_counts_to_the_next_checkpoint_and_is_lost_with_the_last_gpu() -> None:
    outages: Outages = {1: [(50.0, LONG_S)], 0: [(59.0, LONG_S)], 2: [(59.0, LONG_S)]}
    events, outcome = run(grid_cluster(1, 6), [(2, 100.0, 0.0)], outages)
    # 50 s, a pause of 3 s, and 6 s: a checkpoint was written at 40 s, none at 56 s
    assert events[2:] == [(59.0, "stop", 0, (0, 2)), (59.0, "start", 0, (3, 4)), (124.0, "finish", 0, (3, 4))]
    assert outcome.lost_s[0, 0] == 3.0 + 10.0 + 6.0


def test_a_gpu_that_is_back_by_the_detection_keeps_its_seat() -> None:
    events, _ = run(grid_cluster(1, 3), [(2, 100.0, 0.0)], {1: [(50.0, 55.0)]}, detection_s=10.0)
    assert events[1:] == [(60.0, "switch", 0, (0, 1)), (113.0, "finish", 0, (0, 1))]


def test_gpus_that_are_all_back_have_lost_the_state_of_the_job_all_the_same() -> None:
    events, _ = run(grid_cluster(1, 2), [(2, 100.0, 0.0)], {2: [(50.0, 55.0)]}, detection_s=10.0)
    assert events[1] == (60.0, "stop", 0, (0, 1))


def test_no_job_starts_on_a_spare_and_a_failed_gpu_takes_its_place_in_the_pool() -> None:
    jobs: Jobs = [(3, 100.0, 0.0), (3, 10.0, 1.0), (1, 10.0, 1.0)]
    events, _ = run(grid_cluster(1, 4), jobs, {1: [(50.0, 60.0)]}, spares=0.25)
    assert events == [
        (0.0, "start", 0, (0, 1, 2)),
        (50.0, "switch", 0, (0, 2, 3)),
        (103.0, "finish", 0, (0, 2, 3)),  # GPU 1, back since 60 s, is the spare now
        (103.0, "start", 1, (0, 2, 3)),
        (113.0, "finish", 1, (0, 2, 3)),
        (113.0, "start", 2, (0,)),
        (123.0, "finish", 2, (0,)),
    ]


@pytest.mark.parametrize(
    ("order", "chosen"),
    [
        ((1.0, 1.0, 1.0, 2.0), 2),  # both keep the time of the ring: the weaker one, so that no strong GPU is wasted
        ((1.0, 1.0, 2.0, 0.5), 2),  # one slows the ring down
        ((1.0, 1.0, 0.25, 0.5), 3),  # both do: the faster one
    ],
)
def test_the_weakest_gpu_that_keeps_the_time_takes_the_seat_else_the_fastest(
    order: tuple[float, ...], chosen: int
) -> None:
    cluster = grid_cluster(4, 1, speed=np.array(order))
    events, _ = run(cluster, [(2, 100.0, 0.0)], {1: [(50.0, LONG_S)]}, ring=True)
    assert events[1][1:] == ("switch", 0, (0, chosen))


def test_a_job_larger_than_all_but_the_spares_is_refused() -> None:
    case = case_of(grid_cluster(2, 4), [(7, 10.0, 0.0)], {}, spares=0.25)
    with pytest.raises(ValueError, match="a job asks 7 GPUs of a cluster that has 6 besides its spares"):
        simulation_of(Problem(case.cluster, case.scenarios, case.process, case.rules))


def test_the_log_tells_of_faults_of_spares_too() -> None:
    events, _ = run_heuristic(case_of(grid_cluster(1, 4), [(1, 50.0, 0.0)], {3: [(10.0, 20.0)]}, spares=0.25), "pack")
    assert Event(10.0, "fault", -1, (3,)) in events
    assert Event(20.0, "repair", -1, (3,)) in events
