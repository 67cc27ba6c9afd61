"""What kernels take the arrays of a simulation for: types and shapes, and the check that they have them.

Kernels read through addresses and look at no bound, so whatever is of another shape would be read, and written, beyond
its end.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from ..model.scenarios import LINED, PLANNED

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
FieldsT = TypeVar("FieldsT", bound=tuple[Any, ...])  # a named tuple
WORD = 32  # bits of a word that says something of as many nodes: products with it stay below the sign

AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "cluster": {
        "gpu_node": ("gpus",), "first_gpu": ("nodes + 1",), "node_rack": ("nodes",), "first_node": ("racks + 1",),
        "node_type": ("nodes",), "speed": ("nodes",), "peak_flops": ("nodes",), "memory_bytes": ("nodes",),
        "intra_bytes_per_s": ("nodes",), "nic_bytes_per_s": ("nodes",), "uplink_bytes_per_s": ("racks",),
        "suits": ("classes", "nodes"),
    },
    "scenarios": {
        "jobs": ("scenarios",), "gpus": ("scenarios", "jobs"), "work_s": ("scenarios", "jobs"),
        "estimate_s": ("scenarios", "jobs"), "submit_s": ("scenarios", "jobs"), "compute_s": ("scenarios", "jobs"),
        "parameter_bytes": ("scenarios", "jobs"), "rank": ("scenarios", "jobs"), "needs": ("scenarios", "jobs"),
        "speed": ("scenarios", "nodes"),
        "hazard_per_s": ("scenarios", "gpus"), "source_rate_per_s": ("scenarios", "sources"),
        "fault_seed": ("scenarios",),
        **dict.fromkeys(PLANNED, ("scenarios", "planned jobs")), **dict.fromkeys(LINED, ("scenarios", "lined jobs")),
    },
    "traits": {
        "max_speed": ("scenarios",), "levels": ("scenarios", "nodes + 1"), "node_hazard_per_s": ("scenarios", "nodes"),
        "node_level": ("scenarios", "nodes"), "level_nodes": ("scenarios", "levels x words"),
        "lemon": ("scenarios", "nodes"),
    },
    "process": {
        "outage_first": ("sources with outages + 1",), "outage_start_s": ("outages",), "outage_end_s": ("outages",),
    },
    "log": {
        "time_s": ("events",), "kind": ("events",), "job": ("events",), "first_gpu": ("events + 1",),
        "gpus": ("entries",), "size": ("two",),
    },
}  # fmt: skip
WRITTEN = ("state", "log")
ANY = 2**63 - 1
# Whole numbers of the state where a job is due, by their least and their most: a noun in the singular is the last of
# its kind, one in the plural how many there are.
RANGES: dict[tuple[int, str], tuple[str, ...]] = {
    (0, "scenario"): ("scenario",),
    (0, "one"): (
        "aged", "leads", "came_back", "base_waits", "base_refused", "source_failed", "ends_kept", "lemon", "spare",
        "died", "node_slow",
    ),
    (0, "two"): ("index_stage",),
    (-1, "job"): (
        "head", "tail", "gpu_job", "next_job", "previous_job", "run_place", "index_young_place", "kept_for",
        "next_in_line", "previous_in_line", "line_head", "line_tail", "line_oldest", "next_line", "previous_line",
        "first_line", "last_line",
    ),
    (-1, "leaf"): ("index_best", "index_oldest"),
    (0, "leaf"): ("index_leaf", "index_own_leaf"),
    (0, "job"): (
        "current", "candidate_job", "run_heap", "ends_job", "index_job", "index_hidden_job",
        "index_young",
    ),
    (0, "jobs"): (
        "finished", "submitted", "queued", "running", "reserved_for", "index_first", "index_hidden",
        "index_young_count", "shrunk",
    ),
    (0, "leafs"): ("index_line",),
    (-1, "gpu"): ("gpu_next", "first_gpu", "backup_of"),
    (0, "gpus"): (
        "usable", "busy", "down", "extra", "need", "free", "taken",
        "reserved_usable", "reserved_extra", "hidden", "class_usable", "class_in_service",
        "short", "relieved", "relieved_of",
    ),
    (0, "class"): ("shown_class", "reserved_class"),
    (0, "node"): ("candidate_node",),
    (0, "nodes"): ("picked_nodes", "candidate_size"),
    (-2, "rack"): ("picked_rack",),
    (0, "source"): ("source_heap",),
    (-1, "source"): ("source_place",),
    (0, "sources"): ("source_count",),
    (0, "candidates"): ("candidates",),
    (-2, "any"): ("waited", "rested"),
    (-1, "any"): ("moment", "passed", "reserved_moment", "index_moment"),
    (0, "any"): (
        "quiet", "unlooked", "estimated", "job_events", "decisions", "candidate_hole", "gpu_down", "source_k",
        "stops", "index_from", "switches", "slowed", "pace_k", "backups",
        "turns", "turn_number", "line_number",
    ),
    (-ANY - 1, "any"): ("candidate_sign", "index_place"),
}  # fmt: skip


class Declared(NamedTuple):
    """What the annotation of a field says."""

    name: str
    kind: Any  # the annotation itself
    dtype: np.dtype[Any] | None  # of the elements, None for a number
    axes: tuple[str, ...]  # that are named


@cache  # what annotations say is found out slowly, and asked for each simulation
def declared(fields: type[tuple[Any, ...]]) -> tuple[Declared, ...]:
    """Return what the annotations of a named tuple say of its fields."""
    return tuple(_declared(name, kind) for name, kind in fields.__annotations__.items())


def _declared(name: str, kind: Any) -> Declared:
    array, *axes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    parameters = get_args(array)
    return Declared(name, kind, np.dtype(get_args(parameters[1])[0]) if parameters else None, tuple(axes))


def zeros_of(fields: type[FieldsT], extents: Mapping[str, int]) -> FieldsT:
    """Return a named tuple of arrays of zeros, each of the type and the axes that its annotation says.

    Args:
        fields: The named tuple, of which each field is `Annotated[array type, name of an axis, ...]`.
        extents: How long each axis is, by its name.
    """
    made: Callable[..., FieldsT] = fields  # which no type of named tuples says
    return made(*(np.zeros(tuple(extents[axis] for axis in it.axes), it.dtype) for it in declared(fields)))


def check_types(parts: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields that are not of the type that their annotation says, or not as they lie in memory.

    Args:
        parts: The named tuples of a simulation, by name.

    Raises:
        ValueError: Naming the field.
    """
    for part, values in parts.items():
        for (name, kind, dtype, _), value in zip(declared(type(values)), values, strict=True):
            if dtype is None:
                if type(value) is not kind:
                    raise ValueError(f"{part}.{name} is {value!r:.80}, expected one {kind.__name__}")
            elif not isinstance(value, np.ndarray) or value.dtype != dtype:
                found = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
                raise ValueError(f"{part}.{name} is of type {found}, expected an array of {dtype}")
            elif not (value.flags.c_contiguous and value.flags.aligned):
                raise ValueError(f"{part}.{name} is not contiguous; give np.ascontiguousarray of it")
            elif part in WRITTEN and not value.flags.writeable:
                raise ValueError(f"{part}.{name} cannot be written; give a copy of it")


