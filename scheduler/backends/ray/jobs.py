"""The job of Ray that is the launcher: it is submitted where none runs."""

import hashlib
import logging
import re
import shlex
import time
from pathlib import Path

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from ....cluster.files.errors import BackendError
from ..local.folders import told_as_backend_error
from ..shared_folder.python import python_line
from .api import AnswerError, Api
from .names import ALIVE

log = logging.getLogger(__name__)

_SEEN_FOR_S = 5.0  # between two looks at it
_HUNG_S = 60.0  # after its last sign of life, of which there are ten a second
_MOST_DOUBLINGS = 6  # of the time between two looks while it does not come to run
_LIVING = ("PENDING", "RUNNING")


class _Job(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    submission_id: str | None
    status: str


class Launcher:
    """Sees to it that a launcher runs on a Ray cluster.

    Args:
        api: Ray's.
        folder: Of the scheduler.
        packages: Folder that Ray's own Python package is in.
    """

    def __init__(self, api: Api, folder: Path, *, packages: str) -> None:
        self._api, self._alive = api, folder / ALIVE
        if not self._alive.exists():
            self._alive.touch()
        self._line = shlex.join(python_line("ray.launcher", "launch_all", str(folder), packages=packages))
        # Two schedulers of one folder mean the same launcher, and those of two folders never do.
        self._prefix = f"longshore-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}-"
        self._job, self._look_at_s, self._tries = "", 0.0, 0

    def see(self) -> None:
        """Submit it unless it runs; one that does not come to run is submitted less and less often.

        Raises:
            BackendError: If it is not known whether it runs.
        """
        if time.monotonic() < self._look_at_s:
            return
        with told_as_backend_error("the launcher"):
            if self._job and self._status(self._job) in _LIVING and not self._is_hung():
                self._tries = 0
            else:
                self._submit()
        self._look_at_s = time.monotonic() + _SEEN_FOR_S * 2.0 ** min(self._tries, _MOST_DOUBLINGS)

    def _status(self, job: str) -> str:
        try:
            return _validated(self._api.get(f"/api/jobs/{job}")).status
        except AnswerError as error:
            if error.code == httpx.codes.NOT_FOUND:  # Ray was started anew.
                return ""
            raise

    def _submit(self) -> None:
        found = self._api.get("/api/jobs/")
        jobs = [_validated(job) for job in (found if isinstance(found, list) else [])]
        own = [job for job in jobs if self._number(job)]
        living = [job.submission_id or "" for job in own if job.status in _LIVING]
        if living and not self._is_hung():
            self._job = living[0]
            return
        for job in living:
            self._api.post(f"/api/jobs/{job}/stop", None)
        if self._job:
            log.warning("Ray's job %s ended or hangs: a new one is submitted; its log tells why", self._job)
        numbers = [int(digits) for job in own if (digits := self._number(job))]
        self._job = f"{self._prefix}{max(numbers, default=0) + 1}"
        self._tries += 1
        self._alive.touch()  # It has as long as a hung one to show that it lives.
        self._api.post("/api/jobs/", {"entrypoint": f"exec {self._line}", "submission_id": self._job})

    def _number(self, job: _Job) -> str:
        """Return the digits that a launcher of this scheduler has behind its name; "" of any other job."""
        name = job.submission_id or ""
        digits = name.removeprefix(self._prefix)
        return digits if name != digits and re.fullmatch(r"[0-9]{1,18}", digits) else ""

    def _is_hung(self) -> bool:
        return time.time() - self._alive.stat().st_mtime > _HUNG_S


def _validated(job: object) -> _Job:
    try:
        return _Job.model_validate(job)
    except ValidationError as error:
        first = error.errors()[0]
        raise BackendError(f"Ray tells of its jobs in unknown words: {first['loc']}: {first['msg']}") from error
