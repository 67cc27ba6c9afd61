"""The arrays of a simulation: its state over many clusters at once, one row a cluster, and scratch of the kernels.

Kernels read through addresses and check no bound, so an array of another shape would be read, and written, beyond its
end: the types and shapes of all arrays are checked here, once, when a simulation is made.

Scratch is what kernels write within one call and no later call reads. Copies, imagined futures and snapshots omit it.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from ..kernels.pointer_table import Struct, pack_table
from ..model.problem import EVERY_JOB, LINED, PLANNED, FaultProcess, Rules, Scenarios, fault_sources
from ..model.topology import Cluster

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
FieldsT = TypeVar("FieldsT", bound=tuple[Any, ...])  # a named tuple
WORD_BITS = 32  # bits of a word, one for each of as many nodes: products with it stay below the sign

AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "cluster": {
        "gpu_node": ("gpus",), "first_gpu": ("nodes + 1",), "node_rack": ("nodes",), "first_node": ("racks + 1",),
        "node_type": ("nodes",), "speed": ("nodes",), "peak_flops": ("nodes",), "memory_bytes": ("nodes",),
        "intra_bytes_per_s": ("nodes",), "nic_bytes_per_s": ("nodes",), "uplink_bytes_per_s": ("racks",),
        "suits": ("classes", "nodes"),
    },
    "scenarios": {
        "jobs": ("scenarios",), "gpus": ("scenarios", "jobs"), "work_s": ("scenarios", "jobs"),
        "estimate_s": ("scenarios", "jobs"), "submit_s": ("scenarios", "jobs"), "compute_s": ("scenarios", "jobs"),
        "parameter_bytes": ("scenarios", "jobs"), "rank": ("scenarios", "jobs"), "needs": ("scenarios", "jobs"),
        "speed": ("scenarios", "nodes"),
        "hazard_per_s": ("scenarios", "gpus"), "source_rate_per_s": ("scenarios", "sources"),
        "fault_seed": ("scenarios",),
        **dict.fromkeys(PLANNED, ("scenarios", "planned jobs")), **dict.fromkeys(LINED, ("scenarios", "lined jobs")),
    },
    "traits": {
        "max_speed": ("scenarios",), "levels": ("scenarios", "nodes + 1"), "node_hazard_per_s": ("scenarios", "nodes"),
        "node_level": ("scenarios", "nodes"), "level_nodes": ("scenarios", "levels x words"),
        "lemon": ("scenarios", "nodes"),
    },
    "process": {
        "outage_first": ("sources with outages + 1",), "outage_start_s": ("outages",), "outage_end_s": ("outages",),
    },
    "log": {
        "time_s": ("events",), "kind": ("events",), "job": ("events",), "first_gpu": ("events + 1",),
        "gpus": ("entries",), "size": ("two",),
    },
}  # fmt: skip
WRITTEN = ("state", "log")
MAX_INT64 = 2**63 - 1
# Whole numbers of the state where a job is due, by their least and their most: a noun in the singular is the last of
# its kind, one in the plural how many there are.
RANGES: dict[tuple[int, str], tuple[str, ...]] = {
    (0, "scenario"): ("scenario",),
    (0, "one"): (
        "aged", "leads", "came_back", "base_waits", "base_refused", "source_failed", "ends_kept", "lemon", "spare",
        "died", "node_slow", "resized",
    ),
    (0, "two"): ("index_stage",),
    (-1, "job"): (
        "head", "tail", "gpu_job", "next_job", "previous_job", "run_place", "index_young_place", "kept_for",
        "next_in_line", "previous_in_line", "line_head", "line_tail", "line_oldest", "next_line", "previous_line",
        "first_line", "last_line",
    ),
    (-1, "leaf"): ("index_best", "index_oldest"),
    (0, "leaf"): ("index_leaf", "index_own_leaf"),
    (0, "job"): (
        "current", "candidate_job", "run_heap", "ends_job", "index_job", "index_hidden_job",
        "index_young",
    ),
    (0, "jobs"): (
        "finished", "submitted", "queued", "running", "reserved_for", "index_first", "index_hidden",
        "index_young_count", "shrunk",
    ),
    (0, "leafs"): ("index_line",),
    (-1, "gpu"): ("gpu_next", "first_gpu", "backup_of"),
    (0, "gpus"): (
        "usable", "busy", "down", "extra", "need", "free", "taken",
        "reserved_usable", "reserved_extra", "hidden", "class_usable", "class_in_service",
        "short", "relieved", "relieved_of",
    ),
    (0, "class"): ("shown_class", "reserved_class"),
    (0, "node"): ("candidate_node",),
    (0, "nodes"): ("picked_nodes", "candidate_size"),
    (-2, "rack"): ("picked_rack",),
    (0, "source"): ("source_heap",),
    (-1, "source"): ("source_place",),
    (0, "sources"): ("source_count",),
    (0, "candidates"): ("candidates",),
    (-2, "any"): ("waited", "rested"),
    (-1, "any"): ("moment", "passed", "reserved_moment", "index_moment"),
    (0, "any"): (
        "quiet", "unpolled", "estimated", "job_events", "decisions", "candidate_hole", "gpu_down", "source_k",
        "stops", "index_from", "switches", "slowed", "pace_k", "backups",
        "turns", "turn_number", "line_number",
    ),
    (-MAX_INT64 - 1, "any"): ("candidate_sign", "index_place"),
}  # fmt: skip


class FieldType(NamedTuple):
    """Type and axes of a field, by its annotation."""

    name: str
    kind: Any  # the annotation itself
    dtype: np.dtype[Any] | None  # of the elements, None for a number
    axes: tuple[str, ...]  # that are named


@cache  # annotations are slow to read, and needed for each simulation
def declared_fields(fields: type[tuple[Any, ...]]) -> tuple[FieldType, ...]:
    """Return the types and axes of a named tuple's fields, by their annotations."""
    return tuple(_declared_field(name, kind) for name, kind in fields.__annotations__.items())


