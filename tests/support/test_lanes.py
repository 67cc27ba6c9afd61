"""What of a test's parameters the quick lane takes, and which files begin first."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkout import ROOT
from tests.support.lanes import pytest_collection_modifyitems, spread


def test_no_test_is_called_by_where_the_checkout_is(request: pytest.FixtureRequest) -> None:
    assert [it.nodeid for it in request.session.items if str(ROOT) in it.nodeid] == []


@given(st.integers(1, 200), st.integers(1, 50))
def test_as_many_are_taken_as_are_asked_for_spread_over_all(count: int, most: int) -> None:
    taken = sorted(spread(count, most))
    assert len(taken) == min(count, most)
    assert taken[0] == 0
    assert taken[-1] < count
    gaps = [later - earlier for earlier, later in pairwise([*taken, count])]
    assert max(gaps) - min(gaps) <= 1


def test_long_files_begin_first_and_others_stay_in_their_order(request: pytest.FixtureRequest) -> None:
    few = [it for it in request.session.items if not it.get_closest_marker("few")]  # whose tests go to other lanes
    moved = [*few[1::2], *few[::2]]
    expected = [it for it in moved if it.get_closest_marker("long")]
    expected += [it for it in moved if not it.get_closest_marker("long")]
    pytest_collection_modifyitems(moved)
    assert moved == expected
