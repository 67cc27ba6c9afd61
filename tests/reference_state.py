"""What the reference simulation knows at a moment, and what it reckons from that."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import Rules


@dataclass
class Plan:
    """By which a job runs, beside its compute time and the volume of its rings."""

    stages: int
    tensor: int
    fixed_s: float
    edge_bytes: float
    tensor_bytes: float


@dataclass
class Job:
    """What is known of one job at the present moment; seconds and bytes."""

    gpus: int
    estimate_s: float  # of the whole work; doubles when it proves too short
    submit_s: float
    compute_s: float
    parameter_bytes: float
    work_s: float
    plan: Plan | None = None
    nodes: frozenset[int] = frozenset()  # that suit it
    line: int = 0  # of its user and its rank
    came_back: bool = False  # it was stopped and has not started since
    rank: int = 0  # those of a lower rank go before all of a higher where jobs go by a key
    saved_s: float = 0.0  # of that work, what checkpoints hold
    entered_s: float = 0.0  # when it last came into the queue
    wait_s: float = 0.0  # in the queue, over the stays before that
    placement: list[int] = field(default_factory=list)  # ascending, empty unless it runs
    start_s: float = 0.0  # of the present run
    overhead_s: float = 0.0
    slowdown: float = 0.0
    end_s: float = math.inf
    first_start_s: float = math.nan
    finish_s: float = math.nan
    stops: int = 0
    lost_s: float = 0.0
    struck_s: float = math.nan  # when a fault hit it on which nobody has acted yet
    slowed_s: float = math.nan  # since when it has had GPUs on slow nodes
    pieces: list[tuple[float, float, int]] = field(default_factory=list)  # of this run before its last switch


@dataclass
class Source:
    """A fault source: the GPUs that it takes away, and its present or next outage."""

    gpus: list[int]
    outages: Iterator[tuple[float, float]]
    outage: tuple[float, float]  # (start, end) of the present outage if down, else of the next
    down: bool = False


@dataclass
class Pace:
    """When a node becomes slow and well again."""

    turns: Iterator[float]
    next_s: float
    slow: bool = False


class Kept(NamedTuple):
    """A slow GPU that a job keeps beside its ring."""

    job: int
    backup: int  # the GPU that has its seat
    since_s: float


@dataclass
class ReferenceState:
    """A simulation at one moment. GPUs, nodes, racks, jobs and sources are indices into plain lists."""

    rules: Rules
    gpu_node: list[int]
    node_gpus: list[list[int]]
    node_rack: list[int]
    speed: list[float]  # of each node in this scenario
    intra_bytes_per_s: list[float]
    nic_bytes_per_s: list[float]
    uplink_bytes_per_s: list[float]
    hazard_per_s: list[float]  # of each GPU, as policies know it
    seed: int  # of faults and of random placements
    jobs: list[Job]
    sources: list[Source]
    gpu_job: list[int]  # -1 when no job holds the GPU
    held_down_by: list[set[int]]  # sources that hold the GPU down
    down_since_s: list[float]
    now_s: float = 0.0
    queue: list[int] = field(default_factory=list)
    submitted: int = 0
    turns: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)  # last of a rotation and a line
    passed_over: set[int] = field(default_factory=set)  # jobs that are not offered again at this moment
    decisions: int = 0  # taken so far
    busy_gpu_s: float = 0.0
    down_gpu_s: float = 0.0
    overhead_gpu_s: float = 0.0
    node_type: list[int] = field(default_factory=list)
    peak_flops: list[float] = field(default_factory=list)  # of a GPU of each node
    kinds: list[frozenset[int]] = field(default_factory=list)  # nodes that suit each class of needs
    spares: set[int] = field(default_factory=set)  # GPUs of the pool, idle or not
    dead: set[int] = field(default_factory=set)  # GPUs that failed under a job, and nobody has acted on that yet
    switches: int = 0
    paces: list[Pace] = field(default_factory=list)  # of each node; none where none becomes slow
    slowed: int = 0  # how often a running job has met slow nodes
    kept: dict[int, Kept] = field(default_factory=dict)  # relieved GPUs
    backups: int = 0  # how often a GPU has taken the seat of a slow one
    backup_gpu_s: float = 0.0
    events: list[Event] = field(default_factory=list)


def slowdown(state: ReferenceState, job: int, gpus: list[int]) -> float:
    """Return how many seconds a second of the job's work takes on a placement."""
    nodes = {state.gpu_node[gpu] for gpu in gpus}
    slowest = min(state.speed[node] for node in nodes)
    it = state.jobs[job]
    share = it.gpus / len(gpus)  # of the batch: fewer GPUs than asked for compute it all the same
    if not state.rules.ring:
        return (1 + state.rules.node_penalty * (len(nodes) - 1)) / slowest * share
    if it.plan is not None:
        return planned_s(state, job, gpus) / planned_reference_s(state, job)
    if it.gpus == 1:
        return 1 / slowest
    exchange_s = volume_bytes(it, len(gpus)) / slowest_link(state, gpus) if len(gpus) > 1 else 0.0
    return (share * it.compute_s / slowest + exchange_s) / reference_iteration_s(state, job)


