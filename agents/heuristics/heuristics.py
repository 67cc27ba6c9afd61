"""The heuristics as policies, by name (docs/policies.md)."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.node_sets import PATIENCE
from ...cluster.dispatch.placing import undo_picks
from ...cluster.model.scenarios import Rules
from ...cluster.state.border import rows_to_run
from ...cluster.state.state import Simulation
from ..parts import ALL, Look, decisions_of_a_part
from . import node_rules, run

PART_NODES = 512  # looked at by heuristics in some milliseconds


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A compiled rule under the policy protocol.

    Args:
        name: Its name in tables.
        rule: Number of the rule in agents/heuristics/run.py.
        patience: How much waiting a second of saved run time is worth; 0 never waits.
        waits: Whether it differs where waiting is allowed.
        about: One line for `longshore policies`.
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
        if run.decide(sim, row, self.rule, self.patience):
            return True
        undo_picks(sim, row)
        return False

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row from where it stands to its end."""
        decisions = ALL if self.look is None else decisions_of_a_part(sim, PART_NODES)
        while run.run_on(sim, row, self.rule, self.patience, decisions):
            if self.look is not None:
                self.look()

    def watched(self, look: Look) -> "Heuristic":
        """Return the same policy, which calls `look` every few decisions while it runs on."""
        return replace(self, look=look)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        run.run(sim, rows_to_run(sim, scenarios), self.rule, self.patience)


RANDOM = Heuristic("random", node_rules.RANDOM, "random nodes with free GPUs")
BEST_OF_RANDOM = Heuristic("best-of-random", run.BEST_OF_RANDOM, "the fastest of 8 random placements")
FIRST_FIT = Heuristic("first-fit", node_rules.FIRST_FIT, "the first nodes with free GPUs")
PACK = Heuristic("pack", node_rules.PACK, "best fit: the smallest hole on a node, else most free GPUs")
SPREAD = Heuristic("spread", node_rules.SPREAD, "worst fit: the node with most free GPUs")
CONSOLIDATE = Heuristic(
    "consolidate", run.CONSOLIDATE, "pack, but waits until the job fits on as few nodes as possible", waits=True
)
FASTEST = Heuristic("fastest", node_rules.FASTEST, "the fastest nodes")
RELIABLE = Heuristic("reliable", node_rules.RELIABLE, "the nodes of lowest hazard")
PACK_HAZARD = Heuristic("pack-hazard", node_rules.PACK_HAZARD, "pack, lemon nodes last")
EFT = Heuristic("eft", run.EFT, "earliest expected finish of the job")
EFT_HAZARD = Heuristic("eft-hazard", run.EFT_HAZARD, "the same, reckoning with faults, restarts and checkpoints")
EFT_WAIT = Heuristic(
    "eft-wait",
    run.EFT_HAZARD,
    "eft-hazard now or after a running job's end, whichever finishes first",
    1.0,
    waits=True,
)
PATIENT = Heuristic(
    "patient", run.PATIENT, "eft-hazard that waits while the wait is short for what it saves", PATIENCE, waits=True
)
REPLACEMENT = Heuristic("replacement", run.REPLACEMENT, "each GPU chosen as a faulty ring member's stand-in")

HEURISTICS = {
    policy.name: policy
    for policy in (
        RANDOM, BEST_OF_RANDOM, FIRST_FIT, PACK, SPREAD, CONSOLIDATE, FASTEST, RELIABLE, PACK_HAZARD, EFT, EFT_HAZARD,
        EFT_WAIT, PATIENT, REPLACEMENT,
    )
}  # fmt: skip


def rivals(rules: Rules) -> list[Heuristic]:
    """Return the heuristics that have the same actions: where nobody may wait, not those that differ by waiting."""
    return [policy for policy in HEURISTICS.values() if rules.waiting or not policy.waits]
