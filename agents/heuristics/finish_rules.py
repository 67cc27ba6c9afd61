"""Heuristics by the earliest expected finish (docs/policies.md, By expected finish)."""

from ...cluster.candidates.node_sets import TIE, best_set, gain_of_waiting_s, imagine_now
from ...cluster.dispatch.order import may_wait
from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation


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
