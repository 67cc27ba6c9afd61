"""Why jobs do not run yet, as far as the store tells."""

from collections.abc import Sequence

from sqlalchemy import Connection

from ....cluster.model.needs import ANYTHING, Needs
from ...control.rehydrate import needs_of
from ...model.job import JobRow
from ...model.job_spec import Shape
from ...model.states import Desired, JobState
from ...model.stored_spec import is_shaped, stored_or_usual
from ...service.queue_now import Queue
from ...store.rows.decisions import DecisionRow, last_decisions_of
from .models import WaitingPage

WAITS = (JobState.QUEUED, JobState.HELD, JobState.STARTING)


def waiting_pages(tx: Connection, rows: Sequence[JobRow], queue: Queue) -> dict[str, WaitingPage]:
    """Return where those of some jobs stand in the queue that wait, and why they wait, by their ids."""
    last = last_decisions_of(tx, [row.id for row in rows if row.state in WAITS and row.id in queue.places])
    return {row.id: _waiting_page(row, queue, last.get(row.id)) for row in rows if row.state in WAITS}


def _waiting_page(row: JobRow, queue: Queue, last: DecisionRow | None) -> WaitingPage:
    place = queue.places.get(row.id)
    outside = _why_outside(row, queue)
    if outside or place is None:
        return WaitingPage(position=None, turn=None, reason=outside or "it is decided about next")
    turn = queue.turns.get((row.owner, row.priority))
    return WaitingPage(position=place, turn=turn, reason=_why_in_queue(row, queue, place, last))


def _why_outside(row: JobRow, queue: Queue) -> str:
    """Return why a job is not in the queue, nothing if it is."""
    if row.state is JobState.STARTING and (error := queue.why_not_launched(row.id) or queue.errors.words(row.id)):
        return f"its GPUs are reserved, and it could not be launched yet, which is tried again: {error}"
    if row.state is JobState.STARTING:
        going_on = "its nodes are being checked" if row.id in queue.checked else "its processes are being started"
        return f"its GPUs are reserved, and {going_on}"
    if row.desired is Desired.CANCEL:
        return "it is being cancelled"
    if row.desired is Desired.HOLD:
        return "it is held until its owner releases it"
    if row.state is JobState.HELD:
        return row.cause or "it is held"
    if row.not_before_s > queue.now_s:
        return f"it is tried again in {row.not_before_s - queue.now_s:.0f} s, after: {row.cause}"
    return ""


def _why_in_queue(row: JobRow, queue: Queue, place: int, last: DecisionRow | None) -> str:
    needs = needs_of(row)
    room = queue.room if needs == ANYTHING else queue.room.on(queue.layout.nodes_for(needs))
    asks = f"it asks for {_gpus(row.gpus)} {needs.words}".rstrip()
    error = queue.errors.why_rests(row.id, queue.now_s)
    if queue.held_back or error:
        return queue.held_back or f"it could not be handled, and is tried again: {error}"
    if row.gpus > room.in_service:
        return f"{asks}, and only {room.in_service} of {room.gpus}{_such(needs)} are in service"
    if queue.most is not None and queue.held[row.owner] + row.gpus > queue.most:
        return f"{asks}, its owner's jobs hold {queue.held[row.owner]}, and one user may have {queue.most}"
    if row.gpus > room.free:
        return f"{asks}, and {room.free or _none(needs)}{_such(needs)} {'is' if room.free == 1 else 'are'} free"
    if (shape := _shape(row)) is not None and not room.has(shape.nodes, shape.gpus_per_node):
        return f"it asks for {shape.words}, and the free GPUs do not lie so"
    if last is not None and last.placement is None:
        return f"{last.explanation.get('obeyed')} lets it wait for better GPUs"
    if place == 1:
        return "it is decided about next"
    before = "1 job stands before it" if place == 2 else f"{place - 1} jobs stand before it"
    return f"{before}, {_turn(row, queue)}".removesuffix(", ")


def _turn(row: JobRow, queue: Queue) -> str:
    """Return whose turn it is at a job's priority, nothing where users take none or there is one alone."""
    before = queue.turns.get((row.owner, row.priority))
    if before is None or sum(priority == row.priority for _, priority in queue.turns) < 2:
        return ""
    if before == 0:
        return "and it is its owner's turn"
    return "and 1 other user has a turn first" if before == 1 else f"and {before} other users have their turns first"


def _such(needs: Needs) -> str:
    return "" if needs == ANYTHING else " of these"


def _none(needs: Needs) -> str:
    return "0" if needs == ANYTHING else "none"


def _shape(row: JobRow) -> Shape | None:
    return stored_or_usual(row.spec).shape if is_shaped(row.spec) else None


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
