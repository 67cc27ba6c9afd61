"""The index of a long queue against walks along it, written from docs/simulator.md."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import EVERY_JOB, ORDERS
from longshore.cluster.placing import least_slowdown, undo_picks
from longshore.cluster.queue.expected import estimated_work_s, expected_run_s, revise_end_s, sort_expected_ends
from longshore.cluster.queue.index import (
    first_job_to_pass,
    index_if_long,
    longest_waiting_job,
    next_indexed_ageing_s,
    shortest_job,
    shortest_of_line,
)
from longshore.cluster.queue.order import choose_due_job, list_other_jobs, may_turn_to_other, may_wait, next_ageing_s
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import MAX_OTHERS, Simulation
from tests.compiled_runs import compiled, run_heuristic
from tests.deep_cases import deep_case
from tests.plain_turns import LEADING, PASSING, in_turns, queue_of
from tests.support.budgets import examples

ORDERS_WITH_INDEX = ("easy", "easy-shortest", "shortest")


def work_s(sim: Simulation, job: int) -> float:
    return float(estimated_work_s(sim, 0, job))


def may_pass(sim: Simulation, job: int) -> bool:
    """Return whether a waiting job fits, was not passed over, and at its fastest keeps the reservation in the state."""
    state, gpus = sim.state, int(sim.scenarios.gpus[0, job])
    run_s = expected_run_s(sim, 0, job, least_slowdown(sim, 0, job))
    keeps = gpus <= state.extra[0] or state.now_s[0] + run_s <= state.shadow_s[0]
    return bool(gpus <= state.usable[0] and state.passed[0, job] != state.moment[0] and keeps)


def offered_first(sim: Simulation, jobs: list[int]) -> int:
    if sim.rules.turns:
        jobs = next((its for line in in_turns(sim, 0, PASSING) if (its := [job for job in line if job in jobs])), [])
    if sim.rules.order != ORDERS["easy"]:
        jobs = sorted(jobs, key=lambda job: work_s(sim, job))
    return jobs[0] if jobs else -1


def check_index(sim: Simulation) -> None:
    """Compare all that the index returns at a decision, with nothing picked, with the queue."""
    state, jobs = sim.state, queue_of(sim)
    if sim.rules.turns:
        for line in in_turns(sim, 0, LEADING):
            smallest = shortest_of_line(sim, 0, int(sim.scenarios.line[0, line[0]]))
            assert smallest == offered_first(sim, line)
    else:
        assert shortest_job(sim, 0) == offered_first(sim, jobs)
    kept = state.shadow_s[0], state.extra[0]
    for shadow_s, extra in (kept, (math.inf, 0), (state.now_s[0] + 100.0, 1), (state.now_s[0] + 300.0, 0)):
        state.shadow_s[0], state.extra[0] = shadow_s, extra
        assert first_job_to_pass(sim, 0) == offered_first(sim, [job for job in jobs if may_pass(sim, job)])
    state.shadow_s[0], state.extra[0] = kept
    if sim.rules.ageing_s < math.inf:
        for gpus in (0, 1, sim.cluster.gpu_node.size // 2, sim.cluster.gpu_node.size):
            that_fit = [job for job in jobs if sim.scenarios.gpus[0, job] <= gpus]
            oldest = min(that_fit, key=lambda job: float(state.queued_s[0, job]), default=-1)
            assert longest_waiting_job(sim, 0, gpus) == oldest
        ageing = [float(state.queued_s[0, job] + sim.rules.ageing_s) for job in jobs]
        assert next_indexed_ageing_s(sim, 0) == min(
            (aged_s for aged_s in ageing if aged_s > state.now_s[0]), default=math.inf
        )


def check_ends(sim: Simulation) -> None:
    running = np.flatnonzero(sim.state.run_place[0] >= 0).tolist()
    count = sort_expected_ends(sim, 0)
    got = list(zip(sim.state.ends_s[0, :count].tolist(), sim.state.ends_job[0, :count].tolist(), strict=True))
    assert got == sorted((float(revise_end_s(sim, 0, job)), job) for job in running)


def decide_somehow(sim: Simulation, rng: np.random.Generator) -> None:
    if may_wait(sim, 0) and rng.random() < 0.3:
        wait(sim, 0)
    elif HEURISTICS["random"].place(sim, 0):
        start(sim, 0)
    else:
        undo_picks(sim, 0)
        wait(sim, 0)


@pytest.mark.few(2)
@pytest.mark.parametrize("order", ORDERS_WITH_INDEX)
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32 - 1), index_from=st.sampled_from((1, 20)))
def test_the_index_tells_what_a_walk_along_the_queue_tells(order: str, seed: int, index_from: int) -> None:
    sim, rng = compiled(deep_case(seed, order), index_from=index_from), np.random.default_rng(seed)
    reset(sim, 0, 0)
    while advance(sim, 0):
        if index_if_long(sim, 0) and rng.random() < 0.5:
            check_index(sim)
        decide_somehow(sim, rng)


@pytest.mark.parametrize("order", list(ORDERS))
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32 - 1))
def test_expected_ends_that_are_kept_in_order_are_those_that_all_jobs_have(order: str, seed: int) -> None:
    sim, rng = compiled(deep_case(seed, order)), np.random.default_rng(seed)
    reset(sim, 0, 0)
    while advance(sim, 0):
        if rng.random() < 0.5:
            check_ends(sim)
        decide_somehow(sim, rng)


@pytest.mark.parametrize("name", ["pack", "patient", "random"])
@pytest.mark.parametrize("order", ORDERS_WITH_INDEX)
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32 - 1), index_from=st.sampled_from((1, 20, 64)))
def test_a_schedule_is_the_same_to_the_digit_with_and_without_an_index(
    order: str, name: str, seed: int, index_from: int
) -> None:
    case = deep_case(seed, order)
    events, outcome = run_heuristic(case, name, index_from)
    plain_events, plain_outcome = run_heuristic(case, name, EVERY_JOB)
    assert events == plain_events
    for name_of, got in outcome._asdict().items():
        assert np.array_equal(got, getattr(plain_outcome, name_of)), name_of


def decision_is_due(sims: list[Simulation]) -> bool:
    due = {bool(advance(sim, 0)) for sim in sims}
    assert len(due) == 1
    return due.pop()


@pytest.mark.parametrize("order", ORDERS_WITH_INDEX)
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32 - 1))
def test_the_jobs_to_turn_to_are_the_same_with_and_without_an_index(order: str, seed: int) -> None:
    case = deep_case(seed, order)
    sims = [compiled(case, index_from=index_from) for index_from in (1, EVERY_JOB)]
    rngs = [np.random.default_rng(seed) for _ in sims]
    for sim in sims:
        reset(sim, 0, 0)
    while decision_is_due(sims):
        if may_turn_to_other(sims[0], 0):
            others = [sim.scratch.other_job[0, : list_other_jobs(sim, 0)].tolist() for sim in sims]
            assert others[0] == others[1]
            assert len(others[0]) <= MAX_OTHERS
            assert len({choose_due_job(sim, 0) for sim in sims}) == 1
        assert next_ageing_s(sims[0], 0) == next_ageing_s(sims[1], 0)
        for sim, rng in zip(sims, rngs, strict=True):
            decide_somehow(sim, rng)
    assert sims[0].state.finished[0] == sims[1].state.finished[0]


def test_a_short_queue_has_no_index_and_a_long_one_has_it_until_it_is_half_as_long() -> None:
    case = deep_case(1, "easy")
    sim = compiled(case._replace(rules=case.rules._replace(ageing_s=math.inf)), index_from=20)
    reset(sim, 0, 0)
    seen = set()
    while advance(sim, 0):
        if sim.state.queued[0] >= 20:
            assert index_if_long(sim, 0)
        if 2 * sim.state.queued[0] < 20:
            assert not index_if_long(sim, 0)
        seen.add((int(sim.state.queued[0]) >= 20, bool(index_if_long(sim, 0))))
        decide_somehow(sim, np.random.default_rng(0))
    assert {(True, True), (False, True), (False, False)} <= seen
