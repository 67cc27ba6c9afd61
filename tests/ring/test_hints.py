"""Hints on a script that may be wrong: it makes no ring, or never ends a step."""

import pytest

from longshore.ring import wire
from longshore.ring.coordinator import LAUNCHERS, SCHEDULERS, Coordinator
from longshore.ring.membership import RingLimits

from .obedient_ring import Ring


def hints(ring: Ring) -> list[str]:
    return [message.text for to, message in ring.sent if isinstance(message, wire.ScriptHint) and to == SCHEDULERS]


@pytest.mark.parametrize("idle", [{0}, {0, 1, 2}], ids=str)
def test_a_ring_whose_script_ends_no_step_causes_one_hint(idle: set[int]) -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(3, RingLimits(), 0.0)
    ring.idle = idle
    for number in range(3):
        ring.join(number)
    assert hints(ring) == []
    ring.wait(200.0)
    (hint,) = hints(ring)
    assert "ring.step()" in hint
    assert ", ".join(map(str, sorted(idle))) in hint
    assert ring.coordinator.report().hints == [hint]
    for number in idle:
        ring.send(wire.FirstStep(number, 1, 1))
    ring.wait(1.0)
    assert ring.coordinator.report().hints == []


def test_members_that_were_started_and_do_not_connect_cause_a_hint_before_they_are_ended() -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(2, RingLimits(), 0.0)
    for number in range(2):
        ring.launch(number)
    ring.wait(61.0)
    (hint,) = hints(ring)
    assert "members 0, 1" in hint
    assert "`with Ring(...)`" in hint
    assert not ring.coordinator.state.phase.is_over
    ring.wait(241.0)
    assert ring.coordinator.state.outcome.startswith("no member connected")
    assert len(hints(ring)) == 1


def test_the_reason_of_a_lost_ring_names_its_last_member() -> None:
    ring = Ring(2)
    for number in range(2):
        ring.coordinator.receive_launcher_message(wire.MemberExited(number, 1, "ImportError: no such thing"), 0.0)
        ring.answer()
    (end,) = [message for to, message in ring.sent if isinstance(message, wire.RingEnd) and to == LAUNCHERS]
    assert end.reason.endswith("; the last: member 1: its process ended with status 1: ImportError: no such thing")
