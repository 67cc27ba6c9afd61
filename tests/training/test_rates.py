"""Learning rates fall from their start to 0 and never below, however many steps, rows and updates there are."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.learned.checkpoint import layout_of, schema_of
from longshore.agents.networks.candidates import CandidateNetwork
from longshore.cluster.state.state import MAX_CANDIDATES
from longshore.envs.features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from longshore.training import distil
from longshore.training.distil import Labels, fit_network
from longshore.training.group import step_in_chunks
from longshore.training.ppo import falling_rate
from longshore.training.problems import DistilParameters


def rates(start: float, steps: int, rollout: int) -> list[float]:
    """Return the rate of each update, with the share of steps left as Stable-Baselines3 has it after a rollout."""
    rate, done, found = falling_rate(start, steps, rollout), 0, list[float]()
    while done < steps:
        done += rollout
        found.append(rate(1.0 - float(done) / float(steps)))
    return found


@given(st.floats(1e-8, 1.0), st.integers(1, 4096), st.integers(1, 512), st.integers(1, 100), st.floats(0.0, 1.0))
def test_the_rate_of_ppo_and_a2c_falls_from_its_start_to_0_and_never_below(
    start: float, rows: int, length: int, updates: int, part: float
) -> None:
    rollout = rows * length
    steps = (updates - 1) * rollout + max(1, round(part * rollout))  # the last rollout ends there or beyond
    found = rates(start, steps, rollout)
    assert len(found) == updates
    assert start > found[0] > 0.0  # a run of one rollout learns, too
    assert all(0.0 <= after <= before for before, after in itertools.pairwise(found))
    assert found[-1] == pytest.approx(start / 2.0 if updates == 1 else 0.0, abs=1e-12 * start)


@given(st.integers(2, 200), st.integers(1, 10**6))
def test_updates_of_rollouts_that_fit_have_the_rate_of_stable_baselines3(updates: int, rollout: int) -> None:
    steps = updates * rollout
    plain = [1e-3 * (1.0 - float(done) / float(steps)) for done in range(rollout, steps + 1, rollout)]
    assert rates(1e-3, steps, rollout) == plain


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_rate_of_distillation_falls_from_its_start_by_epoch(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, step = list[float](), step_in_chunks

    def noted(network: CandidateNetwork, optimizer: torch.optim.Optimizer, *others: Any) -> None:
        found.append(float(optimizer.param_groups[0]["lr"]))
        step(network, optimizer, *others)

    monkeypatch.setattr(distil, "step_in_chunks", noted)
    schema = schema_of(
        algorithm="distil", network="candidates", action="candidate", observation="full", waiting=True, node_gpus=(8,)
    )
    size = CANDIDATE_GLOBAL_COUNT + MAX_CANDIDATES * CANDIDATE_FEATURE_COUNT
    rng, counts, values = np.random.default_rng(0), np.full(8, 2, np.int32), np.zeros((8, MAX_CANDIDATES), np.float32)
    labels = Labels(
        rng.random((8, size), np.float32), counts, counts, values, values, values[:, 0], np.arange(8, dtype=np.int32)
    )
    parameters = DistilParameters(distil_epochs=epochs)
    with ThreadPoolExecutor(1) as pool:
        fit_network(CandidateNetwork(layout_of(schema)), labels, parameters, pool, rng)
    start = parameters.distil_learning_rate
    assert found == pytest.approx([start * (1.0 - epoch / epochs) for epoch in range(epochs)])
