"""Rollouts: any policy, improved at decision time by trying its alternatives in imagined futures.

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
    copy_candidates_back,
    copy_row,
    draw_future,
    imagination_of,
    set_present,
    without_faults,
)
from ..cluster.files.errors import EndlessError, PluginError
from ..cluster.model.outcome import Objective, objective_of
from ..cluster.placing import undo_picks
from ..cluster.simulator.engine import advance, reset, start, wait
from ..cluster.state.border import checked_scenario_indices
from ..cluster.state.state import Simulation
from .networks.candidates import cost_so_far_s, objective_unit_s, take_candidate
from .protocol import InterruptiblePolicy, Policy


class Imagining(NamedTuple):
    """The functions that imagine futures, of cluster/candidates/futures.py."""

    imagination_of: Callable[[Simulation], Simulation] = imagination_of
    set_present: Callable[[Simulation, Simulation, int], None] = set_present
    draw_future: Callable[[Simulation, int], None] = draw_future
    without_faults: Callable[[Simulation], AbstractContextManager[None]] = without_faults


IMAGINING = Imagining()


# Fitted to decisions of rollouts' own runs on hetero64, of which each candidate was tried in 64 futures more; on other
# workloads than those that policies are scored on.
# Variance of a candidate's true gain, by the gap that is predicted between it and the base's own choice, in units of
# `objective_unit_s`: similar candidates end alike, apart from what the network does not observe. `distil/spread` of a
# run is the same without a floor, on labels that are held out.
FLOOR, SLOPE = 0.004, 0.2
# Variance of a gain in one future, as a multiple of that, and the number of futures that this prior weighs.
NOISE, NOISE_FUTURES = 2.7, 10
# Weights, in futures, of the ends of tries beside those that were tried, and of the predictions on the way.
ENDS, FORESEEN = 24, 48


class Posterior(NamedTuple):
    """Gains over the base's own choice, which is the first candidate, in units of `objective_unit_s`."""

    mean: NDArray[np.float64]  # (candidates,), 0 for the first
    variance: NDArray[np.float64]  # (candidates,), 0 for the first


