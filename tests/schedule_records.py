"""A schedule of the reference simulator in the form that `longshore simulate` writes."""

from collections.abc import Sequence
from typing import Any

from longshore.cluster.model.outcome import Event
from tests.strategies import Case


def event_records(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [
        {"time": it.time_s, "event": it.kind, "job": it.job if it.job >= 0 else None, "gpus": list(it.gpus)}
        for it in events
    ]


def job_records(case: Case) -> list[dict[str, Any]]:
    scenarios, row = case.scenarios, case.row
    return [
        {
            "id": job,
            "gpus": int(scenarios.gpus[row, job]),
            "work": float(scenarios.work_s[row, job]),
            "submit": float(scenarios.submit_s[row, job]),
        }
        for job in range(int(scenarios.jobs[row]))
    ]


def cluster_record(case: Case) -> dict[str, Any]:
    bounds, speed = case.cluster.first_gpu.tolist(), case.scenarios.speed[case.row].tolist()
    return {
        "nodes": [
            {"gpus": list(range(bounds[node], bounds[node + 1])), "speed": speed[node]} for node in range(len(speed))
        ],
        "node_penalty": case.rules.node_penalty,
        "checkpoint": case.rules.checkpoint_s,
        "restart": case.rules.restart_s,
        "rate": "free" if case.rules.ring else "simple",
    }