def check_shapes(parts: Mapping[str, tuple[Any, ...]], blank: tuple[Any, ...]) -> None:
    """Refuse arrays whose shapes do not go together.

    Args:
        parts: The named tuples of a simulation, by name, their types checked.
        blank: State of no rows for the same cluster and scenarios.

    Raises:
        ValueError: Naming the first array.
    """
    extents: dict[str, int] = {"two": 2}
    for part, axes in AXES.items():
        for name, names in axes.items():
            shape = getattr(parts[part], name).shape
            _check_shape(f"{part}.{name}", shape, tuple(extents.get(axis, -1) for axis in names), names)
            extents |= dict(zip(names, shape, strict=True))
            extents |= {axis + " + 1": extent + 1 for axis, extent in zip(names, shape, strict=True)}
        if part == "cluster":
            extents["sources"] = extents["gpus"] + extents["nodes"] + extents["racks"]
    state: Any = parts["state"]
    rows = state.now_s.shape[:1]
    for name, array in blank._asdict().items():  # type: ignore[attr-defined]
        shape, expected = getattr(state, name).shape, rows + array.shape[1:]
        if shape != expected:
            raise ValueError(f"state.{name} has shape {shape}, expected {expected}")
    if extents["sources with outages + 1"] not in (1, extents["sources"] + 1):
        shape = parts["process"].outage_first.shape  # type: ignore[attr-defined]
        raise ValueError(f"process.outage_first has shape {shape}, expected (1,) or {(extents['sources'] + 1,)}")


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], axes: tuple[str, ...]) -> None:
    fits = len(shape) == len(expected) and all(want in (-1, have) for have, want in zip(shape, expected, strict=True))
    if not fits:
        wanted = ", ".join(axis if want < 0 else str(want) for axis, want in zip(axes, expected, strict=True))
        raise ValueError(f"{name} has shape {shape}, expected ({wanted})")
