"""The border of the kernels: what may enter them. Inside, nothing is checked again.

Values that no simulation could be run with would not end in an error there, but hang a kernel or write where it must
not. Everything here is checked once for a simulation or a call that runs one, never for an event.
"""

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..model.problem import MOST_RESTART_S, MOST_SLOW_FACTOR, ORDERS, PER_JOB, PLANNED, FaultProcess, Rules, Scenarios
from ..model.topology import Cluster
from .holding import startable_gpus
from .state import FieldType, Simulation, declared_fields

Part = TypeVar("Part", bound=tuple[Any, ...])
Values = NDArray[np.float64]


def with_declared_types(values: Part) -> Part:
    """Return a named tuple whose fields have the types of its annotations, arrays contiguous.

    What has them already is not copied.

    Raises:
        ValueError: If that would change a value.
    """
    fields = declared_fields(type(values))
    return type(values)(*(_with_declared_type(field, value) for field, value in zip(fields, values, strict=True)))


def _with_declared_type(field: FieldType, value: Any) -> Any:
    name, kind, dtype, _ = field
    if np.asarray(value).dtype.kind not in "biuf":
        raise ValueError(f"{name} is {_shortened(value)}, expected numbers")
    try:
        found = kind(value) if dtype is None else np.ascontiguousarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {_shortened(value)}: {_shortened(error)}") from error
    if not np.array_equal(found, value, equal_nan=dtype is None or dtype.kind == "f"):
        raise ValueError(f"{name} holds values that {dtype or kind.__name__} cannot: {_shortened(value)}")
    return found


def _shortened(value: object) -> str:
    return " ".join(repr(value).split())[:80]


def refuse_unless_all(name: str, values: NDArray[Any], fits: NDArray[np.bool_], expected: str) -> None:
    """Refuse values unless all of them fit, with the place of the first that does not.

    Raises:
        ValueError: If one does not fit.
    """
    wrong = np.argwhere(~fits)
    if wrong.size:
        place = tuple(int(i) for i in wrong[0])
        raise ValueError(f"{name}[{', '.join(map(str, place))}] is {values[place]:g}, expected {expected}")


def _check_above_0(name: str, values: Values, is_checked: NDArray[np.bool_] | bool = True) -> None:  # noqa: FBT001, FBT002
    refuse_unless_all(
        name, values, ~np.asarray(is_checked) | ((values > 0.0) & (values < math.inf)), "a finite number above 0"
    )


def _check_not_below_0(name: str, values: Values, is_checked: NDArray[np.bool_] | bool = True) -> None:  # noqa: FBT001, FBT002
    refuse_unless_all(
        name, values, ~np.asarray(is_checked) | ((values >= 0.0) & (values < math.inf)), "a finite number, at least 0"
    )


def checked_cluster(cluster: Cluster) -> Cluster:
    """Return a cluster that kernels can read.

    Raises:
        ValueError: If GPUs, nodes and racks do not go together, or a speed or bandwidth is not above 0.
    """
    cluster = with_declared_types(cluster)
    _check_bounds("gpu_node", cluster.gpu_node, "first_gpu", cluster.first_gpu)
    _check_bounds("node_rack", cluster.node_rack, "first_node", cluster.first_node)
    _check_above_0("speed", cluster.speed)
    for name in ("intra_bytes_per_s", "nic_bytes_per_s", "uplink_bytes_per_s"):
        refuse_unless_all(name, getattr(cluster, name), getattr(cluster, name) > 0.0, "a bandwidth above 0")
    _check_suits(cluster.suits, cluster.speed.size)
    return cluster


def _check_suits(suits: NDArray[np.int32], nodes: int) -> None:
    if suits.ndim != 2 or suits.shape[0] < 1 or suits.shape[1] != nodes:
        raise ValueError(f"suits has shape {suits.shape}, expected at least one class and {nodes} nodes")
    refuse_unless_all("suits", suits, (suits == 0) | (suits == 1), "0 or 1")
    refuse_unless_all("suits", suits[:1], suits[:1] == 1, "1, for class 0 takes every node")


def _check_bounds(of: str, whole: NDArray[np.int32], name: str, first: NDArray[np.int32]) -> None:
    """Refuse wholes that are not the numbers of parts which `first` bounds and of which each has a member."""
    sizes = np.diff(first)
    if whole.ndim != 1 or first.ndim != 1 or whole.size == 0 or (*first[:1], *first[-1:]) != (0, whole.size):
        raise ValueError(f"{name} runs from {first[:1]} to {first[-1:]}, expected from 0 to the {whole.size} of {of}")
    if (sizes < 1).any() or not np.array_equal(whole, np.repeat(np.arange(sizes.size), sizes)):
        raise ValueError(f"{of} does not follow from {name}: {whole[:8]} and {first[:8]}")


