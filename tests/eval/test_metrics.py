"""What every metric must do."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.agents.heuristics import PACK
from longshore.cluster.model.outcome import Outcome, RunMetrics, metrics
from longshore.cluster.model.problem import Scenarios
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.eval.comparison import METRICS, Metric

SCENARIOS, JOBS, NODES, PADS = 6, 24, 4, 3
Change = Callable[[NDArray[np.generic]], NDArray[np.generic]]


def figures(change: Change = lambda values: values) -> RunMetrics:
    """Return the figures of a few small scenarios with faults, run under `pack`, from changed arrays of their runs."""
    problem = hetero64(SCENARIOS, 0, nodes=NODES, jobs=JOBS)
    sim = simulation_of(problem, rows=SCENARIOS)
    PACK.run(sim, np.arange(SCENARIOS))
    ended = Outcome(*map(change, outcome_of(sim)))  # type: ignore[arg-type]
    drawn = Scenarios(*map(change, problem.scenarios))  # type: ignore[arg-type]
    return metrics(ended, drawn.jobs, drawn.gpus, drawn.submit_s, problem.cluster.gpu_node.size, drawn.work_s)


def padded(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Add a few columns, as if the workload of another scenario had more jobs."""
    is_by_job = values.ndim == 2 and values.shape[1] == JOBS
    return np.pad(values, ((0, 0), (0, PADS))) if is_by_job else values


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_a_finite_number_for_each_scenario_that_depends_on_that_scenario_alone(metric: Metric) -> None:
    values = metric.values(figures())
    assert values.dtype == np.float64
    assert values.shape == (SCENARIOS,)
    assert np.isfinite(values).all()
    alone = [metric.values(figures(lambda it, row=row: it[row : row + 1])) for row in range(SCENARIOS)]  # type: ignore[misc]
    assert np.allclose(np.concatenate(alone), values, rtol=1e-9, atol=0.0)
    assert np.allclose(metric.values(figures(padded)), values, rtol=1e-9, atol=0.0)
