"""Simulations as Python sees them: made from scenarios, and read out when they have ended."""

import numpy as np
from numpy.typing import NDArray

from ..dispatch.orders.table import order_of
from ..model.outcome import Outcome
from ..model.problem import Problem
from ..model.scenarios import EVERY_JOB
from ..state.border import sound_cluster, sound_process, sound_rules, sound_scenarios
from ..state.state import INDEX_FROM, Log, Simulation, State, allocate_log, allocate_state, holds_on_by, traits_of


def simulation_of(
    problem: Problem,
    *,
    rows: int = 1,
    log: Log | None = None,
    index_from: int = INDEX_FROM,
) -> Simulation:
    """Return a simulation of clusters side by side, none of them reset: the one checked way into the kernels.

    Args:
        problem: The cluster that all rows share, what they can run on it, its faults and rules.
        rows: Clusters that are run side by side.
        log: Where the events of row 0 go; nowhere if left out.
        index_from: Length of a queue from which it has an index, more than any queue for never. It changes no result.

    Raises:
        PluginError: If the order regime cannot be used.
        ValueError: If anything could not be run (cluster/state/border.py), such as a job that asks more GPUs than
            the cluster has; naming the field.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}, expected at least 1")
    cluster, rules = sound_cluster(problem.cluster), sound_rules(problem.rules)
    scenarios = sound_scenarios(problem.scenarios, cluster, spares=rules.spares if rules.switching else 0.0)
    rules = rules._replace(turns=rules.turns and scenarios.line.size > 0)
    return Simulation(
        cluster=cluster,
        scenarios=scenarios,
        traits=traits_of(cluster, scenarios),
        process=sound_process(problem.process),
        rules=rules,
        state=allocate_state(
            cluster,
            scenarios,
            rows,
            index_from if order_of(rules.order).passes else EVERY_JOB,
            holding=holds_on_by(rules),
            turns=rules.turns,
        ),
        log=log or allocate_log(0, 0),
    )


def outcome_of(sim: Simulation, rows: NDArray[np.int64] | slice = slice(None)) -> Outcome:
    """Return copies of what rows have done so far."""
    state = sim.state
    return Outcome(
        finish_s=state.finish_s[rows].copy(),
        first_start_s=state.first_start_s[rows].copy(),
        stops=state.stops[rows].copy(),
        lost_s=state.lost_s[rows].copy(),
        wait_s=_waits_s(state, rows),
        makespan_s=state.now_s[rows].copy(),
        busy_gpu_s=state.busy_gpu_s[rows].copy(),
        down_gpu_s=state.down_gpu_s[rows].copy(),
        overhead_gpu_s=state.overhead_gpu_s[rows].copy(),
        finished=state.finished[rows].copy(),
        job_events=state.job_events[rows].copy(),
        decisions=state.decisions[rows].copy(),
        switches=state.switches[rows].copy(),
        slowed=state.slowed[rows].copy(),
        backups=state.backups[rows].copy(),
        backup_gpu_s=state.backup_gpu_s[rows].copy(),
    )


def _waits_s(state: State, rows: NDArray[np.int64] | slice) -> NDArray[np.float64]:
    """Return how long each job has been in the queue, shape (some rows, jobs); stays that last count until now."""
    submitted = np.arange(state.wait_s.shape[1]) < state.submitted[rows][:, None]
    stays = submitted & (state.run_place[rows] < 0) & (state.finish_s[rows] == 0.0)
    lasting_s = np.where(stays, state.now_s[rows][:, None] - state.entered_s[rows], 0.0)
    waits_s: NDArray[np.float64] = state.wait_s[rows] + lasting_s
    return waits_s
