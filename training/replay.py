"""Replay: earlier rollouts or samples that later updates learn from, and what corrects for their policies.

`Replay` keeps whole rollouts. The formulas are in docs/training.md, Replay. Everywhere pi is the policy that learns,
pi_k what it was when the update began, mu the policy that acted, and c the ratio pi_k / mu of the action's
probabilities. Arrays of samples have shape (steps, rows), in order of time.

`SampleReplay` is the patent's replay to the letter (SPEC R6), for `--replay literal` and `literal-all`. Its buffer
holds samples, of which the oldest are dropped. A batch has the number of samples of the scheduling periods that ended,
or is all of the buffer. Samples are reused without a correction for the policy that acted.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor

from ..cluster.files.errors import CheckpointError
from .snapshot import Arrays, check_within, checked_counts, checked_finite, checked_record, zeros_of_length

EVALUATED_ROWS = 1024  # at once on a thread; agents/networks/sb3_policy.py has the same
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
    last: Floats  # (rows, size) observations after the last step
    cut_at: NDArray[np.int64]  # (cut off,) flat index of steps that ended an episode at the time limit
    cut: Floats  # (cut off, size) observations after these
    update: NDArray[np.int64]  # () number of the rollout, from 0


PER_STEP = KeptRollout._fields[: KeptRollout._fields.index("last")]  # (steps, rows, ...)


class Trajectories(NamedTuple):
    """Steps of all environments, with their values by the present critic."""

    rewards: Floats  # (steps, rows)
    values: Floats  # (steps, rows)
    next_values: Floats  # (steps, rows) after each step; 0 where an episode terminated, not where it was cut off
    ended: NDArray[np.bool_]  # (steps, rows) terminated or cut off
    ratio: Floats  # (steps, rows) c


def sample_bytes(size: int, actions: int) -> int:
    """Return the memory that one kept sample takes, for observations of a size and a number of actions."""
    return 4 * size + -(-actions // 8) + 5 * 4 + 1


def copy_rollout(
    buffer: MaskableRolloutBuffer, rewards: Floats, cut: list[tuple[int, Floats]], last: Floats,
    ended: NDArray[np.bool_], update: int,
) -> KeptRollout:  # fmt: skip
    """Return a copy of a full buffer with its samples in the order of time.

    Args:
        buffer: As it is between collection and update.
        rewards: Before Stable-Baselines3 adds the value of what follows an episode that was cut off.
        cut: Flat index of each such step and the observation after it.
        last: Observations after the last step, shape (rows, size).
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
    """Return a rollout of a file, of the types and shapes of a buffer as it is before collection.

    Raises:
        ValueError: If it does not fit the buffer.
        KeyError: If an array is missing.
    """
    like = copy_rollout(buffer, buffer.rewards, [], buffer.observations[0], np.zeros(buffer.n_envs, dtype=np.bool_), 0)
    cut_off = np.atleast_1d(arrays[f"{prefix}cut_at"]).shape[0]
    like = like._replace(cut_at=zeros_of_length(like.cut_at, cut_off), cut=zeros_of_length(like.cut, cut_off))
    found = KeptRollout(*(checked_finite(arrays, prefix + name, part) for name, part in like._asdict().items()))
    check_within(f"{prefix}cut_at", found.cut_at, 0, found.rewards.size - 1)
    check_within(f"{prefix}update", found.update, 0, np.inf)
    check_actions(prefix, found.masks, found.actions, buffer.mask_dims)
    return found


def check_actions(prefix: str, masks: NDArray[np.uint8], actions: NDArray[np.int32], count: int) -> None:
    """Refuse actions outside 0 to count - 1, or that their masks close.

    Raises:
        ValueError: If there is one.
    """
    check_within(f"{prefix}actions", actions, 0, count - 1)
    byte = np.take_along_axis(masks, actions[..., None] >> 3, axis=-1)[..., 0]
    if not (byte & (128 >> (actions & 7))).all():
        raise ValueError(f"{prefix}actions holds one that is closed in {prefix}masks")


