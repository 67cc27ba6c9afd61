"""The queue has one order, whatever was done to its jobs: the scheduler's, the one that is shown, and after a restart.

The clock stands still but where it is moved, so that much happens at the same time.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from longshore.cluster.model.orders import ORDER_REGIMES
from longshore.cluster.queue.turns import line_up_jobs
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror
from longshore.scheduler.model.job import new_job_id
from longshore.scheduler.model.job_spec import JobFile
from longshore.scheduler.model.states import FINAL, Desired, EndedBy, JobState, RankEnd, Run, Status
from longshore.scheduler.rules.jobs import LastTurn, in_queue_order
from longshore.scheduler.store.jobs import NewJob, insert_job, retry_job, set_priority, waiting_jobs
from longshore.scheduler.store.nodes import user_turns
from tests.scheduler.obedient import AGAIN, WELL, Obedient
from tests.scheduler.trials import Trial
from tests.support.budgets import examples

FAILED = Status(Run.EXITED, (RankEnd(0, 1, 0, 2.0),), EndedBy.RANK_FAILED, started_s=1.0)
LOST = Status(Run.LOST, by=EndedBy.NODE_FAULT, words="its node was deleted", started_s=1.0)  # tried again at once
GPUS, WAITING = 2, 6
USERS = ("ada", "bob", "eve")


class Still(Trial):
    """A scheduler whose clock stands still, and to whose jobs things are done."""

    jobs: list[str]

    def now_s(self) -> float:
        return 1e9 + self.later_s

    def job_at(self, at: int, *, running: bool) -> str | None:
        found = [it for it in self.jobs if self.job(it).state not in FINAL]
        found = [it for it in found if (self.job(it).state is JobState.RUNNING) == running]
        return found[at % len(found)] if found else None

    @property
    def backend(self) -> Obedient:
        assert isinstance(self.way.backend, Obedient)
        return self.way.backend

    def submits(self, at: int) -> None:
        self.jobs.append(self.submit("x"))
        if at % 2:
            self.ranks(len(self.jobs) - 1)

    def holds(self, at: int) -> None:
        if job := self.job_at(at // 2, running=bool(at % 2)):
            self.wish(job, Desired.HOLD)

    def releases(self, at: int) -> None:
        held = [it for it in self.jobs if self.job(it).desired is Desired.HOLD]
        for job in held[at % 2 :]:
            self.wish(job, Desired.RUN)

    def give(self, job: str, priority: int) -> None:
        self.store.write(lambda tx: set_priority(tx, job, priority, at_s=self.now_s(), writer="api"))

    def ranks(self, at: int) -> None:
        if job := self.job_at(at // 3, running=at % 5 == 0):
            self.give(job, at % 3 - 1)

    def ranks_several(self, at: int) -> None:
        """Give jobs that stand beside one another priorities, all before the next look."""
        for number in range(2 + at % 4):
            self.ranks(at + 3 * number + (at % 7 == 0) * number)

    def ends(self, status: Status) -> Callable[[int], None]:  # type: ignore[override]
        def end(at: int) -> None:
            if job := self.job_at(at, running=True):
                self.backend.end(status, "" if at % 2 else job)

        return end

    def retries(self, at: int) -> None:
        job = self.jobs[at % len(self.jobs)]
        self.store.write(lambda tx: retry_job(tx, job, at_s=self.now_s(), writer="api"))

    def passes(self, at: int) -> None:
        self.wait(1.0 + at % 4, 1.0 + at % 4)

    def restarts(self, at: int) -> None:
        self.scheduler = self.another()
        self.tick()

    def acts(self) -> dict[str, Callable[[int], None]]:
        return {
            "submit": self.submits, "hold": self.holds, "release": self.releases,
            "priority": self.ranks, "priorities": self.ranks_several,
            "again": self.ends(AGAIN), "well": self.ends(WELL), "fail": self.ends(FAILED), "lost": self.ends(LOST),
            "retry": self.retries, "pass": self.passes, "restart": self.restarts,
        }  # fmt: skip

    def in_live(self) -> list[str]:
        assert self.scheduler.cache is not None
        return list(self.scheduler.cache.mirror.origin_now().queue)

    def in_store(self) -> list[str]:
        with self.store.read() as tx:
            return [
                it.id
                for it in in_queue_order(
                    waiting_jobs(tx, self.now_s()), ORDER_REGIMES["easy"], float("inf"), self.now_s(), GPUS
                )
            ]

    def has_one_order(self) -> bool:
        """Say whether the queue that is shown is the scheduler's."""
        return self.in_live() == self.in_store()


class Shared(Still):
    """The same with jobs of several users, who take turns; time passes from look to look.

    No two jobs are submitted at one moment. Of two that came at one moment the scheduler goes by which it heard of
    first, which a store does not tell.
    """

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.later_s += 1e-3
            super().tick()

    def submit(self, script: str, gpus: int = 1, **spec: object) -> str:
        self.later_s += 1e-3
        job = JobFile.model_validate({"command": ["sh", "-c", script], "gpus": gpus, "grace_s": 2.0, **spec})
        owner, now_s = USERS[len(self.jobs) % 7 % 3], self.now_s()
        new = NewJob(new_job_id(now_s), job.name, owner, job.model_dump(mode="json"), 0, gpus, 60.0, now_s)
        self.store.write(lambda tx: insert_job(tx, new, writer="api"))
        return new.id

    def turns_in_live(self) -> list[str]:
        assert self.scheduler.cache is not None
        mirror = self.scheduler.cache.mirror
        jobs = {mirror.slot(job): job for job in mirror.origin_now().queue}
        return [
            jobs[slot] for slot in mirror.sim.scratch.lined_up[0, : line_up_jobs(mirror.sim, 0, len(jobs))].tolist()
        ]

    def turns_in_store(self) -> list[str]:
        with self.store.read() as tx:
            turns = {user: LastTurn(it.led_s, it.led) for user, it in user_turns(tx).items()}
            waiting = waiting_jobs(tx, self.now_s())
        return [it.id for it in in_queue_order(waiting, ORDER_REGIMES["easy"], float("inf"), self.now_s(), GPUS, turns)]

    def has_one_order(self) -> bool:
        return super().has_one_order() and self.turns_in_live() == self.turns_in_store()


