"""Policies once more, written plainly from docs/policies.md for the reference simulator.

Each gets the state and a job that may start, and returns the GPUs that the job shall have, or None to wait.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from tests.reference import Choose
from tests.reference_faults import plain_uniform
from tests.reference_queue import may_wait
from tests.reference_state import (
    ReferenceState,
    estimated_run_s,
    expected_end_s,
    reference_iteration_s,
    running,
    slowdown,
    suiting,
    usable_by,
)

Key = Callable[[ReferenceState, int, int, int], tuple[float, ...]]  # state, node, its free GPUs, GPUs still needed
LARGEST_SET = 8  # nodes with free GPUs up to which `eft` looks at all their sets
TIE = 1e-9  # run times that differ by less, relatively, are equal


def free_by_node(state: ReferenceState, usable: list[int]) -> dict[int, int]:
    """Return the number of usable GPUs of each node that has any, lowest node first."""
    nodes = [state.gpu_node[gpu] for gpu in usable]
    return {node: nodes.count(node) for node in sorted(set(nodes))}


def given(state: ReferenceState, usable: list[int], node: int, count: int) -> list[int]:
    """Return the GPUs that a node gives, lowest hazard first, then lowest index."""
    of_node = [gpu for gpu in usable if state.gpu_node[gpu] == node]
    return sorted(of_node, key=lambda gpu: (state.hazard_per_s[gpu], gpu))[:count]


def node_hazard(state: ReferenceState, node: int) -> float:
    gpus = state.node_gpus[node]
    return sum(state.hazard_per_s[gpu] for gpu in gpus) / len(gpus)


def lemons(state: ReferenceState) -> set[int]:
    """Return the nodes with a hazard of over 5 times the lower median."""
    hazards = [node_hazard(state, node) for node in range(len(state.node_gpus))]
    median = sorted(hazards)[(len(hazards) - 1) // 2]
    return {node for node, hazard in enumerate(hazards) if hazard > 5 * median}


def node_by_node(key: Key) -> Choose:
    """Return the policy that takes the node with the best (smallest) key until the job has its GPUs."""

    def choose(state: ReferenceState, job: int) -> list[int]:
        usable = usable_by(state, job)
        free = free_by_node(state, usable)
        gpus: list[int] = []
        while (needed := state.jobs[job].gpus - len(gpus)) > 0:
            node = best_node(state, free, needed, key)
            gpus += given(state, usable, node, needed)
            del free[node]
        return gpus

    return choose


def best_node(state: ReferenceState, free: dict[int, int], needed: int, key: Key) -> int:
    return min(free, key=lambda node: (*key(state, node, free[node], needed), node))


def pack_key(state: ReferenceState, node: int, free: int, needed: int) -> tuple[float, ...]:
    """Prefer nodes where all fit, the fewest free among them; where none fits, the most free; then the higher speed."""
    fits = free >= needed
    return (not fits, free if fits else -free, -state.speed[node])


def pack_hazard_key(state: ReferenceState, node: int, free: int, needed: int) -> tuple[float, ...]:
    return (node in lemons(state), *pack_key(state, node, free, needed))


first_fit = node_by_node(lambda _state, _node, _free, _needed: ())
spread = node_by_node(lambda _state, _node, free, _needed: (-free,))
fastest = node_by_node(lambda state, node, free, _needed: (-state.speed[node], -free))
reliable = node_by_node(lambda state, node, free, _needed: (node_hazard(state, node), -free))
pack = node_by_node(pack_key)
pack_hazard = node_by_node(pack_hazard_key)


def random_placement(state: ReferenceState, job: int, attempt: int = 0) -> list[int]:
    """Take nodes at random among those with free GPUs, all equally likely, by counters of the present decision."""
    usable = usable_by(state, job)
    free = free_by_node(state, usable)
    gpus: list[int] = []
    for draw in count(2**28 + 4096 * attempt):
        if (needed := state.jobs[job].gpus - len(gpus)) == 0:
            return gpus
        node = list(free)[int(plain_uniform(state.seed, draw, state.decisions) * len(free))]
        gpus += given(state, usable, node, needed)
        del free[node]
    raise AssertionError("counters do not end")


def best_of_random(state: ReferenceState, job: int) -> list[int]:
    """Return the quickest of 8 random placements, the first among equals."""
    placements = [random_placement(state, job, attempt) for attempt in range(8)]
    return min(placements, key=lambda gpus: slowdown(state, job, gpus))


def consolidate(state: ReferenceState, job: int) -> list[int] | None:
    """Pack, but wait while that would use more nodes than the job needs on an empty cluster."""
    gpus = pack(state, job)
    assert gpus is not None
    nodes = len({state.gpu_node[gpu] for gpu in gpus})
    return None if may_wait(state, job) and nodes > fewest_nodes(state, len(gpus), state.jobs[job].nodes) else gpus


def fewest_nodes(state: ReferenceState, needed: int, nodes: Iterable[int]) -> int:
    """Return how many of some nodes hold as many GPUs when all are free."""
    sizes = sorted((len(state.node_gpus[node]) for node in nodes), reverse=True)
    return next(count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) >= needed)


def eft(state: ReferenceState, job: int) -> list[int]:
    return best_set(state, job, usable_by(state, job), 0.0)[1]


def eft_hazard(state: ReferenceState, job: int) -> list[int]:
    return best_set(state, job, usable_by(state, job), fault_loss_s(state))[1]


def eft_wait(state: ReferenceState, job: int) -> list[int] | None:
    """Start at once or after any running job's expected end, whichever finishes earlier."""
    return unless_waiting_pays(state, job, 1.0)


