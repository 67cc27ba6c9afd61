"""The margin by which the base heuristic's choice is favoured."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.learned.checkpoint import load_policy, save_policy
from longshore.agents.learned.schema import MAX_MARGIN
from longshore.agents.networks.candidates import CandidatePolicy
from longshore.cluster.files.errors import CheckpointError
from longshore.training import run
from longshore.training.config import problem_request
from longshore.training.distil import MARGINS, mean_log_cost, with_best_margin, with_margin
from longshore.training.problems import PRESETS, Sizes
from tests.envs.random_run import problem_of, small_problem
from tests.plain_candidates import decisions
from tests.policies_under_test import untrained_candidates
from tests.strategies import Case, cases
from tests.support.budgets import examples
from tests.training.groups import config

SIZES = Sizes(64, 16)


@settings(max_examples=examples(20))
@given(cases(), st.sampled_from(MARGINS), st.integers(0, 2**32 - 1))
def test_a_margin_raises_the_first_candidates_logit_alone(case: Case, margin: float, seed: int) -> None:
    policy = untrained_candidates(waiting=True)
    favouring = with_margin(policy, margin)
    for batch in decisions(problem_of(case), case.row, seed):
        plain, found = (it._compute_logits(batch.observations)[0] for it in (policy, favouring))
        assert found[0] == pytest.approx(plain[0] + margin, abs=1e-5)
        np.testing.assert_array_equal(found[1:], plain[1:])


def test_under_the_largest_margin_the_base_heuristic_decides_alone() -> None:
    problem = small_problem(1, waiting=True)
    policy = with_margin(untrained_candidates(waiting=True), MAX_MARGIN)
    for batch in decisions(problem, 0, 3):
        policy.place(batch.sim, 0)
        assert policy.last_decision().actions[0] == 0


def test_a_checkpoint_keeps_its_margin_and_one_that_is_no_margin_is_refused(tmp_path: Path) -> None:
    policy = with_margin(untrained_candidates(waiting=True), 0.5)
    path = tmp_path / "policy.zip"
    save_policy(path, policy.schema, policy.network)
    kept = load_policy(path)
    assert isinstance(kept, CandidatePolicy)
    assert kept.schema == policy.schema
    assert kept.weights.margin == 0.5
    for wrong in (-0.5, float("nan"), float("inf"), 2.0 * MAX_MARGIN):
        save_policy(path, policy.schema.model_copy(update={"margin": wrong}), policy.network)
        with pytest.raises(CheckpointError, match="margin"):
            load_policy(path)


def test_training_ends_with_the_margin_that_costs_least_on_the_scenarios_of_validation(tmp_path: Path) -> None:
    small = config(600)
    result = partial(run.train, sizes=SIZES)(small, tmp_path)
    policy = load_policy(result.best)
    assert isinstance(policy, CandidatePolicy)
    _, problems = PRESETS[small.preset].build(problem_request(small, SIZES))
    costs = {margin: mean_log_cost(with_margin(policy, margin), problems, 0.0) for margin in MARGINS}
    assert costs[policy.schema.margin] == min(costs.values())
    again = run.train(small, tmp_path, sizes=SIZES)
    assert load_policy(again.best).schema == policy.schema
    assert again.score == result.score


@given(st.lists(st.integers(0, 3), min_size=len(MARGINS), max_size=len(MARGINS)))
def test_of_equal_margins_the_smallest_is_taken(costs: list[int]) -> None:
    policy = untrained_candidates(waiting=True)
    of = dict(zip(MARGINS, costs, strict=True))
    assert with_best_margin(policy, lambda it: of[it.schema.margin]).schema.margin == MARGINS[int(np.argmin(costs))]
