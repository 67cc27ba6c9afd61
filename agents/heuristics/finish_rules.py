"""Heuristics by the earliest expected finish (docs/policies.md, By expected finish)."""

from ...cluster.candidates.free_nodes import imagine_now
from ...cluster.candidates.node_sets import PATIENCE, TIE, best_set, gain_of_waiting_s
from ...cluster.dispatch.expected import expected_fault_loss_s
from ...cluster.dispatch.order import may_wait
from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def pick_by_finish(sim: Simulation, row: int, fault_loss_s: float, patience: float) -> bool:
    """Pick the GPUs of the set where the current job finishes first; False if waiting is better.

    Args:
        sim: The simulation.
        row: Row of the decision.
        fault_loss_s: What an expected fault costs; 0 leaves faults out of account.
        patience: Seconds of run time that a second of waiting must save, inverted; 0 never waits.
    """
    state = sim.state
    job = state.current[row]
    imagine_now(sim, row)
    run_s, _, count = best_set(sim, row, job, fault_loss_s)
    if patience > 0.0 and may_wait(sim, row):
        if gain_of_waiting_s(sim, row, job, run_s, fault_loss_s, patience) > TIE * run_s:
            return False
        imagine_now(sim, row)
        _, _, count = best_set(sim, row, job, fault_loss_s)
    for place in range(count):
        take_node(sim, row, sim.scratch.best_set[row, place])
    return True


@kernel
def pick_eft(sim: Simulation, row: int, patience: float) -> bool:
    """Pick where the job finishes first, faults left out of account."""
    return pick_by_finish(sim, row, 0.0, patience)


@kernel
def pick_eft_hazard(sim: Simulation, row: int, patience: float) -> bool:
    """Pick where the job finishes first, faults reckoned with; False if waiting is better by the patience."""
    return pick_by_finish(sim, row, expected_fault_loss_s(sim), patience)


EFT = Rule(pick_eft, "earliest expected finish of the job")
EFT_HAZARD = Rule(pick_eft_hazard, "the same, reckoning with faults, restarts and checkpoints")
EFT_WAIT = Rule(
    pick_eft_hazard, "eft-hazard now or after a running job's end, whichever finishes first", patience=1.0, waits=True
)
PATIENT = Rule(
    pick_eft_hazard, "eft-hazard that waits while the wait is short for what it saves", patience=PATIENCE, waits=True
)
