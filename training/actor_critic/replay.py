"""The last rollouts, kept for updates to come, and a dynamic batch of them (docs/training.md, Replay)."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from ...cluster.files.errors import CheckpointError
from ..snapshot import Arrays, finite
from .off_policy import Floats, Trajectories, effective_share, variation
from .rollouts import KeptRollout, flat, judge, judged, kept_rollout, of_rows, own, sound_rollout, unpacked

LEAST_EFFECTIVE = 0.3  # share of a rollout's samples; one whose policy is farther away is left out
LOOKED_AT = 4096  # samples of a dynamic batch that its figures come from: to judge all would cost a tenth of the time

Estimate = Callable[[Trajectories], tuple[Floats, Floats]]


class Weighed(NamedTuple):
    """Rollouts whose policies are near enough, with what is learned from them; an array for each of the rollouts."""

    rollouts: list[KeptRollout]
    ratio: list[Floats]  # (steps, rows) pi_k / mu
    advantages: list[Floats]  # (steps, rows)
    targets: list[Floats]  # (steps, rows) of the critic


class Replay(BaseCallback):
    """Keeps the last rollouts of a model; the oldest fall out.

    Args:
        kept: How many.
        dynamic: Whether each update gets a random batch of all that is kept, as large as the rollout, in its place.

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
        """Rollouts so far, those that fell out included."""
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
            kept_rollout(model.rollout_buffer, np.stack(self._rewards), self._cut, last, ended, self.collected)
        )
        if self.dynamic:
            self._put_dynamic_batch(model)

    def draws(self) -> np.random.Generator:
        """Return the random numbers of the update to come; a run that was interrupted has the same."""
        return np.random.default_rng((int(self.model.seed or 0), self.collected))

    def _put_dynamic_batch(self, model: Any) -> None:
        """Put a random batch of all samples in the place of the rollout, which has as many."""
        buffer, rollouts = model.rollout_buffer, self.rollouts
        samples = buffer.rewards.size
        at = self.draws().choice(samples * len(rollouts), samples, replace=False)
        flat(buffer.observations)[:] = gathered((it.observations for it in rollouts), at)
        flat(buffer.action_masks)[:] = unpacked(gathered((it.masks for it in rollouts), at), buffer.mask_dims)
        flat(buffer.actions)[:, 0] = gathered((it.actions for it in rollouts), at)
        flat(buffer.log_probs)[:] = gathered((it.log_probability for it in rollouts), at)
        flat(buffer.values)[:] = gathered((it.values for it in rollouts), at)
        flat(buffer.advantages)[:] = gathered((it.advantages for it in rollouts), at)
        buffer.returns = buffer.advantages + buffer.values
        self._note_dynamic(model, at)

    def _note_dynamic(self, model: Any, at: NDArray[np.int64]) -> None:
        some = at[:LOOKED_AT]
        masks = unpacked(gathered((it.masks for it in self.rollouts), some), model.rollout_buffer.mask_dims)
        observations = gathered((it.observations for it in self.rollouts), some)
        _, now = judge(model.policy, observations, masks, gathered((it.actions for it in self.rollouts), some))
        ratio = np.exp(now - gathered((it.log_probability for it in self.rollouts), some))
        ages = np.array([self.collected - 1 - it.update for it in self.rollouts])
        note(self.logger, float(ages[at // model.rollout_buffer.rewards.size].mean()), ratio)
        self.logger.record("replay/clip_fraction", float((np.abs(ratio - 1.0) > clip_range_of(model)).mean()))

    def stretches(self) -> list[KeptRollout]:
        """Return as many steps as a rollout has, of environments drawn at random; of the newest the remainder."""
        rng, rows = self.draws(), self.rollouts[-1].rewards.shape[1]
        share = rows // len(self.rollouts)
        counts = [share] * (len(self.rollouts) - 1)
        counts.append(rows - sum(counts))
        drawn = (np.sort(rng.choice(rows, count, replace=False)) for count in counts)
        return [of_rows(it, some) for it, some in zip(self.rollouts, drawn, strict=True) if some.size]

    def weighed(self, policy: Any, rollouts: Iterable[KeptRollout], estimate: Estimate) -> Weighed:
        """Return what an update learns from: rollouts near enough, judged by the present policy and critic.

        Args:
            policy: A MaskedPolicy; the newest rollout is its own.
            rollouts: That are kept, or parts of these.
            estimate: From trajectories to advantages and targets of the critic.
        """
        found = Weighed([], [], [], [])
        newest = self.collected - 1
        for rollout in rollouts:
            now = own(policy, rollout) if rollout.update == newest else judged(policy, rollout)
            ratio = np.exp(now.log_probability - rollout.log_probability)
            if effective_share(ratio) >= LEAST_EFFECTIVE:
                steps = Trajectories(rollout.rewards, now.values, now.next_values, rollout.ended, ratio)
                advantages, targets = estimate(steps)
                found.rollouts.append(rollout)
                found.ratio.append(ratio)
                found.advantages.append(advantages)
                found.targets.append(targets)
        ages = [np.full(it.rewards.size, newest - it.update) for it in found.rollouts]
        note(self.logger, float(np.concatenate(ages).mean()), np.concatenate([flat(each) for each in found.ratio]))
        return found

    def arrays(self) -> Arrays:
        """Return all that is kept, for a snapshot."""
        arrays: Arrays = {"replay/slowing": np.array(self.slowing)}
        for i, rollout in enumerate(self.rollouts):
            arrays |= {f"replay/{i}/{name}": np.asarray(value) for name, value in rollout._asdict().items()}
        return arrays

    def restore(self, arrays: Arrays, buffer: MaskableRolloutBuffer) -> None:
        """Take up what `arrays` gave.

        Args:
            arrays: Read from a file.
            buffer: Of the model, as it is before collection.

        Raises:
            CheckpointError: If it is not there.
            ValueError: If rollouts of the model could not have left it.
            KeyError: If a part of it is not there.
        """
        if "replay/slowing" not in arrays:
            raise CheckpointError("the snapshot holds no replay; remove its folder to begin anew")
        self.slowing = float(finite(arrays, "replay/slowing", np.array(1.0)))
        if not 0.0 < self.slowing <= 1.0:
            raise ValueError(f"replay/slowing is {self.slowing:g}, expected above 0 and at most 1")
        assert self.rollouts.maxlen is not None
        there = (f"replay/{i}/" for i in range(self.rollouts.maxlen) if f"replay/{i}/update" in arrays)
        self.rollouts.clear()
        self.rollouts.extend(sound_rollout(arrays, prefix, buffer) for prefix in there)


def note(logger: Logger, age: float, ratio: Floats) -> None:
    """Record how old the samples of an update are and how far the policy is from those that acted."""
    logger.record("replay/age", age)
    logger.record("replay/effective_sample_size", effective_share(ratio))
    logger.record("replay/total_variation", variation(ratio))


def clip_range_of(model: Any) -> float:
    """Return the clip of a MaskablePPO as its run stands."""
    return float(model.clip_range(model._current_progress_remaining))


def gathered(arrays: Iterable[NDArray[Any]], at: NDArray[np.int64]) -> NDArray[Any]:
    """Return samples of several rollouts, as if their arrays stood one behind the other, shape (len(at), ...)."""
    parts = [flat(array) for array in arrays]
    samples = len(parts[0])
    found = np.empty((at.size, *parts[0].shape[1:]), dtype=parts[0].dtype)
    for i, part in enumerate(parts):
        where = np.flatnonzero(at // samples == i)
        found[where] = part[at[where] - i * samples]
    return found
