"""Rollouts as replay keeps them: whole, with the masks and probabilities of the time, so that all can be redone."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer

from ..snapshot import Arrays, finite, longer, within

JUDGED_ROWS = 1024  # at once on a thread; agents/networks/chunks.py has the same
Floats = NDArray[np.float32]


class KeptRollout(NamedTuple):
    """Steps of all environments between two updates, as they were taken. Masks are packed, eight actions a byte."""

    observations: Floats  # (steps, rows, size)
    masks: NDArray[np.uint8]  # (steps, rows, bytes) open actions at the time of the decision
    actions: NDArray[np.int32]  # (steps, rows)
    log_probability: Floats  # (steps, rows) of the action, by the policy that acted
    rewards: Floats  # (steps, rows)
    values: Floats  # (steps, rows) by the critic of the time
    advantages: Floats  # (steps, rows) the same
    ended: NDArray[np.bool_]  # (steps, rows) whether the step ended an episode
    last: Floats  # (rows, size) what is seen after the last step
    cut_at: NDArray[np.int64]  # (cut off,) flat index of steps that ended an episode at the time limit
    cut: Floats  # (cut off, size) what was seen after these
    update: NDArray[np.int64]  # () number of the rollout, from 0


PER_STEP = KeptRollout._fields[: KeptRollout._fields.index("last")]  # (steps, rows, ...)


class Judged(NamedTuple):
    """What the present policy and critic make of a rollout."""

    log_probability: Floats  # (steps, rows) of the actions that were taken
    values: Floats  # (steps, rows)
    next_values: Floats  # (steps, rows) of what followed: 0 where an episode terminated, not where it was cut off


def sample_bytes(size: int, actions: int) -> int:
    """Return the memory that one kept sample takes, for observations of a size and a number of actions."""
    return 4 * size + -(-actions // 8) + 5 * 4 + 1


def kept_rollout(
    buffer: MaskableRolloutBuffer, rewards: Floats, cut: list[tuple[int, Floats]], last: Floats,
    ended: NDArray[np.bool_], update: int,
) -> KeptRollout:  # fmt: skip
    """Return a copy of a full buffer whose samples stand in the order of time.

    Args:
        buffer: As it is between collection and update.
        rewards: Before Stable-Baselines3 adds the value of what follows an episode that was cut off.
        cut: Flat index of each such step and what was seen after it.
        last: What is seen after the last step, shape (rows, size).
        ended: Whether the last step ended an episode, shape (rows,).
        update: Number of the rollout.
    """
    starts = np.concatenate((buffer.episode_starts[1:] > 0, ended[None]))
    return KeptRollout(
        observations=buffer.observations.copy(),
        masks=np.packbits(buffer.action_masks > 0, axis=-1),
        actions=buffer.actions[:, :, 0].astype(np.int32),
        log_probability=buffer.log_probs.copy(),
        rewards=rewards,
        values=buffer.values.copy(),
        advantages=buffer.advantages.copy(),
        ended=starts,
        last=last.copy(),
        cut_at=np.array([at for at, _ in cut], dtype=np.int64),
        cut=np.array([observations for _, observations in cut], dtype=np.float32).reshape(len(cut), last.shape[1]),
        update=np.array(update),
    )


def sound_rollout(arrays: Arrays, prefix: str, buffer: MaskableRolloutBuffer) -> KeptRollout:
    """Return a rollout that was read from a file and is like what a buffer, as it is before collection, takes.

    Raises:
        ValueError: If it is not so.
        KeyError: If a part is not there.
    """
    like = kept_rollout(buffer, buffer.rewards, [], buffer.observations[0], np.zeros(buffer.n_envs, dtype=np.bool_), 0)
    cut_off = np.atleast_1d(arrays[f"{prefix}cut_at"]).shape[0]
    like = like._replace(cut_at=longer(like.cut_at, cut_off), cut=longer(like.cut, cut_off))
    found = KeptRollout(*(finite(arrays, prefix + name, part) for name, part in like._asdict().items()))
    within(f"{prefix}cut_at", found.cut_at, 0, found.rewards.size - 1)
    within(f"{prefix}update", found.update, 0, np.inf)
    check_actions(prefix, found.masks, found.actions, buffer.mask_dims)
    return found


def check_actions(prefix: str, masks: NDArray[np.uint8], actions: NDArray[np.int32], count: int) -> None:
    """Refuse actions that are none of so many, or that their masks close.

    Raises:
        ValueError: If there is one.
    """
    within(f"{prefix}actions", actions, 0, count - 1)
    byte = np.take_along_axis(masks, actions[..., None] >> 3, axis=-1)[..., 0]
    if not (byte & (128 >> (actions & 7))).all():
        raise ValueError(f"{prefix}actions holds one that is closed in {prefix}masks")


def of_rows(rollout: KeptRollout, rows: NDArray[np.int64]) -> KeptRollout:
    """Return the steps of some environments, whose numbers rise."""
    step, row = np.divmod(rollout.cut_at, rollout.rewards.shape[1])
    mine = np.isin(row, rows)
    return rollout._replace(
        **{name: np.take(getattr(rollout, name), rows, axis=1) for name in PER_STEP},
        last=rollout.last[rows], cut=rollout.cut[mine],
        cut_at=step[mine] * rows.size + np.searchsorted(rows, row[mine]),
    )  # fmt: skip


def flat(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of samples with steps and rows as one axis."""
    return values.reshape(-1, *values.shape[2:])


