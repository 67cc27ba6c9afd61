"""Gymnasium environments: one cluster or a vector of them, of presets or of a trace; and their pictures.

src/longshore/registration.py registers them with Gymnasium.
"""

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..cluster.model.problem import Problem
from ..cluster.presets.named import preset_problem, problem_of
from ..cluster.presets.problems import LOAD
from ..cluster.queue.turns import line_up_jobs
from ..cluster.state.state import has_turns
from .batch import (
    POOL,
    AgentView,
    Batch,
    checked_seed,
    draw_scenario,
    episode_summaries,
    problem_or_default,
    scenario_option,
    spaces_of,
    whole_number,
)
from .rewards import RANDOM_RUNS

JOB_LETTERS = string.ascii_lowercase + string.ascii_uppercase  # of jobs by index, repeated
FREE, DOWN, PICKED = ".", "#", "+"
QUEUE_JOBS = 12  # jobs of the queue in a picture
PIXELS, GAP = 12, 2  # side of a GPU's square, and the space between two
BACKGROUND, FREE_COLOUR, DOWN_COLOUR, PICKED_COLOUR = (24, 24, 24), (70, 70, 70), (200, 30, 30), (255, 255, 255)
# Paul Tol's bright and muted schemes, which colour-blind readers can distinguish; red marks GPUs out of service.
JOB_COLOURS_RGB = np.array(
    [
        (68, 119, 170), (34, 136, 51), (204, 187, 68), (102, 204, 238), (170, 51, 119), (51, 34, 136),
        (17, 119, 51), (68, 170, 153), (136, 204, 238), (221, 204, 119), (136, 34, 85), (170, 68, 153),
    ],
    dtype=np.uint8,
)  # fmt: skip


def text_picture(batch: Batch, row: int) -> str:
    """Return the state of a row as lines of text: time, nodes with their GPUs, and the queue.

    A letter is the job that holds the GPU, `.` a usable one, `#` one out of service, and `+` one that is picked for
    the job that is due. Nodes have their speed, and an exclamation mark if they are lemons.
    """
    sim, cluster = batch.sim, batch.sim.cluster
    state, scenario = sim.state, int(sim.state.scenario[row])
    speed, lemon = sim.scenarios.speed[scenario], sim.state.lemon[row]
    marks = "".join(_gpu_mark(batch, row, gpu) for gpu in range(cluster.gpu_node.size))
    lines = [
        f"{state.now_s[row] / 3600.0:.2f} h: {state.finished[row]} of {sim.scenarios.jobs[scenario]} jobs finished, "
        f"{state.running[row]} running, {state.queued[row]} waiting"
    ]
    for node in range(speed.size):
        gpus = marks[cluster.first_gpu[node] : cluster.first_gpu[node + 1]]
        lines.append(f"{node:4d} x{speed[node]:<5.3g}{'!' if lemon[node] else ' '} {gpus}")
    return "\n".join([*lines, _due_job_text(batch, row), f"queue (GPUs): {_queue_text(batch, row)}"]) + "\n"


def pixel_picture(batch: Batch, row: int) -> NDArray[np.uint8]:
    """Return the state of a row as an image, shape (height, width, 3): a line of squares for each node.

    A colour is a job; usable GPUs are grey, picked ones white, and those out of service red.
    """
    cluster, state = batch.sim.cluster, batch.sim.state
    held, down = state.gpu_job[row], state.gpu_down[row] > 0
    colours = JOB_COLOURS_RGB[held % len(JOB_COLOURS_RGB)]
    colours[held < 0] = FREE_COLOUR
    colours[down] = DOWN_COLOUR
    colours[(held >= 0) & (held == state.current[row])] = PICKED_COLOUR
    sizes = np.diff(cluster.first_gpu)
    side = PIXELS + GAP
    picture = np.empty((GAP + sizes.size * side, GAP + int(sizes.max()) * side, 3), dtype=np.uint8)
    picture[:] = BACKGROUND
    for gpu, node in enumerate(cluster.gpu_node):
        top, left = GAP + node * side, GAP + (gpu - cluster.first_gpu[node]) * side
        picture[top : top + PIXELS, left : left + PIXELS] = colours[gpu]
    return picture


