"""Which GPUs attempts hold now, and what is done about rings some of whose GPUs are found faulty: the job runs on.

Source: SPEC F5, F8 to F10; docs/decisions/0015.
"""

import logging
from functools import partial

from ....cluster.files.errors import BackendError
from ...backends.asking import ask
from ...backends.protocol import Seats
from ...files.typed_json import as_json
from ...model.event import NewEvent
from ...model.placement import Placement
from ...model.states import AttemptState
from ...model.stored_spec import is_switching, stored_or_usual
from ...store.monitoring.ring_ends import ENDED, RING
from ...store.rows.attempts import AttemptRow
from ..state_cache import WRITER, StateCache

log = logging.getLogger(__name__)

FAULTY = "its GPU is out of service"


def held_by(cache: StateCache, row: AttemptRow) -> Placement:
    """Return the GPUs that the last attempt of a job holds: a ring gives some up and gets others while it runs."""
    held = cache.mirror.picks(row.job_id) if cache.mirror.has(row.job_id) else ()
    return cache.parts.layout.placement(held) or row.placement


def later_nodes(cache: StateCache, row: AttemptRow, name: str) -> tuple[str, ...]:
    """Return the nodes of the ranks that came into the ring of an attempt while it ran; none where nobody can tell.

    Args:
        cache: What the scheduler knows.
        row: The attempt.
        name: Of it at the backend.
    """
    job, backend = cache.jobs.get(row.job_id), cache.parts.backend
    if job is None or not is_switching(job.spec) or not isinstance(backend, Seats):
        return ()
    try:
        places = ask(partial(backend.places, name)) or ()
    except BackendError:
        return ()
    first = sum(len(share.gpus) for share in row.placement)
    return tuple(it.node for it in places[first:])


def keep_ring(cache: StateCache, row: AttemptRow, name: str, now_s: float) -> None:
    """Store how the ring of an attempt that ended stood last, and on which GPUs: the backend forgets it.

    Args:
        cache: What the scheduler knows.
        row: The attempt.
        name: Of it at the backend.
        now_s: The present.
    """
    job, backend = cache.jobs.get(row.job_id), cache.parts.backend
    if job is None or not is_switching(job.spec) or not isinstance(backend, Seats):
        return
    try:
        report, places = ask(partial(backend.ring, name)), ask(partial(backend.places, name))
    except BackendError as error:
        log.warning("attempt %s: how its ring ended is not known: %s", name, error)
        return
    if report is None:
        return
    filled, recoveries = sum(it >= 0 for it in report.order), len(report.recoveries) - 1
    words = f"{filled} of {report.seats} seats, step {report.step}, {recoveries} recoveries"
    held = [[share.node, gpu] for share in held_by(cache, row) for gpu in share.gpus]
    data = {"report": as_json(report), "places": [list(it) for it in places or ()], "gpus": held}
    cache.tell(NewEvent(RING, WRITER, now_s, row.job_id, row.number, now=ENDED, cause=words, data=data), {})


def goes_on_without(cache: StateCache, row: AttemptRow, name: str) -> bool:
    """Let the members on faulty GPUs leave the ring of an attempt, and say whether it goes on without them, or may.

    Args:
        cache: What the scheduler knows.
        row: An attempt that has faulty GPUs.
        name: Of the attempt at the backend.
    """
    job, backend = cache.jobs.get(row.job_id), cache.parts.backend
    if job is None or row.state is not AttemptState.RUNNING or not isinstance(backend, Seats):
        return False
    if not stored_or_usual(job.spec).seats:
        return False
    faulty, layout = set(cache.health.faulty), cache.parts.layout
    places = [layout.place(gpu) for gpu in layout.numbers(held_by(cache, row)) if gpu in faulty]
    try:
        return ask(partial(backend.retire, name, places, FAULTY))
    except BackendError as error:
        # Like an attempt that cannot be reached: it goes on, and is asked again at the next look.
        log.warning("attempt %s: %s", name, error)
        return True
