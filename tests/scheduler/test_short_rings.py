"""Rings that are short of members, or have none left, under a real scheduler: what it tells, and what it does."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support import processes

from .served import Served, until
from .served_rings import call_faulty, events, held_by, ring_job, running

# It saves each tenth step, and writes its pid and what it has learned, for the test.
SAVES = """
import hashlib, os, time, torch
from pathlib import Path
from longshore.ring import Ring

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
with Ring(model, optimizer, checkpoints=os.environ["SAVES_TO"]) as ring:
    Path(f"{os.environ['SAVES_TO']}-pid-{ring.seat}").write_text(str(os.getpid()))
    for step in ring.steps(until=40):
        for shard in ring.shards:
            model(torch.full((2, 4), 0.1 * step + shard)).square().mean().backward()
        if ring.step():
            print("step", step, flush=True)
            if step % 10 == 9:
                ring.save()
        time.sleep(0.02)
        while step == 25 and os.environ.get("WAITS") and not Path("go").exists():
            time.sleep(0.02)
digest = hashlib.sha256()
for parameter in model.parameters():
    for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
        digest.update(tensor.numpy().tobytes())
Path(f"{os.environ['SAVES_TO']}-digest-{ring.seat}").write_text(digest.hexdigest())
"""


@pytest.mark.full
def test_it_is_reported_that_a_ring_has_shrunk_and_why(small: Served) -> None:
    job = ring_job(small, 10**6, gpus=4)  # all that there is
    running(small, job, 10)
    node, gpu = max(held_by(small, job))
    call_faulty(small, node, gpu)
    until(lambda: running(small, job, 10)["order"].count(-1) == 1)
    until(lambda: "empty" in [it["now"] for it in events(small, job)])
    (reported,) = [it for it in events(small, job) if it["now"] == "empty"]
    assert reported["cause"] == (
        "1 of 4 seats stay empty, as no free GPU suits it: the ring goes on without, and grows once a GPU is free"
    )
    ring = running(small, job, 10)
    assert (ring["order"], ring["seats"], ring["recoveries"][-1]["members"]) == ([0, 1, 2, -1], 4, 3)
    assert ring["gone"] == {"3": "its GPU is out of service"}
    shown = small.call("status", job).stdout.splitlines()
    lines = [line.split(None, 1)[1] for line in shown if line.startswith(("ring ", "gone "))]
    assert [line.split(", step ")[0] for line in lines] == [
        "running, 3 of 4 seats, 0 spares, generation 2", "member 3: its GPU is out of service",
    ]  # fmt: skip
    assert [line.split()[1] for line in shown if line.split()[:1] == ["3"]] == ["empty"]
    below = next(at for at, line in enumerate(shown) if line.startswith("GENERATION"))
    words = " ".join(shown[below + 1 :]).split()  # the reason may take several lines
    assert words[:2] == ["2", "3"]
    assert "member 3 is gone" in " ".join(words)


def saving_job(served: Served, name: str, **environment: str) -> str:
    (served.folder / "saves.py").write_text(SAVES)
    given = {it: os.environ[it] for it in ("PATH", "PYTHONPATH") if it in os.environ}
    given |= {"OMP_NUM_THREADS": "1", "SAVES_TO": str(served.folder / name), **environment}
    return served.add(sys.executable, "saves.py", environment=given, failover="switch", gpus=2)


def digests(served: Served, name: str) -> set[str]:
    return {(served.folder / f"{name}-digest-{seat}").read_text() for seat in range(2)}


@pytest.mark.full
def test_a_ring_of_two_whose_members_are_both_killed_goes_on_from_its_checkpoint(small: Served) -> None:
    undisturbed = saving_job(small, "whole")
    assert small.ended(undisturbed) == "succeeded"
    job = saving_job(small, "killed", WAITS="1")
    running(small, job, 25)
    pids = [int((small.folder / f"killed-pid-{seat}").read_text()) for seat in range(2)]
    for pid in pids:  # in one moment
        processes.stop(pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    (small.folder / "go").touch()
    assert small.ended(job) == "succeeded"
    first, second = small.ask(f"/v1/jobs/{job}/attempts")
    assert (first["outcome"], second["outcome"]) == ("ambiguous", "success")
    lines = small.call("logs", job, "--rank", "0").stdout.splitlines()
    assert [int(it.split()[1]) for it in lines if it.startswith("step ")] == list(range(20, 40))
    assert digests(small, "killed") == digests(small, "whole")
    assert len(digests(small, "killed")) == 1
    assert Path(small.folder / "killed").is_dir()
