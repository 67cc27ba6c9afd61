"""Why a job does not run yet, as far as the store tells."""

from sqlalchemy import Connection

from ..states import Desired, JobState
from ..store.decisions import last_decision_of
from ..store.jobs import JobRow
from ..store.queued import jobs_ahead
from ..store.reservations import held_gpus
from .models import WaitingPage

WAITS = (JobState.QUEUED, JobState.HELD, JobState.STARTING)


def waiting_page(tx: Connection, row: JobRow, gpus: int, now_s: float) -> WaitingPage | None:
    """Return where a job stands in the queue and why it waits, None if it does not.

    Args:
        tx: Transaction.
        row: The job.
        gpus: Of the cluster.
        now_s: Unix time.
    """
    if row.state not in WAITS:
        return None
    outside = _why_outside(row, now_s)
    if outside:
        return WaitingPage(position=None, reason=outside)
    ahead = jobs_ahead(tx, row, now_s)
    return WaitingPage(position=ahead + 1, reason=_why_in_queue(tx, row, gpus, ahead))


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


def _why_in_queue(tx: Connection, row: JobRow, gpus: int, ahead: int) -> str:
    free = gpus - len(held_gpus(tx))
    if row.gpus > free:
        return f"it asks for {row.gpus} GPUs, and {free} are free"
    last = last_decision_of(tx, row.id)
    if last is not None and last.placement is None:
        return f"{last.explanation.get('obeyed')} lets it wait for better GPUs"
    return f"{ahead} jobs stand before it" if ahead else "it is decided about next"
