"""Sets of nodes that may become candidates: the earliest to finish, the tightest, and sets of slow nodes."""

import math

from ..dispatch.placing import order_nodes
from ..kernels.compiled import kernel
from ..state.state import FINISH_OFFERS, OFFERS, TIGHT_OFFERS, Simulation
from .node_sets import (
    ALL_SETS,
    TIE,
    set_cost,
    tight_set,
)

TIGHT, SLOW = FINISH_OFFERS, FINISH_OFFERS + TIGHT_OFFERS  # places of those offers
MULTIPLIER = 0x2545F4914F6CDD1D  # odd, so that sums of its multiples tell sets of classes apart


@kernel
def _alike(sim: Simulation, row: int, a: int, b: int) -> bool:
    """Say whether two nodes with `trial_free` GPUs give the same placement, but for their names."""
    cluster, scenario = sim.cluster, sim.state.scenario[row]
    speeds, lemon = sim.scenarios.speed, sim.traits.lemon
    return bool(
        sim.scratch.trial_free[row, a] == sim.scratch.trial_free[row, b]
        and speeds[scenario, a] == speeds[scenario, b]
        and lemon[scenario, a] == lemon[scenario, b]
        and cluster.node_rack[a] == cluster.node_rack[b]
        and cluster.nic_bytes_per_s[a] == cluster.nic_bytes_per_s[b]
        and cluster.intra_bytes_per_s[a] == cluster.intra_bytes_per_s[b]
    )


@kernel
def _classify(sim: Simulation, row: int, nodes: int) -> int:
    """Number the classes of the nodes in `trial_order`; write the first node of each into `trial_bit`."""
    scratch = sim.scratch
    order, first = scratch.trial_order, scratch.trial_bit
    classes = 0
    for place in range(nodes):
        node = order[row, place]
        found = -1
        for known in range(classes):
            if _alike(sim, row, node, order[row, first[row, known]]):
                found = known
                break
        if found < 0:
            found = classes
            first[row, classes] = place
            classes += 1
        scratch.node_class[row, node] = found
    return classes


@kernel
def set_sign(sim: Simulation, row: int, count: int) -> int:
    """Return a number of the set in `trial_set` that depends on the classes of its nodes only."""
    total = 0
    for place in range(count):
        number = int(sim.scratch.node_class[row, sim.scratch.trial_set[row, place]]) + 1
        mixed = (number * MULTIPLIER) & 0xFFFFFFFFFFFF  # compiled code wraps at 64 bits, plain Python does not
        total += mixed ^ (mixed >> 29)
    return total


@kernel
def _insert(sim: Simulation, row: int, first: int, after: int, tight: int, count: int, run_s: float, hole: int,
            sign: int) -> None:  # fmt: skip
    """Put the set in `trial_set` among the offers `first` to `after` - 1, best first, unless its like is there.

    The best has the shortest run time, then the smallest hole; the other way round where `tight` is 1.
    """
    state, scratch = sim.state, sim.scratch
    nodes = state.free.shape[1]
    at = after
    for place in range(first, after):
        if scratch.offer_sign[row, place] == sign:
            return
        if at == after:
            sooner = run_s < scratch.offer_s[row, place] * (1.0 - TIE)
            same = not sooner and run_s <= scratch.offer_s[row, place] * (1.0 + TIE)
            tighter = hole < scratch.offer_hole[row, place]
            level = hole == scratch.offer_hole[row, place]
            if (tight and (tighter or (level and sooner))) or (not tight and (sooner or (same and tighter))):
                at = place
    if at == after:
        return
    for place in range(after - 1, at, -1):
        scratch.offer_s[row, place] = scratch.offer_s[row, place - 1]
        scratch.offer_hole[row, place] = scratch.offer_hole[row, place - 1]
        scratch.offer_size[row, place] = scratch.offer_size[row, place - 1]
        scratch.offer_sign[row, place] = scratch.offer_sign[row, place - 1]
        for i in range(scratch.offer_size[row, place]):
            scratch.offer_node[row, place * nodes + i] = scratch.offer_node[row, (place - 1) * nodes + i]
    scratch.offer_s[row, at] = run_s
    scratch.offer_hole[row, at] = hole
    scratch.offer_size[row, at] = count
    scratch.offer_sign[row, at] = sign
    for i in range(count):
        scratch.offer_node[row, at * nodes + i] = scratch.trial_set[row, i]