def patient(state: ReferenceState, job: int) -> list[int] | None:
    """Wait while 0.4 of the run time that it saves is worth more than the time it takes."""
    return unless_waiting_pays(state, job, 0.4)


def unless_waiting_pays(state: ReferenceState, job: int, patience: float) -> list[int] | None:
    run_s, gpus = best_set(state, job, usable_by(state, job), fault_loss_s(state))
    gains_s = (patience * (run_s - later_s) - wait_s for wait_s, later_s in prospects(state, job))
    return None if may_wait(state, job) and max(gains_s) > TIE * run_s else gpus


def fault_loss_s(state: ReferenceState) -> float:
    """Return the expected cost of a fault: 1.5 checkpoint intervals (none where nothing is saved) and the restart."""
    checkpoint_s = state.rules.checkpoint_s
    return (1.5 * checkpoint_s if checkpoint_s < math.inf else 0.0) + state.rules.restart_s


def prospects(state: ReferenceState, job: int) -> Iterator[tuple[float, float]]:
    """Yield for each running job the time until its expected end and the run time on the best set by then."""
    for end_s in sorted(expected_end_s(it) for it in running(state)):
        by_then = [gpu for it in running(state) if expected_end_s(it) <= end_s for gpu in it.placement]
        usable = sorted(usable_by(state, job) + suiting(state, job, by_then))
        yield end_s - state.now_s, best_set(state, job, usable, fault_loss_s(state))[0]


def best_set(state: ReferenceState, job: int, usable: list[int], loss_s: float) -> tuple[float, list[int]]:
    """Return the shortest expected run time over sets of nodes, with the GPUs; ties: smallest hole, then found first.

    Args:
        state: The present.
        job: The job to place.
        usable: GPUs to choose from.
        loss_s: Expected cost of a fault.
    """
    free = free_by_node(state, usable)
    best: tuple[float, int, list[int]] | None = None
    for nodes in node_sets(state, free, state.jobs[job].gpus):
        gpus = gpus_of_set(state, usable, free, nodes, state.jobs[job].gpus)
        if gpus is None:
            continue
        risk = sum(node_hazard(state, state.gpu_node[gpu]) for gpu in gpus) * loss_s
        run_s = estimated_run_s(state, job, slowdown(state, job, gpus)) * (1 + risk)
        hole = sum(free[node] for node in nodes) - len(gpus)
        if best is None or earlier(run_s, hole, *best[:2]):
            best = (run_s, hole, gpus)
    assert best is not None
    return best[0], best[2]


def earlier(run_s: float, hole: int, other_s: float, other_hole: int) -> bool:
    """Say whether a set is better than the best so far; equal run times leave it to the smaller hole."""
    if math.isclose(run_s, other_s, rel_tol=TIE):
        return hole < other_hole
    return run_s < other_s


def gpus_of_set(
    state: ReferenceState, usable: list[int], free: dict[int, int], nodes: list[int], needed: int
) -> list[int] | None:
    """Return the GPUs that a set gives, most free first; None if they do not suffice or a node would give nothing."""
    gpus: list[int] = []
    for node in sorted(nodes, key=lambda node: (-free[node], node)):
        if len(gpus) == needed:
            return None
        gpus += given(state, usable, node, needed - len(gpus))
    return gpus if len(gpus) == needed else None


def node_sets(state: ReferenceState, free: dict[int, int], needed: int) -> Iterator[list[int]]:
    if len(free) > LARGEST_SET:
        yield from likely_sets(state, free, needed)
        return
    nodes = list(free)
    for code in range(1, 2 ** len(nodes)):
        yield [node for bit, node in enumerate(nodes) if code >> bit & 1]


