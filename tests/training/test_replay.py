"""What replay keeps, draws and learns from, on small environments whose episodes are also cut off."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO

from longshore.training.ppo import GePPO, MaskableA2C, VtraceA2C
from longshore.training.replay import (
    Replay,
    collected_trajectories,
    flat_samples,
    gather_samples,
    reevaluated_trajectories,
    sample_bytes,
    select_rows,
    unpack_masks,
    weighted_gae,
)
from tests.training.replayed import ROWS, SAMPLES, STEPS, learned, model_of, spoilings

ACTIONS = 32


def figures(model: MaskablePPO) -> dict[str, Any]:
    return dict(model.logger.name_to_value)


def test_the_oldest_rollouts_are_dropped_and_a_sample_takes_the_computed_memory() -> None:
    model, replay = model_of(GePPO, kept=3)
    learned(model, replay, 5)
    assert [int(rollout.update) for rollout in replay.rollouts] == [2, 3, 4]
    newest = replay.rollouts[-1]
    sampled = [array for array in newest if array.shape[:2] == (STEPS, ROWS)]
    assert sum(array.nbytes for array in sampled) == SAMPLES * sample_bytes(newest.observations.shape[2], ACTIONS)


def test_a_rollout_judged_by_the_policy_that_run_it_is_as_it_was() -> None:
    model, replay = model_of(GePPO, kept=1, learning_rate=0.0)
    learned(model, replay, 3)
    rollout = replay.rollouts[0]
    now = reevaluated_trajectories(model.policy, rollout)
    assert now.ratio == pytest.approx(np.ones_like(now.ratio), abs=1e-5)
    assert now.values == pytest.approx(rollout.values, abs=1e-5)
    weighted = replay.weight_rollouts(model.policy, replay.rollouts, partial(weighted_gae, gamma=1.0, gae_lambda=0.9))
    assert rollout.cut_at.size > 0
    assert weighted.advantages[0] == pytest.approx(rollout.advantages, abs=1e-4)


@pytest.mark.parametrize("kind", [MaskablePPO, MaskableA2C])
def test_the_dynamic_batch_has_the_samples_of_a_period_drawn_from_all_that_is_kept(
    kind: type[MaskablePPO],
) -> None:
    model, replay = model_of(kind, kept=4)
    learned(model, replay, 6)
    buffer = model.rollout_buffer
    assert buffer.rewards.size == SAMPLES
    fields = {
        "observations": buffer.observations.reshape(SAMPLES, -1),
        "masks": np.packbits(buffer.action_masks.reshape(SAMPLES, -1) > 0, axis=1),
        "log_probability": buffer.log_probs.reshape(SAMPLES),
        "values": buffer.values.reshape(SAMPLES),
        "advantages": buffer.advantages.reshape(SAMPLES),
    }
    drawn = [b"".join(np.ascontiguousarray(part[i]).tobytes() for part in fields.values()) for i in range(SAMPLES)]
    ages = []
    for rollout in replay.rollouts:
        parts = [flat_samples(getattr(rollout, name)) for name in fields]
        known = {b"".join(np.ascontiguousarray(part[i]).tobytes() for part in parts) for i in range(SAMPLES)}
        ages.append(sum(sample in known for sample in drawn) / SAMPLES)
    assert sum(ages) >= 1.0
    assert ages == pytest.approx([0.25] * 4, abs=0.1)
    metrics = figures(model)
    assert metrics["replay/age"] == pytest.approx(1.5, abs=0.2)
    assert 0.3 < metrics["replay/effective_sample_size"] <= 1.0
    assert metrics["replay/total_variation"] > 0.0


def test_with_a_learning_rate_of_0_all_ratios_are_1_and_nothing_is_clipped() -> None:
    model, replay = model_of(GePPO, kept=4, learning_rate=0.0)
    learned(model, replay, 5)
    metrics = figures(model)
    assert metrics["train/clip_fraction"] == metrics["replay/clip_fraction"] == 0.0
    assert metrics["replay/effective_sample_size"] == pytest.approx(1.0, abs=1e-6)
    for name in ("replay/total_variation", "replay/step_variation", "train/approx_kl"):
        assert metrics[name] == pytest.approx(0.0, abs=1e-5)
    assert replay.slowing == 1.0
    weighted = replay.weight_rollouts(model.policy, replay.rollouts, partial(weighted_gae, gamma=1.0, gae_lambda=0.9))
    assert np.stack(weighted.ratio) == pytest.approx(np.ones((4, STEPS, ROWS)), abs=1e-4)


def test_an_update_that_goes_too_far_slows_the_next_ones_down() -> None:
    model, replay = model_of(GePPO, kept=2, learning_rate=0.05)
    learned(model, replay, 3)
    assert replay.slowing < 1.0
    rate = 0.05 * (replay.slowing * 1.03 if figures(model)["replay/step_variation"] > 0.2 / 3 else replay.slowing)
    assert figures(model)["train/learning_rate"] == pytest.approx(rate)


def test_vtrace_on_the_newest_rollout_alone_is_plain_a2c() -> None:
    plain, _ = model_of(MaskableA2C, kept=1, gae_lambda=1.0)
    expected = learned(plain, None, 4)
    model, replay = model_of(VtraceA2C, kept=1, gae_lambda=1.0)  # made after that, as it seeds all that is drawn
    for name, tensor in learned(model, replay, 4).items():
        assert torch.allclose(tensor, expected[name], atol=1e-4), name


def test_geppo_on_the_newest_rollout_alone_is_plain_ppo() -> None:
    whole: dict[str, Any] = {"batch_size": SAMPLES, "n_epochs": 4}
    plain, _ = model_of(MaskablePPO, kept=1, **whole)
    expected = learned(plain, None, 1)
    model, replay = model_of(GePPO, kept=1, **whole)
    for name, tensor in learned(model, replay, 1).items():
        assert torch.allclose(tensor, expected[name], atol=1e-3), name


@pytest.mark.parametrize("kind", [GePPO, VtraceA2C])
def test_kept_masks_close_actions_for_probability_and_gradient(kind: type[MaskablePPO]) -> None:
    model, replay = model_of(kind, kept=3)
    learned(model, replay, 4)
    masks = unpack_masks(gather_samples((it.masks for it in replay.rollouts), np.arange(3 * SAMPLES)), ACTIONS)
    closed = int((~masks).sum(axis=0).argmax())
    at = np.flatnonzero(~masks[:, closed])
    assert at.size > SAMPLES
    observations = torch.from_numpy(gather_samples((it.observations for it in replay.rollouts), at))
    actions = gather_samples((it.actions for it in replay.rollouts), at)
    assert (actions != closed).all()
    log_probability, entropy = model.policy.evaluate_actions(
        observations, torch.from_numpy(actions), action_masks=torch.from_numpy(masks[at])
    )[1:]
    assert entropy is not None
    model.policy.zero_grad()
    (log_probability.exp().sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    network: Any = model.policy.network
    last = network.policy[-1]
    assert not last.bias.grad[closed].any()
    assert not last.weight.grad[closed].any()
    assert last.bias.grad.any()
    distribution: Any = model.policy.get_distribution(observations, masks[at]).distribution
    assert not distribution.probs[:, closed].any()


def test_vtrace_learns_from_the_steps_of_a_period_and_from_every_rollout_alike() -> None:
    model, replay = model_of(VtraceA2C, kept=3)
    learned(model, replay, 4)
    parts = replay.draw_equal_parts()
    assert [int(part.update) for part in parts] == [1, 2, 3]
    assert [part.rewards.shape for part in parts] == [(STEPS, 2), (STEPS, 2), (STEPS, 4)]  # of 8 environments
    assert sum(part.rewards.size for part in parts) == SAMPLES


def test_some_environments_of_a_rollout_are_judged_as_they_are_among_all() -> None:
    model, replay = model_of(VtraceA2C, kept=2)
    learned(model, replay, 3)
    whole = replay.rollouts[0]
    for rows in np.array([1, 2, 5, 7]), np.array([0, 3, 4, 6]):
        part = select_rows(whole, rows)
        for some, among_all in zip(
            reevaluated_trajectories(model.policy, part), reevaluated_trajectories(model.policy, whole), strict=True
        ):
            assert some == pytest.approx(among_all[:, rows], abs=1e-6)
        assert collected_trajectories(model.policy, part).next_values == pytest.approx(
            collected_trajectories(model.policy, whole).next_values[:, rows]
        )
    assert whole.cut_at.size > 0


def test_rollouts_of_policies_too_far_away_are_left_out() -> None:
    model, replay = model_of(GePPO, kept=3)
    learned(model, replay, 3)
    odd = replay.rollouts[0]
    rare = odd.log_probability.copy()
    rare.reshape(-1)[::50] -= 8.0  # a few samples that the present policy takes 3,000 times as readily
    replay.rollouts[0] = odd._replace(log_probability=rare)
    weighted = replay.weight_rollouts(model.policy, replay.rollouts, partial(weighted_gae, gamma=1.0, gae_lambda=0.9))
    assert [int(rollout.update) for rollout in weighted.rollouts] == [1, 2]


def test_kept_rollouts_that_are_not_as_the_model_leaves_them_are_refused() -> None:
    model, replay = model_of(GePPO, kept=3)
    learned(model, replay, 4)
    sound, buffer = replay.snapshot_arrays(), model_of(GePPO, kept=3)[0].rollout_buffer
    fresh = Replay(3, dynamic=False)
    fresh.restore(sound, buffer)
    assert all(
        np.array_equal(np.asarray(one), np.asarray(other))
        for mine, theirs in zip(fresh.rollouts, replay.rollouts, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    )
    fresh.restore(sound | {"replay/3/update": np.array(9)}, buffer)  # one more than are kept is not looked at
    for name, array in sound.items():
        for wrong in spoilings(array):
            with pytest.raises(ValueError, match=name):
                fresh.restore(sound | {name: wrong}, buffer)
    with pytest.raises(ValueError, match="closed"):
        fresh.restore(sound | {"replay/1/masks": sound["replay/1/masks"] * 0}, buffer)
    for slowing in (0.0, -1.0, 1.5):
        with pytest.raises(ValueError, match="replay/slowing"):
            fresh.restore(sound | {"replay/slowing": np.array(slowing)}, buffer)
