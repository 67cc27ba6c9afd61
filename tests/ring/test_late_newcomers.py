"""Members that are still being started when their ring is done, and a coordinator that is started again then."""

import os
import signal
from pathlib import Path

import pytest

from longshore.ring import wire
from longshore.ring.asking import ask_report
from longshore.ring.rounds import LAUNCHERS, Rounds
from longshore.ring.standing import Limits, Phase

from .coordinator_process import Peer, Process, can_connect, started, wait_for
from .obedient_ring import Ring
from .trial import LIMIT_S


def finished(ring: Ring) -> None:
    for number in ring.order():
        ring.say(wire.Done(number, ring.rounds.durable.generation, 9))
    ring.answer()
    assert ring.rounds.durable.phase is Phase.DONE


@pytest.mark.parametrize("told", ["before the end", "after it"])
def test_a_member_that_is_still_being_started_when_the_ring_is_done_is_let_go(told: str) -> None:
    """It would come once nobody is there any more, and fail."""
    ring = Ring(2, spares=1)
    if told == "before the end":
        ring.launch(3)
    finished(ring)
    if told == "after it":
        ring.launch(3)
    assert list(ring.rounds.durable.gone) == ["3"]
    declared = [it for to, it in ring.told if to == LAUNCHERS and isinstance(it, wire.Declared)]
    assert [it.member for it in declared] == [3]
    ring.join(3)
    assert isinstance(ring.told[-1][1], wire.Gone)


def test_a_coordinator_that_is_started_again_behind_the_end_lets_only_those_go_that_had_no_seat() -> None:
    """A launcher says again of all that they are started, and those that had a seat may still write their results."""
    ring = Ring(2, spares=1)
    finished(ring)
    ring.rounds = Rounds(2, Limits(), 1.0, ring.rounds.durable)
    for number in range(4):
        ring.launch(number)
    assert set(ring.rounds.durable.gone) == {"2", "3"}


def comes_back(ring: Process, number: int) -> Peer:
    member = Peer(ring, "member", number, generation=1)
    assert member.hear(wire.Finish) == wire.Finish(1)
    assert [it for it in member.beat() if not isinstance(it, wire.Finish)] == []  # its beat is answered
    return member


@pytest.mark.parametrize("first", ["launcher", "members"])
def test_who_comes_back_to_a_coordinator_that_was_killed_at_the_end_hears_of_the_end(
    first: str, tmp_path: Path
) -> None:
    with started(tmp_path, linger_s=LIMIT_S) as ring:
        ring.run_ring()
        for member in ring.members:
            member.say(wire.Done(member.member, 1, 7))
        ring.all_hear(wire.Finish(1))
        before = ask_report(tmp_path)
        assert before is not None
        assert (before.phase, before.step) == ("done", 7)
        os.kill(ring.pid, signal.SIGKILL)
    with started(tmp_path, linger_s=LIMIT_S) as ring:
        wait_for(lambda: can_connect(ring))
        if first == "members":
            comes_back(ring, 0)
        launcher = Peer(ring, "launcher")
        for number in range(4):
            launcher.say(wire.Starting(number))
        assert launcher.hear(wire.Declared) == wire.Declared(3, "the ring was done before it came")
        for number in range(3):
            comes_back(ring, number)
        assert Peer(ring, "member", 3).hear(wire.Gone) == wire.Gone("the ring was done before it came")
        assert ask_report(tmp_path) == before
