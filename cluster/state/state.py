"""What changes in a simulation, as arrays over many clusters at once; one row a cluster."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.pointer_table import Struct, pack
from ..model.scenarios import EVERY_JOB, FaultProcess, Rules, Scenarios, fault_sources
from ..model.topology import Cluster
from .shapes import check_shapes, check_types

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


class State(NamedTuple):
    """Clusters at one moment each. GPUs, nodes and jobs are in the order of the cluster and the scenarios."""

    scenario: Ints  # (rows,) scenario that the row plays, -1 before the first reset
    now_s: Floats  # (rows,)
    moment: Ints  # (rows,) counts the moments at which something happened
    quiet: Ints  # (rows,) moments that `advance` played since a job was last submitted, started or ended
    unlooked: Ints  # (rows,) work since it was last looked for signals
    finished: Ints  # (rows,) jobs that ended
    submitted: Ints  # (rows,) jobs that were submitted
    estimated: Ints  # (rows,) jobs whose estimates are in the sum: those submitted, and of a live cluster all ever
    estimates_s: Floats  # (rows,) sum of estimates, as submitted
    head: Ints  # (rows,) first job of the queue, -1 when empty
    tail: Ints  # (rows,) last job of the queue, -1 when empty
    queued: Ints  # (rows,) jobs in the queue
    queued_gpu_s: Floats  # (rows,) estimated work in the queue, times its GPUs
    usable: Ints  # (rows,) GPUs that are up and free
    busy: Ints  # (rows,) GPUs that serve a job
    down: Ints  # (rows,) GPUs out of service
    waited: Ints  # (rows,) moment at which the policy last waited, -2 for never
    rested: Ints  # (rows,) moment at which it last let all jobs wait, -2 for never
    # The decision that is due
    current: Ints  # (rows,) job to place, -1 for none
    aged: Ints  # (rows,) 1 if that job has reached the ageing bound
    shadow_s: Floats  # (rows,) a job that takes more than `extra` GPUs must end by then
    extra: Ints  # (rows,) GPUs that the reservation leaves over
    need: Ints  # (rows,) GPUs still to pick
    picked_nodes: Ints  # (rows,) nodes of the picks
    picked_rack: Ints  # (rows,) their rack; -1 for none, -2 for several
    picked_speed: Floats  # (rows,) slowest speed of the picks
    picked_intra: Floats  # (rows,) slowest bandwidth inside a node that gives two or more GPUs
    picked_nic: Floats  # (rows,) slowest bandwidth of a node
    picked_uplink: Floats  # (rows,) slowest bandwidth of a rack
    picked_hazard: Floats  # (rows,) sum of the picks' fault rates
    # Sums
    busy_gpu_s: Floats  # (rows,)
    down_gpu_s: Floats  # (rows,)
    job_time_s: Floats  # (rows,) time that jobs have spent waiting or running
    overhead_gpu_s: Floats  # (rows,) restarts of runs that then finished
    job_events: NDArray[np.int64]  # (rows,)
    decisions: NDArray[np.int64]  # (rows,)
    # Nodes
    free: Ints  # (rows, nodes) usable GPUs
    taken: Ints  # (rows, nodes) picks for the current job
    trial_free: Ints  # (rows, nodes) scratch: usable GPUs at a moment that is imagined
    trial_order: Ints  # (rows, nodes) scratch: nodes by usable GPUs, most first
    trial_bit: Ints  # (rows, nodes) scratch: their places among the nodes with usable GPUs
    trial_run_s: Floats  # (rows, nodes) scratch: run time of the current job if the node is taken next
    trial_speed: Floats  # (rows, nodes) scratch: slowest speed of that run
    trial_set: Ints  # (rows, nodes) scratch: nodes of a set, in the order in which they give
    best_set: Ints  # (rows, nodes) scratch: the best such set found
    # The short list of moves that is looked at (moves.py)
    node_class: Ints  # (rows, nodes) class of a node with free GPUs: nodes of a class are alike
    offer_s: Floats  # (rows, offers) run time of a set that may become a move
    offer_hole: Ints  # (rows, offers)
    offer_size: Ints  # (rows, offers) its number of nodes
    offer_sign: NDArray[np.int64]  # (rows, offers) the same for sets of the same classes
    offer_node: Ints  # (rows, offers x nodes) its nodes, in the order in which they give
    moves: Ints  # (rows,) moves in the list
    base_waits: Ints  # (rows,) 1 if waiting is the first of them
    base_refused: Ints  # (rows,) 1 if the first that does not wait, the base's set at once, breaks a reservation
    other_job: Ints  # (rows, others) jobs that the policy may turn to
    move_job: Ints  # (rows, moves) job that it starts, now or after a wait
    move_delay_s: Floats  # (rows, moves) how long it waits first, 0 for a start at once
    move_s: Floats  # (rows, moves) run time
    move_hole: Ints  # (rows, moves)
    move_size: Ints  # (rows, moves) nodes
    move_sign: NDArray[np.int64]  # (rows, moves)
    move_node: Ints  # (rows, moves x nodes)
    # Scratch: jobs that are imagined to start (look_ahead.py)
    ahead_start_s: Floats  # (rows, ahead) start, inf if never
    ahead_end_s: Floats  # (rows, ahead) end
    ahead_job: Ints  # (rows, ahead)
    ahead_size: Ints  # (rows, ahead) its number of nodes
    ahead_node: Ints  # (rows, ahead x nodes)
    ahead_gives: Ints  # (rows, ahead x nodes) GPUs that each of them gives
    ahead_order: Ints  # (rows, ahead) their places by end, the earliest first
    ahead_free: Ints  # (rows, nodes) `trial_free` of the moment to which a look at later ends comes back
    # GPUs
    gpu_job: Ints  # (rows, gpus) job that holds it, -1 when free
    gpu_down: Ints  # (rows, gpus) fault sources that hold it out of service
    gpu_next: Ints  # (rows, gpus) next GPU of the same job, -1 at the end
    # Fault sources
    source_s: Floats  # (rows, sources) time of the next fault or repair
    source_since_s: Floats  # (rows, sources) when it last failed or came back
    source_k: Ints  # (rows, sources) faults so far
    source_failed: Ints  # (rows, sources) 1 while it holds its GPUs out of service
    source_heap: Ints  # (rows, sources) heap of sources by `source_s`
    source_place: Ints  # (rows, sources) place of a source in that heap, -1 if it never fails
    source_count: Ints  # (rows,) size of that heap
    # Jobs
    guess_s: Floats  # (rows, jobs) the estimate, doubled whenever it was outlived
    saved_s: Floats  # (rows, jobs) work that checkpoints hold
    start_s: Floats  # (rows, jobs) last start
    end_s: Floats  # (rows, jobs) true end of the run in progress
    overhead_s: Floats  # (rows, jobs) restart cost of the run in progress
    slowdown: Floats  # (rows, jobs) run time over work on the present placement
    entered_s: Floats  # (rows, jobs) when it last came into the queue
    wait_s: Floats  # (rows, jobs) total time of its finished stays in the queue
    queued_s: Floats  # (rows, jobs) entered_s - wait_s: since when it would have waited, without its runs
    first_start_s: Floats  # (rows, jobs) -1 before
    finish_s: Floats  # (rows, jobs)
    lost_s: Floats  # (rows, jobs)
    stops: Ints  # (rows, jobs)
    passed: Ints  # (rows, jobs) moment at which it was passed over, -1 for never
    next_job: Ints  # (rows, jobs) towards the tail of the queue
    previous_job: Ints  # (rows, jobs) towards the head
    first_gpu: Ints  # (rows, jobs) first GPU of its placement, -1 for none
    run_heap: Ints  # (rows, jobs) heap of running jobs by `end_s`
    run_place: Ints  # (rows, jobs) place of a job in that heap, -1 when it does not run
    running: Ints  # (rows,) size of that heap
    ends_s: Floats  # (rows, jobs) expected ends of running jobs, in order where `ends_kept` is 1; else scratch
    ends_job: Ints  # (rows, jobs) the job of each
    ends_kept: Ints  # (rows,)
    # The reservation as it was last found; it holds at that moment with so many GPUs usable
    reserved_for: Ints  # (rows,) 1 + its holder, 0 when jobs have started or left since
    reserved_moment: Ints  # (rows,)
    reserved_usable: Ints  # (rows,)
    reserved_shadow_s: Floats  # (rows,) `shadow_s`
    reserved_extra: Ints  # (rows,) `extra`
    # The index of a long queue (queue_index.py); all but the first two are empty where no queue is ever long
    index_from: Ints  # (rows,) length of a queue from which it has one
    index_stage: Ints  # (rows,)
    index_moment: Ints  # (rows,) moment for which jobs are hidden
    index_leaf: Ints  # (rows, jobs) leaf of each job
    index_job: Ints  # (rows, jobs) job of each leaf
    index_first: Ints  # (rows, gpus + 2) first leaf of the jobs that ask for so many GPUs
    index_place: Ints  # (rows, jobs) rises along the queue
    index_best: Ints  # (rows, 2 x leaves) leaf below a node that is offered first, -1 if all are empty
    index_key: Floats  # (rows, 2 x leaves) by which that is: its place under `easy`, else its estimated work in seconds
    index_run_s: Floats  # (rows, 2 x leaves) shortest run below that a job can have, inf if all are empty or hidden
    index_oldest: Ints  # (rows, 2 x leaves) leaf below that has waited longest
    index_since_s: Floats  # (rows, 2 x leaves) its `queued_s`
    index_hidden: Ints  # (rows,) hidden jobs
    index_hidden_job: Ints  # (rows, jobs)
    index_young: Ints  # (rows, jobs) heap of waiting jobs that have not aged by `queued_s`
    index_young_place: Ints  # (rows, jobs) place of a job in that heap, -1 if it is not there
    index_young_count: Ints  # (rows,) size of that heap


class Traits(NamedTuple):
    """What follows from the scenarios alone."""

    max_speed: Floats  # (scenarios,)
    levels: Floats  # (scenarios, nodes + 1) the speeds that nodes have, each once, highest first, then 0
    node_hazard_per_s: Floats  # (scenarios, nodes) mean over the node's GPUs
    lemon: Ints  # (scenarios, nodes) 1 where that is over LEMON_FACTOR times the lower median of the nodes


LEMON_FACTOR = 5.0


def traits_of(cluster: Cluster, scenarios: Scenarios) -> Traits:
    """Return the traits of each scenario."""
    hazard = np.add.reduceat(scenarios.hazard_per_s, cluster.first_gpu[:-1], axis=1) / np.diff(cluster.first_gpu)
    median = np.sort(hazard, axis=1)[:, (hazard.shape[1] - 1) // 2, None]
    lemon = (hazard > LEMON_FACTOR * median).astype(np.int32)
    return Traits(scenarios.speed.max(axis=1), _levels(scenarios.speed), np.ascontiguousarray(hazard), lemon)


def _levels(speed: Floats) -> Floats:
    levels = np.zeros((speed.shape[0], speed.shape[1] + 1))
    for scenario, speeds in enumerate(speed):
        distinct = np.unique(speeds)[::-1]
        levels[scenario, : distinct.size] = distinct
    return levels


class Log(NamedTuple):
    """Events of row 0, kept if the arrays have room; empty arrays keep nothing."""

    time_s: Floats  # (events,)
    kind: Ints  # (events,) index of EVENT_KINDS
    job: Ints  # (events,) -1 for none
    first_gpu: Ints  # (events + 1,) GPUs of event i are gpus[first_gpu[i]:first_gpu[i + 1]]
    gpus: Ints  # (entries,)
    size: Ints  # (2,) events kept; 1 if there was no room for more


class Simulation:
    """Everything that a kernel needs to play clusters; kernels read it through `address`.

    A copy, and what is unpickled, has a table of its own. `simulation_of` of cluster/simulator/simulation.py makes one
    and checks what it holds; here only types and shapes are.

    Raises:
        ValueError: If a field is not of the type or shape that kernels take it for.
    """

    __slots__ = (
        "_numba_type_", "_table", "address", "cluster", "log", "process", "rules", "scenarios", "state", "traits",
    )  # fmt: skip

    def __init__(
        self,
        cluster: Cluster,
        scenarios: Scenarios,
        traits: Traits,
        process: FaultProcess,
        rules: Rules,
        state: State,
        log: Log,
    ) -> None:
        self.cluster, self.scenarios, self.traits, self.process = cluster, scenarios, traits, process
        self.rules, self.state, self.log = rules, state, log
        parts = {name: getattr(self, name) for name in Simulation.__init__.__annotations__ if name != "return"}
        check_types(parts)
        least = int(state.index_from.min(initial=EVERY_JOB))  # a row with an index needs room for it
        check_shapes(parts, allocate_state(cluster, scenarios, 0, least))
        self._table = pack(parts)
        self.address = int(self._table.ctypes.data)
        self._numba_type_ = Struct()

    def __reduce__(self) -> tuple[type["Simulation"], tuple[tuple[Any, ...], ...]]:
        """Let copies be made from the parts: an address is that of one object in one process."""
        parts = self.cluster, self.scenarios, self.traits, self.process, self.rules, self.state, self.log
        return Simulation, parts


INDEX_FROM = 64  # jobs: a walk along a shorter queue is as fast
MOVES = 16  # at most so many moves are compared at a decision
FINISH_OFFERS, TIGHT_OFFERS, SLOW_OFFERS = 7, 3, 2
OTHERS = 5  # jobs that the policy may turn to
OFFERS = FINISH_OFFERS + TIGHT_OFFERS + SLOW_OFFERS
AHEAD = 33  # jobs that are imagined, the move's own first
SHOWN = 7  # of which so many are shown one by one

_PER = {
    "nodes": (
        "free", "taken", "trial_free", "trial_order", "trial_bit", "trial_run_s", "trial_speed", "trial_set",
        "best_set", "node_class", "ahead_free",
    ),
    "offers": ("offer_s", "offer_hole", "offer_size", "offer_sign"),
    "offer_nodes": ("offer_node",),
    "moves": ("move_job", "move_delay_s", "move_s", "move_hole", "move_size", "move_sign"),
    "move_nodes": ("move_node",),
    "others": ("other_job",),
    "ahead": ("ahead_start_s", "ahead_end_s", "ahead_job", "ahead_size", "ahead_order"),
    "ahead_nodes": ("ahead_node", "ahead_gives"),
    "gpus": ("gpu_job", "gpu_down", "gpu_next"),
    "sources": ("source_s", "source_since_s", "source_k", "source_failed", "source_heap", "source_place"),
    "jobs": (
        "guess_s", "saved_s", "start_s", "end_s", "overhead_s", "slowdown", "entered_s", "wait_s", "queued_s",
        "first_start_s", "finish_s", "lost_s", "stops", "passed", "next_job", "previous_job", "first_gpu", "run_heap",
        "run_place", "ends_s", "ends_job",
    ),
    "index_jobs": (
        "index_leaf", "index_job", "index_place", "index_hidden_job", "index_young", "index_young_place",
    ),
    "index_sizes": ("index_first",),
    "index_nodes": ("index_best", "index_key", "index_run_s", "index_oldest", "index_since_s"),
}  # fmt: skip
_LONG = ("job_events", "decisions", "offer_sign", "move_sign")
_FLOATS = (
    "slowdown", "trial_speed", "picked_speed", "picked_intra", "picked_nic", "picked_uplink", "picked_hazard",
    "index_key",
)  # fmt: skip


def allocate_state(cluster: Cluster, scenarios: Scenarios, rows: int, index_from: int = INDEX_FROM) -> State:
    """Return state for so many clusters, zero but for `scenario` and `index_from`; `reset` of the engine fills it.

    Queues of at least `index_from` jobs have an index.
    """
    nodes, gpus, jobs = cluster.speed.size, cluster.gpu_node.size, scenarios.gpus.shape[1]
    is_indexed = jobs >= index_from
    sizes = {
        "nodes": nodes,
        "offers": OFFERS,
        "offer_nodes": OFFERS * nodes,
        "moves": MOVES,
        "move_nodes": MOVES * nodes,
        "others": OTHERS,
        "ahead": AHEAD,
        "ahead_nodes": AHEAD * nodes,
        "gpus": gpus,
        "sources": fault_sources(cluster),
        "jobs": jobs,
        "index_jobs": jobs if is_indexed else 0,
        "index_sizes": gpus + 2 if is_indexed else 0,
        "index_nodes": 2 << jobs.bit_length() if is_indexed else 0,  # more leaves than jobs: the last is always empty
    }
    axis = {name: sizes[per] for per, names in _PER.items() for name in names}

    def zeros(name: str) -> NDArray[np.generic]:
        dtype: type = np.float64 if name.endswith("_s") or name in _FLOATS else np.int32
        return np.zeros((rows, axis[name]) if name in axis else rows, np.int64 if name in _LONG else dtype)

    state = State(**{name: zeros(name) for name in State._fields})  # type: ignore[arg-type]
    state.scenario[:] = -1
    state.index_from[:] = index_from
    return state


def allocate_log(events: int, entries: int) -> Log:
    """Return a log with room for so many events that name so many GPUs together."""
    return Log(
        time_s=np.zeros(events),
        kind=np.zeros(events, dtype=np.int32),
        job=np.zeros(events, dtype=np.int32),
        first_gpu=np.zeros(events + 1, dtype=np.int32),
        gpus=np.zeros(entries, dtype=np.int32),
        size=np.zeros(2, dtype=np.int32),
    )
