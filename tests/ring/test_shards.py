"""The layout of a ring: how many shards each member computes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring.coordinator import layout_of, shard_count, shards_by_seat
from longshore.ring.membership import NO_MEMBER, CoordinatorState, MemberState


@pytest.mark.parametrize(
    ("holders", "shards"),
    [
        ([4, 5, 6], {4: 1, 5: 1, 6: 1}),
        ([4, NO_MEMBER, 6], {4: 2, 6: 1}),
        ([NO_MEMBER, 5, NO_MEMBER], {5: 3}),
        ([NO_MEMBER, 5, NO_MEMBER, 7], {5: 2, 7: 2}),
    ],
)
def test_members_compute_the_shards_of_empty_seats_too(holders: list[int], shards: dict[int, int]) -> None:
    state = CoordinatorState(holders)
    assert {member: shard_count(state, member) for member in holders if member != NO_MEMBER} == shards


def test_a_member_without_a_seat_counts_for_one_shard() -> None:
    assert shard_count(CoordinatorState([4, NO_MEMBER]), 9) == 1


def test_a_slow_member_computes_its_own_shard_alone_as_long_as_others_are_done_before_it() -> None:
    state = CoordinatorState([4, NO_MEMBER, NO_MEMBER, NO_MEMBER, 8], slow={"4": 3.5})
    assert {member: shard_count(state, member) for member in (4, 8)} == {4: 1, 8: 4}


@st.composite
def rings(draw: st.DrawFn) -> CoordinatorState:
    seats = draw(st.integers(1, 12))
    filled = draw(st.sets(st.integers(0, seats - 1), min_size=1))
    numbers = draw(st.permutations(range(40)))
    holders = [numbers[seat] if seat in filled else NO_MEMBER for seat in range(seats)]
    slow = draw(st.dictionaries(st.sampled_from([it for it in holders if it != NO_MEMBER]), st.floats(1.0, 50.0)))
    return CoordinatorState(holders, slow={str(number): times for number, times in slow.items()})


@given(rings())
def test_each_shard_is_computed_once_and_no_member_has_more_of_them_than_a_faster_one(state: CoordinatorState) -> None:
    shards = shards_by_seat(state)
    assert sorted(it for mine in shards.values() for it in mine) == list(range(len(state.holders)))
    assert shards.keys() == {seat for seat, holder in enumerate(state.holders) if holder != NO_MEMBER}
    times = {seat: state.slow.get(str(state.holders[seat]), 1.0) for seat in shards}
    assert all(len(shards[a]) >= len(shards[b]) for a in shards for b in shards if times[a] < times[b])


@given(rings())
def test_all_shards_are_done_as_soon_as_they_can_be(state: CoordinatorState) -> None:
    """No member could take a shard of another one and be done with it before that one is."""
    shards = shards_by_seat(state)
    times = {seat: state.slow.get(str(state.holders[seat]), 1.0) for seat in shards}
    for last in (seat for seat in shards if len(shards[seat]) > 1):
        others = (it for it in shards if it != last)
        assert all((len(shards[it]) + 1) * times[it] >= len(shards[last]) * times[last] for it in others)


@given(rings())
def test_all_members_receive_the_same_shards(state: CoordinatorState) -> None:
    """The layout, which goes to all members, has the shards that the coordinator counts with."""
    members = {it: MemberState(it, "", 0.0, fresh=False) for it in state.holders if it != NO_MEMBER}
    places = layout_of(state, members).assignments
    assert {it.seat: it.shards for it in places} == shards_by_seat(state)
    assert all(state.holders[it.seat] == it.member for it in places)
