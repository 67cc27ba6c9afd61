"""Jobs with rings under a real scheduler: a process that is killed stops nobody else."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from .served import PATIENCE_S, Served, until
from .served_rings import logged_steps, ring_job, running


def kill(served: Served, member: int) -> None:
    """Kill a member in mid training."""
    path = served.folder / f"pid-{member}"
    until(path.exists)
    until(lambda: path.read_text() != "")
    os.kill(int(path.read_text()), signal.SIGKILL)


def seats_shown(served: Served, job: str) -> tuple[list[int], set[int]]:
    """Return what `longshore status` shows: the member on each seat, and the pids of all."""
    shown = served.call("status", job).stdout
    assert "2 of 2 seats" in shown
    assert "member 1: its process ended with status -9" in shown
    table = shown.split("SEAT")[1].split("\n\n")[0].splitlines()[1:]
    rows = [line.split() for line in table]
    return [int(row[1]) for row in rows if row[0].isdecimal()], {int(row[4]) for row in rows if row[4] != "-"}


@pytest.mark.full
def test_a_job_goes_on_with_its_spare_and_then_without_it(served: Served) -> None:
    job = ring_job(served, 100, waits_at=50, gpus=2, spares=1, model="one layer")
    assert served.ask(f"/v1/jobs/{job}")["gpus"] == 3
    before = running(served, job, 10)
    assert (before["order"], before["spares"]) == ([0, 1], [2])
    kill(served, 1)
    until(lambda: running(served, job, 20)["generation"] > 1)
    after = running(served, job, 20)
    assert set(after["gone"]) == {"1"}
    assert after["order"][0] == 0
    assert after["order"][1] >= 2
    until(lambda: (served.ask(f"/v1/jobs/{job}/training")["loss"] or 0.0) > 0.0)
    shown = served.call("status", job).stdout
    assert re.search(r"model +one layer\n", shown)
    assert re.search(r"loss +[0-9.e-]+\n", shown)
    _, pids = seats_shown(served, job)
    assert {int((served.folder / f"pid-{member}").read_text()) for member in after["order"]} <= pids
    (served.folder / "go").touch()
    assert served.ended(job) == "succeeded"
    until(lambda: served.ask(f"/v1/jobs/{job}/attempts")[0]["state"] == "closed")
    over = served.ask(f"/v1/jobs/{job}/ring")  # The backend has forgotten it.
    assert (over["phase"], over["step"], over["order"], over["gone"]) == ("done", 100, after["order"], after["gone"])
    assert [it["reason"] for it in over["recoveries"]] == [it["reason"] for it in after["recoveries"]]
    seats, pids = seats_shown(served, job)
    assert seats == after["order"]
    assert pids == set()
    assert [it["outcome"] for it in served.ask(f"/v1/jobs/{job}/attempts")] == ["success"]
    assert logged_steps(served, job, 0) == list(range(100))


@pytest.mark.full
def test_a_job_whose_members_all_die_is_tried_again(served: Served) -> None:
    job = ring_job(served, 10**6, gpus=1)
    running(served, job, 1)
    kill(served, 0)
    until(lambda: len(served.ask(f"/v1/jobs/{job}/attempts")) > 1)
    first = served.ask(f"/v1/jobs/{job}/attempts")[0]
    assert (first["outcome"], first["cause"]) == ("ambiguous", "rank 0 was ended by signal 9")
    served.cancel(job)
    assert served.ended(job) == "cancelled"


@pytest.mark.full
def test_members_that_die_are_started_anew_three_times_in_an_attempt_and_then_on_another_gpu(served: Served) -> None:
    job = ring_job(served, 10**6, gpus=2)
    running(served, job, 1)
    placement = served.ask(f"/v1/jobs/{job}/attempts")[0]["placement"]
    first = [(share["node"], gpu) for share in placement for gpu in share["gpus"]]  # in the order of the members
    for member in range(1, 5):  # member 0 sits on its seat all the time
        ring = running(served, job, 1)
        assert (ring["replacements"], ring["order"]) == ([], [0, member])
        kill(served, member)
        until(lambda member=member: str(member) in running(served, job, 1)["gone"])  # type: ignore[misc]
        until(lambda member=member: member + 1 in running(served, job, 1)["order"])  # type: ignore[misc]
    (came,) = running(served, job, 1)["replacements"]

    def held() -> set[tuple[str, int]]:
        (attempt,) = served.ask(f"/v1/jobs/{job}")["attempts"]
        return {(share["node"], gpu) for share in attempt["held"] for gpu in share["gpus"]}

    assert (came["node"], came["gpu"]) not in first
    now = {first[0], (came["node"], came["gpu"])}
    until(lambda: held() == now)
    shown = served.call("status", job).stdout
    assert "an iteration of the ring took" in shown
    served.cancel(job)
    assert served.ended(job) == "cancelled"
    assert held() == now


def test_a_job_with_a_ring_is_cancelled_with_all_its_processes(served: Served) -> None:
    job = ring_job(served, 10**6, gpus=2, grace_s=1.0)
    running(served, job, 3)
    pids = [int((served.folder / f"pid-{member}").read_text()) for member in range(2)]
    served.cancel(job)
    assert served.ended(job) == "cancelled"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    over = served.ask(f"/v1/jobs/{job}/ring")
    assert (over["phase"], over["order"], over["gone"]) == ("ended", [0, 1], {})  # as it stood before
    assert len(over["gpus"]) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit(7)", "7"),
        ("import no_such_module", "1: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
    ids=["exits", "raises"],
)
def test_a_script_that_fails_on_all_members_fails_the_job_with_its_status(
    served: Served, script: str, words: str
) -> None:
    (served.folder / "fails.py").write_text(script)
    environment = {"PATH": os.environ["PATH"]}
    retry = {"user": 0, "ambiguous": 0}
    job = served.add(sys.executable, "fails.py", environment=environment, failover="switch", gpus=2, retry=retry)
    assert served.ended(job) == "failed"
    cause = served.ask(f"/v1/jobs/{job}/attempts")[0]["cause"]
    assert cause.startswith("the ring is lost: no member connected; the last: member ")
    assert cause.endswith(f": its process ended with status {words} (exit code {words.partition(':')[0]})")
    assert served.ask(f"/v1/jobs/{job}/ring")["phase"] == "lost"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"spares": 1}, "failover: switch"),
        ({"failover": "switch", "spares": 1, "shape": {"nodes": 1, "gpus_per_node": 1}, "gpus": None}, "spares"),
        ({"failover": "jump"}, "switch"),
        ({"failover": "switch", "spares": -1}, "spares"),
        ({"failover": "switch", "gpus": 1, "spares": 999}, "asks for 1000 GPUs (1 seat and 999 spares)"),
        ({"failover": "switch", "gpus": "4"}, 'the text "4" cannot be used'),
        ({"shape": "2x2", "gpus": None}, "write {nodes: 2, gpus_per_node: 2}"),
    ],
)
def test_a_job_file_that_makes_no_sense_is_refused(served: Served, wrong: dict[str, object], words: str) -> None:
    spec = {name: value for name, value in {"command": ["true"], **wrong}.items() if value is not None}
    answer = httpx.post(f"{served.url}/v1/jobs", json=spec, headers=served.headers, timeout=PATIENCE_S)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


@pytest.mark.full
def test_the_scheduler_may_be_away_while_a_ring_recovers(served: Served) -> None:
    job = ring_job(served, 100, waits_at=50, gpus=2, spares=1)
    running(served, job, 5)
    served.end(signal.SIGKILL)
    kill(served, 0)
    time.sleep(1.0)
    served.start()
    (served.folder / "go").touch()
    assert served.ended(job) == "succeeded"
    assert len(served.ask(f"/v1/jobs/{job}/attempts")) == 1


@pytest.mark.full
def test_members_on_a_gpu_that_is_called_faulty_leave_and_the_job_runs_on(served: Served) -> None:
    job = ring_job(served, 10**6, gpus=2, spares=1)
    running(served, job, 5)
    place = served.ask(f"/v1/jobs/{job}/attempts")[0]["placement"][0]
    slots = [{"index": it, "healthy": it != place["gpus"][0], "utilisation": 0.0, "free_bytes": 1} for it in range(4)]
    for _ in range(2):  # one report alone may be a mistake
        served.tell("POST", f"/v1/nodes/{place['node']}/report", gpus=slots)
    until(lambda: (served.ask(f"/v1/jobs/{job}/ring") or {"gone": {}})["gone"] != {})
    after = running(served, job, served.ask(f"/v1/jobs/{job}/ring")["step"] + 10)
    assert set(after["gone"].values()) == {"its GPU is out of service"}
    assert len([it for it in after["order"] if it >= 0]) == 2
    assert after["spares"] == []
    assert len(served.ask(f"/v1/jobs/{job}/attempts")) == 1
    served.cancel(job)
    assert served.ended(job) == "cancelled"
    served.tell("POST", f"/v1/nodes/{place['node']}/resume")
