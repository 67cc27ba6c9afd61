"""Members that are still being started when their ring is done."""

import pytest

from longshore.scheduler.failover import wire
from longshore.scheduler.failover.rounds import LAUNCHERS, Rounds
from longshore.scheduler.failover.settings import Limits
from longshore.scheduler.failover.standing import Phase

from .test_rounds_cases import Ring


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
