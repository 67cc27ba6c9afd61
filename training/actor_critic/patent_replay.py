"""The patent's replay to the letter (SPEC R6): nothing here is needed but for `--replay literal` and `literal-all`.

The buffer holds samples, of which the oldest are dropped. A batch has the number of samples of the scheduling periods
that ended, or is all of the buffer. Samples are reused without a correction for the policy that acted; replay.py has
what makes reuse sound.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from ...cluster.files.errors import CheckpointError
from ..snapshot import Arrays, counts, records, within
from .replay import (
    RATIO_SAMPLES,
    Floats,
    check_actions,
    clip_range_of,
    evaluate,
    flat,
    record_reuse,
    sample_bytes,
    unpacked,
)


class Samples(NamedTuple):
    """Steps of any environments as they were taken, in the order of time. Masks are packed, eight actions a byte."""

    observations: Floats  # (samples, size)
    masks: NDArray[np.uint8]  # (samples, bytes)
    actions: NDArray[np.int32]  # (samples,)
    log_probability: Floats  # (samples,) by the policy that acted
    values: Floats  # (samples,) by the critic of the time
    advantages: Floats  # (samples,)
    update: NDArray[np.int64]  # (samples,) number of the rollout, from 0

    def taken(self, at: NDArray[np.int64]) -> "Samples":
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
        self.samples = (self.samples or new.taken(np.zeros(0, dtype=np.int64))).followed_by(new, self.limit)
        ends = np.concatenate((buffer.episode_starts[1:] > 0, ended[None] > 0))
        if not self._open_steps.size:
            self._open_steps = np.zeros(ends.shape[1], dtype=np.int64)
        self.period, self._open_steps = ended_samples(ends, self._open_steps)
        self.collected += 1

    def batch(self, minibatch: int) -> Samples | None:
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
        return self.samples.taken(rng.choice(held, size, replace=False))

    def record_batch(self, drawn: Samples) -> None:
        """Record the number and the age of an update's samples, and how far the policy is from those that acted."""
        model: Any = self.model
        some = drawn.taken(np.arange(min(RATIO_SAMPLES, len(drawn.actions))))
        masks = unpacked(some.masks, model.rollout_buffer.mask_dims)
        ratio = np.exp(evaluate(model.policy, some.observations, masks, some.actions)[1] - some.log_probability)
        record_reuse(self.logger, float((self.collected - 1 - drawn.update).mean()), ratio)
        self.logger.record("replay/batch", len(drawn.actions))
        self.logger.record("replay/clip_fraction", float((np.abs(ratio - 1.0) > clip_range_of(model)).mean()))

    def arrays(self) -> Arrays:
        """Return all that is kept, for a snapshot."""
        counts = {"replay/collected": np.array(self.collected), "replay/open_steps": self._open_steps}
        samples = {} if self.samples is None else self.samples._asdict()
        return counts | {f"replay/{name}": np.asarray(value) for name, value in samples.items()}

    def restore(self, arrays: Arrays, buffer: MaskableRolloutBuffer) -> None:
        """Load what `arrays` returned.

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
        self.collected = int(counts(arrays, "replay/collected", np.zeros((), dtype=np.int64)))
        if self.collected:
            rows = np.zeros(buffer.n_envs, dtype=np.int64)
            self._open_steps = counts(arrays, "replay/open_steps", rows).copy()
            within("replay/open_steps", self._open_steps, 0, self.collected * buffer.buffer_size)
            self.samples = records(arrays, "replay/", samples_of(buffer, 0))
            within("replay/samples", np.array([len(self.samples.actions)]), 1, self.limit)
            within("replay/update", self.samples.update, 0, self.collected - 1)
            check_actions("replay/", self.samples.masks, self.samples.actions, buffer.mask_dims)


def samples_of(buffer: Any, update: int) -> Samples:
    """Return a copy of a full rollout buffer as samples in the order of time."""
    count = buffer.rewards.size
    return Samples(
        observations=flat(buffer.observations).copy(),
        masks=np.packbits(flat(buffer.action_masks) > 0, axis=-1),
        actions=flat(buffer.actions)[:, 0].astype(np.int32),
        log_probability=flat(buffer.log_probs).copy(),
        values=flat(buffer.values).copy(),
        advantages=flat(buffer.advantages).copy(),
        update=np.full(count, update),
    )


def ended_samples(ends: NDArray[np.bool_], open_steps: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return the samples of all episodes that ended, and the steps of those that are not over, shape (rows,).

    Args:
        ends: Whether a step ended an episode, shape (steps, rows).
        open_steps: Steps of the running episodes before these, shape (rows,).
    """
    steps = ends.shape[0]
    last = np.where(ends.any(axis=0), steps - 1 - np.argmax(ends[::-1], axis=0), -1)  # the last end of each row
    ended = np.where(last >= 0, open_steps + last + 1, 0)
    return int(ended.sum()), np.where(last >= 0, 0, open_steps) + steps - 1 - last


def filled(own: Any, drawn: Samples) -> MaskableRolloutBuffer:
    """Return a rollout buffer that holds drawn samples and nothing else."""
    size = len(drawn.actions)
    buffer = MaskableRolloutBuffer(
        size, own.observation_space, own.action_space, own.device, own.gae_lambda, own.gamma, n_envs=1
    )
    flat(buffer.observations)[:] = drawn.observations
    flat(buffer.action_masks)[:] = unpacked(drawn.masks, buffer.mask_dims)
    flat(buffer.actions)[:, 0] = drawn.actions
    flat(buffer.log_probs)[:] = drawn.log_probability
    flat(buffer.values)[:] = drawn.values
    flat(buffer.advantages)[:] = drawn.advantages
    buffer.returns = buffer.advantages + buffer.values
    buffer.full, buffer.pos = True, size
    return buffer
