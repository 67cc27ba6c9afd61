"""A training run: masked PPO on the batched environment, kept in a folder and resumed from it."""

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, configure
from torch.distributions import Distribution

from ..agents.checkpoint import layout_of, load_policy, save_policy, schema_of
from ..agents.learned import LearnedPolicy
from ..agents.masked_policy import MaskedPolicy
from ..agents.networks import Network
from ..agents.schema import Schema
from ..cluster.errors import InputError
from ..envs.batch import View
from ..envs.sb3 import PlacementVecEnv
from .config import TrainingConfig
from .presets import PRESETS
from .snapshot import load_snapshot, save_snapshot
from .validation import Score, Validation

log = logging.getLogger(__name__)

VALIDATIONS = 12  # in a run, spread evenly
NEVER = 1_000_000_000  # updates between Stable-Baselines3's own lines: metrics are written by the callback
CONFIG, SNAPSHOT, POLICY, BEST, SCORE = "config.json", "snapshot.npz", "policy.zip", "best.zip", "score.json"


class Progress(NamedTuple):
    """Where a run stands, told after every update and validation."""

    steps: int
    steps_per_s: float
    score: Score | None  # of the latest validation
    rival: str  # best heuristic


class Result(NamedTuple):
    """How a run ended."""

    folder: Path
    best: Path  # checkpoint of the best validation
    score: Score  # its score
    finished: bool  # False if it was interrupted
    seconds: float  # of this session
    rival: str  # best heuristic
    scenarios: int  # validated on


Tell = Callable[[Progress], None]


def train(config: TrainingConfig, logdir: Path, tell: Tell = lambda progress: None) -> Result:
    """Train a policy, or go on where the run of this configuration in `logdir` was stopped.

    Ctrl-C ends the run after the update in progress and keeps everything; a second one ends it at once.

    Raises:
        InputError: If the folder holds a run of another configuration, or the problem cannot be built.
        CheckpointError: If the folder's snapshot is damaged.
    """
    preset = PRESETS[config.preset]
    trace = Path(config.trace) if config.trace else None
    problem, validated_on = preset.build(config.seed, trace, config.regime)
    folder = _open_folder(config, logdir)
    torch.set_num_threads(1)  # learning has its own (agents/chunks.py)
    # Checks of every tensor cost a sixth of the time; masks and shapes are asserted where they arise.
    Distribution.set_default_validate_args(value=False)
    view = View(config.action, config.observation, config.reward)
    env = PlacementVecEnv(problem, view, config.hyperparameters.rows)
    schema = schema_of(
        algorithm=config.algorithm, network=config.network, action=config.action, observation=config.observation,
        waiting=config.waiting, node_gpus=tuple(int(n) for n in np.diff(problem.cluster.first_gpu)),
    )  # fmt: skip
    model = _model(config, env, schema)
    model.set_logger(configure(str(folder), ["tensorboard"]))
    if (folder / SNAPSHOT).exists():
        model._last_obs = env.reset()
        load_snapshot(folder / SNAPSHOT, model, env)
    watch = _Watch(folder, schema, env, Validation(validated_on), config, tell)
    began = time.monotonic()
    left = config.steps - model.num_timesteps
    if left > 0:
        with _interruptible(watch):
            with suppress(_Stop):
                model.learn(left, callback=watch, reset_num_timesteps=model.num_timesteps == 0, log_interval=NEVER)
            watch.conclude()
    finished = model.num_timesteps >= config.steps
    if watch.best is None:
        watch.score_again()
    assert watch.best is not None
    seconds = time.monotonic() - began
    rival, scenarios = watch.validation.best, validated_on.scenarios.jobs.size
    return Result(folder, folder / BEST, watch.best, finished, seconds, rival, scenarios)