@contextmanager
def still(kind: type[Still] = Still) -> Iterator[Still]:
    with TemporaryDirectory() as folder:
        backend = Obedient({"a": GPUS})
        with closing(kind(Path(folder), {"a": GPUS}, lambda: backend, "obedient")) as trial:
            backend.now_s = trial.now_s
            trial.jobs = []
            for _ in range(GPUS + WAITING):
                trial.submits(0)
            trial.tick(3)
            yield trial


OFTEN = ("submit", "hold", "release", "priority", "priorities", "again", "pass", "retry")
ACTS = (*OFTEN, *OFTEN, "release", "priority", "fail", "lost", "well", "restart")


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [Still, Shared])
@given(acts=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 29)), min_size=30, max_size=40))
@settings(max_examples=examples(10), phases=[Phase.generate])  # to make it smaller takes minutes
def test_the_queue_has_one_order_whatever_is_done_to_its_jobs(kind: type[Still], acts: list[tuple[str, int]]) -> None:
    with still(kind) as trial:
        for number, (act, at) in enumerate(acts):
            trial.acts()[act](at)
            if at % 4 == 0:
                continue  # more happens before the next look
            trial.tick(4)
            trial.wait(0.25, 0.25)
            assert trial.has_one_order(), acts[: number + 1]
            if at % 4 == 1:
                trial.scheduler.cache = None  # read anew, as after a restart
                trial.tick()
                assert trial.has_one_order(), acts[: number + 1]


def test_jobs_with_the_same_priority_in_the_end_stand_in_the_order_in_which_they_came_into_the_queue() -> None:
    with still() as trial:
        mine = trial.jobs[0]
        trial.wish(mine, Desired.HOLD)
        trial.wait(3.0, 1.0)
        trial.wish(mine, Desired.RUN)
        trial.wait(2.0, 1.0)
        trial.submits(0)
        for job in (trial.jobs[-1], mine):
            trial.store.write(lambda tx, job=job: set_priority(tx, job, 1, at_s=trial.now_s(), writer="api"))  # type: ignore[misc]
            trial.wait(1.0, 1.0)

        order = [mine, trial.jobs[-1], *trial.jobs[GPUS + 1 : -1]]
        assert trial.in_live() == trial.in_store() == order
        trial.restarts(0)
        assert trial.in_live() == trial.in_store() == order


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=WAITING, max_size=WAITING))
@settings(max_examples=examples(15))
def test_jobs_that_are_given_priorities_between_two_looks_all_come_to_their_places(priorities: list[int]) -> None:
    with still() as trial:
        waiting = trial.in_live()
        for job, priority in zip(waiting, priorities, strict=True):
            if priority:
                trial.give(job, priority)
        trial.tick()

        order = sorted(waiting, key=lambda job: -priorities[waiting.index(job)])
        assert trial.in_live() == trial.in_store() == order


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("lowered", [(), (0,), (1,), (0, 1), (2, 0, 1)])
def test_a_job_that_is_lowered_and_stopped_comes_to_its_place_whoever_else_is_lowered(
    lowered: tuple[int, ...], before: bool  # noqa: FBT001
) -> None:  # fmt: skip
    with still() as trial:
        waiting = trial.in_live()
        for job in trial.jobs[:GPUS]:
            trial.give(job, -1)
        if before:
            trial.tick()
        for at in lowered:
            trial.give(waiting[at], -1)
        trial.backend.end(LOST)
        trial.tick()

        started = [it for it in waiting if trial.job(it).state is not JobState.QUEUED]
        stopped = trial.jobs[GPUS - 1 :: -1]
        others = [it for it in waiting if waiting.index(it) not in lowered and it not in started]
        assert len(started) == GPUS
        assert trial.in_live() == trial.in_store() == [*others, *stopped, *(waiting[at] for at in sorted(lowered))]


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each look from one job in the queue to the next."""
    steps, real = list[str](), ClusterMirror.queue_neighbours

    def beside(mirror: ClusterMirror, job: str) -> tuple[str | None, str | None]:
        steps.append(job)
        return real(mirror, job)

    monkeypatch.setattr(ClusterMirror, "queue_neighbours", beside)
    return steps


MANY, ASIDE = 100, 30


@pytest.mark.parametrize("how", ["set aside", "given a priority"])
def test_many_jobs_that_come_to_the_head_in_one_look_go_past_the_queue_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with still() as trial:
        for _ in range(MANY):
            trial.submits(0)
        trial.tick()
        waiting, cache = trial.in_live(), trial.scheduler.cache
        assert cache is not None
        if how == "set aside":
            for job in waiting[:ASIDE]:
                cache.set_aside(job)
            cache.table.unfit.clear()  # as some GPU is back in service
        else:
            for job in waiting[-ASIDE:]:
                trial.give(job, 1)
            waiting = waiting[-ASIDE:] + waiting[:-ASIDE]
        steps = count_steps(monkeypatch)
        trial.tick()

        assert trial.in_live() == trial.in_store() == waiting
        assert len(steps) < 3 * (MANY + ASIDE)
