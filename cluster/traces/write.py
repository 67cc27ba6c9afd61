"""Workloads and schedules written to files (docs/formats.md)."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..files.errors import InputError
from ..files.output_file import write_text
from ..model.outcome import Event
from ..model.problem import Rules, Scenarios
from ..model.topology import Cluster, NodeNeeds
from ..model.workload import Workload
from .formats import LONGSHORE_COLUMNS, plans_cell
from .read import TYPES_APART


def write_trace(workload: Workload, path: Path) -> None:
    """Write a workload as Longshore's csv, from which it is read back to the last bit; see docs/formats.md.

    Args:
        workload: The jobs; the count of rows that are no jobs is not written.
        path: The file, which is replaced.

    Raises:
        InputError: If the file cannot be written.
    """
    numbers = (
        workload.gpus,
        workload.work_s,
        workload.submit_s,
        workload.estimate_s,
        workload.compute_s,
        workload.parameter_bytes,
    )
    texts = {"user": workload.users, "name": workload.names, **_needs_columns(workload)}
    if any(plans := workload.plans or ()):
        texts["plans"] = tuple(map(plans_cell, plans))
    known = {column: cells for column, cells in texts.items() if cells is not None}
    # Python 3.11 quotes only what the line terminator holds, so a name with a carriage return would break its row.
    returns = any("\r" in str(cell) for cells in (workload.ids, *known.values()) for cell in cells)
    try:
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(
                file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
            )
            numbered = ("estimate_s", "compute_s", "parameter_bytes")
            writer.writerow(("id", *LONGSHORE_COLUMNS, *numbered, *known))
            writer.writerows(zip(workload.ids, *(column.tolist() for column in numbers), *known.values(), strict=True))
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", "check the folder and its rights", path=path
        ) from error


def _needs_columns(workload: Workload) -> dict[str, tuple[str | float, ...]]:
    """Return the columns of what jobs need, none if the workload has no needs."""
    if workload.needs is None:
        return {}
    types = tuple(TYPES_APART.join(needs.gpu_types) for needs in workload.needs)
    numbers = zip(*(needs[1:] for needs in workload.needs), strict=True)
    return dict(zip(NodeNeeds._fields, (types, *numbers), strict=True))


NEVER_S = 1e18


def write_events(path: Path, events: Iterable[Event], ids: Sequence[str]) -> None:
    """Write one JSON object a line, in order of time; `job` is its id, or null for faults and repairs."""
    lines = (
        json.dumps(
            {
                "time": event.time_s,
                "event": event.kind,
                "job": ids[event.job] if event.job >= 0 else None,
                "gpus": list(event.gpus),
            }
        )
        for event in events
    )
    write_text(path, "".join(line + "\n" for line in lines))


def write_jobs(path: Path, scenarios: Scenarios, scenario: int, ids: Sequence[str]) -> None:
    """Write id, GPUs, work and submission of each job."""
    jobs = [
        {
            "id": name,
            "gpus": int(scenarios.gpus[scenario, job]),
            "work": float(scenarios.work_s[scenario, job]),
            "submit": float(scenarios.submit_s[scenario, job]),
        }
        for job, name in enumerate(ids)
    ]
    write_text(path, json.dumps(jobs, indent=1) + "\n")


def write_cluster(path: Path, cluster: Cluster, rules: Rules, scenarios: Scenarios, scenario: int) -> None:
    """Write GPUs and speed of each node, and the constants that run times follow from."""
    first = cluster.first_gpu
    nodes = [
        {"gpus": list(range(int(first[node]), int(first[node + 1]))), "speed": float(scenarios.speed[scenario, node])}
        for node in range(cluster.speed.size)
    ]
    content = {
        "nodes": nodes,
        "node_penalty": rules.node_penalty,
        # JSON has no infinity: no run reaches this, so nothing is ever saved
        "checkpoint": rules.checkpoint_s if math.isfinite(rules.checkpoint_s) else NEVER_S,
        "restart": rules.restart_s,
        "rate": "free" if rules.ring else "simple",
    }
    write_text(path, json.dumps(content, indent=1) + "\n")
