"""Members that are still being started when their ring is done, and a coordinator that is restarted then."""

import os
import signal
from pathlib import Path

import pytest

from longshore.ring import wire
from longshore.ring.coordinator import LAUNCHERS, Coordinator
from longshore.ring.membership import Phase, RingLimits
from longshore.ring.ring_client import request_ring_report

from .coordinator_process import Peer, Process, can_connect, started, wait_for
from .obedient_ring import Ring
from .trial import LIMIT_S


def finished(ring: Ring) -> None:
    for number in ring.order():
        ring.send(wire.MemberDone(number, ring.coordinator.state.generation, 9))
    ring.answer()
    assert ring.coordinator.state.phase is Phase.DONE


@pytest.mark.parametrize("reported", ["before the end", "after it"])
def test_a_member_that_is_still_being_started_when_the_ring_is_done_is_declared_gone(reported: str) -> None:
    """It would connect when no process listens any more, and fail."""
    ring = Ring(2, spares=1)
    if reported == "before the end":
        ring.launch(3)
    finished(ring)
    if reported == "after it":
        ring.launch(3)
    assert list(ring.coordinator.state.gone) == ["3"]
    declared = [it for to, it in ring.sent if to == LAUNCHERS and isinstance(it, wire.MemberGone)]
    assert [it.member for it in declared] == [3]
    ring.join(3)
    assert isinstance(ring.sent[-1][1], wire.Evicted)


def test_a_coordinator_that_restarts_after_the_end_declares_only_those_gone_that_had_no_seat() -> None:
    """A launcher repeats that all are started, and those that had a seat may still write their results."""
    ring = Ring(2, spares=1)
    finished(ring)
    ring.coordinator = Coordinator(2, RingLimits(), 1.0, ring.coordinator.state)
    for number in range(4):
        ring.launch(number)
    assert set(ring.coordinator.state.gone) == {"2", "3"}


def reconnect(ring: Process, number: int) -> Peer:
    member = Peer(ring, "member", number, generation=1)
    assert member.receive(wire.Finish) == wire.Finish(1)
    assert [it for it in member.beat() if not isinstance(it, wire.Finish)] == []  # its heartbeat is answered
    return member


@pytest.mark.parametrize("first", ["launcher", "members"])
def test_processes_that_reconnect_to_a_coordinator_that_was_killed_at_the_end_receive_the_end(
    first: str, tmp_path: Path
) -> None:
    with started(tmp_path, linger_s=LIMIT_S) as ring:
        ring.run_ring()
        for member in ring.members:
            member.send(wire.MemberDone(member.member, 1, 7))
        ring.all_receive(wire.Finish(1))
        before = request_ring_report(tmp_path)
        assert before is not None
        assert (before.phase, before.step) == ("done", 7)
        os.kill(ring.pid, signal.SIGKILL)
    with started(tmp_path, linger_s=LIMIT_S) as ring:
        wait_for(lambda: can_connect(ring))
        if first == "members":
            reconnect(ring, 0)
        launcher = Peer(ring, "launcher")
        for number in range(4):
            launcher.send(wire.MemberStarting(number))
        assert launcher.receive(wire.MemberGone) == wire.MemberGone(3, "the ring was done before it connected")
        for number in range(3):
            reconnect(ring, number)
        assert Peer(ring, "member", 3).receive(wire.Evicted) == wire.Evicted("the ring was done before it connected")
        assert request_ring_report(tmp_path) == before
