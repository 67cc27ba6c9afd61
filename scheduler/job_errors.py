"""Errors that concern one job: they are counted, and hold up no other job.

Whatever the scheduler does about a single job is done within `JobErrors.about`. An error there that nobody foresaw is
like a crash of the scheduler at that point, of which is known whose job it was: what was changed for the job since
then is forgotten, and it is left alone for a while. After three in a row the job is held.
"""

import logging
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath

from .store.errors import FencedError, StaleWriteError, StoreUnreachableError, TakenError

log = logging.getLogger(__name__)

ERROR = "error"  # kind of events
MOST = 3  # in a row, after which a job is held
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0  # in which a job is left alone, doubled with each error
OF_NO_JOB = (FencedError, StaleWriteError, TakenError, StoreUnreachableError)  # whatever job was in hand
MOST_WORDS = 300  # characters


class SpoiledError(Exception):
    """The copy of the store may be half changed for one job, and has to be read anew."""


@dataclass(slots=True)
class _Count:
    errors: int
    rests_until_s: float
    words: str


def words_of(error: BaseException) -> str:
    """Return what an error is in one line: its class, its words, and where it was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    words = f"{type(error).__name__}{': ' if lines else ''}{lines[0].strip()[:MOST_WORDS] if lines else ''}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{words} ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else words


class JobErrors:
    """What went wrong with single jobs since they last changed in the store."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    @contextmanager
    def about(self, job: str, now_s: float, mark: Callable[[], object], *, spoils: bool = False) -> Iterator[None]:
        """Do something about one job; an error that nobody foresaw is counted, and what follows goes on.

        Args:
            job: The job.
            now_s: The present.
            mark: Returns another value once anything has been changed that cannot be undone here.
            spoils: Whether an error is taken for such a change, whatever the mark says.

        Raises:
            SpoiledError: If something was changed before the error.
            StoreError: If the store does not answer, another scheduler has taken over, or the copy is old.
        """
        before = mark()
        try:
            yield
        except (*OF_NO_JOB, SpoiledError):
            raise
        except Exception as error:
            self.count(job, error, now_s)
            if spoils or mark() != before:
                raise SpoiledError from error

    def count(self, job: str, error: Exception, now_s: float) -> None:
        """Count an error that concerns a job."""
        known = self._counts.get(job)
        errors = 1 if known is None else known.errors + 1
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(errors - 1, 16))
        self._counts[job] = _Count(errors, now_s + rest_s, words_of(error))
        log.error("job %s cannot be handled, error %d in a row: %s", job, errors, words_of(error), exc_info=error)

    def rests(self, job: str, now_s: float) -> bool:
        """Say whether a job is left alone."""
        known = self._counts.get(job)
        # More than the longest rest is left only if the clock was set back.
        return known is not None and 0.0 < known.rests_until_s - now_s <= LONGEST_REST_S

    def is_failing(self, job: str) -> bool:
        """Say whether a job is not to be tried any more."""
        known = self._counts.get(job)
        return known is not None and known.errors >= MOST

    def words(self, job: str) -> str:
        """Return what last went wrong with a job, "" if nothing did."""
        known = self._counts.get(job)
        return "" if known is None else known.words

    def due(self, now_s: float) -> dict[str, str]:
        """Return the jobs that are to be held, with their last errors in words; one of which that failed only later."""
        failing = {job: it for job, it in self._counts.items() if it.errors >= MOST}
        return {job: it.words for job, it in failing.items() if it.errors == MOST or not self.rests(job, now_s)}

    def forget(self, jobs: Collection[str]) -> None:
        """Forget what went wrong with jobs that have come further."""
        for job in self._counts.keys() & set(jobs):
            del self._counts[job]

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all but some jobs."""
        self.forget(self._counts.keys() - set(jobs))
