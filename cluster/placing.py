"""Picks GPUs for the job that is due, and computes the run time that a placement gives (docs/simulator.md)."""

import math

from .kernels.compiled import kernel
from .kernels.structures import uniform
from .model.workload import Iteration, iteration_s, reference_iteration_s
from .state.holding import UNSUITED, add_usable_by_class, need_class_of, show_only_class
from .state.state import Simulation, has_need_classes


@kernel
def has_plans(sim: Simulation) -> bool:
    """Return whether jobs may have plans."""
    return bool(sim.scenarios.pipeline.shape[1] > 0)


@kernel
def is_planned(sim: Simulation, scenario: int, job: int) -> bool:
    """Return whether a job has a plan."""
    return has_plans(sim) and sim.scenarios.pipeline[scenario, job] > 0


@kernel
def iteration_of(sim: Simulation, scenario: int, job: int) -> Iteration:
    """Return what an iteration of a job does that has a plan."""
    jobs = sim.scenarios
    pipeline, tensor = jobs.pipeline[scenario, job], jobs.tensor[scenario, job]
    return Iteration(
        jobs.gpus[scenario, job] // (pipeline * tensor),
        pipeline,
        tensor,
        jobs.compute_s[scenario, job],
        jobs.fixed_s[scenario, job],
        jobs.parameter_bytes[scenario, job],
        jobs.edge_bytes[scenario, job],
        jobs.tensor_bytes[scenario, job],
    )


@kernel
def planned_slowdown(
    sim: Simulation, scenario: int, job: int, share: float, speed: float, inside: float, across: float, grain: int
) -> float:
    """Return run time over work of a job that has a plan; the last arguments are those of `iteration_s`."""
    rules, iteration = sim.rules, iteration_of(sim, scenario, job)
    reference_s = reference_iteration_s(
        iteration, rules.reference_gpus, rules.reference_intra_bytes_per_s, rules.reference_nic_bytes_per_s
    )
    return float(iteration_s(iteration, share, speed, inside, across, grain) / reference_s)


@kernel
def common_divisor(number: int, other: int) -> int:
    """Return the largest number that divides both; that of 0 and a number is the number."""
    while other > 0:
        number, other = other, number % other
    return number


@kernel
def picked_grain(sim: Simulation, row: int) -> int:
    """Return the largest number that divides the GPUs that each node gives to the current job, 0 if none does."""
    grain = 0
    for node in range(sim.state.taken.shape[1]):
        grain = common_divisor(grain, sim.state.taken[row, node])
    return grain


NO_RACK, SEVERAL_RACKS = -1, -2
# Far beyond what any cluster file and job can give, and close enough to 1 that times stay finite when they are
# multiplied or divided by it.
MIN_SLOWDOWN, MAX_SLOWDOWN = 1e-60, 1e60


@kernel
def _bounded_slowdown(slowdown: float) -> float:
    """Return a slowdown that is finite and above 0, whatever numbers it was made of; 1 in place of no number."""
    if math.isnan(slowdown):
        return 1.0
    return min(max(slowdown, MIN_SLOWDOWN), MAX_SLOWDOWN)


@kernel
def slowdown_of(
    sim: Simulation,
    scenario: int,
    job: int,
    nodes: int,
    speed: float,
    intra_bytes_per_s: float,
    nic_bytes_per_s: float,
    uplink_bytes_per_s: float,
    grain: int,
) -> float:
    """Return run time over work of a job on a placement of all GPUs that it asks for, always finite and above 0.

    The arguments are those of `slowdown_on_seats`.
    """
    seats = sim.scenarios.gpus[scenario, job]
    return slowdown_on_seats(
        sim, scenario, job, seats, nodes, speed, intra_bytes_per_s, nic_bytes_per_s, uplink_bytes_per_s, grain
    )


