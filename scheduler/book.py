"""What the leading scheduler knows: a copy of the store's open jobs, and the arrays that policies see."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from .backends.protocol import Backend
from .deciding import Deciding
from .layout import Layout
from .live import LiveCluster, Site
from .recall import known_of
from .states import FINAL, AttemptState, JobState
from .store.attempts import AttemptRow, get_attempt, unclosed_attempts
from .store.events import events_after, last_seq
from .store.jobs import JobRow, get_job, open_jobs
from .store.opening import Store

log = logging.getLogger(__name__)

T = TypeVar("T")
WRITER = "scheduler"
MOST_EVENTS = 1000  # read at once


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scheduler works with."""

    store: Store
    backend: Backend
    backend_name: str
    site: Site
    layout: Layout
    deciding: Deciding
    now_s: Callable[[], float]  # Unix time
    owner: str  # of the lease, for people


class Book:
    """A copy of the store under one token. Whoever finds that it is old reads a new one.

    Args:
        parts: What the scheduler works with.
        fence: Token of its lease.
        down: GPUs that are out of service.
    """

    def __init__(self, parts: Parts, fence: int, down: list[int]) -> None:
        self.parts, self.fence, self.down = parts, fence, down
        now_s = parts.now_s()
        with parts.store.read() as tx:
            self._seq = last_seq(tx)
            rows, attempts = open_jobs(tx), unclosed_attempts(tx)
        self.jobs: dict[str, JobRow] = {row.id: row for row in rows}  # in no final state, in order of submission
        self.attempts: dict[str, AttemptRow] = {row.job_id: row for row in attempts}  # the last of each job, not closed
        known = known_of(rows, self.attempts, parts.layout, down, now_s)
        self.live = LiveCluster(parts.site, known)
        waiting = {row.id for row in rows if row.state in (JobState.QUEUED, JobState.HELD)}
        self.outside = waiting - set(known.queue)  # jobs that wait, but not in the queue of the cluster
        self._moment_s = now_s - 1.0
        parts.deciding.begin(self.live)

    def happens(self, now_s: float) -> None:
        """Let time pass in the cluster's arrays until now, once for all that happens now."""
        if now_s != self._moment_s:
            self._moment_s = now_s
            self.live.begin(now_s)

    def happened(self, now_s: float) -> bool:
        """Say whether something happened now."""
        return now_s == self._moment_s

    def write(self, work: Callable[[Connection, int], T]) -> T:
        """Write to the store with this token."""
        return self.parts.store.write(lambda tx: work(tx, self.fence))

    def read_again(self, job: str) -> None:
        """Read a job and its last attempt from the store."""
        with self.parts.store.read() as tx:
            row = get_job(tx, job)
            attempt = None if row is None else get_attempt(tx, job, row.attempt)
        self.keep(job, row)
        if attempt is None or attempt.state is AttemptState.CLOSED:
            self.attempts.pop(job, None)
        else:
            self.attempts[job] = attempt

    def keep(self, job: str, row: JobRow | None) -> None:
        """Keep a job as it stands, or drop it if it has ended."""
        if row is None or row.state in FINAL:
            self.jobs.pop(job, None)
            self.outside.discard(job)
        else:
            self.jobs[job] = row

    def follow(self) -> None:
        """Take in what others wrote: new jobs, and what is wanted of old ones."""
        with self.parts.store.read() as tx:
            while events := events_after(tx, self._seq, MOST_EVENTS):
                self._seq = events[-1].seq
                for job in dict.fromkeys(event.job_id for event in events if event.fence is None):
                    if job is not None:
                        self._take_in(job, get_job(tx, job))

    def _take_in(self, job: str, row: JobRow | None) -> None:
        if row is not None and row.state in (JobState.QUEUED, JobState.HELD) and job not in self.jobs:
            self.outside.add(job)
        self.keep(job, row)