PICTURES: dict[str, Callable[[Batch, int], str | NDArray[np.uint8]]] = {
    "ansi": text_picture,
    "rgb_array": pixel_picture,
}


def _gpu_mark(batch: Batch, row: int, gpu: int) -> str:
    state = batch.sim.state
    job = int(state.gpu_job[row, gpu])
    if job < 0:
        return DOWN if state.gpu_down[row, gpu] else FREE
    return PICKED if job == state.current[row] else JOB_LETTERS[job % len(JOB_LETTERS)]


def _due_job_text(batch: Batch, row: int) -> str:
    state = batch.sim.state
    job = int(state.current[row])
    if job < 0:
        return "due: none"
    gpus = int(batch.sim.scenarios.gpus[state.scenario[row], job])
    return f"due: job {job}, {gpus} GPUs, {gpus - state.need[row]} picked"


def _queue_text(batch: Batch, row: int) -> str:
    state = batch.sim.state
    gpus = batch.sim.scenarios.gpus[state.scenario[row]]
    jobs: list[int] = []
    if has_turns(batch.sim):
        jobs += batch.sim.scratch.lined_up[row, : line_up_jobs(batch.sim, row, QUEUE_JOBS)].tolist()
    else:
        job = int(state.head[row])
        while job >= 0 and len(jobs) < QUEUE_JOBS:
            jobs.append(job)
            job = int(state.next_job[row, job])
    return " ".join(f"{job} ({gpus[job]})" for job in jobs) + (" ..." if state.queued[row] > len(jobs) else "")


class PlacementEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Places jobs on one cluster, a GPU, node or candidate a step; `longshore/Placement-v0` (docs/environments.md).

    Observation: Box of shape (size,), see envs/layout.py. Action: Discrete, a GPU or a node, and waiting as the last
    one where the rules allow it; or a candidate of the list (docs/policies.md, Candidates). Reward: see
    envs/rewards.py; the best gamma is 1. An episode is one scenario: it terminates when all jobs have ended and is
    truncated at the rules' time limit.

    `info["action_mask"]` (int8, 1 is open) has the open actions, and so has `action_masks()` for sb3-contrib. A closed
    action is replaced by the nearest open one above it, the first after the last, and `info["masked_action"]` is then
    True: the problem is well-defined for agents without masks, and agents with masks can check that they apply them.
    `info["metrics"]` of the last step has the episode's metrics (`episode_summaries` in envs/batch.py).

    A seed draws the scenario of an episode. `options={"scenario": i}` names it, and goes before the seed. Without
    either, the first reset of an environment begins with any, and after that the next scenario follows.

    Args:
        problem: Cluster, scenarios and rules; by default the preset `hetero64`.
        action: `node`, `gpu` or `candidate`.
        observation: `full`; or `patent` or `patent-literal`, but for candidates.
        reward: `potential`, `dt`, `jct` or `best_of_random`.
        waiting: `on` or `off`: whether letting the next event pass is an action; by default as in the problem's rules.
        random_runs: Random runs of a scenario, with whose best `best_of_random` compares (SPEC R5).
        render_mode: `ansi` (text), `rgb_array` (image) or none.

    Raises:
        ValueError: If an option is unknown, or `random_runs` is out of range or given for another reward.
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
        self.batch = Batch(problem_or_default(problem, waiting), AgentView(action, observation, reward, random_runs), 1)
        self.observation_space, self.action_space = spaces_of(self.batch)
        self.render_mode = render_mode
        self._is_begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode: the scenario of the option or the seed, or else the next one.

        Raises:
            ValueError: If an option is unknown, there is no such scenario, or the seed is no whole number of at
                least 0; nothing has changed then.
        """
        seed, scenario = checked_seed(seed), scenario_option(options, self.batch.scenarios)
        super().reset(seed=seed)
        if scenario is None and (seed is not None or not self._is_begun):
            scenario = draw_scenario(self.np_random, self.batch.scenarios)
        if scenario is None:
            self.batch.reset_to_next()
        else:
            self.batch.reset(scenario)
        self._is_begun = True
        return self.batch.observations[0].copy(), {"action_mask": self._action_mask()}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take a GPU, a node or a whole candidate for the job that is due, or wait.

        Raises:
            ValueError: If it is no action; nothing has changed then.
            ResetNeeded: If no episode is running.
        """
        if not self.batch.masks[0].any():
            raise ResetNeeded("no episode is running; call reset() first")
        chosen = self.batch.checked_actions([whole_number(action, "action")])
        taken = self.batch.nearest_open_actions(chosen)
        self.batch.step(taken)
        ended, cut_off = bool(self.batch.ended[0]), bool(self.batch.is_cut_off()[0])
        info = {"action_mask": self._action_mask(), "masked_action": bool(taken[0] != chosen[0])}
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

    def _action_mask(self) -> NDArray[np.int8]:
        mask: NDArray[np.int8] = self.batch.masks[0].astype(np.int8)
        return mask