def checked_scenarios(scenarios: Scenarios, cluster: Cluster, *, spares: float = 0.0) -> Scenarios:
    """Return scenarios that can be run on a cluster; padded jobs may be anything.

    Args:
        scenarios: The scenarios.
        cluster: The cluster.
        spares: Share of each node type's GPUs on which no job may start.

    Raises:
        ValueError: Naming the first value that could not.
    """
    scenarios = with_declared_types(scenarios)
    if scenarios.jobs.ndim != 1 or scenarios.gpus.ndim != 2:
        shapes = f"{scenarios.jobs.shape} and {scenarios.gpus.shape}"
        raise ValueError(f"jobs and gpus have shapes {shapes}, expected one axis and two")
    room = scenarios.gpus.shape[1]
    refuse_unless_all("jobs", scenarios.jobs, (scenarios.jobs >= 0) & (scenarios.jobs <= room), f"0 to {room}")
    real = np.arange(room) < scenarios.jobs[:, None]
    for name in PER_JOB:
        if getattr(scenarios, name).shape != real.shape:
            raise ValueError(f"{name} has shape {getattr(scenarios, name).shape}, expected {real.shape}")
    refuse_unless_all("gpus", scenarios.gpus, ~real | (scenarios.gpus > 0), "at least 1")
    classes = cluster.suits.shape[0]
    refuse_unless_all(
        "needs", scenarios.needs, (scenarios.needs >= 0) & (scenarios.needs < classes), f"0 to {classes - 1}"
    )
    _check_jobs_fit(scenarios, cluster, spares, real)
    for name in ("work_s", "estimate_s", "compute_s"):
        _check_above_0(name, getattr(scenarios, name), real)
    for name in ("submit_s", "parameter_bytes"):
        _check_not_below_0(name, getattr(scenarios, name), real)
    scenarios = _checked_lines(_checked_plans(scenarios))
    later = scenarios.submit_s[:, 1:] >= scenarios.submit_s[:, :-1]
    refuse_unless_all(
        "submit_s", scenarios.submit_s[:, 1:], ~real[:, 1:] | later, "no time before that of the job before"
    )
    _check_above_0("speed", scenarios.speed)
    for name in ("hazard_per_s", "source_rate_per_s"):
        _check_not_below_0(name, getattr(scenarios, name))
    return scenarios


def _checked_plans(scenarios: Scenarios) -> Scenarios:
    """Return scenarios with plans of all jobs or of none, in as many rows as there are scenarios.

    Raises:
        ValueError: Naming the first value that could not be run.
    """
    rows, room = scenarios.gpus.shape
    found = {name: getattr(scenarios, name) for name in PLANNED}
    if not any(array.size for array in found.values()):
        return scenarios._replace(**{name: array.reshape(rows, 0) for name, array in found.items()})
    for name, array in found.items():
        if array.shape != (rows, room):
            raise ValueError(f"{name} has shape {array.shape}, expected {(rows, room)}")
    planned = scenarios.pipeline != 0
    for name in ("pipeline", "tensor"):
        refuse_unless_all(name, found[name], ~planned | (found[name] > 0), "at least 1")
    stages = np.where(planned, scenarios.pipeline * scenarios.tensor.astype(np.int64), 1)
    refuse_unless_all("pipeline", scenarios.pipeline, scenarios.gpus % stages == 0, "to divide the GPUs, times tensor")
    for name in ("fixed_s", "edge_bytes", "tensor_bytes"):
        _check_not_below_0(name, found[name], planned)
    return scenarios


def _checked_lines(scenarios: Scenarios) -> Scenarios:
    """Return scenarios with lines of all jobs or of none, in as many rows as there are scenarios.

    Raises:
        ValueError: If there is no such line, or it has jobs of several ranks.
    """
    rows, room = scenarios.gpus.shape
    line = scenarios.line
    if not line.size:
        return scenarios._replace(line=line.reshape(rows, 0))
    if line.shape != (rows, room):
        raise ValueError(f"line has shape {line.shape}, expected {(rows, room)}")
    refuse_unless_all("line", line, (line >= 0) & (line < room), f"0 to {room - 1}")
    real = np.arange(room) < scenarios.jobs[:, None]
    lowest = np.full((rows, room), np.iinfo(np.int64).max)
    at = np.nonzero(real)[0], line[real]
    np.minimum.at(lowest, at, scenarios.rank[real])
    fits = ~real | (scenarios.rank == np.take_along_axis(lowest, line, axis=1))
    refuse_unless_all("line", line, fits, "one whose jobs are all of one rank")
    return scenarios