@kernel
def slowdown_on_seats(
    sim: Simulation,
    scenario: int,
    job: int,
    seats: int,
    nodes: int,
    speed: float,
    intra_bytes_per_s: float,
    nic_bytes_per_s: float,
    uplink_bytes_per_s: float,
    grain: int,
) -> float:
    """Return run time over work of a job on a placement, always finite and above 0.

    Args:
        sim: The simulation.
        scenario: Scenario of the job.
        job: The job.
        seats: GPUs that it has. Fewer than it asks for share the whole batch.
        nodes: Nodes of the placement.
        speed: Speed of its slowest GPU.
        intra_bytes_per_s: Slowest bandwidth inside a node that gives two or more GPUs, inf without such a node.
        nic_bytes_per_s: Slowest bandwidth of its nodes.
        uplink_bytes_per_s: Slowest bandwidth of its racks, inf if there is one only.
        grain: Largest number that divides the GPUs that each node gives; 0 where no link counts. Only a job with a
            plan asks for it.

    Source: SPEC F6, taken over the whole ring; docs/simulator.md.
    """
    rules = sim.rules
    gpus = sim.scenarios.gpus[scenario, job]
    share = 1.0 if seats == gpus else gpus / seats  # of the batch that a GPU computes, by that where none is missing
    if not rules.ring:
        return _bounded_slowdown((1.0 + rules.node_penalty * (nodes - 1)) / speed * share)
    link = min(intra_bytes_per_s, nic_bytes_per_s, uplink_bytes_per_s) if nodes > 1 else intra_bytes_per_s
    if is_planned(sim, scenario, job):
        return _bounded_slowdown(planned_slowdown(sim, scenario, job, share, speed, intra_bytes_per_s, link, grain))
    if gpus == 1:
        return _bounded_slowdown(1.0 / speed)
    compute_s, parameter_bytes = sim.scenarios.compute_s[scenario, job], sim.scenarios.parameter_bytes[scenario, job]
    reference_bytes = 2.0 * (gpus - 1) / gpus * parameter_bytes
    sent_bytes = reference_bytes if seats == gpus else 2.0 * (seats - 1) / seats * parameter_bytes
    reference = rules.reference_intra_bytes_per_s
    if gpus > rules.reference_gpus:
        reference = rules.reference_nic_bytes_per_s
    reference_s = compute_s + reference_bytes / reference
    return _bounded_slowdown((share * compute_s / speed + sent_bytes / link) / reference_s)


@kernel
def least_slowdown(sim: Simulation, row: int, job: int) -> float:
    """Return a slowdown that no placement of the job can be below."""
    scenario = sim.state.scenario[row]
    speed = sim.traits.max_speed[scenario]
    return slowdown_of(sim, scenario, job, 1, speed, math.inf, math.inf, math.inf, 0)


@kernel
def picked_slowdown(sim: Simulation, row: int) -> float:
    """Return the slowdown of the current job on the GPUs picked for it."""
    state = sim.state
    uplink = state.picked_uplink[row] if state.picked_rack[row] == SEVERAL_RACKS else math.inf
    return slowdown_of(
        sim,
        state.scenario[row],
        state.current[row],
        state.picked_nodes[row],
        state.picked_speed[row],
        state.picked_intra[row],
        state.picked_nic[row],
        uplink,
        picked_grain(sim, row) if has_plans(sim) else 0,
    )


@kernel
def make_job_due(sim: Simulation, row: int, job: int) -> None:
    """Make a job the one that is due, with no GPU picked."""
    state = sim.state
    state.current[row] = job
    if has_need_classes(sim):
        show_only_class(sim, row, need_class_of(sim, row, job))
    state.need[row] = sim.scenarios.gpus[state.scenario[row], job]
    state.first_gpu[row, job] = -1
    state.picked_nodes[row] = 0
    state.picked_rack[row] = NO_RACK
    state.picked_speed[row] = math.inf
    state.picked_intra[row] = math.inf
    state.picked_nic[row] = math.inf
    state.picked_uplink[row] = math.inf
    state.picked_hazard[row] = 0.0


@kernel
def _add_pick(sim: Simulation, row: int, gpu: int) -> None:
    """Put a GPU before those that are picked for the current job."""
    state = sim.state
    job = state.current[row]
    state.gpu_job[row, gpu] = job
    state.gpu_next[row, gpu] = state.first_gpu[row, job]
    state.first_gpu[row, job] = gpu
    state.picked_hazard[row] += state.gpu_hazard_per_s[row, gpu]


@kernel
def _count_picks(sim: Simulation, row: int, node: int, gpus: int) -> None:
    """Count GPUs of a node that were added to the picks, and what the node does to their speed and links."""
    state, cluster = sim.state, sim.cluster
    before = state.taken[row, node]
    state.taken[row, node] = before + gpus
    state.free[row, node] -= gpus
    state.usable[row] -= gpus
    state.need[row] -= gpus
    if has_need_classes(sim):
        add_usable_by_class(sim, row, node, -gpus)
    if before < 2 <= before + gpus:
        state.picked_intra[row] = min(state.picked_intra[row], cluster.intra_bytes_per_s[node])
    if before == 0:
        rack = cluster.node_rack[node]
        state.picked_nodes[row] += 1
        state.picked_speed[row] = min(state.picked_speed[row], sim.scenarios.speed[state.scenario[row], node])
        state.picked_nic[row] = min(state.picked_nic[row], cluster.nic_bytes_per_s[node])
        state.picked_uplink[row] = min(state.picked_uplink[row], cluster.uplink_bytes_per_s[rack])
        if state.picked_rack[row] == NO_RACK:
            state.picked_rack[row] = rack
        elif state.picked_rack[row] != rack:
            state.picked_rack[row] = SEVERAL_RACKS


