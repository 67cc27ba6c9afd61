"""Sets of nodes that may become candidates: the earliest to finish, the tightest, of slow nodes, and random ones."""

import math

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from ..kernels.structures import uniform
from ..placing import slowdown_of, take_node
from ..queue.expected import expected_run_s
from ..simulator.engine import advance, reset, start
from ..state.holding import class_of
from ..state.state import FINISH_OFFERS, OFFERS, TIGHT_OFFERS, Simulation
from .node_sets import ALL_SETS, RUN_TIE, list_free, set_cost, tight_set

TIGHT, SLOW = FINISH_OFFERS, FINISH_OFFERS + TIGHT_OFFERS  # places of those offers
SLACK = 1.0 + 1e-6  # far above all ties of a list of offers together
MULTIPLIER = 0x2545F4914F6CDD1D  # odd, so that sums of its multiples differ between sets of classes


@kernel
def _suit_the_same(sim: Simulation, a: int, b: int) -> bool:
    """Return whether two nodes suit the same jobs."""
    suits, differ = sim.cluster.suits, 0
    for kind in range(suits.shape[0]):
        differ += suits[kind, a] != suits[kind, b]
    return differ == 0


@kernel
def _alike(sim: Simulation, row: int, a: int, b: int) -> bool:
    """Return whether two nodes with `trial_free` GPUs give the same placement, as far as policies know."""
    cluster, speeds, lemon = sim.cluster, sim.scenarios.speed[sim.state.scenario[row]], sim.state.lemon[row]
    return bool(
        sim.scratch.trial_free[row, a] == sim.scratch.trial_free[row, b]
        and speeds[a] == speeds[b]
        and lemon[a] == lemon[b]
        and cluster.node_rack[a] == cluster.node_rack[b]
        and cluster.nic_bytes_per_s[a] == cluster.nic_bytes_per_s[b]
        and cluster.intra_bytes_per_s[a] == cluster.intra_bytes_per_s[b]
        and _suit_the_same(sim, a, b)
    )


@kernel
def _classify(sim: Simulation, row: int, nodes: int) -> int:
    """Number the classes of the nodes in `trial_order`; write the first node of each into `trial_bit`."""
    scratch = sim.scratch
    order, first = scratch.trial_order, scratch.trial_bit
    classes, begin = 0, 0  # classes of nodes with as many free GPUs begin there, as these stand together
    for place in range(nodes):
        node = order[row, place]
        if scratch.trial_free[row, node] != scratch.trial_free[row, order[row, place - 1 if place > 0 else 0]]:
            begin = classes
        found = -1
        for known in range(begin, classes):
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
def classify_all(sim: Simulation, row: int) -> None:
    """Number the classes of all nodes with free GPUs, for the signs of sets of any job."""
    _classify(sim, row, list_free(sim, row, 0))


@kernel
def set_sign(sim: Simulation, row: int, count: int) -> int:
    """Return a number of the set in `trial_set` that depends on the classes of its nodes only.

    They must have been numbered since `trial_free` last changed: by `offer_sets` for a job of the same needs, or by
    `classify_all`.
    """
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
            sooner = run_s < scratch.offer_s[row, place] * (1.0 - RUN_TIE)
            same = not sooner and run_s <= scratch.offer_s[row, place] * (1.0 + RUN_TIE)
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
def _sort_classes(sim: Simulation, row: int, nodes: int, classes: int) -> None:
    """Write the nodes in `trial_order` into `class_node` by class, and where each class begins into `class_first`."""
    scratch = sim.scratch
    first, order, of_node = scratch.class_first, scratch.trial_order, scratch.node_class
    for known in range(classes + 1):
        first[row, known] = 0
    for place in range(nodes):
        first[row, of_node[row, order[row, place]] + 1] += 1
    for known in range(1, classes + 1):
        first[row, known] += first[row, known - 1]
    for place in range(nodes):
        node = order[row, place]
        scratch.class_node[row, first[row, of_node[row, node]]] = node
        first[row, of_node[row, node]] += 1
    for known in range(classes, 0, -1):  # each has moved on to where the next begins
        first[row, known] = first[row, known - 1]
    first[row, 0] = 0


@kernel
def _take_class(sim: Simulation, row: int, wanted: int, count: int, nodes: int) -> None:
    """Write the first `nodes` nodes of a class into `trial_set`, behind `count` others."""
    scratch, first = sim.scratch, sim.scratch.class_first[row, wanted]
    for i in range(nodes):
        scratch.trial_set[row, count + i] = scratch.class_node[row, first + i]


@kernel
def _class_of(sim: Simulation, row: int, number: int) -> tuple[int, int, float]:
    """Return how many nodes a class has, how many GPUs each has free, and their speed."""
    first, after = sim.scratch.class_first[row, number], sim.scratch.class_first[row, number + 1]
    node = sim.scratch.class_node[row, first]
    return (
        int(after - first),
        int(sim.scratch.trial_free[row, node]),
        float(sim.scenarios.speed[sim.state.scenario[row], node]),
    )