def planned_s(state: ReferenceState, job: int, gpus: list[int]) -> float:
    """Return how long an iteration takes by a plan, link by link: ranks stand on GPUs in their order.

    Where GPUs are missing, those that are left stand for all: the plan's groups are laid over them as far as they go.
    """
    it, plan, ranks = state.jobs[job], state.jobs[job].plan, sorted(gpus)
    assert plan is not None
    slowest = min(state.speed[state.gpu_node[gpu]] for gpu in ranks)
    stage = it.gpus // plan.stages
    groups = [ranks[first : first + plan.tensor] for first in range(0, len(ranks), plan.tensor)]
    rings = [ranks[first : first + stage] for first in range(0, len(ranks), stage)]
    taken_s = it.gpus / len(ranks) * it.compute_s / slowest + plan.fixed_s
    if plan.tensor > 1:
        taken_s += plan.tensor_bytes / worst_link(state, ranks, groups)
    if plan.stages > 1:
        taken_s += plan.edge_bytes / worst_link(state, ranks, [ranks])
    data = stage // plan.tensor
    if data > 1:
        taken_s += 2 * (data - 1) / data * it.parameter_bytes / worst_link(state, ranks, rings)
    return taken_s


def worst_link(state: ReferenceState, ranks: list[int], groups: list[list[int]]) -> float:
    """Return the bandwidth that groups of a job's GPUs have: inside nodes if none lies on two, else the job's least."""
    nodes = [{state.gpu_node[gpu] for gpu in group} for group in groups]
    counts = [[state.gpu_node[gpu] for gpu in ranks].count(node) for node in {state.gpu_node[gpu] for gpu in ranks}]
    if all(len(found) == 1 for found in nodes) and all(count % len(groups[0]) == 0 for count in counts):
        on = [state.gpu_node[gpu] for gpu in ranks]
        return min((state.intra_bytes_per_s[node] for node in set(on) if on.count(node) > 1), default=math.inf)
    return slowest_link(state, ranks)


