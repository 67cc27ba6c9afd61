"""What is evaluated by any seed is drawn by a key that no training has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.presets.problems import VALIDATION_SEED, evaluation_key, training_key, user_key
from longshore.eval.setting import setting_of
from tests.eval.answers import ASKED

SMALL = Path(__file__).parents[2] / "examples" / "small.yaml"
OF_TRAINING = (VALIDATION_SEED, training_key(0), training_key(999_999))


@pytest.mark.parametrize("seed", OF_TRAINING)
@pytest.mark.parametrize("cluster", [None, SMALL])
def test_no_evaluation_shares_a_draw_with_training_or_validation(cluster: Path | None, seed: int) -> None:
    run = setting_of(replace(ASKED, trace=None, cluster=cluster, workloads=4, seed=seed)).problem.scenarios
    others = hetero64(4, seed)[1]
    if cluster is not None:
        others = setting_of(replace(ASKED, trace=None, cluster=cluster, workloads=4, seed=2)).problem.scenarios
    assert not np.isin(run.work_s, others.work_s).any()
    assert not np.isin(run.fault_seed, others.fault_seed).any()


def test_another_seed_draws_what_it_names() -> None:
    run = setting_of(replace(ASKED, trace=None, cluster=None, workloads=4, seed=2026)).problem.scenarios
    assert np.array_equal(run.work_s, hetero64(4, 2026)[1].work_s)


@given(st.integers(0, 2**63) | st.integers(0, 3) | st.integers(999_998, 1_000_002) | st.integers(1_999_998, 2_000_002))
def test_keys_of_evaluations_are_their_seeds_but_for_those_of_training(seed: int) -> None:
    is_taken = seed == VALIDATION_SEED or training_key(0) <= seed <= training_key(999_999)
    key = evaluation_key(seed)
    assert (key == seed) != is_taken
    assert key != VALIDATION_SEED
    assert not training_key(0) <= key <= training_key(999_999)
    assert key % 2**64 == seed


@given(st.integers(0, 999_999), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_what_is_trained_on_evaluated_and_drawn_by_others_shares_no_key(own: int, asked: int, other: int) -> None:
    assert len({training_key(own), evaluation_key(asked), user_key(other), VALIDATION_SEED}) == 4
