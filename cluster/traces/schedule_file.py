"""Schedules as files that anybody can check: events, jobs and the cluster (docs/formats.md). Times are seconds."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..files.output_file import write_text
from ..model.outcome import Event
from ..model.scenarios import Rules, Scenarios
from ..model.topology import Cluster

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
