"""Why jobs do not run yet, as far as the store tells."""

from collections import Counter
from typing import NamedTuple

from sqlalchemy import Connection

from ..job_errors import JobErrors
from ..layout import Layout
from ..queue_order import in_order, places
from ..service import Service
from ..states import Desired, JobState
from ..store.decisions import last_decision_of
from ..store.jobs import JobRow
from ..store.nodes import gpus_in_service
from ..store.queued import owners_of, waiting_jobs
from ..store.reservations import held_gpus
from .models import WaitingPage

WAITS = (JobState.QUEUED, JobState.HELD, JobState.STARTING)


class Room(NamedTuple):
    """GPUs of a cluster."""

    gpus: int
    in_service: int
    free: int  # in service, and held by nobody


class Queue(NamedTuple):
    """All that tells why jobs wait."""

    room: Room
    places: dict[str, int]  # of the jobs in the queue, from 1
    held: Counter[str]  # GPUs that each owner's jobs hold
    most: int | None  # GPUs that one owner may have
    now_s: float
    held_back: str  # why nothing starts at the moment, "" if jobs do
    errors: JobErrors


def room_in(tx: Connection, layout: Layout) -> Room:
    """Return how many GPUs there are, in service and free: a drained, silent or faulty one is not."""
    in_service = gpus_in_service(tx, layout.nodes)
    held = {(row.node, row.gpu) for row in held_gpus(tx)}
    return Room(layout.gpus, len(in_service), len(in_service - held))


def queue_of(tx: Connection, service: Service) -> Queue:
    """Return how the queue of a scheduler stands."""
    settings, room, now_s = service.settings, room_in(tx, service.layout), service.now_s()
    line = in_order(waiting_jobs(tx, now_s), settings.order, settings.ageing_s, now_s, room.in_service)
    held = Counter(row.job_id for row in held_gpus(tx)) if settings.limits.gpus is not None else Counter[str]()
    by_owner: Counter[str] = Counter()
    for job, owner in owners_of(tx, sorted(held)).items():
        by_owner[owner] += held[job]
    scheduler = service.scheduler
    return Queue(
        room, places(line), by_owner, settings.limits.gpus, now_s, scheduler.held_back, scheduler.errors
    )  # fmt: skip


def waiting_page(tx: Connection, row: JobRow, queue: Queue) -> WaitingPage | None:
    """Return where a job stands in the queue and why it waits, None if it does not."""
    if row.state not in WAITS:
        return None
    place = queue.places.get(row.id)
    outside = _why_outside(row, queue.now_s)
    if outside or place is None:
        return WaitingPage(position=None, reason=outside or "it is decided about next")
    return WaitingPage(position=place, reason=_why_in_queue(tx, row, queue, place))


def _why_outside(row: JobRow, now_s: float) -> str:
    """Return why a job is not in the queue, nothing if it is."""
    if row.state is JobState.STARTING:
        return "its GPUs are reserved, and its processes are being started"
    if row.desired is Desired.CANCEL:
        return "it is being cancelled"
    if row.desired is Desired.HOLD:
        return "it is held until its owner releases it"
    if row.state is JobState.HELD:
        return row.cause or "it is held"
    if row.not_before_s > now_s:
        return f"it is tried again in {row.not_before_s - now_s:.0f} s, after: {row.cause}"
    return ""


def _why_in_queue(tx: Connection, row: JobRow, queue: Queue, place: int) -> str:
    room, asks = queue.room, f"it asks for {_gpus(row.gpus)}"
    error = queue.errors.words(row.id)
    if queue.held_back or error:
        return queue.held_back or f"it could not be handled, and is tried again: {error}"
    if row.gpus > room.in_service:
        return f"{asks}, and only {room.in_service} of {room.gpus} are in service"
    if queue.most is not None and queue.held[row.owner] + row.gpus > queue.most:
        return f"{asks}, its owner's jobs hold {queue.held[row.owner]}, and one user may have {queue.most}"
    if row.gpus > room.free:
        return f"{asks}, and {room.free} {'is' if room.free == 1 else 'are'} free"
    last = last_decision_of(tx, row.id)
    if last is not None and last.placement is None:
        return f"{last.explanation.get('obeyed')} lets it wait for better GPUs"
    if place == 1:
        return "it is decided about next"
    return "1 job stands before it" if place == 2 else f"{place - 1} jobs stand before it"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
