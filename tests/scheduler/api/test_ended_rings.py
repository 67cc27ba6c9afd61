"""What is shown of a ring whose attempt has ended."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.ring.wire import RingReport, as_json
from longshore.scheduler.api.rings import _stored_ring_page

SEATS = 3


@given(st.lists(st.booleans(), min_size=SEATS + 1, max_size=SEATS + 1))
def test_all_members_of_seats_are_shown_whichever_left_first(is_left: list[bool]) -> None:
    """At the end of a ring its processes end one by one, and the scheduler may look in between."""
    report = RingReport("done", 1, SEATS, list(range(SEATS)), [], 9, {str(SEATS): "it was killed"}, [])
    places = [["n", gpu, True, left, gpu, 0] for gpu, left in enumerate(is_left)]
    page = _stored_ring_page({"report": as_json(report), "places": places, "gpus": []}, [])
    assert page is not None
    assert [each.member for each in page.members if each.seat is not None] == list(range(SEATS))
    assert any(each.member == SEATS for each in page.members) is not is_left[SEATS]
