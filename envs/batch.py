"""Many placement environments played side by side by one compiled step; what all environment classes stand on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cluster.scenarios import FaultProcess, Rules, Scenarios
from ..cluster.simulation import simulation_of
from ..cluster.topology import Cluster
from .features import NODE_COUNT
from .layout import bounds, observation_size
from .rewards import REWARDS
from .stepping import FULL, GPU_ACTION, NODE_ACTION, SOURCE, begin_rows, step_rows
from .units import units_of

ACTIONS = {"gpu": GPU_ACTION, "node": NODE_ACTION}
OBSERVATIONS = {"source": SOURCE, "full": FULL}


@dataclass(frozen=True, slots=True)
class Problem:
    """What environments play: scenarios of a cluster, with faults and rules. Waiting is part of the rules."""

    cluster: Cluster
    scenarios: Scenarios
    process: FaultProcess
    rules: Rules


@dataclass(frozen=True, slots=True)
class View:
    """How a policy sees and acts.

    Args:
        action: `gpu` (one GPU a step, SPEC R4) or `node` (one node a step, which gives as many free GPUs as needed).
        observation: `source` (SPEC R2) or `full` (envs/layout.py).
        reward: `dt`, `potential` or `jct` (envs/rewards.py).
    """

    action: str = "node"
    observation: str = "full"
    reward: str = "potential"

    def __post_init__(self) -> None:
        for value, known in ((self.action, ACTIONS), (self.observation, OBSERVATIONS), (self.reward, REWARDS)):
            if value not in known:
                raise ValueError(f"{value!r} is none of {', '.join(known)}")


class Batch:
    """Rows of environments. Arrays are views of the present step and are overwritten by the next.

    Row r plays scenarios r, r + rows, r + 2 rows ... (modulo their number), so what it meets does not depend on
    how the others fare.

    Args:
        problem: What is played.
        view: How it is seen and acted on.
        rows: Environments.
    """

    def __init__(self, problem: Problem, view: View, rows: int) -> None:
        self.problem, self.view, self.rows = problem, view, rows
        self.sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, rows=rows)
        self.units = units_of(problem.cluster, problem.scenarios)
        nodes, gpus = problem.cluster.speed.size, problem.cluster.gpu_node.size
        size = observation_size(view.observation, view.action, gpus, nodes)
        self.low, self.high = bounds(view.observation, size, gpus)
        self.actions = (nodes if view.action == "node" else gpus) + int(problem.rules.waiting)
        self.observations = np.zeros((rows, size), dtype=np.float32)
        self.masks = np.zeros((rows, self.actions), dtype=np.bool_)
        self.rewards = np.zeros(rows, dtype=np.float32)
        self.ended = np.zeros(rows, dtype=np.bool_)
        self._table = np.zeros((rows, nodes * NODE_COUNT), dtype=np.float32)
        self._next = np.arange(rows, dtype=np.int64)

    def reset(self, first: int = 0) -> None:
        """Put every row at the first decision of a scenario: row r at number first + r."""
        self._next = first + np.arange(self.rows, dtype=np.int64)
        self.reset_rows(np.arange(self.rows, dtype=np.int64))

    def reset_rows(self, rows: NDArray[np.int64]) -> None:
        """Put some rows at the first decision of their next scenarios."""
        scenarios = self._next[rows] % self.problem.scenarios.jobs.size
        self._next[rows] += self.rows
        begin_rows(
            self.sim,
            ACTIONS[self.view.action],
            OBSERVATIONS[self.view.observation],
            self.units.typical_s,
            rows,
            scenarios,
            self.observations,
            self.masks,
            self._table,
            np.zeros(self.rows, dtype=np.bool_),
        )

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what changes beside the simulation's state, so that a run can be kept and taken up again."""
        return {"observations": self.observations, "masks": self.masks, "next": self._next}

    def cut_off(self, row: int) -> bool:
        """Say whether a row that has ended did so with jobs unfinished, at the rules' time limit."""
        state = self.sim.state
        return bool(state.finished[row] < self.problem.scenarios.jobs[state.scenario[row]])

    def step(self, chosen: NDArray[np.int64]) -> None:
        """Carry out one allowed action in every row; rows that end stay at their end until they are reset.

        Args:
            chosen: Actions, shape (rows,), each open in `masks`.

        Raises:
            ValueError: If an action is closed: the simulation is left as it was.
        """
        if chosen.shape != (self.rows,):
            raise ValueError(f"actions have shape {chosen.shape}, expected {(self.rows,)}")
        inside = (chosen >= 0) & (chosen < self.actions)
        allowed = inside & self.masks[np.arange(self.rows), np.where(inside, chosen, 0)]
        if not allowed.all():
            row = int(np.flatnonzero(~allowed)[0])
            raise ValueError(f"action {chosen[row]} of row {row} is masked; open: {np.flatnonzero(self.masks[row])}")
        step_rows(
            self.sim,
            ACTIONS[self.view.action],
            OBSERVATIONS[self.view.observation],
            REWARDS[self.view.reward],
            self.units.typical_s,
            self.units.ideal_s,
            np.ascontiguousarray(chosen, dtype=np.int64),
            self.observations,
            self.masks,
            self._table,
            self.rewards,
            self.ended,
        )
