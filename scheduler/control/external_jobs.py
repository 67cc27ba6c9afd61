"""Jobs that users submit to the backend itself become jobs of the store, and a cancel on either side reaches the other.

Source: SPEC R8, K7, K8.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection

from ...cluster.files.errors import BackendError
from ..backends.protocol import Held, Holds
from ..model.error_words import words_of
from ..model.job_spec import LEAST_S, YEAR_S, External, Retry, Shape, StoredJob
from ..model.states import FINAL, Desired
from ..store.past_runs import estimated
from ..store.rows.jobs import GIVEN, MANY, UNKNOWN, NewJob, get_jobs, insert_job, set_desired
from ..store.rows.leases import check_fence
from .state_cache import Parts, StateCache

log = logging.getLogger(__name__)

WRITER = "backend"
DISCARD_S = 2.0  # of a look, for ends at the backend: it takes two commands for each
MOST_NAME = 40  # characters of a job's name
# Its owner knows nothing of being run again, but after faults of nodes; and the backend may let it wait for its own
# reasons, which are no fault of the job's however often it is asked for other GPUs.
RETRY = Retry(infra=1000, resource=0, asked=0, ambiguous=0)


class ExternalJobs:
    """Takes in what comes to the backend by its own way.

    Args:
        parts: What the scheduler works with.
        discard_s: Of a look, for ends at the backend.
    """

    def __init__(self, parts: Parts, *, discard_s: float = DISCARD_S) -> None:
        self._parts, self._discard_s = parts, discard_s
        self._backend = parts.backend if isinstance(parts.backend, Holds) else None
        self._seen: Sequence[Held] | None = None
        self._ended: set[str] = set()  # jobs in a final state that the backend still knows

    def look(self, cache: StateCache, now_s: float) -> None:
        """Store what has come to the backend or was cancelled there, and end there what has ended here.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        if self._backend is None:
            return
        try:
            held = self._backend.held()
            if held is not self._seen:
                self._take_in(cache, held, now_s)
                self._seen = held
            self._discard(self._backend, held, {it.id for it in cache.jobs.values() if it.desired is Desired.CANCEL})
        except BackendError as error:
            log.warning("what the backend holds cannot be kept up with: %s", error)

    def _take_in(self, cache: StateCache, held: Sequence[Held], now_s: float) -> None:
        unknown_attempts = [it.job for it in held if it.job not in cache.jobs and it.job not in self._ended]
        with self._parts.store.read() as tx:
            rows = [
                row
                for at in range(0, len(unknown_attempts), MANY)
                for row in get_jobs(tx, unknown_attempts[at : at + MANY])
            ]
        stored = {row.id for row in rows}
        self._ended = (self._ended | {row.id for row in rows if row.state in FINAL}) & {it.job for it in held}
        unknown = (it for it in held if it.job in unknown_attempts and it.job not in stored and not it.is_over)
        new = [job for it in unknown if (job := _job_of(it)) is not None]
        cancelled = [
            it.job for it in held
            if it.is_cancelled and it.job in cache.jobs and cache.jobs[it.job].desired is not Desired.CANCEL
        ]  # fmt: skip
        if new or cancelled:
            self._parts.store.write(lambda tx: _write(tx, cache.fence, new, cancelled, now_s))

    def _discard(self, backend: Holds, held: Iterable[Held], unwanted: Collection[str]) -> None:
        """End at the backend what has ended here, or is to: an attempt of it may not be stopped by less.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        until_s = time.monotonic() + self._discard_s
        for it in held:
            if (it.job in self._ended or it.job in unwanted) and not it.is_over:
                backend.discard(it.job)
                if time.monotonic() >= until_s:
                    return  # the next look goes on


def _job_of(held: Held) -> NewJob | None:
    """Return the job of the store that a held one becomes, None if it cannot become one."""
    try:
        return new_job_of(held)
    except Exception as error:  # it is one of many, and the others have to come in
        log.error("job %s of the backend cannot be taken in: %s", held.job, words_of(error), exc_info=error)
        return None


def _write(tx: Connection, fence: int, new: Iterable[NewJob], cancelled: Iterable[str], now_s: float) -> None:
    check_fence(tx, fence)
    for it in new:
        insert_job(tx, estimated(tx, it), writer=WRITER)
    for job in cancelled:
        set_desired(tx, job, Desired.CANCEL, at_s=now_s, writer=WRITER)


def new_job_of(held: Held) -> NewJob:
    """Return the job of the store that a held one becomes."""
    given = {
        "name": name_of(held.name), "gpus": held.gpus, "command": ("sbatch", held.name), "retry": RETRY,
        "external": External(number=held.number),
        "shape": Shape(nodes=held.nodes, gpus_per_node=held.gpus // held.nodes),
    }  # fmt: skip
    if held.estimate_s is not None:
        given["estimate_s"] = max(LEAST_S, min(held.estimate_s, YEAR_S))
    spec = StoredJob.model_validate(given)
    content = spec.model_dump(mode="json")
    return NewJob(
        held.job, spec.name, held.owner, content, spec.priority, spec.gpus, spec.estimate_s, held.submitted_s,
        UNKNOWN if held.estimate_s is None else GIVEN,
    )  # fmt: skip


def name_of(text: str) -> str:
    """Return the nearest name that a job may have here."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MOST_NAME].strip("-") or "job"
