"""Small models that learn from what replay keeps, and spoiled copies of that."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger

from longshore.agents.learned.checkpoint import layout_of, schema_of
from longshore.agents.networks.sb3_policy import MaskedPolicy
from longshore.envs.batch import AgentView
from longshore.envs.sb3 import PlacementVecEnv
from longshore.training.ppo import NO_SB3_LOG, RMSPROP, GePPO, MaskableA2C, VtraceA2C
from longshore.training.replay import Replay
from tests.envs.random_run import small_problem

ROWS, STEPS = 8, 32
SAMPLES = ROWS * STEPS


def model_of(kind: type[MaskablePPO], kept: int, **changes: Any) -> tuple[MaskablePPO, Replay]:
    """Return a model on environments of 32 GPUs, some of whose episodes meet the time limit."""
    problem = small_problem(16, faults=4)
    problem = problem._replace(rules=problem.rules._replace(limit_s=20 * 3600.0))
    schema = schema_of(
        algorithm="ppo", network="mlp", action="gpu", observation="patent", waiting=False, node_gpus=(8,) * 4
    )
    policy: dict[str, Any] = {"network": "mlp", "layout": layout_of(schema), "threads": 1}
    options: dict[str, Any] = {
        "learning_rate": 3e-3, "n_steps": STEPS, "batch_size": 64, "n_epochs": 3, "gamma": 1.0, "gae_lambda": 0.9,
        "ent_coef": 0.01, "seed": 5, "device": "cpu",
        "policy_kwargs": policy | (RMSPROP if issubclass(kind, MaskableA2C) else {}),
    }  # fmt: skip
    model = kind(
        MaskedPolicy, PlacementVecEnv(problem, AgentView("gpu", "patent", "potential"), ROWS), **options | changes
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    kept_rollouts = Replay(kept, dynamic=kind in (MaskablePPO, MaskableA2C))
    if isinstance(model, GePPO | VtraceA2C):
        model.replay = kept_rollouts
    return model, kept_rollouts


def learned(model: MaskablePPO, replay: Replay | None, rollouts: int) -> dict[str, torch.Tensor]:
    model.learn(rollouts * SAMPLES, callback=replay, log_interval=NO_SB3_LOG)
    network: Any = model.policy.network
    weights: dict[str, torch.Tensor] = network.state_dict()
    return weights


def spoilings(array: NDArray[Any]) -> list[NDArray[Any]]:
    """Return what a kept array may not be: of another shape or type, no number, or a whole number far out."""
    spoiled = [array[..., None], array.astype(np.complex64)]
    if array.dtype.kind == "f":
        spoiled += [array * np.float32(np.nan), array - np.float32(np.inf)]
    elif array.dtype.kind == "i":
        spoiled += [array * 0 - 1, array * 0 + np.int32(2**30)] if array.ndim else [array * 0 - 1]
    return [np.asarray(each) for each in spoiled if each.size]
