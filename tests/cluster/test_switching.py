"""The compiled engine where jobs outlive faults: against the plain reference, and what holds for every run."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import Event
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.holding import mark_spares
from tests.cluster.agreement import check_every_state
from tests.compiled_runs import compiled, run_heuristic
from tests.reference import first_state
from tests.reference_state import slowdown
from tests.strategies import Case, switching_cases
from tests.support.budgets import examples

SEEDS = st.integers(0, 2**32 - 1)
NAMES = st.sampled_from(sorted(HEURISTICS))


@settings(max_examples=examples(100))
@given(switching_cases(), NAMES)
def test_no_gpu_serves_two_jobs_and_every_job_holds_what_it_asks_for_or_less_after_faults(
    case: Case, name: str
) -> None:
    holder: dict[int, int] = {}
    down: set[int] = set()
    asked = case.scenarios.gpus[case.row]
    for event in run_heuristic(case, name)[0]:
        before = {gpu for gpu, job in holder.items() if job == event.job}
        if event.kind == "start":
            assert len(event.gpus) == asked[event.job]
            assert not down & set(event.gpus)
        elif event.kind == "switch":
            assert 1 <= len(event.gpus) <= asked[event.job]
            assert not down & set(event.gpus)
        elif event.kind in ("stop", "finish"):
            assert set(event.gpus) == before
        elif event.kind in ("fault", "repair"):
            down = down | set(event.gpus) if event.kind == "fault" else down - set(event.gpus)
        if event.kind in ("start", "switch", "stop", "finish"):
            for gpu in before:
                del holder[gpu]
        if event.kind in ("start", "switch"):
            assert not holder.keys() & set(event.gpus)
            holder |= dict.fromkeys(event.gpus, event.job)
    assert not holder


@settings(max_examples=examples(100))
@given(switching_cases(), NAMES)
def test_a_switch_loses_no_work(case: Case, name: str) -> None:
    """All progress up to a switch counts: the work of a run that no fault stops is that of all its pieces."""
    events, outcome = run_heuristic(case, name)
    fresh = first_state(*case)
    for job in range(int(case.scenarios.jobs[case.row])):
        done_s, started = 0.0, 0
        ours = [event for event in events if event.job == job and event.kind != "submit"]
        for before, after in pairwise(ours):
            if before.kind == "start":
                done_s, started = 0.0 if case.rules.checkpoint_s == math.inf else done_s, started + 1
                overhead_s = case.rules.preflight_s + (case.rules.restart_s if started > 1 else 0.0)
            elif before.kind == "switch":
                overhead_s = case.rules.switch_s
            else:
                continue
            until_s = after.time_s if after.kind == "finish" else still_from(before, after, events)
            done_s += max(0.0, until_s - before.time_s - overhead_s) / slowdown(fresh, job, list(before.gpus))
        if case.rules.checkpoint_s == math.inf or outcome.stops[0, job] == 0:
            assert done_s == pytest.approx(case.scenarios.work_s[case.row, job])


def still_from(before: Event, after: Event, events: list[Event]) -> float:
    """Return since when a job stood still before a switch: since the first fault of its GPUs, or not at all.

    A fault of the moment of the event before, but earlier than it, is what that event was about.
    """
    between = events[events.index(before) : events.index(after)]
    hits = [it.time_s for it in between if it.kind == "fault" and set(it.gpus) & set(before.gpus)]
    return min([*hits, after.time_s])


@settings(max_examples=examples(100))
@given(switching_cases(), NAMES)
def test_gpu_time_is_work_that_was_kept_or_lost(case: Case, name: str) -> None:
    """On GPUs that are alike, without links, a second of work takes a second of each GPU that a job asks for."""
    scenarios = case.scenarios._replace(speed=np.ones_like(case.scenarios.speed))
    case = case._replace(scenarios=scenarios, rules=case.rules._replace(ring=False, node_penalty=0.0))
    outcome = run_heuristic(case, name)[1]
    gpus = scenarios.gpus[case.row]
    lost_gpu_s = float((outcome.lost_s[0] * gpus).sum() + outcome.overhead_gpu_s[0])
    work_gpu_s = float((gpus * scenarios.work_s[case.row]).sum())
    assert outcome.busy_gpu_s[0] == pytest.approx(work_gpu_s + lost_gpu_s, abs=1e-6)


@settings(max_examples=examples(100))
@given(switching_cases(), NAMES)
def test_no_start_takes_a_spare_and_the_pool_keeps_its_size(case: Case, name: str) -> None:
    sim = compiled(case)
    reset(sim, 0, case.row)
    pool = sim.state.spare[0].sum() if sim.state.spare.size else 0
    while advance(sim, 0):
        spare = sim.state.spare[0].copy()
        if HEURISTICS[name].place(sim, 0):
            if spare.size:
                assert not spare[sim.state.gpu_job[0] == sim.state.current[0]].any()
            start(sim, 0)
        else:
            wait(sim, 0)
        assert spare.sum() == pool


@settings(max_examples=examples(80))
@given(switching_cases(), st.sampled_from(("pack", "patient", "random")), st.integers(0, 30))
def test_every_state_at_a_decision_passes_and_is_run_on_the_same(case: Case, policy: str, stop_at: int) -> None:
    check_every_state(case, policy, stop_at)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), min_size=1, max_size=12), st.floats(0.0, 1.0))
def test_the_spares_are_the_last_gpus_of_each_type(nodes: list[tuple[int, int]], share: float) -> None:
    types = np.array([kind for kind, _ in nodes], dtype=np.int32)
    first = np.cumsum([0, *(gpus for _, gpus in nodes)]).astype(np.int32)
    spare = np.zeros((1, first[-1]), dtype=np.int32)
    mark_spares(types, first, share, spare, 0)
    of_type = np.repeat(types, np.diff(first))
    for kind, gpus in Counter(of_type.tolist()).items():
        wanted = math.ceil(share * gpus - 1e-9)
        assert spare[0][of_type == kind].tolist() == [0] * (gpus - wanted) + [1] * wanted
