"""Any policy, improved at decision time: its alternatives are tried out in imagined futures.

Source: rollout algorithms (Tesauro and Galperin, NIPS 1996; Bertsekas and Castanon, 1998); docs/policies.md, Rollouts.
"""

import time
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..cluster.engine import advance, reset, start, wait
from ..cluster.errors import PluginError
from ..cluster.imagine import FUTURE, PRESENT, TRIAL, copy_row, draw_future, imagination_of, recall
from ..cluster.moves import list_moves, pick_move
from ..cluster.placing import undo_picks
from ..cluster.state import Simulation
from ..envs.features import time_unit_s
from .move_play import take_move
from .protocol import Policy
from .schema import Goal


@runtime_checkable
class Base(Policy, Protocol):
    """A policy that can go on from any moment."""

    def play_on(self, sim: Simulation, row: int) -> None:
        """Play a row from where it stands to its end."""
        ...


@runtime_checkable
class Ranking(Base, Protocol):
    """A base that scores the moves of the list; its own choice is the one of the largest score.

    Moves that it never takes have a score of -inf.
    """

    def scores(self, sim: Simulation, row: int) -> NDArray[np.float32]:
        """List the moves of the decision that is due and return their scores, shape (moves,)."""
        ...


@runtime_checkable
class Foreseeing(Ranking, Protocol):
    """A base that can stop on its way and tell what is still to come."""

    @property
    def time_to_go(self) -> Goal | None:
        """Goal of which `value` tells what is still to come, None if it tells something else."""
        ...

    def play_for(self, sim: Simulation, row: int, decisions: int) -> bool:
        """Play so many decisions of a row, or fewer if it ends; say whether one more is due."""
        ...

    def value(self, sim: Simulation, row: int) -> float:
        """Return what is still to come at the decision that is due, in units of `goal_unit_s`."""
        ...


RANKED_WIDTH = 2  # moves beside the base's own that are tried by default where the base ranks them


@dataclass(frozen=True, slots=True)
class Search:
    """How much is tried out at a decision.

    Args:
        futures: Imagined futures, the same for all moves.
        width: Moves that are tried beside the base's.
        budget_s: Time for a decision, which at most one more try passes; futures are given up for it.
        horizon: Decisions of the base that are played after the move that is tried, before its value stands for what
            is still to come; None plays to the end.
    """

    futures: int = 8
    width: int = 12
    budget_s: float = float("inf")
    horizon: int | None = None


def goal_unit_s(sim: Simulation, row: int, goal: Goal) -> float:
    """Return the unit of what a goal costs: that of the features' times, for each job in the system if `jct` counts."""
    jobs = int(sim.state.queued[row] + sim.state.running[row]) if goal == "jct" else 1
    return time_unit_s(sim, row) * max(jobs, 1)


def spent_s(sim: Simulation, row: int, goal: Goal) -> float:
    """Return what a run has cost so far: the time, or for `jct` that of all jobs in the system together."""
    return float((sim.state.now_s if goal == "makespan" else sim.state.job_time_s)[row])


def rollout_of(base: Policy, budget_ms: float | None = None, horizon: int | None = None) -> "Rollout":
    """Return rollouts of a policy with the default search, and with these limits if they are given.

    Args:
        base: The policy.
        budget_ms: Time for a decision.
        horizon: As in Search.

    Raises:
        PluginError: If the policy cannot go on from any moment, or there is a horizon and it tells no time to go.
    """
    if not isinstance(base, Base):
        raise PluginError(f"policy {base.name!r} cannot be the base of rollouts: it has no play_on")
    width = RANKED_WIDTH if isinstance(base, Ranking) else Search().width
    budget_s = float("inf") if budget_ms is None else budget_ms / 1000.0
    return Rollout(base, Search(width=width, budget_s=budget_s, horizon=horizon))


def _told_goal(base: Base, goal: Goal | None) -> Goal:
    """Return the goal of which a base tells what is still to come, which must be the one that is asked for, if any."""
    told = base.time_to_go if isinstance(base, Foreseeing) else None
    if told is None:
        raise PluginError(
            f"rollouts of {base.name!r} cannot be cut off: no value tells what is still to come; "
            "train a checkpoint by --algo group or distil, or leave the horizon out"
        )
    if goal not in (None, told):
        raise PluginError(f"rollouts of {base.name!r} for {goal} cannot be cut off: its value tells {told}")
    return told