def _open_folder(config: TrainingConfig, logdir: Path) -> Path:
    folder = logdir / config.name
    kept = folder / CONFIG
    if kept.exists():
        try:
            before = TrainingConfig.model_validate_json(kept.read_text())
        except ValidationError as error:
            raise InputError("the configuration of this run cannot be read", "remove its folder", path=kept) from error
        given = set(TrainingConfig.model_fields) - {"steps"}  # a run may be made longer
        fields = [name for name in sorted(given) if getattr(before, name) != getattr(config, name)]
        if fields:
            raise InputError(
                f"this run has another {fields[0]}: {getattr(before, fields[0])!r}, not {getattr(config, fields[0])!r}",
                "take another --logdir or --seed, or remove the folder",
                path=folder,
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(config.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise InputError(f"cannot write here: {error.strerror}", "give another --logdir", path=folder) from error
    return folder


def _model(config: TrainingConfig, env: PlacementVecEnv, schema: Schema) -> MaskablePPO:
    parameters = config.hyperparameters
    return MaskablePPO(
        MaskedPolicy,
        env,
        learning_rate=lambda left: parameters.learning_rate * left,
        n_steps=parameters.steps,
        batch_size=parameters.minibatch,
        n_epochs=parameters.epochs,
        gamma=1.0,
        gae_lambda=parameters.gae_lambda,
        clip_range=parameters.clip,
        ent_coef=parameters.entropy,
        vf_coef=parameters.value,
        policy_kwargs={"network": config.network, "layout": layout_of(schema), "threads": config.threads},
        seed=config.seed,
        device="cpu",
    )


class _Stop(Exception):  # noqa: N818 (it is no error)
    """Ends learning between two updates."""


class _Watch(BaseCallback):
    """Validates, writes checkpoints and metrics, and stops the run when it is interrupted."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        env: PlacementVecEnv,
        validation: Validation,
        config: TrainingConfig,
        tell: Tell,
    ) -> None:
        super().__init__()
        self.folder, self.schema, self.env, self.config = folder, schema, env, config
        self.validation, self.tell = validation, tell
        self.interrupted = False
        self.best: Score | None = None
        self.latest: Score | None = None
        self._episodes: list[dict[str, float]] = []
        self._began_at, self._began = 0, time.monotonic()
        self._validated_at = 0
        self._read_score()

    def _read_score(self) -> None:
        """Take up the best validation so far; one that cannot be read is made again."""
        path = self.folder / SCORE
        if path.exists() and (self.folder / BEST).exists():
            with suppress(ValueError, TypeError):
                self.best = Score(**json.loads(path.read_text()))

    def _on_training_start(self) -> None:
        self._began_at, self._began = self.num_timesteps, time.monotonic()
        self._validated_at = self.num_timesteps
        values = self.config.model_dump()
        values |= values.pop("hyperparameters")
        flat = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
        self.logger.record(
            "hparams", HParam(flat, {"validation/percent": 0.0, "rollout/makespan_h": 0.0}), exclude=("stdout", "log")
        )

    def _on_step(self) -> bool:
        self._episodes += [info["episode"] for info in self.locals["infos"] if info]
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == self._began_at:
            return
        self._record_rollout()
        every = self.config.steps / VALIDATIONS
        due = self.num_timesteps // every > self._validated_at // every
        if due and self.num_timesteps < self.config.steps:
            self._validate()
            save_snapshot(self.folder / SNAPSHOT, self._ppo(), self.env)
        self.logger.dump(self.num_timesteps)
        self.tell(Progress(self.num_timesteps, self._steps_per_s(), self.latest, self.validation.best))
        if self.interrupted:
            raise _Stop

    def _steps_per_s(self) -> float:
        return (self.num_timesteps - self._began_at) / max(time.monotonic() - self._began, 1e-9)

    def _record_rollout(self) -> None:
        self.logger.record("time/steps_per_s", self._steps_per_s())
        if self._episodes:
            for name, scale in (("makespan_s", 3600.0), ("mean_jct_s", 3600.0), ("lost_gpu_s", 3600.0),
                                ("useful_utilisation", 1.0), ("restarts", 1.0), ("r", 1.0)):  # fmt: skip
                mean = float(np.mean([episode[name] for episode in self._episodes])) / scale
                self.logger.record(f"rollout/{TENSORBOARD.get(name, name)}", mean)
        self._episodes.clear()

    def _policy(self) -> LearnedPolicy:
        network = self.model.policy.network
        assert isinstance(network, Network)
        return LearnedPolicy("policy", self.schema, network)

    def _ppo(self) -> MaskablePPO:
        assert isinstance(self.model, MaskablePPO)
        return self.model

    def _validate(self, *, for_best: bool = True) -> None:
        self._validated_at = self.num_timesteps
        policy = self._policy()
        score = self.latest = self.validation.score(policy)
        self.logger.record("validation/percent", score.percent)
        self.logger.record("validation/half_width", score.half_width)
        self.logger.record(f"validation/{self.validation.goal}_h", score.mean_s / 3600.0)
        save_policy(self.folder / POLICY, self.schema, policy.network)
        if self.best is None or (for_best and score.mean_s < self.best.mean_s):
            self.best = score
            save_policy(self.folder / BEST, self.schema, policy.network)
            part = self.folder / (SCORE + ".part")
            part.write_text(json.dumps(score._asdict()) + "\n")
            part.replace(self.folder / SCORE)
        self.model.policy.set_training_mode(True)

    def score_again(self) -> None:
        """Validate a finished run whose score was lost, by its latest policy."""
        policy = load_policy(self.folder / POLICY)
        self.best = self.validation.score(policy)
        save_policy(self.folder / BEST, self.schema, policy.network)

    def conclude(self) -> None:
        """Validate and keep the run as it stands, between two updates."""
        if self._episodes:
            self._record_rollout()
        # A stop is no validation that an uninterrupted run would have had.
        self._validate(for_best=self.num_timesteps >= self.config.steps)
        save_snapshot(self.folder / SNAPSHOT, self._ppo(), self.env)
        self.logger.dump(self.num_timesteps)
        self.tell(Progress(self.num_timesteps, self._steps_per_s(), self.latest, self.validation.best))


# Names in TensorBoard where they differ from the metric's (docs/training.md)
TENSORBOARD = {"makespan_s": "makespan_h", "mean_jct_s": "mean_jct_h", "lost_gpu_s": "lost_gpu_h", "r": "return"}


@contextmanager
def _interruptible(watch: _Watch) -> Iterator[None]:
    """Turn the first Ctrl-C into a stop after the update in progress."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        watch.interrupted = True
        signal.signal(signal.SIGINT, before)
        log.warning("stopping after this update; Ctrl-C again stops at once and loses it")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
