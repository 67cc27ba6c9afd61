"""Errors of single jobs: each is counted, isolated from other jobs, and followed by a back-off; and failed launches.

All that the scheduler does about a single job runs within `JobErrors.isolated`. An unforeseen error there is like a
crash of the scheduler at that point, except that its job is known: the changes for the job since then are dropped, and
the job rests for a while. After three errors in a row it is held, unless it runs.

If many jobs fail at the same step within a short time, the jobs are hardly at fault: they rest, and none is held. A
poll of a job that succeeds ends the count.

On a small or quiet cluster two jobs are many. So an error is charged to its job all the same if, since the job's error
before, another job that has not failed took the very step at which this one fails; jobs that only wait or run on prove
nothing about a step that they do not take. If no other job takes the step, even two jobs alone are held, but only
after MAX_ERRORS_OF_TWO errors, so that a fault repaired meanwhile holds no job. Three or more jobs more likely share
the fault. A store or backend that does not answer is not counted at all.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ...cluster.files.errors import error_line
from ..store.database import FencedError, StaleWriteError, StoreRefusesError, StoreUnreachableError, TakenError

log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")

ERROR_EVENT = "error"  # kind of events
MAX_ERRORS_IN_A_ROW = 3  # after which a job is held
MAX_ERRORS_OF_TWO = 15  # of two jobs that fail at the same step, and no other; with the rests that is nine minutes
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0  # during which a job is left alone; doubled with each error
SHARED_FRACTION = 0.3  # of several jobs: if more fail at the same step within SHARED_S, none is at fault
SHARED_S = 2.0 * LONGEST_REST_S  # in which each job that fails again and again is tried once at least
ERROR_ROW_GAP_S = 3600.0  # after its rest; a later error is the first of another row
OF_NO_JOB = (FencedError, StaleWriteError, TakenError, StoreRefusesError, StoreUnreachableError)  # the fault of no job


class SpoiledError(Exception):
    """The state in memory may be half changed for one job, and has to be read again."""


@dataclass(slots=True)
class _ErrorCount:
    errors: int  # in a row, each of which makes its rest longer
    charged: int  # those that are its own fault
    rests_until_s: float
    words: str
    last_s: float = float("inf")  # when the last one was
    before_s: float = float("inf")  # and the one before it


@dataclass(slots=True)
class _Tally:
    """When jobs were last tried, by job."""

    tried_s: dict[str, float] = field(default_factory=dict)
    failed_s: dict[str, float] = field(default_factory=dict)
    failed_now: dict[str, str] = field(default_factory=dict)  # in this tick, with the step
    well_s: dict[tuple[str, str], float] = field(default_factory=dict)  # when a step was taken, by step and job

    def forget_old(self, now_s: float) -> None:
        """Forget what is too old, or in the future because the clock was set back."""
        self.tried_s, self.failed_s = _recent_times(self.tried_s, now_s), _recent_times(self.failed_s, now_s)
        self.well_s = _recent_times(self.well_s, now_s)

    @property
    def is_fault_shared(self) -> bool:
        """Whether too many jobs failed for the fault to be their own."""
        return len(self.failed_s) > max(1.0, SHARED_FRACTION * len(self.tried_s))

    def others_took_step(self, step: str, since_s: float) -> bool:
        """Return whether a job that has not failed took a step after a time."""
        return any(
            at_s > since_s and taken == step and job not in self.failed_s for (taken, job), at_s in self.well_s.items()
        )


def _recent_times(times_s: Mapping[KeyT, float], now_s: float) -> dict[KeyT, float]:
    return {key: at_s for key, at_s in times_s.items() if 0.0 <= now_s - at_s <= SHARED_S}


class JobErrors:
    """Errors of single jobs since they last changed in the store, or since a poll of them succeeded."""

    def __init__(self) -> None:
        self._counts: dict[str, _ErrorCount] = {}
        self._tallies = defaultdict[str, _Tally](_Tally)  # by what was done
        self._failed, self._well = set[str](), set[str]()  # in this tick

    def begin_tick(self, now_s: float) -> None:
        """Begin a tick: charge the errors of the last one to jobs, with all of them in view."""
        for what, tally in self._tallies.items():
            tally.forget_old(now_s)
            failed = tally.failed_now.keys() & self._counts.keys()
            charged = {job for job in failed if self._is_own_fault(job, tally)}
            for job in charged:
                self._counts[job].charged += 1
            if failed - charged:
                counts = len(tally.failed_s), len(tally.tried_s)
                log.error("%s: %d of %d jobs failed of late, none is charged", what, *counts)
            tally.failed_now.clear()
        self.forget(self._well - self._failed)
        self._failed.clear()
        self._well.clear()

    def _is_own_fault(self, job: str, tally: _Tally) -> bool:
        """Return whether the error of a job is its own fault."""
        if not tally.is_fault_shared or tally.others_took_step(tally.failed_now[job], self._counts[job].before_s):
            return True
        errors = [self._counts[failed].errors for failed in tally.failed_s.keys() & self._counts.keys()]
        return len(tally.failed_s) == 2 and min(errors, default=0) > MAX_ERRORS_OF_TWO - MAX_ERRORS_IN_A_ROW

    @property
    def failed_jobs(self) -> int:
        """Number of jobs that failed in this tick."""
        return len(self._failed)

    @contextmanager
    def isolated(
        self, job: str, now_s: float, change_mark: Callable[[], object], *, spoils: bool = False,
        action: str = "handling", step: str = "",
    ) -> Iterator[None]:  # fmt: skip
        """Isolate what is done about one job: an unforeseen error is counted, and the caller continues.

        Args:
            job: The job.
            now_s: The present.
            change_mark: Returns another value once anything has been changed that cannot be undone here.
            spoils: Whether an error is taken for such a change, even if the mark is the same.
            action: Is done, in a word; jobs with which the same was done are compared.
            step: Of that, as in `note_step`, if it is one that each job takes.

        Raises:
            SpoiledError: If something was changed before the error.
            StoreError: If the store does not answer, another scheduler has taken over, or the copy is old.
        """
        before, tally = change_mark(), self._tallies[action]
        tally.tried_s[job] = now_s
        try:
            yield
        except (*OF_NO_JOB, SpoiledError):
            raise
        except Exception as error:
            tally.failed_s[job] = now_s
            tally.failed_now[job] = step
            self._count_error(job, error, now_s)
            if spoils or change_mark() != before:
                raise SpoiledError from error

    def note_step(self, job: str, action: str, step: str, now_s: float) -> None:
        """Note that a job took a step, and did not only wait or run on."""
        self._tallies[action].well_s[step, job] = now_s

    def charge_error(self, job: str, error: Exception, now_s: float) -> None:
        """Count an error that is certainly the fault of its job."""
        self._count_error(job, error, now_s)
        self._counts[job].charged += 1

    def _count_error(self, job: str, error: Exception, now_s: float) -> None:
        self._failed.add(job)
        known = self._counts.get(job)
        if known is None or now_s - known.rests_until_s > ERROR_ROW_GAP_S:
            known = self._counts[job] = _ErrorCount(0, 0, 0.0, "")
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(known.errors, 16))
        known.errors, known.rests_until_s, known.words = known.errors + 1, now_s + rest_s, error_line(error)
        known.before_s, known.last_s = known.last_s, now_s
        log.error("job %s cannot be handled, error %d in a row: %s", job, known.errors, known.words, exc_info=error)

    def note_success(self, job: str) -> None:
        """Note that a poll of a job succeeded; its errors are forgotten unless it fails in the same tick."""
        self._well.add(job)

    def is_resting(self, job: str, now_s: float) -> bool:
        """Return whether a job rests after an error: to the end of the tick at least, however long that takes."""
        if job in self._failed:
            return True
        known = self._counts.get(job)
        # More than the longest rest is left only if the clock was set back.
        return known is not None and 0.0 < known.rests_until_s - now_s <= LONGEST_REST_S

    def is_failing(self, job: str) -> bool:
        """Return whether a job has too many errors to be tried again."""
        known = self._counts.get(job)
        return known is not None and known.charged >= MAX_ERRORS_IN_A_ROW

    def last_error(self, job: str) -> str:
        """Return the last error of a job, "" for none."""
        known = self._counts.get(job)
        return "" if known is None else known.words

    def why_resting(self, job: str, now_s: float) -> str:
        """Return the error for which a job rests, "" if it does not."""
        return self.last_error(job) if self.is_resting(job, now_s) else ""

    def jobs_to_hold(self, now_s: float) -> dict[str, str]:
        """Return the jobs to hold, with their last errors; one whose hold failed comes again after its rest."""
        failing = {job: count for job, count in self._counts.items() if count.charged >= MAX_ERRORS_IN_A_ROW}
        return {
            job: count.words
            for job, count in failing.items()
            if count.charged == MAX_ERRORS_IN_A_ROW or not self.is_resting(job, now_s)
        }

    def forget(self, jobs: Collection[str]) -> None:
        """Forget the errors of jobs that have advanced."""
        for job in self._counts.keys() & set(jobs):
            del self._counts[job]

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Forget the errors of all but some jobs."""
        self.forget(self._counts.keys() - set(jobs))


