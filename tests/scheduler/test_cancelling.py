"""Jobs that are cancelled at any moment of their lives, also twice, while the scheduler is killed again and again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Self, TypeVar

import pytest
from sqlalchemy import Connection

from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Attempt, Backend, Capabilities, GpuView, NodeView
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.states import FINAL, AttemptState, Desired, EndedBy, JobState, RankEnd, Run, Status
from longshore.scheduler.store.jobs import DESIRED
from tests.scheduler.backends.attempts import until
from tests.scheduler.store.store_rows import assert_each_change_has_one_event
from tests.scheduler.trials import KilledError, Trial, local_trial, processes_of

T = TypeVar("T")
NODES = {f"n{number}": 8 for number in range(4)}
KILLED = 0.02  # share of calls at which the scheduler dies
ENDS = [
    Status(Run.EXITED, (RankEnd(0, 0, 0, 2.0),), started_s=1.0),
    Status(Run.EXITED, (RankEnd(0, 0, 0, 2.0),), started_s=1.0),
    Status(Run.EXITED, (RankEnd(0, 1, 0, 2.0),), EndedBy.RANK_FAILED, started_s=1.0),
    Status(Run.EXITED, (RankEnd(0, 75, 0, 2.0),), EndedBy.RANK_FAILED, started_s=1.0),
    Status(Run.LOST, words="supervisor lost: it was killed", started_s=1.0),
]


class Chance(Backend):
    """A backend whose attempts begin, end and obey by chance; it outlives every scheduler."""

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=True)

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.known: dict[str, Status] = {}
        self.lives: set[str] = set()
        self.cancelled: set[str] = set()

    @classmethod
    def build(cls, settings: object, folder: Path, layout: Layout) -> Self:
        return cls(Random(0))

    def observe(self) -> tuple[NodeView, ...]:
        gpus = tuple(map(GpuView, range(8)))
        return tuple(NodeView(node, gpus, self.rng.random() + 1.0) for node in NODES)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        if attempt.name not in self.known and attempt.name not in self.cancelled:
            self.known[attempt.name] = Status(Run.PENDING)
            self.lives.add(attempt.name)

    def status(self, name: str) -> Status:
        return self.known.get(name, Status(Run.ABSENT))

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        for name in names:
            if name in self.known and self.rng.random() < 0.4:
                self._live_on(name)
        return {name: self.status(name) for name in names}

    def _live_on(self, name: str) -> None:
        status, obeys = self.known[name], name in self.cancelled
        if status.run is Run.PENDING and not obeys:
            self.known[name] = Status(Run.RUNNING, started_s=1.0)
        elif status.run in (Run.PENDING, Run.RUNNING):
            asked = Status(Run.EXITED, (RankEnd(0, 0, 15, 2.0),), EndedBy.CANCEL, started_s=1.0)
            self.known[name] = asked if obeys else self.rng.choice(ENDS)
        else:
            self.lives.discard(name)  # the last process of it

    def cancel(self, name: str, reason: str) -> None:
        self.cancelled.add(name)

    def is_proven_gone(self, name: str) -> bool:
        return name not in self.lives

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return b"", offset

    def forget(self, name: str) -> None:
        assert name not in self.lives


@pytest.fixture
def rng() -> Random:
    return Random(19)


def mortal(trial: Trial, rng: Random, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a look of a scheduler that dies at random calls, after which another one goes on."""
    looks, real = [False], trial.store.write

    def maybe(_call: str = "") -> None:
        if looks[0] and rng.random() < KILLED:
            raise KilledError

    def write(work: Callable[[Connection], T]) -> T:
        maybe()
        value = real(work)
        maybe()
        return value

    def look() -> None:
        trial.way.before = trial.way.after = maybe
        looks[0] = True
        try:
            trial.tick()
        except KilledError:
            trial.crash()
        looks[0] = False

    monkeypatch.setattr(trial.store, "write", write)
    return look


def cancel_at_random(
    trial: Trial, rng: Random, jobs: list[str], moments: int, look: Callable[[], None]
) -> set[JobState]:
    """Cancel each job at a random look, half of them once more at a later one; return the states that they were in."""
    found = set()
    when: dict[int, list[str]] = {}
    for job in jobs:
        first = rng.randrange(moments)
        for moment in (first, *([rng.randrange(first, moments)] if rng.random() < 0.5 else [])):
            when.setdefault(moment, []).append(job)
    for moment in range(moments):
        for job in when.get(moment, []):
            found.add(trial.job(job).state)
            trial.wish(job, Desired.CANCEL)
        trial.wish(rng.choice(jobs), Desired.HOLD)
        trial.later_s += 1.0
        look()

    def is_over() -> bool:
        look()
        return all(trial.job(job).state in FINAL for job in jobs)

    until(is_over)
    trial.crash()
    trial.until(lambda: not trial.held())
    trial.tick(3)
    return found


def assert_true_ends(trial: Trial, jobs: list[str], end_of: Callable[[str], Status]) -> set[JobState]:
    """Every wish was kept, nothing was started after it, and each job ended as its attempt did or was cancelled."""
    states = set()
    events = trial.events()
    of_job: dict[str | None, list[int]] = {}
    for number, event in enumerate(events):
        of_job.setdefault(event.job_id, []).append(number)
    for job in jobs:
        row, mine = trial.job(job), [events[number] for number in of_job[job]]
        assert_each_change_has_one_event(row, mine)
        wishes = [place for place, event in enumerate(mine) if (event.kind, event.now) == (DESIRED, "cancel")]
        states.add(row.state)
        if wishes:
            assert row.desired is Desired.CANCEL
            assert not [event for event in mine[wishes[0] :] if event.now == AttemptState.RESERVED.value]
        if row.state is not JobState.CANCELLED:
            end = end_of(f"ls-{job}-{row.attempt}")
            well = end.run is Run.EXITED and not any(one.code or one.signal for one in end.ends)
            assert well == (row.state is JobState.SUCCEEDED)
    return states


@pytest.mark.full
def test_hundreds_of_jobs_that_are_cancelled_at_random_moments_keep_their_request_and_never_start_again(
    tmp_path: Path, rng: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Chance(rng)
    trial = Trial(tmp_path, NODES, lambda: chance, "chance")
    jobs = [trial.submit("true", gpus=rng.choice((1, 1, 2))) for _ in range(500)]
    look = mortal(trial, rng, monkeypatch)
    found = cancel_at_random(trial, rng, jobs, 120, look)

    assert found >= set(JobState) - FINAL
    assert len({event.fence for event in trial.events()}) > 20  # so many schedulers there were
    assert assert_true_ends(trial, jobs, chance.status) == {JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED}
    assert not chance.lives
    assert trial.held() == []
    trial.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Trial]:
    with local_trial(tmp_path, {"a": 8, "b": 8}) as it:
        yield it


@pytest.mark.full
def test_real_jobs_that_are_cancelled_at_random_moments_keep_their_request_and_leave_no_process(
    local: Trial, rng: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = ["sleep 0.3", "sleep 0.3; exit 1", "exec sleep 1000", "trap '' TERM; sleep 1000", "sleep 0.1; exit 75"]
    jobs = [local.submit(rng.choice(scripts), gpus=rng.choice((1, 2)), grace_s=0.2) for _ in range(24)]
    look = mortal(local, rng, monkeypatch)
    cancel_at_random(local, rng, jobs, 60, look)

    assert JobState.CANCELLED in assert_true_ends(local, jobs, local.way.status)
    assert [job for job in jobs if processes_of(job)] == []
    assert local.held() == []