def planned_reference_s(state: ReferenceState, job: int) -> float:
    """Return the same on GPUs of speed 1 and full reference nodes, the last of which may give fewer."""
    rules, it = state.rules, state.jobs[job]
    nodes = math.ceil(it.gpus / rules.reference_gpus)
    reference = ReferenceState(
        rules=rules, gpu_node=[gpu // rules.reference_gpus for gpu in range(it.gpus)], node_gpus=[],
        node_rack=[0] * nodes, speed=[1.0] * nodes, intra_bytes_per_s=[rules.reference_intra_bytes_per_s] * nodes,
        nic_bytes_per_s=[rules.reference_nic_bytes_per_s] * nodes, uplink_bytes_per_s=[math.inf], hazard_per_s=[],
        seed=0, jobs=state.jobs, sources=[], gpu_job=[], held_down_by=[], down_since_s=[],
    )  # fmt: skip
    return planned_s(reference, job, list(range(it.gpus)))


def least_slowdown(state: ReferenceState, job: int) -> float:
    """Return what no placement of a job can be below: one node of the highest speed, links that take no time."""
    fastest = max(state.speed)
    plan = state.jobs[job].plan
    if state.rules.ring and plan is not None:
        return (state.jobs[job].compute_s / fastest + plan.fixed_s) / planned_reference_s(state, job)
    if not state.rules.ring or state.jobs[job].gpus == 1:
        return 1 / fastest
    return state.jobs[job].compute_s / fastest / reference_iteration_s(state, job)


def volume_bytes(job: Job, gpus: int) -> float:
    return 2 * (gpus - 1) / gpus * job.parameter_bytes


def reference_iteration_s(state: ReferenceState, job: int) -> float:
    """Return the iteration time of a job on the reference placement (ring model)."""
    it, rules = state.jobs[job], state.rules
    one_node = it.gpus <= rules.reference_gpus
    link = rules.reference_intra_bytes_per_s if one_node else rules.reference_nic_bytes_per_s
    return it.compute_s + (0.0 if it.gpus == 1 else volume_bytes(it, it.gpus) / link)


def slowest_link(state: ReferenceState, gpus: list[int]) -> float:
    """Return the bandwidth of the slowest link of a ring over two or more GPUs."""
    gives = [state.gpu_node[gpu] for gpu in gpus]
    nodes = set(gives)
    racks = {state.node_rack[node] for node in nodes}
    links = [state.intra_bytes_per_s[node] for node in nodes if gives.count(node) >= 2]
    if len(nodes) > 1:
        links += [state.nic_bytes_per_s[node] for node in nodes]
    if len(racks) > 1:
        links += [state.uplink_bytes_per_s[rack] for rack in racks]
    return min(links)


def overhead_s(state: ReferenceState, job: int) -> float:
    return state.rules.preflight_s + (state.rules.restart_s if state.jobs[job].stops else 0.0)


def estimated_run_s(state: ReferenceState, job: int, factor: float) -> float:
    """Return how long policies expect a run of a queued job to take at a slowdown."""
    return overhead_s(state, job) + estimated_work_s(state, job) * factor


def estimated_work_s(state: ReferenceState, job: int) -> float:
    """Return what is left of a job's estimate."""
    return state.jobs[job].estimate_s - state.jobs[job].saved_s


def expected_end_s(job: Job) -> float:
    return job.start_s + (job.overhead_s + (job.estimate_s - job.saved_s - switched_work_s(job)) * job.slowdown)


def switched_work_s(job: Job) -> float:
    """Return the work that a run did before its last switch."""
    return sum(useful_s / factor for useful_s, factor, _ in job.pieces)


def renew_estimate(state: ReferenceState, job: Job) -> None:
    """Double the estimate of a running job until its expected end lies in the future."""
    while expected_end_s(job) <= state.now_s:
        job.estimate_s *= 2


def running(state: ReferenceState) -> list[Job]:
    return [job for job in state.jobs if job.placement]


def usable_gpus(state: ReferenceState) -> list[int]:
    """Return the GPUs that are free and held down by no source, ascending."""
    return [
        gpu
        for gpu, (job, sources) in enumerate(zip(state.gpu_job, state.held_down_by, strict=True))
        if job < 0 and not sources
    ]


def usable_by(state: ReferenceState, job: int) -> list[int]:
    """Return the usable GPUs of the nodes that suit a job, ascending."""
    return suiting(state, job, usable_gpus(state))


def suiting(state: ReferenceState, job: int, gpus: list[int]) -> list[int]:
    """Return those of some GPUs whose nodes suit a job."""
    return [gpu for gpu in gpus if state.gpu_node[gpu] in state.jobs[job].nodes]
