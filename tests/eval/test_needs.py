"""`longshore simulate` of jobs that cannot run on every node."""

import json
from pathlib import Path

from tests.command_line import Command

CLUSTER = """\
node_types:
  v100: {gpus: 2, peak_flops: 125e12, memory_bytes: 32e9, cpus: 8}
  a100: {gpus: 2, peak_flops: 312e12, memory_bytes: 80e9}
racks:
  - nodes:
      - {type: v100}
      - {type: a100, count: 2}
"""
HEAD = "id,gpus,work_s,submit_s,gpu_types,gpu_memory_bytes,cpus_per_gpu\n"


def simulate(longshore: Command, folder: Path, rows: str, *options: object) -> tuple[str, dict[str, set[int]]]:
    """Return the error, and the GPUs of each job."""
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "jobs.csv").write_text(HEAD + rows)
    events = folder / "events.jsonl"
    files = ("--cluster", folder / "cluster.yaml", "--trace", folder / "jobs.csv", "--events", events)
    done = longshore("simulate", *files, *options)
    lines = events.read_text().splitlines() if done.status == 0 else []
    happened = map(json.loads, lines)
    return done.err, {event["job"]: set(event["gpus"]) for event in happened if event["event"] == "start"}


def test_jobs_of_a_trace_run_where_their_needs_are_met(longshore: Command, tmp_path: Path) -> None:
    rows = "slow,2,100,0,v100,,\nlarge,2,100,0,,40e9,\nhungry,2,100,0,,,5\nany,1,100,0,,,\n"
    _, gpus = simulate(longshore, tmp_path, rows, "--order", "easy", "--policy", "first-fit")

    assert gpus["slow"] == {0, 1}
    assert gpus["large"] | gpus["hungry"] == {2, 3, 4, 5}
    assert len(gpus["any"]) == 1


def test_a_job_whose_needs_no_node_meets_is_refused_in_one_line(longshore: Command, tmp_path: Path) -> None:
    error, _ = simulate(longshore, tmp_path, "ok,1,5,0,,,\nbig,1,5,0,v100|h100,80e9,\n")

    assert (
        "job big asks 1 GPU of type v100 or h100 with 80 GB, and the cluster has 0 of these" in error.splitlines()[-1]
    )


def test_a_job_that_asks_for_more_gpus_than_the_nodes_that_suit_it_have_is_refused(
    longshore: Command, tmp_path: Path
) -> None:
    error, _ = simulate(longshore, tmp_path, "big,3,5,0,v100,,\n")

    assert "job big asks 3 GPUs of type v100, and the cluster has 2 of these" in error.splitlines()[-1]
