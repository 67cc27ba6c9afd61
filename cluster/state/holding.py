"""GPUs at a moment: which are usable and by which jobs, which a job holds beyond a fault, and which nodes are slow.

Jobs of equal needs are of one class, and `suits` of the cluster has the nodes that suit it; class 0 takes every node.
While a job is due, `free` and `usable` count the nodes that suit it alone, so that a policy sees no others. The GPUs of
other nodes are `hidden` for the while. Where all jobs are of one class, none of this happens.

An idle GPU of the pool of spares counts as out of service, as if one more fault source held it down. So no start, no
policy and no observation takes it for usable, and none of them need know of the pool (docs/simulator.md, Switching).

Policies do not know which nodes are slow: they go by the speeds of the scenario (docs/simulator.md, Slow nodes).
"""

import math

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from ..model.topology import Cluster
from .beliefs import observe_service_time
from .state import Ints, Simulation, has_need_classes, may_keep_gpus_after_fault, nodes_may_slow

UNSUITED = "a job was to start on a GPU of a node that does not suit it: take nodes with free GPUs"


@kernel
def need_class_of(sim: Simulation, row: int, job: int) -> int:
    """Return the class of a job's needs."""
    return int(sim.scenarios.needs[sim.state.scenario[row], job])


@kernel
def add_usable_by_class(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count GPUs of a node that have just been added to `free` and `usable` for the classes that they suit.

    They are hidden if they do not suit the class that is shown. To be called only where jobs may differ in needs; a
    negative number takes GPUs away.
    """
    state, suits = sim.state, sim.cluster.suits
    for need_class in range(suits.shape[0]):
        state.class_usable[row, need_class] += gpus * suits[need_class, node]
    if suits[state.shown_class[row], node] == 0:
        state.free[row, node] -= gpus
        state.usable[row] -= gpus
        state.hidden[row, node] += gpus


@kernel
def add_in_service_by_class(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count GPUs of a node as in service, busy or free, for the classes that they suit; as `add_usable_by_class`."""
    suits = sim.cluster.suits
    for need_class in range(suits.shape[0]):
        sim.state.class_in_service[row, need_class] += gpus * suits[need_class, node]


@kernel
def show_only_class(sim: Simulation, row: int, need_class: int) -> None:
    """Let `free` and `usable` count the nodes that suit a class alone, where jobs may differ in needs."""
    state, suits = sim.state, sim.cluster.suits
    if state.shown_class[row] == need_class:
        return
    state.shown_class[row] = need_class
    state.usable[row] = 0
    for node in range(suits.shape[1]):
        usable = state.free[row, node] + state.hidden[row, node]
        state.free[row, node] = usable * suits[need_class, node]
        state.hidden[row, node] = usable - state.free[row, node]
        state.usable[row] += state.free[row, node]


@kernel
def usable_on_node(sim: Simulation, row: int, node: int) -> int:
    """Return the usable GPUs of a node, hidden or not."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.state.free[row, node])
    return int(sim.state.free[row, node] + sim.state.hidden[row, node])


@kernel
def usable_for_class(sim: Simulation, row: int, need_class: int) -> int:
    """Return the usable GPUs of the nodes that suit a class, hidden or not."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.state.usable[row])
    return int(sim.state.class_usable[row, need_class])


@kernel
def usable_for_job(sim: Simulation, row: int, job: int) -> int:
    """Return the usable GPUs of the nodes that suit a job."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.state.usable[row])
    return usable_for_class(sim, row, need_class_of(sim, row, job))


@kernel
def in_service_for_job(sim: Simulation, row: int, job: int) -> int:
    """Return the GPUs in service, busy or free, of the nodes that suit a job."""
    if sim.cluster.suits.shape[0] == 1:
        return int(sim.cluster.gpu_node.size - sim.state.down[row])
    return int(sim.state.class_in_service[row, need_class_of(sim, row, job)])


@kernel
def reset_usable(sim: Simulation, row: int) -> None:
    """Let all GPUs be free and in service."""
    state, cluster = sim.state, sim.cluster
    state.usable[row] = 0
    state.shown_class[row] = 0
    state.reserved_class[row] = 0
    for need_class in range(state.class_usable.shape[1]):
        state.class_usable[row, need_class] = 0
        state.class_in_service[row, need_class] = 0
    for node in range(cluster.speed.size):
        gpus = cluster.first_gpu[node + 1] - cluster.first_gpu[node]
        state.free[row, node] = gpus
        state.usable[row] += gpus
        if has_need_classes(sim):
            state.hidden[row, node] = 0
            add_usable_by_class(sim, row, node, gpus)
            add_in_service_by_class(sim, row, node, gpus)


GPU_ROUNDING = 1e-9  # of a number of GPUs: 7 % of 100 are 7, not 8


@kernel
def is_struck(sim: Simulation, row: int, job: int) -> bool:
    """Return whether a running job stands still after a fault that is not handled yet."""
    return may_keep_gpus_after_fault(sim) and sim.state.struck_s[row, job] >= 0.0


@kernel
def held_gpus(sim: Simulation, row: int, job: int) -> int:
    """Return how many GPUs a running job holds.

    By the rules of a simulation they follow from what it runs without; on a real cluster they are counted.
    """
    state = sim.state
    gpus = int(sim.scenarios.gpus[state.scenario[row], job])
    if may_keep_gpus_after_fault(sim):
        return gpus - int(state.short[row, job])
    if state.resized[row] == 0:
        return gpus
    count, gpu = 0, state.first_gpu[row, job]
    while gpu >= 0:
        count += 1
        gpu = state.gpu_next[row, gpu]
    return count


@kernel
def unsaved_work_before_switch_s(sim: Simulation, row: int, job: int) -> float:
    """Return the work that a running job did before its last switch and that no checkpoint holds."""
    return float(sim.state.fresh_s[row, job]) if may_keep_gpus_after_fault(sim) else 0.0


@kernel
def begin_run(sim: Simulation, row: int, job: int) -> None:
    """Let a job run on all the GPUs that it asks for, well, and with no work done since its last checkpoint."""
    state = sim.state
    state.struck_s[row, job] = -1.0
    state.slowed_s[row, job] = -1.0
    state.short[row, job] = 0
    state.fresh_s[row, job] = 0.0
    state.fresh_gpu_s[row, job] = 0.0
    state.since_s[row, job] = 0.0


@kernel
def mark_spares(node_type: Ints, first_gpu: Ints, share: float, spare: Ints, row: int) -> None:
    """Set 1 for the last GPUs of each node type, the share of them rounded up; 0 for all others.

    Args:
        node_type: Type of each node, shape (nodes,).
        first_gpu: GPUs of node i are first_gpu[i] to first_gpu[i + 1] - 1, shape (nodes + 1,).
        share: Of the GPUs of each type.
        spare: Where it is written, shape (rows, gpus).
        row: Row of that.
    """
    for gpu in range(first_gpu[node_type.size]):
        spare[row, gpu] = 0
    for node in range(node_type.size - 1, -1, -1):
        gpus, later = 0, False
        for other in range(node_type.size):
            if node_type[other] == node_type[node]:
                gpus += first_gpu[other + 1] - first_gpu[other]
                later = later or other > node
        if later:  # the last node of its type has done it for all of them
            continue
        left, at = math.ceil(share * gpus - GPU_ROUNDING), node
        while left > 0:
            if node_type[at] == node_type[node]:
                for gpu in range(first_gpu[at + 1] - 1, first_gpu[at] - 1, -1):
                    if left > 0:
                        spare[row, gpu] = 1
                        left -= 1
            at -= 1


def startable_gpus(cluster: Cluster, share: float) -> NDArray[np.int64]:
    """Return how many GPUs of each node are no spares, shape (nodes,)."""
    spare = np.zeros((1, cluster.gpu_node.size), dtype=np.int32)
    if share > 0.0:
        mark_spares(cluster.node_type, cluster.first_gpu, share, spare, 0)
    found: NDArray[np.int64] = np.add.reduceat(1 - spare[0], cluster.first_gpu[:-1], dtype=np.int64)
    return found


@kernel
def held_while_idle(sim: Simulation, row: int, gpu: int) -> int:
    """Return 1 for a GPU that the pool or a job holds out of service, whether a fault does so too or not; else 0.

    To be called only where jobs hold on to their GPUs.
    """
    return 1 if _is_set_aside(sim, row, gpu) and sim.state.gpu_job[row, gpu] < 0 else 0


@kernel
def _is_set_aside(sim: Simulation, row: int, gpu: int) -> bool:
    """Return whether a GPU is held out of service while idle: as a spare, or for the job that it is relieved of."""
    return bool(sim.state.spare[row, gpu] == 1 or sim.state.kept_for[row, gpu] >= 0)


@kernel
def is_idle_spare(sim: Simulation, row: int, gpu: int) -> bool:
    """Return whether a GPU stands ready in the pool."""
    is_kept = sim.state.kept_for[row, gpu] >= 0
    return not is_kept and held_while_idle(sim, row, gpu) == 1 and sim.state.gpu_down[row, gpu] == 1


@kernel
def add_usable_gpus(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count usable GPUs of a node that came, or went if the number is negative."""
    sim.state.free[row, node] += gpus
    sim.state.usable[row] += gpus
    if has_need_classes(sim):
        add_usable_by_class(sim, row, node, gpus)


@kernel
def add_in_service_gpus(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count GPUs of a node that are about to come into service, or to go out of it if the number is negative."""
    if sim.rules.estimated_hazards:
        observe_service_time(sim, row, node)
    sim.state.down[row] -= gpus
    if has_need_classes(sim):
        add_in_service_by_class(sim, row, node, gpus)


@kernel
def _hold_out_of_service(sim: Simulation, row: int, gpu: int) -> None:
    """Hold an idle GPU out of service, whether a fault does so too or not."""
    if sim.state.gpu_down[row, gpu] == 0:
        add_in_service_gpus(sim, row, sim.cluster.gpu_node[gpu], -1)
    sim.state.gpu_down[row, gpu] += 1


@kernel
def fill_pool(sim: Simulation, row: int) -> None:
    """Put the spares into the pool of a row in which all GPUs are free and in service."""
    mark_spares(sim.cluster.node_type, sim.cluster.first_gpu, sim.rules.spares, sim.state.spare, row)
    for gpu in range(sim.cluster.gpu_node.size):
        if sim.state.spare[row, gpu] == 1:
            add_usable_gpus(sim, row, sim.cluster.gpu_node[gpu], -1)
            _hold_out_of_service(sim, row, gpu)


@kernel
def claim_gpu(sim: Simulation, row: int, job: int, gpu: int) -> None:
    """Give a running job an idle GPU more, of the pool or not, or one that it is kept for.

    A real cluster, whose jobs hold on to GPUs by no rule of the simulation, has no pool.
    """
    state, node = sim.state, sim.cluster.gpu_node[gpu]
    if may_keep_gpus_after_fault(sim) and _is_set_aside(sim, row, gpu):
        add_in_service_gpus(sim, row, node, 1)
        state.gpu_down[row, gpu] -= 1
    else:
        add_usable_gpus(sim, row, node, -1)
    state.gpu_job[row, gpu] = job
    state.gpu_next[row, gpu] = state.first_gpu[row, job]
    state.first_gpu[row, job] = gpu
    state.busy[row] += 1
    _note_resizing(sim, row)


@kernel
def give_up_gpu(sim: Simulation, row: int, job: int, gpu: int) -> None:
    """Take a GPU from a running job."""
    state = sim.state
    if state.first_gpu[row, job] == gpu:
        state.first_gpu[row, job] = state.gpu_next[row, gpu]
    else:
        before = state.first_gpu[row, job]
        while state.gpu_next[row, before] != gpu:
            before = state.gpu_next[row, before]
        state.gpu_next[row, before] = state.gpu_next[row, gpu]
    state.busy[row] -= 1
    vacate_gpu(sim, row, gpu)
    _note_resizing(sim, row)


@kernel
def _note_resizing(sim: Simulation, row: int) -> None:
    """Let GPUs of running jobs be counted from here on, where no rule says how many they hold."""
    if not may_keep_gpus_after_fault(sim):
        sim.state.resized[row] = 1
        sim.state.reserved_for[row] = 0


@kernel
def vacate_gpu(sim: Simulation, row: int, gpu: int) -> None:
    """Let a GPU serve no job: it is free unless a fault holds it down, or it is set aside."""
    state = sim.state
    state.gpu_job[row, gpu] = -1
    if may_keep_gpus_after_fault(sim):
        state.died[row, gpu] = 0
    if may_keep_gpus_after_fault(sim) and _is_set_aside(sim, row, gpu):
        _hold_out_of_service(sim, row, gpu)
    elif state.gpu_down[row, gpu] == 0:
        add_usable_gpus(sim, row, sim.cluster.gpu_node[gpu], 1)


@kernel
def suit_same_jobs(sim: Simulation, node: int, other: int) -> bool:
    """Return whether two nodes suit jobs of the same classes of needs."""
    suits, differ = sim.cluster.suits, 0
    for need_class in range(suits.shape[0]):
        differ += suits[need_class, node] != suits[need_class, other]
    return differ == 0


@kernel
def swap_spare_role(sim: Simulation, row: int, gpu: int, failed: int) -> None:
    """Let a GPU that failed take the place in the pool of the spare that takes its seat, if both are alike.

    So there are always as many GPUs of each kind on which jobs may start. To be called while both are held by the job.
    """
    spare, node_type = sim.state.spare, sim.cluster.node_type
    node, other = sim.cluster.gpu_node[gpu], sim.cluster.gpu_node[failed]
    is_alike = node_type[node] == node_type[other] and suit_same_jobs(sim, node, other)
    if spare[row, gpu] == 1 and spare[row, failed] == 0 and is_alike:
        spare[row, gpu] = 0
        spare[row, failed] = 1


@kernel
def relieve_gpu(sim: Simulation, row: int, job: int, gpu: int, backup: int) -> None:
    """Take a slow GPU off the ring of a running job, which keeps it; another GPU that the job has takes its seat."""
    state = sim.state
    state.kept_for[row, gpu], state.backup_of[row, gpu] = job, backup
    state.relieved_of[row, job] += 1
    state.relieved[row] += 1
    give_up_gpu(sim, row, job, gpu)


@kernel
def take_back_gpu(sim: Simulation, row: int, job: int, gpu: int) -> None:
    """Give a relieved GPU, which no fault holds down, its seat back; its backup leaves the job."""
    backup = sim.state.backup_of[row, gpu]
    claim_gpu(sim, row, job, gpu)
    _end_relief(sim, row, job, gpu)
    give_up_gpu(sim, row, job, backup)


@kernel
def release_gpu(sim: Simulation, row: int, job: int, gpu: int) -> None:
    """Let a job no longer keep a relieved GPU: it is free unless a fault holds it down, or goes back to the pool."""
    state, node = sim.state, sim.cluster.gpu_node[gpu]
    _end_relief(sim, row, job, gpu)
    if state.spare[row, gpu] == 1:
        return
    if state.gpu_down[row, gpu] == 1:
        add_in_service_gpus(sim, row, node, 1)
    state.gpu_down[row, gpu] -= 1
    if state.gpu_down[row, gpu] == 0:
        add_usable_gpus(sim, row, node, 1)


@kernel
def _end_relief(sim: Simulation, row: int, job: int, gpu: int) -> None:
    state = sim.state
    state.kept_for[row, gpu], state.backup_of[row, gpu] = -1, -1
    state.relieved_of[row, job] -= 1
    state.relieved[row] -= 1


@kernel
def is_slow(sim: Simulation, row: int, node: int) -> bool:
    """Return whether a node is slow at the moment."""
    return nodes_may_slow(sim) and sim.state.node_slow[row, node] == 1


@kernel
def present_speed(sim: Simulation, row: int, node: int) -> float:
    """Return the speed of a node's GPUs at the moment."""
    speed = float(sim.scenarios.speed[sim.state.scenario[row], node])
    return speed / sim.rules.slow_factor if is_slow(sim, row, node) else speed
