"""Jobs with rings under a real scheduler: their script, how they stand, and the GPUs that they hold."""

import os
import sys
from typing import Any

from .served import Served, until

# Each member leaves its pid, so that a test can kill it. A step takes as long as it takes to write a line.
SCRIPT = """
import os, time, torch
from pathlib import Path
from longshore.ring import Ring

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
with Ring(model, torch.optim.Adam(model.parameters())) as ring:
    Path(f"pid-{ring.member}").write_text(str(os.getpid()))
    for step in ring.steps(until=int(os.environ["STEPS"])):
        for shard in ring.shards:
            loss = model(torch.full((2, 4), 0.1 * step + shard)).square().mean()
            loss.backward()
            computes_s = float(os.environ.get(f"COMPUTES_{ring.member}_S", os.environ.get("COMPUTES_S", "0.0")))
            time.sleep(computes_s * (8.0 if Path(f"slow-{ring.member}").exists() else 1.0))
        if ring.step(loss=loss):
            print("step", step, "seat", ring.seat, "generation", ring.generation, flush=True)
        time.sleep(0.02)
        while step == int(os.environ.get("WAITS_AT", "-1")) and not Path("go").exists():
            time.sleep(0.02)
"""
CLUSTER = """\
name: pool
node_types:
  slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}
racks:
  - nodes:
      - {type: slots, count: 2}
run_time: {model: simple, node_penalty: 0.05}
"""


def ring_job(served: Served, steps: int, waits_at: int = -1, **spec: Any) -> str:
    """Return a job of that script; after step `waits_at` it waits for a file `go`."""
    (served.folder / "go").unlink(missing_ok=True)
    (served.folder / "train.py").write_text(SCRIPT)
    for old in served.folder.glob("pid-*"):  # of members of another test's job
        old.unlink()
    environment = {"PATH": os.environ["PATH"], "STEPS": str(steps), "WAITS_AT": str(waits_at)}
    environment["OMP_NUM_THREADS"] = "1"
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return served.add(sys.executable, "train.py", environment=environment, failover="switch", **spec)


def running(served: Served, job: str, least_step: int) -> dict[str, Any]:
    """Return how the ring stands once it runs and has come so far."""
    found: dict[str, Any] = {}

    def has_come() -> bool:
        found.clear()
        found.update(served.ask(f"/v1/jobs/{job}/ring") or {})
        return found.get("phase") == "running" and found["step"] >= least_step

    until(has_come)
    return found


def logged_steps(served: Served, job: str, rank: int) -> list[int]:
    """Return the steps that a rank has reported in its log."""
    text = served.call("logs", job, "--rank", str(rank)).stdout
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("step ")]


def call_faulty(served: Served, node: str, gpu: int) -> None:
    """Let the agent of a node say that one of its GPUs is faulty; one report alone may be a mistake."""
    slots = [{"index": it, "healthy": it != gpu, "utilisation": 0.0, "free_bytes": 1} for it in range(2)]
    for _ in range(2):
        served.tell("POST", f"/v1/nodes/{node}/report", gpus=slots)


def holders(served: Served) -> dict[tuple[str, int], str | None]:
    """Return the job of each GPU."""
    nodes = served.ask("/v1/nodes")
    return {(node["name"], gpu): holder for node in nodes for gpu, holder in enumerate(node["gpus"])}


def held_by(served: Served, job: str) -> set[tuple[str, int]]:
    return {place for place, holder in holders(served).items() if holder == job}


def events(served: Served, job: str) -> list[dict[str, Any]]:
    return [it for it in served.ask(f"/v1/jobs/{job}/events") if it["kind"] == "seat"]


def seated(served: Served, job: str) -> list[int]:
    return [it for it in running(served, job, 1)["order"] if it >= 0]
