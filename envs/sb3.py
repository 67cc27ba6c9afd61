"""The batched environment as Stable-Baselines3 and sb3-contrib expect it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from ..cluster.model.problem import Problem
from .batch import Batch, View
from .episodes import episode_summaries


class PlacementVecEnv(VecEnv):
    """Many clusters in one process, as a Stable-Baselines3 VecEnv with action masks.

    Observation: Box of shape (size,), see envs/layout.py. Action: Discrete, a GPU or a node, and waiting as the last
    one where the rules allow it. An episode is one scenario; `info["episode"]` of its last step has its metrics.

    Args:
        problem: What is run.
        view: How it is seen and acted on.
        rows: Environments.
        first: Scenario of row 0.
    """

    def __init__(self, problem: Problem, view: View, rows: int, *, first: int = 0) -> None:
        self.batch = Batch(problem, view, rows)
        self.first = first
        self._actions = np.zeros(rows, dtype=np.int64)
        observation_space = spaces.Box(self.batch.low, self.batch.high, dtype=np.float32)
        self.render_mode = None
        super().__init__(rows, observation_space, spaces.Discrete(self.batch.actions))

    def reset(self) -> NDArray[np.float32]:
        """Put every environment at its first decision; a seed is the number of the first row's scenario."""
        seed = self._seeds[0]
        self.batch.reset(self.first if seed is None else seed)
        self._reset_seeds()
        self._reset_options()
        return self.batch.observations.copy()

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Keep the actions of the next step, shape (rows,)."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Carry out the kept actions; environments that end begin anew."""
        batch = self.batch
        batch.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rewards, ended = batch.rewards.copy(), batch.ended.copy()
        over = np.flatnonzero(ended)
        if over.size:
            cut_off = batch.cut_off()
            for row, summary in zip(over, episode_summaries(batch, over), strict=True):
                infos[row] = {
                    "episode": summary,
                    "terminal_observation": batch.observations[row].copy(),
                    "TimeLimit.truncated": bool(cut_off[row]),
                }
            batch.reset_rows(over)
        return batch.observations.copy(), rewards, ended, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the open actions of every environment, shape (rows, actions)."""
        return self.batch.masks.copy()

    def close(self) -> None:
        """Release nothing: all is memory."""

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Return an attribute for each environment: `action_masks` and what all rows share."""
        value = getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Refuse: rows of one batch share everything."""
        raise NotImplementedError(f"{attr_name} is shared by all rows of a batch")

    def env_method(
        self, method_name: str, *method_args: Any, indices: int | Iterable[int] | None = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return `action_masks` of each environment, the one method that rows have."""
        if method_name != "action_masks":
            raise AttributeError(f"environments of a batch have no method {method_name!r}, only 'action_masks'")
        masks = self.action_masks()
        return [masks[row] for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        """Return False for each environment: rows are no wrapped objects."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return no images."""
        return [None] * self.num_envs
