"""Jobs that tell of their steps: what is slow moves, what hangs is tried again, and nothing else is touched."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection

from benchmarks.step_times import Noise, step_times
from longshore.cluster.files.errors import BackendError
from longshore.scheduler.health.step_monitor import CHECKS
from longshore.scheduler.health.step_watch import CHECK_S
from longshore.scheduler.model.states import AfterStop, AttemptState, Desired, JobState, Status
from longshore.scheduler.store.jobs import set_desired
from tests.scheduler.steps_case import StepsCase, steps_case

TICK_S = 8  # of the clock, between two looks of the scheduler
NOISE = Noise(0.05)
# Rank 0 begins a checkpoint, and is killed before it is complete; the next attempt just runs.
CHECKPOINTS_AND_DIES = """
case $LONGSHORE_ATTEMPT-$RANK in
*-1-0) echo "checkpoint 10 1.0" >> $LONGSHORE_STEPS; while [ ! -e die ]; do sleep 0.05; done; kill -9 $$;;
esac
exec sleep 1000
"""
SAVES_AND_DIES = """
case $LONGSHORE_ATTEMPT in
*-1) while [ ! -e die ]; do sleep 0.05; done; echo "120 5.0 ab12cd34ef /ckpt/120 b" >> $LONGSHORE_SAVED; kill -9 $$;;
esac
echo "from $LONGSHORE_CHECKPOINT"
exec sleep 1000
"""
RANK_0_ENDS = """
if [ $RANK = 0 ]; then while [ ! -e end ]; do sleep 0.05; done; exit 0; fi
exec sleep 1000
"""


@pytest.fixture
def case(tmp_path: Path) -> Iterator[StepsCase]:
    with steps_case(tmp_path / "served") as made:
        yield made


class StepLog:
    """The steps of a job of four ranks, as they would be reported.

    Args:
        seed: Of their noise.
        slow_from: From this step on each takes 1.3 times as long.
    """

    def __init__(self, case: StepsCase, job: str, seed: int, slow_from: int | None = None) -> None:
        took_s = step_times(3000, NOISE, np.random.default_rng(seed), slow_from=slow_from, labelled=True)
        self.case, self.job, self.told = case, job, 0
        self.took_s, self.begun_s = took_s.tolist(), (case.now_s + np.cumsum(took_s) - took_s).tolist()

    def tell(self) -> None:
        """Tell all that has begun until now."""
        lines = []
        while self.begun_s[self.told] <= self.case.now_s:
            computed = f" {0.8 * self.took_s[self.told - 1]:.6f}" if self.told else ""
            lines.append(f"train {self.told} {self.begun_s[self.told]:.6f}{computed}\n")
            self.told += 1
        for rank in range(4):
            self.case.tell(self.job, "".join(lines), rank)


def play(case: StepsCase, reported: list[StepLog], seconds: int) -> None:
    for _ in range(0, seconds, TICK_S):
        for each in reported:
            if len(case.attempts(each.job)) == 1 and case.job(each.job).state is JobState.RUNNING:
                each.tell()
        case.pass_time(TICK_S)


@pytest.mark.full
def test_a_job_on_a_slow_node_moves_once_at_no_charge_and_the_node_takes_no_more(case: StepsCase) -> None:
    jobs = [case.submit() for _ in range(3)]
    slow_node = case.node(jobs[0])
    reported = [StepLog(case, job, seed, 300 if seed == 0 else None) for seed, job in enumerate(jobs)]
    play(case, reported, 300)
    case.tell(jobs[0], f"299 {case.now_s:.3f} - /ckpt/299\n", file="saved")
    assert case.health() == []

    # Ten steps to be noticed, three looks a minute apart, and one look more for each.
    play(case, reported, 10 * 2 + 4 * 60)
    case.tick_until(lambda: len(case.attempts(jobs[0])) == 2 and case.job(jobs[0]).state is JobState.RUNNING)

    assert [(event.job_id, event.now) for event in case.health()] == [(jobs[0], "slow"), (jobs[0], "moved")]
    assert case.node(jobs[0]) not in {slow_node, *map(case.node, jobs[1:])}
    first, row = case.attempts(jobs[0])[0], case.job(jobs[0])
    assert (first.outcome, first.cause) == ("requested", f"slow on {slow_node}, moved")
    assert row.stops_infra == row.stops_user == row.stops_ambiguous == row.stops_again == row.no_progress == 0
    assert list(case.out_of_service()) == [slow_node]
    assert [len(case.attempts(job)) for job in jobs[1:]] == [1, 1]


def test_the_detector_that_a_job_file_names_follows_its_steps(case: StepsCase) -> None:
    jobs = [case.submit(health={"slow": name}) for name in ("median_k", "off")]
    for step in range(100):
        for job in jobs:
            for rank in range(4):
                case.tell(job, f"train {step} {case.now_s:.3f}\n", rank)
        case.pass_time(1.0 if step < 55 else 8.0)
        if case.health():
            break

    assert [(event.job_id, event.now) for event in case.health()] == [(jobs[0], "slow")]


def test_a_slow_job_is_found_though_the_backend_did_not_answer_meanwhile(
    case: StepsCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [case.submit() for _ in range(2)]
    reported = [StepLog(case, job, seed, 300 if seed == 0 else None) for seed, job in enumerate(jobs)]
    play(case, reported, 320)
    # Nobody reaches the backend's attempts, of which some steps have been slow.
    monkeypatch.setattr(case.service.backend, "statuses", unanswered)
    play(case, reported, TICK_S)
    monkeypatch.undo()
    play(case, reported, 10 + 5 * 60)

    assert [(event.job_id, event.now) for event in case.health()] == [(jobs[0], "slow"), (jobs[0], "moved")]


def unanswered(names: tuple[str, ...]) -> dict[str, Status]:
    raise BackendError(f"{len(names)} attempts cannot be seen")


def test_what_follows_from_a_move_is_written_together_with_the_stop(
    case: StepsCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the scheduler is killed, the store tells of both or of none."""
    job, other = (case.submit() for _ in range(2))
    reported = [StepLog(case, job, 0, 300), StepLog(case, other, 1)]
    seen, write = set[tuple[bool, bool, bool]](), case.store.write

    def watched(work: Callable[[Connection], object]) -> object:
        done = write(work)
        has_moved = any(event.now == "moved" for event in case.health())
        is_stopped = case.attempts(job)[0].state is not AttemptState.RUNNING
        seen.add((has_moved, is_stopped, bool(case.out_of_service())))
        return done

    monkeypatch.setattr(case.store, "write", watched)
    play(case, reported, 300 + 10 * 2 + 4 * 60)
    assert seen == {(False, False, False), (True, True, True)}


