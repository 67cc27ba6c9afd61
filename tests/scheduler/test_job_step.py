"""What is done next about a job, over all that can be wanted and known of it."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.model.job import LONGEST_WAIT_S, JobRow, Tries
from longshore.scheduler.model.states import FINAL, JOB_CHANGES, AfterStop, AttemptState, Desired, JobState
from longshore.scheduler.rules.attempts import LONGEST_RETRY_S, AttemptOutcome, ExitClass
from longshore.scheduler.rules.jobs import (
    AFTER,
    JobDo,
    JobStep,
    RetryStep,
    may_enter,
    next_job_step,
    retry_step,
    state_after_release,
    state_to_hold,
)

NOW_S, GPUS = 100.0, 8


def row(state: JobState, desired: Desired, gpus: int = 1, not_before_s: float = 0.0) -> JobRow:
    return JobRow(
        1, "a", "a", "ann", {}, desired, state, 0, gpus, 60.0, 0.0, not_before_s, 0, 1, 0, 0, 0, 0, 0, 0, 0.0, 60.0,
        0.0, 0.0, None, "", "", None, None,
    )  # fmt: skip


JOBS = st.builds(
    row, st.sampled_from((JobState.QUEUED, JobState.HELD)), st.sampled_from(Desired), st.integers(-1, 2 * GPUS),
    st.sampled_from((0.0, NOW_S, NOW_S + 1.0, NOW_S + LONGEST_WAIT_S, NOW_S + 1e6)),
)  # fmt: skip


def step_of(job: JobRow, *, is_in_queue: bool, is_kept_out: bool = False) -> JobStep:
    return next_job_step(job, NOW_S, is_in_queue=is_in_queue, cluster_gpus=GPUS, is_kept_out=is_kept_out)


@given(job=JOBS, is_in_queue=st.booleans(), is_kept_out=st.booleans())
def test_every_change_is_legal_and_brings_a_job_nearer_to_what_is_wanted(
    *, job: JobRow, is_in_queue: bool, is_kept_out: bool
) -> None:
    step = step_of(job, is_in_queue=is_in_queue, is_kept_out=is_kept_out)
    if step.do is JobDo.CHANGE:
        assert step.now in JOB_CHANGES[job.state]
        assert step.cause
        changed = job._replace(state=step.now)
        if changed.state not in FINAL:  # it has arrived: no other change follows
            after = step_of(changed, is_in_queue=is_in_queue, is_kept_out=is_kept_out)
            assert after.do is not JobDo.CHANGE or step.is_released
    if step.do is JobDo.ENTER:
        assert may_enter(job, NOW_S)
        assert 1 <= job.gpus <= GPUS
        assert not is_kept_out
        assert not is_in_queue
    if step.do is JobDo.LEAVE:
        assert is_in_queue
        assert job.desired is not Desired.RUN


@given(not_before_s=st.floats(0.0, 1e12), set_s=st.floats(-1e9, 1e9))
def test_no_job_waits_longer_than_the_longest_wait_whatever_the_clock_is_set_to(
    not_before_s: float, set_s: float
) -> None:
    job, now_s = row(JobState.QUEUED, Desired.RUN, not_before_s=not_before_s), not_before_s + set_s
    assert may_enter(job, now_s) == (job.wait_left_s(now_s) == 0.0)
    assert may_enter(job, now_s) or may_enter(job, now_s + LONGEST_WAIT_S + 1.0)
    assert may_enter(job, not_before_s)
    assert not may_enter(job, not_before_s - LONGEST_RETRY_S)


@given(JOBS)
def test_a_job_that_leaves_the_queue_comes_into_the_state_that_is_wanted(job: JobRow) -> None:
    if step_of(job, is_in_queue=True).do is JobDo.LEAVE:
        wanted = {Desired.CANCEL: JobState.CANCELLED, Desired.HOLD: JobState.HELD}[job.desired]
        assert step_of(job, is_in_queue=False).now is wanted


@given(
    st.sampled_from(sorted(AFTER)), st.sampled_from(Desired), st.sampled_from((None, *AfterStop)),
    st.sampled_from((0.0, 5.0)),
)  # fmt: skip
def test_a_hold_that_no_one_asked_for_lasts_until_someone_wants_the_job_to_run(
    after: AfterStop, desired: Desired, asked: AfterStop | None, wait_s: float
) -> None:
    job = row(JobState.STOPPING, desired)._replace(after_stop=asked)
    now, wanted, stays = state_after_release(job, AttemptOutcome(after, ExitClass.USER, "why", Tries(), 0, wait_s))
    assert now in JOB_CHANGES[JobState.STOPPING]
    if after is AfterStop.HOLD and asked is not AfterStop.HOLD and desired is Desired.RUN:
        assert wanted is Desired.HOLD
    else:
        assert wanted is None
    assert stays == (now is JobState.QUEUED and desired is Desired.RUN and not wait_s)


@given(st.sampled_from(JobState), st.sampled_from(Desired), st.sampled_from((None, *AttemptState)))
def test_only_a_job_that_failed_or_is_held_is_tried_again_and_none_that_runs_is_held_for_an_error(
    state: JobState, desired: Desired, attempt: AttemptState | None
) -> None:
    job = row(state, desired)
    retry = retry_step(job)
    assert (retry is RetryStep.REFUSED) == (
        desired is Desired.CANCEL or state in {JobState.SUCCEEDED, JobState.CANCELLED}
    )
    assert (retry is RetryStep.REQUEUE) == (state is JobState.FAILED and desired is not Desired.CANCEL)
    hold = state_to_hold(job, attempt)
    assert hold is not JobState.STOPPING or JobState.STOPPING in JOB_CHANGES[JobState.STARTING]
    if attempt is AttemptState.RUNNING and state is not JobState.QUEUED:
        assert hold is None
