"""Every class of environments run by random open actions; as a program, those that a file holds, pickled."""

import hashlib
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.envs.batch import AgentView, Batch
from longshore.envs.gymnasium_envs import PlacementEnv, PlacementVectorEnv
from longshore.envs.sb3 import PlacementVecEnv

ROWS = 3


def problem(seed: int = 0, *, order: str = "easy", waiting: bool = True) -> Problem:
    """Six short scenarios with arrivals, so that episodes end and others begin on the way."""
    cluster, scenarios, process, rules = hetero64(6, seed, jobs=6, load=2.0)
    return Problem(cluster, scenarios, process, rules._replace(order=ORDERS[order], waiting=waiting))


def batch(run: Problem, view: AgentView) -> Batch:
    made = Batch(run, view, ROWS)
    made.reset()
    return made


def placement(run: Problem, view: AgentView) -> PlacementEnv:
    made = PlacementEnv(run, action=view.action, observation=view.observation, reward=view.reward)
    made.reset(seed=1)
    return made


def vector(run: Problem, view: AgentView) -> PlacementVectorEnv:
    made = PlacementVectorEnv(ROWS, run, action=view.action, observation=view.observation, reward=view.reward)
    made.reset(seed=1)
    return made


def sb3(run: Problem, view: AgentView) -> PlacementVecEnv:
    made = PlacementVecEnv(run, view, ROWS, first=1)
    made.reset()
    return made


MAKERS: dict[str, Callable[[Problem, AgentView], Any]] = {
    "Batch": batch, "PlacementEnv": placement, "PlacementVectorEnv": vector, "PlacementVecEnv": sb3,
}  # fmt: skip


def trace(env: Any, steps: int, seed: int) -> str:
    """Step by random open actions, and return a digest of all that was seen."""
    rng, seen = np.random.default_rng(seed), hashlib.sha256()
    for _ in range(steps):
        masks = env.masks if isinstance(env, Batch) else np.atleast_2d(env.action_masks())
        chosen = (rng.random(masks.shape) * masks).argmax(axis=1)
        for array in step(env, chosen):
            seen.update(np.ascontiguousarray(array).tobytes())
    return seen.hexdigest()


def step(env: Any, chosen: np.ndarray) -> tuple[Any, ...]:
    """Step any environment, restart rows that end, and return its arrays."""
    if isinstance(env, Batch):
        env.step(chosen)
        last = env.observations.copy(), env.rewards.copy(), env.ended.copy()
        if env.ended.any():
            env.reset_rows(np.flatnonzero(env.ended))
        return *last, env.masks, env.episode_returns(np.arange(ROWS))
    if isinstance(env, PlacementEnv):
        seen: Any
        *seen, info = env.step(chosen[0])
        if seen[2] or seen[3]:
            env.reset()
        return *seen, info["action_mask"]
    return (*env.step(chosen)[:3], env.action_masks())


if __name__ == "__main__":
    envs = pickle.loads(Path(sys.argv[1]).read_bytes())
    sys.stdout.write(json.dumps([trace(env, int(sys.argv[2]), int(sys.argv[3])) for env in envs]))
