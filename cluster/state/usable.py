"""Which GPUs are usable, and by whom: jobs have needs, and not every node suits every job.

Jobs of equal needs are of one class, and `suits` of the cluster says which nodes suit it; class 0 takes every node.
While a job is due, `free` and `usable` tell of nodes that suit it alone, so that whoever places it sees no others. The
GPUs of other nodes are `hidden` for the while. Where all jobs are of one class nothing of all this happens.
"""

from ..kernels.compiled import kernel
from .state import Simulation

UNSUITED = "a job was to start on a GPU of a node that does not suit it: take nodes with free GPUs"


@kernel
def has_classes(sim: Simulation) -> bool:
    """Say whether jobs may differ in what they need."""
    return bool(sim.cluster.suits.shape[0] > 1)


@kernel
def class_of(sim: Simulation, row: int, job: int) -> int:
    """Return the class of a job's needs."""
    return int(sim.scenarios.needs[sim.state.scenario[row], job])


@kernel
def count_by_class(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count GPUs of a node that have just been added to `free` and `usable` for the classes that they suit.

    They are hidden if they do not suit the class that is shown. To be called only where jobs may differ in needs; a
    negative number takes GPUs away.
    """
    state, suits = sim.state, sim.cluster.suits
    for kind in range(suits.shape[0]):
        state.class_usable[row, kind] += gpus * suits[kind, node]
    if suits[state.shown_class[row], node] == 0:
        state.free[row, node] -= gpus
        state.usable[row] -= gpus
        state.hidden[row, node] += gpus


@kernel
def count_in_service(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count GPUs of a node as in service, busy or free, for the classes that they suit; as `count_by_class`."""
    suits = sim.cluster.suits
    for kind in range(suits.shape[0]):
        sim.state.class_in_service[row, kind] += gpus * suits[kind, node]


@kernel
def show_class(sim: Simulation, row: int, kind: int) -> None:
    """Let `free` and `usable` tell of the nodes that suit a class alone, where jobs may differ in needs."""
    state, suits = sim.state, sim.cluster.suits
    if state.shown_class[row] == kind:
        return
    state.shown_class[row] = kind
    state.usable[row] = 0
    for node in range(suits.shape[1]):
        usable = state.free[row, node] + state.hidden[row, node]
        state.free[row, node] = usable * suits[kind, node]
        state.hidden[row, node] = usable - state.free[row, node]
        state.usable[row] += state.free[row, node]


@kernel
def usable_on(sim: Simulation, row: int, node: int) -> int:
    """Return the usable GPUs of a node, whomever they suit."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.state.free[row, node])
    return int(sim.state.free[row, node] + sim.state.hidden[row, node])


@kernel
def usable_by_class(sim: Simulation, row: int, kind: int) -> int:
    """Return the usable GPUs of the nodes that suit a class, hidden or not."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.state.usable[row])
    return int(sim.state.class_usable[row, kind])


@kernel
def usable_to(sim: Simulation, row: int, job: int) -> int:
    """Return the usable GPUs of the nodes that suit a job."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.state.usable[row])
    return usable_by_class(sim, row, class_of(sim, row, job))


@kernel
def in_service_for(sim: Simulation, row: int, job: int) -> int:
    """Return the GPUs in service, busy or free, of the nodes that suit a job."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.cluster.gpu_node.size - sim.state.down[row])
    return int(sim.state.class_in_service[row, class_of(sim, row, job)])


@kernel
def reset_usable(sim: Simulation, row: int) -> None:
    """Let all GPUs be free and in service."""
    state, cluster = sim.state, sim.cluster
    state.usable[row] = 0
    state.shown_class[row] = 0
    state.reserved_class[row] = 0
    for kind in range(state.class_usable.shape[1]):
        state.class_usable[row, kind] = 0
        state.class_in_service[row, kind] = 0
    for node in range(cluster.speed.size):
        gpus = cluster.first_gpu[node + 1] - cluster.first_gpu[node]
        state.free[row, node] = gpus
        state.usable[row] += gpus
        if has_classes(sim):
            state.hidden[row, node] = 0
            count_by_class(sim, row, node, gpus)
            count_in_service(sim, row, node, gpus)
