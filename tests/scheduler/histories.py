"""Random histories of attempts under `next_attempt_step` and `attempt_outcome`, with crashes at each call.

The world is one backend and the rows of a store, as small as can be: what the scheduler does with steps is written here
once more, from the definition, so that hundreds of thousands of histories take seconds.
"""

from random import Random

from longshore.scheduler.model.job import Tries
from longshore.scheduler.model.states import (
    ATTEMPT_CHANGES,
    FINAL,
    JOB_CHANGES,
    AfterStop,
    AttemptState,
    Contact,
    Desired,
    EndedBy,
    JobState,
    RankEnd,
    Run,
    Status,
)
from longshore.scheduler.rules.attempts import (
    START_LIMIT_S,
    AttemptStep,
    AttemptView,
    Do,
    attempt_outcome,
    next_attempt_step,
)
from longshore.scheduler.rules.jobs import AFTER

GPUS = 2  # of the cluster
ALLOWED = Tries(infra=3, resource=1, user=0, again=2, ambiguous=1)
ABSENT, PENDING, RUNNING = Status(Run.ABSENT), Status(Run.PENDING), Status(Run.RUNNING, started_s=1.0)
UNREACHABLE = Status(Run.UNREACHABLE)
CANCELLED = Status(Run.EXITED, (RankEnd(0, 0, 15, 2.0),), EndedBy.CANCEL, started_s=1.0)
ENDS = [
    Status(Run.EXITED, (RankEnd(0, 0, 0, 2.0), RankEnd(1, 0, 0, 2.0)), started_s=1.0),
    Status(Run.EXITED, (RankEnd(0, 1, 0, 2.0), RankEnd(1, 0, 15, 2.0)), EndedBy.RANK_FAILED, started_s=1.0),
    Status(Run.EXITED, (RankEnd(0, 0, 0, 2.0), RankEnd(1, 75, 0, 2.0)), EndedBy.RANK_FAILED, started_s=1.0),
    Status(Run.EXITED, (RankEnd(0, 0, 9, 2.0),), EndedBy.RANK_FAILED, started_s=1.0),
    Status(Run.LOST, words="supervisor lost: it was killed", started_s=1.0),
    Status(Run.LOST, by=EndedBy.NODE_FAULT, words="its node was deleted", started_s=1.0),
]
OPEN = (AttemptState.RESERVED, AttemptState.LAUNCHED, AttemptState.RUNNING, AttemptState.DRAINING)


class CrashError(Exception):
    """The scheduler dies here."""


class Job:
    """The row of a job."""

    __slots__ = ("after", "changes", "desired", "gpus", "no_progress", "number", "state", "used", "was_cancelled")

    def __init__(self, gpus: int) -> None:
        self.gpus, self.state, self.desired = gpus, JobState.QUEUED, Desired.RUN
        self.number, self.after, self.used, self.no_progress = 0, None, Tries(), 0
        self.changes = 0
        self.was_cancelled = 0  # number of its last attempt when its owner cancelled it, and 1 more; 0 before

    after: AfterStop | None


class Attempt:
    """The row of an attempt, and what is really there of it at the backend."""

    __slots__ = ("contact", "job", "lives", "number", "opened_s", "partial", "real", "starts", "state", "told_to_stop")

    def __init__(self, job: Job, opened_s: float) -> None:
        self.job, self.number, self.opened_s = job, job.number, opened_s
        self.state, self.contact = AttemptState.RESERVED, Contact.OK
        self.real, self.lives, self.starts, self.told_to_stop = ABSENT, False, 0, False
        self.partial = False  # not all of it was taken, so that it does not begin


