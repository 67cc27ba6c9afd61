"""Rings under a real scheduler get free GPUs for their empty seats, and give back those that they have left."""

import pytest

from .served import Served, until
from .served_rings import call_faulty, events, held_by, holders, logged_steps, ring_job, running, seated


@pytest.mark.full
def test_a_free_gpu_takes_the_seat_of_one_that_is_found_faulty(small: Served) -> None:
    job = ring_job(small, 10**6, gpus=2)
    running(small, job, 10)
    before = held_by(small, job)
    node, gpu = sorted(before)[0]
    call_faulty(small, node, gpu)
    until(lambda: len(held_by(small, job) - before) == 1 and (node, gpu) not in held_by(small, job))
    until(lambda: sorted(seated(small, job)) == [1, 2])
    assert [it["now"] for it in events(small, job)] in (["taken", "left"], ["left", "taken"])
    assert len(small.ask(f"/v1/jobs/{job}/attempts")) == 1
    shown = small.call("status", job).stdout
    assert "for an empty seat" in shown
    assert "chosen" in shown
    small.cancel(job)
    assert small.ended(job) == "cancelled"
    until(lambda: set(holders(small).values()) == {None})
    assert logged_steps(small, job, 2) != []
