"""State leaves memory where that pays, and is predicted to cost what cannot be hidden."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.planner.memory import (
    OFFLOAD_MARGIN_S,
    CopyTimes,
    OffloadMode,
    copy_back_begins_s,
    offload_pays,
    offload_reason,
    unhidden_copy_s,
)

SECONDS = st.floats(0.0, 100.0)
COPIES = st.builds(
    lambda out_s, back_s, shares: CopyTimes(out_s, back_s, out_s * shares[0], back_s * shares[1]),
    SECONDS,
    SECONDS,
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)


@given(SECONDS, COPIES)
def test_state_goes_only_if_both_copies_and_a_margin_fit(idle_s: float, copies: CopyTimes) -> None:
    assert offload_pays(idle_s, copies, OffloadMode.auto) == (idle_s > copies.out_s + copies.back_s + OFFLOAD_MARGIN_S)
    assert not offload_pays(idle_s, copies, OffloadMode.never)


@given(SECONDS, COPIES)
def test_the_reading_of_one_copy_lets_at_least_as_much_go(idle_s: float, copies: CopyTimes) -> None:
    assert offload_pays(idle_s, copies, OffloadMode.one_copy) == (idle_s > copies.out_s + OFFLOAD_MARGIN_S)
    assert offload_pays(idle_s, copies, OffloadMode.one_copy) >= offload_pays(idle_s, copies, OffloadMode.auto)


@given(SECONDS, COPIES)
def test_what_goes_in_a_wait_is_back_in_time_and_costs_nothing(wait_s: float, copies: CopyTimes) -> None:
    if offload_pays(wait_s, copies, OffloadMode.auto):
        assert copies.out_s < copy_back_begins_s(wait_s, copies) <= wait_s - copies.back_s
        assert unhidden_copy_s(wait_s, copies, both_in_wait=True, has_own_core=False) == 0.0


@given(SECONDS, COPIES)
def test_a_step_gets_longer_by_what_no_wait_hides(wait_s: float, copies: CopyTimes) -> None:
    beside = unhidden_copy_s(wait_s, copies, both_in_wait=False, has_own_core=True)
    assert beside == max(0.0, copies.back_s - wait_s)
    assert unhidden_copy_s(wait_s, copies, both_in_wait=False, has_own_core=False) == beside + copies.out_core_s


def test_it_is_said_what_was_decided_and_why() -> None:
    copies = CopyTimes(0.02, 0.03)
    assert offload_reason("parameters", 5_000_000, 0.1, copies, OffloadMode.auto) == (
        "parameters (5.0 MB) is offloaded: it is idle for 100.0 ms, more than 20.0 ms out + 30.0 ms back + 5 ms margin"
    )
    assert offload_reason("parameters", 5_000_000, 0.02, copies, OffloadMode.one_copy) == (
        "parameters (5.0 MB) stays: it is idle for 20.0 ms, not more than 20.0 ms out + 5 ms margin"
    )
