"""What the backend has and the store does not: jobs that users submitted to the backend itself, and unknown attempts.

Jobs of the backend are imported, and their cancels and ends too (`ExternalJobs`).

The store lacks attempts as after the restore of an older one (`UnknownAttempts`). Their GPUs count as free there, so no
job starts on them until they are proven gone, or until an operator releases them. One that is the next attempt of a job
that waits is adopted, as if this scheduler had just opened it. GPUs that a ring was given while it ran count likewise,
until they are reserved for it.

Source: SPEC K6, K8; docs/operate.md.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.files.errors import BackendError, InputError, error_line
from ...cluster.model.placement import Placement
from ..backends.protocol import Attempt, Backend, ExternalJob, call_backend
from ..model.job import SCHEDULER_WRITER, JobRow, NewEvent
from ..model.job_spec import MIN_JOB_ESTIMATE_S, YEAR_S, External, RetrySpec, Shape, StoredJob
from ..model.states import FINAL, AttemptState, Desired, JobState
from ..store.attempts import NewAttempt, get_attempt, is_reserved
from ..store.database import StaleWriteError, TakenError
from ..store.events import append, check_fence
from ..store.jobs import GIVEN, MANY, UNKNOWN, NewJob, get_job, get_jobs, insert_job, set_desired, with_estimate
from ..store.rings import placement_of
from ..store.transitions import UNREADABLE_ERRORS, Changes, JobStart, write_changes
from .job_errors import OF_NO_JOB
from .seat_choice import MIN_GPUS_PER_HOUR
from .state_cache import Parts, StateCache

log = logging.getLogger(__name__)

UNKNOWN_EVENT = "unknown-attempt"  # kind of events
FOUND, GONE, DISREGARDED = "found", "gone", "disregarded"
END = "end"
CHECK_UNKNOWN_S, LIST_AGAIN_S = 1.0, 5.0
# Owners of waiting jobs read this: the backend's error may name other users' jobs.
NOT_KNOWN = "nothing starts, as it is not known which attempts run; the scheduler's log says why"
NOT_KNOWN_WHERE = "nothing starts, as it is not known on which GPUs an attempt runs; `longshore store unknown` lists it"


class UnknownAttempt(NamedTuple):
    """An attempt that the store does not have, or has with other GPUs."""

    name: str
    job: str
    placement: Placement  # empty if its GPUs are not known
    found_s: float  # Unix time


class StoredRing(NamedTuple):
    """A ring in the store that may have GPUs which are not reserved for it there."""

    attempt: Attempt
    placement: Placement  # with which it was launched
    unreserved: tuple[tuple[str, int], ...] = ()  # node and index of each of these GPUs


class UnknownAttempts:
    """Lists unknown attempts when a scheduler begins to lead, and tracks them until they are gone.

    Args:
        parts: What the scheduler works with.
        check_s: Between two checks of them.
        list_again_s: After which a backend that failed to list them is tried again.
    """

    def __init__(self, parts: Parts, *, check_s: float = CHECK_UNKNOWN_S, list_again_s: float = LIST_AGAIN_S) -> None:
        self._parts, self._check_s, self._list_again_s = parts, check_s, list_again_s
        self._backend = parts.backend if parts.backend.capabilities.lists_attempts else None
        self._fence: int | None = None  # of the lease under which they were listed
        self._is_waiting = False  # for the backend to list them
        self._again_s = self._checked_s = float("-inf")
        self._found: dict[str, UnknownAttempt] = {}
        self._rings: dict[str, StoredRing] = {}  # by name
        self._requests: dict[str, str] = {}  # END or DISREGARDED, by name; other threads write here

    @property
    def unresolved(self) -> list[UnknownAttempt]:
        """Those that are not gone, by name."""
        return sorted(self._found.values())

    def are_listed(self, fence: int) -> bool:
        """Return whether all were listed under a lease; until then it is not known which GPUs are free."""
        return self._backend is None or fence == self._fence

    def why_no_starts(self, fence: int) -> str:
        """Return why no job may start under a lease, "" if jobs may."""
        if not self.are_listed(fence):
            return NOT_KNOWN
        return "" if all(unknown.placement for unknown in self._found.values()) else NOT_KNOWN_WHERE

    @property
    def is_listing_due(self) -> bool:
        """Whether the backend could not list them and it is time to ask again; then the store is read again too."""
        return self._is_waiting and time.monotonic() >= self._again_s

    def request_end(self, name: str) -> bool:
        """Ask for the end of one, and return whether it is known; any thread may call it."""
        return self._note_request(name, END)

    def request_disregard(self, name: str) -> bool:
        """Free its GPUs though it is not proven gone, and return whether it is known; any thread may call it."""
        return self._note_request(name, DISREGARDED)

    def _note_request(self, name: str, request: str) -> bool:
        if name in self._found:
            self._requests[name] = request
        return name in self._found

    def find_at_backend(self, fence: int) -> None:
        """List them at the backend, once under each lease, before the store is read.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        if self._backend is None or self.are_listed(fence) or time.monotonic() < self._again_s:
            return
        try:
            remembered = call_backend(self._backend.launched)
        except BackendError as error:
            self._is_waiting, self._again_s = True, time.monotonic() + self._list_again_s
            log.warning("nothing starts, as it is not known which attempts run: %s", error)
            return
        self._is_waiting = False
        self._found.clear()
        self._rings.clear()
        for name, (attempt, placement) in remembered.items():
            try:
                if not self._is_stored(name, attempt, placement) and not self._is_gone(name):
                    self._adopt_or_add(fence, name, attempt, placement)
                if self._is_ring(attempt, placement) and name not in self._found:
                    self._rings[name] = StoredRing(attempt, placement)
                    self._check_ring(name)
            except OF_NO_JOB:
                raise
            except Exception as error:  # the name is known, and the others are still listed
                log.error("%s cannot be read: %s", name, error_line(error), exc_info=error)
                self._found[name] = UnknownAttempt(name, attempt.job, (), self._parts.now_s())
        self._fence = fence

    def resolve(self, fence: int, now_s: float) -> None:
        """Check those that are known: end, release or forget them; and check the GPUs of rings in the store.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        if (self._found or self._rings) and time.monotonic() - self._checked_s >= self._check_s:
            self._checked_s = time.monotonic()
            for unknown in self.unresolved:
                self._resolve_one(unknown, fence, now_s)
            for name in list(self._rings):
                self._check_ring(name)

    def blocked_gpus(self) -> tuple[int, ...]:
        """Return the GPUs that they and rings in the store keep from jobs, ascending."""
        placements = [unknown.placement for unknown in self._found.values()]
        placements += [placement_of(ring.unreserved) for ring in self._rings.values()]
        return tuple(sorted({gpu for placement in placements for gpu in self._gpus_in_cluster(placement)}))

    def _resolve_one(self, unknown: UnknownAttempt, fence: int, now_s: float) -> None:
        request = self._requests.get(unknown.name, "")  # it stays until it is done
        if request == END:
            self._cancel_at_backend(unknown.name)
        over = GONE if self._is_gone(unknown.name) else DISREGARDED if request == DISREGARDED else ""
        if over:
            words = "its GPUs are free" if over == GONE else "its GPUs are free by an operator's request"
            self._store_event(fence, unknown._replace(found_s=now_s), over, f"{unknown.name} is {over}: {words}")
            del self._found[unknown.name]
            self._requests.pop(unknown.name, None)

    def _cancel_at_backend(self, name: str) -> None:
        try:
            call_backend(self._parts.backend.cancel, name, "an operator ends it, as the store does not have it")
        except BackendError as error:
            log.warning("%s cannot be ended: %s", name, error)

    def _is_gone(self, name: str) -> bool:
        try:
            return call_backend(self._parts.backend.is_proven_gone, name)
        except BackendError:
            return False

    def _is_stored(self, name: str, attempt: Attempt, placement: Placement) -> bool:
        try:
            with self._parts.store.read() as tx:
                row = get_attempt(tx, attempt.job, attempt.number)
        except UNREADABLE_ERRORS as error:
            log.error("%s: its row in the store cannot be read: %s", name, error)
            return False
        is_same = not placement or (row is not None and set(row.placement) == set(placement))
        return row is not None and (row.state is AttemptState.CLOSED or is_same)

    def _adopt_or_add(self, fence: int, name: str, attempt: Attempt, placement: Placement) -> None:
        now_s = self._parts.now_s()
        if self._try_adopt(fence, name, attempt, placement, now_s):
            return
        if self._is_ring(attempt, placement) and (joined := self._joined_gpus(attempt, placement)):
            launched = [(share.node, gpu) for share in placement for gpu in share.gpus]
            placement = placement_of(dict.fromkeys([*launched, *joined]))
        where = ", ".join(f"{share.node}:{','.join(map(str, share.gpus))}" for share in placement)
        text = f"{name} is not in the store and may run on {where}: no job starts there until it is gone"
        if not placement:
            text = f"{name} is not in the store and may run on any GPUs: no job starts until it is gone or disregarded"
        unknown = self._found[name] = UnknownAttempt(name, attempt.job, placement, now_s)
        self._store_event(fence, unknown, FOUND, text)

    def _try_adopt(self, fence: int, name: str, attempt: Attempt, placement: Placement, now_s: float) -> bool:
        """Open the attempt in the store, if it is the next one of a job that waits and its GPUs are free there."""
        try:
            with self._parts.store.read() as tx:
                job = get_job(tx, attempt.job)
        except UNREADABLE_ERRORS:
            return False  # it is held for that error
        if job is None or not _is_next_attempt(job, attempt, placement):
            return False
        cause = f"{name} was found at the backend"
        opening = NewAttempt(self._parts.backend_name, placement, slowdown=1.0, overhead_s=0.0)
        changes = Changes(opened=[JobStart(job, opening, cause)])
        try:
            self._parts.layout.numbers(placement)  # of a cluster file that has them
            refused = self._parts.store.write(
                lambda tx: write_changes(tx, fence, changes, at_s=now_s, writer=SCHEDULER_WRITER)
            )  # fmt: skip
        except (TakenError, StaleWriteError, InputError):
            return False
        if not refused:
            log.warning("%s: the store did not have it, and its job continues with it", name)
        return not refused

    def _is_ring(self, attempt: Attempt, placement: Placement) -> bool:
        """Return whether an attempt, whose GPUs are known, may have been given others while it ran."""
        return bool(attempt.seats and placement) and self._parts.backend.capabilities.runs_rings

    def _joined_gpus(self, attempt: Attempt, placement: Placement) -> list[tuple[str, int]] | None:
        """Return the GPUs that a ring was given while it ran, and has not left; None if they are not known.

        What a ring reports comes from its job. So no more of them count than a ring can have.
        """
        try:
            places = call_backend(self._parts.backend.ring_places, attempt.name)
        except BackendError:
            return None
        if places is None:
            return None
        first, layout = sum(len(share.gpus) for share in placement), self._parts.layout
        joined = [
            (place.node, place.gpu)
            for place in places[first:]
            if not place.is_left and layout.has(place.node, place.gpu)
        ]
        return joined[: first + max(first, MIN_GPUS_PER_HOUR)]

    def _check_ring(self, name: str) -> None:
        """Find the GPUs of a ring in the store that are not reserved for it; forget a ring that has none, or is gone.

        Seating reserves them once the ring runs.
        """
        ring = self._rings[name]
        attempt, joined = ring.attempt, self._joined_gpus(ring.attempt, ring.placement)
        if joined is not None:
            with self._parts.store.read() as tx:
                unreserved = [gpu for gpu in joined if not is_reserved(tx, attempt.job, attempt.number, gpu)]
            ring = self._rings[name] = ring._replace(unreserved=tuple(unreserved))
        if (joined is not None and not ring.unreserved) or self._is_gone(name):
            del self._rings[name]

    def _gpus_in_cluster(self, placement: Placement) -> Iterable[int]:
        """Yield the GPUs of a placement that the cluster file has."""
        for share in placement:
            for gpu in share.gpus:
                if self._parts.layout.has(share.node, gpu):
                    yield self._parts.layout.number(share.node, gpu)

    def _store_event(self, fence: int, unknown: UnknownAttempt, now: str, cause: str) -> None:
        shares = [{"node": share.node, "gpus": list(share.gpus)} for share in unknown.placement]
        event = NewEvent(
            UNKNOWN_EVENT, SCHEDULER_WRITER, unknown.found_s, now=now, fence=fence, cause=cause,
            data={"attempt": unknown.name, "placement": shares},
        )  # fmt: skip

        def write(tx: Connection) -> None:
            check_fence(tx, fence)
            append(tx, event)

        self._parts.store.write(write)
        log.warning("%s", cause)  # once it is stored: what cannot be written down is no line of a log either


def _is_next_attempt(job: JobRow, attempt: Attempt, placement: Placement) -> bool:
    """Return whether a job that waits would open just this attempt next."""
    waits = job.state is JobState.QUEUED and job.desired is Desired.RUN and attempt.number == job.attempt + 1
    return waits and sum(len(share.gpus) for share in placement) == job.gpus


BACKEND_WRITER = "backend"
DISCARD_S = 2.0  # of a cycle, for ends at the backend: each takes two commands
MAX_NAME_CHARACTERS = 40  # of a job's name
# It is run again only after faults of nodes, as its owner expects of the backend. The backend may delay it for reasons
# of its own, which are no fault of the job, however often it gets other GPUs.
EXTERNAL_RETRY = RetrySpec(infra=1000, resource=0, again=0, ambiguous=0)


class ExternalJobs:
    """Imports jobs that users submitted to the backend itself.

    Args:
        parts: What the scheduler works with.
        discard_s: Time of a cycle for ends at the backend.
    """

    def __init__(self, parts: Parts, *, discard_s: float = DISCARD_S) -> None:
        self._parts, self._discard_s = parts, discard_s
        self._backend = parts.backend if parts.backend.capabilities.has_external_jobs else None
        self._seen: tuple[ExternalJob, ...] | None = None
        self._ended: set[str] = set()  # jobs in a final state that the backend still knows

    def import_jobs(self, cache: StateCache, now_s: float) -> None:
        """Import new jobs and cancels from the backend, and end there what has ended here.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        if self._backend is None:
            return
        try:
            held = tuple(call_backend(self._backend.external_jobs))
            closed = [each.job for each in held if each.job not in cache.table.jobs and each.job not in self._ended]
            if closed or held is not self._seen:
                self._import_changes(cache, held, closed, now_s)
                self._seen = held
            self._discard_ended(
                self._backend, held, {job.id for job in cache.table.jobs.values() if job.desired is Desired.CANCEL}
            )
        except BackendError as error:
            log.warning("jobs of the backend cannot be imported: %s", error)

    def _import_changes(
        self, cache: StateCache, held: Sequence[ExternalJob], closed: Sequence[str], now_s: float
    ) -> None:
        """Import what is new; `closed` are jobs that the scheduler has no more, or has not yet."""
        jobs = cache.table.jobs
        with self._parts.store.read() as tx:
            rows = [row for at in range(0, len(closed), MANY) for row in get_jobs(tx, closed[at : at + MANY])]
        unknown = set(closed) - {row.id for row in rows}
        ended = {row.id for row in rows if row.state in FINAL}
        ended |= {each.job for each in held if each.is_over and each.job in unknown}
        self._ended = (self._ended | ended) & {each.job for each in held}
        found = (each for each in held if each.job in unknown and not each.is_over)
        new = [job for each in found if (job := _new_job_of(each)) is not None]
        cancelled = [
            each.job for each in held
            if each.is_cancelled and each.job in jobs and jobs[each.job].desired is not Desired.CANCEL
        ]  # fmt: skip

        def write(tx: Connection) -> None:
            check_fence(tx, cache.fence)
            for job in new:
                insert_job(tx, with_estimate(tx, job), writer=BACKEND_WRITER)
            for name in cancelled:
                set_desired(tx, name, Desired.CANCEL, at_s=now_s, writer=BACKEND_WRITER)

        if new or cancelled:
            self._parts.store.write(write)

    def _discard_ended(self, backend: Backend, held: Iterable[ExternalJob], unwanted: Collection[str]) -> None:
        """End at the backend what has ended here, or is to: an attempt of it may not be stopped by less.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        until_s = time.monotonic() + self._discard_s
        for each in held:
            if (each.job in self._ended or each.job in unwanted) and not each.is_over:
                call_backend(backend.discard_external_job, each.job)
                if time.monotonic() >= until_s:
                    return  # the next cycle continues


def _new_job_of(held: ExternalJob) -> NewJob | None:
    """Return the job of the store that a held one becomes, None if it cannot become one."""
    try:
        # The nearest name that a job may have here.
        name = re.sub(r"[^a-z0-9]+", "-", held.name.lower())[:MAX_NAME_CHARACTERS].strip("-") or "job"
        given = {
            "name": name, "gpus": held.gpus, "command": ("sbatch", held.name), "retry": EXTERNAL_RETRY,
            "external": External(number=held.number),
            "shape": Shape(nodes=held.nodes, gpus_per_node=held.gpus // held.nodes),
        }  # fmt: skip
        if held.estimate_s is not None:
            given["estimate_s"] = max(MIN_JOB_ESTIMATE_S, min(held.estimate_s, YEAR_S))
        spec = StoredJob.model_validate(given)
    except Exception as error:  # it is one of many, and the others have to come in
        log.error("job %s of the backend cannot be imported: %s", held.job, error_line(error), exc_info=error)
        return None
    content = spec.model_dump(mode="json")
    return NewJob(
        held.job, spec.name, held.owner, content, spec.priority, spec.gpus, spec.estimate_s, held.submitted_s,
        UNKNOWN if held.estimate_s is None else GIVEN,
    )  # fmt: skip
