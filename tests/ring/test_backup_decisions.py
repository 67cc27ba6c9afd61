"""When a coordinator relieves a slow member, and when the member gets its seat back, case by case."""

import statistics
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring import wire
from longshore.ring.coordinator import LAUNCHERS, Coordinator
from longshore.ring.membership import MIN_EXCESS_S, SLOW_RATIO, Backups, Phase, RingLimits, slow_members

from .obedient_ring import Ring
from .simulated_ring import copied

LIMITS = RingLimits(slow_steps=3, well_steps=4, hold_steps=20, coming_s=10.0)
COPY_S = 2.0
SLOW = {1: 4.0}


class Timed(Ring):
    """A ring whose members report how long they compute; one second is one step."""

    def __init__(self, seats: int, spares: int = 0, backups: int = 1, until: int = 10**6) -> None:
        super().__init__(0)
        self.seats, self.spares, self.backups, self.until = seats, spares, backups, until
        self.beat_of: dict[int, wire.Heartbeat] = {}  # heartbeats that members without a seat send instead
        self.coordinator = Coordinator(seats, LIMITS, 0.0, backups=self.policy())
        for number in range(seats + spares):
            self.join(number)
        self.coordinator.state.cost_s = COPY_S  # as members report at the start of a ring

    def policy(self) -> Backups:
        return Backups(LIMITS, backups=self.backups, spares=self.spares)

    def train(self, steps: int, slow: Mapping[int, float] = {}) -> None:
        """Let members compute for a second, and slow ones for longer; those without a seat measure themselves."""
        for _ in range(steps):
            self.now_s += 1.0
            for number in sorted(self.coordinator.members):
                self.report_step(number, slow.get(number, 1.0))
            self.coordinator.tick(self.now_s)
            self.answer()

    def report_step(self, number: int, compute_s: float) -> None:
        state = self.coordinator.state
        if state.has_seat(number):
            self.steps[number] = self.steps.get(number, 0) + 1
        step = self.steps.get(number, 0)
        if number in self.beat_of and not state.has_seat(number):
            self.send(self.beat_of[number])
            self.send(wire.TrialStep(number, compute_s))
            return
        self.send(wire.Heartbeat(number, state.generation, 0, step, compute_s=compute_s, step_s=9.0, until=self.until))
        self.send(wire.TrialStep(number, compute_s))

    def restart(self) -> None:
        """The coordinator is killed and restarted, and all members reconnect."""
        members = dict(self.coordinator.members)
        self.coordinator = Coordinator(self.seats, LIMITS, self.now_s, copied(self.coordinator.state), self.policy())
        for number, it in members.items():
            is_fresh = not self.coordinator.state.has_seat(number)
            generation, step = self.coordinator.state.generation, self.steps.get(number, 0)
            hello = wire.Hello("member", number, it.token, generation, step, is_fresh)
            assert self.coordinator.admit_member(hello, self.now_s)
        self.answer()

    @property
    def relieved(self) -> list[int]:
        return list(map(int, self.coordinator.state.relieved))

    def needing_backup(self) -> list[int]:
        """Return the slow members of the last seat request."""
        return [it.member for it in self.seat_requests()[-1].slow] if self.seat_requests() else []


def test_a_spare_has_the_seat_of_a_slow_member_after_three_slow_steps() -> None:
    ring = Timed(4, spares=1)
    ring.train(5)
    ring.train(2, SLOW)
    assert ring.order() == [0, 1, 2, 3]
    ring.train(1, SLOW)
    assert (ring.order(), ring.relieved, ring.coordinator.state.phase) == ([0, 4, 2, 3], [1], Phase.RUNNING)
    assert (1, wire.Relieved(2)) in ring.sent


def test_without_a_spare_the_scheduler_gets_a_request_and_the_member_that_connects_has_the_seat() -> None:
    ring = Timed(4)
    ring.coordinator.scheduler_connected(0.0)
    ring.train(4, SLOW)
    assert ring.seat_requests()[-1].slow == [wire.SlowSeat(1, 1, 0, 2)]
    assert (ring.order(), ring.relieved) == ([0, 1, 2, 3], [])
    ring.join(4)
    assert (ring.order(), ring.relieved) == ([0, 4, 2, 3], [1])
    assert (ring.seat_requests()[-1].slow, ring.seat_requests()[-1].relieved) == ([], [1])


@pytest.mark.parametrize(
    ("backups", "slow"),
    # In the last case all would wait for the other slow member.
    [(0, SLOW), (1, {1: 2.9}), (1, dict.fromkeys(range(4), 4.0)), (1, {0: 4.0, 1: 4.0})],
)
def test_no_member_is_relieved_if_none_may_be_or_none_is_far_slower_than_the_others(
    backups: int, slow: dict[int, float]
) -> None:
    """With a slow link all wait alike, and no member computes longer: steps take nine seconds here."""
    ring = Timed(4, spares=1, backups=backups)
    ring.train(30, slow)
    assert (ring.order(), ring.needing_backup()) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize(("left", "is_worth"), [(0, False), (1, True)])
def test_a_backup_has_to_gain_more_than_the_change_costs(left: int, is_worth: bool) -> None:  # noqa: FBT001
    """A step gains three seconds, and the copy took two of them."""
    ring = Timed(4, spares=1, until=4 + left)
    ring.train(4, SLOW)
    assert bool(ring.relieved) is is_worth


def test_no_more_members_are_relieved_than_may_be_and_the_slowest_goes_first() -> None:
    ring = Timed(8, spares=2, backups=1)
    ring.train(6, {1: 4.0, 5: 6.0})
    assert ring.relieved == [5]
    ring = Timed(8, spares=2, backups=2)
    ring.train(12, {1: 4.0, 5: 6.0})
    assert ring.relieved == [5, 1]


