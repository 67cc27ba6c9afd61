"""Many placement environments stepped by one compiled call. All environment classes use it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..cluster.model.outcome import metrics
from ..cluster.model.problem import Problem
from ..cluster.presets.drawn import hetero64, own_key
from ..cluster.simulator.simulation import outcome_of, simulation_of
from .features import NODE_COUNT
from .layout import action_count, bounds, observation_size
from .rewards import MAX_RANDOM_RUNS, RANDOM_RUNS, random_makespan_s
from .spaces import whole_number, whole_numbers
from .stepping import (
    CANDIDATE_ACTION,
    FULL,
    GPU_ACTION,
    NODE_ACTION,
    PATENT,
    PATENT_LITERAL,
    REWARDS,
    begin_rows,
    observe,
    reward_of,
    step_rows,
)

ACTIONS = {"gpu": GPU_ACTION, "node": NODE_ACTION, "candidate": CANDIDATE_ACTION}
OBSERVATIONS = {"patent": PATENT, "patent-literal": PATENT_LITERAL, "full": FULL}
WAITING_OPTIONS = {"off": False, "on": True}
POOL = 1024  # scenarios of the preset that are drawn where no problem is given


def chosen_problem(problem: Problem | None, waiting: str | None) -> Problem:
    """Return the problem, or scenarios of `hetero64` that nothing is evaluated on; waiting is `on` or `off` if given.

    Raises:
        ValueError: If waiting is neither.
    """
    run = hetero64(POOL, own_key(0)) if problem is None else problem
    if waiting is None:
        return run
    if waiting not in WAITING_OPTIONS:
        raise ValueError(f"waiting is {waiting!r}, expected 'off', 'on', or None to follow the problem's rules")
    return run._replace(rules=run.rules._replace(waiting=WAITING_OPTIONS[waiting]))


@dataclass(frozen=True, slots=True)
class AgentView:
    """How an agent observes, acts and is rewarded.

    Args:
        action: `gpu` (one GPU a step, SPEC R4), `node` (one node a step, which gives as many free GPUs as needed) or
            `candidate` (a whole placement or wait out of a short list, cluster/candidates/candidates.py).
        observation: `patent-literal` (SPEC R2 to the letter), `patent` (the same of what is left of the job) or `full`
            (envs/layout.py); `candidate` has its own, envs/layout.py.
        reward: `dt`, `potential`, `jct`, `best_of_random`, or another that is registered (envs/rewards.py).
        random_runs: Random runs of each scenario, with whose best `best_of_random` compares (SPEC R5); other rewards
            have none.

    Raises:
        ValueError: If one is unknown, or two are incompatible.
    """

    action: str = "node"
    observation: str = "full"
    reward: str = "potential"
    random_runs: int = RANDOM_RUNS

    def __post_init__(self) -> None:
        for value, allowed in ((self.action, ACTIONS), (self.observation, OBSERVATIONS), (self.reward, REWARDS)):
            if value not in allowed:
                raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
        if not 1 <= self.random_runs <= MAX_RANDOM_RUNS:
            raise ValueError(f"there are {self.random_runs} random runs, expected 1 to {MAX_RANDOM_RUNS}")
        if self.random_runs != RANDOM_RUNS and self.reward != "best_of_random":
            raise ValueError(f"the reward {self.reward!r} compares with no random runs; use 'best_of_random'")
        if self.action == "candidate" and self.observation != "full":
            raise ValueError(
                f"the observation {self.observation!r} describes no candidates; use 'full', or the action 'gpu'"
            )


def ideal_time_s(problem: Problem) -> NDArray[np.float64]:
    """Return the work of each scenario over the speed of its whole cluster, shape (scenarios,): the unit of rewards."""
    work = (problem.scenarios.work_s * problem.scenarios.gpus).sum(axis=1)
    speed = (problem.scenarios.speed * np.diff(problem.cluster.first_gpu)).sum(axis=1)
    ideal_s: NDArray[np.float64] = np.maximum(work / speed, 1e-9)
    return ideal_s


class Batch:
    """Rows of environments. Arrays are views of the present step and are overwritten by the next.

    Row r runs scenarios r, r + rows, r + 2 rows ... (modulo their number), counted from the `first` of `reset`. So its
    scenarios do not depend on when other rows end.

    Args:
        problem: Cluster, scenarios and rules.
        view: How agents observe, act and are rewarded.
        rows: Environments, at least 1.

    Attributes:
        actions: Number of actions.
        observations: Shape (rows, size); 0 where an episode has ended, and the last one where it was cut off.
        masks: Open actions, shape (rows, actions); none where an episode has ended.
        rewards: Of the last step, shape (rows,).
        ended: Whether the last step ended the episode, shape (rows,).
        steps: Steps since the beginning of the episode, shape (rows,).
    """

    def __init__(self, problem: Problem, view: AgentView, rows: int) -> None:
        rows = whole_number(rows, "rows", least=1)
        self.problem, self.view, self.rows = problem, view, rows
        self.sim = simulation_of(problem, rows=rows)
        self.unit_s = ideal_time_s(problem)
        self._credit_s = np.zeros_like(self.unit_s)  # with which the cost of each scenario is compared
        if (against_s := reward_of(view.reward).against_s) is not None:
            by_runs = view.reward == "best_of_random"
            self.unit_s = self._credit_s = (
                random_makespan_s(self.sim, view.random_runs) if by_runs else against_s(self.sim)
            )
        nodes, gpus = problem.cluster.speed.size, problem.cluster.gpu_node.size
        size = observation_size(view.observation, view.action, gpus, nodes)
        self.low, self.high = bounds(view.observation, size, gpus)
        self.actions = action_count(view.action, gpus, nodes, waiting=problem.rules.waiting)
        self.observations = np.zeros((rows, size), dtype=np.float32)
        self.masks = np.zeros((rows, self.actions), dtype=np.bool_)
        self.rewards = np.zeros(rows, dtype=np.float32)
        self.ended = np.zeros(rows, dtype=np.bool_)
        self._table = np.zeros((rows, nodes * NODE_COUNT), dtype=np.float32)
        self._next = np.arange(rows, dtype=np.int64)
        self._paid_s = np.zeros(rows, dtype=np.float64)
        self.steps = np.zeros(rows, dtype=np.int64)

    @property
    def scenarios(self) -> int:
        """Number of scenarios."""
        return int(self.problem.scenarios.jobs.size)

    def reset(self, first: int = 0) -> None:
        """Put every row at the first decision of a scenario: row r at number first + r, modulo their number.

        Raises:
            ValueError: If the first is no whole number of at least 0, or a scenario has no decision.
        """
        begin = whole_number(first, "scenario", least=0) % self.scenarios
        self.reset_at(begin + np.arange(self.rows, dtype=np.int64))

    def reset_at(self, scenarios: NDArray[np.int64]) -> None:
        """Put row r at the first decision of scenarios[r], modulo their number; it continues from there.

        Raises:
            ValueError: If a scenario has no decision.
        """
        self._next = np.array(scenarios, dtype=np.int64)
        self.reset_rows(np.arange(self.rows, dtype=np.int64))

    def reset_to_next(self) -> None:
        """Put every row at the first decision of its next scenario."""
        self.reset_rows(np.arange(self.rows, dtype=np.int64))

    @property
    def upcoming(self) -> NDArray[np.int64]:
        """The scenario that each row runs next, but for whole rounds through all of them; shape (rows,)."""
        return self._next.copy()

    def reset_rows(self, rows: NDArray[np.int64]) -> None:
        """Put some rows at the first decision of their next scenarios.

        Raises:
            ValueError: If a scenario has none.
        """
        scenarios = self._next[rows] % self.problem.scenarios.jobs.size
        self._next[rows] += self.rows
        self._paid_s[rows] = self._credit_s[scenarios]
        self.steps[rows] = 0
        ended = np.zeros(self.rows, dtype=np.bool_)
        begin_rows(
            self.sim,
            ACTIONS[self.view.action],
            OBSERVATIONS[self.view.observation],
            rows,
            scenarios,
            self.observations,
            self.masks,
            self._table,
            ended,
        )
        if ended.any():
            scenario = self.sim.state.scenario[np.flatnonzero(ended)[0]]
            raise ValueError(f"scenario {scenario} has no decision: no jobs, or no usable GPUs for them in time")

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what changes beside the simulation's state, so that a run can be saved and resumed."""
        return {"next": self._next, "paid_s": self._paid_s, "steps": self.steps}

    def observe_again(self) -> None:
        """Write observations and open actions of all rows again, after their state was restored."""
        view = self.view
        action, observation = ACTIONS[view.action], OBSERVATIONS[view.observation]
        for row in range(self.rows):
            observe(self.sim, row, action, observation, self.observations, self.masks, self._table, row)

    def cut_off(self) -> NDArray[np.bool_]:
        """Return which rows have ended with jobs unfinished, at the rules' time limit; shape (rows,)."""
        state = self.sim.state
        unfinished: NDArray[np.bool_] = state.finished < self.problem.scenarios.jobs[state.scenario]
        return self.ended & unfinished

    def returns(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sum of rewards so far of some rows, without their rounding; shape of `rows`."""
        scenario = self.sim.state.scenario[rows]
        paid: NDArray[np.float64] = (self._credit_s[scenario] - self._paid_s[rows]) / self.unit_s[scenario]
        return paid

    def nearest_open(self, chosen: ArrayLike) -> NDArray[np.int64]:
        """Return the actions with each closed one replaced by the next open one above it, the first after the last.

        Args:
            chosen: Actions, shape (rows,).

        Raises:
            ValueError: If one is no action, or the shape is another.
        """
        chosen = self.actions_in(chosen)
        nearest = chosen.copy()
        rows = np.flatnonzero(~self.masks[np.arange(self.rows), chosen])
        if rows.size:
            above = (chosen[rows, None] + np.arange(self.actions)) % self.actions
            nearest[rows] = above[np.arange(rows.size), self.masks[rows[:, None], above].argmax(axis=1)]
        return nearest

    def actions_in(self, given: ArrayLike) -> NDArray[np.int64]:
        """Return the actions that are given for all rows, shape (rows,).

        Raises:
            ValueError: If one is no action, or the shape is another.
        """
        chosen = whole_numbers(given, "action")
        if chosen.shape != (self.rows,):
            raise ValueError(f"actions have shape {chosen.shape}, expected {(self.rows,)}")
        outside = np.flatnonzero((chosen < 0) | (chosen >= self.actions))
        if outside.size:
            raise ValueError(f"action {chosen[outside[0]]} of row {outside[0]} is none of 0 to {self.actions - 1}")
        return chosen

    def step(self, chosen: ArrayLike) -> None:
        """Carry out one allowed action in every row; rows that end stay at their end until they are reset.

        Args:
            chosen: Actions, shape (rows,), each open in `masks`.

        Raises:
            ValueError: If one is no action, or is closed; nothing has changed then.
        """
        chosen = self.actions_in(chosen)
        closed = np.flatnonzero(~self.masks[np.arange(self.rows), chosen])
        if closed.size:
            row = closed[0]
            raise ValueError(f"action {chosen[row]} of row {row} is masked; open: {np.flatnonzero(self.masks[row])}")
        self.steps += 1
        step_rows(
            self.sim,
            ACTIONS[self.view.action],
            OBSERVATIONS[self.view.observation],
            REWARDS[self.view.reward],
            self.unit_s,
            np.ascontiguousarray(chosen, dtype=np.int64),
            self.observations,
            self.masks,
            self._table,
            self._paid_s,
            self.rewards,
            self.ended,
        )


def episode_summaries(batch: Batch, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the metrics of rows that have just ended, in the form that Stable-Baselines3's monitors use.

    `r` is the return (the sum of the rewards, in units of the scenario's ideal time), `l` the steps, `decisions` the
    placements and waits; the others are in seconds, GPU-seconds and counts. Where the episode was cut off, `finished`
    is less than the jobs, `makespan_s` the time of the last event, and figures of completion times are not a number.

    Args:
        batch: The environments.
        rows: Those that ended, shape (some,).
    """
    run = batch.sim.state.scenario[rows]
    scenarios, gpus = batch.problem.scenarios, batch.problem.cluster.gpu_node.size
    outcome = outcome_of(batch.sim, rows)
    figures = metrics(
        outcome, scenarios.jobs[run], scenarios.gpus[run], scenarios.submit_s[run], gpus, scenarios.work_s[run]
    )
    unfinished = batch.cut_off()[rows]
    for jct_s in (figures.mean_jct_s, figures.p99_jct_s):
        jct_s[unfinished] = np.nan
    columns = {
        "r": batch.returns(rows),
        "l": batch.steps[rows],
        "scenario": run,
        "decisions": outcome.decisions,
        "finished": outcome.finished,
        **figures._asdict(),
    }
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]
