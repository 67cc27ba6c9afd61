"""What people are told of a script that may be wrong: it makes no ring, or never ends a step."""

import pytest

from longshore.ring import wire
from longshore.ring.rounds import DESKS, LAUNCHERS, Rounds
from longshore.ring.standing import Limits

from .obedient_ring import Ring


def hints(ring: Ring) -> list[str]:
    return [message.words for to, message in ring.told if isinstance(message, wire.Hint) and to == DESKS]


@pytest.mark.parametrize("idle", [{0}, {0, 1, 2}], ids=str)
def test_a_ring_whose_script_ends_no_step_is_told_of_once(idle: set[int]) -> None:
    ring = Ring(0)
    ring.rounds = Rounds(3, Limits(), 0.0)
    ring.idle = idle
    for number in range(3):
        ring.join(number)
    assert hints(ring) == []
    ring.wait(200.0)
    (words,) = hints(ring)
    assert "ring.step()" in words
    assert ", ".join(map(str, sorted(idle))) in words
    assert ring.rounds.report().hints == [words]
    for number in idle:
        ring.say(wire.Running(number, 1, 1))
    ring.wait(1.0)
    assert ring.rounds.report().hints == []


def test_members_that_were_started_and_say_nothing_are_told_of_before_they_are_ended() -> None:
    ring = Ring(0)
    ring.rounds = Rounds(2, Limits(), 0.0)
    for number in range(2):
        ring.launch(number)
    ring.wait(61.0)
    (words,) = hints(ring)
    assert "members 0, 1 said nothing for 60 s: does the script come to `with Ring(...)`?" in words
    assert not ring.rounds.durable.phase.is_over
    ring.wait(241.0)
    assert ring.rounds.durable.outcome.startswith("no member came")
    assert len(hints(ring)) == 1


def test_a_ring_that_is_lost_says_what_became_of_its_last_member() -> None:
    ring = Ring(2)
    for number in range(2):
        ring.rounds.launcher_said(wire.Exited(number, 1, "ImportError: no such thing"), 0.0)
        ring.answer()
    (end,) = [message for to, message in ring.told if isinstance(message, wire.End) and to == LAUNCHERS]
    assert end.reason.endswith("; the last: member 1: its process ended with status 1: ImportError: no such thing")
