"""Schedules of the compiled engine worked by hand from docs/simulator.md: checkpoints every 20 s, restarts of 5 s."""

import math

import numpy as np
import pytest

from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.model.topology import grid_cluster
from tests.cases_by_hand import BLOCKED, Jobs, hand_case
from tests.compiled_runs import run_heuristic
from tests.strategies import Case

HOUR_S = 3600.0
Outages = dict[int, list[tuple[float, float]]]  # of fault sources


def run(case: Case, name: str = "first-fit") -> tuple[list[Event], Outcome]:
    return run_heuristic(case, name)


def starts(case: Case, name: str = "first-fit") -> list[tuple[int, float]]:
    return [(event.job, event.time_s) for event in run(case, name)[0] if event.kind == "start"]


def kinds(events: list[Event]) -> list[tuple[float, str, int]]:
    return [(event.time_s, event.kind, event.job) for event in events]


@pytest.mark.parametrize(
    ("speed", "outages", "finish_s", "lost_s", "overhead_s"),
    [  # one job of 100 s of work on one GPU
        (1.0, [], 100.0, 0.0, 0.0),
        (1.0, [(50.0, 60.0)], 60.0 + 5.0 + 60.0, 10.0, 5.0),  # 40 s are saved
        (1.0, [(40.0, 60.0)], 60.0 + 5.0 + 60.0, 0.0, 5.0),  # at the moment of a checkpoint
        (1.0, [(19.0, 60.0)], 60.0 + 5.0 + 100.0, 19.0, 5.0),  # before the first one
        (1.0, [(50.0, 60.0), (110.0, 115.0)], 115.0 + 5.0 + 20.0, 10.0 + 10.0, 5.0),  # then 40 s of 45 are saved
        (0.5, [(50.0, 60.0), (110.0, 120.0)], 120.0 + 5.0 + 2 * 60.0, 10.0 + 10.0, 5.0),  # 40 s of running save 20 s
        (1.0, [(50.0, 60.0), (63.0, 70.0)], 70.0 + 5.0 + 60.0, 10.0 + 3.0, 5.0),  # within the restart
        (1.0, [(50.0, 60.0), (85.0, 90.0)], 90.0 + 5.0 + 40.0, 10.0 + 5.0, 5.0),  # 5 s of restart and 20 s saved
        (1.0, [(50.0, 60.1), (85.1, 90.0)], 90.0 + 5.0 + 40.0, 10.0 + 5.0, 5.0),  # 20 s, by rounding a little less
    ],
)
def test_a_stopped_job_goes_on_from_its_last_checkpoint_and_pays_the_restart(
    speed: float, outages: list[tuple[float, float]], finish_s: float, lost_s: float, overhead_s: float
) -> None:
    cluster = grid_cluster(1, 1, speed=np.array([speed]))
    _, outcome = run(hand_case(cluster, [(1, 100.0, 0.0)], {0: outages}))
    assert outcome.stops[0, 0] == len(outages)
    assert [outcome.finish_s[0, 0], outcome.lost_s[0, 0]] == pytest.approx([finish_s, lost_s], rel=1e-12)
    assert outcome.overhead_gpu_s[0] == overhead_s
    assert outcome.down_gpu_s[0] == pytest.approx(sum(end_s - start_s for start_s, end_s in outages), rel=1e-12)


def test_a_job_without_checkpoints_begins_anew() -> None:
    case = hand_case(grid_cluster(1, 1), [(1, 100.0, 0.0)], {0: [(90.0, 95.0)]}, checkpoint_s=math.inf)
    assert run(case)[1].finish_s[0, 0] == 95.0 + 5.0 + 100.0


def test_after_a_transient_fault_the_job_restarts_at_the_same_moment() -> None:
    events, outcome = run(hand_case(grid_cluster(1, 1), [(1, 100.0, 0.0)], {0: [(50.0, 50.0)]}))
    assert kinds(events)[2:] == [
        (50.0, "fault", -1), (50.0, "stop", 0), (50.0, "repair", -1), (50.0, "start", 0), (115.0, "finish", 0),
    ]  # fmt: skip
    assert outcome.down_gpu_s[0] == 0.0


def test_a_node_that_fails_stops_its_jobs_and_no_others() -> None:
    jobs: Jobs = [(2, 100.0, 0.0), (1, 30.0, 0.0), (1, 100.0, 0.0)]
    events, _ = run(hand_case(grid_cluster(2, 2), jobs, {4 + 1: [(25.0, 40.0)]}))
    assert [event for event in events if event.kind not in ("submit", "start")] == [
        Event(25.0, "fault", -1, (2, 3)),
        Event(25.0, "stop", 1, (2,)),
        Event(25.0, "stop", 2, (3,)),
        Event(40.0, "repair", -1, (2, 3)),
        Event(55.0, "finish", 1, (3,)),  # 10 s were left; job 2, stopped last, had the first choice
        Event(100.0, "finish", 0, (0, 1)),
        Event(125.0, "finish", 2, (2,)),
    ]


