"""What is done about rings whose GPUs are found faulty: the members on them leave, and the job runs on.

Source: SPEC F5, F8 to F10; docs/decisions/0015.
"""

import logging
from functools import partial

from ....cluster.files.errors import BackendError
from ...backends.asking import ask
from ...backends.protocol import Seats
from ...model.states import AttemptState
from ...model.stored_spec import stored_or_usual
from ...store.rows.attempts import AttemptRow
from ..state_cache import StateCache

log = logging.getLogger(__name__)

FAULTY = "its GPU is out of service"


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
    held = cache.mirror.picks(job.id) if cache.mirror.has(job.id) else layout.numbers(row.placement)
    places = [layout.place(gpu) for gpu in held if gpu in faulty]
    try:
        return ask(partial(backend.retire, name, places, FAULTY))
    except BackendError as error:
        # Like an attempt that cannot be reached: it goes on, and is asked again at the next look.
        log.warning("attempt %s: %s", name, error)
        return True
