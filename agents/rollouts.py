"""Any policy, improved at decision time: its alternatives are tried out in imagined futures.

Source: value of information (Howard, 1966); docs/policies.md, Rollouts; rollout algorithms (Tesauro and Galperin, NIPS
1996; Bertsekas and Castanon, 1998).
"""

import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..cluster.candidates.candidates import is_wait, list_candidates, pick_candidate
from ..cluster.candidates.futures import (
    FUTURE,
    PRESENT,
    TRIAL,
    copy_candidates,
    copy_row,
    draw_future,
    imagination_of,
    recall,
    without_faults,
)
from ..cluster.files.errors import EndlessError, PluginError
from ..cluster.model.outcome import Objective, objective_of
from ..cluster.placing import undo_picks
from ..cluster.simulator.engine import advance, reset, start, wait
from ..cluster.state.border import rows_to_run
from ..cluster.state.state import Simulation
from .learned.decisions import objective_unit_s, spent_s
from .networks.candidate_run import take_candidate
from .protocol import Policy, Watchable


class Imagining(NamedTuple):
    """What imagines futures, as in cluster/candidates/futures.py."""

    imagination_of: Callable[[Simulation], Simulation] = imagination_of
    recall: Callable[[Simulation, Simulation, int], None] = recall
    draw_future: Callable[[Simulation, int], None] = draw_future
    without_faults: Callable[[Simulation], AbstractContextManager[None]] = without_faults


IMAGINING = Imagining()


# Fitted to decisions of rollouts' own runs on hetero64, of which each candidate was tried in 64 futures more; on other
# workloads than those that policies are scored on.
# Variance of what a candidate truly gains, by the gap that is told between it and the base's own choice, in units of
# `objective_unit_s`: candidates that look alike end alike, but for what the network cannot see. `distil/spread` of a
# run is the same without a floor, on labels that are held out.
FLOOR, SLOPE = 0.004, 0.2
# Variance of a gain in one future, as a multiple of that; it is known as well as if so many futures had shown it.
NOISE, NOISE_FUTURES = 2.7, 10
# How many futures the ends count as beside those that were tried, and how many what was foreseen counts as.
ENDS, FORESEEN = 24, 48


class Posterior(NamedTuple):
    """Gains over the base's own choice, which is the first candidate, in units of `objective_unit_s`."""

    mean: NDArray[np.float64]  # (candidates,), 0 for the first
    variance: NDArray[np.float64]  # (candidates,), 0 for the first