class Rollout:
    """Takes the move that, followed by the base policy, does best in imagined futures.

    It leaves the base's own choice only for a mean gain of over one standard error of the paired differences.

    Args:
        base: Decides in the imagined futures, and by default.
        search: How much is tried out.
        goal: What is minimised; if None, what the base's value tells where the search has a horizon, and else the
            makespan while all known jobs were submitted at once, and then the mean JCT.
        seed: Of the imagined futures.

    Raises:
        PluginError: If the search has a horizon and the base tells no time to go, or that of another goal.
    """

    waits = True  # it tries waiting out, whatever its base does

    def __init__(self, base: Base, search: Search, goal: Goal | None = None, seed: int = 0) -> None:
        self.base, self.search, self.seed = base, search, seed
        self.goal = goal if search.horizon is None else _told_goal(base, goal)
        self._imagined: tuple[Simulation, Simulation] | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"rollout:{self.base.name}"

    @property
    def about(self) -> str:
        """One line of description."""
        horizon = self.search.horizon
        until = "" if horizon is None else f", cut off after {horizon} decisions"
        return f"{self.base.name}, its alternatives tried out in {self.search.futures} imagined futures{until}"

    def _imagination(self, sim: Simulation) -> Simulation:
        if self._imagined is None or self._imagined[0] is not sim:
            self._imagined = (sim, imagination_of(sim))
        return self._imagined[1]

    def gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return by how much each move of the list is better than the base's own choice, in seconds.

        Shape (futures, moves); nan for moves that were not tried. Futures that the budget cut off are left out. The
        list stands in the imagination's row PRESENT.
        """
        began, imagined = time.perf_counter(), self._recalled(sim, row)
        moves, tries = self._tries(imagined)
        costs_s = self._costs_s(sim, row, tries, began)
        gains = np.full((costs_s.shape[0], moves), np.nan)
        for place, move in enumerate(tries):
            if move >= 0:
                gains[:, move] = costs_s[:, 0] - costs_s[:, place]
        return gains

    def costs_s(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return what the run comes to by each of the list's first 1 + `width` moves, shape (futures, moves).

        There is no future where there is but one move.
        """
        began, imagined = time.perf_counter(), self._recalled(sim, row)
        tries = list(range(min(list_moves(imagined, PRESENT), 1 + self.search.width)))
        return self._costs_s(sim, row, tries, began)

    def _recalled(self, sim: Simulation, row: int) -> Simulation:
        """Return the imagination, put at the decision that is due."""
        imagined = self._imagination(sim)
        recall(imagined, sim, row)
        return imagined

    def _costs_s(self, sim: Simulation, row: int, tries: list[int], began: float) -> NDArray[np.float64]:
        """Return what moves come to in each future, shape (futures, tries); none where there is nothing to compare."""
        imagined = self._imagination(sim)
        costs_s = np.zeros((self.search.futures, len(tries)))
        if len(tries) == 1:
            return costs_s[:0]
        for future in range(self.search.futures):
            copy_row(imagined, PRESENT, FUTURE)
            draw_future(imagined, self._seed(sim, row, future))
            for place, move in enumerate(tries):
                if time.perf_counter() - began > self.search.budget_s:
                    return costs_s[:future]
                costs_s[future, place] = self._cost_s(imagined, move)
        return costs_s

    def _tries(self, imagined: Simulation) -> tuple[int, list[int]]:
        """Return how many moves there are, and which are tried: first the base's own choice, -1 if it has no number."""
        if isinstance(self.base, Ranking):
            scores = self.base.scores(imagined, PRESENT)
            return scores.size, np.argsort(-scores, kind="stable")[: 1 + self.search.width].tolist()
        moves = min(list_moves(imagined, PRESENT), 1 + self.search.width)
        return moves, [-1, *range(moves)]

    def _seed(self, sim: Simulation, row: int, future: int) -> int:
        """Return the key of a future: it depends on the decision and on nothing that is not known."""
        decision = int(sim.state.decisions[row])
        return (self.seed * 1_000_003 + decision * 8191 + future * 104_729 + 1) & 0xFFFFFFFF

    def _cost_s(self, imagined: Simulation, move: int) -> float:
        """Return what a move comes to in the future that stands in row FUTURE; the base's own choice for -1."""
        copy_row(imagined, FUTURE, TRIAL)
        if move >= 0:
            take_move(imagined, TRIAL, move)
        jobs = imagined.scenarios.jobs[0]
        goal = self.goal or ("jct" if imagined.scenarios.submit_s[0, :jobs].any() else "makespan")
        left_s = self._play_trial(imagined, goal)
        return spent_s(imagined, TRIAL, goal) + left_s

    def _play_trial(self, imagined: Simulation, goal: Goal) -> float:
        """Play row TRIAL to the end, or as far as is looked; return what then is still to come."""
        horizon, base = self.search.horizon, self.base
        if horizon is None:
            base.play_on(imagined, TRIAL)
            return 0.0
        assert isinstance(base, Foreseeing)  # or `_told_goal` would have refused it
        if not base.play_for(imagined, TRIAL, horizon):
            return 0.0
        return base.value(imagined, TRIAL) * goal_unit_s(imagined, TRIAL, goal)

    def choose(self, sim: Simulation, row: int) -> int:
        """Return the number of the move to take, -1 for the base's own choice."""
        gains = self.gains(sim, row)
        if gains.shape[0] < 2:
            return -1
        tried = np.flatnonzero(~np.isnan(gains[0]))
        mean_s = gains[:, tried].mean(axis=0)
        error_s = gains[:, tried].std(axis=0, ddof=1) / np.sqrt(gains.shape[0])
        best = int(np.argmax(mean_s))
        return int(tried[best]) if mean_s[best] > error_s[best] else -1

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        move = self.choose(sim, row)
        if move < 0:
            return self.base.place(sim, row)
        list_moves(sim, row)
        return bool(pick_move(sim, row, move))

    def play_on(self, sim: Simulation, row: int) -> None:
        """Play a row from where it stands to its end."""
        while advance(sim, row):
            if self.place(sim, row):
                start(sim, row)
            else:
                undo_picks(sim, row)
                wait(sim, row)

    def play(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Play one scenario in each row, from its beginning to its end."""
        for row, scenario in enumerate(scenarios):
            reset(sim, row, scenario)
            self.play_on(sim, row)
