"""Jobs of Microsoft Philly, `cluster_job_log` (JSON): msr-fiddle/philly-traces."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from ..files.errors import InputError
from ..files.input_problems import shown_value
from ..files.yaml_file import read_json_array
from ..model.workload import Workload
from .read import epoch_s, jobs_from_columns, workload_of_parts

times = "as dates"
MISSING_TIMES = (None, "", "None")  # how the log writes a time that it lacks


class PhillyMachine(BaseModel, frozen=True):
    """Where an attempt ran."""

    gpus: list[str]


class PhillyAttempt(BaseModel, frozen=True):
    """One try to run a job."""

    start_time: str | None = None
    end_time: str | None = None
    detail: list[PhillyMachine] = []


class PhillyJob(BaseModel, frozen=True):
    """A job of the log; keys that are not used here are passed over."""

    jobid: str
    user: str | None = None
    submitted_time: str
    attempts: list[PhillyAttempt]


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    return head.lstrip("\ufeff \t\r\n").startswith("[") and ('"jobid"' in head or '"attempts"' in head)


def read(path: Path) -> Workload:
    """Read the file; see docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_of_parts(path, [_jobs(path)])


def _jobs(path: Path) -> Workload:
    ids, users, gpus, work_s, submit_s = [], [], [], [], []
    for line, job in read_json_array(path, PhillyJob):
        ids.append(job.jobid)
        users.append(job.user or "")
        gpus.append(_gpus_of_largest_attempt(job))
        work_s.append(sum(_attempt_run_times_s(path, line, job)))
        submit_s.append(_epoch_s_of_field(path, line, "submitted_time", job.submitted_time))
    return jobs_from_columns(
        tuple(ids),
        np.array(gpus, dtype=np.int64),
        np.array(work_s, dtype=np.float64),
        np.array(submit_s),
        users=tuple(users) if any(users) else None,
    )


def _gpus_of_largest_attempt(job: PhillyJob) -> int:
    """Return the GPUs of the largest attempt: any of them, also the last, may lack its detail."""
    return max((sum(len(machine.gpus) for machine in attempt.detail) for attempt in job.attempts), default=0)


def _attempt_run_times_s(path: Path, line: int, job: PhillyJob) -> Iterator[float]:
    """Yield how long each attempt ran; one without a start or an end counts for nothing."""
    for index, attempt in enumerate(job.attempts):
        field = f"attempts.{index}"
        if attempt.start_time in MISSING_TIMES or attempt.end_time in MISSING_TIMES:
            continue
        start_s = _epoch_s_of_field(path, line, f"{field}.start_time", str(attempt.start_time))
        run_s = _epoch_s_of_field(path, line, f"{field}.end_time", str(attempt.end_time)) - start_s
        if run_s < 0:
            problem = f"{shown_value(attempt.end_time)} is before start_time"
            raise InputError(problem, "correct or drop the job", path=path, line=line, field=f"{field}.end_time")
        yield run_s


def _epoch_s_of_field(path: Path, line: int, field: str, text: str) -> float:
    try:
        return epoch_s(text)
    except ValueError:
        problem, fix = (
            f"{shown_value(text)} is not a date that can be used",
            "write YYYY-MM-DD HH:MM:SS, or drop the job",
        )
        raise InputError(problem, fix, path=path, line=line, field=field) from None