def test_a_slow_job_that_its_owner_cancels_just_then_sets_no_node_aside(case: StepsCase) -> None:
    job, other = (case.submit() for _ in range(2))
    reported = [StepLog(case, job, 0, 300), StepLog(case, other, 1)]
    steps = case.service.reconciler.parts.monitor.steps
    while not any(one.slow and one.slow.checks == CHECKS - 1 for one in steps._followed.values()):
        play(case, reported, TICK_S)
    case.store.write(lambda tx: set_desired(tx, job, Desired.CANCEL, at_s=case.now_s, writer="api"))
    case.now_s += CHECK_S - TICK_S
    play(case, reported, TICK_S)  # the one look at which it is found slow, and to be cancelled

    assert [event.now for event in case.health()] == ["slow"]
    assert case.out_of_service() == {}
    assert case.job(job).after_stop is AfterStop.CANCEL


@pytest.mark.full
def test_no_more_nodes_are_set_aside_than_one_in_ten(case: StepsCase) -> None:
    jobs = [case.submit() for _ in range(2)]
    reported = [StepLog(case, job, seed, 300 + 250 * seed) for seed, job in enumerate(jobs)]
    play(case, reported, 300 + 250 + 260)

    assert [(event.job_id, event.now) for event in case.health()] == [
        (jobs[0], "slow"), (jobs[0], "moved"), (jobs[1], "slow"),
    ]  # fmt: skip
    assert "too many nodes are out of service as slow" in case.health()[-1].cause
    assert len(case.out_of_service()) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("jobs", "estimate_s", "told_why"),
    [(4, 7200.0, "no other GPUs would do better"), (1, 1000.0, "it would lose more than it gains")],
)
def test_a_slow_job_that_gains_nothing_by_moving_stays(
    case: StepsCase, jobs: int, estimate_s: float, told_why: str
) -> None:
    job, *_ = [case.submit(estimate_s=estimate_s) for _ in range(jobs)]
    play(case, [StepLog(case, job, 1, 250)], 250 + 260)

    assert [event.now for event in case.health()] == ["slow"]
    assert told_why in case.health()[0].cause
    assert (len(case.attempts(job)), case.out_of_service()) == (1, {})


@pytest.mark.full
def test_when_all_jobs_become_slow_at_once_none_moves_and_there_is_one_alarm(case: StepsCase) -> None:
    jobs = [case.submit() for _ in range(3)]
    reported = [StepLog(case, job, seed, 300) for seed, job in enumerate(jobs)]
    play(case, reported, 600)

    assert sorted(event.now for event in case.health()) == ["alarm", "slow", "slow", "slow"]
    assert [len(case.attempts(job)) for job in jobs] == [1, 1, 1]
    assert case.out_of_service() == {}