def test_a_gpu_held_by_two_sources_comes_back_with_the_second_one_repaired() -> None:
    outages: Outages = {0: [(10.0, 30.0)], 2: [(20.0, 40.0)]}  # GPU 0, and the node of GPUs 0 and 1
    events, outcome = run(hand_case(grid_cluster(1, 2), [(1, 60.0, 0.0), (1, 5.0, 50.0)], outages))
    assert [event for event in events if event.job < 0] == [
        Event(10.0, "fault", -1, (0,)),
        Event(20.0, "fault", -1, (1,)),
        Event(40.0, "repair", -1, (0, 1)),
    ]
    assert outcome.down_gpu_s[0] == 30.0 + 20.0


def test_a_stopped_job_goes_to_the_head_of_the_queue() -> None:
    jobs: Jobs = [(1, 30.0, 0.0), (1, 10.0, 1.0), (1, 10.0, 2.0)]
    assert starts(hand_case(grid_cluster(1, 1), jobs, {0: [(25.0, 40.0)]})) == [(0, 0), (0, 40), (1, 55), (2, 65)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [  # 4 GPUs; job 1 needs all of them, and none that passes it may run beyond 100 s
        ("fifo", [(0, 0), (1, 100), (2, 150), (3, 150), (4, 249), (5, 249)]),
        ("easy", [(0, 0), (3, 0), (1, 100), (2, 150), (4, 150), (5, 150)]),
        ("easy-shortest", [(0, 0), (5, 0), (4, 0), (1, 100), (2, 150), (3, 150)]),
        ("shortest", [(5, 0), (4, 0), (1, 30), (3, 80), (0, 80), (2, 179)]),
    ],
)
def test_each_order_regime_starts_jobs_as_worked_by_hand(order: str, expected: list[tuple[int, float]]) -> None:
    assert starts(hand_case(grid_cluster(1, 4), BLOCKED, order=ORDERS[order])) == expected


def test_a_job_may_pass_on_the_gpus_that_the_reservation_leaves_over() -> None:
    jobs: Jobs = [(3, 100.0, 0.0), (4, 50.0, 0.0), (1, 300.0, 0.0), (1, 300.0, 0.0)]
    case = hand_case(grid_cluster(1, 5), jobs, order=ORDERS["easy"])  # one GPU is left over at 100 s, and taken by 2
    assert starts(case) == [(0, 0.0), (2, 0.0), (1, 100.0), (3, 150.0)]


def test_a_job_that_is_expected_to_end_at_the_shadow_time_may_pass() -> None:
    jobs: Jobs = [(2, 100.0, 0.0), (4, 50.0, 0.0), (2, 100.0, 0.0)]
    assert starts(hand_case(grid_cluster(1, 4), jobs, order=ORDERS["easy"])) == [(0, 0.0), (2, 0.0), (1, 100.0)]


def test_a_placement_that_would_delay_the_head_is_refused() -> None:
    jobs: Jobs = [(2, 100.0, 0.0), (4, 50.0, 0.0), (2, 90.0, 0.0)]
    cluster = grid_cluster(2, 2, speed=np.array([0.5, 1.0]))
    case = hand_case(cluster, jobs, order=ORDERS["easy"])
    assert starts(case, "fastest") == [(0, 0), (1, 100), (2, 225)]  # 90 s of work take 180 s on the slow node
    assert run(case, "fastest")[1].decisions[0] == 4


@pytest.mark.parametrize(("ring", "second_s"), [(False, 110.0), (True, 0.0)])
def test_a_job_whose_fastest_run_would_delay_the_head_is_not_offered(second_s: float, *, ring: bool) -> None:
    # In the ring model job 2 computes for half of its 110 s and exchanges for the other, over a slow reference link.
    jobs: Jobs = [(1, 100.0, 0.0), (3, 10.0, 0.0), (2, 110.0, 0.0)]
    case = hand_case(grid_cluster(1, 3), jobs, order=ORDERS["easy"], ring=ring, reference_intra_bytes_per_s=4e9)
    assert (2, second_s) in starts(case)
    assert run(case)[1].decisions[0] == 3


def test_while_gpus_of_the_head_are_down_anyone_may_pass() -> None:
    jobs: Jobs = [(2, 10.0, 0.0), (1, 500.0, 0.0)]
    case = hand_case(grid_cluster(1, 2), jobs, {1: [(0.0, 50.0)]}, order=ORDERS["easy"])
    assert starts(case) == [(1, 0.0), (0, 500.0)]


def test_shortest_first_counts_what_is_left_of_an_estimate() -> None:
    # Stopped at 35 s, job 0 has outlived its estimate of 12 s, which becomes 48 s, of which 20 s are saved.
    jobs: Jobs = [(1, 100.0, 0.0), (1, 35.0, 1.0), (1, 15.0, 2.0)]
    case = hand_case(
        grid_cluster(1, 1), jobs, {0: [(35.0, 40.0)]}, estimate_s=[12.0, 35.0, 15.0], order=ORDERS["shortest"]
    )
    assert starts(case) == [(0, 0.0), (2, 40.0), (0, 55.0), (1, 140.0)]


