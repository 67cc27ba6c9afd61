"""What a live cluster does that a simulated one does not: withdraw and move jobs, and take over what runs already."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from ..kernels.structures import push
from ..model.problem import EVERY_JOB, LINED, PER_JOB, PLANNED, FaultProcess, Problem, Rules, Scenarios, fault_sources
from ..model.topology import Cluster
from ..queue.expected import note_run_start
from ..queue.index import forget_index
from ..queue.turns import enter_line, leave_line, line_of, reposition_line
from ..state.holding import add_usable_gpus
from ..state.state import Simulation, has_turns
from .jobs import dequeue, enqueue_first, enqueue_last, link_in_queue
from .simulation import simulation_of


def empty_simulation(
    cluster: Cluster, rules: Rules, process: FaultProcess, hazard_per_s: NDArray[np.float64], room: int,
    *, has_plans: bool = False,
) -> Simulation:  # fmt: skip
    """Return a simulation of one row with room for `room` jobs, none of them written.

    Args:
        cluster: The cluster.
        rules: Its rules.
        process: Of imagined faults.
        hazard_per_s: Of each GPU as policies know it, shape (gpus,).
        room: Most jobs.
        has_plans: Whether any of them may have a plan.
    """
    rates = np.zeros((1, fault_sources(cluster)))
    rates[0, : hazard_per_s.size] = hazard_per_s
    figures: dict[str, Any] = {name: np.zeros((1, room)) for name in PER_JOB if name not in ("gpus", "rank", "needs")}
    if has_plans:
        figures |= {name: np.zeros((1, room), dtype) for name, dtype in PLANNED.items()}
    if rules.turns:
        figures |= {name: np.zeros((1, room), dtype) for name, dtype in LINED.items()}
    scenarios = Scenarios(
        jobs=np.zeros(1, dtype=np.int32),
        gpus=np.zeros((1, room), dtype=np.int32),
        **figures,
        rank=np.zeros((1, room), dtype=np.int64),
        needs=np.zeros((1, room), dtype=np.int32),
        speed=cluster.speed[None].copy(),
        hazard_per_s=hazard_per_s[None].copy(),
        source_rate_per_s=rates,
        fault_seed=np.zeros(1, dtype=np.int64),
    )
    return simulation_of(Problem(cluster, scenarios, process, rules), index_from=EVERY_JOB)


@kernel
def withdraw(sim: Simulation, row: int, job: int) -> None:
    """Take a waiting job out of the queue for good."""
    dequeue(sim, row, job)
    sim.state.finish_s[row, job] = sim.state.now_s[row]
    sim.state.finished[row] += 1


@kernel
def move_to_rank_place(sim: Simulation, row: int, job: int) -> None:
    """Move a waiting job that stands first or last to its place: behind all of a lower rank, before all of a higher.

    Among equals it stays on the side from which it came. The queue but for this job must be in that order.
    """
    state, rank = sim.state, sim.scenarios.rank[sim.state.scenario[row]]
    if state.head[row] == job and state.tail[row] != job:
        after = state.next_job[row, job]
        while after >= 0 and rank[after] < rank[job]:
            after = state.next_job[row, after]
        put_job_before(sim, row, job, after)
    elif state.tail[row] == job:
        before = state.previous_job[row, job]
        while before >= 0 and rank[before] > rank[job]:
            before = state.previous_job[row, before]
        put_job_before(sim, row, job, state.head[row] if before < 0 else state.next_job[row, before])


@kernel
def put_job_before(sim: Simulation, row: int, job: int, after: int) -> None:
    """Put a waiting job before another, -1 for the end of the queue; nothing else about its stay changes."""
    state = sim.state
    if after == job or state.next_job[row, job] == after:
        return
    forget_index(sim, row)
    link_in_queue(sim, row, state.previous_job[row, job], state.next_job[row, job])
    before = state.tail[row] if after < 0 else state.previous_job[row, after]
    link_in_queue(sim, row, before, job)
    link_in_queue(sim, row, job, after)


@kernel
def move_to_line(sim: Simulation, row: int, job: int, line: int, rank: int) -> None:
    """Let a job be of another line and rank; one that waits keeps its place in the queue."""
    state, scenario = sim.state, sim.state.scenario[row]
    waits = state.run_place[row, job] < 0
    if waits:
        leave_line(sim, row, job)
    sim.scenarios.line[scenario, job], sim.scenarios.rank[scenario, job] = line, rank
    if waits:
        enter_line(sim, row, job, _next_job_of_line(sim, row, job))


@kernel
def _next_job_of_line(sim: Simulation, row: int, job: int) -> int:
    """Return the next job of the queue behind a waiting one that is of its line, -1 if there is none."""
    state, line = sim.state, line_of(sim, row, job)
    after = state.next_job[row, job]
    while after >= 0 and line_of(sim, row, after) != line:
        after = state.next_job[row, after]
    return int(after)


@kernel
def reinsert_in_line(sim: Simulation, row: int, job: int) -> None:
    """Let a waiting job stand in its line as it does in the queue."""
    if has_turns(sim):
        leave_line(sim, row, job)
        enter_line(sim, row, job, _next_job_of_line(sim, row, job))


@kernel
def resume_run(sim: Simulation, row: int, job: int, gpus: NDArray[np.int32]) -> None:
    """Let a job of no queue run that has run since before the simulation knew of it; its times stand in the state.

    Its GPUs come in the order of their picks; they are free, though they may be out of service.
    """
    state = sim.state
    state.first_gpu[row, job] = -1
    for gpu in gpus:
        state.gpu_job[row, gpu] = job
        state.gpu_next[row, gpu] = state.first_gpu[row, job]
        state.first_gpu[row, job] = gpu
        if state.gpu_down[row, gpu] == 0:
            add_usable_gpus(sim, row, sim.cluster.gpu_node[gpu], -1)
    state.busy[row] += gpus.size
    if gpus.size != sim.scenarios.gpus[state.scenario[row], job]:
        state.resized[row] = 1
    push(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_run_start(sim, row, job)


@kernel
def requeue_last(sim: Simulation, row: int, job: int, entered_s: float) -> None:
    """Put a job at the end of the queue that has stood there since a time before the simulation knew of it."""
    enqueue_last(sim, row, job)
    count_stay_from(sim, row, job, entered_s)


@kernel
def requeue_first(sim: Simulation, row: int, job: int, entered_s: float) -> None:
    """Put a job at the head of the queue whose stay counts from a time before."""
    enqueue_first(sim, row, job)
    count_stay_from(sim, row, job, entered_s)


@kernel
def count_stay_from(sim: Simulation, row: int, job: int, entered_s: float) -> None:
    """Let the stay of a waiting job in the queue count from a time before."""
    state = sim.state
    forget_index(sim, row)
    state.entered_s[row, job] = entered_s
    state.queued_s[row, job] = entered_s - state.wait_s[row, job]
    if has_turns(sim):
        reposition_line(sim, row, line_of(sim, row, job), 1)