def test_a_rank_that_is_killed_in_a_checkpoint_leaves_nothing_to_the_next_attempt(case: StepsCase) -> None:
    job = case.submit(("sh", "-c", CHECKPOINTS_AND_DIES), gpus=2)
    case.pass_time(TICK_S)
    (case.folder / "attempts" / f"ls-{job}-1" / "work" / "die").touch()
    case.tick_until(lambda: case.attempts(job)[0].state is AttemptState.CLOSED)
    case.pass_time(300.0)  # the wait before another try
    case.tick_until(lambda: len(case.attempts(job)) == 2 and case.job(job).state is JobState.RUNNING)

    step = 0
    for _ in range(400):
        for rank in (0, 1):
            lines = [f"train {step + at} {case.now_s + at:.3f}\n" for at in range(25)]
            case.tell(job, "".join(lines), rank)
        step += 25
        case.pass_time(25.0)
    case.tell(job, f"checkpoint {step} {case.now_s:.3f}\n")
    for _ in range(10):
        case.pass_time(25.0)

    assert case.health() == []
    assert (case.job(job).state, len(case.attempts(job))) == (JobState.RUNNING, 2)
    steps = case.service.reconciler.parts.monitor.steps
    assert steps.figures[job].step == step
    assert set(steps.recent_train_steps_s(f"ls-{job}-2")) <= {1.0}


def test_a_job_one_of_whose_ranks_hangs_is_stopped_in_time_and_tried_again(case: StepsCase) -> None:
    job = case.submit(gpus=2)
    for at in range(0, 200, 4):
        for rank in (0, 1):
            if rank == 0 or at < 100:
                case.tell(job, "".join(f"train {at + i} {case.now_s + i:.3f}\n" for i in range(4)), rank)
            elif at == 100:
                case.tell(job, f"train 100 {case.now_s:.3f}\n", rank)
                hung_s = case.now_s
        case.pass_time(4.0)
        if case.health():
            break

    assert [event.now for event in case.health()] == ["hung"]
    assert case.now_s - hung_s <= 60.0 + 5.0
    case.tick_until(lambda: case.attempts(job)[0].state is AttemptState.CLOSED)
    assert "rank 1 hangs in train step 100 since 20" in case.attempts(job)[0].cause
    assert case.attempts(job)[0].outcome == "ambiguous"
    case.pass_time(300.0)
    case.tick_until(lambda: len(case.attempts(job)) == 2)


def test_a_job_runs_on_when_one_of_its_ranks_has_ended_well(case: StepsCase) -> None:
    job = case.submit(("sh", "-c", RANK_0_ENDS), gpus=2)
    name = f"ls-{job}-1"
    for at in range(0, 100, 4):
        for rank in (0, 1):
            case.tell(job, "".join(f"train {at + i} {case.now_s + i:.3f}\n" for i in range(4)), rank)
        case.pass_time(4.0)
    (case.folder / "attempts" / name / "work" / "end").touch()
    case.tick_until(lambda: bool(case.service.backend.status(name).ends))
    for at in range(100, 300, 4):
        case.tell(job, "".join(f"train {at + i} {case.now_s + 2.0 * i:.3f}\n" for i in range(4)), 1)
        case.pass_time(8.0)

    assert (case.health(), case.job(job).state) == ([], JobState.RUNNING)
    # What it waits for is known by the rank that is left.
    assert case.service.reconciler.parts.monitor.steps.recent_train_steps_s(name)[-1] == pytest.approx(2.0, abs=0.01)


@pytest.mark.few(1)
@pytest.mark.parametrize(("health", "hangs"), [({"hang": "off"}, False), ({"hang": 600}, False), ({"hang": 30}, True)])
def test_a_job_says_itself_how_long_a_step_may_take(case: StepsCase, health: dict[str, object], hangs: bool) -> None:  # noqa: FBT001
    job = case.submit(gpus=1, health=health)
    case.pass_time(5.0)
    for at in range(100):
        case.tell(job, f"train {at} {case.now_s + at / 100:.3f}\n")
    for _ in range(20):
        case.pass_time(10.0)
    assert bool(case.health()) is hangs


def test_a_job_that_reports_nothing_never_hangs(case: StepsCase) -> None:
    job = case.submit(gpus=1)
    for _ in range(100):
        case.pass_time(100.0)
    assert (case.job(job).state, case.health()) == (JobState.RUNNING, [])


def test_no_job_hangs_in_the_time_in_which_the_scheduler_was_away(case: StepsCase) -> None:
    job = case.submit(gpus=1)
    case.tell(job, f"train 1 {case.now_s:.3f}\n")
    case.pass_time(5.0)
    for _ in range(3):
        case.pass_time(3600.0)
        case.tell(job, f"train 2 {case.now_s - 1800:.3f}\n")
        case.pass_time(5.0)
    assert (case.job(job).state, case.health()) == (JobState.RUNNING, [])


def test_the_next_attempt_goes_on_from_the_last_checkpoint_that_was_reported(case: StepsCase) -> None:
    job = case.submit(("sh", "-c", SAVES_AND_DIES), gpus=1)
    (case.folder / "attempts" / f"ls-{job}-1" / "work" / "die").touch()
    case.tick_until(lambda: case.attempts(job)[0].state is AttemptState.CLOSED)
    case.pass_time(300.0)  # the wait before another try
    case.tick_until(lambda: case.service.backend.logs(f"ls-{job}-2", 0, 0, 99)[0] == b"from /ckpt/120 b\n")
