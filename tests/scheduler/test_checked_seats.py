"""A GPU is checked before it takes an empty seat of a ring, and one that is not fit is struck off."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.backends.attempts import end_all
from tests.scheduler.checked import Checked
from tests.scheduler.ring_trials import RingTrial
from tests.scheduler.served import until
from tests.scheduler.served_rings import call_faulty, events, held_by, logged_steps, ring_job, running, seated


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Checked]:
    """A scheduler of three nodes of two GPUs."""
    made = Checked(tmp_path, *getattr(request, "param", (3, 2)))
    made.start()
    yield made
    if made.process is not None:
        made.cancel_all()
        made.end()


def whole_ring(served: Checked, **spec: Any) -> str:
    """Return a ring of two seats on node a, in mid training."""
    job = ring_job(served, 10**6, gpus=2, **spec)
    running(served, job, 10)
    assert held_by(served, job) == {("a", 0), ("a", 1)}
    return job


def came(served: Checked, job: str) -> list[tuple[str, int]]:
    """Return the GPUs that the ring was given while it ran."""
    return [(it["node"], it["gpu"]) for it in served.ask(f"/v1/jobs/{job}/ring")["replacements"]]


def words(served: Checked, job: str) -> list[str]:
    return [it["now"] for it in events(served, job) if it["now"] not in ("left", "empty")]


def test_a_gpu_that_passes_takes_the_seat_and_no_other_is_checked(served: Checked) -> None:
    job = whole_ring(served)
    call_faulty(served, "a", 0)
    until(lambda: sorted(seated(served, job)) == [1, 2])
    assert came(served, job) == [("b", 0)]
    assert words(served, job) == ["checked", "taken"]
    assert [(it["now"], it["attempt"]) for it in served.events(job)] == [("passed", 1), ("passed", 1)]
    assert [(node, gpus) for _, node, gpus in served.checked()] == [("a", "0,1"), ("b", "0")]
    seen = [(it["kind"], it["now"]) for it in served.ask(f"/v1/jobs/{job}/events")]
    assert seen.index(("seat", "taken")) > len(seen) - 1 - seen[::-1].index(("preflight", "passed"))


@pytest.mark.full
def test_a_gpu_that_fails_is_struck_off_and_the_next_takes_the_seat(served: Checked) -> None:
    served.say("b", "disk 0")
    job = whole_ring(served)
    call_faulty(served, "a", 0)
    until(lambda: len(seated(served, job)) == 2 and 0 not in seated(served, job))
    assert words(served, job) == ["checked", "rejected", "checked", "taken"]
    (struck,) = [it for it in events(served, job) if it["now"] == "rejected"]
    assert struck["cause"] == (
        "GPU 0 of b takes no seat: the checks before its seat did not pass (1 of 3), so another one is tried: "
        "b disk 0: site.before: fail: got smoke, wanted no smoke; replace it"
    )
    entry = served.quarantined()["b"]
    assert (entry["check"], entry["evidence"]) == ("site.before", "disk 0: got smoke, wanted no smoke")
    assert came(served, job) == [("c", 0)]
    assert held_by(served, job) == {("a", 1), ("c", 0)}
    assert logged_steps(served, job, 2) != []
    assert len(served.ask(f"/v1/jobs/{job}/attempts")) == 1


@pytest.mark.full
def test_a_scheduler_that_is_killed_while_it_holds_a_gpu_for_a_seat_fills_it_once(served: Checked) -> None:
    """A process that is really killed, by SIGKILL, with a GPU that is reserved and not given yet."""
    served.say("b", "hang")
    job = whole_ring(served)
    call_faulty(served, "a", 0)
    until(lambda: ("b", 0) in held_by(served, job) and any(node == "b" for _, node, _ in served.checked()))
    served.end(signal.SIGKILL)
    served.say("b", "fit")
    served.start()
    until(lambda: len(seated(served, job)) == 2 and 0 not in seated(served, job))
    assert came(served, job) == [(node, gpu) for node, gpu in sorted(held_by(served, job)) if node != "a"]
    assert len(held_by(served, job)) == 2
    assert [it["now"] for it in events(served, job)].count("taken") == 1
    assert served.quarantined().keys() <= {"a:0"}
    assert len(served.ask(f"/v1/jobs/{job}/attempts")) == 1


@pytest.mark.full
def test_a_ring_does_not_wait_for_a_check_that_hangs(served: Checked) -> None:
    served.say("b", "hang")
    job = whole_ring(served)
    call_faulty(served, "a", 0)
    until(lambda: "empty" in [it["now"] for it in events(served, job)])
    until(lambda: seated(served, job) == [1])  # it goes on without, and b is still being checked
    assert ("b", 0) in held_by(served, job)
    until(lambda: len(seated(served, job)) == 2)
    assert came(served, job) == [("c", 0)]
    assert "b" in served.quarantined()
    assert words(served, job) == ["checked", "rejected", "checked", "taken"]


@pytest.mark.parametrize("served", [(2, 2)], indirect=True)
@pytest.mark.full
def test_a_ring_for_which_nothing_is_fit_goes_on_without_and_grows_once_something_is(served: Checked) -> None:
    served.say("b", "disk 0")
    job = whole_ring(served)
    call_faulty(served, "a", 0)
    until(lambda: "rejected" in words(served, job))
    until(lambda: seated(served, job) == [1])
    assert (came(served, job), held_by(served, job)) == ([], {("a", 1)})
    served.say("b", "fit")
    assert served.call("node", "quarantine", "clear", "b").returncode == 0
    until(lambda: sorted(seated(served, job)) == [1, 2])
    assert words(served, job) == ["checked", "rejected", "checked", "taken"]
    assert len(served.ask(f"/v1/jobs/{job}/attempts")) == 1


@pytest.mark.full
def test_a_job_that_wants_no_checks_gets_a_gpu_unchecked(served: Checked) -> None:
    served.say("b", "gpu 0")
    job = whole_ring(served, preflight="off")
    call_faulty(served, "a", 0)
    until(lambda: sorted(seated(served, job)) == [1, 2])
    assert came(served, job) == [("b", 0)]
    assert (served.events(job), list(served.checked())) == ([], [])


@pytest.mark.full
def test_a_gpu_that_a_ring_has_left_before_is_checked_and_held_like_any_other(tmp_path: Path) -> None:
    trial = RingTrial(tmp_path, {"a": 2}, checks=True)
    job = trial.submit_ring(2)
    trial.until(lambda: trial.job(job).state == "running" and trial.is_settled(job))
    trial.lose(job, ("a", 0))
    trial.until(lambda: trial.is_settled(job))
    assert trial.holds(job) == {("a", 0), ("a", 1)}
    assert [it.now for it in trial.seats_of(job) if it.now != "empty"] == ["left", "checked", "taken"]
    trial.assert_arrays_are_as_the_store()
    trial.close()
    end_all(tmp_path)
