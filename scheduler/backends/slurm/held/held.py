"""Jobs that users of sbatch submitted and job_submit.lua held, as Slurm tells of them."""

import hashlib
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from .....cluster.files.errors import BackendError
from ....model.job_id import job_id_of
from ...protocol import Held
from ..commands import Commands
from ..snapshot import OVER

# Nothing that users write themselves, so that nobody can forge a line. Widths: Slurm cuts off what is longer.
_FIELDS = (
    "JobArrayID:40|,State:24|,PriorityLong:14|,exit_code:10|,RestartCnt:8|,EligibleTime:24|,TimeLimit:20|,UserName:80|,"
    "admin_comment:160|"
)
_JOBS = ("--all", "--array", "--states=all", "--noheader", f"--Format={_FIELDS}")
# What job_submit.lua stamps: Unix time of the submission, chance, nodes, GPUs on each of them, name. Why a job is
# refused may follow.
_STAMP = re.compile(r"(longshore:(\d{9,11}):([0-9a-f]{20}):(\d{1,5})x(\d{1,5}):([0-9A-Za-z-]{0,40}))(?: refused: .*)?")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class HeldJob(NamedTuple):
    """A job that came by sbatch; held, released, running or over."""

    id: str  # in the store; its number may be another job's after a crash of Slurm
    number: str  # such as 17, or 17_3 of an array
    stamp: str
    state: str  # in Slurm's words
    is_held: bool  # it waits for its GPUs
    is_early: bool  # its user does not want it to begin yet
    exit_status: int  # as wait() tells; of a job that is over
    restarts: int  # by Slurm
    told: Held

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for good unless somebody puts it back."""
        return self.state in OVER


def read_held(commands: Commands) -> Mapping[str, HeldJob]:
    """Return all jobs that came by sbatch and were stamped, by their ids in the store, in the order of submission.

    Raises:
        BackendError: If Slurm does not answer, or in words that are not known.
    """
    jobs = (_job(line, time.time()) for line in commands.call("squeue", _JOBS).splitlines())
    ours = [job for job in jobs if job is not None]
    return {job.id: job for job in sorted(ours, key=lambda job: (job.told.submitted_s, *_parts(job.number)))}


def limit_s(text: str) -> float | None:
    """Return a time limit in seconds, None for none."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds) or None


def _job(line: str, now_s: float) -> HeldJob | None:
    fields = [field.strip() for field in line.split("|")]
    stamp = _STAMP.fullmatch(fields[8]) if len(fields) == 10 else None
    if stamp is None:
        return None  # somebody else's
    number, state, priority, status, restarts, eligible, limit, user, _, _ = fields
    mark, since, chance, nodes, gpus, name = stamp.groups()
    try:
        is_held = state == "PENDING" and int(priority) == 0
        exit_status, restarted = int(status), int(restarts)
        is_early = _is_early(eligible, now_s)
    except ValueError as error:
        raise BackendError(f"Slurm says {line!r}, which makes no sense: {error}") from error
    told = Held(
        _id(float(since), chance, number), number, name, user, int(nodes), int(nodes) * int(gpus),
        limit_s(limit), float(since), state in OVER, state == "CANCELLED",
    )  # fmt: skip
    return HeldJob(told.job, number, mark, state, is_held, is_early, exit_status, restarted, told)


def _is_early(eligible: str, now_s: float) -> bool:
    """Say whether the time has not come before which a job is not to begin."""
    return eligible[:1].isdigit() and datetime.fromisoformat(eligible).timestamp() > now_s


def _parts(number: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", number)))


def _id(since_s: float, chance: str, number: str) -> str:
    """Return the id of a job, which is another one for each task of an array."""
    task = number.partition("_")[2]
    bits = hashlib.sha256(f"{chance}_{task}".encode()).hexdigest()[:20] if task else chance
    return job_id_of(since_s, int(bits, 16))