def test_a_member_that_is_fast_again_has_its_seat_back_once_its_backup_was_held_long_enough() -> None:
    ring = Timed(4)
    ring.train(4, SLOW)
    ring.join(4)
    ring.train(18)
    assert ring.relieved == [1]
    ring.train(2)
    assert (ring.order(), ring.relieved) == ([0, 1, 2, 3], [])
    assert any(to == LAUNCHERS and isinstance(it, wire.MemberGone) and it.member == 4 for to, it in ring.sent)


def test_a_member_that_is_nearly_fast_enough_has_no_seat() -> None:
    ring = Timed(4)
    ring.train(4, SLOW)
    ring.join(4)
    ring.train(40, {1: 1.6})
    assert ring.relieved == [1]


def test_a_spare_that_became_the_backup_keeps_the_seat_and_the_other_one_waits() -> None:
    ring = Timed(4, spares=1)
    ring.train(4, SLOW)
    ring.train(30)
    assert (ring.order(), ring.relieved, ring.coordinator.report().spares) == ([0, 4, 2, 3], [], [1])
    ring.exit(2)
    assert ring.order() == [0, 4, 1, 3]


def test_a_relieved_member_takes_no_empty_seat_and_sends_no_state() -> None:
    ring = Timed(2)
    ring.train(4, SLOW)
    ring.join(2)
    ring.exit(2)
    ring.wait(5.0)
    assert (ring.order(), ring.relieved) == ([0, -1], [1])
    ring.exit(0)
    assert ring.coordinator.state.phase is Phase.LOST


def test_a_relieved_member_that_dies_leaves_the_seat_to_its_backup() -> None:
    ring = Timed(4)
    ring.train(4, SLOW)
    ring.join(4)
    ring.exit(1)
    ring.train(40)
    assert (ring.order(), ring.relieved, sorted(ring.coordinator.members)) == ([0, 4, 2, 3], [], [0, 2, 3, 4])


def test_a_backup_that_connects_when_no_member_is_slow_any_more_is_dismissed_after_a_while() -> None:
    ring = Timed(4)
    ring.train(4, SLOW)
    ring.train(4)
    ring.join(4)
    ring.train(9)
    assert 4 in ring.coordinator.members
    ring.train(4)
    assert sorted(ring.coordinator.members) == [0, 1, 2, 3]
    assert ring.coordinator.state.generation == 1


def test_a_restarted_coordinator_knows_which_members_are_relieved_and_dismisses_none_at_once() -> None:
    ring = Timed(4)
    ring.train(4, SLOW)
    ring.join(4)
    ring.train(5, SLOW)
    ring.restart()
    assert ring.relieved == [1]
    assert (1, wire.Relieved(2)) in ring.sent[-20:]
    ring.train(5, SLOW)
    assert (ring.order(), ring.relieved) == ([0, 4, 2, 3], [1])
    ring.train(30)
    assert (ring.order(), ring.relieved) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("ahead", [-1, 0, 1, 7])
@pytest.mark.parametrize("killed_at", [None, 0, 3, 15, 25])
def test_a_relieved_member_is_judged_by_its_trial_steps_alone(ahead: int, killed_at: int | None) -> None:
    """Its heartbeats still report its last step, which was slow, and which the coordinator may not know."""
    ring = Timed(4)
    ring.train(4, SLOW)
    ring.join(4)
    assert ring.relieved == [1]
    beat = wire.Heartbeat(1, 1, 0, ring.steps[1] + ahead, compute_s=4.0, step_s=9.0, until=ring.until)
    for second in range(45):
        if second == killed_at:
            ring.restart()
        ring.beat_of[1] = beat
        ring.train(1)
    assert (ring.order(), ring.relieved) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("generation", [0, 1])
def test_a_seated_member_is_judged_by_steps_of_the_present_generation_alone(generation: int) -> None:
    ring = Timed(4, spares=1)
    ring.exit(3)
    ring.train(4)
    assert ring.coordinator.state.generation == 2
    for _ in range(10):
        for ahead in (1, 2):
            ring.send(
                wire.Heartbeat(1, generation, 0, ring.steps[1] + ahead, compute_s=4.0, step_s=9.0, until=ring.until)
            )
        ring.train(1)
    assert ring.relieved == []


@pytest.mark.parametrize("killed_at", [None, 0, 1, 2])
def test_a_restarted_coordinator_knows_what_a_change_costs(killed_at: int | None) -> None:
    """Less than a minute is left, which a coordinator without its state file would assume for a change."""
    ring = Timed(4, until=4 + 45)
    steps: list[Callable[[], None]] = [
        lambda: ring.train(4, SLOW), lambda: ring.join(4), lambda: ring.train(30)
    ]  # fmt: skip
    for number, step in enumerate(steps):
        if number == killed_at:
            ring.restart()
        step()
    assert (ring.order(), ring.relieved) == ([0, 1, 2, 3], [])


@given(st.dictionaries(st.integers(0, 30), st.floats(1e-6, 1e6), max_size=20))
def test_a_member_computes_far_longer_if_it_takes_three_times_the_median_of_the_others(
    compute_s: dict[int, float],
) -> None:
    found = {it.number: it for it in slow_members(compute_s)}
    for number, time_s in compute_s.items():
        others = [it for other, it in compute_s.items() if other != number]
        others_s = statistics.median(others) if others else time_s
        assert (number in found) == (time_s > SLOW_RATIO * others_s and time_s - others_s > MIN_EXCESS_S)
        assert number not in found or found[number] == (number, time_s, others_s)
