"""Many clusters in one process as a Gymnasium vector environment."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..cluster.model.problem import Problem
from .batch import Batch, View, chosen_problem
from .border.given import drawn_scenario, scenario_option, seed_given
from .border.spaces import spaces_of
from .episodes import episode_summaries
from .picture import PICTURES
from .rewards.best_of_random import RANDOM_RUNS

Step = tuple[
    NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]  # observations, rewards, terminations, truncations, infos


class PlacementVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """PlacementEnv many times over in one compiled step; `gymnasium.make_vec("longshore/Placement-v0", num_envs=n)`.

    Spaces, rewards, masks and closed actions are as in PlacementEnv. `infos["action_mask"]` has shape (num_envs,
    actions). Environments that end begin anew in the same step (AutoresetMode.SAME_STEP): their last observation and
    info, with the metrics, are in `infos["final_obs"]` and `infos["final_info"]`.

    Environment r begins with the scenario of the seed or option plus r and runs every num_envs-th from there on. With a
    list of seeds, one for each environment, each begins with the scenario of its own.

    Args:
        num_envs: Environments.
        problem: What is run; the preset `hetero64` if left out.
        action: `node`, `gpu` or `candidate`.
        observation: `full`; or `patent` or `patent-literal`, but for candidates.
        reward: `potential`, `dt`, `jct` or `best_of_random`.
        waiting: `on` or `off`: whether letting the next event pass is an action; as the problem's rules say if left
            out.
        random_runs: With the best of how many random runs of a scenario `best_of_random` compares (SPEC R5).
        render_mode: `ansi` (text), `rgb_array` (image) or none.

    Raises:
        ValueError: If an option is not known, or `random_runs` is out of range or given for another reward.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (as the base class)
        "render_modes": list(PICTURES),
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        problem: Problem | None = None,
        *,
        action: str = "node",
        observation: str = "full",
        reward: str = "potential",
        waiting: str | None = None,
        random_runs: int = RANDOM_RUNS,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in PICTURES:
            raise ValueError(f"{render_mode!r} is none of {', '.join(PICTURES)}")
        self.batch = Batch(chosen_problem(problem, waiting), View(action, observation, reward, random_runs), num_envs)
        self.num_envs, self.render_mode = self.batch.rows, render_mode
        self.single_observation_space, self.single_action_space = spaces_of(self.batch)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._everyone = np.ones(self.num_envs, dtype=np.bool_)
        self._is_begun = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: Of all environments together, or one for each.
            options: `{"scenario": i}` or none.

        Raises:
            ValueError: If an option is not known, there is no such scenario, or a seed is no whole number of at least
                0; nothing has changed then.
        """
        scenario, starts = scenario_option(options, self.batch.scenarios), None
        if isinstance(seed, list | tuple | np.ndarray):
            starts = self._starts(seed)
        else:
            seed = seed_given(seed)
            super().reset(seed=seed)
            if scenario is None and (seed is not None or not self._is_begun):
                scenario = drawn_scenario(self.np_random, self.batch.scenarios)
        if scenario is not None:
            self.batch.reset(scenario)
        elif starts is not None:
            self.batch.reset_at(starts)
        else:
            self.batch.go_on()
        self._is_begun = True
        return self.batch.observations.copy(), self._masks()

    def _starts(self, seeds: Sequence[int | None]) -> NDArray[np.int64]:
        """Return the scenario that each environment begins with by a seed of its own, shape (num_envs,)."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"there are {len(seeds)} seeds, expected one or {self.num_envs}")
        given = [seed_given(seed) for seed in seeds]
        rngs = [self.np_random if seed is None else np.random.default_rng(seed) for seed in given]
        return np.array([drawn_scenario(rng, self.batch.scenarios) for rng in rngs], dtype=np.int64)

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Carry out one action in every environment, and begin anew where that ends an episode.

        Raises:
            ValueError: If one is no action; nothing has changed then.
        """
        batch = self.batch
        chosen = batch.actions_in(actions)
        taken = batch.nearest_open(chosen)
        batch.step(taken)
        passed_by, ended = taken != chosen, batch.ended.copy()
        rewards, cut_off = batch.rewards.astype(np.float64), batch.cut_off()
        infos = self._begin_anew(np.flatnonzero(ended), passed_by) if ended.any() else {}
        infos |= self._masks()
        infos |= {"masked_action": passed_by & ~ended, "_masked_action": ~ended}
        return batch.observations.copy(), rewards, ended & ~cut_off, cut_off, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the open actions of every environment, shape (num_envs, actions)."""
        return self.batch.masks.copy()

    def render(self) -> tuple[str | NDArray[np.uint8], ...] | None:
        """Return a picture of every cluster in the mode that was chosen at the beginning."""
        if self.render_mode is None:
            return None
        return tuple(PICTURES[self.render_mode](self.batch, row) for row in range(self.num_envs))

    def _masks(self) -> dict[str, Any]:
        return {"action_mask": self.batch.masks.astype(np.int8), "_action_mask": self._everyone.copy()}

    def _begin_anew(self, rows: NDArray[np.int64], passed_by: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the last observations and infos of rows that ended, which then begin anew."""
        infos: dict[str, Any] = {}
        for row, metrics in zip(rows, episode_summaries(self.batch, rows), strict=True):
            info = {
                "action_mask": self.batch.masks[row].astype(np.int8),
                "masked_action": bool(passed_by[row]),
                "metrics": metrics,
            }
            final = {"final_obs": self.batch.observations[row].copy(), "final_info": info}
            infos = self._add_info(infos, final, int(row))
        self.batch.reset_rows(rows)
        return infos
