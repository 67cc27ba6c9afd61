"""Candidates of other jobs than the one that is due: which there are, what they must keep, what a wait means."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.candidates.candidates import is_wait, lets_all_jobs_wait, list_candidates, pick_candidate
from longshore.cluster.model.problem import EVERY_JOB, ORDERS, orders_by_work
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.placing import take_node
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.queue.expected import estimated_work_s
from longshore.cluster.queue.order import list_other_jobs, may_wait, turn_to
from longshore.cluster.simulator.engine import advance, start, wait
from longshore.cluster.state.state import MAX_OTHERS, MAX_SCANNED, Simulation
from longshore.envs.batch import AgentView, Batch
from tests.cases_by_hand import hand_case
from tests.compiled_runs import at_first_decision
from tests.envs.plain_features import Decision
from tests.envs.random_run import problem_of, small_problem
from tests.plain_candidates import decisions, for_job, given_by, listed, usable_after
from tests.strategies import Case, cases
from tests.support.budgets import examples

SEEDS = st.integers(0, 2**32 - 1)
NAMES = [name for name in ORDERS if name != "fifo"]
BACKFILLING = st.sampled_from(NAMES)


@st.composite
def turning_cases(draw: st.DrawFn) -> Case:
    """Cases in which a policy may turn to other jobs."""
    case = draw(cases() | cases(nodes=(9, 12)))
    return case._replace(rules=case.rules._replace(waiting=True, order=ORDERS[draw(BACKFILLING)]))


@contextmanager
def on_trial(sim: Simulation) -> Iterator[None]:
    """Undo all that is done to a simulation that keeps no events."""
    arrays = sim.state._asdict().values()
    kept = [array.copy() for array in arrays]
    yield
    for array, was in zip(arrays, kept, strict=True):
        array[:] = was


def offered_one_after_another(sim: Simulation) -> list[int]:
    """Return the first jobs that are offered at this moment if each is passed over, the one that is due among them."""
    with on_trial(sim):
        moment, jobs = sim.state.moment[0], list[int]()
        while len(jobs) <= MAX_SCANNED and sim.state.moment[0] == moment:
            jobs.append(int(sim.state.current[0]))
            wait(sim, 0)
            if not advance(sim, 0):
                break
    return jobs


def expected_others(sim: Simulation) -> list[int]:
    """Return the other jobs by the definition in docs/policies.md."""
    offered = offered_one_after_another(sim)[1:]
    if not orders_by_work(sim.rules.order):  # by rank, and the shortest first; `sorted` leaves equal ones as they are
        rank = sim.scenarios.rank[sim.state.scenario[0]]
        offered = sorted(offered, key=lambda job: (rank[job], estimated_work_s(sim, 0, job)))
    return offered[:MAX_OTHERS]


def others_of(sim: Simulation) -> list[int]:
    with on_trial(sim):
        count = list_other_jobs(sim, 0)
        return list(map(int, sim.scratch.other_job[0, :count]))


def lists_of_others(case: Case, seed: int) -> list[int]:
    """Check which jobs are listed beside the one that is due; return how many may be at each decision, 33 at most."""
    many = []
    for batch in decisions(problem_of(case), case.row, seed):
        sim, candidates = batch.sim, listed(batch.sim, 0)
        others = [job for job, _ in groupby(candidate.job for candidate in candidates) if job != sim.state.current[0]]
        if not may_wait(sim, 0):
            assert others == []
            continue
        assert others_of(sim) == expected_others(sim)
        assert set(others) <= set(others_of(sim))
        many.append(len(offered_one_after_another(sim)))
    return many


@settings(max_examples=examples(40))
@given(turning_cases(), SEEDS)
def test_other_jobs_are_the_shortest_of_those_that_would_be_offered_if_the_ones_before_were_passed_over(
    case: Case, seed: int
) -> None:
    lists_of_others(case, seed)


@pytest.mark.parametrize("order", NAMES)
def test_in_a_long_queue_other_jobs_are_chosen_from_so_many_by_rank_and_then_by_length(order: str) -> None:
    many = list[int]()
    for seed in range(3):
        cluster, scenarios, process, rules = hetero64(1, seed, nodes=8, jobs=160)
        scenarios.rank[...] = np.random.default_rng(seed).integers(0, 3, scenarios.rank.shape)
        estimate_s = scenarios.estimate_s * np.random.default_rng(seed).choice([0.25, 1.0, 4.0], scenarios.rank.shape)
        rules = rules._replace(waiting=True, order=ORDERS[order], backfill_depth=(EVERY_JOB, 60)[seed % 2])
        many += lists_of_others(Case(cluster, scenarios._replace(estimate_s=estimate_s), 0, process, rules), seed)
    assert max(many) > MAX_SCANNED


@settings(max_examples=examples(40))
@given(turning_cases(), SEEDS)
def test_every_candidate_keeps_the_reservation_but_a_base_set_that_says_so_and_nobody_else_is_passed_over(
    case: Case, seed: int
) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        sim, due = batch.sim, int(batch.sim.state.current[0])
        refused = [int(sim.state.base_waits[0])] if sim.state.base_refused[0] else []
        broken = []
        for number, candidate in enumerate(listed(sim, 0)):
            if candidate.delay_s:
                continue
            with on_trial(sim):
                passed = sim.state.passed[0].copy()
                assert pick_candidate(sim, 0, number)
                if start(sim, 0):
                    assert sim.state.run_place[0, candidate.job] >= 0
                    assert (sim.state.passed[0] == passed).all()
                else:
                    assert candidate.job == due
                    broken.append(number)
        assert broken == refused


@settings(max_examples=examples(30))
@given(turning_cases(), SEEDS)
def test_the_first_set_of_another_job_is_the_base_heuristics_unless_it_breaks_the_reservation(
    case: Case, seed: int
) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        sim, candidates = batch.sim, listed(batch.sim, 0)
        for job in {candidate.job for candidate in candidates} - {int(sim.state.current[0])}:
            with on_trial(sim):
                assert turn_to(sim, 0, job)
                list_candidates(sim, 0)
                base = listed(sim, 0)[int(sim.state.base_waits[0])]
                if not sim.state.base_refused[0]:
                    assert next(candidate for candidate in candidates if candidate.job == job) == base


def plain_reservation(seen: Decision, holder: int) -> tuple[float, int]:
    """Return the first expected end from which on the holder fits, and how many GPUs are left over then."""
    spare = sum(seen.free(node) for node in seen.nodes) - seen.gpus[holder]
    ends = [(seen.now_s + seen.time_left_s(job), seen.gpus[job]) for job in seen.started]
    for shadow_s in sorted({end_s for end_s, _ in ends}):
        extra = spare + sum(gpus for end_s, gpus in ends if end_s <= shadow_s * (1 + 1e-12))
        if extra >= 0:
            return shadow_s, extra
    return math.inf, 0


def holder_of(seen: Decision) -> int:
    """Return the job that holds the reservation where none has aged."""
    if seen.rules.order == ORDERS["shortest"]:
        return int(min(seen.leading, key=seen.work_left_s))
    return int(seen.queue[0])


def check_start(seen: Decision, job: int, given: dict[int, int], *, refused: bool) -> None:
    """Check that a job may start: no job overtakes an aged one, and the holder of the reservation is not delayed."""
    aged = [other for other in seen.standing if seen.binds(other)]
    if aged:
        assert job == min(aged, key=lambda other: seen.queued_s[other])
        return
    holder = holder_of(seen)
    if job != holder and not refused:
        shadow_s, extra = plain_reservation(seen, holder)
        assert seen.gpus[job] <= extra or seen.now_s + for_job(seen, job).run_s(given) <= shadow_s * (1 + 1e-12)


@settings(max_examples=examples(60))
@given(turning_cases(), SEEDS)
def test_random_candidates_keep_reservations_overtake_no_aged_job_and_end_every_job(case: Case, seed: int) -> None:
    rng, problem = np.random.default_rng(seed), problem_of(case)
    batch = Batch(problem, AgentView(action="candidate"), 1)
    batch.reset(case.row)
    while batch.masks[0].any():
        sim, candidates = batch.sim, listed(batch.sim, 0)
        # Seldom a wait, or else nothing happens for long
        starts = [number for number, candidate in enumerate(candidates) if not candidate.delay_s]
        chosen = int(rng.choice(starts if rng.random() < 0.8 else len(candidates)))
        seen, candidate = Decision(batch, 0), candidates[chosen]
        if not candidate.delay_s:
            refused = bool(sim.state.base_refused[0]) and chosen == sim.state.base_waits[0]
            given = given_by(usable_after(seen, 0.0), candidate.nodes, seen.gpus[candidate.job])
            check_start(seen, candidate.job, given, refused=refused)
        batch.step(np.array([chosen]))
    assert batch.sim.state.finished[0] == case.scenarios.jobs[case.row]


@settings(max_examples=examples(30))
@given(cases(), SEEDS)
def test_under_fifo_every_candidate_is_of_the_job_that_is_due_and_its_wait_is_the_only_one(
    case: Case, seed: int
) -> None:
    case = case._replace(rules=case.rules._replace(order=ORDERS["fifo"]))
    for batch in decisions(problem_of(case), case.row, seed):
        candidates = listed(batch.sim, 0)
        assert {candidate.job for candidate in candidates} == {int(batch.sim.state.current[0])}
        assert sum(is_wait(batch.sim, 0, number) for number in range(len(candidates))) == may_wait(batch.sim, 0)
        assert not any(lets_all_jobs_wait(batch.sim, 0, number) for number in range(len(candidates)))


def test_a_busy_cluster_offers_other_jobs_often() -> None:
    problem = small_problem(1, nodes=5, jobs=60, order="easy", waiting=True)
    turned = [len({candidate.job for candidate in listed(batch.sim, 0)}) for batch in decisions(problem, 0, 1)]
    assert max(turned) == 1 + MAX_OTHERS
    assert sum(jobs > 1 for jobs in turned) > len(turned) / 2


def two_waiting(ageing_s: float = math.inf) -> Simulation:
    """A job runs until 10 s on one of four GPUs, and two wait, of which the first is due."""
    jobs = [(1, 10.0, 0.0), (2, 30.0, 0.0), (1, 5.0, 0.0)]
    sim = at_first_decision(hand_case(grid_cluster(1, 4), jobs, order=ORDERS["easy"], waiting=True, ageing_s=ageing_s))
    take_node(sim, 0, 0)
    assert start(sim, 0)
    assert advance(sim, 0)
    return sim


def test_who_was_not_turned_to_is_offered_again_at_the_same_moment() -> None:
    sim = two_waiting()
    assert sim.state.current[0] == 1
    assert turn_to(sim, 0, 2)
    take_node(sim, 0, 0)
    assert start(sim, 0)
    assert sim.state.start_s[0, 2] == 0.0
    assert advance(sim, 0)
    assert (sim.state.now_s[0], sim.state.current[0]) == (0.0, 1)


def test_a_job_that_would_delay_the_due_one_is_not_turned_to_and_nothing_changes() -> None:
    jobs = [(1, 10.0, 0.0), (3, 30.0, 0.0), (2, 50.0, 0.0), (1, 50.0, 0.0)]
    sim = at_first_decision(hand_case(grid_cluster(1, 4), jobs, order=ORDERS["easy"], waiting=True))
    assert not turn_to(sim, 0, 1)  # nothing runs yet
    take_node(sim, 0, 0)
    assert start(sim, 0)
    assert advance(sim, 0)
    # At 10 s job 1 leaves one GPU over: enough for job 3, not for job 2.
    assert others_of(sim) == [3]
    before = [array.tobytes() for array in sim.state]
    assert not turn_to(sim, 0, 2)
    assert turn_to(sim, 0, 3)
    assert turn_to(sim, 0, 1)
    after = [array.tobytes() for array in sim.state]
    changed = [name for name, was, now in zip(sim.state._fields, before, after, strict=True) if was != now]
    assert {name for name in changed if not name.startswith("reserved_")} <= {"ends_s", "ends_job", "ends_kept"}


def test_nobody_turns_away_from_an_aged_job() -> None:
    sim = two_waiting(0.0)
    assert sim.state.current[0] == 1
    assert not turn_to(sim, 0, 2)
    assert list_candidates(sim, 0) == 1


def test_the_wait_of_a_list_ends_the_moment_for_all_and_the_bases_own_for_its_job_only() -> None:
    sim = two_waiting()
    candidates = list_candidates(sim, 0)
    assert lets_all_jobs_wait(sim, 0, candidates - 1)
    assert not pick_candidate(sim, 0, candidates - 1)
    wait(sim, 0)
    assert advance(sim, 0)
    assert (sim.state.now_s[0], sim.state.current[0]) == (10.0, 1)

    # The fast node is taken until 10 s, and the base would rather wait for it; the third job is offered meanwhile.
    cluster = grid_cluster(2, 1, speed=np.array([4.0, 1.0]))
    jobs = [(1, 40.0, 0.0), (1, 100.0, 0.0), (1, 8.0, 0.0)]
    sim = at_first_decision(hand_case(cluster, jobs, order=ORDERS["easy"], waiting=True))
    take_node(sim, 0, 0)
    assert start(sim, 0)
    assert advance(sim, 0)
    assert list_candidates(sim, 0) == 4  # its wait, its set at once, that of the third job, and the wait for all
    assert is_wait(sim, 0, 0)
    assert not lets_all_jobs_wait(sim, 0, 0)
    assert not pick_candidate(sim, 0, 0)
    wait(sim, 0)
    assert advance(sim, 0)
    assert (sim.state.now_s[0], sim.state.current[0]) == (0.0, 2)