def _declared_field(name: str, kind: Any) -> FieldType:
    array, *axes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    parameters = get_args(array)
    return FieldType(name, kind, np.dtype(get_args(parameters[1])[0]) if parameters else None, tuple(axes))


def zeros_of(fields: type[FieldsT], extents: Mapping[str, int]) -> FieldsT:
    """Return a named tuple of arrays of zeros, each of the type and the axes of its annotation.

    Args:
        fields: The named tuple, of which each field is `Annotated[array type, name of an axis, ...]`.
        extents: How long each axis is, by its name.
    """
    made: Callable[..., FieldsT] = fields  # which types of named tuples lack
    return made(
        *(np.zeros(tuple(extents[axis] for axis in field.axes), field.dtype) for field in declared_fields(fields))
    )


def check_types(parts: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields that are not of the type of their annotation, or do not lie in memory as kernels read them.

    Args:
        parts: The named tuples of a simulation, by name.

    Raises:
        ValueError: Naming the field.
    """
    for part, values in parts.items():
        for (name, kind, dtype, _), value in zip(declared_fields(type(values)), values, strict=True):
            if dtype is None:
                if type(value) is not kind:
                    raise ValueError(f"{part}.{name} is {value!r:.80}, expected one {kind.__name__}")
            elif not isinstance(value, np.ndarray) or value.dtype != dtype:
                found = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
                raise ValueError(f"{part}.{name} is of type {found}, expected an array of {dtype}")
            elif not (value.flags.c_contiguous and value.flags.aligned):
                raise ValueError(f"{part}.{name} is not contiguous; give np.ascontiguousarray of it")
            elif part in WRITTEN and not value.flags.writeable:
                raise ValueError(f"{part}.{name} cannot be written; give a copy of it")


def check_shapes(parts: Mapping[str, tuple[Any, ...]], blank: tuple[Any, ...]) -> None:
    """Refuse arrays whose shapes do not go together.

    Args:
        parts: The named tuples of a simulation, by name, their types checked.
        blank: State of no rows for the same cluster and scenarios.

    Raises:
        ValueError: Naming the first array.
    """
    extents: dict[str, int] = {"two": 2}
    for part, axes in AXES.items():
        for name, names in axes.items():
            shape = getattr(parts[part], name).shape
            _check_shape(f"{part}.{name}", shape, tuple(extents.get(axis, -1) for axis in names), names)
            extents |= dict(zip(names, shape, strict=True))
            extents |= {axis + " + 1": extent + 1 for axis, extent in zip(names, shape, strict=True)}
        if part == "cluster":
            extents["sources"] = extents["gpus"] + extents["nodes"] + extents["racks"]
    state: Any = parts["state"]
    rows = state.now_s.shape[:1]
    for name, array in blank._asdict().items():  # type: ignore[attr-defined]
        shape, expected = getattr(state, name).shape, rows + array.shape[1:]
        if shape != expected:
            raise ValueError(f"state.{name} has shape {shape}, expected {expected}")
    if extents["sources with outages + 1"] not in (1, extents["sources"] + 1):
        shape = parts["process"].outage_first.shape  # type: ignore[attr-defined]
        raise ValueError(f"process.outage_first has shape {shape}, expected (1,) or {(extents['sources'] + 1,)}")


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], axes: tuple[str, ...]) -> None:
    fits = len(shape) == len(expected) and all(want in (-1, have) for have, want in zip(shape, expected, strict=True))
    if not fits:
        wanted = ", ".join(axis if want < 0 else str(want) for axis, want in zip(axes, expected, strict=True))
        raise ValueError(f"{name} has shape {shape}, expected ({wanted})")


class Scratch(NamedTuple):
    """Notes of the kernels on each row; their axes are those of the state."""

    trial_free: Annotated[Ints, "rows", "nodes"]  # usable GPUs at a moment that is imagined
    free_nodes: Annotated[Longs, "rows", "sizes x words"]  # the same: a bit for each node with that number
    free_count: Annotated[Ints, "rows", "sizes"]  # how many nodes those are
    level_count: Annotated[Ints, "rows", "levels x sizes"]  # and how many of each speed
    level_free: Annotated[Ints, "rows", "nodes"]  # GPUs that nodes of each speed have free, by its number
    trial_order: Annotated[Ints, "rows", "nodes"]  # nodes by usable GPUs, most first
    trial_bit: Annotated[Ints, "rows", "nodes"]  # their places among the nodes with usable GPUs
    may_pick: Annotated[Ints, "rows", "nodes"]  # 1 where a node may be picked next by a job that keeps a reservation
    trial_run_s: Annotated[Floats, "rows", "nodes"]  # run time of the current job if the node is taken next
    trial_speed: Annotated[Floats, "rows", "nodes"]  # slowest speed of that run
    trial_set: Annotated[Ints, "rows", "nodes"]  # nodes of a set, in the order in which they give
    best_set: Annotated[Ints, "rows", "nodes"]  # the best such set found
    alike_group: Annotated[Ints, "rows", "nodes"]  # group of a node with free GPUs: nodes of a group are alike
    group_first: Annotated[Ints, "rows", "nodes + 1"]  # group g is `group_node`[group_first[g]] up to the next
    group_node: Annotated[Ints, "rows", "nodes"]  # nodes by group as in `trial_order`; before, a node of each group
    offer_s: Annotated[Floats, "rows", "offers"]  # run time of a set that may become a candidate
    offer_hole: Annotated[Ints, "rows", "offers"]
    offer_size: Annotated[Ints, "rows", "offers"]  # its number of nodes
    offer_sign: Annotated[Longs, "rows", "offers"]  # the same for sets of the same groups
    offer_node: Annotated[Ints, "rows", "offers x nodes"]  # its nodes, in the order in which they give
    # Idle GPUs that could take a seat of a ring (simulator/seats.py), and what is known of types in that ring
    seat_gpu: Annotated[Ints, "rows", "seats if holding"]
    seat_compute_s: Annotated[Floats, "rows", "seats if holding"]
    seat_sure_s: Annotated[Floats, "rows", "seats if holding"]
    seat_flops: Annotated[Floats, "rows", "seats if holding"]
    seat_from: Annotated[Floats, "rows", "seats if holding"]  # bytes per second from the neighbour before
    seat_to: Annotated[Floats, "rows", "seats if holding"]  # and to the one after
    seat_hazard: Annotated[Floats, "rows", "seats if holding"]
    record_type: Annotated[Ints, "rows", "nodes if holding"]  # a node type in the ring
    record_gpus: Annotated[Ints, "rows", "nodes if holding"]  # its GPUs there
    record_s: Annotated[Floats, "rows", "nodes if holding"]  # their compute times in an iteration, their sum first
    record_flops: Annotated[Floats, "rows", "nodes if holding"]  # FLOPs of that time at the type's peak
    tried_gpu: Annotated[Ints, "rows", "gpus if holding"]  # slow GPUs that are relieved for a try
    class_beside: Annotated[Ints, "rows", "classes"]  # usable GPUs that suit it, and not the holder of the reservation
    other_job: Annotated[Ints, "rows", "others"]  # jobs that the policy may turn to
    lined_up: Annotated[Ints, "rows", "jobs if turns"]  # the queue as users take turns, as far as it was listed
    line_at: Annotated[Ints, "rows", "jobs if turns"]  # of each line, the job up to which it is
    ahead_start_s: Annotated[Floats, "rows", "ahead"]  # start, inf if never
    ahead_end_s: Annotated[Floats, "rows", "ahead"]  # end
    ahead_job: Annotated[Ints, "rows", "ahead"]
    ahead_size: Annotated[Ints, "rows", "ahead"]  # its number of nodes
    ahead_node: Annotated[Ints, "rows", "ahead x nodes"]
    ahead_gives: Annotated[Ints, "rows", "ahead x nodes"]  # GPUs that each of them gives
    ahead_order: Annotated[Ints, "rows", "ahead"]  # their places by end, the earliest first


class State(NamedTuple):
    """Clusters at one moment each. GPUs, nodes and jobs are in the order of the cluster and the scenarios.

    Each field names its axes; `_axis_lengths` has their lengths. `Scratch` is apart from it.
    """

    scenario: Annotated[Ints, "rows"]  # scenario that the row runs, -1 before the first reset
    now_s: Annotated[Floats, "rows"]
    moment: Annotated[Ints, "rows"]  # counts the moments at which something happened
    quiet: Annotated[Ints, "rows"]  # moments that `advance` run since a job was last submitted, started or ended
    unpolled: Annotated[Ints, "rows"]  # work since signals were last polled
    finished: Annotated[Ints, "rows"]  # jobs that ended
    submitted: Annotated[Ints, "rows"]  # jobs that were submitted
    estimated: Annotated[Ints, "rows"]  # jobs in the sum of estimates: those submitted; if live, all ever
    estimates_s: Annotated[Floats, "rows"]  # sum of estimates, as submitted
    head: Annotated[Ints, "rows"]  # first job of the queue, -1 when empty
    tail: Annotated[Ints, "rows"]  # last job of the queue, -1 when empty
    queued: Annotated[Ints, "rows"]  # jobs in the queue
    queued_gpu_s: Annotated[Floats, "rows"]  # estimated work in the queue, times its GPUs
    usable: Annotated[Ints, "rows"]  # GPUs that are up and free; the sum of `free`
    busy: Annotated[Ints, "rows"]  # GPUs that serve a job
    down: Annotated[Ints, "rows"]  # GPUs out of service
    waited: Annotated[Ints, "rows"]  # moment at which the policy last waited, -2 for never
    rested: Annotated[Ints, "rows"]  # moment at which it last let all jobs wait, -2 for never
    # The decision that is due
    current: Annotated[Ints, "rows"]  # job to place, -1 for none
    aged: Annotated[Ints, "rows"]  # 1 if that job has reached the ageing bound
    leads: Annotated[Ints, "rows"]  # 1 if that job passes no other: its start is its user's turn to lead
    shadow_s: Annotated[Floats, "rows"]  # a job that takes more than `extra` GPUs must end by then
    extra: Annotated[Ints, "rows"]  # GPUs that the reservation leaves over
    reserved_class: Annotated[Ints, "rows"]  # class of needs of the job that holds the reservation
    need: Annotated[Ints, "rows"]  # GPUs still to pick
    picked_nodes: Annotated[Ints, "rows"]  # nodes of the picks
    picked_rack: Annotated[Ints, "rows"]  # their rack; -1 for none, -2 for several
    picked_speed: Annotated[Floats, "rows"]  # slowest speed of the picks
    picked_intra: Annotated[Floats, "rows"]  # slowest bandwidth inside a node that gives two or more GPUs
    picked_nic: Annotated[Floats, "rows"]  # slowest bandwidth of a node
    picked_uplink: Annotated[Floats, "rows"]  # slowest bandwidth of a rack
    picked_hazard: Annotated[Floats, "rows"]  # sum of the picks' fault rates
    # Sums
    busy_gpu_s: Annotated[Floats, "rows"]
    down_gpu_s: Annotated[Floats, "rows"]
    job_time_s: Annotated[Floats, "rows"]  # time that jobs have spent waiting or running
    overhead_gpu_s: Annotated[Floats, "rows"]  # restarts of runs that then finished
    job_events: Annotated[Longs, "rows"]
    decisions: Annotated[Longs, "rows"]
    switches: Annotated[Longs, "rows"]  # how often a ring was formed anew
    # Nodes
    free: Annotated[Ints, "rows", "nodes"]  # usable GPUs; where a job is due, 0 on nodes that do not suit it
    taken: Annotated[Ints, "rows", "nodes"]  # picks for the current job
    # Needs of jobs (holding.py); all but the first are empty where all jobs are of one class
    shown_class: Annotated[Ints, "rows"]  # class whose nodes `free` and `usable` count, 0 for all GPUs
    hidden: Annotated[Ints, "rows", "nodes if classes"]  # usable GPUs that `free` leaves out
    class_usable: Annotated[Ints, "rows", "classes if several"]  # usable GPUs that suit each class, hidden or not
    class_in_service: Annotated[Ints, "rows", "classes if several"]  # the same of GPUs that are up, busy or free
    # The candidates of the decision that is due (candidates/candidates.py)
    candidates: Annotated[Ints, "rows"]  # candidates in the list
    base_waits: Annotated[Ints, "rows"]  # 1 if waiting is the first of them
    base_refused: Annotated[Ints, "rows"]  # 1 if the base's set, taken at once, breaks a reservation
    candidate_job: Annotated[Ints, "rows", "candidates"]  # job that it starts, now or after a wait
    candidate_delay_s: Annotated[Floats, "rows", "candidates"]  # how long it waits first, 0 for a start at once
    candidate_s: Annotated[Floats, "rows", "candidates"]  # run time
    candidate_hole: Annotated[Ints, "rows", "candidates"]
    candidate_size: Annotated[Ints, "rows", "candidates"]  # nodes
    candidate_sign: Annotated[Longs, "rows", "candidates"]
    candidate_node: Annotated[Ints, "rows", "candidates x nodes"]
    # GPUs
    gpu_job: Annotated[Ints, "rows", "gpus"]  # job that holds it, -1 when free
    gpu_down: Annotated[Ints, "rows", "gpus"]  # fault sources that hold it out of service
    gpu_next: Annotated[Ints, "rows", "gpus"]  # next GPU of the same job, -1 at the end
    # Fault sources
    source_s: Annotated[Floats, "rows", "sources"]  # time of the next fault or repair
    source_since_s: Annotated[Floats, "rows", "sources"]  # when it last failed or came back
    source_k: Annotated[Ints, "rows", "sources"]  # faults so far
    source_failed: Annotated[Ints, "rows", "sources"]  # 1 while it holds its GPUs out of service
    source_heap: Annotated[Ints, "rows", "sources"]  # heap of sources by `source_s`
    source_place: Annotated[Ints, "rows", "sources"]  # place of a source in that heap, -1 if it never fails
    source_count: Annotated[Ints, "rows"]  # size of that heap
    # What policies know of fault rates (beliefs.py)
    gpu_hazard_per_s: Annotated[Floats, "rows", "gpus"]  # of each GPU
    node_hazard_per_s: Annotated[Floats, "rows", "nodes"]  # mean over the node's GPUs
    lemon: Annotated[Ints, "rows", "nodes"]  # 1 where that is over LEMON_RATIO times the lower median of the nodes
    observed_s: Annotated[Floats, "rows", "nodes"]  # moment up to which the next two count
    observed_faults: Annotated[Floats, "rows", "nodes"]  # faults of the node, each by how recent it is
    observed_gpu_s: Annotated[Floats, "rows", "nodes"]  # time that its GPUs were in service, weighted likewise
    failed_s: Annotated[Floats, "rows", "nodes"]  # moment of its last fault, -1 for none
    # Jobs
    guess_s: Annotated[Floats, "rows", "jobs"]  # the estimate, doubled whenever it was outlived
    saved_s: Annotated[Floats, "rows", "jobs"]  # work that checkpoints hold
    start_s: Annotated[Floats, "rows", "jobs"]  # last start
    end_s: Annotated[Floats, "rows", "jobs"]  # true end of the run in progress
    overhead_s: Annotated[Floats, "rows", "jobs"]  # restart cost of the run in progress
    slowdown: Annotated[Floats, "rows", "jobs"]  # run time over work on the present placement
    entered_s: Annotated[Floats, "rows", "jobs"]  # when it last came into the queue
    wait_s: Annotated[Floats, "rows", "jobs"]  # total time of its finished stays in the queue
    queued_s: Annotated[Floats, "rows", "jobs"]  # entered_s - wait_s: since when it would have waited, without its runs
    first_start_s: Annotated[Floats, "rows", "jobs"]  # -1 before
    finish_s: Annotated[Floats, "rows", "jobs"]
    lost_s: Annotated[Floats, "rows", "jobs"]
    stops: Annotated[Ints, "rows", "jobs"]
    passed: Annotated[Ints, "rows", "jobs"]  # moment at which it was passed over, -1 for never
    next_job: Annotated[Ints, "rows", "jobs"]  # towards the tail of the queue
    previous_job: Annotated[Ints, "rows", "jobs"]  # towards the head
    first_gpu: Annotated[Ints, "rows", "jobs"]  # first GPU of its placement, -1 for none
    run_heap: Annotated[Ints, "rows", "jobs"]  # heap of running jobs by `end_s`
    run_place: Annotated[Ints, "rows", "jobs"]  # place of a job in that heap, -1 when it does not run
    running: Annotated[Ints, "rows"]  # size of that heap
    ends_s: Annotated[Floats, "rows", "jobs"]  # expected ends of running jobs, in order where `ends_kept` is 1
    ends_job: Annotated[Ints, "rows", "jobs"]  # the job of each
    ends_kept: Annotated[Ints, "rows"]
    # Jobs that hold on to their GPUs at a fault (holding.py); all but the first are empty where every fault stops a job
    shrunk: Annotated[Ints, "rows"]  # running jobs that have fewer GPUs than they ask for
    spare: Annotated[Ints, "rows", "gpus if holding"]  # 1 for a GPU of the pool; while idle it is held out of service
    died: Annotated[Ints, "rows", "gpus if holding"]  # 1 if it failed under a job that has not acted on that yet
    struck_s: Annotated[Floats, "rows", "jobs if holding"]  # since when the job stands still after a fault, -1 if not
    short: Annotated[Ints, "rows", "jobs if holding"]  # GPUs that it asks for and runs without
    fresh_s: Annotated[Floats, "rows", "jobs if holding"]  # work before the last switch that no checkpoint holds
    fresh_gpu_s: Annotated[Floats, "rows", "jobs if holding"]  # GPU-time of that work
    since_s: Annotated[Floats, "rows", "jobs if holding"]  # time of that work, which counts to the next checkpoint
    # Nodes that are slow for a while (holding.py)
    slowed: Annotated[Longs, "rows"]  # how often a running job has met slow nodes
    node_slow: Annotated[Ints, "rows", "nodes if holding"]  # 1 while it is slow
    pace_s: Annotated[Floats, "rows", "nodes if holding"]  # when it becomes slow or well next, inf for never
    pace_k: Annotated[Ints, "rows", "nodes if holding"]  # how often it has been slow before
    slowed_s: Annotated[Floats, "rows", "jobs if holding"]  # since when a running job has had slow nodes, -1 if not
    # Backups (holding.py): a GPU that is relieved is of no ring; its job keeps it, and it is held out of service
    relieved: Annotated[Ints, "rows"]  # such GPUs
    relieved_of: Annotated[Ints, "rows", "jobs if holding"]  # those of each job
    kept_for: Annotated[Ints, "rows", "gpus if holding"]  # job that keeps a relieved GPU, -1 for none
    backup_of: Annotated[Ints, "rows", "gpus if holding"]  # GPU that has its seat
    backups: Annotated[Longs, "rows"]  # how often a GPU has taken the seat of a slow one
    backup_gpu_s: Annotated[Floats, "rows"]  # time that GPUs were relieved
    resized: Annotated[Ints, "rows"]  # 1 once a job of a real cluster held other GPUs than as many as it asks for
    # The reservation as it was last found; it holds at that moment with that number of usable GPUs
    reserved_for: Annotated[Ints, "rows"]  # 1 + its holder, 0 when jobs have started or left since
    reserved_moment: Annotated[Ints, "rows"]
    reserved_usable: Annotated[Ints, "rows"]
    reserved_shadow_s: Annotated[Floats, "rows"]  # `shadow_s`
    reserved_extra: Annotated[Ints, "rows"]  # `extra`
    # Turns of users (queue/turns.py): jobs of one user and rank form a line; empty where users take no turns.
    # Twice as many lines: those in the rotation of leading, then those in that of passing
    turns: Annotated[Longs, "rows"]  # turns that were taken
    came_back: Annotated[Ints, "rows", "jobs if turns"]  # 1 for a waiting job that was stopped
    next_in_line: Annotated[Ints, "rows", "jobs if turns"]  # towards the end of the line
    previous_in_line: Annotated[Ints, "rows", "jobs if turns"]
    line_head: Annotated[Ints, "rows", "jobs if turns"]  # first waiting job of each line, -1 for none
    line_tail: Annotated[Ints, "rows", "jobs if turns"]
    line_oldest: Annotated[Ints, "rows", "jobs if turns"]  # the one that came into the queue first
    turn_s: Annotated[Floats, "rows", "2 x lines"]  # last turn of each line
    turn_number: Annotated[Longs, "rows", "2 x lines"]  # its number, 0 for none
    line_since_s: Annotated[Floats, "rows", "2 x lines"]  # since when the line waits for its turn
    line_number: Annotated[Longs, "rows", "2 x lines"]  # number of the turn it had then, 0 if it had none
    next_line: Annotated[Ints, "rows", "2 x lines"]  # lines with waiting jobs, the next to have a turn first
    previous_line: Annotated[Ints, "rows", "2 x lines"]
    first_line: Annotated[Ints, "rows", "rotations"]
    last_line: Annotated[Ints, "rows", "rotations"]
    # The index of a long queue (queue/index.py); all but the first two are empty where no queue is ever long
    index_from: Annotated[Ints, "rows"]  # length of a queue from which it has one
    index_stage: Annotated[Ints, "rows"]
    index_moment: Annotated[Ints, "rows"]  # moment for which jobs are hidden
    index_leaf: Annotated[Ints, "rows", "indexed jobs"]  # leaf of each job
    index_own_leaf: Annotated[Ints, "rows", "indexed jobs if turns"]  # its leaf among those of its line
    index_line: Annotated[Ints, "rows", "indexed lines + 1"]  # first of the leaves of each line
    index_job: Annotated[Ints, "rows", "leaves"]  # job of each leaf
    index_first: Annotated[
        Ints, "rows", "indexed sizes"
    ]  # first leaf of the jobs of each class by the GPUs that they ask for
    index_place: Annotated[Ints, "rows", "indexed jobs"]  # rises along the queue
    index_best: Annotated[Ints, "rows", "2 x leaves"]  # leaf below a node that is offered first, -1 if all are empty
    index_key: Annotated[Floats, "rows", "2 x leaves"]  # its place under `easy`, else its estimated work in seconds
    index_run_s: Annotated[Floats, "rows", "2 x leaves"]  # shortest run of a job below, inf if all are empty or hidden
    index_oldest: Annotated[Ints, "rows", "2 x leaves"]  # leaf below that has waited longest
    index_since_s: Annotated[Floats, "rows", "2 x leaves"]  # its `queued_s`
    index_hidden: Annotated[Ints, "rows"]  # hidden jobs
    index_hidden_job: Annotated[Ints, "rows", "indexed jobs"]
    index_young: Annotated[Ints, "rows", "indexed jobs"]  # heap of waiting jobs that have not aged by `queued_s`
    index_young_place: Annotated[Ints, "rows", "indexed jobs"]  # place of a job in that heap, -1 if it is not there
    index_young_count: Annotated[Ints, "rows"]  # size of that heap


class Traits(NamedTuple):
    """What follows from the scenarios alone."""

    max_speed: Floats  # (scenarios,)
    levels: Floats  # (scenarios, nodes + 1) the speeds that nodes have, each once, highest first, then 0
    node_level: Ints  # (scenarios, nodes) the place of a node's speed among these
    level_nodes: Longs  # (scenarios, levels x words) a bit for each node of at least the speed of a place
    node_hazard_per_s: Floats  # (scenarios, nodes) mean over the node's GPUs, as policies know it at the start
    lemon: Ints  # (scenarios, nodes) 1 where that is over LEMON_RATIO times the lower median of the nodes


LEMON_RATIO = 5.0


def traits_of(cluster: Cluster, scenarios: Scenarios) -> Traits:
    """Return the traits of each scenario."""
    hazard = np.add.reduceat(scenarios.hazard_per_s, cluster.first_gpu[:-1], axis=1) / np.diff(cluster.first_gpu)
    median = np.sort(hazard, axis=1)[:, (hazard.shape[1] - 1) // 2, None]
    lemon = (hazard > LEMON_RATIO * median).astype(np.int32)
    levels = _speed_levels(scenarios.speed)
    node_level = _level_of_nodes(scenarios.speed, levels)
    level_nodes = _node_bits_by_level(node_level)
    return Traits(scenarios.speed.max(axis=1), levels, node_level, level_nodes, np.ascontiguousarray(hazard), lemon)


def _speed_levels(speed: Floats) -> Floats:
    levels = np.zeros((speed.shape[0], speed.shape[1] + 1))
    for scenario, speeds in enumerate(speed):
        distinct = np.unique(speeds)[::-1]
        levels[scenario, : distinct.size] = distinct
    return levels


def _level_of_nodes(speed: Floats, levels: Floats) -> Ints:
    node_level = np.zeros(speed.shape, dtype=np.int32)
    for level in range(np.count_nonzero(levels.any(axis=0))):
        node_level += levels[:, level, None] > speed
    return node_level


def _node_bits_by_level(node_level: Ints) -> Longs:
    scenarios, nodes = node_level.shape
    levels, words = int(node_level.max()) + 1, -(-nodes // WORD_BITS)
    fast = np.zeros((scenarios, levels, words * WORD_BITS), dtype=np.int64)
    fast[:, :, :nodes] = node_level[:, None, :] <= np.arange(levels)[:, None]
    bits: Longs = (fast.reshape(scenarios, levels, words, WORD_BITS) << np.arange(WORD_BITS)).sum(axis=3)
    return bits.reshape(scenarios, levels * words)


class Log(NamedTuple):
    """Events of row 0, kept if the arrays have room; empty arrays keep nothing."""

    time_s: Floats  # (events,)
    kind: Ints  # (events,) index of EVENT_KINDS
    job: Ints  # (events,) -1 for none
    first_gpu: Ints  # (events + 1,) GPUs of event i are gpus[first_gpu[i]:first_gpu[i + 1]]
    gpus: Ints  # (entries,)
    size: Ints  # (2,) events kept; 1 if there was no room for more


class Simulation:
    """Everything that a kernel needs to run clusters; kernels read it through `address`.

    A copy, and what is unpickled, has a table of its own. `simulation_of` of cluster/simulator/simulation.py makes one
    and checks what it holds; here only types and shapes are.

    Raises:
        ValueError: If a field is not of the type or shape that kernels take it for.
    """

    __slots__ = (
        "_numba_type_", "_table", "address", "cluster", "log", "process", "rules", "scenarios", "scratch", "state",
        "traits",
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
        holding = may_keep_gpus_by_rules(rules)
        check_shapes(parts, allocate_state(cluster, scenarios, 0, least, holding=holding, turns=rules.turns))
        extents = _axis_lengths(cluster, scenarios, state.now_s.size, least, holding=holding, turns=rules.turns)
        self.scratch = zeros_of(Scratch, extents)
        parts["scratch"] = self.scratch
        self._table = pack_table(parts)
        self.address = int(self._table.ctypes.data)
        self._numba_type_ = Struct()

    def __reduce__(self) -> tuple[type["Simulation"], tuple[tuple[Any, ...], ...]]:
        """Let copies be made from the parts: an address is that of one object in one process."""
        parts = self.cluster, self.scenarios, self.traits, self.process, self.rules, self.state, self.log
        return Simulation, parts


INDEX_FROM = 64  # jobs: a walk along a shorter queue is as fast
MAX_CANDIDATES = 16  # compared at a decision
FINISH_OFFERS, TIGHT_OFFERS, SLOW_OFFERS = 7, 3, 2
MAX_OTHERS = 5  # jobs that the policy may turn to
MAX_SCANNED = 32  # jobs that may pass: of these the policy may turn to the shortest, where the regime has no key
OFFERS = FINISH_OFFERS + TIGHT_OFFERS + SLOW_OFFERS
AHEAD_JOBS = 33  # jobs that are imagined, the candidate's own first
AHEAD_SHOWN = 7  # of which an observation shows this number one by one


def may_keep_gpus_by_rules(rules: Rules) -> bool:
    """Return whether a run is kept piece by piece: jobs may hold their GPUs beyond a fault, or nodes become slow."""
    return rules.switching or rules.detection_s > 0.0 or rules.slow_per_s > 0.0


@kernel
def has_need_classes(sim: Simulation) -> bool:
    """Return whether jobs may differ in what they need."""
    return bool(sim.cluster.suits.shape[0] > 1)


@kernel
def has_turns(sim: Simulation) -> bool:
    """Return whether users take turns; else the queue is one line, in the order in which it stands."""
    return bool(sim.rules.turns)


@kernel
def may_keep_gpus_after_fault(sim: Simulation) -> bool:
    """Return whether a job may hold its GPUs beyond a fault; the same as `may_keep_gpus_by_rules` of its rules."""
    return bool(sim.rules.switching or sim.rules.detection_s > 0.0 or sim.rules.slow_per_s > 0.0)


@kernel
def may_hold_other_gpus(sim: Simulation, row: int) -> bool:
    """Return whether running jobs may hold other numbers of GPUs than they ask for: by the rules, or live."""
    return may_keep_gpus_after_fault(sim) or sim.state.resized[row] == 1


@kernel
def nodes_may_slow(sim: Simulation) -> bool:
    """Return whether nodes become slow for a while."""
    return bool(sim.rules.slow_per_s > 0.0)


@kernel
def gives_backups(sim: Simulation) -> bool:
    """Return whether jobs get backups."""
    return nodes_may_slow(sim) and sim.rules.backups > 0 and sim.rules.switching


def _axis_lengths(
    cluster: Cluster, scenarios: Scenarios, rows: int, index_from: int, *, holding: bool, turns: bool
) -> dict[str, int]:
    """Return how long each axis of the state is. A queue that is never long enough for an index has none."""
    nodes, gpus, jobs = cluster.speed.size, cluster.gpu_node.size, scenarios.gpus.shape[1]
    indexed, classes = jobs >= index_from, cluster.suits.shape[0]
    leaves = jobs * indexed * (1 + turns)  # with turns each job has one more, among those of its line
    sizes = int(np.diff(cluster.first_gpu).max()) + 1
    return {
        "rows": rows, "nodes": nodes, "nodes + 1": nodes + 1, "gpus": gpus, "sizes": sizes,
        "sizes x words": sizes * -(-nodes // WORD_BITS), "levels x sizes": nodes * sizes,
        "jobs": jobs, "sources": fault_sources(cluster),
        "candidates": MAX_CANDIDATES, "candidates x nodes": MAX_CANDIDATES * nodes, "others": MAX_OTHERS,
        "offers": OFFERS, "offers x nodes": OFFERS * nodes, "ahead": AHEAD_JOBS, "ahead x nodes": AHEAD_JOBS * nodes,
        "nodes if classes": nodes * (classes > 1), "classes if several": classes * (classes > 1), "classes": classes,
        "gpus if holding": gpus * holding, "jobs if holding": jobs * holding, "nodes if holding": nodes * holding,
        "seats if holding": 2 * nodes * holding,
        "indexed jobs": jobs * indexed, "indexed sizes": classes * (gpus + 2) * indexed,
        "leaves": leaves, "2 x leaves": (2 << leaves.bit_length()) * indexed,  # the last is always empty
        "jobs if turns": jobs * turns, "2 x lines": 2 * jobs * turns, "rotations": 2 * turns,
        "indexed jobs if turns": jobs * indexed * turns, "indexed lines + 1": (jobs + 1) * indexed * turns,
    }  # fmt: skip


def allocate_state(
    cluster: Cluster, scenarios: Scenarios, rows: int, index_from: int = INDEX_FROM, *, holding: bool = False,
    turns: bool = False,
) -> State:  # fmt: skip
    """Return state for `rows` clusters, zero but for `scenario` and `index_from`; `reset` of the engine fills it.

    Queues of at least `index_from` jobs have an index. There is room for jobs that hold on to their GPUs at a fault if
    `holding`, which `may_keep_gpus_by_rules` returns for rules, and for lines of users if they take `turns`.
    """
    state = zeros_of(State, _axis_lengths(cluster, scenarios, rows, index_from, holding=holding, turns=turns))
    state.scenario[:] = -1
    state.index_from[:] = index_from
    return state


def allocate_log(events: int, entries: int) -> Log:
    """Return a log with room for `events` events that name `entries` GPUs together."""
    return Log(
        time_s=np.zeros(events),
        kind=np.zeros(events, dtype=np.int32),
        job=np.zeros(events, dtype=np.int32),
        first_gpu=np.zeros(events + 1, dtype=np.int32),
        gpus=np.zeros(entries, dtype=np.int32),
        size=np.zeros(2, dtype=np.int32),
    )