def select_rows(rollout: KeptRollout, rows: NDArray[np.int64]) -> KeptRollout:
    """Return the steps of some environments, whose numbers rise."""
    step, row = np.divmod(rollout.cut_at, rollout.rewards.shape[1])
    mine = np.isin(row, rows)
    return rollout._replace(
        **{name: np.take(getattr(rollout, name), rows, axis=1) for name in PER_STEP},
        last=rollout.last[rows], cut=rollout.cut[mine],
        cut_at=step[mine] * rows.size + np.searchsorted(rows, row[mine]),
    )  # fmt: skip


def flat_samples(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of samples with steps and rows as one axis."""
    return values.reshape(-1, *values.shape[2:])


def unpack_masks(masks: NDArray[np.uint8], actions: int) -> NDArray[np.bool_]:
    """Return packed masks as booleans, shape (..., actions)."""
    return np.unpackbits(masks, axis=-1, count=actions).astype(np.bool_)


def evaluate_samples(
    policy: Any, observations: Floats, masks: NDArray[np.bool_], actions: NDArray[np.int32]
) -> tuple[Floats, Floats]:
    """Return values and log-probabilities of actions under the present policy, each of shape (samples,).

    Args:
        policy: A MaskedPolicy, whose threads are used.
        observations: Shape (samples, size).
        masks: At the time of the decisions, shape (samples, actions).
        actions: Shape (samples,).
    """
    parts = (torch.split(torch.from_numpy(part), EVALUATED_ROWS) for part in (observations, actions, masks))

    def evaluate_chunk(chunk: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():  # a thread has its own setting
            values, log_probability, _ = policy.evaluate_actions(*chunk)
        return values.flatten(), log_probability

    values, log_probability = zip(*policy.pool.map(evaluate_chunk, zip(*parts, strict=True)), strict=True)
    return torch.cat(values).numpy(), torch.cat(log_probability).numpy()


def reevaluated_trajectories(policy: Any, rollout: KeptRollout) -> Trajectories:
    """Return a rollout under the present policy, a MaskedPolicy, and critic, with the masks of the time."""
    masks = unpack_masks(flat_samples(rollout.masks), int(policy.action_space.n))
    shape = rollout.rewards.shape
    found = evaluate_samples(policy, flat_samples(rollout.observations), masks, flat_samples(rollout.actions))
    values, log_probability = (each.reshape(shape) for each in found)
    return _trajectories_of(policy, rollout, log_probability, values)


def collected_trajectories(policy: Any, rollout: KeptRollout) -> Trajectories:
    """Return a rollout under the policy and critic that collected it."""
    return _trajectories_of(policy, rollout, rollout.log_probability, rollout.values)


def _trajectories_of(policy: Any, rollout: KeptRollout, log_probability: Floats, values: Floats) -> Trajectories:
    """Return a rollout with these log-probabilities of its actions, and these values by the critic."""
    ratio = np.exp(log_probability - rollout.log_probability)
    return Trajectories(rollout.rewards, values, next_values(policy, rollout, values), rollout.ended, ratio)


def next_values(policy: Any, rollout: KeptRollout, values: Floats) -> Floats:
    """Return the value after each step, shape (steps, rows); a time limit does not end the value.

    Args:
        policy: Has the critic.
        rollout: Of any age.
        values: Of its observations by the critic, shape (steps, rows).
    """
    with torch.no_grad():
        last = policy.predict_values(torch.from_numpy(rollout.last)).numpy().flatten()
        following: Floats = np.concatenate((values[1:], last[None])) * ~rollout.ended
        if rollout.cut_at.size:
            following.reshape(-1)[rollout.cut_at] = policy.predict_values(torch.from_numpy(rollout.cut)).numpy()[:, 0]
    return following


def weighted_gae(steps: Trajectories, *, gamma: float, gae_lambda: float) -> tuple[Floats, Floats]:
    """Return generalised advantages of pi_k and value targets, each of shape (steps, rows).

    With rho = min(1, c) and delta_t = r_t + gamma V(s_t+1) - V(s_t):
    A_t = delta_t + gamma lambda rho_t+1 A_t+1 up to the episode's end, and the target is V(s_t) + rho_t A_t.

    Source: GePPO (Queeney, Paschalidis and Cassandras, 2021), V-trace form.
    """
    rho: Floats = np.minimum(steps.ratio, 1.0)
    delta = steps.rewards + gamma * steps.next_values - steps.values
    advantages = delta.copy()
    for t in range(len(delta) - 2, -1, -1):
        advantages[t] += gamma * gae_lambda * ~steps.ended[t] * rho[t + 1] * advantages[t + 1]
    return advantages, steps.values + rho * advantages


def vtrace(steps: Trajectories, *, gamma: float, gae_lambda: float) -> tuple[Floats, Floats]:
    """Return V-trace's policy advantages, rho among them, and value targets v, each of shape (steps, rows).

    With rho = min(1, c), delta_t as above and traces lambda rho: v_t = V(s_t) + rho_t delta_t +
    gamma lambda rho_t (v_t+1 - V(s_t+1)) up to the episode's end, and the advantage is
    rho_t (r_t + gamma v_t+1 - V(s_t)), where v is V after the last step.

    Source: IMPALA (Espeholt et al., 2018), sections 4.1 and 4.2, with both bounds 1.
    """
    rho: Floats = np.minimum(steps.ratio, 1.0)
    delta = steps.rewards + gamma * steps.next_values - steps.values
    over: Floats = rho * delta  # v - V
    ahead = np.zeros_like(over)  # v - V of the next step
    for t in range(len(delta) - 2, -1, -1):
        ahead[t] = ~steps.ended[t] * over[t + 1]
        over[t] += gamma * gae_lambda * rho[t] * ahead[t]
    advantages: Floats = rho * (delta + gamma * ahead)
    return advantages, steps.values + over


def standardised_advantages(advantages: Floats, ratio: Floats) -> Floats:
    """Return advantages of samples, shape (samples,), less their mean under pi_k and over their spread there.

    The mean under pi_k is mean(c A) / mean(c): the off-policy mean.
    """
    weight = ratio / ratio.mean()
    centred = advantages - (weight * advantages).mean()
    scaled: Floats = centred / (np.sqrt((weight * centred**2).mean()) + 1e-8)
    return scaled


def geppo_clip(policies: int, clip: float) -> float:
    """Return GePPO's clip for a number of policies that acted equally often: PPO's over the mean of 1 to policies."""
    return clip * 2.0 / (policies + 1)


def geppo_loss(ratio: Tensor, before: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return minus GePPO's objective: pi / mu clipped around c, so that pi stays near pi_k whichever policy acted.

    -mean(min(r A, clip(r, c - eps, c + eps) A)).

    Args:
        ratio: r = pi / mu, shape (samples,).
        before: c, shape (samples,).
        advantages: Of pi_k, shape (samples,).
        clip: eps.
    """
    clipped = torch.maximum(torch.minimum(ratio, before + clip), before - clip)
    loss: Tensor = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    return loss


def effective_sample_share(ratio: Floats) -> float:
    """Return the effective sample size of weights over their number: (sum c)^2 / (n sum c^2), from 0 to 1."""
    return float(ratio.sum(dtype=np.float64) ** 2 / (ratio.size * (ratio.astype(np.float64) ** 2).sum()))


def total_variation(ratio: Floats) -> float:
    """Return an estimate of the mean total variation distance from ratios: half the mean of abs(c - 1)."""
    return float(0.5 * np.abs(ratio - 1.0).mean())


MIN_EFFECTIVE_SHARE = 0.3  # of a rollout's samples; one whose policy is farther away is not used
RATIO_SAMPLES = 4096  # of a dynamic batch, for its figures: to evaluate all would cost a tenth of the time

AdvantageEstimator = Callable[[Trajectories], tuple[Floats, Floats]]  # advantages and targets of the critic


class WeightedRollouts(NamedTuple):
    """Rollouts whose policies are near enough, with what is learned from them; an array for each of the rollouts."""

    rollouts: list[KeptRollout]
    ratio: list[Floats]  # (steps, rows) pi_k / mu
    advantages: list[Floats]  # (steps, rows)
    targets: list[Floats]  # (steps, rows) of the critic


class Replay(BaseCallback):
    """Keeps the last rollouts of a model; the oldest are dropped.

    Args:
        kept: Number of rollouts.
        dynamic: Whether each update gets a random batch of all kept samples, as large as the rollout, in its place.

    Source: SPEC R6.
    """

    def __init__(self, kept: int, *, dynamic: bool) -> None:
        super().__init__()
        self.dynamic = dynamic
        self.rollouts: deque[KeptRollout] = deque(maxlen=kept)
        self.slowing = 1.0  # learning rate over that of the schedule
        self._rewards: list[Floats] = []
        self._cut: list[tuple[int, Floats]] = []

    @property
    def collected(self) -> int:
        """Rollouts so far, with those that were dropped."""
        return int(self.rollouts[-1].update) + 1 if self.rollouts else 0

    def _on_rollout_start(self) -> None:
        self._rewards, self._cut = [], []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        for row, info in enumerate(infos):
            if info.get("TimeLimit.truncated"):
                self._cut.append((len(self._rewards) * len(infos) + row, info["terminal_observation"]))
        self._rewards.append(self.locals["rewards"].astype(np.float32))  # a copy, as SB3 writes into it
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        last, ended = model._last_obs, model._last_episode_starts
        self.rollouts.append(
            copy_rollout(model.rollout_buffer, np.stack(self._rewards), self._cut, last, ended, self.collected)
        )
        if self.dynamic:
            self._put_dynamic_batch(model)

    def update_rng(self) -> np.random.Generator:
        """Return the random numbers of the next update, the same in a run that was interrupted."""
        return np.random.default_rng((int(self.model.seed or 0), self.collected))

    def _put_dynamic_batch(self, model: Any) -> None:
        """Replace the rollout by a random batch of all kept samples, of the same size."""
        buffer, rollouts = model.rollout_buffer, self.rollouts
        samples = buffer.rewards.size
        at = self.update_rng().choice(samples * len(rollouts), samples, replace=False)

        def drawn(name: str) -> NDArray[Any]:
            return gather_samples((getattr(rollout, name) for rollout in rollouts), at)

        flat_samples(buffer.observations)[:] = drawn("observations")
        flat_samples(buffer.action_masks)[:] = unpack_masks(drawn("masks"), buffer.mask_dims)
        flat_samples(buffer.actions)[:, 0] = drawn("actions")
        flat_samples(buffer.log_probs)[:] = drawn("log_probability")
        flat_samples(buffer.values)[:] = drawn("values")
        flat_samples(buffer.advantages)[:] = drawn("advantages")
        buffer.returns = buffer.advantages + buffer.values
        self._record_dynamic_batch(model, at)

    def _record_dynamic_batch(self, model: Any, at: NDArray[np.int64]) -> None:

        def drawn(name: str) -> NDArray[Any]:
            return gather_samples((getattr(rollout, name) for rollout in self.rollouts), at[:RATIO_SAMPLES])

        masks = unpack_masks(drawn("masks"), model.rollout_buffer.mask_dims)
        _, now = evaluate_samples(model.policy, drawn("observations"), masks, drawn("actions"))
        ratio = np.exp(now - drawn("log_probability"))
        ages = np.array([self.collected - 1 - rollout.update for rollout in self.rollouts])
        record_reuse(self.logger, float(ages[at // model.rollout_buffer.rewards.size].mean()), ratio)
        self.logger.record("replay/clip_fraction", float((np.abs(ratio - 1.0) > clip_range_of(model)).mean()))

    def draw_equal_parts(self) -> list[KeptRollout]:
        """Return an equal part of each kept rollout, in all the steps of one; the newest gives the remainder.

        A part has all steps of some environments, which are drawn at random.
        """
        rng, rows = self.update_rng(), self.rollouts[-1].rewards.shape[1]
        share = rows // len(self.rollouts)
        counts = [share] * (len(self.rollouts) - 1)
        counts.append(rows - sum(counts))
        drawn = (np.sort(rng.choice(rows, count, replace=False)) for count in counts)
        return [select_rows(rollout, rows) for rollout, rows in zip(self.rollouts, drawn, strict=True) if rows.size]

    def weight_rollouts(
        self, policy: Any, rollouts: Iterable[KeptRollout], estimator: AdvantageEstimator
    ) -> WeightedRollouts:
        """Return what an update learns from: the rollouts that are near enough, under the present policy and critic.

        1. Evaluate each rollout by the present policy and critic.
        2. Compute the ratios c = pi_k / mu, and drop a rollout whose effective sample size is too small.
        3. Estimate the advantages and the targets of the critic.

        Args:
            policy: A MaskedPolicy; the newest rollout is its own.
            rollouts: That are kept, or parts of these.
            estimator: From trajectories to advantages and targets of the critic.
        """
        found = WeightedRollouts([], [], [], [])
        newest = self.collected - 1
        for rollout in rollouts:
            steps = (
                collected_trajectories(policy, rollout)
                if rollout.update == newest
                else reevaluated_trajectories(policy, rollout)
            )
            if effective_sample_share(steps.ratio) >= MIN_EFFECTIVE_SHARE:
                advantages, targets = estimator(steps)
                found.rollouts.append(rollout)
                found.ratio.append(steps.ratio)
                found.advantages.append(advantages)
                found.targets.append(targets)
        age = np.concatenate([np.full(rollout.rewards.size, newest - rollout.update) for rollout in found.rollouts])
        record_reuse(self.logger, float(age.mean()), np.concatenate([flat_samples(ratio) for ratio in found.ratio]))
        return found

    def snapshot_arrays(self) -> Arrays:
        """Return all that is kept, for a snapshot."""
        arrays: Arrays = {"replay/slowing": np.array(self.slowing)}
        for i, rollout in enumerate(self.rollouts):
            arrays |= {f"replay/{i}/{name}": np.asarray(value) for name, value in rollout._asdict().items()}
        return arrays

    def restore(self, arrays: Arrays, buffer: MaskableRolloutBuffer) -> None:
        """Load what `snapshot_arrays` returned.

        Args:
            arrays: Read from a file.
            buffer: Of the model, as it is before collection.

        Raises:
            CheckpointError: If the snapshot has no replay.
            ValueError: If rollouts of the model could not have left it.
            KeyError: If an array is missing.
        """
        if "replay/slowing" not in arrays:
            raise CheckpointError("the snapshot holds no replay; remove its folder to start again")
        self.slowing = float(checked_finite(arrays, "replay/slowing", np.array(1.0)))
        if not 0.0 < self.slowing <= 1.0:
            raise ValueError(f"replay/slowing is {self.slowing:g}, expected above 0 and at most 1")
        assert self.rollouts.maxlen is not None
        prefixes = (f"replay/{i}/" for i in range(self.rollouts.maxlen) if f"replay/{i}/update" in arrays)
        self.rollouts.clear()
        self.rollouts.extend(sound_rollout(arrays, prefix, buffer) for prefix in prefixes)


def record_reuse(logger: Logger, age: float, ratio: Floats) -> None:
    """Record the mean age of an update's samples, and how far the policy is from those that acted."""
    logger.record("replay/age", age)
    logger.record("replay/effective_sample_size", effective_sample_share(ratio))
    logger.record("replay/total_variation", total_variation(ratio))


def clip_range_of(model: Any) -> float:
    """Return the clip of a MaskablePPO at this point of its run."""
    return float(model.clip_range(model._current_progress_remaining))


def gather_samples(arrays: Iterable[NDArray[Any]], at: NDArray[np.int64]) -> NDArray[Any]:
    """Return samples by their indices in the concatenation of several rollouts, shape (len(at), ...)."""
    parts = [flat_samples(array) for array in arrays]
    samples = len(parts[0])
    found = np.empty((at.size, *parts[0].shape[1:]), dtype=parts[0].dtype)
    for i, part in enumerate(parts):
        where = np.flatnonzero(at // samples == i)
        found[where] = part[at[where] - i * samples]
    return found


class Samples(NamedTuple):
    """Steps of any environments as they were taken, in the order of time. Masks are packed, eight actions a byte."""

    observations: Floats  # (samples, size)
    masks: NDArray[np.uint8]  # (samples, bytes)
    actions: NDArray[np.int32]  # (samples,)
    log_probability: Floats  # (samples,) by the policy that acted
    values: Floats  # (samples,) by the critic of the time
    advantages: Floats  # (samples,)
    update: NDArray[np.int64]  # (samples,) number of the rollout, from 0

    def select(self, at: NDArray[np.int64]) -> "Samples":
        """Return some of the samples."""
        parts: Any = (part[at] for part in self)
        return Samples(*parts)

    def followed_by(self, newer: "Samples", limit: int) -> "Samples":
        """Return the last `limit` samples of these and newer ones: the oldest are dropped."""
        kept = max(0, limit - len(newer.actions))
        first = max(0, len(self.actions) - kept)  # that stays; cut before they are joined, which takes less memory
        pairs: Any = zip(self, newer, strict=True)
        return Samples(*(np.concatenate((old[first:], new[-limit:])) for old, new in pairs))


def learning_bytes(size: int, actions: int, *, at_once: bool) -> int:
    """Return the memory that each sample takes when an update learns from all of a buffer.

    The sample is held, drawn, and copied into a rollout buffer with six more numbers. There the masks take four bytes
    for each action, and two more while they are unpacked. An update that learns from all samples at once then has them
    copied twice, with five of the numbers, in an order of its own.

    Args:
        size: Of an observation.
        actions: Number of actions.
        at_once: Whether all is one minibatch, as for A2C.
    """
    filled = 2 * sample_bytes(size, actions) + 4 * size + 4 * actions + 6 * 4
    return filled + (2 * (4 * size + 4 * actions + 5 * 4) + 8 if at_once else 2 * actions)


class SampleReplay(BaseCallback):
    """A buffer of samples. Each update learns from samples drawn at random from it, in place of the rollout.

    A scheduling period is the placing of one workload: an episode. An update gets the number of samples of the periods
    that ended since the last one, or all samples of the buffer; none if no period ended.

    Args:
        limit: Samples that the buffer holds; when it is full the oldest are dropped.
        takes_all: Whether updates get all samples of the buffer.

    Source: SPEC R6, both readings.
    """

    def __init__(self, limit: int, *, takes_all: bool) -> None:
        super().__init__()
        self.limit, self.takes_all = limit, takes_all
        self.samples: Samples | None = None
        self.collected = 0  # rollouts
        self.period = 0  # samples of the periods that ended in the last rollout
        self._open_steps = np.zeros(0, dtype=np.int64)  # (rows,) of the periods that are not over

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        buffer, ended = model.rollout_buffer, model._last_episode_starts
        new = samples_of(buffer, self.collected)
        self.samples = (self.samples or new.select(np.zeros(0, dtype=np.int64))).followed_by(new, self.limit)
        ends = np.concatenate((buffer.episode_starts[1:] > 0, ended[None] > 0))
        if not self._open_steps.size:
            self._open_steps = np.zeros(ends.shape[1], dtype=np.int64)
        self.period, self._open_steps = count_ended_samples(ends, self._open_steps)
        self.collected += 1

    def draw_batch(self, minibatch: int) -> Samples | None:
        """Return what the update learns from, None if no period has ended.

        Args:
            minibatch: Samples that are learned from at once. A batch that would leave a single one over has one sample
                less: advantages are divided by their spread, and one sample has none.
        """
        assert self.samples is not None
        held = len(self.samples.actions)
        size = held if self.takes_all else min(self.period, held)
        size -= size % minibatch == 1
        if self.period == 0 or size == 0:
            return None
        rng = np.random.default_rng((int(self.model.seed or 0), self.collected))
        return self.samples.select(rng.choice(held, size, replace=False))

    def record_batch(self, drawn: Samples) -> None:
        """Record the number and the age of an update's samples, and how far the policy is from those that acted."""
        model: Any = self.model
        some = drawn.select(np.arange(min(RATIO_SAMPLES, len(drawn.actions))))
        masks = unpack_masks(some.masks, model.rollout_buffer.mask_dims)
        ratio = np.exp(evaluate_samples(model.policy, some.observations, masks, some.actions)[1] - some.log_probability)
        record_reuse(self.logger, float((self.collected - 1 - drawn.update).mean()), ratio)
        self.logger.record("replay/batch", len(drawn.actions))
        self.logger.record("replay/clip_fraction", float((np.abs(ratio - 1.0) > clip_range_of(model)).mean()))

    def snapshot_arrays(self) -> Arrays:
        """Return all that is kept, for a snapshot."""
        counts = {"replay/collected": np.array(self.collected), "replay/open_steps": self._open_steps}
        samples = {} if self.samples is None else self.samples._asdict()
        return counts | {f"replay/{name}": np.asarray(value) for name, value in samples.items()}

    def restore(self, arrays: Arrays, buffer: MaskableRolloutBuffer) -> None:
        """Load what `snapshot_arrays` returned.

        Args:
            arrays: Read from a file.
            buffer: Of the model, as it is before collection.

        Raises:
            CheckpointError: If the snapshot has no replay.
            ValueError: If rollouts of the model could not have left it.
            KeyError: If an array is missing.
        """
        if "replay/collected" not in arrays:
            raise CheckpointError("the snapshot holds no replay; remove its folder to start again")
        self.collected = int(checked_counts(arrays, "replay/collected", np.zeros((), dtype=np.int64)))
        if self.collected:
            rows = np.zeros(buffer.n_envs, dtype=np.int64)
            self._open_steps = checked_counts(arrays, "replay/open_steps", rows).copy()
            check_within("replay/open_steps", self._open_steps, 0, self.collected * buffer.buffer_size)
            self.samples = checked_record(arrays, "replay/", samples_of(buffer, 0))
            check_within("replay/samples", np.array([len(self.samples.actions)]), 1, self.limit)
            check_within("replay/update", self.samples.update, 0, self.collected - 1)
            check_actions("replay/", self.samples.masks, self.samples.actions, buffer.mask_dims)


def samples_of(buffer: Any, update: int) -> Samples:
    """Return a copy of a full rollout buffer as samples in the order of time."""
    count = buffer.rewards.size
    return Samples(
        observations=flat_samples(buffer.observations).copy(),
        masks=np.packbits(flat_samples(buffer.action_masks) > 0, axis=-1),
        actions=flat_samples(buffer.actions)[:, 0].astype(np.int32),
        log_probability=flat_samples(buffer.log_probs).copy(),
        values=flat_samples(buffer.values).copy(),
        advantages=flat_samples(buffer.advantages).copy(),
        update=np.full(count, update),
    )


def count_ended_samples(ends: NDArray[np.bool_], open_steps: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return the samples of all episodes that ended, and the steps of those that are not over, shape (rows,).

    Args:
        ends: Whether a step ended an episode, shape (steps, rows).
        open_steps: Steps of the running episodes before these, shape (rows,).
    """
    steps = ends.shape[0]
    last = np.where(ends.any(axis=0), steps - 1 - np.argmax(ends[::-1], axis=0), -1)  # the last end of each row
    ended = np.where(last >= 0, open_steps + last + 1, 0)
    return int(ended.sum()), np.where(last >= 0, 0, open_steps) + steps - 1 - last


def filled_buffer(like: Any, drawn: Samples) -> MaskableRolloutBuffer:
    """Return a rollout buffer that holds drawn samples and nothing else."""
    size = len(drawn.actions)
    buffer = MaskableRolloutBuffer(
        size, like.observation_space, like.action_space, like.device, like.gae_lambda, like.gamma, n_envs=1
    )
    flat_samples(buffer.observations)[:] = drawn.observations
    flat_samples(buffer.action_masks)[:] = unpack_masks(drawn.masks, buffer.mask_dims)
    flat_samples(buffer.actions)[:, 0] = drawn.actions
    flat_samples(buffer.log_probs)[:] = drawn.log_probability
    flat_samples(buffer.values)[:] = drawn.values
    flat_samples(buffer.advantages)[:] = drawn.advantages
    buffer.returns = buffer.advantages + buffer.values
    buffer.full, buffer.pos = True, size
    return buffer