def likely_sets(state: ReferenceState, free: dict[int, int], needed: int) -> Iterator[list[int]]:
    """Yield one set for each speed (highest first), with and without lemons, in the whole cluster and each rack."""
    bad = lemons(state)
    racks = range(max(state.node_rack) + 1)
    for speed in sorted(set(state.speed), reverse=True):
        fast = {node: gpus for node, gpus in free.items() if state.speed[node] >= speed}
        for some in (fast, {node: gpus for node, gpus in fast.items() if node not in bad}):
            scopes = [some, *({n: gpus for n, gpus in some.items() if state.node_rack[n] == rack} for rack in racks)]
            yield from (greedy_set(scope, needed) for scope in scopes if sum(scope.values()) >= needed)


def greedy_set(free: dict[int, int], needed: int) -> list[int]:
    """Return nodes with most free GPUs until what is left fits on one node, then the one with the smallest hole."""
    nodes: list[int] = []
    while True:
        left = {node: gpus for node, gpus in free.items() if node not in nodes}
        fitting = [node for node in left if left[node] >= needed]
        if fitting:
            return [*nodes, min(fitting, key=lambda node: (left[node], node))]
        nodes.append(max(left, key=lambda node: (left[node], -node)))
        needed -= free[nodes[-1]]


def replacement(state: ReferenceState, job: int) -> list[int]:
    """Pick each GPU as a ring's replacement is picked (SPEC F6 and F7)."""
    average_s = reference_iteration_s(state, job)
    gpus: list[int] = []
    while len(gpus) < state.jobs[job].gpus:
        times = {gpu: candidate_s(state, job, gpus, gpu) for gpu in usable_by(state, job) if gpu not in gpus}
        enough = [gpu for gpu in times if times[gpu] <= average_s]
        strength = [state.speed[node] if enough else 0.0 for node in state.gpu_node]
        order = {
            gpu: (strength[gpu], times[gpu], state.gpu_node[gpu], state.hazard_per_s[gpu], gpu)
            for gpu in enough or times
        }
        gpus.append(min(order, key=order.__getitem__))
    return gpus


def candidate_s(state: ReferenceState, job: int, gpus: list[int], gpu: int) -> float:
    """Return the iteration time of a GPU in the ring between the last GPU picked and the first."""
    it = state.jobs[job]
    compute_s = it.compute_s / state.speed[state.gpu_node[gpu]]
    if not gpus:
        return compute_s
    links = (bandwidth(state, gpus[-1], gpu), bandwidth(state, gpu, gpus[0]))
    return max(it.parameter_bytes / link for link in links) + compute_s


def bandwidth(state: ReferenceState, one: int, other: int) -> float:
    """Return the bandwidth between two GPUs in bytes per second."""
    nodes = {state.gpu_node[one], state.gpu_node[other]}
    if len(nodes) == 1:
        return min(state.intra_bytes_per_s[node] for node in nodes)
    links = [state.nic_bytes_per_s[node] for node in nodes]
    racks = {state.node_rack[node] for node in nodes}
    if len(racks) > 1:
        links += [state.uplink_bytes_per_s[rack] for rack in racks]
    return min(links)


def scripted(seed: int, wait_share: float = 0.0) -> Choose:
    """Return a policy that picks usable GPUs at random, so that any simulator can be made to pick the same.

    With d the number of decisions before this one: GPU i = 0, 1, ... of the job is number
    floor(uniform(seed, d, i) x left) among the usable GPUs that are left, lowest first. Where it may, it waits if
    uniform(seed, d, 1000) is less than `wait_share`.
    """

    def choose(state: ReferenceState, job: int) -> list[int] | None:
        turn = state.decisions
        if may_wait(state, job) and plain_uniform(seed, turn, 1000) < wait_share:
            return None
        left = usable_by(state, job)
        draws = [plain_uniform(seed, turn, i) for i in range(state.jobs[job].gpus)]
        return [left.pop(int(draw * len(left))) for draw in draws]

    return choose


POLICIES: dict[str, Choose] = {
    "random": random_placement,
    "best-of-random": best_of_random,
    "first-fit": first_fit,
    "spread": spread,
    "fastest": fastest,
    "reliable": reliable,
    "pack": pack,
    "pack-hazard": pack_hazard,
    "consolidate": consolidate,
    "eft": eft,
    "eft-hazard": eft_hazard,
    "eft-wait": eft_wait,
    "patient": patient,
    "replacement": replacement,
}
