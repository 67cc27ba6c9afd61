"""The short list of candidates: the base heuristic's first, then smallest sets of nodes, each kind once."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.candidates.candidates import is_wait, list_candidates, pick_candidate
from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.placing import undo_picks
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.queue.order import may_wait, turn_to
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import MAX_CANDIDATES
from longshore.envs.batch import Batch
from longshore.testing.policies import protected_parts
from tests.cases_by_hand import hand_case
from tests.compiled_runs import compiled, picks, read_out, run_heuristic
from tests.deep_cases import wide_case
from tests.envs.plain_features import Decision
from tests.envs.random_run import problem_of, small_problem
from tests.plain_candidates import (
    decisions,
    end_s,
    finish_s,
    given_by,
    kind_of,
    least_finish_s,
    listed,
    offered,
    usable_after,
)
from tests.strategies import Case, cases, needy_cases, with_needs
from tests.support.budgets import examples

SEEDS = st.integers(0, 2**32 - 1)
ANY_CASE = cases() | cases(nodes=(9, 12)) | needy_cases() | needy_cases(nodes=(9, 12))
Run = tuple[list[Event], Outcome]


def run_first_candidates(case: Case) -> Run:
    sim = compiled(case)
    reset(sim, 0, case.row)
    while advance(sim, 0):
        assert 1 <= list_candidates(sim, 0) <= MAX_CANDIDATES
        if pick_candidate(sim, 0, 0):
            start(sim, 0)
        else:
            wait(sim, 0)
    return read_out(sim)


@settings(max_examples=examples(60))
@given(ANY_CASE)
def test_the_first_candidate_is_the_base_heuristics(case: Case) -> None:
    base = "patient" if case.rules.waiting else "eft-hazard"
    assert run_first_candidates(case)[0] == run_heuristic(case, base)[0]


@pytest.mark.parametrize("waiting", [False, True])
def test_the_list_of_a_large_cluster_is_short_and_begins_with_the_base_heuristics_candidate(*, waiting: bool) -> None:
    cluster, scenarios, process, rules = hetero64(1, 3, nodes=64, jobs=200)
    case = Case(cluster, scenarios, 0, process, rules._replace(waiting=waiting))
    assert run_first_candidates(case)[0] == run_heuristic(case, "patient")[0]


def sets_that_are_smallest(batch: Batch) -> int:
    """Check that each candidate takes usable GPUs that hold its job, of no node too many; return their number."""
    seen, candidates = Decision(batch, 0), listed(batch.sim, 0)
    for candidate in candidates:
        free, need = usable_after(seen, candidate.delay_s), seen.gpus[candidate.job]
        gives = [free[node] for node in candidate.nodes]
        assert len(set(candidate.nodes)) == len(gives)
        assert gives == sorted(gives, reverse=True)
        assert sum(gives) >= need > sum(gives) - gives[-1]
        assert gives[-1] > 0
        assert candidate.hole == sum(gives) - need
        assert candidate.run_s == pytest.approx(
            finish_s(seen, candidate.job, given_by(free, candidate.nodes, need)), rel=1e-9
        )
    return len(candidates)


@settings(max_examples=examples(40))
@given(ANY_CASE, SEEDS)
def test_a_candidate_is_a_set_of_usable_gpus_that_could_spare_no_node(case: Case, seed: int) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        sets_that_are_smallest(batch)


def test_candidates_on_a_large_cluster_could_spare_no_node() -> None:
    problem = small_problem(1, nodes=40, jobs=150, waiting=True)
    assert sum(map(sets_that_are_smallest, decisions(problem, 0, 1))) > 100


@settings(max_examples=examples(40))
@given(ANY_CASE, SEEDS)
def test_no_two_candidates_are_of_a_kind_and_two_wait_only_where_the_base_holds_back_its_own_job(
    case: Case, seed: int
) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        seen, candidates = Decision(batch, 0), listed(batch.sim, 0)
        kinds = [kind_of(seen, it.job, it.nodes) for it in candidates if not it.delay_s]
        assert len(kinds) == len(set(kinds))
        alone = bool(candidates[0].delay_s) and case.rules.order != ORDERS["fifo"]
        assert len(candidates) - len(kinds) == may_wait(batch.sim, 0) + alone


def needy(case: Case) -> Case:
    """Return a case whose jobs accept about half of the nodes, of three kinds of needs."""
    rng = np.random.default_rng(case.cluster.speed.size)
    suits = rng.integers(0, 2, (3, case.cluster.speed.size))
    return with_needs(case, suits, rng.integers(0, 4, case.scenarios.needs.shape))


def test_a_node_that_turned_out_to_be_a_lemon_is_told_from_its_like() -> None:
    outages = {0: [(10.0, 11.0), (20.0, 21.0)]}  # of the GPU of node 0
    jobs = [(1, 1.0, 0.0), (1, 10.0, 100.0)]
    sim = compiled(hand_case(grid_cluster(4, 1), jobs, outages, estimated_hazards=True))
    reset(sim, 0, 0)
    assert advance(sim, 0)
    pick_candidate(sim, 0, list_candidates(sim, 0) - 1)
    assert start(sim, 0)
    assert advance(sim, 0)
    assert sim.state.lemon[0].tolist() == [1, 0, 0, 0]
    list_candidates(sim, 0)
    assert sorted(it.nodes for it in listed(sim, 0)) == [[0], [1]]


@pytest.mark.parametrize("changed", [lambda case: case, needy])
@settings(max_examples=examples(10))
@given(seed=SEEDS)
def test_on_many_nodes_the_offers_are_those_of_the_plain_version(changed: Callable[[Case], Case], seed: int) -> None:
    for batch in islice(decisions(problem_of(changed(wide_case(seed))), 0, seed), 0, 40, 4):
        seen, (base, *others) = Decision(batch, 0), listed(batch.sim, 0)
        if len(seen.most_usable_first()) > 8:
            kinds = {kind_of(seen, it.job, it.nodes) for it in others}
            base_kind = kind_of(seen, base.job, base.nodes)
            assert kinds | {base_kind} == offered(seen) | {base_kind}


@settings(max_examples=examples(15))
@given(SEEDS, st.sampled_from(sorted(ORDERS)), st.booleans())
def test_candidates_on_many_nodes_could_spare_no_node_and_begin_with_the_base_heuristics(
    seed: int,
    order: str,
    waiting: bool,  # noqa: FBT001
) -> None:
    case = wide_case(seed, order, waiting=waiting)
    for batch in islice(decisions(problem_of(case), 0, seed), 0, 40, 4):
        sets_that_are_smallest(batch)
    assert run_first_candidates(case)[0] == run_heuristic(case, "patient" if waiting else "eft-hazard")[0]


@settings(max_examples=examples(40))
@given(cases() | needy_cases(), SEEDS)
def test_among_few_nodes_the_set_of_earliest_finish_is_in_the_list(case: Case, seed: int) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        seen = Decision(batch, 0)
        now = [
            candidate.run_s for candidate in listed(batch.sim, 0) if not candidate.delay_s and candidate.job == seen.job
        ]
        assert min(now) == pytest.approx(least_finish_s(seen, seen.job, usable_after(seen, 0.0)), rel=1e-9)


@settings(max_examples=examples(40))
@given(cases() | needy_cases(), SEEDS)
def test_a_wait_is_the_one_that_gains_most_and_comes_first_if_it_gains_anything(case: Case, seed: int) -> None:
    case = case._replace(rules=case.rules._replace(waiting=True))
    for batch in decisions(problem_of(case), case.row, seed):
        seen, candidates = Decision(batch, 0), listed(batch.sim, 0)
        waits = [candidate for candidate in candidates if candidate.delay_s]
        assert all(candidate == waits[0] for candidate in waits)
        for candidate in waits[:1]:
            now_s = least_finish_s(seen, seen.job, usable_after(seen, 0.0))
            delays_s = [end_s(seen, job) - seen.now_s for job in seen.started]
            gains_s = [
                0.4 * (now_s - least_finish_s(seen, seen.job, usable_after(seen, delay_s))) - delay_s
                for delay_s in delays_s
            ]
            gain_s = 0.4 * (now_s - candidate.run_s) - candidate.delay_s
            if max(gains_s) > 0.0:  # where no wait gains anything, any will do
                assert gain_s == pytest.approx(max(gains_s), rel=1e-9, abs=1e-9 * now_s)
            if abs(gain_s / now_s - 1e-9) > 1e-12:
                assert (candidates[0] is candidate) == (gain_s > 1e-9 * now_s)


@settings(max_examples=examples(60))
@given(ANY_CASE, SEEDS)
def test_what_an_earlier_call_has_left_in_scratch_changes_no_list(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for batch in decisions(problem_of(case), case.row, seed):
        before = listed(batch.sim, 0)
        for notes in batch.sim.scratch:
            notes[...] = rng.integers(0, batch.sim.cluster.speed.size, notes.shape)
        list_candidates(batch.sim, 0)
        assert listed(batch.sim, 0) == before


@settings(max_examples=examples(30))
@given(ANY_CASE, SEEDS)
def test_listing_changes_nothing_and_picking_a_candidate_takes_its_set(case: Case, seed: int) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        sim, seen, before = batch.sim, Decision(batch, 0), protected_parts(batch.sim)
        count = list_candidates(sim, 0)
        assert protected_parts(sim) == before
        rested = int(sim.state.rested[0])
        for number, candidate in enumerate(listed(sim, 0)):
            assert is_wait(sim, 0, number) == (candidate.delay_s > 0.0)
            taken = (
                {}
                if candidate.delay_s
                else given_by(usable_after(seen, 0.0), candidate.nodes, seen.gpus[candidate.job])
            )
            assert pick_candidate(sim, 0, number) == bool(taken)
            nodes, counts = np.unique(sim.cluster.gpu_node[picks(sim)], return_counts=True)
            assert dict(zip(nodes.tolist(), counts.tolist(), strict=True)) == taken
            undo_picks(sim, 0)
            sim.state.rested[0] = rested
            assert turn_to(sim, 0, seen.job)
        assert count == len(listed(sim, 0))
        assert protected_parts(sim) == before
