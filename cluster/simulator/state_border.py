"""The border of the kernels for a state that was kept in a file: what no row could have come to does not enter.

Kernels follow the numbers in a state without a check: a wrong one would let them write where they must not, or loop for
ever.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..placing import MAX_SLOWDOWN, MIN_SLOWDOWN, SEVERAL_RACKS
from ..queue.turns import rebuild_lines
from ..state.beliefs import initial_beliefs
from ..state.border import refuse_unless_all
from ..state.holding import mark_spares
from ..state.state import MAX_INT64, RANGES, Floats, Ints, Simulation, State, may_keep_gpus_by_rules
from .event_log import MAX_QUIET, MAX_STOPS

# Of times and sums of them. No run comes near: traces end after 3,000 years, 1e11 s. Such a time is still finite as a
# number of 32 bits, as rewards are, in the smallest unit of rewards, and when it is divided by the least slowdown.
MAX_MAGNITUDE = 1e28
BOUNDED = (
    "now_s", "estimates_s", "queued_gpu_s", "picked_hazard", "busy_gpu_s", "down_gpu_s", "job_time_s",
    "overhead_gpu_s", "source_since_s", "saved_s", "start_s", "end_s", "overhead_s", "entered_s", "wait_s", "queued_s",
    "first_start_s", "finish_s", "lost_s", "struck_s", "fresh_s", "fresh_gpu_s", "since_s", "slowed_s", "backup_gpu_s",
    "turn_s",
)  # fmt: skip
LINES = (
    "next_in_line", "previous_in_line", "line_head", "line_tail", "line_oldest", "line_since_s", "line_number",
    "next_line", "previous_line", "first_line", "last_line",
)  # fmt: skip


def checked_state(sim: Simulation, state: State) -> State:
    """Return a state from which the rows of a simulation can be run on.

    What only saves time, the index of the queue, its lines and the order of expected ends, is not kept: it is found
    anew. So is the work since signals were last polled.

    Args:
        sim: Its own state gives types and shapes, which `state` must have.
        state: Each row stands at a decision, with picks or without. No array of it is changed.

    Raises:
        ValueError: Naming the first field that no such row could have.
    """
    _check_ranges(sim, state)
    _check_magnitudes(sim, state)
    # A larger one would overflow.
    refuse_unless_all("state.quiet", state.quiet, state.quiet <= MAX_QUIET, f"at most {MAX_QUIET}")
    refuse_unless_all("state.stops", state.stops, state.stops <= MAX_STOPS, f"at most {MAX_STOPS}")
    _check_heap(state, "source_heap", "source_place", state.source_count, state.source_s)
    _check_heap(state, "run_heap", "run_place", state.running, state.end_s)
    _check_sources(sim, state)
    _check_beliefs(sim, state)
    _check_jobs(sim, state, _waiting_jobs(state))
    if may_keep_gpus_by_rules(sim.rules):
        _check_switched_jobs(sim, state)
    _check_gpus(sim, state)
    _check_picks(sim, state)
    _check_equal("index_from", state.index_from, sim.state.index_from)  # by which there is room for an index
    new = {name: np.zeros_like(getattr(state, name)) for name in ("index_stage", "ends_kept", "unpolled")}
    state = state._replace(**new)
    return _with_lines(sim, state) if sim.rules.turns else state


def _with_lines(sim: Simulation, state: State) -> State:
    """Return a state whose waiting jobs stand in lines, by its queue and the turns so far.

    Raises:
        ValueError: If a turn has a number that none was given, or was had in the future.
    """
    refuse_unless_all(
        "state.turn_number", state.turn_number, state.turn_number <= state.turns[:, None], "one of the turns so far"
    )
    refuse_unless_all("state.turn_s", state.turn_s, state.turn_s <= state.now_s[:, None], "no time after the present")
    state = state._replace(**{name: getattr(state, name).copy() for name in LINES})
    laid = Simulation(sim.cluster, sim.scenarios, sim.traits, sim.process, sim.rules, state, sim.log)
    for row in range(state.head.size):
        rebuild_lines(laid, row)
    return state


def _check_equal(name: str, values: NDArray[Any], expected: NDArray[Any]) -> None:
    refuse_unless_all(f"state.{name}", values, values == expected, "what follows from the other fields")


def _check_ranges(sim: Simulation, state: State) -> None:
    counts = {
        "scenario": sim.scenarios.jobs.size, "job": state.guess_s.shape[1], "gpu": state.gpu_job.shape[1],
        "node": state.free.shape[1], "class": sim.cluster.suits.shape[0],
        "rack": sim.cluster.uplink_bytes_per_s.size, "source": state.source_s.shape[1],
        "candidate": state.candidate_job.shape[1], "leaf": state.index_job.shape[1],
    }  # fmt: skip
    most = {"one": 1, "two": 2, "any": MAX_INT64, "job ahead": sim.scratch.ahead_job.shape[1] - 1}
    most |= {name: count - 1 for name, count in counts.items()} | {f"{name}s": count for name, count in counts.items()}
    for (least, kind), names in RANGES.items():
        for name in names:
            values = getattr(state, name)
            fits = (values >= least) & (values <= most[kind])
            refuse_unless_all(f"state.{name}", values, fits, f"{least} to {most[kind]}")


def _check_magnitudes(sim: Simulation, state: State) -> None:
    """Refuse numbers with which an estimate would be doubled for ever, or sums would come to no number."""
    for name in BOUNDED:
        values = getattr(state, name)
        refuse_unless_all(
            f"state.{name}", values, np.abs(values) <= MAX_MAGNITUDE, f"at most {MAX_MAGNITUDE:g} either way"
        )
    refuse_unless_all("state.estimates_s", state.estimates_s, state.estimates_s > 0.0, "the sum of the estimates")
    job = np.arange(state.guess_s.shape[1])
    is_real = job < sim.scenarios.jobs[state.scenario][:, None]
    fits = (state.guess_s > 0.0) & (state.guess_s <= MAX_MAGNITUDE)
    refuse_unless_all("state.guess_s", state.guess_s, ~is_real | fits, f"above 0 and at most {MAX_MAGNITUDE:g}")
    ran, slowdown = (state.run_place >= 0) | (state.slowdown != 0.0), state.slowdown
    fits = (slowdown >= MIN_SLOWDOWN) & (slowdown <= MAX_SLOWDOWN)
    refuse_unless_all("state.slowdown", slowdown, ~ran | fits, f"{MIN_SLOWDOWN:g} to {MAX_SLOWDOWN:g}")


def _check_heap(state: State, heap_name: str, place_name: str, count: Ints, key: Floats) -> None:
    """Refuse a heap unless its places are those of its items, and keys rise on the way down and lie ahead."""
    heap, place = getattr(state, heap_name), getattr(state, place_name)
    at = np.arange(heap.shape[1])
    is_in = at < count[:, None]
    back = np.take_along_axis(place, heap, axis=1)
    refuse_unless_all(f"state.{heap_name}", heap, ~is_in | (back == at), f"an item whose {place_name} is this")
    _check_equal(place_name, (place >= 0).sum(axis=1), count)
    keys = np.where(is_in, np.take_along_axis(key, heap, axis=1), np.inf)
    above = np.where(at > 0, keys[:, (at - 1) // 2], state.now_s[:, None])
    refuse_unless_all(f"state.{heap_name}", heap, keys >= above, "an item that comes no earlier than those above it")


def _check_sources(sim: Simulation, state: State) -> None:
    """Refuse fault sources that hold other GPUs than the state has, or wait for outages that are not recorded."""
    is_in = state.source_place >= 0
    fits = np.isfinite(state.source_s) == is_in
    refuse_unless_all("state.source_s", state.source_s, fits, "a time if it stands in the heap, else none")
    outages = np.zeros(state.source_s.shape[1], dtype=np.int64)
    if sim.process.outage_first.size > 1:
        outages[:] = np.diff(sim.process.outage_first)
    is_recorded = sim.scenarios.source_rate_per_s[state.scenario] <= 0.0
    fits = state.source_k < outages + ~is_in
    refuse_unless_all("state.source_k", state.source_k, ~is_recorded | fits, "one of the recorded outages")
    node = sim.cluster.gpu_node
    failed = state.source_failed
    gpus, nodes = node.size, sim.cluster.node_rack.size
    of_gpu, of_node, of_rack = failed[:, :gpus], failed[:, gpus : gpus + nodes], failed[:, gpus + nodes :]
    pooled = ((state.spare == 1) | (state.kept_for >= 0)) & (state.gpu_job < 0) if state.spare.size else 0
    held_down = of_gpu + of_node[:, node] + of_rack[:, sim.cluster.node_rack[node]] + pooled
    _check_equal("gpu_down", state.gpu_down, held_down)


def _check_beliefs(sim: Simulation, state: State) -> None:
    """Refuse fault rates that policies cannot have come to know."""
    if not sim.rules.estimated_hazards:
        for name, begun in initial_beliefs(sim, state.scenario).items():
            _check_equal(name, getattr(state, name), begun)
        return
    for name in ("gpu_hazard_per_s", "node_hazard_per_s", "observed_faults", "observed_gpu_s"):
        values = getattr(state, name)
        refuse_unless_all(f"state.{name}", values, (values >= 0.0) & (values < np.inf), "a finite number, at least 0")
    for name, least in (("observed_s", 0.0), ("failed_s", -1.0)):
        values = getattr(state, name)
        fits = (values >= least) & (values <= state.now_s[:, None])
        refuse_unless_all(f"state.{name}", values, fits, f"{least:g} to the present")


def _list_of_each_item(row: NDArray[np.int64], at: Ints, following: Ints, length: Ints) -> NDArray[np.int64]:
    """Return the list that each item stands in, -1 for none, shape of `following`.

    Args:
        row: Row of each list.
        at: Its first item.
        following: The next item of each, shape (rows, items).
        length: Items of each list.

    Raises:
        ValueError: If a list is longer or shorter than its length.
    """
    found = np.full(following.shape, -1, dtype=np.int64)
    number = np.arange(row.size)
    step = 0
    while row.size:
        ends = length == step
        if ((at < 0) != ends).any():
            i = int(np.flatnonzero((at < 0) != ends)[0])
            raise ValueError(f"a list of row {row[i]} does not end after {length[i]} items")
        number, row, at, length = (each[~ends] for each in (number, row, at, length))
        found[row, at] = number
        at = following[row, at]
        step += 1
    return found


def _waiting_jobs(state: State) -> NDArray[np.bool_]:
    """Return which jobs the queue holds, shape (rows, jobs)."""
    rows = np.arange(state.head.size)
    try:
        waiting = _list_of_each_item(rows, state.head, state.next_job, state.queued) >= 0
    except ValueError as error:
        raise ValueError(f"state.next_job: {error}") from error
    before = np.full_like(state.previous_job, -1)
    row, job = np.nonzero(waiting)
    after = state.next_job[row, job]
    before[row[after >= 0], after[after >= 0]] = job[after >= 0]
    refuse_unless_all(
        "state.previous_job", state.previous_job, ~waiting | (state.previous_job == before), "the job before"
    )
    last = np.where(waiting & (state.next_job < 0), np.arange(waiting.shape[1]), -1).max(axis=1, initial=-1)
    _check_equal("tail", state.tail, last)
    return waiting


def _check_jobs(sim: Simulation, state: State, waiting: NDArray[np.bool_]) -> None:
    """Refuse jobs that wait and run, or do either before they are submitted, and one that is due and does not wait."""
    fits = state.submitted <= sim.scenarios.jobs[state.scenario]
    refuse_unless_all("state.submitted", state.submitted, fits, "at most the jobs of the scenario")
    runs = state.run_place >= 0
    job = np.arange(runs.shape[1])
    fits = ~(waiting & runs) & (~(waiting | runs) | (job < state.submitted[:, None]))
    refuse_unless_all("state.run_place", state.run_place, fits, "that of a job that was submitted and does not wait")
    _check_equal("finished", state.finished, state.submitted - state.queued - state.running)
    _check_equal("estimated", state.estimated, state.submitted)
    rows = np.arange(state.current.size)
    refuse_unless_all("state.current", state.current, waiting[rows, state.current], "a job of the queue")


def _check_switched_jobs(sim: Simulation, state: State) -> None:
    """Refuse jobs that switched without running, or have no GPU left, and a pool of another size."""
    runs, gpus = state.run_place >= 0, sim.scenarios.gpus[state.scenario]
    fits = (state.short == 0) | (runs & (state.short < gpus) & sim.rules.switching)
    refuse_unless_all("state.short", state.short, fits, "fewer than the job asks for, 0 if it does not run")
    _check_equal("shrunk", state.shrunk, (state.short > 0).sum(axis=1))
    for name in ("fresh_s", "fresh_gpu_s", "since_s"):
        values = getattr(state, name)
        refuse_unless_all(
            f"state.{name}", values, (values >= 0.0) & (runs | (values == 0.0)), "at least 0, 0 if it does not run"
        )
    for name in ("struck_s", "slowed_s"):
        since_s = getattr(state, name)
        fits = (since_s == -1.0) | (runs & (since_s >= 0.0) & (since_s <= state.now_s[:, None]))
        refuse_unless_all(f"state.{name}", since_s, fits, "-1, or up to the present for a job that runs")
    refuse_unless_all("state.pace_s", state.pace_s, state.pace_s >= state.now_s[:, None], "no time before the present")
    _check_relieved(sim, state)
    refuse_unless_all(
        "state.died", state.died, (state.died == 0) | (state.gpu_job >= 0), "0 for a GPU that no job holds"
    )
    spares = np.zeros_like(state.spare)
    if sim.rules.switching and sim.rules.spares > 0.0:
        mark_spares(sim.cluster.node_type, sim.cluster.first_gpu, sim.rules.spares, spares, 0)
        spares[:] = spares[0]
    of_type = sim.cluster.node_type[sim.cluster.gpu_node]
    for number in np.unique(of_type):
        these = of_type == number
        fits = state.spare[:, these].sum(axis=1) == spares[:, these].sum(axis=1)
        refuse_unless_all("state.spare", state.spare, fits[:, None], "the number of each type that the rules set")


def _check_relieved(sim: Simulation, state: State) -> None:
    """Refuse relieved GPUs that no running job keeps, or whose seat no GPU of that job has."""
    is_kept, job = state.kept_for >= 0, np.maximum(state.kept_for, 0)
    fits = ~is_kept | (np.take_along_axis(state.run_place, job, axis=1) >= 0) & (state.gpu_job < 0)
    refuse_unless_all("state.kept_for", state.kept_for, fits, "a running job, for a GPU that none holds")
    of, row = np.zeros_like(state.relieved_of), np.nonzero(is_kept)[0]
    np.add.at(of, (row, state.kept_for[is_kept]), 1)
    _check_equal("relieved_of", state.relieved_of, of)
    _check_equal("relieved", state.relieved, is_kept.sum(axis=1))
    holder = np.take_along_axis(state.gpu_job, np.maximum(state.backup_of, 0), axis=1)
    fits = np.where(is_kept, (state.backup_of >= 0) & (holder == job), state.backup_of == -1)
    refuse_unless_all("state.backup_of", state.backup_of, fits, "a GPU of the job that it is kept for, -1 if it is not")
    fits = (state.slowed_s >= 0.0) | (state.relieved_of == 0)
    refuse_unless_all("state.slowed_s", state.slowed_s, fits, "a time for a job with relieved GPUs")


def _check_gpus(sim: Simulation, state: State) -> None:
    """Refuse GPUs unless each job holds as many as it should, and all that is counted of them is right."""
    rows, gpus = np.arange(state.current.size), sim.scenarios.gpus[state.scenario]
    refuse_unless_all(
        "state.need", state.need, (state.need >= 1) & (state.need <= state.usable), "1 to the usable GPUs"
    )
    holds = np.where(state.run_place >= 0, gpus, 0)
    if state.short.size:
        holds -= state.short
    _check_equal("busy", state.busy, holds.sum(axis=1))
    holds[rows, state.current] = gpus[rows, state.current] - state.need
    refuse_unless_all("state.need", state.need, holds[rows, state.current] >= 0, "at most what the job asks for")
    row, job = np.indices(holds.shape).reshape(2, -1)
    try:
        held_by = _list_of_each_item(row, state.first_gpu.ravel(), state.gpu_next, holds.ravel())
    except ValueError as error:
        raise ValueError(f"state.gpu_next: {error}") from error
    _check_equal("gpu_job", state.gpu_job, np.where(held_by >= 0, job[held_by], -1))
    fits = (held_by >= 0).sum(axis=1) == holds.sum(axis=1)
    refuse_unless_all("state.first_gpu", state.first_gpu, fits[:, None], "no GPU that two jobs hold")
    first = sim.cluster.first_gpu[:-1]
    is_free = (state.gpu_job < 0) & (state.gpu_down == 0)
    is_picked = state.gpu_job == state.current[:, None]
    _check_usable(sim, state, np.add.reduceat(is_free, first, axis=1, dtype=np.int64))
    _check_equal("taken", state.taken, np.add.reduceat(is_picked, first, axis=1, dtype=np.int64))
    _check_equal("down", state.down, (state.gpu_down > 0).sum(axis=1))
    # A fault stops the job on a GPU, or strikes it; one that were picked all the same would be given back as free.
    fits = (state.gpu_down == 0) | (state.gpu_job < 0)
    if state.struck_s.size:
        fits |= np.take_along_axis(state.struck_s, np.maximum(state.gpu_job, 0), axis=1) >= 0.0
    refuse_unless_all("state.gpu_down", state.gpu_down, fits, "0 for a GPU that a job holds")
    _check_equal("picked_nodes", state.picked_nodes, (state.taken > 0).sum(axis=1))


def _check_usable(sim: Simulation, state: State, usable: NDArray[np.int64]) -> None:
    """Refuse counts of usable GPUs, by those of each node, and GPUs on nodes that do not suit their job."""
    suits, needs = sim.cluster.suits, sim.scenarios.needs[state.scenario]
    rows = np.arange(state.current.size)
    _check_equal("shown_class", state.shown_class, needs[rows, state.current])
    _check_equal("free", state.free, usable * suits[state.shown_class])
    _check_equal("usable", state.usable, state.free.sum(axis=1))
    kind = np.take_along_axis(needs, np.maximum(state.gpu_job, 0), axis=1)
    fits = (state.gpu_job < 0) | (suits[kind, sim.cluster.gpu_node] == 1)
    refuse_unless_all("state.gpu_job", state.gpu_job, fits, "a job that the node suits")
    if suits.shape[0] > 1:
        _check_equal("hidden", state.hidden, usable - state.free)
        _check_equal("class_usable", state.class_usable, usable @ suits.T)
        up = np.add.reduceat(state.gpu_down == 0, sim.cluster.first_gpu[:-1], axis=1, dtype=np.int64)
        _check_equal("class_in_service", state.class_in_service, up @ suits.T)


def _check_picks(sim: Simulation, state: State) -> None:
    """Refuse figures of the picks, from which their run time follows, unless they follow from the picks."""
    cluster, is_taken = sim.cluster, state.taken > 0
    slowest = {
        "speed": (sim.scenarios.speed[state.scenario], is_taken),
        "intra": (cluster.intra_bytes_per_s, state.taken > 1),
        "nic": (cluster.nic_bytes_per_s, is_taken),
        "uplink": (cluster.uplink_bytes_per_s[cluster.node_rack], is_taken),
    }
    for name, (values, counts) in slowest.items():
        expected = np.where(counts, values, np.inf).min(axis=1)
        _check_equal(f"picked_{name}", getattr(state, f"picked_{name}"), expected)
    racks = np.where(is_taken, cluster.node_rack, -1).max(axis=1)
    is_one = (~is_taken | (cluster.node_rack == racks[:, None])).all(axis=1)
    _check_equal("picked_rack", state.picked_rack, np.where(is_one, racks, SEVERAL_RACKS))
    is_picked = state.gpu_job == state.current[:, None]
    hazard = np.where(is_picked, state.gpu_hazard_per_s, 0.0).sum(axis=1)
    fits = np.isclose(state.picked_hazard, hazard, rtol=1e-9, atol=0.0)  # added up in the order of the picks
    refuse_unless_all("state.picked_hazard", state.picked_hazard, fits, "the sum over the picks")
