"""A real scheduler whose clock is set by an hour while a ring runs: the ring goes on, and gets GPUs as ever."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .served import Served, until
from .served_rings import CLUSTER, call_faulty, events, held_by, ring_job, running, seated
from .set_clock import SetClock

pytestmark = pytest.mark.full

HOUR_S = 3600


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    return SetClock(tmp_path)


@pytest.fixture
def served(tmp_path: Path, clock: SetClock) -> Iterator[Served]:
    """A scheduler whose clock is set by the test."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    it = Served(tmp_path, "--cluster", "cluster.yaml")
    it.environment |= clock.environment
    it.start()
    yield it
    it.cancel_all()
    it.end()


@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_is_set_is_no_fault_of_a_ring_and_an_empty_seat_is_filled(
    served: Served, clock: SetClock, set_s: int
) -> None:
    job = ring_job(served, 10**6, gpus=2)
    before = running(served, job, 10)
    clock.set(set_s)
    later = running(served, job, before["step"] + 100)  # seconds
    assert (later["generation"], later["gone"], later["order"]) == (1, {}, [0, 1])
    node, gpu = min(held_by(served, job))
    call_faulty(served, node, gpu)
    until(lambda: (node, gpu) not in held_by(served, job) and sorted(seated(served, job)) == [1, 2])
    (taken,) = [it for it in events(served, job) if it["now"] == "taken"]
    first = served.ask(f"/v1/jobs/{job}/events")[0]
    assert abs(taken["at_s"] - first["at_s"] - set_s) < HOUR_S / 2  # the scheduler saw the other clock
    (attempt,) = served.ask(f"/v1/jobs/{job}/attempts")
    assert attempt["state"] == "running"
