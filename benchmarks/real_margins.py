"""Whether the shipped policy for real traces does better where waits, or turning to later jobs, have to earn more.

A margin is what the logit of such a candidate has to exceed others by. Each is tried on the jobs that the policy was
trained on, where one would be chosen, and on the later windows of `make bench-real`. Orders that never turn to another
job have no margin on that.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.protocol import Policy
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.problems import Regime
from longshore.envs.layout import CANDIDATE, CANDIDATE_FEATURES, CANDIDATE_GLOBALS
from longshore.eval.setting import TESTED_PART
from longshore.training.problems import TRAINED_PART
from longshore.training.validation import tuned_patient

from .harness import Row, main, progress
from .real import CHECKPOINT, REGIMES, TUNING_SEED
from .real_stored import PATIENT
from .real_windows import DRAWS, SEED, TIMES, Everywhere, differences, figures_of, loads_of, pooled, problem_of, traces

WAITING, TURNING = (0.0, 0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 1.0)
PAST_DRAWS = 2
WORDS = {"mean_s": "mean JCT", "p99_s": "p99 JCT", "wait_s": "longest wait"}


class Margined(LearnedPolicy):
    """A policy of candidates with margins of several kinds.

    Args:
        policy: What it is beside them.
        waiting: Margin of candidates that let a job wait.
        turning: Margin of those that start another job than the one that is due.
    """

    def __init__(self, policy: LearnedPolicy, waiting: float, turning: float) -> None:
        super().__init__(f"margins of {waiting:g} and {turning:g}", policy.schema, policy.network)
        self._waiting, self._turning = waiting, turning

    def _compute_logits(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = super()._compute_logits(observations)
        items = observations[:, len(CANDIDATE_GLOBALS) :].reshape(observations.shape[0], -1, len(CANDIDATE_FEATURES))
        is_base, waits, rests, is_due = (
            items[:, : logits.shape[1], column] > 0.0
            for column in (CANDIDATE.base, CANDIDATE.waits, CANDIDATE.rests, CANDIDATE.due)
        )
        found: NDArray[np.float32] = (
            logits + self.schema.margin * is_base - self._waiting * (waits | rests) - self._turning * ~is_due
        ).astype(np.float32)
        return found


def windows(regime: Regime, policies: Sequence[Policy], *, is_later: bool) -> dict[str, Everywhere]:
    """Run `patient`, tuned on each trace's past, and the policies on later windows or on those of training."""
    part, seed, draws = (TESTED_PART, SEED, DRAWS) if is_later else (TRAINED_PART, TUNING_SEED, PAST_DRAWS)
    found: dict[str, Everywhere] = {name: {} for name in (PATIENT, *(it.name for it in policies))}
    for trace, path in traces().items():
        for load, offered in loads_of(trace, path).items():
            made = partial(problem_of, path, regime, offered)
            problem: Problem = made(part, seed, draws=draws)
            patient = tuned_patient(made(TRAINED_PART, TUNING_SEED))
            for name, policy in {PATIENT: patient, **{it.name: it for it in policies}}.items():
                found[name][trace, load] = figures_of(problem, policy, draws)
    return found


def measure() -> Iterator[Row]:
    """Run, and yield how each margin does beside `patient`."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    shipped = load_policy(CHECKPOINT)
    for order, (regime, _) in REGIMES.items():
        turning = TURNING if regime.order.startswith("easy") else ()
        policies = [*(Margined(shipped, it, 0.0) for it in WAITING), *(Margined(shipped, 0.0, it) for it in turning)]
        for is_later in (False, True):
            when = "later" if is_later else "past"
            progress(f"{order}, {when}")
            found = windows(regime, policies, is_later=is_later)
            for policy in policies:
                for time in TIMES:
                    logs = differences(found[policy.name], found[PATIENT], time)
                    by = pooled(list(logs.values()))
                    yield Row(f"{order}, {when}, {policy.name}: {WORDS[time]}", by.percent, "%")
                    if time == "mean_s":
                        worst = max(pooled([it]).percent for it in logs.values())
                        yield Row(f"{order}, {when}, {policy.name}: mean JCT, worst trace", worst, "%")


if __name__ == "__main__":
    main(measure)
