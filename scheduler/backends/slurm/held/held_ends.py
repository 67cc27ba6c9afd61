"""How attempts of jobs that came by sbatch begin and end, as it is kept in their folders."""

import time
from typing import Annotated

from pydantic import Field

from ....model.run import EndedBy, RankEnd, Run, Status, read_reason
from ...local.markers import Marker
from ..snapshot import TIMED_OUT
from .held import HeldJob

_LOST = frozenset(("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"))  # no doing of the job
_KILLED = 9


class Taken(Marker):
    """Which Slurm job an attempt is, and where it was to run."""

    file_name = "taken.json"

    stamp: str
    number: str
    restarts: Annotated[int, Field(ge=0)]  # of the Slurm job before it was released
    placement: tuple[tuple[str, tuple[int, ...]], ...]


class Ended(Marker):
    """How an attempt ended."""

    file_name = "ended.json"

    run: str
    reason: str
    code: Annotated[int, Field(ge=0, le=255)]
    signal: Annotated[int, Field(ge=0, le=127)]
    has_code: bool  # False where Slurm tells of no code
    ended_s: float


def end_of(job: HeldJob, *, is_cancelled: bool) -> Status:
    """Return how a job that is over ended, by what Slurm says."""
    if job.state == "CANCELLED":  # by its owner, whose wish is known by now, or by us
        return Status(Run.EXITED, by=EndedBy.CANCEL) if is_cancelled else Status(Run.ABSENT)
    if job.state in TIMED_OUT:
        return Status(Run.EXITED, by=EndedBy.TIME_LIMIT)
    if job.state in _LOST:
        return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=f"Slurm says {job.state}")
    code, signal = job.exit_status >> 8 & 255, job.exit_status & 127
    if job.state == "OUT_OF_MEMORY":
        code, signal = 0, _KILLED
    elif (job.state == "COMPLETED") != (job.exit_status == 0):
        return Status(Run.LOST, words=f"Slurm says {job.state} with exit status {job.exit_status}")
    return Status(Run.EXITED, (RankEnd(0, code, signal, time.time()),))


def ended_of(name: str, status: Status) -> Ended:
    """Return what is kept of the end of an attempt."""
    end = status.ends[0] if status.ends else RankEnd(0, 0, 0, time.time())
    return Ended(
        attempt=name, run=status.run.value, reason=status.reason, code=end.code, signal=end.signal,
        has_code=bool(status.ends), ended_s=end.ended_s,
    )  # fmt: skip


def status_of(ended: Ended) -> Status:
    """Return the status that was kept."""
    ends = (RankEnd(0, ended.code, ended.signal, ended.ended_s),) if ended.has_code else ()
    return Status(Run(ended.run), ends, *read_reason(ended.reason))
