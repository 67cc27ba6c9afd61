"""Many placement environments stepped by one compiled call. All environment classes use it.

`step_rows` is one step of all rows, compiled. `Batch` has the rows and their arrays. The end of the file has the spaces
of environments, and checks of what users pass in: actions, seeds, scenarios and options.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from ..cluster.candidates.candidates import pick_candidate
from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import load_as, registered
from ..cluster.kernels.compiled import check_kernel, kernel, kernel_of_numbered
from ..cluster.model.outcome import metrics
from ..cluster.model.problem import Problem
from ..cluster.placing import take_gpu, take_node
from ..cluster.presets.drawn import hetero64
from ..cluster.presets.problems import user_key
from ..cluster.queue.keeping import has_reservation, mark_nodes_keeping_reservation
from ..cluster.queue.order import may_wait
from ..cluster.simulator.engine import advance, pass_over, reset, start, wait
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import MAX_CANDIDATES, Simulation
from .features import GLOBAL_COUNT, NODE_COUNT, list_and_write_candidates, write_full_observation, write_gpu_features
from .layout import (
    action_count,
    observation_bounds,
    observation_size,
    write_literal_patent_observation,
    write_patent_observation,
)
from .rewards import MAX_RANDOM_RUNS, RANDOM_RUNS, Reward, elapsed_s, least_random_makespan_s

GPU_ACTION, NODE_ACTION, CANDIDATE_ACTION = 0, 1, 2
PATENT, FULL, PATENT_LITERAL = 0, 1, 2
Rows = NDArray[np.float32]

# Rewards by number, as compiled code calls them. Not in rewards.py, which modules of plug-ins import.
REWARDS = {name: number for number, name in enumerate(registered("rewards"))}


def reward_of(name: str) -> Reward:
    """Return a reward by its name.

    Raises:
        PluginError: If nothing of that name is registered, or it is no reward.
    """
    reward = load_as("rewards", name, Reward)
    check_kernel(f"the cost of reward {name!r}", reward.cost_s, 2)
    return reward


def _reward_or_placeholder(name: str) -> Reward:
    try:
        return reward_of(name)
    except PluginError:  # `reward_of` reports it where the reward is used
        return Reward("", elapsed_s)


_rewards = [_reward_or_placeholder(name) for name in REWARDS]
_AT_END = sum(bool(reward.at_end) << number for number, reward in enumerate(_rewards))  # bit n: of reward n
cost_so_far_s = kernel_of_numbered("reward_cost", [reward.cost_s for reward in _rewards])


@kernel
def is_paid_at_end(reward: int) -> bool:
    """Whether all of a reward is paid at the end of an episode."""
    return bool((_AT_END >> reward) & 1)


@kernel
def step_rows(
    sim: Simulation,
    action_kind: int,
    observation_kind: int,
    reward: int,
    unit_s: NDArray[np.float64],
    actions: NDArray[np.int64],
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    paid_s: NDArray[np.float64],
    rewards: NDArray[np.float32],
    ended: NDArray[np.bool_],
) -> None:
    """Carry out one action in every row.

    1. Carry the action out: pick a GPU, a node or a candidate, and start the job once it has all of its GPUs; or wait.
    2. If that completes a decision, advance to the next one at which some placement would start a job.
    3. Pay the reward: by how much the cost of the episode has risen since the last one, or all of it at the end.
    4. Observe: write the observation and the open actions.

    A row whose episode ends stays at its end, without open actions. Its observation is zero or, if it was cut off, that
    of its last decision, from which learners compute the value of the rest.

    Args:
        sim: The simulation.
        action_kind: GPU_ACTION, NODE_ACTION or CANDIDATE_ACTION.
        observation_kind: PATENT, PATENT_LITERAL or FULL.
        reward: A value of REWARDS.
        unit_s: Unit of rewards, shape (scenarios,).
        actions: Actions, shape (rows,).
        out: Takes the observations, shape (rows, size).
        masks: Holds the masks of the step before and takes the new ones, shape (rows, actions).
        table: Scratch, shape (rows, nodes x features).
        paid_s: Cost of each episode that rewards have paid for, shape (rows,); at its beginning 0, so that time
            before the first decision counts too, or the cost with which the makespan is compared.
        rewards: Takes the rewards, shape (rows,).
        ended: Takes whether the episode is over, shape (rows,).
    """
    for row in range(actions.size):
        rewards[row] = 0.0
        ended[row] = False
        if carry_out_action(sim, row, action_kind, actions[row]):
            ended[row] = not advance_to_decision(sim, row, action_kind)
            if ended[row] or not is_paid_at_end(reward):
                rewards[row] = pay_reward(sim, row, reward, unit_s, paid_s)
        if not ended[row]:
            write_observation(sim, row, action_kind, observation_kind, out, masks, table, row)
            continue
        if sim.state.finished[row] == sim.scenarios.jobs[sim.state.scenario[row]]:
            out[row] = 0.0
        masks[row] = False


@kernel
def pick_by_action(sim: Simulation, row: int, action_kind: int, action: int) -> bool:
    """Pick a GPU, node or candidate for the job that is due or turned to; False, with nothing picked, to wait."""
    if action_kind == CANDIDATE_ACTION:
        return pick_candidate(sim, row, action)
    state = sim.state
    items = state.free.shape[1] if action_kind == NODE_ACTION else state.gpu_job.shape[1]
    if action == items:
        return False
    if action_kind == NODE_ACTION:
        take_node(sim, row, action)
    else:
        take_gpu(sim, row, action)
    return True


@kernel
def carry_out_action(sim: Simulation, row: int, action_kind: int, action: int) -> bool:
    """Carry out an allowed action; True if a decision is complete, so that the clock can advance."""
    if not pick_by_action(sim, row, action_kind, action):
        wait(sim, row)
        return True
    if sim.state.need[row] > 0:
        return False
    start(sim, row)
    return True


@kernel
def advance_to_decision(sim: Simulation, row: int, action_kind: int) -> bool:
    """Run a row until a job is due that some placement would start; False when its episode is over.

    A job is passed over if every placement of it would delay the holder of the reservation. That counts as a decision.
    """
    while advance(sim, row):
        if action_kind == CANDIDATE_ACTION or not has_reservation(sim, row):
            return True
        if mark_nodes_keeping_reservation(sim, row, int(action_kind == NODE_ACTION)) > 0:
            return True
        sim.state.decisions[row] += 1
        pass_over(sim, row)
    return False


@kernel
def pay_reward(
    sim: Simulation, row: int, reward: int, unit_s: NDArray[np.float64], paid_s: NDArray[np.float64]
) -> float:
    """Return the reward since the last payment, minus the rise of the episode's cost in its unit; record the cost."""
    cost_s = cost_so_far_s(reward, sim, row)
    amount = (paid_s[row] - cost_s) / unit_s[sim.state.scenario[row]]
    paid_s[row] = cost_s
    return float(amount)


