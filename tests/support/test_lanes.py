"""What of a test's parameters the quick lane takes."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.lanes import spread


@given(st.integers(1, 200), st.integers(1, 50))
def test_as_many_are_taken_as_are_asked_for_spread_over_all(count: int, most: int) -> None:
    taken = sorted(spread(count, most))
    assert len(taken) == min(count, most)
    assert taken[0] == 0
    assert taken[-1] < count
    gaps = [later - earlier for earlier, later in pairwise([*taken, count])]
    assert max(gaps) - min(gaps) <= 1
