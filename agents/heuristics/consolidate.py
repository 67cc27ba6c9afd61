"""Best fit that waits until a job fits on as few nodes as possible."""

from ...cluster.dispatch.order import may_wait
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from ...cluster.state.usable import class_of
from .pack import pick_pack
from .rule import Rule


@kernel
def fewest_nodes(sim: Simulation, gpus: int, kind: int) -> int:
    """Return how many nodes a job of so many GPUs and of a class of needs takes on an empty cluster."""
    first_gpu, suits = sim.cluster.first_gpu, sim.cluster.suits
    nodes, size = 0, sim.cluster.gpu_node.size
    while gpus > 0 and size > 0:
        smaller = 0  # the next size that a node has: to try all in between would take minutes beside a huge node
        for node in range(first_gpu.size - 1):
            own = (first_gpu[node + 1] - first_gpu[node]) * suits[kind, node]
            if own < size:
                smaller = max(smaller, own)
            elif own == size and gpus > 0:
                gpus -= size
                nodes += 1
        size = smaller
    return nodes


@kernel
def pick_consolidated(sim: Simulation, row: int, patience: float) -> bool:
    """Pick as `pack` does; False if that takes more nodes than needed and waiting is allowed."""
    pick_pack(sim, row, patience)
    if not may_wait(sim, row):
        return True
    job = sim.state.current[row]
    gpus = sim.scenarios.gpus[sim.state.scenario[row], job]
    return bool(sim.state.picked_nodes[row] <= fewest_nodes(sim, gpus, class_of(sim, row, job)))


RULE = Rule(pick_consolidated, "pack, but waits until the job fits on as few nodes as possible", waits=True)
