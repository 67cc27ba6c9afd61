"""When launches that failed are tried again."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.control.job_errors import FIRST_LAUNCH_WAIT_S, LONGEST_LAUNCH_WAIT_S, FailedLaunches


@given(st.integers(1, 3000))
def test_each_failure_doubles_the_wait_up_to_a_bound_and_none_ends_it(failures: int) -> None:
    launches, now_s = FailedLaunches(), 1000.0
    for failure in range(failures):
        assert launches.is_due("a", now_s)
        launches.record_failure("a", "no", now_s)
        wait_s = min(FIRST_LAUNCH_WAIT_S * 2.0 ** min(failure, 99), LONGEST_LAUNCH_WAIT_S)
        assert not launches.is_due("a", now_s + 0.99 * wait_s)
        now_s += wait_s
    assert launches.is_due("a", now_s)
    assert launches.is_due("another", 0.0)


def test_a_clock_that_is_set_back_holds_up_no_launch() -> None:
    launches = FailedLaunches()
    launches.record_failure("a", "no", 5000.0)
    assert launches.is_due("a", 1000.0)


def test_words_are_reported_again_only_when_they_change() -> None:
    launches = FailedLaunches()
    assert [launches.record_failure("a", words, 0.0) for words in ("no", "no", "why", "why", "no")] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert launches.last_error("a") == "no"
    launches.forget("a")
    assert (launches.last_error("a"), launches.is_due("a", 0.0)) == ("", True)
