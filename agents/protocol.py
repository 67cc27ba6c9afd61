"""The one interface of all policies, heuristic or learned; runs that a caller can interrupt; records of decisions."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..cluster.state.state import Simulation


@runtime_checkable
class Policy(Protocol):
    """Chooses GPUs for jobs. Register one under the entry point group `longshore.policies`.

    A decision is due in a row of a simulation when `longshore.cluster.simulator.engine.advance` has returned True for
    it. The policy picks GPUs with `take_gpu` or `take_node` of `longshore.cluster.placing`; the caller then
    starts the job or takes the picks back. Before its first pick it may turn to another job that the order regime
    allows, with `turn_to` of `longshore.cluster.queue.order`; the caller starts the one that is due then.
    `pick_candidate` of `longshore.cluster.candidates.candidates` does all of this, and where its candidate lets all
    jobs wait it notes that in `rested` of the state. Nothing else of the simulation may be changed.

    A policy must not read what no scheduler can know: `scenarios.work_s` (the estimates are for that), rows of
    `scenarios` for jobs not yet submitted, `scenarios.fault_seed` and `source_rate_per_s`, the outages of `process` but
    for their mean length (which is experience, as the means of a fault model are), and of the state `end_s`, the order
    of `run_heap`, `source_s` and its heap, `source_k`, and the log. The contract tests change all of it before `place`
    and demand the same choice; only `random` and `best-of-random` draw from the fault seed.
    """

    @property
    def name(self) -> str:
        """Name in tables and on the command line."""
        ...

    @property
    def about(self) -> str:
        """One line of description."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the policy uses waiting, so that it is compared with rivals that do too."""
        ...

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick all GPUs of the job that is due in a row, and return True; or pick none and return False to wait.

        False is allowed only where `longshore.cluster.queue.order.may_wait` allows it, and turning to another job
        where `may_turn_to_other` does.
        """
        ...

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run scenario `scenarios[r]` in row r of the simulation, from its beginning to its end.

        The result must equal that of `place` decision by decision. `checked_scenario_indices` of
        `longshore.cluster.state.border` refuses what cannot be run.

        Raises:
            ValueError: If there are more scenarios than rows, or one does not exist.
        """
        ...


class DecisionRecord(NamedTuple):
    """The choices of one decision in their order: a single one among candidates, or one for each node or GPU picked."""

    observations: NDArray[np.float32]  # (choices, size)
    masks: NDArray[np.bool_]  # (choices, actions) True where an action was open
    log_probabilities: NDArray[np.float32]  # (choices, actions) of the network's softmax; -inf where it was closed
    actions: NDArray[np.int32]  # (choices,) taken


@runtime_checkable
class RecordingPolicy(Policy, Protocol):
    """A policy that records its decisions, as networks do."""

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`, as a copy."""
        ...


Check: TypeAlias = Callable[[], None]  # may raise, which ends the run at once
TO_THE_END = 1 << 62  # decisions


@runtime_checkable
class InterruptiblePolicy(Protocol):
    """A policy whose runs a caller can interrupt."""

    def interruptible(self, check: Check) -> Self:
        """Return the same policy, which calls `check` every few decisions while it runs on."""
        ...


def decisions_between_checks(sim: Simulation, nodes: int) -> int:
    """Return the number of decisions in which a policy reads about N nodes, at least one decision."""
    return max(1, nodes // int(sim.cluster.speed.size))
