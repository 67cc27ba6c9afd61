"""What every fault model must do (longshore.cluster.faults.configuration)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from ..cluster.faults.configuration import FaultConfiguration, FaultDraw, FaultModel
from ..cluster.model.scenarios import FaultProcess, fault_sources
from ..cluster.model.topology import Cluster, grid_cluster
from ..cluster.state.border import sound_process

CLUSTERS = (grid_cluster(1, 1), grid_cluster(6, 4, nodes_per_rack=4))  # one GPU; two racks, of 4 and of 2 nodes
SEEDS = (0, 5, 2**31 - 1)


def check_fault_model(model: FaultModel, parameters: Mapping[str, object] | None = None) -> None:
    """Check a fault model, on a single GPU and on two uneven racks.

    Its configuration must take the parameters and refuse a key that it does not know. What it builds must be one
    finite rate of 0 or more for each GPU, node and rack, and a sound process. It must be a pure function: the same
    arguments give the same faults, and stay as they are.

    Args:
        model: What is registered.
        parameters: The `faults` section of a cluster file without `model`; none if left out.

    Raises:
        AssertionError: Saying what is broken.
    """
    assert isinstance(model, FaultModel), f"it is {type(model).__name__}, not a FaultModel"
    configuration = _configuration(model, dict(parameters or {}))
    for cluster in CLUSTERS:
        for seed in SEEDS:
            _check_draw(model, cluster, configuration, seed)


def _configuration(model: FaultModel, parameters: dict[str, object]) -> FaultConfiguration:
    kind = model.configuration
    assert issubclass(kind, FaultConfiguration), f"{kind.__name__} is no FaultConfiguration"
    section = {"model": "checked", **parameters}
    assert not _takes(kind, {**section, "no_such_key": 1}), f"{kind.__name__} passes a misspelt key over"
    try:
        return kind.model_validate(section)
    except ValidationError as error:
        raise AssertionError(f"{kind.__name__} refuses the parameters: {error}") from error


def _takes(kind: type[BaseModel], section: Mapping[str, object]) -> bool:
    try:
        kind.model_validate(section)
    except ValidationError:
        return False
    return True


def _check_draw(model: FaultModel, cluster: Cluster, configuration: FaultConfiguration, seed: int) -> None:
    hazard_per_s = np.linspace(1e-6, 3e-6, cluster.gpu_node.size)
    given = hazard_per_s.copy()
    rates, process = _drawn(model.build(cluster, given, configuration, seed))
    assert np.array_equal(given, hazard_per_s), "it changes the hazards that it is given"
    assert rates.dtype == np.float64, f"the rates are {rates.dtype}, not float64"
    assert rates.shape == (fault_sources(cluster),), f"the rates have shape {rates.shape}, not (GPUs + nodes + racks,)"
    assert (np.isfinite(rates) & (rates >= 0.0)).all(), "a rate is below 0 or not finite"
    first = process.outage_first
    assert not first.any() or first.size == rates.size + 1, f"outage_first has {first.size} entries, not sources + 1"
    try:
        sound_process(process)
    except ValueError as error:
        raise AssertionError(f"the process is not sound: {error}") from error
    again, process_again = model.build(cluster, hazard_per_s, configuration, seed)
    assert np.array_equal(rates, again), "the same seed gives other faults"
    told, told_again = ([np.asarray(part).tolist() for part in one] for one in (process, process_again))
    assert told == told_again, "the same seed gives another process"


def _drawn(draw: Any) -> FaultDraw:
    is_pair = isinstance(draw, tuple) and len(draw) == 2
    assert is_pair, "`build` does not give (rates, process)"
    rates, process = draw
    assert isinstance(rates, np.ndarray), f"the rates are {type(rates).__name__}, not an array"
    assert isinstance(process, FaultProcess), f"the process is {type(process).__name__}, not a FaultProcess"
    return rates, process
