"""Lines of decisions as a scheduler exports them, of a past that a test makes up."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.presets.drawn import fault_process, rules
from longshore.scheduler.mirror.cluster_mirror import ClusterSite, JobRequest, MirrorCall, MirrorOrigin
from longshore.scheduler.mirror.journal import encode_opening, encode_record, record_to_json

NODE_GPUS = 4


def site_of_types(names: Sequence[str], nodes: Sequence[str]) -> ClusterSite:
    """Return a cluster of nodes of these types, which has the types of a cluster file."""
    cluster = grid_cluster(len(nodes), NODE_GPUS)
    kinds = np.array([names.index(node) for node in nodes], dtype=np.int32)
    hazard_per_s = np.full(cluster.gpu_node.size, 1e-7)
    return ClusterSite(cluster._replace(node_type=kinds), rules(), fault_process(), hazard_per_s, tuple(names))


def line(number: int, calls: Sequence[MirrorCall], opening: str = "", /, **fields: Any) -> str:
    """Return the decision of a number, with what happened before it."""
    past = record_to_json(encode_record(number, calls, opening))
    return json.dumps({"job_id": "", "number": None, "explanation": {}, "past": past} | fields)


def lines_of_jobs(site: ClusterSite, requests: Iterable[JobRequest], outcomes: Sequence[str] = ()) -> list[str]:
    """Return the journal of a cluster on which each job runs at once, and for as long as is estimated.

    Args:
        site: The cluster.
        requests: Of the jobs, of which each ends before the next one is submitted.
        outcomes: Exit classes of their attempts; success if there are none.
    """
    found, calls = list[str](), list[MirrorCall]()
    for number, request in enumerate(requests):
        start_s, end_s = request.submitted_s, request.submitted_s + request.estimate_s
        calls += [MirrorCall("begin", (start_s,)), MirrorCall("submit", (request,))]
        opening = "" if found else encode_opening(site, MirrorOrigin(start_s))
        outcome = outcomes[number] if outcomes else "success"
        end = {"number": 1, "ended_s": end_s, "outcome": outcome}
        found.append(line(number, calls, opening, job_id=request.job, **end))
        calls = [MirrorCall("begin", (end_s,)), MirrorCall("finish", (request.job,))]
    return found


def written(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file at once, and return it."""
    part = path.with_suffix(".next")
    part.write_text("".join(f"{line}\n" for line in lines))
    return part.replace(path)