@kernel
def write_observation(
    sim: Simulation,
    row: int,
    action_kind: int,
    observation_kind: int,
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    at: int,
) -> None:
    """Write the observation of a decision and its open actions into row `at` of `out` and `masks`.

    Args:
        sim: The simulation; a job must be due in the row.
        row: Row of the decision.
        action_kind: GPU_ACTION, NODE_ACTION or CANDIDATE_ACTION.
        observation_kind: PATENT, PATENT_LITERAL or FULL.
        out: Takes the observation.
        masks: Takes the mask.
        table: Scratch for the features of nodes.
        at: Row of the three.
    """
    if action_kind == CANDIDATE_ACTION:
        candidates = list_and_write_candidates(sim, row, out, at)
        for candidate in range(MAX_CANDIDATES):
            masks[at, candidate] = candidate < candidates
        return
    write_mask(sim, row, action_kind, masks, at)
    if observation_kind == PATENT:
        write_patent_observation(sim, row, out, at)
    elif observation_kind == PATENT_LITERAL:
        write_literal_patent_observation(sim, row, out, at)
    elif action_kind == NODE_ACTION:
        write_full_observation(sim, row, out, at, out, GLOBAL_COUNT)
    else:
        write_full_observation(sim, row, out, at, table, 0)
        write_gpu_features(sim, row, table, out, at)


@kernel
def write_mask(sim: Simulation, row: int, action_kind: int, out: NDArray[np.bool_], at: int) -> None:
    """Write which actions are open: free GPUs, or nodes with free GPUs, and waiting as the last one.

    Waiting is open before the first pick only. The mask is longer by one where the rules allow waiting. Where a
    reservation binds the job, GPUs and nodes of no placement that keeps it are closed. If no placement keeps it, all
    stay open: the job is passed over, whatever is picked.

    Source: SPEC R4.
    """
    state = sim.state
    items = state.free.shape[1] if action_kind == NODE_ACTION else state.gpu_job.shape[1]
    is_bound = (
        has_reservation(sim, row) and mark_nodes_keeping_reservation(sim, row, int(action_kind == NODE_ACTION)) > 0
    )
    for item in range(items):
        if action_kind == NODE_ACTION:
            node, is_open = item, state.free[row, item] > 0
        else:
            node = sim.cluster.gpu_node[item]
            is_open = state.free[row, node] > 0 and state.gpu_job[row, item] < 0 and state.gpu_down[row, item] == 0
        out[at, item] = is_open and (not is_bound or sim.scratch.may_pick[row, node] == 1)
    if sim.rules.waiting:
        out[at, items] = state.picked_nodes[row] == 0 and may_wait(sim, row)


