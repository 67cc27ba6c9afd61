"""What a trained policy is worth: windows of the last part of each trace, against `patient` at its best."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.heuristics.heuristics import PATIENT, Heuristic
from ..agents.protocol import Policy
from ..cluster.files.output_file import replacing
from ..cluster.model.intervals import ratio_estimates
from ..cluster.model.problem import Problem
from ..cluster.model.scenarios import same_jobs
from ..cluster.presets.streams import VALIDATION_SEED
from ..cluster.simulator.simulation import simulation_of
from .asked import LATER_PART, TRAINED_PART, Asked
from .history.problems import later_problem, read_history, tuning_problem
from .trace_problems import TRACE_LOAD, Windows, window_problems
from .validation import objective_s

LATER = "later.json"
CONFIDENCE = 0.95
MOST_WINDOWS = 24  # of each trace, as `longshore evaluate` takes
LATER_SEED, TUNING_SEED = VALIDATION_SEED + 1000, VALIDATION_SEED + 2000  # draws that no training meets
# Factors that `patient` is tried with on the part that the policy was trained on, to be as good a rival as it can.
FACTORS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25)


class Later(NamedTuple):
    """A policy against `patient` on windows that no training met."""

    where: str  # the trace, and the order regime
    windows: int
    percent: float  # difference of the mean JCT, the geometric mean over windows; below 0 is better
    low: float  # of its 95 % interval; nan with one window
    high: float
    factor: float  # of `patient`, tuned on the part that was trained on

    @property
    def text(self) -> str:
        """In words."""
        ends = "no interval" if np.isnan(self.low) else f"95 % from {self.low:+.1f} to {self.high:+.1f}"
        return f"{self.where}: {self.percent:+.1f} % ({ends}; {self.windows} windows)"


def compare_later(asked: Asked, policy: Policy) -> tuple[Later, ...]:
    """Compare a policy with `patient` on later windows of each trace and under each regime, and over all of them."""
    found, logs = [], []
    for number, path in enumerate(asked.traces):
        alone = asked._replace(traces=(path,))
        for regime in asked.regimes:
            tuned = Windows(TRAINED_PART, MOST_WINDOWS, None, TUNING_SEED + number, disjoint=True)
            later = Windows(LATER_PART, MOST_WINDOWS, None, LATER_SEED + number, disjoint=True)
            rival = tuned_patient(window_problems(alone, regime, tuned, (TRACE_LOAD,)))
            problem = window_problems(alone, regime, later, (TRACE_LOAD,))
            logs.append(np.log(_window_means_s(problem, policy) / _window_means_s(problem, rival)))
            found.append(_later(f"{path.name}, {regime.order}", logs[-1], rival.patience))
    if len(found) > 1:
        found.append(_later("all of these", np.concatenate(logs), float("nan")))
    return tuple(found)


def compare_on_history(path: Path, policy: Policy) -> tuple[Later, ...]:
    """Compare a policy with `patient` on the last jobs of a file of decisions."""
    history = read_history(path)
    rival = tuned_patient(tuning_problem(history))
    return (compared(path.name, later_problem(history), policy, rival, rival.patience),)


def write_later(folder: Path, found: tuple[Later, ...]) -> None:
    """Keep what was found beside the policy."""
    with replacing(folder / LATER) as part:
        part.write_text(json.dumps([it._asdict() for it in found], indent=1).replace("NaN", "null") + "\n")


def verdict(found: tuple[Later, ...]) -> str:
    """Return what to run, by the last comparison, which is the widest."""
    last = found[-1]
    if last.high < 0.0:
        return f"Jobs end {-last.percent:.1f} % sooner in the mean than under `patient`: run this policy."
    if last.low > 0.0:
        return f"It is {last.percent:.1f} % worse than `patient`: run `longshore serve` with the policy `patient`."
    return "It is not shown to be better than `patient`: run the policy `patient`, or train on more or longer traces."


def tuned_patient(problem: Problem) -> Heuristic:
    """Return `patient` with the factor that does best on the windows of a problem."""
    tried = [replace(PATIENT, name="patient-tuned", patience=factor) for factor in FACTORS]
    return min(tried, key=lambda policy: float(np.log(_window_means_s(problem, policy)).mean()))


def compared(where: str, problem: Problem, policy: Policy, rival: Policy, factor: float = math.nan) -> Later:
    """Compare two policies on the windows of a problem, paired by window and by draws of faults."""
    return _later(where, np.log(_window_means_s(problem, policy) / _window_means_s(problem, rival)), factor)


def _window_means_s(problem: Problem, policy: Policy) -> NDArray[np.float64]:
    """Return the mean JCT of each window, over its draws of faults, shape (windows,)."""
    sim = simulation_of(problem, rows=problem.scenarios.jobs.size)
    values = objective_s(sim, policy, problem, "mean_jct")
    label = same_jobs(problem.scenarios)
    means: NDArray[np.float64] = np.bincount(label, weights=values) / np.bincount(label)
    return means


def _later(where: str, logs: NDArray[np.float64], factor: float) -> Later:
    value, low, high = (
        float(100.0 * np.expm1(end[0]))
        for end in ratio_estimates(logs[None], np.ones((1, logs.size)), confidence=CONFIDENCE)
    )
    return Later(where, logs.size, value, low, high, factor)