@kernel
def _offer(sim: Simulation, row: int, job: int, count: int, fault_loss_s: float) -> None:
    """Offer the set in `trial_set`, of nodes that each give something and together hold the job."""
    scenario = sim.state.scenario[row]
    run_s, hole = set_cost(sim, row, job, count, fault_loss_s)
    sign = set_sign(sim, row, count)
    _insert(sim, row, 0, TIGHT, 0, count, run_s, hole, sign)
    _insert(sim, row, TIGHT, SLOW, 1, count, run_s, hole, sign)
    speed = 0.0
    for place in range(count):
        speed = max(speed, sim.scenarios.speed[scenario, sim.scratch.trial_set[row, place]])
    if speed < sim.traits.max_speed[scenario]:
        _insert(sim, row, SLOW, OFFERS, 0, count, run_s, hole, sign)


@kernel
def _offer_all(sim: Simulation, row: int, job: int, nodes: int, fault_loss_s: float) -> None:
    """Offer every minimal set of the nodes in `trial_order`, one of each kind."""
    state, scratch = sim.state, sim.scratch
    gpus = sim.scenarios.gpus[state.scenario[row], job]
    for chosen in range(1, 1 << nodes):
        count, total, last, skipped = 0, 0, 0, False
        for place in range(nodes):
            node = scratch.trial_order[row, place]
            if (chosen >> place) & 1:
                # Of nodes that are alike the first ones are taken: other choices would come to the same.
                skipped = skipped or (
                    place > 0
                    and not (chosen >> (place - 1)) & 1
                    and scratch.node_class[row, scratch.trial_order[row, place - 1]] == scratch.node_class[row, node]
                )
                scratch.trial_set[row, count] = node
                last = scratch.trial_free[row, node]
                total += last
                count += 1
        if not skipped and total >= gpus and total - last < gpus:
            _offer(sim, row, job, count, fault_loss_s)


@kernel
def _take_class(sim: Simulation, row: int, nodes: int, wanted: int, count: int, need: int) -> tuple[int, int]:
    """Add nodes of a class to `trial_set` while each is needed in full, or gives the rest; return count and need."""
    scratch = sim.scratch
    for place in range(nodes):
        node = scratch.trial_order[row, place]
        if need > 0 and scratch.node_class[row, node] == wanted:
            scratch.trial_set[row, count] = node
            count += 1
            need -= scratch.trial_free[row, node]
    return count, need


@kernel
def _offer_pairs(sim: Simulation, row: int, job: int, nodes: int, classes: int, fault_loss_s: float) -> None:
    """Offer the sets of one class, and those of two of which the one that has more free GPUs goes first."""
    state, scratch = sim.state, sim.scratch
    gpus = sim.scenarios.gpus[state.scenario[row], job]
    for first in range(classes):
        count, need = _take_class(sim, row, nodes, first, 0, gpus)
        if need <= 0:
            _offer(sim, row, job, count, fault_loss_s)
        for second in range(first + 1, classes):
            # As many nodes of the first class as are needed in full, and the rest from the second
            count, left = 0, gpus
            for place in range(nodes):
                node = scratch.trial_order[row, place]
                if scratch.node_class[row, node] == first and scratch.trial_free[row, node] < left:
                    scratch.trial_set[row, count] = node
                    count += 1
                    left -= scratch.trial_free[row, node]
            if count > 0:
                count, left = _take_class(sim, row, nodes, second, count, left)
                if left <= 0:
                    _offer(sim, row, job, count, fault_loss_s)


@kernel
def _offer_tight(sim: Simulation, row: int, job: int, fault_loss_s: float) -> None:
    """Offer the tight sets of each speed, with and without lemons, in the whole cluster and in each rack."""
    cluster = sim.cluster
    scenario = sim.state.scenario[row]
    levels, nodes = sim.traits.levels[scenario], sim.scenarios.speed.shape[1]
    racks = cluster.first_node.size - 1
    level = 0
    while levels[level] > 0.0:
        for lemons in (1, 0):
            for rack in range(-1, racks if racks > 1 else 0):
                first = 0 if rack < 0 else cluster.first_node[rack]
                after = nodes if rack < 0 else cluster.first_node[rack + 1]
                count = tight_set(sim, row, job, levels[level], first, after, lemons)
                if count > 0:
                    _offer(sim, row, job, count, fault_loss_s)
        level += 1


@kernel
def offer_sets(sim: Simulation, row: int, job: int, fault_loss_s: float) -> None:
    """Fill the offers with sets of the nodes in `trial_free`; the size of an empty offer is 0."""
    scratch = sim.scratch
    for place in range(OFFERS):
        scratch.offer_s[row, place] = math.inf
        scratch.offer_hole[row, place] = 1 << 30
        scratch.offer_size[row, place] = 0
        scratch.offer_sign[row, place] = -1
    nodes = order_nodes(sim, row, job)
    classes = _classify(sim, row, nodes)
    if nodes <= ALL_SETS:
        _offer_all(sim, row, job, nodes, fault_loss_s)
    else:
        _offer_pairs(sim, row, job, nodes, classes, fault_loss_s)
        _offer_tight(sim, row, job, fault_loss_s)