def unpacked(masks: NDArray[np.uint8], actions: int) -> NDArray[np.bool_]:
    """Return packed masks as booleans, shape (..., actions)."""
    return np.unpackbits(masks, axis=-1, count=actions).astype(np.bool_)


def judge(
    policy: Any, observations: Floats, masks: NDArray[np.bool_], actions: NDArray[np.int32]
) -> tuple[Floats, Floats]:
    """Return values and log-probabilities of actions under the present policy, each of shape (samples,).

    Args:
        policy: A MaskedPolicy; its threads take part.
        observations: Shape (samples, size).
        masks: Those of the time of the decisions, shape (samples, actions).
        actions: Shape (samples,).
    """
    parts = (torch.split(torch.from_numpy(part), JUDGED_ROWS) for part in (observations, actions, masks))

    def one(chunk: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():  # a thread has its own setting
            values, log_probability, _ = policy.evaluate_actions(*chunk)
        return values.flatten(), log_probability

    values, log_probability = zip(*policy.pool.map(one, zip(*parts, strict=True)), strict=True)
    return torch.cat(values).numpy(), torch.cat(log_probability).numpy()


def judged(policy: Any, rollout: KeptRollout) -> Judged:
    """Return what the present policy, a MaskedPolicy, and critic make of a rollout, masked as at the time."""
    masks = unpacked(flat(rollout.masks), int(policy.action_space.n))
    shape = rollout.rewards.shape
    given = judge(policy, flat(rollout.observations), masks, flat(rollout.actions))
    values, log_probability = (one.reshape(shape) for one in given)
    return Judged(log_probability, values, next_values(policy, rollout, values))


def own(policy: Any, rollout: KeptRollout) -> Judged:
    """Return what a policy made of a rollout while it run it."""
    return Judged(rollout.log_probability, rollout.values, next_values(policy, rollout, rollout.values))


def next_values(policy: Any, rollout: KeptRollout, values: Floats) -> Floats:
    """Return the value of what followed each step, shape (steps, rows): a time limit is no end, and is looked beyond.

    Args:
        policy: Whose critic judges.
        rollout: Of any age.
        values: What the critic makes of its observations, shape (steps, rows).
    """
    with torch.no_grad():
        last = policy.predict_values(torch.from_numpy(rollout.last)).numpy().flatten()
        following: Floats = np.concatenate((values[1:], last[None])) * ~rollout.ended
        if rollout.cut_at.size:
            following.reshape(-1)[rollout.cut_at] = policy.predict_values(torch.from_numpy(rollout.cut)).numpy()[:, 0]
    return following
