"""What is in a workload, in figures; workloads and schedules written to files."""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..files.errors import InputError
from ..files.output_file import write_text
from ..model.needs import NodeNeeds
from ..model.outcome import Event
from ..model.problem import Rules, Scenarios
from ..model.topology import Cluster
from ..model.workload import Workload, gap_variation
from .formats import LONGSHORE_COLUMNS
from .plan_cells import cell_of
from .read import TYPES_APART

WORK_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Figures of a workload."""

    jobs: int
    left_out: int  # rows of the file that ask no GPU or never ran
    span_s: float  # first to last submission
    gpu_hours: float  # GPUs x work, summed
    sizes: tuple[tuple[int, int], ...]  # (GPUs, jobs that ask for this number), ascending
    work_s: tuple[tuple[float, float], ...]  # (quantile, work), for each of QUANTILES
    mean_work_s: float
    gap_variation: float  # standard deviation over mean of the times between submissions; NaN if all are at once

    def offered_load(self, gpus: int) -> float:
        """Return the share of a cluster's GPU-time, while jobs are submitted, that they ask for.

        Args:
            gpus: GPUs of the cluster, all of speed 1.

        Returns:
            1 where the cluster is just large enough, on average; inf if all jobs come at once.

        Raises:
            ValueError: If there is no GPU.
        """
        if gpus < 1:
            raise ValueError(f"gpus is {gpus}, expected 1 or more")
        return self.gpu_hours * HOUR_S / (self.span_s * gpus) if self.span_s > 0 else float("inf")


def describe(workload: Workload) -> TraceStatistics:
    """Return the figures of a workload.

    Raises:
        ValueError: If it has no job.
    """
    if not workload.jobs:
        raise ValueError("the workload has no job")
    sizes, counts = np.unique(workload.gpus, return_counts=True)
    quantiles = np.quantile(workload.work_s, WORK_QUANTILES)
    return TraceStatistics(
        jobs=workload.jobs,
        left_out=workload.left_out,
        span_s=float(workload.submit_s[-1] - workload.submit_s[0]),
        gpu_hours=float(workload.gpus @ workload.work_s) / HOUR_S,
        sizes=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
        work_s=tuple(zip(WORK_QUANTILES, quantiles.tolist(), strict=True)),
        mean_work_s=float(workload.work_s.mean()),
        gap_variation=gap_variation(workload.submit_s),
    )


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
    texts = {"user": workload.users, "name": workload.names, **_needs_columns(workload), **_plans_column(workload)}
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


def _plans_column(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Return the column of plans, none if no job has one."""
    plans = workload.plans or ()
    return {"plans": tuple(map(cell_of, plans))} if any(plans) else {}


def _needs_columns(workload: Workload) -> dict[str, tuple[str | float, ...]]:
    """Return the columns of what jobs need, none if the workload has no needs."""
    if workload.needs is None:
        return {}
    types = tuple(TYPES_APART.join(needs.gpu_types) for needs in workload.needs)
    numbers = zip(*(needs[1:] for needs in workload.needs), strict=True)
    return dict(zip(NodeNeeds._fields, (types, *numbers), strict=True))


NEVER_S = 1e18


def unique_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Return ids of which no two are equal: jobs after the first of an id are called ID#2, ID#3, ...

    Ids that are unique stay as they are, also where they end so.
    """
    used, copies, unique = set(ids), Counter[str](), list[str]()
    for name in ids:
        copies[name] += 1
        chosen = name
        while copies[name] > 1 and chosen in used:
            chosen = f"{name}#{copies[name]}"
            copies[name] += chosen in used
        used.add(chosen)
        unique.append(chosen)
    return tuple(unique)


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
