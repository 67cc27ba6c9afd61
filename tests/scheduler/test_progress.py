"""How far attempts bring their job, which tries come back for that, and that no loop of crashes lasts."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.model.job import DEFAULT_TRIES, Tries, new_job_id
from longshore.scheduler.model.states import AfterStop, EndedBy, JobState, RankEnd, Run, Status
from longshore.scheduler.rules.attempts import HURRIED, SILENT_PROGRESS_S, LastReport, attempt_outcome, attempt_progress
from longshore.scheduler.store.jobs import NewJob, insert_job
from tests.scheduler.obedient import Obedient
from tests.scheduler.obedient_trial import StillTrial, obedient_trial
from tests.scheduler.steps_case import StepsCase, steps_case

USED = Tries(infra=9, resource=1, user=2, again=5, ambiguous=1)
KILLED = Status(Run.EXITED, (RankEnd(0, 0, 9, 1.0),), started_s=0.5)
ENDS = (
    KILLED,
    Status(Run.LOST, words="supervisor lost: it was killed", started_s=0.5),
    Status(Run.LOST, by=EndedBy.NODE_FAULT, words="its node was deleted", started_s=0.5),
    Status(Run.EXITED, (RankEnd(0, 75, 0, 1.0),), started_s=0.5),
    Status(Run.EXITED, (RankEnd(0, 0, 9, 1.0),), EndedBy.OUT_OF_MEMORY, started_s=0.5),
)
# Each attempt goes on from the checkpoint before it, and is killed at the next one.
GETS_ON = """
step=$((${LONGSHORE_CHECKPOINT:-0} + 1))
echo "$step 1.0 - $step" >> $LONGSHORE_SAVED
[ $step -ge %d ] || kill -9 $$
"""
DIES_WHEN_TOLD = """
while [ ! -e die ]; do sleep 0.02; done
case $LONGSHORE_ATTEMPT in *-3) ;; *) kill -9 $$;; esac
"""
BEGINS_ANEW = """
echo "train 0 1.0" >> $LONGSHORE_STEPS
echo "train 1 2.0" >> $LONGSHORE_STEPS
kill -9 $$
"""


@pytest.fixture
def case(tmp_path: Path) -> Iterator[StepsCase]:
    with steps_case(tmp_path / "served") as made:
        yield made


def submit(case: StepsCase, script: str) -> str:
    """Submit a shell script, and return the job's id."""
    job = new_job_id(case.now_s)
    spec = {"command": ["sh", "-c", script], "gpus": 1, "grace_s": 2.0}
    case.store.write(lambda tx: insert_job(tx, NewJob(job, "job", "ada", spec, 0, 1, 60.0, case.now_s), writer="api"))
    return job


def settled(case: StepsCase, job: str) -> JobState:
    """Return how a job ended, whose waits before each try pass quickly; real processes have all their time to start."""

    def is_over() -> bool:
        if case.job(job).state is JobState.QUEUED:
            case.now_s += 1.0
        return case.job(job).state in (JobState.SUCCEEDED, JobState.FAILED, JobState.HELD)

    case.tick_until(is_over)
    return case.job(job).state


@pytest.mark.parametrize(
    ("look", "reported", "before", "ran_s", "expected", "left"),
    [
        (LastReport(), {}, None, 5.0, False, USED),
        (LastReport(), {}, None, SILENT_PROGRESS_S, True, USED._replace(infra=0, again=0, ambiguous=0)),
        (LastReport(came_further=True, has_reported=True, step=7), {}, None, 5.0, True, Tries()),
        (LastReport(came_further=True, has_reported=True, step=7), {}, 6.0, 5.0, True, Tries()),
        (LastReport(came_further=True, has_reported=True, step=7), {}, 7.0, 5.0, True, USED),
        (LastReport(came_further=True, has_reported=True, step=7), {}, 900.0, 2 * SILENT_PROGRESS_S, True, USED),
        (LastReport(came_further=True, saved_more=True, has_reported=True, step=7), {}, 900.0, 5.0, True, Tries()),
        (LastReport(has_reported=True), {}, None, 2 * SILENT_PROGRESS_S, False, USED),
        (LastReport(), {"saved_s": 30.0}, None, 5.0, True, Tries()),
        (LastReport(), {"saved_s": 0.0}, None, 2 * SILENT_PROGRESS_S, False, USED),
        (LastReport(), {"step": 8.0}, 7.0, 5.0, True, Tries()),
        (LastReport(), {"step": 8.0}, 8.0, 2 * SILENT_PROGRESS_S, True, USED),
        (LastReport(), {"loss": 0.3}, None, SILENT_PROGRESS_S, True, USED._replace(infra=0, again=0, ambiguous=0)),
    ],
)
def test_tries_come_back_to_a_job_that_came_farther_than_ever_or_is_silent_and_ran_for_long(
    look: LastReport, reported: Mapping[str, float], before: float | None, ran_s: float, expected: object, left: Tries
) -> None:
    came = attempt_progress(look, reported, before, ran_s)
    assert (came.made_progress, came.tries_still_counted(USED)) == (expected, left)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ENDS),
            st.integers(0, 50),
            st.booleans(),
            st.floats(0.0, SILENT_PROGRESS_S, exclude_max=True),
        ),
        min_size=200,
        max_size=200,
    )
)
def test_no_loop_of_short_attempts_that_come_no_farther_lasts(attempts: list[tuple[Status, int, bool, float]]) -> None:
    used, stuck, before, tried = Tries(), 0, 50.0, 0
    for status, step, tells, ran_s in attempts:
        look = LastReport(came_further=tells, has_reported=tells, step=step if tells else None)
        came = attempt_progress(look, {}, before, ran_s)
        found = attempt_outcome(
            status,
            None,
            DEFAULT_TRIES,
            came.tries_still_counted(used),
            stuck,
            progressed=came.made_progress,
            wait_share=0.5,
        )
        used, stuck, tried = found.used, found.no_progress, tried + 1
        if found.after is not AfterStop.RETRY:
            break
    assert tried <= sum(DEFAULT_TRIES) + 1


