"""What every metric must do (longshore.eval.metrics)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..agents.heuristics import PACK
from ..cluster.model.outcome import Outcome
from ..cluster.model.problem import Scenarios
from ..cluster.presets.drawn import hetero64
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..eval.metrics import Metric, Result, result_of

SCENARIOS, JOBS, NODES, PADS = 6, 24, 4, 3


def check_metric(metric: Metric) -> None:
    """Check a metric on a few small scenarios with faults, run under `pack`.

    Its values must be one finite number for each scenario. The number of a scenario must hang on that scenario alone:
    neither on those beside it, nor on the columns that only pad a table. What it is given must stay as it is.

    Args:
        metric: What is registered.

    Raises:
        AssertionError: Saying what is broken.
    """
    assert isinstance(metric, Metric), f"it is {type(metric).__name__}, not a Metric"
    _check_words(metric)
    outcome, scenarios, gpus = _ended()
    before = _bytes_of(outcome, scenarios)
    values = metric.values(result_of(outcome, scenarios, gpus))
    assert _bytes_of(outcome, scenarios) == before, "it changes what it is given"
    assert isinstance(values, np.ndarray), f"`values` gave {type(values).__name__}, not an array"
    assert values.dtype == np.float64, f"the values are {values.dtype}, not float64"
    assert values.shape == (SCENARIOS,), f"the values have shape {values.shape}, not (scenarios,)"
    assert np.isfinite(values).all(), "a value is not finite"
    one_by_one = [metric.values(_rows(outcome, scenarios, gpus, row)) for row in range(SCENARIOS)]
    assert _same(np.concatenate(one_by_one), values), "a scenario's value changes with the scenarios beside it"
    assert _same(metric.values(_padded(outcome, scenarios, gpus)), values), "columns that only pad change the values"


def _check_words(metric: Metric) -> None:
    for part in (metric.name, metric.title, metric.meaning):
        assert part, "its name, its title or its meaning is empty"
        assert "\n" not in part, f"{part!r} has more than one line"
    assert metric.quantity in ("time", "GPU-time", "share", "count"), f"its quantity is {metric.quantity!r}"
    assert metric.better in ("lower", "higher"), f"better is {metric.better!r}, not lower or higher"


def _ended() -> tuple[Outcome, Scenarios, int]:
    problem = hetero64(SCENARIOS, 0, nodes=NODES, jobs=JOBS)
    sim = simulation_of(problem, rows=SCENARIOS)
    PACK.run(sim, np.arange(SCENARIOS))
    return outcome_of(sim), problem.scenarios, problem.cluster.gpu_node.size


def _bytes_of(*parts: tuple[NDArray[np.generic], ...]) -> list[bytes]:
    return [values.tobytes() for part in parts for values in part]


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-9, atol=0.0)


def _changed(
    outcome: Outcome, scenarios: Scenarios, gpus: int, change: Callable[[NDArray[np.generic]], NDArray[np.generic]]
) -> Result:
    return result_of(Outcome(*map(change, outcome)), Scenarios(*map(change, scenarios)), gpus)  # type: ignore[arg-type]


def _rows(outcome: Outcome, scenarios: Scenarios, gpus: int, row: int) -> Result:
    """Return the result of one scenario alone."""
    return _changed(outcome, scenarios, gpus, lambda values: values[row : row + 1])


def _padded(outcome: Outcome, scenarios: Scenarios, gpus: int) -> Result:
    """Return the result with a few columns more, as if a workload of another scenario had more jobs."""

    def pad(values: NDArray[np.generic]) -> NDArray[np.generic]:
        is_by_job = values.ndim == 2 and values.shape[1] == JOBS
        return np.pad(values, ((0, 0), (0, PADS))) if is_by_job else values

    return _changed(outcome, scenarios, gpus, pad)