Step = tuple[
    NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]  # observations, rewards, terminations, truncations, infos


class PlacementVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """Many PlacementEnv in one compiled step; `gymnasium.make_vec("longshore/Placement-v0", num_envs=n)`.

    Spaces, rewards, masks and closed actions are as in PlacementEnv. `infos["action_mask"]` has shape (num_envs,
    actions). Environments that end restart in the same step (AutoresetMode.SAME_STEP): their last observation and
    info, with the metrics, are in `infos["final_obs"]` and `infos["final_info"]`.

    Environment r begins with the scenario of the seed or option plus r, and runs every num_envs-th from there on. With
    a list of seeds, each environment begins with the scenario of its own seed.

    Args:
        num_envs: Environments.
        problem: As for PlacementEnv, and so are the next.
        action: `node`, `gpu` or `candidate`.
        observation: `full`; or `patent` or `patent-literal`, but for candidates.
        reward: `potential`, `dt`, `jct` or `best_of_random`.
        waiting: `on`, `off`, or as in the problem's rules.
        random_runs: Of a scenario.
        render_mode: `ansi`, `rgb_array` or none.

    Raises:
        ValueError: If an option is unknown, or `random_runs` is out of range or given for another reward.
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
        self.batch = Batch(
            problem_or_default(problem, waiting), AgentView(action, observation, reward, random_runs), num_envs
        )
        self.num_envs, self.render_mode = self.batch.rows, render_mode
        self.single_observation_space, self.single_action_space = spaces_of(self.batch)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._all_rows = np.ones(self.num_envs, dtype=np.bool_)
        self._is_begun = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: Of all environments together, or one for each.
            options: `{"scenario": i}` or none.

        Raises:
            ValueError: If an option is unknown, there is no such scenario, or a seed is no whole number of at least
                0; nothing has changed then.
        """
        scenario, starts = scenario_option(options, self.batch.scenarios), None
        if isinstance(seed, list | tuple | np.ndarray):
            starts = self._scenarios_of_seeds(seed)
        else:
            seed = checked_seed(seed)
            super().reset(seed=seed)
            if scenario is None and (seed is not None or not self._is_begun):
                scenario = draw_scenario(self.np_random, self.batch.scenarios)
        if scenario is not None:
            self.batch.reset(scenario)
        elif starts is not None:
            self.batch.reset_at(starts)
        else:
            self.batch.reset_to_next()
        self._is_begun = True
        return self.batch.observations.copy(), self._mask_infos()

    def _scenarios_of_seeds(self, seeds: Sequence[int | None]) -> NDArray[np.int64]:
        """Return the scenario that each environment begins with by a seed of its own, shape (num_envs,)."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"there are {len(seeds)} seeds, expected one or {self.num_envs}")
        given = [checked_seed(seed) for seed in seeds]
        rngs = [self.np_random if seed is None else np.random.default_rng(seed) for seed in given]
        return np.array([draw_scenario(rng, self.batch.scenarios) for rng in rngs], dtype=np.int64)

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Carry out one action in every environment, and restart those whose episode ends.

        Raises:
            ValueError: If one is no action; nothing has changed then.
        """
        batch = self.batch
        chosen = batch.checked_actions(actions)
        taken = batch.nearest_open_actions(chosen)
        batch.step(taken)
        masked, ended = taken != chosen, batch.ended.copy()
        rewards, cut_off = batch.rewards.astype(np.float64), batch.is_cut_off()
        infos = self._restart_rows(np.flatnonzero(ended), masked) if ended.any() else {}
        infos |= self._mask_infos()
        infos |= {"masked_action": masked & ~ended, "_masked_action": ~ended}
        return batch.observations.copy(), rewards, ended & ~cut_off, cut_off, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the open actions of every environment, shape (num_envs, actions)."""
        return self.batch.masks.copy()

    def render(self) -> tuple[str | NDArray[np.uint8], ...] | None:
        """Return a picture of every cluster in the mode that was chosen at the beginning."""
        if self.render_mode is None:
            return None
        return tuple(PICTURES[self.render_mode](self.batch, row) for row in range(self.num_envs))

    def _mask_infos(self) -> dict[str, Any]:
        return {"action_mask": self.batch.masks.astype(np.int8), "_action_mask": self._all_rows.copy()}

    def _restart_rows(self, rows: NDArray[np.int64], masked: NDArray[np.bool_]) -> dict[str, Any]:
        """Restart rows that ended; return their last observations and infos."""
        infos: dict[str, Any] = {}
        for row, metrics in zip(rows, episode_summaries(self.batch, rows), strict=True):
            info = {
                "action_mask": self.batch.masks[row].astype(np.int8),
                "masked_action": bool(masked[row]),
                "metrics": metrics,
            }
            final = {"final_obs": self.batch.observations[row].copy(), "final_info": info}
            infos = self._add_info(infos, final, int(row))
        self.batch.reset_rows(rows)
        return infos


class PresetEnv(PlacementEnv):
    """Scenarios of a preset of `longshore train`, under its rules; policies estimate fault rates as they do there.

    Args:
        preset: `hetero64`, `hetero64-stream`, `patent4` or `patent64`.
        scenarios: Number to draw.
        seed: Of the draw.
        order: Order regime.
        options: Further ones of PlacementEnv.

    Raises:
        ValueError: If an option is unknown.
    """

    def __init__(
        self, preset: str, *, scenarios: int = POOL, seed: int = 0, order: str = "fifo", **options: Any
    ) -> None:
        super().__init__(preset_problem(preset, scenarios, seed=seed, order=order), **options)


class PresetVectorEnv(PlacementVectorEnv):
    """Many PresetEnv in one compiled step.

    Args:
        num_envs: Environments.
        preset: As for PresetEnv, and so are the next.
        scenarios: Number to draw.
        seed: Of the draw.
        order: Order regime.
        options: Further ones of PlacementVectorEnv.

    Raises:
        ValueError: If an option is unknown.
    """

    def __init__(
        self, num_envs: int, preset: str, *, scenarios: int = POOL, seed: int = 0, order: str = "fifo", **options: Any
    ) -> None:
        super().__init__(num_envs, preset_problem(preset, scenarios, seed=seed, order=order), **options)


class TraceEnv(PlacementEnv):
    """Windows of a trace on a cluster (`problem_of` in cluster/presets/named.py).

    Args:
        trace: File of the jobs.
        cluster: Cluster file; clusters of the preset `hetero64` if None.
        windows: Number to draw, one scenario each.
        load: Share of the cluster's GPU-time that arrivals are scaled to offer; None leaves them as they are recorded.
        order: Order regime.
        seed: Of windows and faults.
        options: Further ones of PlacementEnv.

    Raises:
        ValueError: If an option is unknown.
        InputError: If a file cannot be used.
    """

    def __init__(
        self, trace: str | Path, cluster: str | Path | None = None, *, windows: int = POOL, load: float | None = LOAD,
        order: str = "fifo", seed: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(problem_of(trace, cluster, windows=windows, load=load, order=order, seed=seed), **options)


class TraceVectorEnv(PlacementVectorEnv):
    """Many TraceEnv in one compiled step.

    Args:
        num_envs: Environments.
        trace: As for TraceEnv, and so are the next.
        cluster: Cluster file.
        windows: Number to draw.
        load: As for TraceEnv.
        order: Order regime.
        seed: Of windows and faults.
        options: Further ones of PlacementVectorEnv.

    Raises:
        ValueError: If an option is unknown.
        InputError: If a file cannot be used.
    """

    def __init__(
        self, num_envs: int, trace: str | Path, cluster: str | Path | None = None, *, windows: int = POOL,
        load: float | None = LOAD, order: str = "fifo", seed: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        problem = problem_of(trace, cluster, windows=windows, load=load, order=order, seed=seed)
        super().__init__(num_envs, problem, **options)