class World:
    """A scheduler, its store and a backend.

    Args:
        rng: Of all that happens by chance.
    """

    def __init__(self, rng: Random) -> None:
        self.rng, self.now_s = rng, 0.0
        self.jobs = [Job(rng.choice((1, 2))), Job(1)]
        self.attempts: list[Attempt] = []
        self.held: dict[int, Attempt] = {}  # by GPU
        self.reachable, self.cut_off, self.faulty, self.failing = True, False, False, False
        self.cancelled: set[Attempt] = set()  # what the scheduler remembers that it reported the backend
        self.late: list[tuple[Do, Attempt]] = []  # calls of a scheduler that another one has overtaken
        self.ends = False  # jobs that are cancelled end by nothing else any more
        self.crash_in = -1  # calls and writes until the scheduler dies, -1 for never

    # What the scheduler does.

    def point(self) -> None:
        """Die here, if it is time."""
        self.crash_in -= 1
        if self.crash_in == 0:
            raise CrashError

    def tick(self, crash_in: int = -1) -> None:
        """Let the scheduler look once, and maybe be another one afterwards."""
        self.crash_in = crash_in
        try:
            for attempt in self.attempts:
                if attempt.state is not AttemptState.CLOSED:
                    for _ in range(8):
                        if not self.step(attempt):
                            break
            self.place()
        except CrashError:
            self.cancelled = set()
            return
        if self.reachable:
            late = [
                it
                for it in self.attempts
                if it.state is AttemptState.RESERVED and self.now_s > it.opened_s + START_LIMIT_S
            ]
            assert not late, "it holds GPUs for ever and does not start"

    def step(self, attempt: Attempt) -> bool:
        job, drains = attempt.job, attempt.state is AttemptState.DRAINING
        status = attempt.real if self.reachable else UNREACHABLE
        gone = drains and self.reachable and not attempt.lives and attempt.real is not PENDING
        faulty = self.faulty and any(held is attempt for held in self.held.values())
        view = AttemptView(
            job.desired, attempt.state, attempt.opened_s, status, gone, attempt in self.cancelled, faulty, self.cut_off
        )  # fmt: skip
        step = next_attempt_step(view, self.now_s)
        do = step.do
        if step.contact is not attempt.contact:
            self.point()
            attempt.contact = step.contact
            return True
        if do is Do.NOTHING:
            return False
        if do is Do.LAUNCH:
            return self.launch(attempt)
        if do is Do.CANCEL:
            first = attempt not in self.cancelled
            self.point()
            self.call_cancel(attempt)
            self.point()
            self.cancelled.add(attempt)
            return first and status.run is Run.ABSENT
        self.point()
        if do is Do.CLOSE:
            self.change(attempt, AttemptState.CLOSED)
            return False
        if do is Do.RELEASE:
            self.release(attempt, status)
        elif do is Do.RUN:
            self.change(attempt, AttemptState.RUNNING)
            self.change_job(job, JobState.RUNNING, None)
        else:
            assert status is not UNREACHABLE, "lost contact stopped it"
            self.stop(attempt, step)
        self.point()
        return True

    def stop(self, attempt: Attempt, step: AttemptStep) -> None:
        self.change(attempt, AttemptState.DRAINING)
        self.change_job(attempt.job, JobState.STOPPING, step.after)

    def launch(self, attempt: Attempt) -> bool:
        assert attempt.state in (AttemptState.RESERVED, AttemptState.LAUNCHED), "it is launched again"
        self.point()
        if self.failing:
            turn = self.rng.random()
            if turn < 0.3:
                self.stop(attempt, AttemptStep(Do.STOP, "", AfterStop.RETRY))
                return True
            if turn < 0.6:
                self.call_launch(attempt, partial=True)
            return False
        self.call_launch(attempt)
        self.point()
        if attempt.state is AttemptState.RESERVED:
            self.change(attempt, AttemptState.LAUNCHED)
        return False

    def release(self, attempt: Attempt, status: Status) -> None:
        job = attempt.job
        assert not attempt.lives, "its GPUs are freed while it lives"
        found = attempt_outcome(
            status, job.after, ALLOWED, job.used, job.no_progress, progressed=self.rng.random() < 0.5, wait_share=0.0
        )  # fmt: skip
        if found.after is AfterStop.SUCCEED:
            assert status.run is Run.EXITED
            assert not any(end.code or end.signal for end in status.ends)
        assert sum(found.used) - sum(job.used) in (0, 1)
        job.used, job.no_progress = found.used, found.no_progress
        if found.after is AfterStop.HOLD and job.desired is Desired.RUN:
            job.desired = Desired.HOLD
        self.change(attempt, AttemptState.RELEASED)
        mine = [gpu for gpu, held in self.held.items() if held is attempt]
        assert len(mine) == job.gpus
        for gpu in mine:
            del self.held[gpu]
        self.change_job(job, AFTER[found.after], None)

    def place(self) -> None:
        """Let jobs in and out of the queue, and start those that fit."""
        for job in self.jobs:
            if job.state in (JobState.QUEUED, JobState.HELD) and job.desired is Desired.CANCEL:
                self.change_job(job, JobState.CANCELLED, None)
            elif job.state is JobState.HELD and job.desired is Desired.RUN:
                self.change_job(job, JobState.QUEUED, None)
                job.no_progress = 0
            elif job.state is JobState.QUEUED and job.desired is Desired.HOLD:
                self.change_job(job, JobState.HELD, None)
            free = [gpu for gpu in range(GPUS) if gpu not in self.held]
            if job.state is JobState.QUEUED and len(free) >= job.gpus and not self.faulty:
                self.open(job, free[: job.gpus])

    def open(self, job: Job, gpus: list[int]) -> None:
        assert not any(it.job is job and it.state in OPEN for it in self.attempts), "a second open attempt"
        assert not job.was_cancelled, "an attempt after the wish to cancel"
        self.point()
        job.number += 1
        attempt = Attempt(job, self.now_s)
        self.change_job(job, JobState.STARTING, None)
        self.attempts.append(attempt)
        for gpu in gpus:
            assert gpu not in self.held, "two reservations of a GPU"
            self.held[gpu] = attempt
        self.point()
        self.step(attempt)

    def change(self, attempt: Attempt, now: AttemptState) -> None:
        assert now in ATTEMPT_CHANGES[attempt.state], f"{attempt.state} to {now}"
        attempt.state = now

    def change_job(self, job: Job, now: JobState, after: AfterStop | None) -> None:
        assert now in JOB_CHANGES[job.state], f"{job.state} to {now}"
        job.state, job.after = now, after
        job.changes += 1

    # What the backend does.

    def call_launch(self, attempt: Attempt, *, partial: bool = False) -> None:
        attempt.partial = partial
        if attempt.real is ABSENT and not attempt.told_to_stop:
            attempt.real, attempt.lives, attempt.starts = PENDING, True, attempt.starts + 1
            assert any(held is attempt for held in self.held.values()), "it starts on GPUs that are not its own"

    def call_cancel(self, attempt: Attempt) -> None:
        attempt.told_to_stop = True

    def live_on(self) -> None:
        """Let something happen to an attempt at the backend."""
        rng = self.rng
        for attempt in self.attempts:
            if attempt.real is PENDING or attempt.real is RUNNING:
                if attempt.told_to_stop and rng.random() < 0.5:
                    attempt.real = CANCELLED
                    attempt.lives = rng.random() < 0.3
                elif attempt.real is PENDING:
                    attempt.real = PENDING if attempt.partial else RUNNING
                elif rng.random() < 0.5 and not (self.ends and attempt.job.was_cancelled):
                    attempt.real = rng.choice(ENDS)
                    attempt.lives = attempt.real.run is Run.EXITED and rng.random() < 0.3  # what it left behind
            elif attempt.lives and rng.random() < 0.5:
                attempt.lives = False

    def happen(self) -> None:
        """Let something happen."""
        rng = self.rng
        turn = rng.random()
        if turn < 0.45:
            self.tick(rng.randrange(1, 9) if rng.random() < 0.4 else -1)
        elif turn < 0.70:
            self.live_on()
        elif turn < 0.72:
            self.try_again(rng.choice(self.jobs))
        elif turn < 0.80:
            self.wish(rng.choice(self.jobs), rng.choice((Desired.CANCEL, Desired.HOLD, Desired.RUN, Desired.RUN)))
        elif turn < 0.86:
            self.now_s += rng.choice((1.0, 10.0, 400.0))
        elif turn < 0.96:
            self.turn_bad_or_good()
        elif turn < 0.98 and self.attempts:  # a scheduler is paused between the row and the call
            self.late.append((rng.choice((Do.LAUNCH, Do.CANCEL)), self.attempts[-1]))
        elif self.late:
            self.speak_late(*self.late.pop())

    def turn_bad_or_good(self) -> None:
        """Let something fail, or work again."""
        what = self.rng.choice(("reachable", "reachable", "cut_off", "faulty", "failing"))
        setattr(self, what, not getattr(self, what))

    def speak_late(self, do: Do, attempt: Attempt) -> None:
        if do is Do.LAUNCH:
            self.call_launch(attempt)
        elif attempt.state in (AttemptState.DRAINING, AttemptState.RELEASED, AttemptState.CLOSED):
            self.call_cancel(attempt)  # it was decided under the same row

    def wish(self, job: Job, desired: Desired) -> None:
        if job.state not in FINAL and job.desired is not Desired.CANCEL:
            job.desired = desired
            job.was_cancelled = job.number + 1 if desired is Desired.CANCEL else 0

    def try_again(self, job: Job) -> None:
        """Let a failed job be tried again, as its owner may want."""
        if job.state is JobState.FAILED and job.desired is not Desired.CANCEL:
            self.change_job(job, JobState.QUEUED, None)
            job.desired, job.used, job.no_progress = Desired.RUN, Tries(), 0

    def check(self) -> None:
        """Check what has to hold at every moment."""
        for attempt in self.attempts:
            assert attempt.starts <= 1, "it started twice"
            if attempt.lives:
                mine = sum(held is attempt for held in self.held.values())
                assert mine == attempt.job.gpus, "it lives on GPUs that are not its own"

    def finish(self) -> None:
        """Let everything work again, and all end."""
        self.reachable, self.cut_off, self.faulty, self.failing, self.ends = True, False, False, False, True
        for _ in range(200):
            for job in self.jobs:
                self.wish(job, Desired.RUN)
            if all(job.state in FINAL for job in self.jobs) and all(
                it.state is AttemptState.CLOSED for it in self.attempts
            ):
                break
            self.tick()
            self.live_on()
            self.check()
        assert all(job.state in FINAL for job in self.jobs), "a job never ends"
        assert all(it.state is AttemptState.CLOSED for it in self.attempts), "an attempt is never forgotten"
        assert not self.held
        assert not any(attempt.lives for attempt in self.attempts)


def mirror(seed: int, turns: int) -> None:
    """Live through one history, and check what has to hold."""
    world = World(Random(seed))
    world.tick()
    for _ in range(turns):
        world.happen()
        world.check()
    world.finish()
