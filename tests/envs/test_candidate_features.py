"""Observations of whole candidates against their plain definitions."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.model.problem import Problem
from longshore.cluster.state.state import MAX_CANDIDATES
from longshore.envs.batch import AgentView, Batch
from longshore.envs.layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS, FEATURE_CLIP
from tests.deep_cases import wide_case
from tests.envs.plain_candidate_features import plain_candidate_features
from tests.envs.random_run import open_actions, problem_of, small_problem
from tests.plain_candidates import decisions
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples

NAMES = [
    *CANDIDATE_GLOBALS,
    *(f"{name} of candidate {candidate}" for candidate in range(MAX_CANDIDATES) for name in CANDIDATE_FEATURES),
]


def agree(batch: Batch, row: int) -> None:
    """Compare a row's observation with its plain version, and name what differs."""
    seen, plain = batch.observations[row], plain_candidate_features(batch, row)
    odd = np.flatnonzero(~np.isclose(seen, plain, rtol=2e-5, atol=4e-6))
    assert [(NAMES[column], seen[column], plain[column]) for column in odd] == []


@settings(max_examples=examples(60))
@given(cases() | cases(nodes=(9, 12)) | needy_cases() | planned_cases(), st.integers(0, 2**32 - 1))
def test_an_observation_of_candidates_is_what_its_description_says(case: Case, seed: int) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        agree(batch, 0)


@settings(max_examples=examples(8))
@given(st.integers(0, 2**32 - 1), st.sampled_from(["fifo", "easy", "shortest"]))
def test_an_observation_of_candidates_is_what_its_description_says_on_many_nodes(seed: int, order: str) -> None:
    case = wide_case(seed, order, waiting=bool(seed % 4))
    for batch in islice(decisions(problem_of(case), 0, seed), 8, 40, 16):
        agree(batch, 0)


@pytest.mark.parametrize("order", ["fifo", "easy", "shortest"])
def test_an_observation_of_candidates_is_what_its_description_says_on_a_busy_cluster(order: str) -> None:
    problem = small_problem(nodes=5, jobs=24, faults=2, order=order, waiting=True)
    batch = Batch(problem, AgentView(action="candidate"), 8)
    rng = np.random.default_rng(2)
    batch.reset()
    for _ in range(30):
        batch.step(open_actions(batch.masks, rng))
        for row in np.flatnonzero(~batch.ended)[:2]:
            agree(batch, row)
        batch.reset_rows(np.flatnonzero(batch.ended))


@settings(max_examples=examples(40))
@given(cases(), st.integers(0, 2**32 - 1))
def test_observations_of_candidates_are_finite_and_within_their_bounds_and_all_and_only_candidates_are_open(
    case: Case, seed: int
) -> None:
    for batch in decisions(problem_of(case), case.row, seed):
        assert np.isfinite(batch.observations).all()
        assert (np.abs(batch.observations) <= FEATURE_CLIP).all()
        table = batch.observations[0, len(CANDIDATE_GLOBALS) :].reshape(MAX_CANDIDATES, len(CANDIDATE_FEATURES))
        assert (batch.masks[0] == (table[:, CANDIDATE_FEATURES.index("exists")] == 1.0)).all()
        assert (table[~batch.masks[0]] == 0.0).all()
        assert batch.masks[0].sum() == batch.sim.state.candidates[0]


def test_the_patents_observation_of_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="'patent' describes no candidates"):
        AgentView(action="candidate", observation="patent")


def test_extreme_numbers_stay_within_the_bounds() -> None:
    problem = small_problem(waiting=True)
    work_s = np.where(np.arange(problem.scenarios.work_s.shape[1]) % 2, 1e-3, 1e12) + 0.0 * problem.scenarios.work_s
    odd = problem._replace(
        scenarios=problem.scenarios._replace(work_s=work_s, estimate_s=work_s),
        rules=problem.rules._replace(limit_s=1e7),
    )
    seen = [batch.observations.copy() for batch in decisions(odd, 0, 4)]
    assert len(seen) > 5
    assert (np.abs(seen) <= FEATURE_CLIP).all()


def test_what_is_seen_depends_on_no_unit_of_time() -> None:
    # A power of two changes no digit.
    problem = small_problem(waiting=True, faults=4)
    scaled = in_quarter_seconds(problem)
    for one, other in zip(decisions(problem, 1, 3), decisions(scaled, 1, 3), strict=True):
        np.testing.assert_allclose(one.observations, other.observations, rtol=1e-6, atol=1e-7)


def in_quarter_seconds(problem: Problem) -> Problem:
    times = {name: getattr(problem.scenarios, name) * 4.0 for name in ("work_s", "estimate_s", "submit_s", "compute_s")}
    rates = {name: getattr(problem.scenarios, name) / 4.0 for name in ("hazard_per_s", "source_rate_per_s")}
    process = problem.process._replace(repair_mean_s=problem.process.repair_mean_s * 4.0)
    rules = problem.rules._replace(
        checkpoint_s=problem.rules.checkpoint_s * 4.0, restart_s=problem.rules.restart_s * 4.0
    )
    return Problem(problem.cluster, problem.scenarios._replace(**times, **rates), process, rules)
