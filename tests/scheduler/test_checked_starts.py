"""Nodes are checked before jobs start on them, by a real scheduler, and what is not fit is struck off."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scheduler.checked import Checked
from tests.scheduler.served import until


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Checked]:
    nodes, gpus = getattr(request, "param", (4, 2))
    made = Checked(tmp_path, nodes, gpus)
    made.start()
    yield made
    if made.process is not None:
        made.cancel_all()
        made.end()


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]


def test_a_job_starts_once_its_nodes_have_passed_and_one_that_wants_no_checks_without(served: Checked) -> None:
    job = served.add("true", gpus=2)
    assert served.ended(job) == "succeeded"
    (reported,) = served.events(job)
    assert (reported["now"], reported["attempt"], reported["writer"]) == ("passed", 1, "scheduler")
    launched = [it["seq"] for it in served.events(job, "attempt") if it["now"] == "launched"]
    assert reported["seq"] < launched[0]
    assert [(node, gpus) for _, node, gpus in served.checked()] == [("a", "0,1")]
    assert [(node, gpus) for _, node, gpus in served.checked("after")] == [("a", "0,1")]

    unchecked = served.add("true", gpus=2, preflight="off")
    assert served.ended(unchecked) == "succeeded"
    assert served.events(unchecked) == []
    assert len(list(served.checked())) == 1


@pytest.mark.full
def test_a_node_that_is_not_fit_is_struck_off_and_the_job_starts_on_the_next(served: Checked) -> None:
    served.say("a", "disk 0")
    job = served.add("true", gpus=2)
    assert served.ended(job) == "succeeded"
    assert [it[0] for it in served.places(job)] == ["a", "b"]
    first = served.ask(f"/v1/jobs/{job}/attempts")[0]
    assert first["cause"] == (
        "the checks before its start did not pass (1 of 3), so it is tried elsewhere: "
        "a disk 0: site.before: fail: got smoke, wanted no smoke; replace it"
    )
    assert [it["now"] for it in served.events(job)] == ["failed", "passed"]
    assert list(served.quarantined()) == ["a"]
    entry = served.quarantined()["a"]
    assert (entry["check"], entry["action"], entry["clears"]) == ("site.before", "replace it", "checks")
    assert entry["evidence"] == "disk 0: got smoke, wanted no smoke"
    assert "the checks before its start did not pass" in served.call("explain", job).stdout


@pytest.mark.full
@pytest.mark.parametrize("served", [(1, 2)], indirect=True)
def test_another_gpu_of_the_same_machine_does_as_well(served: Checked) -> None:
    served.say("a", "gpu 0")
    job = served.add("true")
    assert served.ended(job) == "succeeded"
    assert served.places(job) == ["a:0", "a:1"]
    assert list(served.quarantined())[-1] == "a:0"


@pytest.mark.full
def test_a_job_whose_nodes_fail_three_times_waits_without_gpus_until_one_comes_back(served: Checked) -> None:
    for node in "abcd":
        served.say(node, "disk 0")
    job = served.add("true", gpus=2)
    until(lambda: "tried again in" in ((served.ask(f"/v1/jobs/{job}")["waiting"] or {"reason": ""})["reason"]))
    found = served.ask(f"/v1/jobs/{job}")
    assert (found["state"], found["desired"], served.held()) == ("queued", "run", set())
    assert [it[0] for it in served.places(job)] == ["a", "b", "c"]
    assert all(f"{node} disk 0: site.before: fail: got smoke" in found["cause"] for node in "abc")
    assert "c disk 0: site.before: fail" in served.call("status", job).stdout

    kept = served.call("node", "quarantine", "clear", "a", check=False)
    assert kept.returncode == 1
    assert "a stays in quarantine: a: a disk 0: site.before: fail: got smoke, wanted no smoke" in kept.stderr
    assert served.state(job) == "queued"

    served.say("a", "fit")
    assert served.call("node", "quarantine", "clear", "a").returncode == 0
    assert served.ended(job) == "succeeded"  # at once, and not when its time is over
    assert served.places(job)[3:] == ["a:0,1"]


@pytest.mark.full
def test_a_check_that_hangs_is_ended_by_its_limit_and_holds_up_no_one(served: Checked) -> None:
    served.say("a", "hang")
    job = served.add("true", gpus=2)
    until(lambda: len(list(served.checked())) == 1)
    assert served.state(job) == "starting"
    until(lambda: "its nodes are being checked" in served.call("status", job).stdout or served.state(job) != "starting")
    other = served.add("true", gpus=2, preflight="off")
    assert served.ended(other) == "succeeded"
    assert served.ended(job) == "succeeded"
    first, second = served.places(job)
    assert first[0] == "a" != second[0]  # b, or c if the other job still has b
    late = r"no answer for 2 s; it (was killed, as SIGTERM did not end it|had not ended 0\.1 s after SIGKILL)"
    assert re.search(late, served.quarantined()["a"]["evidence"])  # the latter if this machine is busy
    (pid,) = [pid for pid, node, _ in served.checked() if node == "a"]
    until(lambda: not lives(pid))


@pytest.mark.full
def test_a_job_that_is_cancelled_while_its_nodes_are_checked_never_starts(served: Checked) -> None:
    served.say("a", "hang")
    job = served.add("touch", "started", gpus=2)
    until(lambda: len(list(served.checked())) == 1)
    served.cancel(job)
    assert served.ended(job) == "cancelled"
    assert (len(served.places(job)), served.held()) == (1, set())
    assert not (served.folder / "started").exists()


@pytest.mark.full
def test_a_scheduler_that_is_killed_in_the_midst_of_a_check_loses_nothing(served: Checked) -> None:
    served.say("a", "hang")
    job = served.add("sh", "-c", "echo started >> starts", gpus=1)
    until(lambda: len(list(served.checked())) == 1)
    served.end(signal.SIGKILL)
    (pid,) = [pid for pid, _, _ in served.checked()]
    until(lambda: not lives(pid))
    served.say("a", "fit")
    served.start()
    assert served.ended(job) == "succeeded"
    assert served.places(job) == ["a:0"]
    assert (served.folder / "starts").read_text() == "started\n"
    assert [node for _, node, _ in served.checked()] == ["a", "a"]
    assert served.quarantined() == {}


@pytest.mark.full
def test_a_node_that_is_not_in_order_after_a_job_goes_out_of_service(served: Checked) -> None:
    served.say("a", "memory", kind="after")
    job = served.add("true", gpus=2)
    assert served.ended(job) == "succeeded"
    assert [it["now"] for it in served.events(job)] == ["passed", "not cleaned"]
    assert served.events(job)[1]["cause"] == "a memory: site.after: fail: got smoke, wanted no smoke; replace it"
    assert served.quarantined()["a"]["check"] == "site.after"
    other = served.add("true", gpus=2)
    assert served.ended(other) == "succeeded"
    assert [it[0] for it in served.places(other)] == ["b"]


@pytest.mark.full
def test_the_seats_of_a_ring_and_its_spares_are_checked_as_well(served: Checked) -> None:
    served.say("a", "disk 0")
    job = served.add("true", gpus=2, spares=1, failover="switch", retry={"user": 0, "ambiguous": 0, "infra": 0})
    until(lambda: any(it["now"] == "passed" for it in served.events(job)))
    assert [it["now"] for it in served.events(job)] == ["failed", "passed"]
    checked = [f"{node}:{gpus}" for _, node, gpus in served.checked()]
    first, second = served.places(job)[:2]
    assert sorted(checked) == sorted([*first.split(), *second.split()])
    assert "a:" in first
    assert "a:" not in second
