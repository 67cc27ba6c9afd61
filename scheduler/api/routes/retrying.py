"""POST /v1/jobs/{id}/retry: a job that has failed or is held is tried again, with its id and its checkpoints."""

from fastapi import APIRouter
from sqlalchemy import Connection

from ...model.job import JobRow
from ...model.states import FINAL, JobState
from ...model.stored_spec import is_external
from ...rules.job_step import Retry, retry_step
from ...service.service import Service
from ...store.rows.jobs import get_job
from ...store.rows.retrying import try_again
from ..http.auth import Changing, Serving
from ..http.problems import ProblemError, problems
from ..views.lookup import NO_JOB, Found
from ..views.models import JobPage, job_page
from .submitting import WRITER, check_gpus, check_room

router = APIRouter()


@router.post(
    "/v1/jobs/{job}/retry",
    status_code=202,
    responses={**NO_JOB, **problems("ended", "too-large", "too-many-queued")},
)
def retry(row: Found, service: Serving, caller: Changing) -> JobPage:
    """Put a job that failed back into the queue, or let one run that is held, with all its tries.

    May be asked again: of a job that is to run, nothing changes.
    """
    _refuse_what_stays_ended(row)
    check_gpus(row.gpus, service)
    at_s = service.now_s()

    def write(tx: Connection) -> None:
        if row.state is JobState.FAILED:
            check_room(tx, row.owner, service.settings.limits)
        try_again(tx, row.id, at_s=at_s, writer=WRITER)

    service.store.write(write)
    service.wake()
    return job_page(_now(service, row))


def _refuse_what_stays_ended(row: JobRow) -> None:
    if retry_step(row) is Retry.REFUSED:
        what = row.state.value if row.state in FINAL - {JobState.FAILED} else "being cancelled or deleted"
        raise ProblemError("ended", f"job {row.id} is {what}; only one that failed or is held is tried again")
    if row.state is JobState.FAILED and is_external(row.spec):
        owner = "came from another queue (Slurm's, by sbatch), which has ended it"
        raise ProblemError("ended", f"job {row.id} {owner}; submit it there again")


def _now(service: Service, row: JobRow) -> JobRow:
    with service.store.read() as tx:
        return get_job(tx, row.id) or row
