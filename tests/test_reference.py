"""The reference simulator against hand-worked schedules and what holds for every schedule."""

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.kernels.structures import uniform
from longshore.cluster.model.outcome import Event, Outcome, metrics
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.model.topology import grid_cluster
from tests.cases_by_hand import BLOCKED, NO_FAULTS, Jobs, hand_case
from tests.reference import Choose, first_state, simulate
from tests.reference_faults import philox, plain_uniform, random_outages
from tests.reference_policies import POLICIES, first_fit, scripted
from tests.reference_state import ReferenceState, slowdown
from tests.schedule_checker import check_schedule
from tests.schedule_records import cluster_record, event_records, job_records
from tests.strategies import Case, cases
from tests.support.budgets import examples

POLICY_OF = st.sampled_from(sorted(POLICIES)).map(POLICIES.__getitem__) | st.builds(
    scripted, st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.3))
)


def run(case: Case, choose: Choose = first_fit) -> tuple[list[Event], Outcome]:
    return simulate(*case, choose)


def starts(case: Case, choose: Choose = first_fit) -> list[tuple[int, float]]:
    """Return (job, time) of each start."""
    return [(event.job, event.time_s) for event in run(case, choose)[0] if event.kind == "start"]


@pytest.mark.parametrize(
    ("left", "right", "key", "words"),
    [
        (0, 0, 0, (0xFF1DAE59, 0x6CD10DF2)),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(left: int, right: int, key: int, words: tuple[int, int]) -> None:
    assert philox(left, right, key) == words


@given(st.integers(0, 2**40), st.integers(0, 2**33), st.integers(0, 2**33))
def test_compiled_random_numbers_are_those_of_plain_philox(seed: int, source: int, k: int) -> None:
    assert uniform(seed, source, k) == plain_uniform(seed, source, k)


@pytest.mark.parametrize(("shape", "sigma"), [(1.0, 0.0), (0.75, 0.5), (1.5, 1.0)])
def test_random_outages_have_the_rates_that_were_asked_for(shape: float, sigma: float) -> None:
    process = NO_FAULTS._replace(shape=shape, repair_sigma=sigma, transient_probability=0.25)
    outages = np.array(list(islice(random_outages(process, 7, 3, 0.01), 4000)))
    up_s = outages[:, 0] - np.append(0.0, outages[:-1, 1])
    repair_s = outages[:, 1] - outages[:, 0]
    assert up_s.mean() == pytest.approx(100.0, rel=0.08)
    assert (repair_s == 0).mean() == pytest.approx(0.25, abs=0.03)
    assert repair_s[repair_s > 0].mean() == pytest.approx(60.0, rel=0.08)


def test_the_simple_model_counts_nodes_and_the_slowest_gpu() -> None:
    case = hand_case(grid_cluster(2, 2, speed=np.array([0.5, 1.0])), [(4, 100.0, 0.0)])
    assert run(case)[1].makespan_s == 100.0 * 1.25 / 0.5


@pytest.mark.parametrize(
    ("gpus", "exchange_s", "compute_s"),
    [
        ([0, 1], 2e9 / 150e9, 1.0),  # 2 (n - 1) / n = 1 over the node's own links
        ([2, 4], 2e9 / 12.5e9, 0.5),  # over the network of one rack
        ([2, 3, 4, 6], 3e9 / 5e9, 0.5),  # over the uplinks of two racks
        ([3], 0.0, 0.5),  # no exchange
    ],
)
def test_the_ring_model_counts_the_slowest_gpu_and_link(gpus: list[int], exchange_s: float, compute_s: float) -> None:
    cluster = grid_cluster(4, 2, speed=np.array([0.5, 1.0, 1.0, 1.0]), nodes_per_rack=3)
    cluster = cluster._replace(uplink_bytes_per_s=np.array([50e9, 5e9]))
    case = hand_case(cluster, [(len(gpus), 100.0, 0.0)], ring=True, reference_gpus=2)
    reference_s = 0.5 + {1: 0.0, 2: 2e9 / 150e9, 4: 3e9 / 12.5e9}[len(gpus)]
    assert slowdown(first_state(*case), 0, gpus) == pytest.approx((compute_s + exchange_s) / reference_s)


def test_a_stopped_job_goes_on_from_its_last_checkpoint_and_pays_the_restart() -> None:
    events, outcome = run(hand_case(grid_cluster(1, 2), [(2, 100.0, 0.0)], {1: [(50.0, 60.0), (83.0, 83.5)]}))
    assert events == [
        Event(0.0, "submit", 0, ()),
        Event(0.0, "start", 0, (0, 1)),
        Event(50.0, "fault", -1, (1,)),
        Event(50.0, "stop", 0, (0, 1)),  # 40 s of 50 are saved
        Event(60.0, "repair", -1, (1,)),
        Event(60.0, "start", 0, (0, 1)),
        Event(83.0, "fault", -1, (1,)),
        Event(83.0, "stop", 0, (0, 1)),  # 18 s of work after 5 s of restart: nothing is saved
        Event(83.5, "repair", -1, (1,)),
        Event(83.5, "start", 0, (0, 1)),
        Event(148.5, "finish", 0, (0, 1)),  # 5 s of restart and the 60 s that were left
    ]
    assert (outcome.stops[0, 0], outcome.lost_s[0, 0], outcome.makespan_s[0]) == (2, 10.0 + 23.0, 148.5)
    assert (outcome.busy_gpu_s[0], outcome.down_gpu_s[0], outcome.overhead_gpu_s[0]) == (276.0, 10.5, 10.0)
    assert (outcome.decisions[0], outcome.job_events[0], outcome.first_start_s[0, 0]) == (3, 7, 0.0)


def test_a_gpu_held_down_by_two_sources_comes_back_with_the_second() -> None:
    outages = {0: [(10.0, 30.0)], 2: [(20.0, 40.0)]}  # GPU 0, and node 0 with GPUs 0 and 1
    events, _ = run(hand_case(grid_cluster(1, 2), [(2, 50.0, 0.0)], outages))
    assert [event for event in events if event.job < 0] == [
        Event(10.0, "fault", -1, (0,)),
        Event(20.0, "fault", -1, (1,)),
        Event(40.0, "repair", -1, (0, 1)),
    ]


def test_a_rack_takes_its_nodes_and_its_jobs_down_and_the_last_one_stopped_is_the_first_to_return() -> None:
    cluster = grid_cluster(3, 1, nodes_per_rack=2)
    events, _ = run(hand_case(cluster, [(1, 50.0, 0.0)] * 4, {3 + 3: [(10.0, 20.0)]}))
    assert events[7:] == [
        Event(10.0, "fault", -1, (0, 1)),
        Event(10.0, "stop", 0, (0,)),
        Event(10.0, "stop", 1, (1,)),
        Event(20.0, "repair", -1, (0, 1)),
        Event(20.0, "start", 1, (0,)),
        Event(20.0, "start", 0, (1,)),
        Event(50.0, "finish", 2, (2,)),
        Event(50.0, "start", 3, (2,)),
        Event(75.0, "finish", 0, (1,)),
        Event(75.0, "finish", 1, (0,)),
        Event(100.0, "finish", 3, (2,)),
    ]


def test_after_a_transient_fault_the_gpus_are_back_at_the_same_moment() -> None:
    case = hand_case(grid_cluster(1, 2), [(2, 1000.0, 0.0)])
    rates = np.array([[0.002, 0.0, 0.0, 0.0]])
    case = case._replace(
        process=case.process._replace(transient_probability=1.0),
        scenarios=case.scenarios._replace(source_rate_per_s=rates),
    )
    events, outcome = run(case)
    first = next(index for index, event in enumerate(events) if event.kind == "fault")
    assert [event.kind for event in events[first : first + 4]] == ["fault", "stop", "repair", "start"]
    assert len({event.time_s for event in events[first : first + 4]}) == 1
    assert outcome.down_gpu_s[0] == 0.0


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


def test_a_job_that_takes_no_more_gpus_than_are_left_over_may_run_beyond_the_shadow_time() -> None:
    jobs: Jobs = [(3, 100.0, 0.0), (4, 50.0, 0.0), (1, 300.0, 0.0), (1, 300.0, 0.0)]
    case = hand_case(grid_cluster(1, 5), jobs, order=ORDERS["easy"])  # one GPU is left over at 100 s
    assert starts(case) == [(0, 0.0), (2, 0.0), (1, 100.0), (3, 150.0)]


def test_a_placement_that_would_delay_the_head_is_refused() -> None:
    cluster = grid_cluster(2, 2, speed=np.array([0.5, 1.0]))
    jobs: Jobs = [(2, 100.0, 0.0), (4, 50.0, 0.0), (2, 90.0, 0.0)]
    case = hand_case(cluster, jobs, order=ORDERS["easy"])

    def slow_last(_state: ReferenceState, job: int) -> list[int]:
        return {0: [2, 3], 1: [0, 1, 2, 3], 2: [0, 1]}[job]

    events, outcome = run(case, slow_last)  # 90 s of work take 180 s on the slow node
    assert [(event.job, event.time_s) for event in events if event.kind == "start"] == [(0, 0), (1, 100), (2, 225)]
    assert outcome.decisions[0] == 4


@pytest.mark.parametrize("order", ["easy", "easy-shortest", "shortest"])
def test_nobody_overtakes_a_job_that_has_waited_too_long(order: str) -> None:
    jobs: Jobs = [(1, 100.0, 0.0), (2, 110.0, 0.0), *((1, 30.0, at) for at in (5.0, 10.0, 20.0, 30.0, 40.0))]
    case = hand_case(grid_cluster(1, 2), jobs, order=ORDERS[order], ageing_s=60.0)
    assert (1, 100.0) in starts(case)
    assert all(at <= 60.0 or at >= 210.0 for job, at in starts(case) if job > 1)


def wait_with_one(state: ReferenceState, job: int) -> list[int] | None:
    """Wait with job 1 until 60 s."""
    return None if job == 1 and state.now_s < 60.0 else first_fit(state, job)


@pytest.mark.parametrize(
    ("order", "expected"),
    [  # job 1 waits for the end of job 0; job 3 ends by then, job 2 would take its GPUs
        ("fifo", [(0, 0), (1, 60), (2, 80), (3, 80)]),
        ("easy", [(0, 0), (3, 0), (1, 60), (2, 80)]),
    ],
)
def test_what_may_pass_a_job_that_waits_ends_before_the_next_expected_end(
    order: str, expected: list[tuple[int, float]]
) -> None:
    jobs: Jobs = [(1, 60.0, 0.0), (3, 20.0, 0.0), (2, 70.0, 0.0), (2, 60.0, 0.0)]
    case = hand_case(grid_cluster(1, 4), jobs, order=ORDERS[order], waiting=True)
    assert starts(case, wait_with_one) == expected


def test_a_policy_that_waits_while_nothing_runs_is_told_so() -> None:
    with pytest.raises(ValueError, match="waits with job 0 at"):
        run(hand_case(grid_cluster(1, 1), [(1, 1.0, 0.0)], waiting=True), lambda _state, _job: None)


def test_an_estimate_that_is_outlived_doubles_until_the_expected_end_lies_ahead() -> None:
    jobs: Jobs = [(1, 100.0, 0.0), (2, 50.0, 0.0), (1, 30.0, 35.0), (1, 60.0, 40.0)]
    case = hand_case(grid_cluster(1, 2), jobs, estimate_s=[10.0, 50.0, 30.0, 60.0], order=ORDERS["easy"])
    # At 35 s job 0 is expected to end at 40 s: job 2 would delay job 1. At 40 s it is expected to end at 80 s.
    assert starts(case) == [(0, 0.0), (2, 40.0), (1, 100.0), (3, 150.0)]


def test_a_job_that_can_never_start_is_reported() -> None:
    with pytest.raises(RuntimeError, match="wait for ever"):
        run(hand_case(grid_cluster(1, 1), [(1, 1.0, 0.0)], {0: [(0.0, math.inf)]}))


@settings(max_examples=examples(150))
@given(cases(ranked=True), POLICY_OF)
def test_every_schedule_passes_the_checker(case: Case, choose: Choose) -> None:
    check_schedule(event_records(run(case, choose)[0]), job_records(case), cluster_record(case))


@settings(max_examples=examples(50))
@given(cases(ranked=True), POLICY_OF, POLICY_OF)
def test_every_policy_meets_the_same_faults(case: Case, one: Choose, other: Choose) -> None:
    (events, outcome), (others, other_outcome) = run(case, one), run(case, other)
    end_s = min(outcome.makespan_s[0], other_outcome.makespan_s[0])
    assert [event for event in events if event.job < 0 and event.time_s < end_s] == [
        event for event in others if event.job < 0 and event.time_s < end_s
    ]


@settings(max_examples=examples(50))
@given(cases(ranked=True), POLICY_OF)
def test_on_equal_gpus_the_time_that_is_neither_lost_nor_overhead_is_the_work(case: Case, choose: Choose) -> None:
    scenarios = case.scenarios._replace(speed=np.ones_like(case.scenarios.speed))
    case = case._replace(scenarios=scenarios, rules=case.rules._replace(ring=False, node_penalty=0.0))
    _, outcome = run(case, choose)
    gpus, cluster_gpus = scenarios.gpus[case.row], case.cluster.gpu_node.size
    submit_s, work_s = scenarios.submit_s[[case.row]], scenarios.work_s[[case.row]]
    row = metrics(outcome, scenarios.jobs[[case.row]], gpus[None], submit_s, cluster_gpus, work_s)
    work = float((gpus * work_s[0]).sum())
    assert row.useful_utilisation[0] * row.makespan_s[0] * cluster_gpus == pytest.approx(work)
    assert outcome.busy_gpu_s[0] + outcome.down_gpu_s[0] <= row.makespan_s[0] * cluster_gpus * (1 + 1e-9)


@settings(max_examples=examples(50))
@given(cases() | cases(ranked=True))
def test_first_come_first_served_starts_jobs_in_order_of_submission(case: Case) -> None:
    case = case._replace(rules=case.rules._replace(order=ORDERS["fifo"], turns=False))
    first_start_s = run(case)[1].first_start_s[0, : case.scenarios.jobs[case.row]]
    assert (np.diff(first_start_s) >= 0).all()