@pytest.mark.parametrize("order", ["easy", "easy-shortest", "shortest"])
def test_nobody_overtakes_a_job_that_has_waited_too_long(order: str) -> None:
    jobs: Jobs = [(1, 100.0, 0.0), (2, 110.0, 0.0), *((1, 30.0, at) for at in (5.0, 10.0, 20.0, 30.0, 40.0))]
    case = hand_case(grid_cluster(1, 2), jobs, order=ORDERS[order], ageing_s=60.0)
    assert (1, 100.0) in starts(case)
    assert all(at <= 60.0 or at >= 210.0 for job, at in starts(case) if job > 1)


@pytest.mark.parametrize("order", ["easy", "easy-shortest", "shortest"])
def test_a_job_larger_than_what_is_in_service_keeps_nobody_waiting_however_long_it_has_waited(order: str) -> None:
    jobs: Jobs = [(2, 50.0, 0.0), *((1, 30.0, at) for at in (5.0, 40.0, 100.0))]
    case = hand_case(grid_cluster(1, 2), jobs, {0: [(0.0, 200.0)]}, order=ORDERS[order], ageing_s=60.0)
    assert starts(case) == [(1, 5.0), (2, 40.0), (3, 100.0), (0, 200.0)]


@pytest.mark.parametrize(
    ("ageing_s", "submit_s", "start_s"),
    [
        (math.inf, 0.0, 10 * HOUR_S),
        (HOUR_S, 0.0, HOUR_S),
        (HOUR_S, 496.4, 496.4 + HOUR_S),  # that sum less 496.4 is by rounding below an hour
    ],
)
def test_a_job_that_waits_by_choice_starts_when_it_reaches_the_ageing_bound(
    ageing_s: float, submit_s: float, start_s: float
) -> None:
    # The fast node is taken for 10 h; after that it saves job 1 60 h against the slow one, which is free.
    jobs: Jobs = [(8, 10 * HOUR_S, 0.0), (8, 20 * HOUR_S, submit_s)]
    cluster = grid_cluster(2, 8, speed=np.array([0.25, 1.0]))
    case = hand_case(cluster, jobs, ageing_s=ageing_s, waiting=True)
    assert starts(case, "patient") == [(0, 0.0), (1, start_s)]


def test_a_stop_does_not_restart_the_age_of_a_job() -> None:
    jobs: Jobs = [(1, 30.0, 0.0), (1, 100.0, 0.0), (1, 35.0, 40.0), (1, 10.0, 50.0)]
    case = hand_case(grid_cluster(1, 1), jobs, {0: [(40.0, 45.0)]}, order=ORDERS["shortest"], ageing_s=60.0)
    # Job 1 waits 30 s, runs, and is stopped at 40 s: it has waited 60 s at 70 s, so at 80 s job 3 may not overtake it.
    assert starts(case) == [(0, 0.0), (1, 30.0), (2, 45.0), (1, 80.0), (3, 185.0)]
    assert run(case)[1].wait_s.tolist() == [[0.0, 70.0, 5.0, 135.0]]


def test_a_run_that_is_cut_off_counts_waits_that_last() -> None:
    case = hand_case(grid_cluster(1, 1), [(1, 30.0, 0.0), (1, 90.0, 10.0), (1, 5.0, 20.0)], limit_s=100.0)
    assert run(case)[1].wait_s.tolist() == [[0.0, 20.0, 10.0]]  # the last thing that happens is a start at 30 s


def test_an_estimate_that_is_outlived_doubles_until_the_expected_end_lies_ahead() -> None:
    jobs: Jobs = [(1, 100.0, 0.0), (2, 50.0, 0.0), (1, 30.0, 35.0), (1, 60.0, 40.0)]
    case = hand_case(grid_cluster(1, 2), jobs, estimate_s=[10.0, 50.0, 30.0, 60.0], order=ORDERS["easy"])
    # At 35 s job 0 is expected to end at 40 s: job 2 would delay job 1. At 40 s it is expected to end at 80 s.
    assert starts(case) == [(0, 0.0), (2, 40.0), (1, 100.0), (3, 150.0)]


def test_a_run_is_cut_off_before_its_time_limit() -> None:
    _, outcome = run(hand_case(grid_cluster(1, 1), [(1, 30.0, 0.0)] * 3, limit_s=60.0))
    assert (outcome.finished[0], outcome.makespan_s[0], outcome.busy_gpu_s[0]) == (2, 60.0, 60.0)


def test_a_job_that_can_never_start_ends_the_run() -> None:
    _, outcome = run(hand_case(grid_cluster(1, 1), [(1, 1.0, 0.0)], {0: [(0.0, math.inf)]}))
    assert outcome.finished[0] == 0


def test_nothing_happens_after_the_last_job_has_finished() -> None:
    events, _ = run(hand_case(grid_cluster(1, 2), [(1, 50.0, 0.0)], {1: [(50.0, 60.0)]}))
    assert kinds(events)[-1] == (50.0, "finish", 0)
