"""How a ring looks: who computes how many shards."""

import pytest

from longshore.scheduler.failover.shape import shards_at, shards_of
from longshore.scheduler.failover.standing import NOBODY


@pytest.mark.parametrize(
    ("holders", "shards"),
    [
        ([4, 5, 6], {4: 1, 5: 1, 6: 1}),
        ([4, NOBODY, 6], {4: 2, 6: 1}),
        ([NOBODY, 5, NOBODY], {5: 3}),
        ([NOBODY, 5, NOBODY, 7], {5: 2, 7: 2}),
    ],
)
def test_members_compute_the_shards_of_empty_seats_too(holders: list[int], shards: dict[int, int]) -> None:
    assert {member: shards_at(holders, member) for member in holders if member != NOBODY} == shards
    assert sorted(it for mine in shards_of(holders).values() for it in mine) == list(range(len(holders)))


def test_a_member_without_a_seat_counts_for_one_shard() -> None:
    assert shards_at([4, NOBODY], 9) == 1
