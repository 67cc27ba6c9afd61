"""Nodes that are slow for a while: against the plain reference, and what holds for every run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import Event
from tests.cluster.agreement import check_every_state
from tests.compiled_runs import run_heuristic
from tests.reference import first_state
from tests.reference_state import slowdown
from tests.strategies import Case, slow_cases
from tests.support.budgets import examples

SEEDS = st.integers(0, 2**32 - 1)
NAMES = st.sampled_from(sorted(HEURISTICS))


@settings(max_examples=examples(100))
@given(slow_cases(), NAMES)
def test_a_job_that_is_never_stopped_does_its_work_and_no_more(case: Case, name: str) -> None:
    """By the events alone: from each to the next a job works at the speed of its slowest GPU."""
    events, outcome = run_heuristic(case, name)
    speed = first_state(*case).speed
    for job in np.flatnonzero(outcome.stops[0, : case.scenarios.jobs[case.row]] == 0):
        done_s = work_by_events(case, int(job), events, speed)
        assert done_s == pytest.approx(case.scenarios.work_s[case.row, job], rel=1e-6, abs=1e-6)


def work_by_events(case: Case, job: int, events: list[Event], speed: list[float]) -> float:
    """Return the work of a job that is never stopped, second by second of its run."""
    fresh, gpu_node, slow = first_state(*case), case.cluster.gpu_node, set[int]()
    done_s, since_s, held, paused_s, still = 0.0, 0.0, tuple[int, ...](), 0.0, False
    for event in events:
        if held and not still:
            paces = [it / case.rules.slow_factor if node in slow else it for node, it in enumerate(speed)]
            useful_s = max(0.0, event.time_s - max(since_s, paused_s))
            done_s += useful_s / slowdown(replace(fresh, speed=paces), job, list(held))
        since_s = event.time_s
        if event.kind in ("slow", "well"):
            slow ^= {int(gpu_node[event.gpus[0]])}
        elif event.kind == "fault":
            still = still or bool(set(held) & set(event.gpus))
        elif event.job == job and event.kind != "submit":
            held = event.gpus if event.kind != "finish" else ()
            paused_s = since_s + (case.rules.preflight_s if event.kind == "start" else case.rules.switch_s)
            still = False
    return done_s


@settings(max_examples=examples(60))
@given(slow_cases(), NAMES, NAMES)
def test_nodes_turn_slow_at_the_same_times_whoever_decides(case: Case, name: str, other: str) -> None:
    turns = [
        [event for event in run_heuristic(case, each)[0] if event.kind in ("slow", "well")] for each in (name, other)
    ]
    both = min(map(len, turns))
    assert turns[0][:both] == turns[1][:both]


@settings(max_examples=examples(80))
@given(slow_cases(), st.sampled_from(("pack", "patient", "random")), st.integers(0, 30))
def test_every_state_at_a_decision_passes_and_is_run_on_the_same(case: Case, policy: str, stop_at: int) -> None:
    check_every_state(case, policy, stop_at)