@kernel
def begin_rows(
    sim: Simulation,
    action_kind: int,
    observation_kind: int,
    rows: NDArray[np.int64],
    scenarios: NDArray[np.int64],
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    ended: NDArray[np.bool_],
) -> None:
    """Put row rows[i] at the first decision of scenario scenarios[i] and observe it."""
    for i in range(rows.size):
        row = rows[i]
        reset(sim, row, scenarios[i])
        ended[row] = not advance_to_decision(sim, row, action_kind)
        if not ended[row]:
            write_observation(sim, row, action_kind, observation_kind, out, masks, table, row)


@kernel
def continue_rows(
    sim: Simulation,
    action_kind: int,
    observation_kind: int,
    rows: NDArray[np.int64],
    actions: NDArray[np.int64],
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    ended: NDArray[np.bool_],
) -> None:
    """Carry out one action in each of some rows and observe the next decision, without rewards."""
    for i in range(rows.size):
        row = rows[i]
        if carry_out_action(sim, row, action_kind, actions[i]):
            ended[row] = not advance_to_decision(sim, row, action_kind)
        if not ended[row]:
            write_observation(sim, row, action_kind, observation_kind, out, masks, table, row)


ACTIONS = {"gpu": GPU_ACTION, "node": NODE_ACTION, "candidate": CANDIDATE_ACTION}
OBSERVATIONS = {"patent": PATENT, "patent-literal": PATENT_LITERAL, "full": FULL}
WAITING_OPTIONS = {"off": False, "on": True}
POOL = 1024  # scenarios of the preset that are drawn where no problem is given


