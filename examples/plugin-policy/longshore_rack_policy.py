"""A placement policy for Longshore in one file: a job stays in one rack if one has room for it."""

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.placing import take_node
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import Simulation


class OneRack:
    """Takes the rack that is left with the fewest free GPUs; over several racks, those with most free GPUs first."""

    name = "one-rack"
    about = "the fullest rack that has room for the whole job"
    waits = False

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due."""
        free = sim.state.free[row]  # usable GPUs of each node
        in_rack = np.add.reduceat(free, sim.cluster.first_node[:-1])
        need = int(sim.state.need[row])
        # Racks with room come first, the fullest of them before the others; then the emptiest.
        order = np.argsort(np.where(in_rack >= need, in_rack, 2 * free.sum() - in_rack), kind="stable")
        for rack in order:
            first, end = sim.cluster.first_node[rack], sim.cluster.first_node[rack + 1]
            for node in first + np.argsort(-free[first:end], kind="stable"):
                if sim.state.need[row] > 0 and free[node] > 0:
                    take_node(sim, row, int(node))
        return True

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run whole simulations, decision by decision: for `longshore simulate` and `longshore evaluate`."""
        for row, scenario in enumerate(scenarios):
            reset(sim, row, scenario)
            while advance(sim, row):
                if self.place(sim, row):
                    start(sim, row)
                else:
                    wait(sim, row)
