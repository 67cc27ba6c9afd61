"""The coordinator's decisions, case by case."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring import wire
from longshore.ring.coordinator import LAUNCHERS, WORN_OUT, Coordinator
from longshore.ring.membership import MISMATCHED_UNTIL_S, RESTARTED, MemberState, Phase, RingLimits, until_mismatch
from tests.ring.obedient_ring import Ring
from tests.ring.simulated_ring import copied


def test_each_member_has_the_seat_of_its_number_in_any_order_of_connections() -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(3, RingLimits(), 0.0)
    for number in (3, 2, 0):
        ring.join(number)
    assert ring.order() == [0, -1, 2]
    ring.join(1)
    assert ring.order() == [0, 1, 2]
    assert ring.coordinator.state.phase is Phase.RUNNING


def test_a_member_that_exits_at_the_start_is_replaced_by_a_spare() -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(2, RingLimits(), 0.0)
    ring.join(0)
    ring.join(2)
    ring.exit(1)
    assert ring.order() == [0, 2]


def test_a_spare_takes_a_seat_before_the_scheduler_gets_a_request() -> None:
    ring = Ring(3, spares=1)
    ring.coordinator.scheduler_connected(0.0)
    ring.exit(1)
    assert ring.order() == [0, 3, 2]
    assert ring.coordinator.state.generation == 2
    assert not any(request.empty for request in ring.seat_requests())


def test_the_scheduler_gets_the_empty_seat_and_its_neighbours() -> None:
    ring = Ring(4)
    ring.coordinator.scheduler_connected(0.0)
    ring.exit(3)
    (request,) = ring.seat_requests()
    assert request.empty == [wire.EmptySeat(seat=3, before=2, after=0)]
    assert request.order == [0, 1, 2]


def test_the_ring_waits_for_an_offered_member_and_gives_it_the_seat() -> None:
    ring = Ring(4)
    ring.coordinator.scheduler_connected(0.0)
    ring.exit(1)
    ring.coordinator.receive_scheduler_message(wire.MemberOffer(4), ring.now_s)
    ring.wait(10.0)
    assert ring.coordinator.state.phase is Phase.STOPPING
    ring.launch(7, rank=4)
    ring.join(7)
    assert (ring.order(), ring.coordinator.state.generation) == ([0, 7, 2, 3], 2)


def test_the_ring_waits_no_longer_for_an_offered_member_whose_process_has_exited() -> None:
    ring = Ring(4)
    ring.coordinator.scheduler_connected(0.0)
    ring.exit(1)
    ring.coordinator.receive_scheduler_message(wire.MemberOffer(4), ring.now_s)
    ring.launch(4, rank=4)
    ring.exit(4)
    ring.coordinator.receive_scheduler_message(wire.MemberOffer(4), ring.now_s)  # repeated, and too late
    ring.wait(3.0)
    assert (ring.order(), ring.coordinator.state.phase) == ([0, -1, 2, 3], Phase.RUNNING)


def test_two_offered_members_join_in_one_recovery() -> None:
    ring = Ring(4)
    ring.coordinator.scheduler_connected(0.0)
    ring.exit(1)
    ring.exit(2)
    for rank in (4, 5):
        ring.coordinator.receive_scheduler_message(wire.MemberOffer(rank), ring.now_s)
    ring.launch(8, rank=5)
    ring.join(8)
    ring.wait(10.0)
    assert ring.coordinator.state.phase is Phase.STOPPING
    ring.launch(9, rank=4)
    ring.join(9)
    assert (ring.order(), ring.coordinator.state.generation) == ([0, 8, 9, 3], 2)


@pytest.mark.parametrize("answer", ["none", "nothing", "no scheduler", "one that never connects", "one that dies"])
def test_without_a_new_member_the_ring_shrinks(answer: str) -> None:
    ring = Ring(4, limits=RingLimits(coming_s=5.0))
    if answer != "no scheduler":
        ring.coordinator.scheduler_connected(0.0)
    ring.exit(1)
    if answer == "none":
        ring.coordinator.receive_scheduler_message(wire.NoMemberOffer("no GPU is free"), ring.now_s)
        ring.answer()
    elif answer.startswith("one"):
        ring.coordinator.receive_scheduler_message(wire.MemberOffer(9), ring.now_s)
        if answer == "one that dies":
            ring.exit(9)
    if answer not in ("none", "no scheduler"):
        assert ring.coordinator.state.phase is Phase.STOPPING
        ring.wait(6.0)
    assert (ring.order(), ring.coordinator.state.phase) == ([0, -1, 2, 3], Phase.RUNNING)
    layouts = [it for _, it in ring.sent if isinstance(it, wire.RingLayout)]
    assert [assignment.shards for assignment in layouts[-1].assignments] == [[0, 1], [2], [3]]


def test_a_member_that_connects_later_makes_the_ring_whole_once_it_has_made_a_step() -> None:
    ring = Ring(3)
    ring.exit(0)
    assert ring.order() == [-1, 1, 2]
    ring.join(5)
    assert (ring.order(), ring.coordinator.state.generation) == ([5, 1, 2], 3)
    assert len({ring.steps[it] for it in (1, 2, 5)}) == 1


def test_a_silent_member_is_declared_gone_after_ten_seconds_and_not_before() -> None:
    ring = Ring(4, spares=1)
    ring.quiet.add(2)
    ring.wait(9.5)
    assert ring.order() == [0, 1, 2, 3]
    ring.wait(1.5)
    assert ring.order() == [0, 1, 4, 3]


def test_if_most_are_silent_none_is_declared_gone_until_they_have_ended_themselves() -> None:
    ring = Ring(5)
    ring.quiet |= {1, 2, 3}
    ring.wait(50.0)
    assert ring.order() == [0, 1, 2, 3, 4]
    ring.wait(11.0)
    assert ring.order() == [0, -1, -1, -1, 4]


def test_sixty_of_a_hundred_that_are_silent_at_once_are_one_alarm() -> None:
    ring = Ring(100)
    ring.quiet |= set(range(20, 80))
    ring.wait(30.0)
    assert ring.order() == list(range(100))
    assert len([it for it in ring.coordinator.log_lines if it.startswith("alarm")]) == 1
    ring.quiet.clear()
    ring.wait(30.0)
    assert ring.order() == list(range(100))


def test_most_that_fall_silent_one_after_the_other_within_a_heartbeat_are_no_fault_of_the_first() -> None:
    ring = Ring(4)
    for number in range(4):
        ring.quiet.add(number)
        ring.wait(0.3)
    ring.wait(40.0)
    assert ring.order() == [0, 1, 2, 3]


def test_a_coordinator_that_stood_still_declares_no_member_gone() -> None:
    ring = Ring(4)
    ring.now_s += 100.0
    ring.coordinator.tick(ring.now_s)
    assert ring.order() == [0, 1, 2, 3]


def forming() -> Ring:
    """A ring of which a member does not get ready."""
    ring = Ring(3, spares=1)
    ring.quiet.add(2)
    ring.exit(1)
    ring.send(wire.Stopped(2, 2, 0, awaits_layout=True))
    ring.answer()
    assert ring.coordinator.state.phase is Phase.FORMING
    return ring


def offered() -> Ring:
    """A ring that waits for a member that was offered."""
    ring = Ring(4)
    ring.coordinator.scheduler_connected(0.0)
    ring.exit(1)
    ring.coordinator.receive_scheduler_message(wire.MemberOffer(7), ring.now_s)
    return ring


def returning() -> Ring:
    """A ring whose coordinator was restarted while it was formed."""
    ring = forming()
    ring.coordinator = Coordinator(3, RingLimits(), ring.now_s, copied(ring.coordinator.state))
    return ring


@pytest.mark.parametrize("make", [forming, offered, returning, lambda: Ring(3)])
@pytest.mark.parametrize("gap_s", [11.0, 60.5, 3600.0])
def test_a_coordinator_that_stood_still_decides_nothing_for_that(make: Callable[[], Ring], gap_s: float) -> None:
    ring = make()
    ring.wait(1.0)
    before = ring.coordinator.report()
    ring.now_s += gap_s
    ring.coordinator.tick(ring.now_s)
    ring.answer()
    assert ring.coordinator.report() == before


@pytest.mark.parametrize("after_s", [0.0, 100_000.0])
def test_a_coordinator_that_is_restarted_measures_from_its_restart(after_s: float) -> None:
    ring = Ring(3)
    ring.now_s += after_s
    ring.coordinator = Coordinator(3, RingLimits(), ring.now_s, copied(ring.coordinator.state))
    for number in range(3):
        ring.coordinator.admit_member(wire.Hello("member", number, f"t{number}", 1, 1, fresh=False), ring.now_s)
    ring.wait(2.0)
    (timer,) = ring.coordinator.report().recoveries
    assert (timer.members, timer.reason) == (3, RESTARTED)
    assert max(timer.first_step_s, timer.form_s, timer.stop_s, timer.choose_s) <= 2.0


def test_a_member_that_is_aborted_and_does_not_stop_is_declared_gone() -> None:
    ring = Ring(3, spares=2)
    ring.quiet.add(2)
    ring.exit(1)
    ring.wait(4.5)
    assert ring.order() == [0, 3, 2]
    ring.wait(1.0)
    assert (ring.order(), ring.coordinator.state.phase) == ([0, 3, 4], Phase.RUNNING)


def fault(ring: Ring, member: int, peer: int) -> None:
    ring.send(wire.ExchangeFailed(member, ring.coordinator.state.generation, f"host:{peer}", "closed"))
    ring.answer()


def test_of_a_pair_that_fails_three_times_the_later_one_is_replaced() -> None:
    ring = Ring(4, spares=1)
    for _ in range(2):
        fault(ring, 1, 2)
    assert ring.order() == [0, 1, 2, 3]
    fault(ring, 2, 1)
    assert ring.order() == [0, 1, 4, 3]


def test_of_a_pair_that_fails_three_times_the_one_with_more_faults_is_replaced() -> None:
    ring = Ring(4, spares=1)
    fault(ring, 0, 1)
    for _ in range(3):
        fault(ring, 1, 2)
    assert ring.order() == [0, 4, 2, 3]


def test_faults_of_long_ago_do_not_count() -> None:
    ring = Ring(4, spares=1)
    for _ in range(4):
        fault(ring, 1, 2)
        ring.wait(601.0)
    assert ring.order() == [0, 1, 2, 3]


def test_a_worn_out_process_is_restarted_and_waited_for() -> None:
    ring = Ring(3)
    ring.groups = 20
    ring.coordinator.receive_member_message(0, wire.ExchangeFailed(0, 1, "", "made up"), ring.now_s)
    ring.quiet.add(0)
    ring.answer()
    ring.wait(6.0)
    assert [reason for reason in ring.coordinator.state.gone.values() if reason == WORN_OUT]
    gone = [it for _, it in ring.sent if isinstance(it, wire.Evicted) and it.restart]
    assert gone


def test_a_member_without_a_seat_or_of_another_generation_may_not_save() -> None:
    ring = Ring(2, spares=1)
    for member, generation in ((0, 1), (0, 0), (2, 1)):
        ring.send(wire.SaveRequest(member, generation, 5))
    granted = [it.granted for _, it in ring.coordinator.outbox if isinstance(it, wire.SaveReply)]
    assert granted == [True, False, False]


def test_a_process_that_was_declared_gone_or_has_a_members_number_is_refused() -> None:
    ring = Ring(2)
    ring.exit(1)
    assert not ring.coordinator.admit_member(wire.Hello("member", 1, "t1"), 0.0)
    assert not ring.coordinator.admit_member(wire.Hello("member", 0, "another"), 0.0)
    assert not ring.coordinator.admit_member(wire.Hello("member", -2, "x"), 0.0)
    assert not ring.coordinator.admit_member(wire.Hello("member", 8, "x", fresh=False), 0.0)
    assert ring.order() == [0, -1]


@pytest.mark.parametrize("number", [0, 2])
def test_a_member_that_is_retired_leaves_and_its_seat_is_filled(number: int) -> None:
    ring = Ring(2, spares=1)
    for _ in range(2):  # a second time nothing changes
        ring.coordinator.receive_scheduler_message(wire.Retire(number, "its GPU is broken"), ring.now_s)
        ring.answer()
    assert ring.coordinator.state.gone == {str(number): "its GPU is broken"}
    assert (-2, wire.MemberGone(number, "its GPU is broken")) in ring.sent
    assert ring.coordinator.state.phase is Phase.RUNNING
    assert sorted(ring.coordinator.state.holders) == sorted({0, 1, 2} - {number})


def started(ring: Ring, number: int, how: str) -> None:
    """A member is started; its launcher reports that once or repeatedly, or it was offered before."""
    if how == "offered":
        ring.coordinator.scheduler_connected(ring.now_s)
        ring.coordinator.receive_scheduler_message(wire.MemberOffer(number), ring.now_s)
    for _ in range(3 if how == "repeated" else 1):
        ring.launch(number, rank=number)
        ring.wait(5.0)


@pytest.mark.parametrize("how", ["once", "repeated", "offered"])
@pytest.mark.parametrize("seats", [2, 3], ids=["for a seat", "as a spare"])
def test_a_member_that_never_connects_is_declared_gone_and_logged(how: str, seats: int) -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(2, RingLimits(), 0.0)
    for number in range(seats):
        ring.launch(number)
        ring.join(number)
    ring.exit(0)
    started(ring, 9, how)
    ring.wait(40.0)
    assert (ring.coordinator.state.phase, "9" in ring.coordinator.state.gone) == (Phase.RUNNING, False)
    ring.wait(20.0)
    assert set(ring.coordinator.state.gone) == {"0", "9"}
    assert [to for to, it in ring.sent if isinstance(it, wire.MemberGone) and it.member == 9] == [LAUNCHERS]
    assert any(line.startswith("member 9 is gone") for line in ring.coordinator.log_lines)
    assert not ring.coordinator.admit_member(wire.Hello("member", 9, "t9"), ring.now_s)


def test_at_the_start_members_have_as_long_as_the_ring_waits_and_no_longer() -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(3, RingLimits(gather_s=200.0), 0.0)
    for number in range(3):
        ring.launch(number)
    ring.join(0)
    ring.join(1)
    ring.wait(199.0)
    assert (ring.coordinator.state.phase, ring.coordinator.state.gone) == (Phase.STOPPING, {})
    ring.wait(2.0)
    assert (ring.order(), set(ring.coordinator.state.gone)) == ([0, 1, -1], {"2"})
    assert ring.coordinator.state.phase is Phase.RUNNING


def test_if_scripts_take_long_to_connect_later_ones_may_too() -> None:
    ring = Ring(0)
    ring.coordinator = Coordinator(2, RingLimits(), 0.0)
    for number in range(3):
        ring.launch(number)
    ring.wait(80.0)
    for number in range(2):
        ring.join(number)
    ring.wait(150.0)
    assert ring.coordinator.state.gone == {}
    ring.join(2)
    assert ring.coordinator.report().spares == [2]


def test_a_coordinator_that_stood_still_keeps_waiting_for_members_that_were_started() -> None:
    ring = Ring(2)
    ring.launch(2)
    ring.now_s += 1000.0
    ring.coordinator.tick(ring.now_s)
    ring.join(2)
    assert (ring.coordinator.report().spares, ring.coordinator.state.gone) == ([2], {})


def test_members_that_have_not_received_the_end_get_answers() -> None:
    ring = Ring(2)
    for number in range(2):
        ring.send(wire.MemberDone(number, 1, 1))
    assert ring.coordinator.state.phase is Phase.DONE
    ring.coordinator.outbox.clear()
    ring.send(wire.Heartbeat(1, 1, 7, 1))
    assert ring.coordinator.outbox == [(1, wire.LeaseRenewal(7))]


def test_of_very_many_members_that_are_gone_all_are_refused_and_few_reasons_are_kept() -> None:
    ring = Ring(2)
    for number in range(2, 2000):
        ring.join(number)
        ring.coordinator.receive_member_message(number, wire.Leave(number, 1, "\U0001f525" * 500), ring.now_s)
    ring.answer()
    assert len(wire.encode(ring.coordinator.report())) < wire.MAX_LINE_BYTES
    assert not any(ring.coordinator.admit_member(wire.Hello("member", it, f"t{it}"), 0.0) for it in range(2, 2000))


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6),
    st.sampled_from([0.0, MISMATCHED_UNTIL_S, MISMATCHED_UNTIL_S + 0.1]),
)
def test_ends_are_unlike_only_if_a_member_waits_in_a_step_that_another_does_not_take(
    steps: list[tuple[bool, bool, int]], quiet_s: float
) -> None:
    members = [
        MemberState(number, "", 0.0, done=done, waiting=waiting, step=step)
        for number, (done, waiting, step) in enumerate(steps)
    ]
    last = max((step for done, _, step in steps if done), default=4)
    ahead = [number for number, (done, waits, step) in enumerate(steps) if not done and waits and step >= last]
    found = until_mismatch(members, quiet_s)
    assert bool(found) == (bool(ahead) and quiet_s > MISMATCHED_UNTIL_S)
    assert not found or f"member {ahead[0]} " in found


def vanish(ring: Ring, members: list[int], launchers: list[int]) -> None:
    """End the connections of members and of launchers; launcher N has started member N."""
    ring.quiet |= set(members)
    for number in members:
        ring.coordinator.member_disconnected(number, ring.now_s)
    for number in launchers:
        ring.coordinator.launcher_disconnected(number, ring.now_s)


def wait_closely(ring: Ring, seconds: float) -> None:
    """Let time pass as in a process that never stands still."""
    for _ in range(round(seconds / 0.05)):
        ring.now_s += 0.05
        ring.coordinator.tick(ring.now_s)
        ring.answer()


def of_launchers(seats: int, spares: int) -> Ring:
    ring = Ring(seats, spares=spares)
    for number in range(seats + spares):
        ring.coordinator.receive_launcher_message(wire.MemberStarting(number), 0.0, launcher=number)
    return ring


@pytest.mark.parametrize(
    ("members", "launchers", "gone"),
    [
        ([1], [1], [1]),  # a machine is gone
        ([1, 3], [1, 3], [1, 3]),
        ([1], [], []),  # it may come back
        ([1], [2], []),
        ([], [1], []),
        ([0, 1, 3], [0, 1, 3], []),  # most of all five: it is rather the coordinator that is cut off
    ],
)
def test_a_member_is_gone_once_its_connection_and_that_of_its_launcher_have_ended(
    members: list[int], launchers: list[int], gone: list[int]
) -> None:
    ring = of_launchers(4, 1)
    vanish(ring, members, launchers)
    assert ring.coordinator.state.gone == {}
    wait_closely(ring, 1.0)
    assert [*ring.coordinator.state.gone] == [str(number) for number in gone]
    if len(gone) == 1:
        assert (ring.order(), ring.coordinator.state.phase) == ([0, 4, 2, 3], Phase.RUNNING)
        assert ring.coordinator.state.lost == gone  # no process will be started there


def test_a_member_whose_connections_are_back_at_once_stays() -> None:
    ring = of_launchers(3, 0)
    vanish(ring, [1], [1])
    wait_closely(ring, 0.3)
    ring.quiet.clear()
    ring.coordinator.admit_member(wire.Hello("member", 1, "t1", generation=1, step=1, fresh=False), ring.now_s)
    ring.answer()
    ring.wait(5.0)
    assert ring.order() == [0, 1, 2]
    assert ring.coordinator.state.generation == 1


def test_a_coordinator_that_stood_still_takes_no_connection_for_ended_that_is_being_opened() -> None:
    ring = of_launchers(3, 0)
    vanish(ring, [1], [1])
    ring.now_s += 8.0
    ring.coordinator.tick(ring.now_s)
    assert ring.coordinator.state.gone == {}
    wait_closely(ring, 1.0)
    assert [*ring.coordinator.state.gone] == ["1"]


def test_a_restarted_coordinator_that_loses_a_member_at_once_waits_for_its_spares_to_return() -> None:
    ring = of_launchers(3, 1)
    state = ring.coordinator.state
    ring.coordinator = Coordinator(3, RingLimits(), ring.now_s, state)
    ring.coordinator.receive_scheduler_message(wire.Retire(0, "its machine was lost"), ring.now_s)
    for number in (1, 2, 3):
        fresh = number == 3
        hello = wire.Hello("member", number, f"t{number}", generation=0 if fresh else 1, step=1, fresh=fresh)
        ring.coordinator.admit_member(hello, ring.now_s)
        ring.answer()
        assert ring.coordinator.state.phase is (Phase.RUNNING if number == 3 else Phase.STOPPING)
    assert ring.order() == [3, 1, 2]


def test_a_restarted_coordinator_waits_for_spares_no_longer_than_its_patience() -> None:
    ring = of_launchers(3, 0)
    ring.coordinator = Coordinator(3, RingLimits(), ring.now_s, ring.coordinator.state)
    ring.coordinator.receive_scheduler_message(wire.Retire(0, "its machine was lost"), ring.now_s)
    for number in (1, 2):
        hello = wire.Hello("member", number, f"t{number}", generation=1, step=1, fresh=False)
        ring.coordinator.admit_member(hello, ring.now_s)
        ring.answer()
    ring.wait(RingLimits().patience_s + 0.5)
    assert (ring.order(), ring.coordinator.state.phase) == ([-1, 1, 2], Phase.RUNNING)


def test_a_launcher_whose_old_connection_ends_after_its_new_one_began_has_not_vanished() -> None:
    ring = of_launchers(3, 0)
    ring.coordinator.receive_launcher_message(wire.MemberStarting(1), ring.now_s, launcher=7)
    vanish(ring, [1], [1])
    wait_closely(ring, 2.0)
    assert ring.coordinator.state.gone == {}
