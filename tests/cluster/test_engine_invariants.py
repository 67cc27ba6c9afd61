"""What holds for every run of the compiled engine, whatever the policy."""

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from tests.compiled_runs import run_heuristic
from tests.reference import first_state
from tests.reference_state import slowdown
from tests.schedule_checker import check_schedule
from tests.schedule_records import cluster_record, event_records, job_records
from tests.strategies import Case, cases
from tests.support.budgets import examples

NAMES = st.sampled_from(sorted(HEURISTICS))
AT_ONCE = sorted(name for name, policy in HEURISTICS.items() if not policy.waits)


def fault_free(case: Case) -> Case:
    none = np.zeros_like(case.process.outage_first)
    rates = np.zeros_like(case.scenarios.source_rate_per_s)
    return case._replace(
        process=case.process._replace(outage_first=none),
        scenarios=case.scenarios._replace(source_rate_per_s=rates),
    )


@settings(max_examples=examples(60))
@given(cases(), NAMES)
def test_every_schedule_passes_the_checker(case: Case, name: str) -> None:
    check_schedule(event_records(run_heuristic(case, name)[0]), job_records(case), cluster_record(case))


@settings(max_examples=examples(60))
@given(cases(), NAMES)
def test_each_gpu_is_busy_down_or_idle_at_any_time(case: Case, name: str) -> None:
    events, outcome = run_heuristic(case, name)
    gpus = case.cluster.gpu_node.size
    holder, down = np.full(gpus, -1), np.zeros(gpus, dtype=bool)
    sums, now_s = np.zeros(3), 0.0
    for event in events:
        if event.time_s > now_s:
            assert not ((holder >= 0) & down).any()
            idle = (holder < 0) & ~down
            sums += (event.time_s - now_s) * np.array([(holder >= 0).sum(), down.sum(), idle.sum()])
            now_s = event.time_s
        take_part(event, holder, down, case)
    assert (holder < 0).all()
    assert sums[:2] == pytest.approx([outcome.busy_gpu_s[0], outcome.down_gpu_s[0]], rel=1e-9, abs=1e-9)
    assert sums.sum() == pytest.approx(gpus * outcome.makespan_s[0])


def take_part(event: Event, holder: np.ndarray, down: np.ndarray, case: Case) -> None:
    """Change who holds which GPU, and check that only that holder leaves it and that a job holds all it needs."""
    named = np.array(event.gpus, dtype=int)
    if event.kind == "start":
        assert (holder[named] < 0).all()
        assert not down[named].any()
        assert named.size == case.scenarios.gpus[case.row, event.job]
        holder[named] = event.job
    elif event.kind in ("stop", "finish"):
        assert np.array_equal(np.flatnonzero(holder == event.job), named)
        holder[named] = -1
    elif event.kind in ("fault", "repair"):
        assert (down[named] == (event.kind == "repair")).all()
        down[named] = event.kind == "fault"


def runs(events: list[Event], job: int) -> Iterator[tuple[Event, Event]]:
    """Yield start and end of each run of a job."""
    ours = [event for event in events if event.job == job and event.kind != "submit"]
    yield from zip(ours[::2], ours[1::2], strict=True)


@settings(max_examples=examples(60))
@given(cases(), NAMES)
def test_useful_gpu_time_is_the_work_that_was_done(case: Case, name: str) -> None:
    events, outcome = run_heuristic(case, name)
    fresh, useful_gpu_s = first_state(*case), 0.0
    for job in range(int(case.scenarios.jobs[case.row])):
        done_s = 0.0
        for number, (start, end) in enumerate(runs(events, job)):
            kept_s = max(0.0, end.time_s - start.time_s - (case.rules.restart_s if number else 0.0))
            if end.kind == "stop":
                kept_s = checkpointed_s(kept_s, case.rules.checkpoint_s)
            done_s += kept_s / slowdown(fresh, job, list(start.gpus))
            useful_gpu_s += kept_s * len(start.gpus)
        assert done_s == pytest.approx(case.scenarios.work_s[case.row, job])
    lost_gpu_s = float((outcome.lost_s[0] * case.scenarios.gpus[case.row]).sum())
    assert outcome.busy_gpu_s[0] - outcome.overhead_gpu_s[0] - lost_gpu_s == pytest.approx(useful_gpu_s, abs=1e-6)


def checkpointed_s(run_s: float, checkpoint_s: float) -> float:
    return 0.0 if checkpoint_s == math.inf else math.floor(run_s / checkpoint_s + 1e-9) * checkpoint_s


@settings(max_examples=examples(60))
@given(cases(), NAMES, st.sampled_from((0.0, 30.0, 100.0)))
def test_nobody_overtakes_a_job_that_has_aged(case: Case, name: str, ageing_s: float) -> None:
    events, outcome = run_heuristic(case._replace(rules=case.rules._replace(ageing_s=ageing_s)), name)
    wait_s, entered_s = defaultdict[int, float](float), dict[int, float]()
    queue: list[int] = []
    in_service = set(range(case.cluster.gpu_node.size))
    gpus = case.scenarios.gpus[case.row]
    for event in events:
        if event.kind == "fault":
            in_service -= set(event.gpus)
        elif event.kind == "repair":
            in_service |= set(event.gpus)
        elif event.kind in ("submit", "stop"):
            queue.insert(0 if event.kind == "stop" else len(queue), event.job)
            entered_s[event.job] = event.time_s
        elif event.kind == "start":
            since_s = {job: entered_s[job] - wait_s[job] for job in queue}
            aged = [job for job in queue if event.time_s >= since_s[job] + ageing_s and gpus[job] <= len(in_service)]
            if aged and case.rules.order != ORDERS["fifo"]:
                assert event.job == min(aged, key=since_s.__getitem__)
            queue.remove(event.job)
            wait_s[event.job] += event.time_s - entered_s[event.job]
    assert outcome.wait_s[0] == pytest.approx([wait_s[job] for job in range(outcome.wait_s.shape[1])])


