"""Masked PPO and A2C on the batched environment, on the classes of sb3-contrib and Stable-Baselines3."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean
from torch.distributions import Distribution

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
from .geppo import GePPO
from .replay import Replay
from .rollouts import sample_bytes
from .sample_replay import SampleA2C, SamplePPO, SampleReplay, learning_bytes

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