@given(st.lists(st.sampled_from(ENDS), max_size=100))
def test_no_end_that_may_be_tried_again_stops_a_job_that_comes_farther_each_time(ends: list[Status]) -> None:
    used = Tries()
    for step, status in enumerate(ends):
        came = attempt_progress(LastReport(came_further=True, has_reported=True, step=step + 1), {}, float(step), 5.0)
        found = attempt_outcome(
            status, None, DEFAULT_TRIES, came.tries_still_counted(used), 0, progressed=True, wait_share=0.5
        )
        assert found.after is AfterStop.RETRY
        used = found.used


def test_a_job_that_goes_on_from_its_checkpoints_is_tried_again_however_often_it_is_killed(case: StepsCase) -> None:
    job = submit(case, GETS_ON % 6)
    assert settled(case, job) is JobState.SUCCEEDED
    assert [row.outcome for row in case.attempts(job)] == ["ambiguous"] * 5 + ["success"]


def test_a_job_that_begins_anew_each_time_fails_at_its_second_kill(case: StepsCase) -> None:
    job = submit(case, BEGINS_ANEW)
    assert settled(case, job) is JobState.FAILED
    assert (case.job(job).attempt, case.job(job).reached_step) == (2, 1.0)


@pytest.mark.full
def test_a_job_that_dies_every_few_seconds_fails_though_it_comes_farther_each_time(case: StepsCase) -> None:
    job = submit(case, GETS_ON % 1000)
    assert settled(case, job) is JobState.FAILED
    assert case.job(job).attempt <= HURRIED + DEFAULT_TRIES.ambiguous


@pytest.mark.parametrize(("hours", "state"), [(0.9, JobState.FAILED), (1.1, JobState.SUCCEEDED)])
def test_a_silent_job_is_tried_again_for_good_if_it_ran_for_an_hour_each_time(
    case: StepsCase, hours: float, state: JobState
) -> None:
    job = submit(case, DIES_WHEN_TOLD)
    for number in range(1, 4):
        case.tick_until(partial(is_at, case, job, number))
        if case.job(job).state is JobState.FAILED:
            break
        case.pass_time(3600.0 * hours)
        (case.folder / "attempts" / f"ls-{job}-{number}" / "work" / "die").touch()
    assert settled(case, job) is state


def is_at(case: StepsCase, job: str, number: int) -> bool:
    """Let time pass, and say whether an attempt runs, or will not."""
    row = case.job(job)
    if row.state is JobState.QUEUED:
        case.now_s += 1.0
    return row.state is JobState.FAILED or (row.attempt, row.state) == (number, JobState.RUNNING)


@pytest.mark.parametrize(("told_s", "began_s"), [(2.0, 4.0), (-50.0, 0.0), (500.0, 5.0)])  # clocks of nodes may differ
def test_an_attempt_that_ended_before_anybody_looked_has_run(
    told_s: float, began_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with obedient_trial(StillTrial, tmp_path, {"a": 1}) as trial:
        opened_s = trial.now_s()
        ended = Status(Run.EXITED, (RankEnd(0, 0, 0, opened_s + 3.0),), started_s=opened_s + told_s)
        backend = trial.way.backend
        assert isinstance(backend, Obedient)

        def launch(attempt: Attempt, _: Placement) -> None:
            backend.known[attempt.name] = ended
            trial.later_s = 5.0

        monkeypatch.setattr(backend, "launch", launch)
        job = trial.submit("x")
        trial.tick(3)
        assert trial.job(job).state is JobState.SUCCEEDED
        (attempt,) = trial.attempts(job)
        assert (attempt.started_s, attempt.ended_s) == (opened_s + began_s, opened_s + 5.0)