def blend(ends_s: NDArray[np.float64], foreseen_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what tries come to, by their ends and by what was foreseen on the way, all of shape (futures, candidates).

    What is foreseen has less chance in it, and the errors of who foresees: the more futures, the more the ends count.
    """
    share = FORESEEN / (ENDS + FORESEEN + len(ends_s))
    return ends_s + share * (foreseen_s - ends_s)


def posterior_of(gains: NDArray[np.float64], predicted_gains: NDArray[np.float64]) -> Posterior:
    """Return the mean of three estimates, weighted by their variances.

    These are what is told, the gain in a future without faults, and the mean gain in futures that are drawn. The first
    two have the variance FLOOR + SLOPE x |predicted|; the third has the same for each future, and that of its sample,
    which is pooled with NOISE x as much from NOISE_FUTURES futures.

    Args:
        gains: In the future without faults and in others, shape (1 + futures, candidates), or (0, candidates) if
            nothing was tried; 0 for the first candidate.
        predicted_gains: By the base, shape (candidates,); 0 for the first candidate.
    """
    spread = FLOOR + SLOPE * np.abs(predicted_gains)
    calm, drawn = gains[:1], gains[1:]
    futures = len(drawn)
    sample = futures * drawn.var(axis=0) if futures else 0.0
    noise = (NOISE * NOISE_FUTURES * spread + sample) / (NOISE_FUTURES + max(futures - 1, 0))
    weight = futures * spread / (spread + noise)
    total = predicted_gains + calm.sum(axis=0) + weight * (drawn.mean(axis=0) if futures else 0.0)
    weights = 1.0 + len(calm) + weight
    variance = spread / weights
    variance[0] = 0.0
    return Posterior(total / weights, variance)


def value_of_information(posterior: Posterior) -> NDArray[np.float64]:
    """Return the value of knowing each candidate's gain for certain before one is chosen, shape (candidates,).

    That is E max(x, 0) of the normal difference x between a candidate and the one believed best; 0 for that one.
    """
    from scipy.special import ndtr

    best = int(np.argmax(posterior.mean))
    spread = np.sqrt(posterior.variance + posterior.variance[best])
    behind = posterior.mean[best] - posterior.mean
    steps = np.divide(behind, spread, out=np.full_like(spread, 40.0), where=spread > 0.0)
    density = np.exp(-0.5 * steps**2) / np.sqrt(2.0 * np.pi)
    value: NDArray[np.float64] = np.maximum(spread * density - behind * ndtr(-steps), 0.0)
    value[best] = 0.0
    return value


@runtime_checkable
class Base(Policy, Protocol):
    """A policy that can go on from any moment."""

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row from where it stands to its end."""
        ...


@runtime_checkable
class Ranking(Base, Protocol):
    """A base that tells by how much candidates differ; its own choice is the first of those that it tells most of."""

    def predicted_gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """List the candidates of the decision that is due and predict their gains but for a constant, (candidates,).

        In units of `objective_unit_s`; -inf for candidates that it never takes.
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
    def time_to_go(self) -> Objective | None:
        """Objective of which `value` tells what is still to come, None if it tells something else."""
        ...

    def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        """Run a row until so many jobs are started and a decision is due, or to its end.

        Return whether one is due, and what the run was foreseen to come to on the way, in seconds: the mean over the
        first decisions after each start from number `foresee_from` on, nan if there were none.
        """
        ...

    def value(self, sim: Simulation, row: int) -> float:
        """Return what is still to come at the decision that is due, in units of `objective_unit_s`."""
        ...


RANKED_WIDTH = 3  # candidates beside the base's own that are tried by default where the base ranks them
RANKED_VALUE = 0.014  # units of `objective_unit_s`, as in Search
FORESEE_FROM = 6  # jobs that are started from the decision on before what is foreseen says much of the candidate tried
NEVER = 1 << 62  # starts


@dataclass(frozen=True, slots=True)
class Search:
    """How much is tried out at a decision.

    Args:
        futures: Imagined futures, the same for all candidates; where the base ranks there is one more, without faults.
        width: Candidates that are tried beside the base's.
        budget_s: Time for a decision. A try that goes on when it is spent is given up, and so is its future; a base
            that cannot be watched (parts.py) ends its try first.
        horizon: Jobs that are started from the decision on, that of the candidate that is tried among them, before the
            base's value stands for what is still to come; None runs to the end, and so does every try where the value
            tells another objective. Counted in jobs, not in decisions: candidates are compared where equally many jobs
            are left, or the value's errors would not cancel. Where tries go to the end, a base that ranks and whose
            value tells the objective also foresees on the way what they come to.
        least_value: Where the base ranks: a candidate is tried in one more future only while knowing for certain what
            it gains would be worth so much, in units of `objective_unit_s` (`value_of_information`). With 0 all
            are tried in all.
    """

    futures: int = 8
    width: int = 12
    budget_s: float = float("inf")
    horizon: int | None = None
    least_value: float = 0.0


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
        raise PluginError(f"policy {base.name!r} cannot be the base of rollouts: it has no run_on")
    search = Search()
    if isinstance(base, Ranking):
        base, search = base.stand_in, Search(width=RANKED_WIDTH, least_value=RANKED_VALUE)
    budget_s = float("inf") if budget_ms is None else budget_ms / 1000.0
    return Rollout(base, replace(search, budget_s=budget_s, horizon=horizon))


class _OutOfTimeError(Exception):
    """The budget of a decision was spent in the middle of a try."""


class _Tried(NamedTuple):
    """What was tried at a decision."""

    listed: int  # candidates of the list that are looked at
    candidates: list[int]  # of these, first the base's own choice, -1 if it has no number
    # (futures, candidates) what the run came to at the end of each try, and what that was foreseen to be; nan if
    # not tried
    ends_s: NDArray[np.float64]
    foreseen_s: NDArray[np.float64]
    taken: int  # place in `candidates`


class Rollout:
    """Takes the candidate that, followed by the base policy, does best in imagined futures.

    It leaves the base's own choice only for a mean gain of over one standard error of the paired differences. Where the
    base itself tells by how much candidates differ, it takes what is believed to gain most (posterior.py), and tries no
    candidate on that is settled.

    Args:
        base: Decides in the imagined futures, and by default.
        search: How much is tried out.
        objective: What is minimised; if None, the makespan while all known jobs were submitted at once, and then the
            mean JCT.
        seed: Of the imagined futures.
        imagining: What imagines them.
        passed_s: The clock of the budget.

    Raises:
        PluginError: If the search has a horizon and the base tells no time to go.
    """

    waits = True  # it tries waiting out, whatever its base does; one that ranks must have been trained to

    def __init__(
        self, base: Base, search: Search, objective: Objective | None = None, seed: int = 0, *,
        imagining: Imagining = IMAGINING, passed_s: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._imagining, self._passed_s, self._began_s, self._kept_s = imagining, passed_s, 0.0, 0.0
        actor = base
        if search.budget_s < float("inf") and isinstance(base, Watchable):
            actor = base.watched(self._look)
        self.base, self.search, self.objective, self.seed = base, search, objective, seed
        # Asked once: Python takes longer for it than a base does for a decision.
        self._ranking = base if isinstance(base, Ranking) else None
        self._actor = actor
        self._foreseeing = actor if isinstance(actor, Foreseeing) and actor.time_to_go is not None else None
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
            self._imagined = (sim, self._imagining.imagination_of(sim))
        return self._imagined[1]

    def gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return by how much each candidate of the list is better than the base's own choice, in seconds.

        By the ends of the tries. Shape (futures, candidates); nan for candidates that were not tried. Futures that the
        budget cut off are left out. Where the base ranks, the future without faults stands before the others. The list
        stands in the imagination's row PRESENT.
        """
        return self.gains_both_ways(sim, row)[0]

    def gains_both_ways(self, sim: Simulation, row: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gains by the ends of the tries, and the same by what these were foreseen to be on the way."""
        tried = self._tried(sim, row)
        both = []
        for costs_s in (tried.ends_s, tried.foreseen_s):
            gains = np.full((len(costs_s), tried.listed), np.nan)
            for place, candidate in enumerate(tried.candidates):
                if candidate >= 0:
                    gains[:, candidate] = costs_s[:, 0] - costs_s[:, place]
            both.append(gains)
        return both[0], both[1]

    def costs_s(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return what the run comes to by each of the list's first 1 + `width` candidates, shape (futures, candidates).

        There is no future where there is but one candidate.
        """
        began, imagined = self._passed_s(), self._recalled(sim, row)
        candidates = list(range(min(list_candidates(imagined, PRESENT), 1 + self.search.width)))
        return self._costs_s(sim, row, candidates, began)

    def _recalled(self, sim: Simulation, row: int) -> Simulation:
        """Return the imagination, put at the decision that is due."""
        imagined = self._imagination(sim)
        self._imagining.recall(imagined, sim, row)
        return imagined

    def _tried(self, sim: Simulation, row: int) -> _Tried:
        """Try the candidates of the decision that is due."""
        began, imagined = self._passed_s(), self._recalled(sim, row)
        recalled_s, ranking = self._passed_s(), self._ranking
        gains = None if ranking is None else ranking.predicted_gains(imagined, PRESENT)
        listed = min(list_candidates(imagined, PRESENT), 1 + self.search.width) if gains is None else gains.size
        self._kept_s = self._passed_s() - recalled_s
        if gains is not None:
            return self._ranked(sim, row, gains, began)
        candidates = [-1, *range(listed)]
        costs_s = self._costs_s(sim, row, candidates, began)
        if len(costs_s) < 2:
            return _Tried(listed, candidates, costs_s, costs_s, 0)
        gains_s = costs_s[:, :1] - costs_s
        mean_s, error_s = gains_s.mean(axis=0), gains_s.std(axis=0, ddof=1) / np.sqrt(len(gains_s))
        best = int(np.argmax(mean_s))
        return _Tried(listed, candidates, costs_s, costs_s, best if mean_s[best] > error_s[best] else 0)

    def _ranked(self, sim: Simulation, row: int, predicted_gains: NDArray[np.float64], began: float) -> _Tried:
        """Try the candidates that a base tells most of, future by future, as long as that is worth it."""
        imagined = self._imagination(sim)
        order = np.argsort(-predicted_gains, kind="stable")[: 1 + self.search.width]
        order = order[np.isfinite(predicted_gains[order])]
        candidates, gaps = order.tolist(), predicted_gains[order] - predicted_gains[order[0]]
        unit_s = objective_unit_s(imagined, PRESENT, self._objective(imagined))
        foresee_from = FORESEE_FROM if self.search.horizon is None else NEVER
        ends_s, foreseen_s, taken = np.zeros((0, len(candidates))), np.zeros((0, len(candidates))), 0
        left = self._unsettled(posterior_of(ends_s, gaps), np.arange(len(candidates)))
        for future in range(-1, self.search.futures):
            if left.size < 2:
                break
            with self._imagining.without_faults(imagined) if future < 0 else nullcontext():
                tried = [candidates[i] for i in left]
                tried_s = self._future_s(imagined, self._seed(sim, row, future), tried, began, foresee_from)
            if tried_s.size == 0:
                break
            ends_s, foreseen_s = (
                np.vstack((table, np.full(len(candidates), np.nan))) for table in (ends_s, foreseen_s)
            )
            ends_s[-1, left], foreseen_s[-1, left] = tried_s
            costs_s = blend(ends_s[:, left], foreseen_s[:, left])
            posterior = posterior_of((costs_s[:, :1] - costs_s) / unit_s, gaps[left])
            taken = int(left[np.argmax(posterior.mean)])
            left = self._unsettled(posterior, left)
        return _Tried(predicted_gains.size, candidates, ends_s, foreseen_s, taken)

    def _unsettled(self, posterior: Posterior, left: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the candidates to go on trying, with the base's own choice and the best; none if these two are all."""
        is_open = value_of_information(posterior) >= self.search.least_value
        if not is_open.any():
            return left[:0]
        is_open[0] = is_open[np.argmax(posterior.mean)] = True
        return left[is_open]

    def _costs_s(self, sim: Simulation, row: int, candidates: list[int], began: float) -> NDArray[np.float64]:
        """Return the cost of each candidate in each future, shape (futures, candidates); no rows without a choice."""
        imagined = self._imagination(sim)
        parts = [np.zeros((0, len(candidates)))]
        for future in range(self.search.futures if len(candidates) > 1 else 0):
            tried_s = self._future_s(imagined, self._seed(sim, row, future), candidates, began, NEVER)
            if tried_s.size == 0:
                break
            parts.append(tried_s[:1])
        return np.concatenate(parts)

    def _future_s(
        self, imagined: Simulation, seed: int, candidates: list[int], began: float, foresee_from: int
    ) -> NDArray[np.float64]:
        """Return the cost of each candidate in one future, and that cost as foreseen on the way, shape (2, candidates).

        Both are the same where that is not foreseen of all, or the errors of what is would not cancel. Of shape (2, 0)
        if there was not time for all, or if by the hazards that are believed a job would never end.
        """
        tried_s = np.zeros((2, len(candidates)))
        self._began_s = began
        try:
            self._look()
            copy_row(imagined, PRESENT, FUTURE)
            self._imagining.draw_future(imagined, seed)
            for place, candidate in enumerate(candidates):
                self._look()
                tried_s[:, place] = self._try(imagined, candidate, foresee_from)
        except (_OutOfTimeError, EndlessError):
            return tried_s[:, :0]
        if np.isnan(tried_s[1]).any():
            tried_s[1] = tried_s[0]
        return tried_s

    def _look(self) -> None:
        """Look at the clock.

        Raises:
            _OutOfTimeError: If the budget of the decision is spent, or would be by the next decision of a try.
        """
        if self._passed_s() - self._began_s + self._kept_s > self.search.budget_s:
            raise _OutOfTimeError

    def _seed(self, sim: Simulation, row: int, future: int) -> int:
        """Return the key of a future: it depends on the workload and the decision, and on nothing that is not known."""
        state = sim.state
        known = (self.seed, int(state.decisions[row]), future, float(state.estimates_s[row]))
        return crc32(struct.pack("<qqqd", *known))

    def _try(self, imagined: Simulation, candidate: int, foresee_from: int) -> tuple[float, float]:
        """Return what a candidate comes to in the future that stands in row FUTURE; the base's own choice for -1.

        And what that was foreseen to be on the way, from so many starts on; nan if it never was.
        """
        copy_row(imagined, FUTURE, TRIAL)
        started = 0
        if candidate >= 0:
            started = 1 - int(is_wait(imagined, TRIAL, candidate))
            take_candidate(imagined, TRIAL, candidate)
        objective, base = self._objective(imagined), self._foreseeing
        if base is None or base.time_to_go != objective:
            self._actor.run_on(imagined, TRIAL)
            return spent_s(imagined, TRIAL, objective), np.nan
        horizon = NEVER if self.search.horizon is None else self.search.horizon
        is_due, foreseen_s = base.run_for(imagined, TRIAL, horizon - started, foresee_from - started)
        end_s = spent_s(imagined, TRIAL, objective)
        if is_due:
            end_s += base.value(imagined, TRIAL) * objective_unit_s(imagined, TRIAL, objective)
        return end_s, foreseen_s

    def _objective(self, imagined: Simulation) -> Objective:
        jobs = imagined.scenarios.jobs[0]
        return self.objective or objective_of(imagined.scenarios.submit_s[0, :jobs])

    def choose(self, sim: Simulation, row: int) -> int:
        """Return the number of the candidate to take, -1 for the base's own choice."""
        tried = self._tried(sim, row)
        return tried.candidates[tried.taken] if tried.taken > 0 else -1

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        tried = self._tried(sim, row)
        candidate = tried.candidates[tried.taken]
        if candidate < 0:
            return self.base.place(sim, row)
        copy_candidates(self._imagination(sim), sim, row)
        return bool(pick_candidate(sim, row, candidate))

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row from where it stands to its end."""
        while advance(sim, row):
            if self.place(sim, row):
                start(sim, row)
            else:
                undo_picks(sim, row)
                wait(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        for row, scenario in enumerate(rows_to_run(sim, scenarios)):
            reset(sim, row, scenario)
            self.run_on(sim, row)
