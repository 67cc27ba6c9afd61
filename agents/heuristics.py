"""Heuristic policies, and compiled runs of whole scenarios by them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import is_ours, load_as, registered
from ..cluster.kernels.compiled import check_kernel, kernel, one_of
from ..cluster.model.problem import Rules
from ..cluster.placing import undo_picks
from ..cluster.simulator.engine import advance, reset, start, wait
from ..cluster.state.border import rows_to_run
from ..cluster.state.state import Simulation
from .protocol import ALL, Look, decisions_of_a_part
from .rules import Rule


def rule_of(name: str) -> Rule:
    """Return a heuristic's rule.

    Raises:
        PluginError: If nothing of that name is registered, or what is registered is no rule.
    """
    rule = load_as("heuristics", name, Rule)
    check_kernel(f"the rule of heuristic {name!r}", rule.pick, 3)
    return rule


def _usable() -> dict[str, Rule]:
    """Return all rules but those that a stranger's package breaks: who uses one of these is told."""
    found = {}
    for name in registered("heuristics"):
        try:
            found[name] = rule_of(name)
        except PluginError:
            continue
    return found


RULES = _usable()
PICKS = [rule.pick for rule in RULES.values()]
_pick = one_of("heuristic", PICKS)


@kernel
def decide(sim: Simulation, row: int, rule: int, patience: float) -> bool:
    """Pick the GPUs of the current job by a rule; False if the rule would rather wait."""
    return bool(_pick(rule, sim, row, patience) != 0.0)


@kernel
def run_on(sim: Simulation, row: int, rule: int, patience: float, decisions: int) -> bool:
    """Run a row on for so many decisions by a rule; False if it has come to its end before."""
    for _ in range(decisions):
        if not advance(sim, row):
            return False
        if decide(sim, row, rule, patience):
            start(sim, row)
        else:
            wait(sim, row)
    return True


@kernel
def run(sim: Simulation, scenarios: NDArray[np.int64], rule: int, patience: float) -> None:
    """Run one scenario in each row, from its beginning to its end."""
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        run_on(sim, row, rule, patience, ALL)


PART_NODES = 512  # looked at by heuristics in some milliseconds


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A compiled rule under the policy protocol.

    Args:
        name: Its name in tables.
        rule: Its number in RULES of agents/heuristics.py.
        patience: How much waiting a second of saved run time is worth; 0 never waits.
        waits: Whether it differs where waiting is allowed.
        about: One line for `longshore policy list`.
        look: As in `watched`.
    """

    name: str
    rule: int
    about: str
    patience: float = 0.0
    waits: bool = False
    look: Look | None = None

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row; False, with nothing picked, to wait."""
        if PICKS[self.rule](sim, row, self.patience):  # without all other rules, so that less is compiled
            return True
        undo_picks(sim, row)
        return False

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row from where it stands to its end."""
        decisions = ALL if self.look is None else decisions_of_a_part(sim, PART_NODES)
        while run_on(sim, row, self.rule, self.patience, decisions):
            if self.look is not None:
                self.look()

    def watched(self, look: Look) -> "Heuristic":
        """Return the same policy, which calls `look` every few decisions while it runs on."""
        return replace(self, look=look)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        run(sim, rows_to_run(sim, scenarios), self.rule, self.patience)


HEURISTICS = {
    name: Heuristic(name, number, rule.about, rule.patience, rule.waits)
    for number, (name, rule) in enumerate(RULES.items())
}
PACK, EFT, EFT_HAZARD, PATIENT = (HEURISTICS[name] for name in ("pack", "eft", "eft-hazard", "patient"))
# Factors that `patient` is tried with on the past of a workload, to be as good as it can there. No other has a number.
FACTORS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25)


def patient_of(factor: float) -> Heuristic:
    """Return `patient` with another factor, named as in `patient@0.8`."""
    about = f"patient with the factor {factor:g} in place of {PATIENT.patience:g}"
    return replace(PATIENT, name=f"{PATIENT.name}@{factor:g}", about=about, patience=factor)


def tuned_patient(cost: Callable[[Heuristic], float]) -> Heuristic:
    """Return `patient` with the factor of least cost, the smallest of equals."""
    return min(map(patient_of, FACTORS), key=cost)


def own_rivals(rules: Rules) -> list[Heuristic]:
    """Return those of `rivals` that are Longshore's own: the same on every machine."""
    points = registered("heuristics")
    return [policy for policy in rivals(rules) if is_ours(points[policy.name])]


def rivals(rules: Rules) -> list[Heuristic]:
    """Return the heuristics that have the same actions: where nobody may wait, not those that differ by waiting."""
    return [policy for policy in HEURISTICS.values() if rules.waiting or not policy.waits]
