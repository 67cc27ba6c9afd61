"""Heuristics as compiled code: one decision, or whole simulations. Rules are called by their numbers in RULES."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load_as, registered
from ...cluster.kernels.compiled import kernel
from ...cluster.kernels.one_of import check_kernel, one_of
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.state import Simulation
from ..parts import ALL
from .rule import Rule


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