FIRST_LAUNCH_WAIT_S, LONGEST_LAUNCH_WAIT_S = 0.5, 30.0  # until a launch is tried again, doubled with each failure


class _FailedLaunch(NamedTuple):
    times: int
    again_s: float
    words: str


class FailedLaunches:
    """Attempts whose last launch failed, by their names."""

    def __init__(self) -> None:
        self._failed: dict[str, _FailedLaunch] = {}

    def is_due(self, name: str, now_s: float) -> bool:
        """Return whether an attempt may be launched now."""
        last = self._failed.get(name)
        # A wait that is longer than any is that of a clock that was set back.
        return last is None or not 0.0 < last.again_s - now_s <= LONGEST_LAUNCH_WAIT_S

    def record_failure(self, name: str, words: str, now_s: float) -> bool:
        """Note that a launch failed, and return whether the reason differs from the last one."""
        before = self._failed.get(name, _FailedLaunch(0, now_s, ""))
        wait_s = min(FIRST_LAUNCH_WAIT_S * 2.0 ** min(before.times, 32), LONGEST_LAUNCH_WAIT_S)
        self._failed[name] = _FailedLaunch(before.times + 1, now_s + wait_s, words)
        return words != before.words

    def last_error(self, name: str) -> str:
        """Return why the last launch of an attempt failed, "" if it did not."""
        last = self._failed.get(name)
        return "" if last is None else last.words

    def why_not_launched(self, job: str) -> str:
        """Return why the last launch of a job failed, "" if it did not. Any thread may call it."""
        attempts = f"ls-{job}-"
        return next((last.words for name, last in list(self._failed.items()) if name.startswith(attempts)), "")

    def forget(self, name: str) -> None:
        """Forget an attempt: it was launched, or will not be."""
        self._failed.pop(name, None)
