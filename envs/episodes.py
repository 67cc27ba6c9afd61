"""What is told about an episode when it ends."""

from typing import Any

from ..cluster.outcome import metrics
from ..cluster.simulation import outcome_of
from .batch import Batch


def episode_summary(batch: Batch, row: int) -> dict[str, Any]:
    """Return the metrics of a row that has just ended, in the form that Stable-Baselines3's monitors use.

    `r` is the return in units of the ideal time, `l` the decisions, and the others are in seconds, GPU-seconds and
    counts.
    """
    scenario = int(batch.sim.state.scenario[row])
    scenarios = batch.problem.scenarios
    outcome = outcome_of(batch.sim, slice(row, row + 1))
    jobs = slice(scenario, scenario + 1)
    gpus = batch.problem.cluster.gpu_node.size
    figures = metrics(outcome, scenarios.jobs[jobs], scenarios.gpus[jobs], scenarios.submit_s[jobs], gpus)
    return {
        "r": -float(outcome.makespan_s[0] / batch.units.ideal_s[scenario]),
        "l": int(outcome.decisions[0]),
        "scenario": scenario,
        **{name: float(values[0]) for name, values in figures._asdict().items()},
    }