def _check_jobs_fit(scenarios: Scenarios, cluster: Cluster, spares: float, real: NDArray[np.bool_]) -> None:
    """Refuse a job that asks for more GPUs than the nodes that suit it have besides spares."""
    needed = np.where(real, scenarios.gpus, 0)
    room = (cluster.suits @ startable_gpus(cluster, spares))[scenarios.needs]
    if (needed > room).any():
        at = np.unravel_index(np.argmax(needed - room), needed.shape)
        suiting = "a cluster that has" if scenarios.needs[at] == 0 else "nodes that suit it, which have"
        besides = " besides its spares" if spares > 0.0 else ""
        raise ValueError(f"a job asks {needed[at]} GPUs of {suiting} {room[at]}{besides}")


def checked_process(process: FaultProcess) -> FaultProcess:
    """Return a fault process that can be run.

    Raises:
        ValueError: If a number lies outside its range, or outages are not in order.
    """
    process = with_declared_types(process)
    _check_above_0("shape", np.array([process.shape]))
    for name in ("repair_mean_s", "repair_sigma"):
        _check_not_below_0(name, np.array([getattr(process, name)]))
    if not 0.0 <= process.transient_probability <= 1.0:
        raise ValueError(f"transient_probability is {process.transient_probability}, expected 0 to 1")
    first, start_s, end_s = process.outage_first, process.outage_start_s, process.outage_end_s
    if first.size == 0 or first[0] != 0 or first[-1] > start_s.size or (np.diff(first) < 0).any():
        raise ValueError(
            f"outage_first is {_shortened(first)}, expected to rise from 0 to at most {start_s.size} outages"
        )
    if end_s.shape != start_s.shape:
        raise ValueError(f"outage_end_s has shape {end_s.shape}, expected {start_s.shape}")
    _check_not_below_0("outage_start_s", start_s)
    refuse_unless_all("outage_end_s", end_s, end_s >= start_s, "no time before the start")
    follows = np.ones(start_s.size, dtype=np.bool_)
    follows[1:] = start_s[1:] >= end_s[:-1]
    follows[first[first < start_s.size]] = True  # the first outage of each source
    follows[first[-1] :] = True  # of no source
    refuse_unless_all("outage_start_s", start_s, follows, "no time before the end of the outage before")
    return process


_RANGES = {  # least and most
    "node_penalty": (0.0, 1e300), "reference_gpus": (1, math.inf), "reference_intra_bytes_per_s": (0.0, math.inf),
    "reference_nic_bytes_per_s": (0.0, math.inf), "checkpoint_s": (0.0, math.inf), "restart_s": (0.0, MOST_RESTART_S),
    "order": (0, len(ORDERS) - 1), "ageing_s": (0.0, math.inf), "limit_s": (-math.inf, math.inf),
    "backfill_depth": (0, math.inf), "preflight_s": (0.0, MOST_RESTART_S), "detection_s": (0.0, MOST_RESTART_S),
    "switch_s": (0.0, MOST_RESTART_S), "spares": (0.0, 1.0), "replacement": (0, 1), "slow_per_s": (0.0, 1.0),
    "slow_factor": (1.0, MOST_SLOW_FACTOR), "slow_mean_s": (0.0, MOST_RESTART_S), "backups": (0, math.inf),
}  # fmt: skip
_ABOVE_0 = ("reference_intra_bytes_per_s", "reference_nic_bytes_per_s", "checkpoint_s")  # and not 0 itself


def checked_rules(rules: Rules) -> Rules:
    """Return rules whose numbers lie within their ranges.

    Raises:
        ValueError: Naming the first that does not.
    """
    rules = with_declared_types(rules)
    for name, (least, most) in _RANGES.items():
        value, is_above = getattr(rules, name), name in _ABOVE_0
        if not (least < value if is_above else least <= value) or not value <= most:
            bound = f"{'above' if is_above else 'at least'} {least:g}"
            raise ValueError(f"{name} is {value}, expected {bound} and at most {most:g}")
    return rules


def checked_scenario_indices(sim: Simulation, scenarios: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the scenarios that the first rows are to run, as kernels read them.

    Raises:
        ValueError: If they are more than the simulation has rows, or one is no scenario.
    """
    given = np.asarray(scenarios)
    rows, count = sim.state.scenario.size, sim.scenarios.jobs.size
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"scenarios are {_shortened(given)}, expected a list of whole numbers")
    if given.size > rows:
        raise ValueError(f"{given.size} scenarios cannot be run at once: the simulation has {rows} rows")
    outside = np.flatnonzero((given < 0) | (given >= count))
    if outside.size:
        raise ValueError(f"there is no scenario {given[outside[0]]}, only 0 to {count - 1}")
    return np.ascontiguousarray(given, dtype=np.int64)
