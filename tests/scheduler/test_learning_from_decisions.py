"""What the scheduler stores of a network's decisions is all that a training step needs (SPEC R9)."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.placement.replay import export_decisions, read_decisions, replay, stored_record_in
from longshore.scheduler.policy_host.messages import decision_record_of
from longshore.scheduler.store.database import open_store
from tests.plain_run import busy_case
from tests.policies_under_test import log_probabilities
from tests.scheduler.twin_run import twin_of

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
PATIENCE_S = 120.0  # far more than anything here takes


@pytest.mark.full
def test_a_network_learns_from_the_decisions_that_it_made_in_the_scheduler(tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS / "hetero64.zip"
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    twin = twin_of(busy_case(ring=True), store, Placer(HEURISTICS["pack"], str(checkpoint), PATIENCE_S))
    assert twin.scheduler.tick()
    twin.parts.placer.wait_until_ready(PATIENCE_S)
    twin.run()
    twin.scheduler.close()
    file = tmp_path / "decisions.jsonl"
    file.write_text("".join(line + "\n" for line in export_decisions(store)), encoding="utf-8")
    store.close()

    policy = load_policy(checkpoint)
    stored = [found for found in map(stored_record_in, read_decisions(file)) if found is not None]
    seen = [decision_record_of(each) for each in stored]
    observations, masks, logged = (
        torch.from_numpy(np.concatenate([np.asarray(it[part]) for it in seen])) for part in range(3)
    )
    actions = torch.from_numpy(np.concatenate([it.actions for it in seen])).long()[:, None]
    found = log_probabilities(policy.network, observations, masks)

    assert len(stored) == len(file.read_text().splitlines()) >= 10
    assert (torch.isfinite(logged) == masks).all()
    torch.testing.assert_close(found, logged, atol=1e-4, rtol=1e-4)
    assert (logged.gather(1, actions)[:, 0] >= logged.max(dim=1).values - 1e-3).all()
    assert all(it.agrees for it in replay(file, policy))
    for line, one in zip(read_decisions(file), seen, strict=True):
        reported, likely = line["explanation"], 1.0
        for choice, action in enumerate(one.actions):
            likely *= math.exp(one.log_probabilities[choice, action])
        assert reported["behaviour_probability"] == 1.0  # nothing was drawn
        assert (reported["probability"], reported["options"]) == (pytest.approx(likely), one.masks[0].sum())
        assert (reported["expected"] is None) == (line["placement"] is None)

    optimizer = torch.optim.SGD(policy.network.parameters(), lr=1e-3)
    torch.autograd.backward(-found.gather(1, actions).mean())  # a step of the policy gradient with an advantage of 1
    optimizer.step()
    better = log_probabilities(policy.network, observations, masks)
    assert better.gather(1, actions).mean() > found.gather(1, actions).mean()


def test_what_a_heuristic_saw_is_not_stored(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    twin_of(busy_case(ring=False), store, Placer(HEURISTICS["pack"])).run()

    decisions = [json.loads(line) for line in export_decisions(store)]
    store.close()

    assert {decision["observation"] for decision in decisions} == {None}
    assert all(decision["ended_s"] > decision["opened_s"] for decision in decisions if decision["number"])
