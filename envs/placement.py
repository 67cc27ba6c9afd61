"""One cluster as a Gymnasium environment."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from ..cluster.model.problem import Problem
from .batch import Batch, View, chosen_problem
from .border.given import drawn_scenario, scenario_option, seed_given, whole_number
from .border.spaces import spaces_of
from .episodes import episode_summaries
from .picture import PICTURES
from .rewards.best_of_random import RANDOM_RUNS


class PlacementEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Places jobs on one cluster, a GPU, node or candidate a step; `longshore/Placement-v0` (docs/environments.md).

    Observation: Box of shape (size,), see envs/layout.py. Action: Discrete, a GPU or a node, and waiting as the last
    one where the rules allow it; or a candidate of the list (docs/policies.md, Candidates). Reward: see
    envs/rewards.py; the best gamma is 1. An episode is one scenario: it terminates when all jobs have ended and is
    truncated at the rules' time limit.

    `info["action_mask"]` (int8, 1 is open) says which actions can be taken, and so does `action_masks()` for
    sb3-contrib. A closed action stands for the nearest open one above it, the first after the last, and
    `info["masked_action"]` is then True: agents that know no masks meet a well-defined problem, and whoever uses masks
    can see that none was passed by. `info["metrics"]` of the last step has what envs/episodes.py tells.

    A seed draws the scenario of an episode. `options={"scenario": i}` names it, and goes before the seed. Without
    either, the first reset of an environment begins with any, and after that the next scenario follows.

    Args:
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

    metadata: dict[str, Any] = {"render_modes": list(PICTURES), "render_fps": 4}  # noqa: RUF012 (as the base class)

    def __init__(
        self,
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
        self.batch = Batch(chosen_problem(problem, waiting), View(action, observation, reward, random_runs), 1)
        self.observation_space, self.action_space = spaces_of(self.batch)
        self.render_mode = render_mode
        self._is_begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode: the scenario of the option or the seed, or else the next one.

        Raises:
            ValueError: If an option is not known, there is no such scenario, or the seed is no whole number of at
                least 0; nothing has changed then.
        """
        seed, scenario = seed_given(seed), scenario_option(options, self.batch.scenarios)
        super().reset(seed=seed)
        if scenario is None and (seed is not None or not self._is_begun):
            scenario = drawn_scenario(self.np_random, self.batch.scenarios)
        if scenario is None:
            self.batch.go_on()
        else:
            self.batch.reset(scenario)
        self._is_begun = True
        return self.batch.observations[0].copy(), {"action_mask": self._mask()}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take a GPU, a node or a whole candidate for the job that is due, or wait.

        Raises:
            ValueError: If it is no action; nothing has changed then.
            ResetNeeded: If no episode is going on.
        """
        self._check_begun()
        chosen = self.batch.actions_in([whole_number(action, "action")])
        taken = self.batch.nearest_open(chosen)
        self.batch.step(taken)
        ended, cut_off = bool(self.batch.ended[0]), bool(self.batch.cut_off()[0])
        info = {"action_mask": self._mask(), "masked_action": bool(taken[0] != chosen[0])}
        if ended:
            info["metrics"] = episode_summaries(self.batch, np.zeros(1, dtype=np.int64))[0]
        return self.batch.observations[0].copy(), float(self.batch.rewards[0]), ended and not cut_off, cut_off, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the open actions, shape (actions,)."""
        masks: NDArray[np.bool_] = self.batch.masks[0].copy()
        return masks

    def render(self) -> str | NDArray[np.uint8] | None:
        """Return a picture of the cluster in the mode that was chosen at the beginning."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() shows nothing without a render_mode, such as 'ansi' or 'rgb_array'")
            return None
        return PICTURES[self.render_mode](self.batch, 0)

    def _mask(self) -> NDArray[np.int8]:
        mask: NDArray[np.int8] = self.batch.masks[0].astype(np.int8)
        return mask

    def _check_begun(self) -> None:
        if not self.batch.masks[0].any():
            raise ResetNeeded("no episode is going on; call reset() first")
