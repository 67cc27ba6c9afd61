"""Masked PPO on the batched environment, with rollouts used again by generalised PPO (GePPO).

Source: Queeney, Paschalidis and Cassandras, Generalized Proximal Policy Optimization with Sample Reuse (2021); the
formulas stand in docs/training.md, Replay.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import explained_variance, safe_mean
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional

from ...agents.learned.checkpoint import layout_of
from ...agents.learned.network import Network
from ...agents.networks.sb3_policy import MaskedPolicy
from ...cluster.files.errors import InputError
from ...cluster.model.problem import Problem
from ...envs.batch import View
from ...envs.sb3 import PlacementVecEnv
from ..initial import actor_critic_of
from ..run_folder import RunFolder
from ..snapshot import SNAPSHOT, Arrays, load_snapshot, save_snapshot
from .a2c import RMSPROP, MaskableA2C, VtraceA2C
from .patent_replay import SampleA2C, SamplePPO, SampleReplay, learning_bytes
from .replay import (
    Replay,
    Weighed,
    clip_of,
    clip_range_of,
    gathered,
    geppo_loss,
    sample_bytes,
    standardised,
    unpacked,
    weighted_gae,
)

SLOWER = 1.03  # the learning rate is divided by it when an update went too far


class GePPO(MaskablePPO):
    """MaskablePPO whose update draws on all rollouts of `replay`, as many samples as PPO would use."""

    replay: Replay

    def train(self) -> None:
        """Learn from the kept rollouts: as many minibatches as PPO has, each sample at most once if there are enough.

        Source: SPEC R6, made sound.
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for group in self.policy.optimizer.param_groups:
            group["lr"] *= self.replay.slowing
        estimate = partial(weighted_gae, gamma=self.gamma, gae_lambda=self.gae_lambda)
        weighed = self.replay.weighed(self.policy, self.replay.rollouts, estimate)
        clip = clip_of(len(weighed.rollouts), clip_range_of(self))
        shape = np.stack(weighed.ratio).shape
        ratio = np.concatenate(weighed.ratio).ravel()
        advantages = standardised(np.concatenate(weighed.advantages).ravel(), ratio)
        figures = defaultdict(list)
        for at in self._minibatches(ratio.size):
            for name, value in self._step(weighed, advantages.reshape(shape), at, clip).items():
                figures[name].append(value)
        self._n_updates += self.n_epochs
        self._conclude(figures, clip)

    def _minibatches(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """Yield indices of so many samples, in all as many as PPO's epochs over one rollout; none twice before all."""
        assert self.batch_size is not None
        rng, left = self.replay.draws(), self.n_epochs * self.rollout_buffer.rewards.size
        while left > 0:
            order = rng.permutation(samples)[:left]
            yield from np.split(order, range(self.batch_size, order.size, self.batch_size))
            left -= order.size

    def _step(
        self, weighed: Weighed, advantages: NDArray[np.float32], at: NDArray[np.int64], clip: float
    ) -> dict[str, float]:
        """Take a step of the optimiser on a minibatch and return its figures."""

        def tensor(arrays: Any) -> Tensor:
            return torch.from_numpy(gathered(arrays, at))

        rollouts = weighed.rollouts
        masks = unpacked(gathered((it.masks for it in rollouts), at), self.rollout_buffer.mask_dims)
        values, log_probability, entropy = self.policy.evaluate_actions(
            tensor(it.observations for it in rollouts),
            tensor(it.actions for it in rollouts),
            action_masks=torch.from_numpy(masks),
        )
        assert entropy is not None
        ratio = (log_probability - tensor(it.log_probability for it in rollouts)).exp()
        before = tensor(weighed.ratio)
        policy_loss = geppo_loss(ratio, before, tensor(advantages), clip)
        value_loss = functional.mse_loss(values.flatten(), tensor(weighed.targets))
        entropy_loss = -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        with torch.no_grad():
            step = ratio / before
            return {
                "loss": loss.item(), "policy_gradient_loss": policy_loss.item(), "value_loss": value_loss.item(),
                "entropy_loss": entropy_loss.item(), "approx_kl": (step - 1.0 - step.log()).mean().item(),
                "clip_fraction": ((ratio - before).abs() > clip).float().mean().item(),
                "variation": 0.5 * (ratio - before).abs().mean().item(),
            }  # fmt: skip

    def _conclude(self, figures: dict[str, list[float]], clip: float) -> None:
        """Slow down if the update went too far by its last minibatch, and record its figures."""
        variation = figures.pop("variation")[-1]
        if variation > clip / 2.0:
            self.replay.slowing /= SLOWER
        record = self.logger.record
        record("train/loss", figures.pop("loss")[-1])
        for name, values in figures.items():
            record(f"train/{name}", float(np.mean(values)))
        newest = self.replay.rollouts[-1]
        returns = newest.advantages + newest.values
        record("train/explained_variance", explained_variance(newest.values.ravel(), returns.ravel()))
        record("train/clip_range", clip)
        record("train/learning_rate", self.policy.optimizer.param_groups[0]["lr"])
        record("replay/step_variation", variation)
        record("replay/clip_fraction", float(np.mean(figures["clip_fraction"])))


NEVER = 1_000_000_000  # updates between Stable-Baselines3's own lines: metrics are written by the callback
MOST_ROLLOUT_BYTES = MOST_REPLAY_BYTES = 8 * 2**30
MODELS: dict[tuple[str, str], type[MaskablePPO]] = {
    ("ppo", "off"): MaskablePPO,
    ("ppo", "dynamic"): MaskablePPO,
    ("ppo", "literal"): SamplePPO,
    ("ppo", "literal-all"): SamplePPO,
    ("ppo", "geppo"): GePPO,
    ("a2c", "off"): MaskableA2C,
    ("a2c", "dynamic"): MaskableA2C,
    ("a2c", "literal"): SampleA2C,
    ("a2c", "literal-all"): SampleA2C,
    ("a2c", "vtrace"): VtraceA2C,
}


def learn_by_ppo(problem: Problem, run_folder: RunFolder) -> int:
    """Train by PPO or A2C until the run's steps are done or it is interrupted; return the steps.

    Raises:
        InputError: If the replay would take too much memory.
    """
    # Checks of every tensor cost a sixth of the time; masks and shapes are asserted where they arise.
    Distribution.set_default_validate_args(value=False)
    config, snapshot = run_folder.config, run_folder.path / SNAPSHOT
    view = View(config.action, config.observation, config.reward, config.random_runs)
    env = PlacementVecEnv(problem, view, config.hyperparameters.rows)
    _check_rollout(run_folder, env)
    model = _model(run_folder, env)
    # A run of seed s begins with scenario s, whatever its model makes of the seed.
    env.set_options([{"scenario": (config.seed + row) % env.batch.scenarios} for row in range(env.num_envs)])
    model.set_logger(run_folder.logger)
    replay = _replay(run_folder, env, model)
    if snapshot.exists():
        model._last_obs = env.reset()
        restore = partial(replay.restore, buffer=model.rollout_buffer) if replay else _nothing
        load_snapshot(snapshot, model, env, restore)
    left = config.steps - model.num_timesteps
    if left > 0:
        watch = _Watch(run_folder, env, replay)
        callbacks: list[BaseCallback] = [replay, watch] if replay else [watch]
        with suppress(_Stop):
            model.learn(left, callback=callbacks, reset_num_timesteps=model.num_timesteps == 0, log_interval=NEVER)
        watch.conclude()
    return int(model.num_timesteps)


def falling(start: float, steps: int, rollout: int) -> Callable[[float], float]:
    """Return the learning rate of an update by the share of the run's steps that are left after its rollout.

    It falls linearly from `start` to 0 at the last step. Rollouts are whole, so the last one may end beyond that, with
    a share below 0: the rate is 0 there. A run of less than two rollouts falls over two, for else it would learn
    nothing.

    Args:
        start: Rate at the first step.
        steps: Of the whole run, in all its sessions.
        rollout: Steps between two updates, of all environments together.
    """
    unasked = 1.0 - min(1.0, steps / (2.0 * rollout))  # share of two rollouts that the run does not ask for

    def rate(left: float) -> float:
        return start * max(0.0, left + (1.0 - left) * unasked)

    return rate


def _model(run_folder: RunFolder, env: PlacementVecEnv) -> MaskablePPO:
    config = run_folder.config
    parameters = config.hyperparameters
    policy: dict[str, Any] = {
        "network": config.network,
        "layout": layout_of(run_folder.schema),
        "threads": config.threads,
        "initial": actor_critic_of(config, run_folder.schema),
    }
    return MODELS[config.algorithm, config.replay](
        MaskedPolicy,
        env,
        learning_rate=falling(parameters.learning_rate, config.steps, parameters.rows * parameters.steps),
        n_steps=parameters.steps,
        batch_size=parameters.minibatch,
        n_epochs=parameters.epochs,
        gamma=1.0,
        gae_lambda=parameters.gae_lambda,
        clip_range=parameters.clip,
        ent_coef=parameters.entropy,
        vf_coef=parameters.value,
        policy_kwargs=policy | (RMSPROP if config.algorithm == "a2c" else {}),
        seed=config.seed,
        device="cpu",
    )


def _check_rollout(run_folder: RunFolder, env: PlacementVecEnv) -> None:
    """Refuse rollouts that take too much memory: of each sample what is seen, the masks and six numbers, in floats."""
    parameters = run_folder.config.hyperparameters
    samples = parameters.rows * parameters.steps
    taken = samples * 4 * (env.batch.observations.shape[1] + env.batch.actions + 6)
    if taken > MOST_ROLLOUT_BYTES:
        raise InputError(
            f"a rollout of {samples:,} samples would take {taken / 2**30:.1f} GiB of memory, more than 8",
            "take fewer environments, or a smaller observation", field="--environments",
        )  # fmt: skip


def _replay(run_folder: RunFolder, env: PlacementVecEnv, model: MaskablePPO) -> Replay | SampleReplay | None:
    """Return what keeps the rollouts, none if the run learns without replay."""
    config, parameters = run_folder.config, run_folder.config.hyperparameters
    if config.replay == "off":
        return None
    samples = config.buffer or parameters.kept * parameters.rows * parameters.steps
    sizes = env.batch.observations.shape[1], env.batch.actions
    is_literal = isinstance(model, SamplePPO | SampleA2C)
    is_whole = isinstance(model, SampleA2C)
    taken = samples * (learning_bytes(*sizes, at_once=is_whole) if is_literal else sample_bytes(*sizes))
    if taken > MOST_REPLAY_BYTES:
        raise InputError(
            f"replay of {samples:,} samples would take {taken / 2**30:.1f} GiB of memory, more than 8",
            "take a smaller observation or buffer, or leave replay off", field="--replay",
        )  # fmt: skip
    if isinstance(model, SamplePPO | SampleA2C):
        model.replay = SampleReplay(samples, takes_all=config.replay == "literal-all")
        return model.replay
    replay = Replay(parameters.kept, dynamic=config.replay == "dynamic")
    if isinstance(model, GePPO | VtraceA2C):
        model.replay = replay
    return replay


def _nothing(arrays: Arrays) -> None:
    del arrays


class _Stop(Exception):  # noqa: N818 (it is no error)
    """Ends learning between two updates."""


class _Watch(BaseCallback):
    """Has the run kept between updates, and stops it when it is interrupted."""

    def __init__(self, run_folder: RunFolder, env: PlacementVecEnv, replay: Replay | SampleReplay | None) -> None:
        super().__init__()
        self.run_folder, self.env, self.replay = run_folder, env, replay
        self._began_at = 0
        self._episodes: list[dict[str, float]] = []

    def _on_training_start(self) -> None:
        self._began_at = self.num_timesteps
        self.run_folder.begin(self.num_timesteps)

    def _on_step(self) -> bool:
        self._episodes += [info["episode"] for info in self.locals["infos"] if info]
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == self._began_at:
            return
        self._record_episodes()
        if self.run_folder.is_due(self.num_timesteps):
            self._validate()
        self.run_folder.note(self.num_timesteps)
        if self.run_folder.interrupted:
            raise _Stop

    def _record_episodes(self) -> None:
        if self._episodes:
            for name, (label, unit) in EPISODE.items():
                self.logger.record(f"rollout/{label}", float(np.mean([it[name] for it in self._episodes])) / unit)
        self._episodes.clear()
        if self.model.ep_info_buffer:  # Stable-Baselines3's own figures, of its last 100 episodes
            for name, key in (("ep_rew_mean", "r"), ("ep_len_mean", "l")):
                self.logger.record(f"rollout/{name}", safe_mean([it[key] for it in self.model.ep_info_buffer]))

    def _validate(self, *, for_best: bool = True) -> None:
        network = self.model.policy.network
        assert isinstance(network, Network)
        assert isinstance(self.model, MaskablePPO)
        self.run_folder.validate(network, self.num_timesteps, for_best=for_best)
        self.model.policy.set_training_mode(True)
        more = self.replay.arrays() if self.replay else {}
        save_snapshot(self.run_folder.path / SNAPSHOT, self.model, self.env, more)

    def conclude(self) -> None:
        """Validate and keep the run as it stands, between two updates."""
        self._record_episodes()
        # A stop is no validation that an uninterrupted run would have had.
        self._validate(for_best=self.num_timesteps >= self.run_folder.config.steps)
        self.run_folder.note(self.num_timesteps)


# Figures of an episode: name in TensorBoard (docs/training.md) and unit
EPISODE = {
    "makespan_s": ("makespan_h", 3600.0),
    "mean_jct_s": ("mean_jct_h", 3600.0),
    "lost_gpu_s": ("lost_gpu_h", 3600.0),
    "useful_utilisation": ("useful_utilisation", 1.0),
    "restarts": ("restarts", 1.0),
    "r": ("return", 1.0),
}
