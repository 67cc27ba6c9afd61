"""What the end of an attempt means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.model.job import DEFAULT_TRIES, NO_PROGRESS, Tries
from longshore.scheduler.model.states import AfterStop, EndedBy, RankEnd, Run, Status, parse_reason_line, reason_line
from longshore.scheduler.rules.attempts import AttemptOutcome, ExitClass, attempt_outcome, classify_end, failed_rank_end

RETRIED = {AfterStop.RETRY, AfterStop.HUNG, AfterStop.RELOCATE}


def ended(*ends: tuple[int, int, float], by: EndedBy = EndedBy.NONE) -> Status:
    """Return the end of ranks, each with its code, its signal and its time."""
    return Status(Run.EXITED, tuple(RankEnd(rank, *end) for rank, end in enumerate(ends)), by)


def outcome(
    status: Status, stopped_for: AfterStop | None = None, used: Tries = DEFAULT_TRIES, stuck: int = 0
) -> AttemptOutcome:
    """Return what becomes of a job, of which no tries are left unless they are given."""
    return attempt_outcome(status, stopped_for, DEFAULT_TRIES, used, stuck, progressed=False, wait_share=0.5)


@pytest.mark.parametrize(
    ("status", "exit_class"),
    [
        (ended((0, 0, 1.0), (0, 0, 9.0)), ExitClass.SUCCESS),
        (ended((1, 0, 1.0)), ExitClass.USER),
        (ended((127, 0, 1.0)), ExitClass.USER),
        (ended((75, 0, 1.0)), ExitClass.AGAIN),
        (ended((0, 11, 1.0)), ExitClass.AMBIGUOUS),
        (ended((0, 9, 1.0), (0, 15, 1.5), by=EndedBy.OUT_OF_MEMORY), ExitClass.RESOURCE),
        *((ended((128 + number, 0, 1.0)), classify_end(ended((0, number, 1.0)))[0]) for number in range(1, 32)),
        *((ended((code, 0, 1.0)), ExitClass.USER) for code in (128, 160, 192, 193, 255)),
        (ended((137, 0, 1.0), (143, 0, 1.5), by=EndedBy.OUT_OF_MEMORY), ExitClass.RESOURCE),
        (ended((0, 15, 1.0), by=EndedBy.TIME_LIMIT), ExitClass.LIMIT),
        (ended((0, 9, 1.0), by=EndedBy.NODE_FAULT), ExitClass.INFRASTRUCTURE),
        (Status(Run.LOST, words="no marker"), ExitClass.AMBIGUOUS),
        (Status(Run.LOST, by=EndedBy.NODE_FAULT, words="its node was deleted"), ExitClass.INFRASTRUCTURE),
        (Status(Run.ABSENT), ExitClass.INFRASTRUCTURE),
        (ended(by=EndedBy.CANCEL), ExitClass.REQUESTED),
    ],
)
def test_an_end_has_a_class(status: Status, exit_class: ExitClass) -> None:
    assert classify_end(status)[0] is exit_class


@pytest.mark.parametrize(
    ("status", "rank"),
    [
        (ended((0, 0, 1.0), (0, 0, 9.0)), None),
        (ended((0, 15, 10.0), (0, 9, 11.0), (3, 0, 10.5)), 2),
        (ended((0, 15, 10.0), (75, 0, 11.0)), 1),
        (ended((143, 0, 10.0), (137, 0, 10.5), (3, 0, 11.0)), 2),
        (ended((1, 0, 1.0), (137, 0, 1.5), by=EndedBy.OUT_OF_MEMORY), 1),
        (ended((0, 11, 1.0)), 0),
        (ended((1, 0, 1.0), (0, 9, 1.5), by=EndedBy.OUT_OF_MEMORY), 1),
        (ended((0, 15, 1.0), by=EndedBy.TIME_LIMIT), None),
        (ended((0, 9, 1.0), by=EndedBy.NODE_FAULT), None),
        (Status(Run.LOST, words="no marker"), None),
        (Status(Run.LOST, (RankEnd(3, 1, 0, 1.0),), words="no marker"), 3),
        (Status(Run.ABSENT), None),
    ],
)
def test_the_rank_to_look_at_is_the_one_that_made_the_attempt_fail(status: Status, rank: int | None) -> None:
    found = failed_rank_end(status.ends, classify_end(status)[0])
    assert (None if found is None else found.rank) == rank


def test_the_rank_that_failed_by_itself_explains_those_that_were_taken_down_with_it() -> None:
    assert "rank 2 ended with exit code 3" in classify_end(ended((0, 15, 10.0), (0, 9, 11.0), (3, 0, 10.5)))[1]


def test_a_rank_that_failed_long_before_the_others_explains_them_whatever_they_say() -> None:
    assert "rank 1 was ended by signal 11" in classify_end(ended((1, 0, 100.0), (0, 11, 10.0)))[1]


@given(st.sampled_from([None, *AfterStop]), st.integers(0, 9))
def test_a_job_whose_ranks_all_ended_with_0_has_succeeded_whatever_was_asked(
    stopped_for: AfterStop | None, stuck: int
) -> None:
    assert outcome(ended((0, 0, 1.0)), stopped_for, stuck=stuck).after is AfterStop.SUCCEED


@given(st.sampled_from(sorted(set(AfterStop) - RETRIED)))
def test_what_was_asked_for_comes_true_and_costs_no_try(stopped_for: AfterStop) -> None:
    found = outcome(ended((0, 15, 1.0), by=EndedBy.CANCEL), stopped_for)

    assert (found.after, found.used) == (stopped_for, DEFAULT_TRIES)


def test_a_try_is_used_up_and_the_next_one_waits_longer() -> None:
    status = ended((75, 0, 1.0))

    first = attempt_outcome(status, None, DEFAULT_TRIES, Tries(), 0, progressed=True, wait_share=0.5)
    second = attempt_outcome(status, None, DEFAULT_TRIES, first.used, 0, progressed=True, wait_share=0.5)

    assert (first.after, first.used.again, first.wait_s) == (AfterStop.RETRY, 1, 2.5)
    assert (second.after, second.used.again, second.wait_s) == (AfterStop.RETRY, 2, 5.0)


def test_a_job_without_tries_left_fails() -> None:
    assert outcome(ended((75, 0, 1.0))).after is AfterStop.FAIL


def test_a_job_that_makes_no_progress_is_held_though_it_has_tries_left() -> None:
    assert outcome(ended((75, 0, 1.0)), used=Tries(), stuck=NO_PROGRESS - 1).after is AfterStop.HOLD


def test_an_attempt_that_the_scheduler_stopped_for_a_fault_is_tried_again_at_once() -> None:
    found = outcome(ended((0, 15, 1.0), by=EndedBy.CANCEL), AfterStop.RETRY, used=Tries())
    assert (found.after, found.exit_class, found.wait_s) == (AfterStop.RETRY, ExitClass.INFRASTRUCTURE, 0.0)
    assert found.used.infra == 1


def test_a_job_that_is_moved_is_tried_again_at_once_and_at_no_charge() -> None:
    found = outcome(ended((1, 0, 1.0), by=EndedBy.CANCEL), AfterStop.RELOCATE, stuck=NO_PROGRESS - 1)
    assert (found.after, found.exit_class, found.wait_s) == (AfterStop.RETRY, ExitClass.REQUESTED, 0.0)
    assert (found.used, found.no_progress) == (DEFAULT_TRIES, NO_PROGRESS - 1)


@pytest.mark.parametrize("end", [(0, 15, 1.0), (0, 0, 1.0), (1, 0, 1.0)])
def test_a_job_that_hung_is_tried_again_as_one_whose_end_no_one_can_explain(end: tuple[int, int, float]) -> None:
    found = outcome(ended(end, by=EndedBy.CANCEL), AfterStop.HUNG, used=Tries())
    assert (found.after, found.exit_class, found.used.ambiguous) == (AfterStop.RETRY, ExitClass.AMBIGUOUS, 1)


def test_an_attempt_that_could_not_be_started_waits_before_the_next_and_is_not_held_for_it() -> None:
    found = outcome(Status(Run.ABSENT), AfterStop.RETRY, used=Tries(), stuck=NO_PROGRESS - 1)
    assert (found.after, found.wait_s, found.no_progress) == (AfterStop.RETRY, 2.5, NO_PROGRESS - 1)


def test_faults_without_end_fail_the_job() -> None:
    assert outcome(ended((0, 15, 1.0), by=EndedBy.CANCEL), AfterStop.RETRY).after is AfterStop.FAIL


def test_a_job_that_was_cancelled_before_any_rank_began_is_cancelled_and_did_not_succeed() -> None:
    assert outcome(ended(by=EndedBy.CANCEL), stopped_for=AfterStop.CANCEL).after is AfterStop.CANCEL


@pytest.mark.parametrize("stopped_for", sorted(set(AfterStop) - {AfterStop.SUCCEED}))
def test_a_program_that_ends_well_because_it_was_asked_to_stop_has_not_succeeded(stopped_for: AfterStop) -> None:
    found = outcome(ended((0, 0, 1.0), by=EndedBy.CANCEL), stopped_for, used=Tries())
    assert found.after is (AfterStop.RETRY if stopped_for in RETRIED else stopped_for)


@given(st.sampled_from(EndedBy), st.text())
def test_who_ended_an_attempt_is_read_from_its_line(by: EndedBy, words: str) -> None:
    if by is EndedBy.NONE and words.partition(": ")[0] in set(EndedBy):
        return  # words that begin like one of the others are read as such
    assert parse_reason_line(reason_line(by, words)) == (by, words)