@kernel
def _may_be_offered(sim: Simulation, row: int, job: int, nodes: int, hole: int, slowest: float, fastest: float) -> bool:
    """Return whether a set of that many nodes could be among the offers, going by the speeds of its nodes alone."""
    scratch, scenario = sim.scratch, sim.state.scenario[row]
    slowdown = slowdown_of(sim, scenario, job, nodes, slowest, math.inf, math.inf, math.inf, 0)
    least_s = expected_run_s(sim, row, job, slowdown)
    last_s, most = scratch.offer_s[row], scratch.offer_hole[row, SLOW - 1]
    return bool(
        least_s <= last_s[TIGHT - 1] * SLACK
        or (fastest < sim.traits.max_speed[scenario] and least_s <= last_s[OFFERS - 1] * SLACK)
        or hole < most
        or (hole == most and least_s <= last_s[SLOW - 1] * SLACK)
    )


@kernel
def _offer_pairs(sim: Simulation, row: int, job: int, classes: int, fault_loss_s: float) -> None:
    """Offer the sets of one class, and those of two of which the one that has more free GPUs goes first."""
    gpus = sim.scenarios.gpus[sim.state.scenario[row], job]
    for first in range(classes):
        nodes, free, speed = _class_of(sim, row, first)
        all_of_it = (gpus + free - 1) // free
        if all_of_it <= nodes and _may_be_offered(sim, row, job, all_of_it, all_of_it * free - gpus, speed, speed):
            _take_class(sim, row, first, 0, all_of_it)
            _offer(sim, row, job, all_of_it, fault_loss_s)
        # As many nodes of the first class as are needed in full, and the rest from the second
        some = min(nodes, (gpus - 1) // free)
        left = gpus - some * free
        for second in range(first + 1, classes if some > 0 else 0):
            others, gives, other_speed = _class_of(sim, row, second)
            rest = (left + gives - 1) // gives
            slowest, fastest = min(speed, other_speed), max(speed, other_speed)
            if rest <= others and _may_be_offered(sim, row, job, some + rest, rest * gives - left, slowest, fastest):
                _take_class(sim, row, first, 0, some)
                _take_class(sim, row, second, some, rest)
                _offer(sim, row, job, some + rest, fault_loss_s)


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
                count = tight_set(sim, row, job, level, first, after, lemons)
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
    nodes = list_free(sim, row, class_of(sim, row, job))
    classes = _classify(sim, row, nodes)
    if nodes <= ALL_SETS:
        _offer_all(sim, row, job, nodes, fault_loss_s)
    else:
        _sort_classes(sim, row, nodes, classes)
        _offer_pairs(sim, row, job, classes, fault_loss_s)
        _offer_tight(sim, row, job, fault_loss_s)


RANDOM_STREAM = 1 << 28  # counters of random placements, apart from those of fault sources
DRAWS_PER_PLACEMENT = 1 << 12  # counters that one placement may use


@kernel
def random_node(sim: Simulation, row: int, draw: int) -> int:
    """Return a node with free GPUs, all equally likely, as a function of the row's decision and the draw."""
    state = sim.state
    nodes = 0
    for node in range(state.free.shape[1]):
        nodes += state.free[row, node] > 0
    seed = sim.scenarios.fault_seed[state.scenario[row]]
    left = int(uniform(seed, RANDOM_STREAM + draw, state.decisions[row]) * nodes)
    for node in range(state.free.shape[1]):
        if state.free[row, node] > 0:
            if left == 0:
                return node
            left -= 1
    return -1


@kernel
def least_random_makespans_s(
    sim: Simulation, scenarios: NDArray[np.int64], runs: int, least_s: NDArray[np.float64]
) -> None:
    """Write the smallest makespan of several random runs of each scenario, all on the scenario's own faults.

    Run a draws from the counters that placement a of `best-of-random` has, so the first is the policy `random`'s.

    Args:
        sim: A simulation, of which row 0 is run.
        scenarios: Which, shape (some,).
        runs: Random runs of each.
        least_s: Takes the makespans, or the time at which runs were cut off, shape (some,).

    Source: SPEC R5.
    """
    for i in range(scenarios.size):
        least_s[i] = np.inf
        for run in range(runs):
            reset(sim, 0, scenarios[i])
            while advance(sim, 0):
                draw = run * DRAWS_PER_PLACEMENT
                while sim.state.need[0] > 0:
                    take_node(sim, 0, random_node(sim, 0, draw))
                    draw += 1
                start(sim, 0)
            least_s[i] = min(least_s[i], sim.state.now_s[0])
