"""Simulations as Python sees them: made from checked scenarios, and read out."""

import numpy as np
from numpy.typing import NDArray

from ..model.outcome import Outcome
from ..model.problem import EVERY_JOB, Problem, lets_jobs_pass
from ..state.border import checked_cluster, checked_process, checked_rules, checked_scenarios
from ..state.state import INDEX_FROM, Log, Simulation, allocate_log, allocate_state, may_keep_gpus_by_rules, traits_of


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
        log: Where the events of row 0 go; nowhere if None.
        index_from: Length of a queue from which it has an index, more than any queue for never. It changes no result.

    Raises:
        ValueError: If anything could not be run (cluster/state/border.py), such as a job that asks more GPUs than
            the cluster has; naming the field.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}, expected at least 1")
    cluster, rules = checked_cluster(problem.cluster), checked_rules(problem.rules)
    scenarios = checked_scenarios(problem.scenarios, cluster, spares=rules.spares if rules.switching else 0.0)
    rules = rules._replace(turns=rules.turns and scenarios.line.size > 0)
    return Simulation(
        cluster=cluster,
        scenarios=scenarios,
        traits=traits_of(cluster, scenarios),
        process=checked_process(problem.process),
        rules=rules,
        state=allocate_state(
            cluster,
            scenarios,
            rows,
            index_from if lets_jobs_pass(rules.order) else EVERY_JOB,
            holding=may_keep_gpus_by_rules(rules),
            turns=rules.turns,
        ),
        log=log or allocate_log(0, 0),
    )


def outcome_of(sim: Simulation, rows: NDArray[np.int64] | slice = slice(None)) -> Outcome:
    """Return copies of what rows have done so far; stays in the queue that last count until now."""
    state = sim.state
    submitted = np.arange(state.wait_s.shape[1]) < state.submitted[rows][:, None]
    stays = submitted & (state.run_place[rows] < 0) & (state.finish_s[rows] == 0.0)
    lasting_s = np.where(stays, state.now_s[rows][:, None] - state.entered_s[rows], 0.0)
    return Outcome(
        **{name: getattr(state, name)[rows].copy() for name in Outcome._fields if name not in ("wait_s", "makespan_s")},
        wait_s=state.wait_s[rows] + lasting_s,
        makespan_s=state.now_s[rows].copy(),
    )