def problem_or_default(problem: Problem | None, waiting: str | None) -> Problem:
    """Return the problem, or scenarios of `hetero64` that nothing is evaluated on; waiting is `on` or `off` if given.

    Raises:
        ValueError: If waiting is neither.
    """
    run = hetero64(POOL, user_key(0)) if problem is None else problem
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
                least_random_makespan_s(self.sim, view.random_runs) if by_runs else against_s(self.sim)
            )
        nodes, gpus = problem.cluster.speed.size, problem.cluster.gpu_node.size
        size = observation_size(view.observation, view.action, gpus, nodes)
        self.low, self.high = observation_bounds(view.observation, size, gpus)
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
    def next_scenarios(self) -> NDArray[np.int64]:
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

    def snapshot_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what changes beside the simulation's state, so that a run can be saved and resumed."""
        return {"next": self._next, "paid_s": self._paid_s, "steps": self.steps}

    def observe_again(self) -> None:
        """Write observations and open actions of all rows again, after their state was restored."""
        view = self.view
        action, observation = ACTIONS[view.action], OBSERVATIONS[view.observation]
        for row in range(self.rows):
            write_observation(self.sim, row, action, observation, self.observations, self.masks, self._table, row)

    def is_cut_off(self) -> NDArray[np.bool_]:
        """Return which rows have ended with jobs unfinished, at the rules' time limit; shape (rows,)."""
        state = self.sim.state
        unfinished: NDArray[np.bool_] = state.finished < self.problem.scenarios.jobs[state.scenario]
        return self.ended & unfinished

    def episode_returns(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sum of rewards so far of some rows, without their rounding; shape of `rows`."""
        scenario = self.sim.state.scenario[rows]
        paid: NDArray[np.float64] = (self._credit_s[scenario] - self._paid_s[rows]) / self.unit_s[scenario]
        return paid

    def nearest_open_actions(self, chosen: ArrayLike) -> NDArray[np.int64]:
        """Return the actions with each closed one replaced by the next open one above it, the first after the last.

        Args:
            chosen: Actions, shape (rows,).

        Raises:
            ValueError: If one is no action, or the shape is another.
        """
        chosen = self.checked_actions(chosen)
        nearest = chosen.copy()
        rows = np.flatnonzero(~self.masks[np.arange(self.rows), chosen])
        if rows.size:
            above = (chosen[rows, None] + np.arange(self.actions)) % self.actions
            nearest[rows] = above[np.arange(rows.size), self.masks[rows[:, None], above].argmax(axis=1)]
        return nearest

    def checked_actions(self, actions: ArrayLike) -> NDArray[np.int64]:
        """Return the actions that are given for all rows, shape (rows,).

        Raises:
            ValueError: If one is no action, or the shape is another.
        """
        chosen = whole_numbers(actions, "action")
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
        chosen = self.checked_actions(chosen)
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
    unfinished = batch.is_cut_off()[rows]
    for jct_s in (figures.mean_jct_s, figures.p99_jct_s):
        jct_s[unfinished] = np.nan
    columns = {
        "r": batch.episode_returns(rows),
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


MAX_WHOLE_NUMBER = 2**62  # of an action or a scenario; seeds may be larger


def whole_numbers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Return numbers as integers, in their shape.

    Args:
        values: Integers, or floating numbers that are whole.
        name: Their name in the error, in the singular.

    Raises:
        ValueError: If one is no whole number, naming the first.
    """
    try:
        given = np.asarray(values)
    except (ValueError, TypeError) as error:  # lists of several lengths, arrays of another machine
        raise ValueError(f"{name} {_short_repr(values)} is no whole number") from error
    # NumPy takes a bool among integers for one of them.
    odd = [value for value in values if isinstance(value, bool | np.bool_)] if isinstance(values, list | tuple) else []
    if odd or given.dtype.kind not in "iuf":
        raise ValueError(f"{name} {_short_repr(odd[0] if odd else values)} is no whole number")
    if given.dtype == np.int64:
        return given
    with np.errstate(invalid="ignore"):
        wrong = given[~((given % 1 == 0) & (abs(given.astype(np.float64)) <= MAX_WHOLE_NUMBER))]
    if wrong.size:
        raise ValueError(f"{name} {wrong.flat[0]} is no whole number")
    return given.astype(np.int64)


def whole_number(value: object, name: str, *, least: int | None = None) -> int:
    """Return a number of any size as an integer of Python.

    Args:
        value: An integer, or a floating number that is whole.
        name: Its name in the error.
        least: The smallest that it may be, if there is one.

    Raises:
        ValueError: If it is no whole number, or too small.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} {_short_repr(value)} is no whole number{bound}")
    return number


def scenario_option(options: object, scenarios: int) -> int | None:
    """Return the scenario that the options of a reset name; None if they name none.

    Args:
        options: None, or a dict with `scenario` or nothing.
        scenarios: Number of scenarios.

    Raises:
        ValueError: If an option is unknown, or there is no such scenario.
    """
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise ValueError(f"options {_short_repr(options)} are no dict; write {{'scenario': 3}}")
    for name in options:
        if name != "scenario":
            raise ValueError(f"{name!r} is no option of reset; the only one is 'scenario'")
    if "scenario" not in options:
        return None
    scenario = options["scenario"]
    number = whole_number(scenario, "scenario")
    if not 0 <= number < scenarios:
        raise ValueError(f"there is no scenario {number}, only 0 to {scenarios - 1}")
    return number


def checked_seed(seed: object) -> int | None:
    """Return a seed as an integer, None if there is none.

    Raises:
        ValueError: If it is no whole number of at least 0.
    """
    return None if seed is None else whole_number(seed, "seed", least=0)


def draw_scenario(rng: np.random.Generator, scenarios: int) -> int:
    """Return the scenario that the generator of a seed draws; neighbouring seeds draw distant ones."""
    return int(rng.integers(scenarios))


def _short_repr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# Attribute of the observation space with the options of its environment. Stable-Baselines3 saves it as plain JSON.
OPTIONS_ATTRIBUTE = "longshore"


def spaces_of(batch: Batch) -> tuple[spaces.Space[NDArray[np.float32]], spaces.Discrete]:
    """Return observation and action space of one environment of a batch.

    The observation space has an attribute `longshore`: a dict of the action, the observation, whether waiting is one of
    the actions, and the GPUs of each node.
    """
    observations: spaces.Space[Any] = spaces.Box(batch.low, batch.high, dtype=np.float32)
    options: dict[str, Any] = {
        "action": batch.view.action, "observation": batch.view.observation,
        "waiting": bool(batch.problem.rules.waiting),
        "node_gpus": [int(gpus) for gpus in np.diff(batch.problem.cluster.first_gpu)],
    }  # fmt: skip
    setattr(observations, OPTIONS_ATTRIBUTE, options)
    return observations, spaces.Discrete(batch.actions)


def env_options(space: object) -> Mapping[str, Any] | None:
    """Return the options of the environment that a space belongs to, None if the space has none."""
    options = getattr(space, OPTIONS_ATTRIBUTE, None)
    return options if isinstance(options, Mapping) else None