@settings(max_examples=examples(60))
@given(cases(), NAMES, st.sampled_from((0.0, 30.0, 100.0)))
def test_under_fifo_a_stopped_job_starts_before_all_that_were_behind_it(case: Case, name: str, ageing_s: float) -> None:
    rules = case.rules._replace(order=ORDERS["fifo"], ageing_s=ageing_s, turns=False)
    queue: list[int] = []
    for event in run_heuristic(case._replace(rules=rules), name)[0]:
        if event.kind == "stop":
            queue.insert(0, event.job)
        elif event.kind == "submit":
            queue.append(event.job)
        elif event.kind == "start":
            assert event.job == queue.pop(0)


@settings(max_examples=examples(60))
@given(cases(), NAMES, st.sampled_from((0.0, 30.0, 100.0)))
def test_under_fifo_and_without_waiting_the_ageing_bound_changes_nothing(
    case: Case, name: str, ageing_s: float
) -> None:
    rules = case.rules._replace(order=ORDERS["fifo"], waiting=False, ageing_s=math.inf)
    bounded = rules._replace(ageing_s=ageing_s)
    (events, outcome), (others, other) = (run_heuristic(case._replace(rules=each), name) for each in (rules, bounded))
    assert events == others
    assert outcome.decisions == other.decisions


@settings(max_examples=examples(60))
@given(cases(), NAMES, st.sampled_from(("easy", "easy-shortest")))
def test_with_exact_estimates_backfill_never_delays_the_head(case: Case, name: str, order: str) -> None:
    rules = case.rules._replace(ring=False, waiting=False, ageing_s=math.inf, order=ORDERS[order], turns=False)
    exact = case.scenarios._replace(estimate_s=case.scenarios.work_s)
    case = fault_free(case._replace(rules=rules, scenarios=exact))
    events, outcome = run_heuristic(case, name)
    needs, free = case.scenarios.gpus[case.row], case.cluster.gpu_node.size
    queue: list[int] = []
    running: list[tuple[float, int]] = []  # end, GPUs
    shadow_s: dict[int, float] = {}  # of each job that was the blocked head, when it first was
    for event in events:
        end_s, need = outcome.finish_s[0, event.job], int(needs[event.job])
        if event.kind == "submit":
            queue.append(event.job)
        elif event.kind == "start":
            assert event.time_s <= shadow_s.get(event.job, math.inf) * (1 + 1e-9)
            queue.remove(event.job)
            running.append((end_s, need))
            free -= need
        else:
            running.remove((end_s, need))
            free += need
        if queue and queue[0] not in shadow_s and needs[queue[0]] > free:
            shadow_s[queue[0]] = first_end_s(running, int(needs[queue[0]]) - free)


def first_end_s(running: list[tuple[float, int]], missing: int) -> float:
    """Return when running jobs have given back as many GPUs as are missing."""
    return next(end_s for end_s, _ in sorted(running) if sum(g for at, g in running if at <= end_s) >= missing)


@settings(max_examples=examples(30))
@given(cases(), NAMES)
def test_a_run_repeats_exactly(case: Case, name: str) -> None:
    assert run_heuristic(case, name)[0] == run_heuristic(case, name)[0]


@settings(max_examples=examples(40))
@given(cases(), NAMES)
def test_rows_that_are_run_together_end_as_rows_run_alone(case: Case, name: str) -> None:
    count = case.scenarios.jobs.size
    order = np.append(np.arange(count), np.arange(count)[::-1])
    sim = simulation_of(Problem(case.cluster, case.scenarios, case.process, case.rules), rows=order.size)
    HEURISTICS[name].run(sim, order[::-1].copy())  # rows must forget what they run before
    HEURISTICS[name].run(sim, order)
    together = outcome_of(sim)
    for row, scenario in enumerate(order):
        alone = run_heuristic(case._replace(row=int(scenario)), name)[1]
        for field, values in together._asdict().items():
            assert np.array_equal(values[row], getattr(alone, field)[0]), field


@settings(max_examples=examples(40))
@given(cases(), NAMES, NAMES)
def test_every_policy_meets_the_same_faults(case: Case, one: str, other: str) -> None:
    (events, outcome), (others, other_outcome) = run_heuristic(case, one), run_heuristic(case, other)
    end_s = min(outcome.makespan_s[0], other_outcome.makespan_s[0])
    assert [event for event in events if event.job < 0 and event.time_s < end_s] == [
        event for event in others if event.job < 0 and event.time_s < end_s
    ]


@settings(max_examples=examples(30))
@given(cases())
def test_on_equal_gpus_no_placement_is_better_than_another(case: Case) -> None:
    rules = case.rules._replace(ring=False, node_penalty=0.0)
    alike = case.scenarios._replace(speed=np.ones_like(case.scenarios.speed))
    case = fault_free(case._replace(rules=rules, scenarios=alike))
    finish_s = [run_heuristic(case, name)[1].finish_s[0].tolist() for name in AT_ONCE]
    assert all(times == finish_s[0] for times in finish_s)
