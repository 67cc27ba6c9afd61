"""Any policy, improved at decision time: its alternatives are tried out in imagined futures.

Source: rollout algorithms (Tesauro and Galperin, NIPS 1996; Bertsekas and Castanon, 1998); docs/policies.md, Rollouts.
"""

import struct
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.candidates import is_wait, list_moves, pick_move
from ...cluster.candidates.futures import (
    FUTURE,
    PRESENT,
    TRIAL,
    copy_row,
    draw_future,
    imagination_of,
    recall,
    without_faults,
)
from ...cluster.dispatch.placing import undo_picks
from ...cluster.files.errors import EndlessError, PluginError
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.border import rows_to_play
from ...cluster.state.state import Simulation
from ..learned.candidate_run import take_move
from ..learned.objective import goal_unit_s, spent_s
from ..learned.schema import Goal
from ..parts import Watchable
from ..protocol import Policy
from .posterior import Belief, belief_of, blend, worth_of


@runtime_checkable
class Base(Policy, Protocol):
    """A policy that can go on from any moment."""

    def play_on(self, sim: Simulation, row: int) -> None:
        """Play a row from where it stands to its end."""
        ...


@runtime_checkable
class Ranking(Base, Protocol):
    """A base that tells by how much moves differ; its own choice is the first of those that it tells most of."""

    def told(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """List the moves of the decision that is due and return what each gains, but for a constant, shape (moves,).

        In units of `goal_unit_s`; -inf for moves that it never takes.
        """
        ...

    @property
    def stand_in(self) -> Base:
        """Who is the base of rollouts in its place: itself, or one of its kind that takes less time."""
        ...


@runtime_checkable
class Foreseeing(Ranking, Protocol):
    """A base that can stop on its way and tell what is still to come."""

    @property
    def time_to_go(self) -> Goal | None:
        """Goal of which `value` tells what is still to come, None if it tells something else."""
        ...

    def play_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        """Play a row until so many jobs are started and a decision is due, or to its end.

        Return whether one is due, and what the run was foreseen to come to on the way, in seconds: the mean over the
        first decisions after each start from number `foresee_from` on, nan if there were none.
        """
        ...

    def value(self, sim: Simulation, row: int) -> float:
        """Return what is still to come at the decision that is due, in units of `goal_unit_s`."""
        ...


RANKED_WIDTH = 3  # moves beside the base's own that are tried by default where the base ranks them
RANKED_WORTH = 0.014  # units of `goal_unit_s`, as in Search
FORESEE_FROM = 6  # jobs that are started from the decision on before what is foreseen says much of the move tried
NEVER = 1 << 62  # starts


@dataclass(frozen=True, slots=True)
class Search:
    """How much is tried out at a decision.

    Args:
        futures: Imagined futures, the same for all moves; where the base ranks there is one more, without faults.
        width: Moves that are tried beside the base's.
        budget_s: Time for a decision. A try that goes on when it is spent is given up, and so is its future; a base
            that cannot be watched (parts.py) ends its try first.
        horizon: Jobs that are started from the decision on, that of the move that is tried among them, before the
            base's value stands for what is still to come; None plays to the end, and so does every try where the value
            tells another goal. Counted in jobs, not in decisions: moves are compared where equally many jobs are left,
            or the value's errors would not cancel. Where tries go to the end, a base that ranks and whose value tells
            the goal also foresees on the way what they come to.
        worth: Where the base ranks: a move is tried in one more future only while knowing for certain what it gains
            would be worth so much, in units of `goal_unit_s` (`worth_of`). With 0 all are tried in all.
    """

    futures: int = 8
    width: int = 12
    budget_s: float = float("inf")
    horizon: int | None = None
    worth: float = 0.0


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
    search = Search()
    if isinstance(base, Ranking):
        base, search = base.stand_in, Search(width=RANKED_WIDTH, worth=RANKED_WORTH)
    budget_s = float("inf") if budget_ms is None else budget_ms / 1000.0
    return Rollout(base, replace(search, budget_s=budget_s, horizon=horizon))


class _OutOfTimeError(Exception):
    """The budget of a decision was spent in the middle of a try."""


class _Tried(NamedTuple):
    """What was tried at a decision."""

    listed: int  # moves of the list that are looked at
    moves: list[int]  # of these, first the base's own choice, -1 if it has no number
    # (futures, moves) what the run came to at the end of each try, and what that was foreseen to be; nan if not tried
    ends_s: NDArray[np.float64]
    foreseen_s: NDArray[np.float64]
    taken: int  # place in `moves`


class Rollout:
    """Takes the move that, followed by the base policy, does best in imagined futures.

    It leaves the base's own choice only for a mean gain of over one standard error of the paired differences. Where the
    base itself tells by how much moves differ, it takes what is believed to gain most (belief.py), and tries no move on
    that is settled.

    Args:
        base: Decides in the imagined futures, and by default.
        search: How much is tried out.
        goal: What is minimised; if None, the makespan while all known jobs were submitted at once, and then the mean
            JCT.
        seed: Of the imagined futures.

    Raises:
        PluginError: If the search has a horizon and the base tells no time to go.
    """

    waits = True  # it tries waiting out, whatever its base does; one that ranks must have been trained to

    def __init__(self, base: Base, search: Search, goal: Goal | None = None, seed: int = 0) -> None:
        self._began_s = 0.0
        player = base
        if search.budget_s < float("inf") and isinstance(base, Watchable):
            player = base.watched(self._look)
        self.base, self.search, self.goal, self.seed = base, search, goal, seed
        # Asked once: Python takes longer for it than a base does for a decision.
        self._ranking = base if isinstance(base, Ranking) else None
        self._player = player
        self._foreseeing = player if isinstance(player, Foreseeing) and player.time_to_go is not None else None
        if search.horizon is not None and self._foreseeing is None:
            raise PluginError(
                f"rollouts of {base.name!r} cannot be cut off: no value tells what is still to come; "
                "train a checkpoint by --algo group or distil, or leave the horizon out"
            )
        self._imagined: tuple[Simulation, Simulation] | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"rollout:{self.base.name}"

    @property
    def about(self) -> str:
        """One line of description."""
        horizon = self.search.horizon
        until = "" if horizon is None else f", cut off after {horizon} jobs"
        most = "at most " if self._ranking else ""
        return f"{self.base.name}, its alternatives tried out in {most}{self.search.futures} imagined futures{until}"

    def _imagination(self, sim: Simulation) -> Simulation:
        if self._imagined is None or self._imagined[0] is not sim:
            self._imagined = (sim, imagination_of(sim))
        return self._imagined[1]

    def gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return by how much each move of the list is better than the base's own choice, in seconds.

        By the ends of the tries. Shape (futures, moves); nan for moves that were not tried. Futures that the budget cut
        off are left out. Where the base ranks, the future without faults stands before the others. The list stands in
        the imagination's row PRESENT.
        """
        return self.gains_both_ways(sim, row)[0]

    def gains_both_ways(self, sim: Simulation, row: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gains by the ends of the tries, and the same by what these were foreseen to be on the way."""
        tried = self._tried(sim, row)
        both = []
        for costs_s in (tried.ends_s, tried.foreseen_s):
            gains = np.full((len(costs_s), tried.listed), np.nan)
            for place, move in enumerate(tried.moves):
                if move >= 0:
                    gains[:, move] = costs_s[:, 0] - costs_s[:, place]
            both.append(gains)
        return both[0], both[1]

    def costs_s(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return what the run comes to by each of the list's first 1 + `width` moves, shape (futures, moves).

        There is no future where there is but one move.
        """
        began, imagined = time.perf_counter(), self._recalled(sim, row)
        moves = list(range(min(list_moves(imagined, PRESENT), 1 + self.search.width)))
        return self._costs_s(sim, row, moves, began)

    def _recalled(self, sim: Simulation, row: int) -> Simulation:
        """Return the imagination, put at the decision that is due."""
        imagined = self._imagination(sim)
        recall(imagined, sim, row)
        return imagined

    def _tried(self, sim: Simulation, row: int) -> _Tried:
        """Try the moves of the decision that is due."""
        began, imagined = time.perf_counter(), self._recalled(sim, row)
        if self._ranking is not None:
            return self._ranked(sim, row, self._ranking.told(imagined, PRESENT), began)
        listed = min(list_moves(imagined, PRESENT), 1 + self.search.width)
        moves = [-1, *range(listed)]
        costs_s = self._costs_s(sim, row, moves, began)
        if len(costs_s) < 2:
            return _Tried(listed, moves, costs_s, costs_s, 0)
        gains_s = costs_s[:, :1] - costs_s
        mean_s, error_s = gains_s.mean(axis=0), gains_s.std(axis=0, ddof=1) / np.sqrt(len(gains_s))
        best = int(np.argmax(mean_s))
        return _Tried(listed, moves, costs_s, costs_s, best if mean_s[best] > error_s[best] else 0)

    def _ranked(self, sim: Simulation, row: int, told: NDArray[np.float64], began: float) -> _Tried:
        """Try the moves that a base tells most of, future by future, as long as that is worth it."""
        imagined = self._imagination(sim)
        order = np.argsort(-told, kind="stable")[: 1 + self.search.width]
        order = order[np.isfinite(told[order])]
        moves, gaps = order.tolist(), told[order] - told[order[0]]
        unit_s = goal_unit_s(imagined, PRESENT, self._goal(imagined))
        foresee_from = FORESEE_FROM if self.search.horizon is None else NEVER
        ends_s, foreseen_s, taken = np.zeros((0, len(moves))), np.zeros((0, len(moves))), 0
        left = self._unsettled(belief_of(ends_s, gaps), np.arange(len(moves)))
        for future in range(-1, self.search.futures):
            if left.size < 2:
                break
            with without_faults(imagined) if future < 0 else nullcontext():
                tried = [moves[i] for i in left]
                tried_s = self._future_s(imagined, self._seed(sim, row, future), tried, began, foresee_from)
            if tried_s.size == 0:
                break
            ends_s, foreseen_s = (np.vstack((table, np.full(len(moves), np.nan))) for table in (ends_s, foreseen_s))
            ends_s[-1, left], foreseen_s[-1, left] = tried_s
            costs_s = blend(ends_s[:, left], foreseen_s[:, left])
            belief = belief_of((costs_s[:, :1] - costs_s) / unit_s, gaps[left])
            taken = int(left[np.argmax(belief.mean)])
            left = self._unsettled(belief, left)
        return _Tried(told.size, moves, ends_s, foreseen_s, taken)

    def _unsettled(self, belief: Belief, left: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which moves are to be tried on, the base's own choice and the best among them; none if no others."""
        is_open = worth_of(belief) >= self.search.worth
        if not is_open.any():
            return left[:0]
        is_open[0] = is_open[np.argmax(belief.mean)] = True
        return left[is_open]

    def _costs_s(self, sim: Simulation, row: int, moves: list[int], began: float) -> NDArray[np.float64]:
        """Return what moves come to in each future, shape (futures, moves); none where there is nothing to compare."""
        imagined = self._imagination(sim)
        parts = [np.zeros((0, len(moves)))]
        for future in range(self.search.futures if len(moves) > 1 else 0):
            tried_s = self._future_s(imagined, self._seed(sim, row, future), moves, began, NEVER)
            if tried_s.size == 0:
                break
            parts.append(tried_s[:1])
        return np.concatenate(parts)

    def _future_s(
        self, imagined: Simulation, seed: int, moves: list[int], began: float, foresee_from: int
    ) -> NDArray[np.float64]:
        """Return what moves come to in one future, and what that is foreseen to be on the way, shape (2, moves).

        Both are the same where that is not foreseen of all, or the errors of what is would not cancel. Of shape (2, 0)
        if there was not time for all, or if by the hazards that are believed a job would never end.
        """
        tried_s = np.zeros((2, len(moves)))
        copy_row(imagined, PRESENT, FUTURE)
        draw_future(imagined, seed)
        self._began_s = began
        try:
            for place, move in enumerate(moves):
                self._look()
                tried_s[:, place] = self._try(imagined, move, foresee_from)
        except (_OutOfTimeError, EndlessError):
            return tried_s[:, :0]
        if np.isnan(tried_s[1]).any():
            tried_s[1] = tried_s[0]
        return tried_s

    def _look(self) -> None:
        """Look at the clock.

        Raises:
            _OutOfTimeError: If the budget of the decision is spent.
        """
        if time.perf_counter() - self._began_s > self.search.budget_s:
            raise _OutOfTimeError

    def _seed(self, sim: Simulation, row: int, future: int) -> int:
        """Return the key of a future: it depends on the workload and the decision, and on nothing that is not known."""
        state = sim.state
        known = (self.seed, int(state.decisions[row]), future, float(state.estimates_s[row]))
        return crc32(struct.pack("<qqqd", *known))

    def _try(self, imagined: Simulation, move: int, foresee_from: int) -> tuple[float, float]:
        """Return what a move comes to in the future that stands in row FUTURE; the base's own choice for -1.

        And what that was foreseen to be on the way, from so many starts on; nan if it never was.
        """
        copy_row(imagined, FUTURE, TRIAL)
        started = 0
        if move >= 0:
            started = 1 - int(is_wait(imagined, TRIAL, move))
            take_move(imagined, TRIAL, move)
        goal, base = self._goal(imagined), self._foreseeing
        if base is None or base.time_to_go != goal:
            self._player.play_on(imagined, TRIAL)
            return spent_s(imagined, TRIAL, goal), np.nan
        horizon = NEVER if self.search.horizon is None else self.search.horizon
        is_due, foreseen_s = base.play_for(imagined, TRIAL, horizon - started, foresee_from - started)
        end_s = spent_s(imagined, TRIAL, goal)
        if is_due:
            end_s += base.value(imagined, TRIAL) * goal_unit_s(imagined, TRIAL, goal)
        return end_s, foreseen_s

    def _goal(self, imagined: Simulation) -> Goal:
        jobs = imagined.scenarios.jobs[0]
        return self.goal or ("jct" if imagined.scenarios.submit_s[0, :jobs].any() else "makespan")

    def choose(self, sim: Simulation, row: int) -> int:
        """Return the number of the move to take, -1 for the base's own choice."""
        tried = self._tried(sim, row)
        return tried.moves[tried.taken] if tried.taken > 0 else -1

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
        for row, scenario in enumerate(rows_to_play(sim, scenarios)):
            reset(sim, row, scenario)
            self.play_on(sim, row)
