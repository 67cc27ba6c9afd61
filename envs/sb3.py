"""The batched environment as Stable-Baselines3 and sb3-contrib expect it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecEnv

from ..cluster.model.problem import Problem
from .batch import (
    AgentView,
    Batch,
    checked_seed,
    draw_scenario,
    episode_summaries,
    scenario_option,
    spaces_of,
    whole_number,
)


class PlacementVecEnv(VecEnv):
    """Many clusters in one process, as a Stable-Baselines3 VecEnv with action masks.

    Observation: Box of shape (size,), see envs/layout.py. Action: Discrete, a GPU or a node, and waiting as the last
    one where the rules allow it. An episode is one scenario; `info["episode"]` of its last step has its metrics.

    Args:
        problem: Cluster, scenarios and rules.
        view: How agents observe, act and are rewarded.
        rows: Environments.
        first: Scenario of row 0 at each reset without a seed or an option, row r begins with first + r. If it is None,
            the first reset begins with any, and after that the next scenarios follow.
    """

    def __init__(self, problem: Problem, view: AgentView, rows: int, *, first: int | None = None) -> None:
        self.batch = Batch(problem, view, rows)
        self.first = None if first is None else whole_number(first, "first", least=0)
        self._actions = np.zeros(self.batch.rows, dtype=np.int64)
        self._is_begun = False
        self.render_mode = None
        super().__init__(self.batch.rows, *spaces_of(self.batch))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Let the next reset begin with the scenario that a seed draws, row r with the one r further on.

        Raises:
            ValueError: If it is no whole number of at least 0.
        """
        return super().seed(checked_seed(seed))

    def set_options(self, options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None) -> None:
        """Let each row begin with the scenario `{"scenario": i}` at the next reset, whatever the seed.

        Args:
            options: For all rows alike, or a list with those of each row; None for none.

        Raises:
            ValueError: If an option is unknown, or there is no such scenario; earlier options stay.
        """
        each: list[Any] = list(options) if isinstance(options, list | tuple) else [options or {}] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"there are options for {len(each)} environments, expected {self.num_envs}")
        for one in each:
            scenario_option(one, self.batch.scenarios)
        super().set_options([dict(one or {}) for one in each])

    def reset(self) -> NDArray[np.float32]:
        """Put every environment at the first decision of its option's scenario, the seed's, `first` or the next."""
        begin = self._first_scenario()
        starts = self.batch.next_scenarios if begin is None else begin + np.arange(self.num_envs)
        for row, options in enumerate(self._options):
            scenario = scenario_option(options, self.batch.scenarios)
            starts[row] = starts[row] if scenario is None else scenario
        self.batch.reset_at(starts)
        self._is_begun = True
        self._reset_seeds()
        self._reset_options()
        return self.batch.observations.copy()

    def _first_scenario(self) -> int | None:
        """Return the scenario of row 0 without options, None if each row continues with its next."""
        seed = self._seeds[0]
        if seed is None and self.first is not None:
            return self.first % self.batch.scenarios
        if seed is None and self._is_begun:
            return None
        return draw_scenario(np.random.default_rng(seed), self.batch.scenarios)

    def step_async(self, actions: ArrayLike) -> None:
        """Keep the actions of the next step, shape (rows,).

        Raises:
            ValueError: If one is no action; nothing has changed then.
        """
        self._actions = self.batch.checked_actions(actions)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Carry out the kept actions; environments that end restart."""
        batch = self.batch
        batch.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rewards, ended = batch.rewards.copy(), batch.ended.copy()
        over = np.flatnonzero(ended)
        if over.size:
            cut_off = batch.is_cut_off()
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
        """Return an attribute for each environment: `action_masks`, and attributes of the batch."""
        value = getattr(self, attr_name)
        return [value for _ in self._rows_of_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Refuse: rows of one batch share everything."""
        raise NotImplementedError(f"{attr_name} is shared by all rows of a batch")

    def env_method(
        self, method_name: str, *method_args: Any, indices: int | Iterable[int] | None = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return `action_masks` of each environment, the one method that rows have."""
        if method_name != "action_masks":
            raise AttributeError(f"environments of a batch have no method {method_name!r}, only 'action_masks'")
        if method_args or method_kwargs:
            raise TypeError("action_masks takes no arguments")
        masks = self.action_masks()
        return [masks[row] for row in self._rows_of_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        """Return False for each environment: rows are no wrapped objects."""
        return [False for _ in self._rows_of_indices(indices)]

    def _rows_of_indices(self, indices: int | Iterable[int] | None) -> list[int]:
        """Return the rows of indices.

        Raises:
            ValueError: If there is no such row.
        """
        rows = [whole_number(row, "row", least=-self.num_envs) for row in self._get_indices(indices)]
        if rows and max(rows) >= self.num_envs:
            raise ValueError(f"there is no row {max(rows)}, only 0 to {self.num_envs - 1}")
        return rows

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return no images."""
        return [None] * self.num_envs
