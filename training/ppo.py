"""PPO and A2C with masked actions on the batched environment, and the updates that learn from earlier rollouts as well.

`learn_by_ppo` is the run from its first rollout to its last validation. `GePPO.train` is one update of generalised PPO
as the paper has it. The update of plain PPO is that of MaskablePPO in sb3-contrib; `MaskableA2C` has
Stable-Baselines3's update of A2C.

Source: Schulman et al., Proximal Policy Optimization Algorithms (2017); Queeney, Paschalidis and Cassandras,
Generalized Proximal Policy Optimization with Sample Reuse (2021). The formulas are in docs/training.md, Replay.
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

from ..agents.learned.checkpoint import layout_of
from ..agents.learned.network import Network
from ..agents.networks.sb3_policy import MaskedPolicy
from ..cluster.files.errors import InputError
from ..cluster.model.problem import Problem
from ..envs.batch import AgentView
from ..envs.sb3 import PlacementVecEnv
from .replay import (
    Replay,
    SampleReplay,
    WeightedRollouts,
    clip_range_of,
    filled_buffer,
    flat_samples,
    gather_samples,
    geppo_clip,
    geppo_loss,
    learning_bytes,
    sample_bytes,
    standardised_advantages,
    unpack_masks,
    vtrace,
    weighted_gae,
)
from .run_folder import RunFolder
from .snapshot import SNAPSHOT, read_arrays, restore_model, save_snapshot

RATE_DIVISOR = 1.03  # the learning rate is divided by it when an update went too far
NO_SB3_LOG = 1_000_000_000  # updates between Stable-Baselines3's own log lines: the callback writes the metrics
MAX_ROLLOUT_BYTES = MAX_REPLAY_BYTES = 8 * 2**30
# Figures of an episode: name in TensorBoard (docs/training.md) and unit
EPISODE = {
    "makespan_s": ("makespan_h", 3600.0),
    "mean_jct_s": ("mean_jct_h", 3600.0),
    "lost_gpu_s": ("lost_gpu_h", 3600.0),
    "useful_utilisation": ("useful_utilisation", 1.0),
    "restarts": ("restarts", 1.0),
    "r": ("return", 1.0),
}


def learn_by_ppo(problem: Problem, run_folder: RunFolder) -> int:
    """Train by PPO or A2C until the run's steps are done or it is interrupted; return the steps.

    1. Make the environments, one for each row of a rollout.
    2. Make the model of the algorithm and its replay.
    3. Load the snapshot, if the run was stopped before.
    4. Learn, by Stable-Baselines3's loop (`model.learn`). Until the steps are done, it collects a rollout, which the
       replay keeps, and updates the policy and the critic by `train` of the model. Between updates `_RunCallback`
       records the metrics, validates and saves a snapshot if that is due, and ends an interrupted run.
    5. Validate and save what was learned last.

    Raises:
        InputError: If the rollouts or the replay would take too much memory.
    """
    # Checks of every tensor cost a sixth of the time; masks and shapes are asserted where they arise.
    Distribution.set_default_validate_args(value=False)
    config, snapshot = run_folder.config, run_folder.path / SNAPSHOT
    view = AgentView(config.action, config.observation, config.reward, config.random_runs)
    env = PlacementVecEnv(problem, view, config.hyperparameters.rows)
    _check_rollout_memory(run_folder, env)
    model = _new_model(run_folder, env)
    # A run of seed s begins with scenario s, whatever its model makes of the seed.
    env.set_options([{"scenario": (config.seed + row) % env.batch.scenarios} for row in range(env.num_envs)])
    model.set_logger(run_folder.logger)
    replay = _new_replay(run_folder, env, model)
    if snapshot.exists():
        model._last_obs = env.reset()
        with read_arrays(snapshot) as arrays:
            restore_model(arrays, model, env)
            if replay is not None:
                replay.restore(arrays, model.rollout_buffer)
    left = config.steps - model.num_timesteps
    if left > 0:
        keeper = _RunCallback(run_folder, env, replay)
        callbacks: list[BaseCallback] = [replay, keeper] if replay else [keeper]
        with suppress(_Interrupted):
            model.learn(left, callback=callbacks, reset_num_timesteps=model.num_timesteps == 0, log_interval=NO_SB3_LOG)
        keeper.conclude()
    return int(model.num_timesteps)


class GePPO(MaskablePPO):
    """MaskablePPO whose update learns from all rollouts of `replay`, by the number of samples that PPO would use.

    pi is the policy that learns, pi_k what it was when the update began, mu the policy that acted, and c = pi_k / mu.
    """

    replay: Replay

    def train(self) -> None:
        """Update the policy and the critic.

        1. Set the learning rate: that of the schedule, over what earlier updates slowed it down by.
        2. Weight the kept rollouts: ratios c, advantages of pi_k and value targets by V-trace. A rollout whose policy
           is too far from pi_k is not used.
        3. Set the clip by the number of policies that acted.
        4. Standardise the advantages under pi_k.
        5. For each minibatch, take a step on the clipped objective, the value and the entropy.
        6. Lower the learning rate of later updates if the last minibatch is more than half the clip from pi_k.

        Source: SPEC R6, with the bias of reused samples corrected; GePPO, algorithm 1.
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for group in self.policy.optimizer.param_groups:
            group["lr"] *= self.replay.slowing
        estimator = partial(weighted_gae, gamma=self.gamma, gae_lambda=self.gae_lambda)
        weighted = self.replay.weight_rollouts(self.policy, self.replay.rollouts, estimator)
        clip = geppo_clip(len(weighted.rollouts), clip_range_of(self))
        shape = np.stack(weighted.ratio).shape
        ratio = np.concatenate(weighted.ratio).ravel()
        advantages = standardised_advantages(np.concatenate(weighted.advantages).ravel(), ratio)
        figures = defaultdict(list)
        for at in self._minibatches(ratio.size):
            for name, value in self._optimiser_step(weighted, advantages.reshape(shape), at, clip).items():
                figures[name].append(value)
        self._n_updates += self.n_epochs
        variation = figures.pop("variation")[-1]
        if variation > clip / 2.0:
            self.replay.slowing /= RATE_DIVISOR
        self.logger.record("replay/step_variation", variation)
        self._record_update(figures, clip)

    def _minibatches(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """Yield indices of samples, in all the number of PPO's epochs over one rollout; none twice before all once."""
        assert self.batch_size is not None
        rng, left = self.replay.update_rng(), self.n_epochs * self.rollout_buffer.rewards.size
        while left > 0:
            order = rng.permutation(samples)[:left]
            yield from np.split(order, range(self.batch_size, order.size, self.batch_size))
            left -= order.size

    def _optimiser_step(
        self, weighted: WeightedRollouts, advantages: NDArray[np.float32], at: NDArray[np.int64], clip: float
    ) -> dict[str, float]:
        """Take a step of the optimiser on a minibatch and return its figures."""

        def tensor(arrays: Any) -> Tensor:
            return torch.from_numpy(gather_samples(arrays, at))

        rollouts = weighted.rollouts
        masks = unpack_masks(gather_samples((rollout.masks for rollout in rollouts), at), self.rollout_buffer.mask_dims)
        values, log_probability, entropy = self.policy.evaluate_actions(
            tensor(rollout.observations for rollout in rollouts),
            tensor(rollout.actions for rollout in rollouts),
            action_masks=torch.from_numpy(masks),
        )
        assert entropy is not None
        ratio = (log_probability - tensor(rollout.log_probability for rollout in rollouts)).exp()
        before = tensor(weighted.ratio)
        policy_loss = geppo_loss(ratio, before, tensor(advantages), clip)
        value_loss = functional.mse_loss(values.flatten(), tensor(weighted.targets))
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

    def _record_update(self, figures: dict[str, list[float]], clip: float) -> None:
        record = self.logger.record
        record("train/loss", figures.pop("loss")[-1])
        for name, values in figures.items():
            record(f"train/{name}", float(np.mean(values)))
        newest = self.replay.rollouts[-1]
        returns = newest.advantages + newest.values
        record("train/explained_variance", explained_variance(newest.values.ravel(), returns.ravel()))
        record("train/clip_range", clip)
        record("train/learning_rate", self.policy.optimizer.param_groups[0]["lr"])
        record("replay/clip_fraction", float(np.mean(figures["clip_fraction"])))


# What Stable-Baselines3's A2C takes; under policy_kwargs, as its class does.
RMSPROP: dict[str, Any] = {
    "optimizer_class": torch.optim.RMSprop,
    "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5, "weight_decay": 0},
}


class MaskableA2C(MaskablePPO):
    """One step of the optimiser on each whole rollout, without ratios, clip or epochs."""

    def train(self) -> None:
        """Learn from the rollout.

        Source: SPEC R6 and R7.
        """
        for batch in self.rollout_buffer.get(batch_size=None):
            actions = batch.actions.long().flatten()
            self._optimiser_step(batch.observations, actions, batch.action_masks, batch.advantages, batch.returns)
        self._record_update(self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten())

    def _optimiser_step(
        self, observations: Tensor, actions: Tensor, masks: Tensor, advantages: Tensor, targets: Tensor
    ) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        values, log_probability, entropy = self.policy.evaluate_actions(observations, actions, action_masks=masks)
        assert entropy is not None
        policy_loss = -(advantages * log_probability).mean()
        value_loss = functional.mse_loss(targets, values.flatten())
        entropy_loss = -torch.mean(entropy)
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self._n_updates += 1
        self.logger.record("train/policy_loss", policy_loss.item())
        self.logger.record("train/value_loss", value_loss.item())
        self.logger.record("train/entropy_loss", entropy_loss.item())

    def _record_update(self, values: Any, returns: Any) -> None:
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/explained_variance", explained_variance(values, returns))


class VtraceA2C(MaskableA2C):
    """A2C on an equal part of each rollout of `replay`, in all the steps of one, corrected by V-trace.

    Source: IMPALA (Espeholt et al., 2018); docs/training.md, Replay.
    """

    replay: Replay

    def train(self) -> None:
        """Learn from a part of each kept rollout, the newest among them, in one step."""
        estimator = partial(vtrace, gamma=self.gamma, gae_lambda=self.gae_lambda)
        weighted = self.replay.weight_rollouts(self.policy, self.replay.draw_equal_parts(), estimator)
        rollouts = weighted.rollouts

        def joined(arrays: Any) -> NDArray[Any]:
            return np.concatenate([flat_samples(array) for array in arrays])

        masks = unpack_masks(joined(rollout.masks for rollout in rollouts), self.rollout_buffer.mask_dims)
        samples = (
            joined(rollout.observations for rollout in rollouts), joined(rollout.actions for rollout in rollouts),
            masks, joined(weighted.advantages), joined(weighted.targets),
        )  # fmt: skip
        self._optimiser_step(*map(torch.from_numpy, samples))
        self._record_update(rollouts[-1].values.ravel(), weighted.targets[-1].ravel())
        truncated = joined(weighted.ratio) > 1.0
        self.logger.record("replay/clip_fraction", float(truncated.mean()))


def _train_on_draw(model: "SamplePPO | SampleA2C", update: Callable[[], None]) -> None:
    """Run an update on the samples that a model's replay draws, in place of its rollout; on none, run nothing."""
    own = model.rollout_buffer
    assert model.batch_size is not None
    drawn = model.replay.draw_batch(model.batch_size)
    if drawn is None:
        return
    model.replay.record_batch(drawn)
    model.rollout_buffer = filled_buffer(own, drawn)
    try:
        update()
    finally:
        model.rollout_buffer = own


class SamplePPO(MaskablePPO):
    """PPO on the samples that its replay draws. Source: SPEC R6."""

    replay: SampleReplay

    def train(self) -> None:
        """Update by PPO on the drawn samples."""
        _train_on_draw(self, super().train)


class SampleA2C(MaskableA2C):
    """A2C on the samples that its replay draws. Source: SPEC R6."""

    replay: SampleReplay

    def train(self) -> None:
        """Update by A2C on the drawn samples."""
        _train_on_draw(self, super().train)


MODELS: dict[tuple[str, str], type[MaskablePPO]] = {
    ("ppo", "off"): MaskablePPO,
    ("ppo", "dynamic"): MaskablePPO,
    ("ppo", "geppo"): GePPO,
    ("a2c", "off"): MaskableA2C,
    ("a2c", "dynamic"): MaskableA2C,
    ("a2c", "vtrace"): VtraceA2C,
    ("ppo", "literal"): SamplePPO,
    ("ppo", "literal-all"): SamplePPO,
    ("a2c", "literal"): SampleA2C,
    ("a2c", "literal-all"): SampleA2C,
}  # by algorithm and replay


def falling_rate(start: float, steps: int, rollout: int) -> Callable[[float], float]:
    """Return the learning rate of an update by the share of the run's steps that are left after its rollout.

    It falls linearly from `start` to 0 at the last step. Rollouts are whole, so the last one may end beyond that, with
    a share below 0: the rate is 0 there. A run of less than two rollouts falls over two, as it would learn nothing
    otherwise.

    Args:
        start: Rate at the first step.
        steps: Of the whole run, in all its sessions.
        rollout: Steps between two updates, of all environments together.
    """
    missing = 1.0 - min(1.0, steps / (2.0 * rollout))  # share of two rollouts that the run does not have

    def rate(left: float) -> float:
        return start * max(0.0, left + (1.0 - left) * missing)

    return rate


def _new_model(run_folder: RunFolder, env: PlacementVecEnv) -> MaskablePPO:
    config = run_folder.config
    parameters = config.hyperparameters
    policy: dict[str, Any] = {
        "network": config.network,
        "layout": layout_of(run_folder.schema),
        "threads": config.threads,
        "initial": run_folder.initial,
    }
    return MODELS[config.algorithm, config.replay](
        MaskedPolicy,
        env,
        learning_rate=falling_rate(parameters.learning_rate, config.steps, parameters.rows * parameters.steps),
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


def _check_rollout_memory(run_folder: RunFolder, env: PlacementVecEnv) -> None:
    """Refuse rollouts that take too much memory: floats for the observation, the masks and six numbers of a sample."""
    parameters = run_folder.config.hyperparameters
    samples = parameters.rows * parameters.steps
    taken = samples * 4 * (env.batch.observations.shape[1] + env.batch.actions + 6)
    if taken > MAX_ROLLOUT_BYTES:
        raise InputError(
            f"a rollout of {samples:,} samples would take {taken / 2**30:.1f} GiB of memory, more than 8",
            "take fewer environments, or a smaller observation", field="--environments",
        )  # fmt: skip


def _new_replay(run_folder: RunFolder, env: PlacementVecEnv, model: MaskablePPO) -> Replay | SampleReplay | None:
    """Return what keeps earlier rollouts or samples, None if the run learns without replay."""
    config, parameters = run_folder.config, run_folder.config.hyperparameters
    if config.replay == "off":
        return None
    samples = config.buffer or parameters.kept * parameters.rows * parameters.steps
    sizes = env.batch.observations.shape[1], env.batch.actions
    is_literal, at_once = isinstance(model, SamplePPO | SampleA2C), isinstance(model, SampleA2C)
    taken = samples * (learning_bytes(*sizes, at_once=at_once) if is_literal else sample_bytes(*sizes))
    if taken > MAX_REPLAY_BYTES:
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


class _Interrupted(Exception):  # noqa: N818 (not an error)
    """Ends learning between two updates."""


class _RunCallback(BaseCallback):
    """Validates, saves and records between updates, and ends learning when the run is interrupted."""

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
        if self.run_folder.is_validation_due(self.num_timesteps):
            self._validate()
        self.run_folder.record_progress(self.num_timesteps)
        if self.run_folder.interrupted:
            raise _Interrupted

    def _record_episodes(self) -> None:
        if self._episodes:
            for name, (label, unit) in EPISODE.items():
                self.logger.record(f"rollout/{label}", float(np.mean([ended[name] for ended in self._episodes])) / unit)
        self._episodes.clear()
        if self.model.ep_info_buffer:  # Stable-Baselines3's own figures, of its last 100 episodes
            for name, key in (("ep_rew_mean", "r"), ("ep_len_mean", "l")):
                self.logger.record(f"rollout/{name}", safe_mean([ended[key] for ended in self.model.ep_info_buffer]))

    def _validate(self, *, for_best: bool = True) -> None:
        network = self.model.policy.network
        assert isinstance(network, Network)
        assert isinstance(self.model, MaskablePPO)
        self.run_folder.validate(network, self.num_timesteps, for_best=for_best)
        self.model.policy.set_training_mode(True)
        more = self.replay.snapshot_arrays() if self.replay else {}
        save_snapshot(self.run_folder.path / SNAPSHOT, self.model, self.env, more)

    def conclude(self) -> None:
        """Validate and save after the last update."""
        self._record_episodes()
        # An uninterrupted run would not have validated where this one was stopped.
        self._validate(for_best=self.num_timesteps >= self.run_folder.config.steps)
        self.run_folder.record_progress(self.num_timesteps)