@kernel
def take_gpu(sim: Simulation, row: int, gpu: int) -> None:
    """Pick a usable GPU of a node that suits the current job.

    Source: SPEC R4, R10.
    """
    _add_pick(sim, row, gpu)
    _count_picks(sim, row, sim.cluster.gpu_node[gpu], 1)


@kernel
def safest_gpu(sim: Simulation, row: int, node: int) -> int:
    """Return the node's usable GPU of lowest hazard, then lowest index; -1 if it has none."""
    state = sim.state
    hazard = state.gpu_hazard_per_s
    best = -1
    for gpu in range(sim.cluster.first_gpu[node], sim.cluster.first_gpu[node + 1]):
        if (
            state.gpu_job[row, gpu] < 0
            and state.gpu_down[row, gpu] == 0
            and (best < 0 or hazard[row, gpu] < hazard[row, best])
        ):
            best = gpu
    return best


@kernel
def take_node(sim: Simulation, row: int, node: int) -> None:
    """Pick as many of a node's usable GPUs as the current job still needs, lowest hazard first."""
    state = sim.state
    gpus = min(state.free[row, node], state.need[row])
    if gpus < state.free[row, node]:
        for _ in range(gpus):
            _add_pick(sim, row, safest_gpu(sim, row, node))
    else:
        gpus = 0  # and not `free`, which leaves out the GPUs of a node that does not suit the job: `start` refuses them
        for gpu in range(sim.cluster.first_gpu[node], sim.cluster.first_gpu[node + 1]):
            if state.gpu_job[row, gpu] < 0 and state.gpu_down[row, gpu] == 0:
                _add_pick(sim, row, gpu)
                gpus += 1
    if gpus > 0:
        _count_picks(sim, row, node, gpus)


@kernel
def undo_picks(sim: Simulation, row: int) -> None:
    """Give back all GPUs picked for the current job, which stays due."""
    state = sim.state
    job = state.current[row]
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        node = sim.cluster.gpu_node[gpu]
        state.gpu_job[row, gpu] = -1
        state.free[row, node] += 1
        state.usable[row] += 1
        if has_need_classes(sim):
            add_usable_by_class(sim, row, node, 1)
        state.taken[row, node] = 0
        gpu = state.gpu_next[row, gpu]
    make_job_due(sim, row, job)


@kernel
def refuse_unsuited_picks(sim: Simulation, row: int) -> None:
    """Refuse picks on nodes that do not suit the current job.

    Raises:
        ValueError: If there are such.
    """
    suits, need_class = sim.cluster.suits, need_class_of(sim, row, sim.state.current[row])
    for node in range(suits.shape[1]):
        if sim.state.taken[row, node] > 0 and suits[need_class, node] == 0:
            raise ValueError(UNSUITED)


@kernel
def order_nodes_by_free(sim: Simulation, row: int, job: int) -> int:
    """Write the nodes with GPUs in `trial_free` that suit a job into `trial_order`, most first; return their number."""
    scratch, suits, need_class = sim.scratch, sim.cluster.suits, need_class_of(sim, row, job)
    free, order, bit = scratch.trial_free, scratch.trial_order, scratch.trial_bit
    count = 0
    for node in range(free.shape[1]):
        if free[row, node] <= 0 or (need_class > 0 and suits[need_class, node] == 0):
            continue
        at = count
        while at > 0 and free[row, order[row, at - 1]] < free[row, node]:
            order[row, at] = order[row, at - 1]
            bit[row, at] = bit[row, at - 1]
            at -= 1
        order[row, at] = node
        bit[row, at] = count
        count += 1
    return count


RANDOM_STREAM = 1 << 28  # counters of random placements, apart from those of fault sources
DRAWS_PER_PLACEMENT = 1 << 12  # counters that one placement may use


@kernel
def random_free_node(sim: Simulation, row: int, draw: int) -> int:
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
def pick_by_draws(sim: Simulation, row: int, first_draw: int) -> None:
    """Pick all GPUs of the current job from random nodes, by the draws from a number on."""
    draw = first_draw
    while sim.state.need[row] > 0:
        take_node(sim, row, random_free_node(sim, row, draw))
        draw += 1