def blend_costs(ends_s: NDArray[np.float64], foreseen_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs of tries, by their ends and by predictions on the way, all of shape (futures, candidates).

    Predictions have less noise, but the network's errors: the more futures, the more the ends count.
    """
    share = FORESEEN / (ENDS + FORESEEN + len(ends_s))
    return ends_s + share * (foreseen_s - ends_s)


def posterior_of(gains: NDArray[np.float64], predicted_gains: NDArray[np.float64]) -> Posterior:
    """Return the mean of three estimates, weighted by their variances.

    These are the predicted gain, the gain in a future without faults, and the mean gain in drawn futures. The first
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

    That is E max(x, 0) of the normal difference x between a candidate and the one of the best mean; 0 for that one.
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
class RolloutBase(Policy, Protocol):
    """A policy that can continue from any moment."""

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row to its end."""
        ...


@runtime_checkable
class RankingBase(RolloutBase, Protocol):
    """A base that predicts the gain of each candidate, of which its own choice is the first of the largest.

    If `time_to_go` names an objective, the base also predicts what a run still costs by it, so that tries can stop
    before their end.
    """

    def predicted_gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """List the candidates of the decision that is due and predict their gains but for a constant, (candidates,).

        In units of `objective_unit_s`; -inf for candidates that it never takes.
        """
        ...

    @property
    def rollout_base(self) -> RolloutBase:
        """The policy that rollouts of this one use as base: itself, or one of its kind that takes less time."""
        ...

    @property
    def time_to_go(self) -> Objective | None:
        """Objective whose remaining cost `value` predicts, None if it predicts something else."""
        ...

    def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        """Run a row until N jobs are started and a decision is due, or to its end.

        Return whether a decision is due, and the predicted cost of the whole run in seconds: the mean over the first
        decisions after each start from number `foresee_from` on, nan if there were none.
        """
        ...

    def value(self, sim: Simulation, row: int) -> float:
        """Return the predicted remaining cost at the decision that is due, in units of `objective_unit_s`."""
        ...


RANKED_WIDTH = 3  # candidates beside the base's own that are tried by default where the base ranks them
RANKED_VALUE = 0.014  # units of `objective_unit_s`, as in Search
FORESEE_FROM = 6  # jobs to start before a prediction on the way reflects the candidate that is tried
NO_HORIZON = 1 << 62  # starts


@dataclass(frozen=True, slots=True)
class Search:
    """How much is tried at a decision.

    Args:
        futures: Imagined futures, the same for all candidates; where the base ranks there is one more, without faults.
        width: Candidates that are tried beside the base's.
        budget_s: Time for a decision. When it is spent, the current try and its future are abandoned; a base that is
            not `InterruptiblePolicy` ends its try first.
        horizon: Jobs to start from the decision on, that of the tried candidate among them, before the base's value
            replaces the rest of the run. None runs to the end, and so does every try if the value predicts another
            objective. Counted in jobs, not in decisions: candidates are compared where equally many jobs are left, so
            that the value's errors cancel. Where tries run to the end, a base that ranks and whose value predicts the
            objective also predicts their costs on the way.
        least_value: Where the base ranks: a candidate is tried in one more future only while knowing its gain for
            certain would be worth at least this, in units of `objective_unit_s` (`value_of_information`). With 0 all
            are tried in all.
    """

    futures: int = 8
    width: int = 12
    budget_s: float = float("inf")
    horizon: int | None = None
    least_value: float = 0.0

    @property
    def limits_text(self) -> str:
        """Its limits as they stand in the name of a policy, such as @20ms,h16; empty if there are none."""
        budget = f"{1e3 * self.budget_s:g}ms" if self.budget_s < float("inf") else ""
        limits = [limit for limit in (budget, "" if self.horizon is None else f"h{self.horizon}") if limit]
        return f"@{','.join(limits)}" if limits else ""


def rollout_of(base: Policy, budget_ms: float | None = None, horizon: int | None = None) -> "Rollout":
    """Return rollouts of a policy with the default search, and with these limits if they are given.

    Args:
        base: The policy.
        budget_ms: Time for a decision.
        horizon: As in Search.

    Raises:
        PluginError: If the policy cannot continue from any moment, or there is a horizon and it predicts no time to go.
    """
    if not isinstance(base, RolloutBase):
        raise PluginError(f"policy {base.name!r} cannot be the base of rollouts: it has no run_on")
    search = Search()
    if isinstance(base, RankingBase):
        base, search = base.rollout_base, Search(width=RANKED_WIDTH, least_value=RANKED_VALUE)
    budget_s = float("inf") if budget_ms is None else budget_ms / 1000.0
    return Rollout(base, replace(search, budget_s=budget_s, horizon=horizon))


class _OutOfTimeError(Exception):
    """The budget of a decision was spent in the middle of a try."""


class _Tries(NamedTuple):
    """The tries of one decision."""

    listed: int  # candidates of the list that are considered
    candidates: list[int]  # of these, first the base's own choice, -1 if it has no number
    # (futures, candidates) cost at the end of each try, and the same as predicted on the way; nan if not tried
    ends_s: NDArray[np.float64]
    foreseen_s: NDArray[np.float64]
    best: int  # place in `candidates`


class Rollout:
    """Takes the candidate that does best in imagined futures, with the base policy deciding after it.

    1. Copy the decision into an imagination (`set_present`), and list the candidates there.
    2. Imagine a future: faults and the jobs' true run times are drawn, the same for all candidates (`draw_future`).
    3. Try each candidate in it: take it, and let the base run to the end or to the horizon (`_try_candidate`).
    4. Repeat with further futures, up to `search.futures` or until the budget of time is spent.
    5. Take the candidate of the best mean gain over the base's own choice, if that is over one standard error of the
       paired differences; else the base's own.

    Where the base predicts the gains of candidates, only those of the largest are tried, the first future has no
    faults, the posterior of predictions and tries replaces the mean, and a candidate is tried in one more future only
    while that is worth it (`value_of_information`).

    Args:
        base: Decides in the imagined futures, and by default.
        search: How much is tried.
        objective: To minimise; if None, the makespan while all known jobs were submitted at once, else the mean JCT.
        seed: Of the imagined futures.
        imagining: Functions that imagine futures.
        passed_s: The clock of the budget.

    Raises:
        PluginError: If the search has a horizon and the base predicts no time to go.
    """

    waits = True  # it tries waits, whatever its base does; a base that ranks must have been trained to wait

    def __init__(
        self, base: RolloutBase, search: Search, objective: Objective | None = None, seed: int = 0, *,
        imagining: Imagining = IMAGINING, passed_s: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._imagining, self._passed_s, self._began_s, self._kept_s = imagining, passed_s, 0.0, 0.0
        actor = base
        if search.budget_s < float("inf") and isinstance(base, InterruptiblePolicy):
            actor = base.interruptible(self._check_budget)
        self.base, self.search, self.objective, self.seed = base, search, objective, seed
        self._limits = search.limits_text
        # Once: an isinstance check of a protocol takes longer than a base does for a decision.
        self._ranking = base if isinstance(base, RankingBase) else None
        self._actor = actor
        self._foreseeing = actor if isinstance(actor, RankingBase) and actor.time_to_go is not None else None
        if search.horizon is not None and self._foreseeing is None:
            raise PluginError(
                f"rollouts of {base.name!r} cannot be cut off: no value predicts what is still to come; "
                "train a checkpoint by --algo group or distil, or give no horizon"
            )
        self._imagined: tuple[Simulation, Simulation] | None = None

    @property
    def name(self) -> str:
        """Its name in tables, with the limits with which it was made."""
        return f"rollout:{self.base.name}{self._limits}"

    @property
    def about(self) -> str:
        """One line of description."""
        horizon = self.search.horizon
        until = "" if horizon is None else f", cut off after {horizon} jobs"
        most = "at most " if self._ranking else ""
        return f"{self.base.name}, its alternatives tried in {most}{self.search.futures} imagined futures{until}"

    def _imagination(self, sim: Simulation) -> Simulation:
        if self._imagined is None or self._imagined[0] is not sim:
            self._imagined = (sim, self._imagining.imagination_of(sim))
        return self._imagined[1]

    def gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return by how much each candidate of the list is better than the base's own choice, in seconds.

        By the ends of the tries. Shape (futures, candidates); nan for candidates that were not tried. Futures that the
        budget cut off are omitted. Where the base ranks, the future without faults comes first. The imagination's row
        PRESENT holds the list.
        """
        return self.end_and_foreseen_gains(sim, row)[0]

    def end_and_foreseen_gains(self, sim: Simulation, row: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gains by the ends of the tries, and the same by predictions on the way."""
        tried = self._try_candidates(sim, row)
        both = []
        for costs_s in (tried.ends_s, tried.foreseen_s):
            gains = np.full((len(costs_s), tried.listed), np.nan)
            for place, candidate in enumerate(tried.candidates):
                if candidate >= 0:
                    gains[:, candidate] = costs_s[:, 0] - costs_s[:, place]
            both.append(gains)
        return both[0], both[1]

    def costs_s(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """Return the cost of the run by each of the list's first 1 + `width` candidates, shape (futures, candidates).

        No futures are tried for a single candidate.
        """
        began_s, imagined = self._passed_s(), self._recall_decision(sim, row)
        candidates = list(range(min(list_candidates(imagined, PRESENT), 1 + self.search.width)))
        return self._candidate_costs_s(sim, row, candidates, began_s)

    def _recall_decision(self, sim: Simulation, row: int) -> Simulation:
        """Return the imagination, with a copy of the decision that is due."""
        imagined = self._imagination(sim)
        self._imagining.set_present(imagined, sim, row)
        return imagined

    def _try_candidates(self, sim: Simulation, row: int) -> _Tries:
        """Try the candidates of the decision that is due."""
        began_s, imagined = self._passed_s(), self._recall_decision(sim, row)
        recalled_s, ranking = self._passed_s(), self._ranking
        gains = None if ranking is None else ranking.predicted_gains(imagined, PRESENT)
        listed = min(list_candidates(imagined, PRESENT), 1 + self.search.width) if gains is None else gains.size
        self._kept_s = self._passed_s() - recalled_s
        if gains is not None:
            return self._try_ranked_candidates(sim, row, gains, began_s)
        candidates = [-1, *range(listed)]
        costs_s = self._candidate_costs_s(sim, row, candidates, began_s)
        if len(costs_s) < 2:
            return _Tries(listed, candidates, costs_s, costs_s, 0)
        gains_s = costs_s[:, :1] - costs_s
        mean_s, error_s = gains_s.mean(axis=0), gains_s.std(axis=0, ddof=1) / np.sqrt(len(gains_s))
        best = int(np.argmax(mean_s))
        return _Tries(listed, candidates, costs_s, costs_s, best if mean_s[best] > error_s[best] else 0)

    def _try_ranked_candidates(
        self, sim: Simulation, row: int, predicted_gains: NDArray[np.float64], began_s: float
    ) -> _Tries:
        """Try the candidates of the largest predicted gains, future by future, as long as that is worth it."""
        imagined = self._imagination(sim)
        order = np.argsort(-predicted_gains, kind="stable")[: 1 + self.search.width]
        order = order[np.isfinite(predicted_gains[order])]
        candidates, gaps = order.tolist(), predicted_gains[order] - predicted_gains[order[0]]
        unit_s = objective_unit_s(imagined, PRESENT, self._objective(imagined))
        foresee_from = FORESEE_FROM if self.search.horizon is None else NO_HORIZON
        ends_s, foreseen_s, best = np.zeros((0, len(candidates))), np.zeros((0, len(candidates))), 0
        left = self._candidates_worth_trying(posterior_of(ends_s, gaps), np.arange(len(candidates)))
        for future in range(-1, self.search.futures):
            if left.size < 2:
                break
            with self._imagining.without_faults(imagined) if future < 0 else nullcontext():
                tried = [candidates[i] for i in left]
                tried_s = self._future_costs_s(
                    imagined, self._future_seed(sim, row, future), tried, began_s, foresee_from
                )
            if tried_s.size == 0:
                break
            ends_s, foreseen_s = (
                np.vstack((table, np.full(len(candidates), np.nan))) for table in (ends_s, foreseen_s)
            )
            ends_s[-1, left], foreseen_s[-1, left] = tried_s
            costs_s = blend_costs(ends_s[:, left], foreseen_s[:, left])
            posterior = posterior_of((costs_s[:, :1] - costs_s) / unit_s, gaps[left])
            best = int(left[np.argmax(posterior.mean)])
            left = self._candidates_worth_trying(posterior, left)
        return _Tries(predicted_gains.size, candidates, ends_s, foreseen_s, best)

    def _candidates_worth_trying(self, posterior: Posterior, left: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the candidates to try once more, the base's own choice and the best among them; none if no other."""
        is_open = value_of_information(posterior) >= self.search.least_value
        if not is_open.any():
            return left[:0]
        is_open[0] = is_open[np.argmax(posterior.mean)] = True
        return left[is_open]

    def _candidate_costs_s(
        self, sim: Simulation, row: int, candidates: list[int], began_s: float
    ) -> NDArray[np.float64]:
        """Return the cost of each candidate in each future, shape (futures, candidates); no rows without a choice."""
        imagined = self._imagination(sim)
        parts = [np.zeros((0, len(candidates)))]
        for future in range(self.search.futures if len(candidates) > 1 else 0):
            tried_s = self._future_costs_s(
                imagined, self._future_seed(sim, row, future), candidates, began_s, NO_HORIZON
            )
            if tried_s.size == 0:
                break
            parts.append(tried_s[:1])
        return np.concatenate(parts)

    def _future_costs_s(
        self, imagined: Simulation, seed: int, candidates: list[int], began_s: float, foresee_from: int
    ) -> NDArray[np.float64]:
        """Return the cost of each candidate in one future, and the same as predicted on the way, shape (2, candidates).

        Both are the same unless all candidates have a prediction: else its errors would not cancel. Of shape (2, 0) if
        there was not time for all, or if by the estimated hazards a job would never end.
        """
        tried_s = np.zeros((2, len(candidates)))
        self._began_s = began_s
        try:
            self._check_budget()
            copy_row(imagined, PRESENT, FUTURE)
            self._imagining.draw_future(imagined, seed)
            for place, candidate in enumerate(candidates):
                self._check_budget()
                tried_s[:, place] = self._try_candidate(imagined, candidate, foresee_from)
        except (_OutOfTimeError, EndlessError):
            return tried_s[:, :0]
        if np.isnan(tried_s[1]).any():
            tried_s[1] = tried_s[0]
        return tried_s

    def _check_budget(self) -> None:
        """Check the time that the decision has taken.

        Raises:
            _OutOfTimeError: If the budget of the decision is spent, or would be by the next decision of a try.
        """
        if self._passed_s() - self._began_s + self._kept_s > self.search.budget_s:
            raise _OutOfTimeError

    def _future_seed(self, sim: Simulation, row: int, future: int) -> int:
        """Return the key of a future, by the workload and the decision and by nothing hidden from a scheduler."""
        state = sim.state
        keys = (self.seed, int(state.decisions[row]), future, float(state.estimates_s[row]))
        return crc32(struct.pack("<qqqd", *keys))

    def _try_candidate(self, imagined: Simulation, candidate: int, foresee_from: int) -> tuple[float, float]:
        """Return the cost of a candidate in the future of row FUTURE; -1 is the base's own choice.

        And its prediction on the way, from a number of starts on; nan without any.
        """
        copy_row(imagined, FUTURE, TRIAL)
        started = 0
        if candidate >= 0:
            started = 1 - int(is_wait(imagined, TRIAL, candidate))
            take_candidate(imagined, TRIAL, candidate)
        objective, base = self._objective(imagined), self._foreseeing
        if base is None or base.time_to_go != objective:
            self._actor.run_on(imagined, TRIAL)
            return cost_so_far_s(imagined, TRIAL, objective), np.nan
        horizon = NO_HORIZON if self.search.horizon is None else self.search.horizon
        is_due, foreseen_s = base.run_for(imagined, TRIAL, horizon - started, foresee_from - started)
        end_s = cost_so_far_s(imagined, TRIAL, objective)
        if is_due:
            end_s += base.value(imagined, TRIAL) * objective_unit_s(imagined, TRIAL, objective)
        return end_s, foreseen_s

    def _objective(self, imagined: Simulation) -> Objective:
        jobs = imagined.scenarios.jobs[0]
        return self.objective or objective_of(imagined.scenarios.submit_s[0, :jobs])

    def choose_candidate(self, sim: Simulation, row: int) -> int:
        """Return the number of the candidate to take, -1 for the base's own choice."""
        tried = self._try_candidates(sim, row)
        return tried.candidates[tried.best] if tried.best > 0 else -1

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        tried = self._try_candidates(sim, row)
        candidate = tried.candidates[tried.best]
        if candidate < 0:
            return self.base.place(sim, row)
        copy_candidates_back(self._imagination(sim), sim, row)
        return bool(pick_candidate(sim, row, candidate))

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row to its end."""
        while advance(sim, row):
            if self.place(sim, row):
                start(sim, row)
            else:
                undo_picks(sim, row)
                wait(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        for row, scenario in enumerate(checked_scenario_indices(sim, scenarios)):
            reset(sim, row, scenario)
            self.run_on(sim, row)
