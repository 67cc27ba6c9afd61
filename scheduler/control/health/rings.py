"""Which GPUs attempts hold now, and what is done about rings some of whose GPUs are found faulty: the job runs on.

Source: SPEC F5, F8 to F10; docs/decisions/0015.
"""

import logging
from functools import partial

from ....cluster.files.errors import BackendError
from ...backends.asking import ask
from ...backends.protocol import Seats
from ...model.placement import Placement
from ...model.states import AttemptState
from ...model.stored_spec import stored_or_usual
from ...store.rows.attempts import AttemptRow
from ..state_cache import StateCache

log = logging.getLogger(__name__)

FAULTY = "its GPU is out of service"


def held_by(cache: StateCache, row: AttemptRow) -> Placement:
    """Return the GPUs that the last attempt of a job holds: a ring gives some up and gets others while it runs."""
    held = cache.mirror.picks(row.job_id) if cache.mirror.has(row.job_id) else ()
    return cache.parts.layout.placement(held) or row.placement


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
