"""What is told about an episode when it ends."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.model.outcome import metrics
from ..cluster.simulator.simulation import outcome_of
from .batch import Batch


def episode_summaries(batch: Batch, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the metrics of rows that have just ended, in the form that Stable-Baselines3's monitors use.

    `r` is the return (the sum of the rewards, in units of the scenario's ideal time), `l` the steps, `decisions` the
    placements and waits; the others are in seconds, GPU-seconds and counts. Where the episode was cut off, `finished`
    is less than the jobs, `makespan_s` the time of the last event, and figures of completion times are not a number.

    Args:
        batch: The environments.
        rows: Those that ended, shape (some,).
    """
    run = batch.sim.state.scenario[rows]
    scenarios, gpus = batch.problem.scenarios, batch.problem.cluster.gpu_node.size
    outcome = outcome_of(batch.sim, rows)
    figures = metrics(
        outcome, scenarios.jobs[run], scenarios.gpus[run], scenarios.submit_s[run], gpus, scenarios.work_s[run]
    )
    unfinished = batch.cut_off()[rows]
    for jct_s in (figures.mean_jct_s, figures.p99_jct_s):
        jct_s[unfinished] = np.nan
    columns = {
        "r": batch.returns(rows),
        "l": batch.steps[rows],
        "scenario": run,
        "decisions": outcome.decisions,
        "finished": outcome.finished,
        **figures._asdict(),
    }
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]
