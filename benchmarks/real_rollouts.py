"""How much is left to win on real traces under the orders whose aims are missed: the shipped policy with rollouts.

The windows are those of `make bench-real` at a load of 0.85, with one draw of speeds and faults each. Rollouts try out
the alternatives of each decision in imagined futures for 20 ms, with no more knowledge than the policy has. What they
gain is no bound, but it shows what more thought about each decision is worth.
"""

from collections.abc import Iterator

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.agents.rollouts import rollout_of
from longshore.cluster.presets.problems import LOAD, Regime
from longshore.eval.setting import TESTED_PART
from longshore.training.problems import TRAINED_PART
from longshore.training.validation import tuned_patient

from .harness import Row, main, progress
from .real import CHECKPOINT, REGIMES, TUNING_SEED
from .real_windows import SEED, TIMES, Everywhere, differences, figures_of, pooled, problem_of, traces

ORDERS = ("EASY, shortest first", "shortest first, aged after a week")
BUDGET_MS, DRAWS, PATIENT = 20.0, 1, "patient"


def played(regime: Regime, policies: dict[str, Policy]) -> dict[str, Everywhere]:
    """Run `patient`, tuned on each trace's past, and the policies on the later windows."""
    found: dict[str, Everywhere] = {name: {} for name in (PATIENT, *policies)}
    for trace, path in traces().items():
        past = problem_of(path, regime, LOAD, TRAINED_PART, TUNING_SEED)
        later = problem_of(path, regime, LOAD, TESTED_PART, SEED, draws=DRAWS)
        for name, policy in {PATIENT: tuned_patient(past), **policies}.items():
            found[name][trace, f"{LOAD:g}"] = figures_of(later, policy, DRAWS)
        progress(trace)
    return found


def measure() -> Iterator[Row]:
    """Run, and yield each comparison."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    one = load_policy(CHECKPOINT)
    policies: dict[str, Policy] = {"one pass": one, f"rollouts of {BUDGET_MS:g} ms": rollout_of(one, BUDGET_MS)}
    for order in ORDERS:
        progress(order)
        found = played(REGIMES[order][0], policies)
        for name in policies:
            for time in TIMES:
                it = pooled(list(differences(found[name], found[PATIENT], time).values()))
                yield Row(f"{order}, {name}: {time}", it.percent, "%")
                yield Row(f"{order}, {name}: {time}, lower end", it.low, "%")
                yield Row(f"{order}, {name}: {time}, upper end", it.high, "%")


if __name__ == "__main__":
    main(measure)
