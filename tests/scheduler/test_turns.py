"""Whose turn it is: nobody gets before others by holding, releasing or trying again a job of one's own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from longshore.cluster.model.orders import ORDER_REGIMES
from longshore.scheduler.model.states import Desired, EndedBy, JobState, RankEnd, Run, Status
from longshore.scheduler.rules.jobs import in_queue_order
from longshore.scheduler.store.jobs import retry_job, set_priority, waiting_jobs
from tests.scheduler.obedient import AGAIN, Obedient
from tests.scheduler.trials import Trial

FAILED = Status(Run.EXITED, (RankEnd(0, 1, 0, 2.0),), EndedBy.RANK_FAILED, started_s=1.0)


class OneGpu(NamedTuple):
    """A cluster of one GPU, for which jobs wait."""

    trial: Trial
    backend: Obedient

    def told(self) -> list[str]:
        cache = self.trial.scheduler.cache
        assert cache is not None
        return list(cache.mirror.origin_now().queue)

    def queue(self) -> list[str]:
        """Return the jobs that wait in their order, which is the same whoever tells it."""
        reported, now_s = self.told(), self.trial.now_s()
        with self.trial.store.read() as tx:
            assert [
                it.id for it in in_queue_order(waiting_jobs(tx, now_s), ORDER_REGIMES["easy"], float("inf"), now_s, 1)
            ] == reported
        self.trial.scheduler.cache = None  # read anew, as after a restart
        self.trial.tick()
        assert self.told() == reported
        return reported

    def retry(self, job: str) -> None:
        self.trial.store.write(lambda tx: retry_job(tx, job, at_s=self.trial.now_s(), writer="api"))

    def give_priority(self, job: str, priority: int) -> None:
        self.trial.store.write(lambda tx: set_priority(tx, job, priority, at_s=self.trial.now_s(), writer="api"))
        self.trial.wait(2.0, 1.0)


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[OneGpu]:
    backend = Obedient({"a": 1})
    trial = Trial(tmp_path, {"a": 1}, lambda: backend, "obedient")
    yield OneGpu(trial, backend)
    trial.close()


def submit(trial: Trial, count: int) -> list[str]:
    jobs = []
    for _ in range(count):
        jobs.append(trial.submit("x"))
        trial.wait(1.0, 1.0)
    return jobs


def hold(it: OneGpu, job: str) -> None:
    it.trial.wish(job, Desired.HOLD)
    it.trial.wait(3.0, 1.0)
    assert it.trial.job(job).state is JobState.HELD
    it.trial.wish(job, Desired.RUN)


def fail(it: OneGpu, job: str) -> None:
    it.backend.end(FAILED, job)
    it.trial.wait(3.0, 1.0)
    assert it.trial.job(job).state is JobState.FAILED
    it.retry(job)


def hold_and_retry(it: OneGpu, job: str) -> None:
    hold(it, job)
    it.trial.wish(job, Desired.HOLD)
    it.retry(job)


@pytest.mark.parametrize("again", [hold, fail, hold_and_retry])
def test_a_job_that_ran_and_is_released_or_tried_again_stands_behind_those_that_wait(
    again: Callable[[OneGpu, str], None], one_gpu: OneGpu
) -> None:
    mine, other, third = submit(one_gpu.trial, 3)
    one_gpu.trial.runs(mine)

    again(one_gpu, mine)
    one_gpu.trial.wait(3.0, 1.0)

    assert one_gpu.trial.job(other).state is JobState.RUNNING
    assert one_gpu.queue() == [third, mine]
    later = submit(one_gpu.trial, 1)[0]
    assert one_gpu.queue() == [third, mine, later]
    one_gpu.give_priority(mine, -1)
    assert one_gpu.queue() == [third, later, mine]


def test_another_priority_and_back_brings_a_released_job_before_no_one(one_gpu: OneGpu) -> None:
    mine, _, third = submit(one_gpu.trial, 3)
    one_gpu.trial.runs(mine)
    hold(one_gpu, mine)
    one_gpu.trial.wait(3.0, 1.0)

    one_gpu.give_priority(mine, -1)
    one_gpu.give_priority(mine, 0)

    assert one_gpu.queue() == [third, mine]


def test_a_job_that_waits_gains_nothing_by_a_hold(one_gpu: OneGpu) -> None:
    _, second, third, mine = submit(one_gpu.trial, 4)

    hold(one_gpu, mine)
    one_gpu.trial.wait(3.0, 1.0)

    assert one_gpu.queue() == [second, third, mine]


def test_a_job_that_was_stopped_without_its_owners_doing_goes_first_and_gives_that_up_by_a_hold(
    one_gpu: OneGpu,
) -> None:
    mine, other, third = submit(one_gpu.trial, 3)
    one_gpu.trial.runs(mine)
    one_gpu.backend.end(AGAIN, mine)
    one_gpu.trial.wait(2.0, 1.0)
    one_gpu.trial.runs(other)  # while the first one waits for its time to come
    one_gpu.trial.wait(10.0, 1.0)
    assert one_gpu.queue() == [mine, third]

    hold(one_gpu, mine)
    one_gpu.trial.wait(3.0, 1.0)

    assert one_gpu.queue() == [third, mine]
