"""Attempts of jobs of sbatch: Slurm runs the user's script, and reports how that ended.

In the attempt's folder:

    taken.json   which Slurm job it is, and where it was to run; before it is released
    cancel.json  a request to stop, or never to start
    ended.json   how it ended, by Slurm's report: after some minutes it forgets
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ....cluster.files.durable import is_there, write_first
from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement
from ...model.states import EndedBy, Run, Status
from ..local.folders import Folders, as_backend_error, read_marker
from ..protocol import Attempt, ExternalJob, RefusedError
from ..shared_folder.node import MISPLACED
from .commands import SLURM_TIMES, Commands, SlurmNode, SlurmTimes, SlurmView
from .held import (
    DISABLED,
    AttemptJob,
    EndedMarker,
    HeldJob,
    cancel_job,
    check_same_job,
    end_of,
    ended_of,
    granted_gpus,
    hold_again,
    read_held,
    refuse,
    release_on,
    status_of,
    why_unplaceable,
)

log = logging.getLogger(__name__)

_DONE = frozenset(("COMPLETED", "CANCELLED"))  # and there is nothing to retry


class HeldAttempts:
    """Runs Slurm's held jobs on the GPUs chosen for them, and reports their status."""

    def __init__(
        self,
        folders: Folders,
        commands: Commands,
        view: SlurmView,
        nodes: Mapping[str, int],
        times: SlurmTimes = SLURM_TIMES,
    ) -> None:
        self._folders, self._commands, self._view, self._nodes, self._times = folders, commands, view, nodes, times
        self._jobs: dict[str, HeldJob] = {}
        self._read_s = float("-inf")  # last poll of Slurm
        self._external: tuple[ExternalJob, ...] = ()
        self._again_s: dict[str, float] = {}  # before which ending a job is not tried again
        self._back_s: dict[str, float] = {}  # since when the nodes of an attempt answer again
        self._away: set[str] = set()  # attempts one of whose nodes did not answer before all processes were gone
        self._checked: set[str] = set()  # attempts that have the GPUs chosen for them

    def external_jobs(self) -> Sequence[ExternalJob]:
        """Return all jobs of sbatch; the same object until Slurm is polled again.

        Raises:
            BackendError: If Slurm does not answer.
        """
        self._refresh(self._times.old_s)
        return self._external

    def _refresh(self, old_s: float) -> None:
        if time.monotonic() > self._read_s + old_s:
            self._read_jobs()

    def _read_jobs(self) -> None:
        self._read_s, self._jobs = time.monotonic(), dict(read_held(self._commands))
        never = {
            job.id: why_unplaceable(job.external.nodes, job.external.gpus // job.external.nodes, self._nodes)
            for job in self._jobs.values()
        }
        self._external = tuple(job.external for job in self._jobs.values() if not never[job.id] and not job.is_early)
        for job in self._jobs.values():
            if never[job.id] and job.is_held:  # no scheduler answered when it was submitted
                log.warning("job %s is refused: %s", job.number, never[job.id])
                self._at_most_every(job.id, partial(refuse, self._commands, job, never[job.id]))

    def _forget(self) -> None:
        self._read_s = float("-inf")

    def discard(self, job: str) -> None:
        """End a job for good.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        if job in self._jobs and not self._jobs[job].is_over:
            self._at_most_every(job, partial(cancel_job, self._commands, self._jobs[job]))

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Let a held job run on exactly these GPUs; again, or after its end, this does nothing.

        Raises:
            CannotHonourError: If Slurm cannot give these GPUs.
            RefusedError: If Slurm has no such job any more, or it may not run again.
            BackendError: If it is not known whether it starts.
        """
        self._refresh(self._times.old_s)
        job = self._job(attempt)
        with as_backend_error(attempt.name), self._folders.make(attempt.name) as folder:
            if is_there(folder, "cancel.json"):
                return
            own = read_marker(folder, attempt.name, AttemptJob)
            if own is None:
                own = self._record_job(folder, attempt, job, placement)
            elif own.placement != _plain(placement):
                raise BackendError(f"{attempt.name} was launched before with another placement")
        if not job.is_held or job.restarts != own.restarts:
            return  # it was released before
        try:
            release_on(self._commands, job, placement, self._view.read().nodes)
        except BackendError:
            self._forget()  # it may have been released
            raise
        self._jobs[job.id] = job._replace(is_held=False)

    def _job(self, attempt: Attempt) -> HeldJob:
        """Return the job of an attempt.

        Raises:
            RefusedError: If Slurm does not know it any more.
            BackendError: If that is not known.
        """
        job = self._jobs.get(attempt.job)
        if job is None:
            self._view.read_complete()
            raise RefusedError(f"{attempt.name}: Slurm does not know its job any more")
        return job

    def _record_job(self, folder: int, attempt: Attempt, job: HeldJob, placement: Placement) -> AttemptJob:
        """Record which held Slurm job an attempt is.

        Raises:
            RefusedError: If the job is over, and may not run again.
            BackendError: If it is not held yet.
            OSError: If it cannot be stored.
        """
        if job.is_over:
            self._requeue(attempt, job)
        if not job.is_held:
            self._forget()
            hold_again(self._commands, job)
            raise BackendError(f"{attempt.name}: job {job.number} is being put back into Slurm's queue")
        own = AttemptJob(
            attempt=attempt.name, stamp=job.stamp, number=job.number, restarts=job.restarts,
            placement=_plain(placement),
        )  # fmt: skip
        write_first(folder, AttemptJob.file_name, own.model_dump_json().encode())
        return own

    def _requeue(self, attempt: Attempt, job: HeldJob) -> None:
        """Requeue a job that is over.

        Raises:
            RefusedError: If it may not run again.
            BackendError: If it may, and is not held yet.
        """
        if job.state in _DONE:
            raise RefusedError(f"{attempt.name}: Slurm reports job {job.number} as {job.state}")
        self._forget()
        check_same_job(self._commands, job)
        try:
            self._commands.call("scontrol", ("requeuehold", job.number))
        except BackendError as error:
            if DISABLED not in str(error):
                raise
            raise RefusedError(
                f"{attempt.name}: job {job.number} ended as {job.state}, and may not be requeued (--no-requeue)"
            ) from error
        raise BackendError(f"{attempt.name}: job {job.number} is being put back into Slurm's queue")

    def status(self, folder: int, name: str, own: AttemptJob) -> Status:
        """Return what is known of an attempt that has a job.

        Raises:
            BackendError: If Slurm does not answer.
            OSError: If its folder cannot be used.
            ValueError: If a marker makes no sense.
        """
        ended = read_marker(folder, name, EndedMarker)
        if ended is not None:
            return status_of(ended)
        self._refresh(self._times.idle_poll_s)
        status = self._by_slurm(folder, name, own, self._jobs.get(job_of(name)))
        if status.run in (Run.EXITED, Run.LOST):
            write_first(folder, EndedMarker.file_name, ended_of(name, status).model_dump_json().encode())
        return status

    def _by_slurm(self, folder: int, name: str, own: AttemptJob, job: HeldJob | None) -> Status:
        is_cancelled = is_there(folder, "cancel.json")
        if job is None:
            return self._by_absence("Slurm does not know its job any more, nor how it ended")
        if job.restarts > own.restarts:
            if is_cancelled:
                return Status(Run.EXITED, by=EndedBy.CANCEL)
            words = f"Slurm has put job {job.number} back into its queue"
            return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=words)
        if job.is_over:
            return end_of(job, is_cancelled=is_cancelled)
        if job.is_held:
            return Status(Run.ABSENT)
        if job.state == "PENDING":
            return Status(Run.PENDING)
        return self._running(name, own, job)

    def _by_absence(self, words: str) -> Status:
        snapshot = self._view.read()
        if snapshot.read_s < self._read_s or not self._view.is_complete(snapshot):
            return Status(Run.UNREACHABLE, words="Slurm does not know all its nodes yet")
        return Status(Run.LOST, words=words)

    def _running(self, name: str, own: AttemptJob, job: HeldJob) -> Status:
        wanted = {node: list(gpus) for node, gpus in own.placement}
        if name not in self._checked and job.state == "RUNNING":
            got = granted_gpus(self._commands, job.number)
            if got not in (wanted, None):
                words = f"{MISPLACED}Slurm gives {got}, not {wanted}"
                return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=words)
            self._checked.add(name)
        return Status(Run.RUNNING if name in self._checked else Run.PENDING)

    def cancel(self, folder: int, name: str) -> None:
        """Stop an attempt, or keep it from starting; its job goes back into Slurm's queue, held.

        Raises:
            BackendError: If it is not known whether it stops.
            OSError: If the request cannot be stored.
        """
        write_first(folder, "cancel.json", json.dumps({"attempt": name}).encode())
        # Of what runs, only a misplaced attempt is known to have ended.
        is_misplaced = is_there(folder, EndedMarker.file_name)
        self._at_most_every(name, partial(self._stop, name, is_misplaced=is_misplaced))

    def _stop(self, name: str, *, is_misplaced: bool) -> None:
        self._read_jobs()
        job = self._jobs.get(job_of(name))
        if job is None or job.is_held or job.is_over:
            return
        self._forget()
        hold_again(self._commands, job, must_stop=is_misplaced)

    def released(self, folder: int, name: str, own: AttemptJob) -> bool:
        """Return whether all processes of an attempt are proven gone.

        Raises:
            OSError: If its folder cannot be used.
            ValueError: If a marker makes no sense.
        """
        ended = read_marker(folder, name, EndedMarker)
        try:
            self._refresh(self._times.idle_poll_s)
            job, snapshot = self._jobs.get(job_of(name)), self._view.read()
            if job is None and (snapshot.read_s < self._read_s or not self._view.is_complete(snapshot)):
                return False
        except BackendError:
            return False
        if job is not None and not (job.is_held or job.is_over):
            return False
        if job is not None and job.is_held and job.restarts == own.restarts:
            return True  # it never began
        is_lost = ended is not None and ended.run == Run.LOST and MISPLACED not in ended.reason
        is_lost = is_lost or name in self._away
        return self._is_clear(name, [snapshot.nodes.get(node) for node, _ in own.placement], is_lost=is_lost)

    def _is_clear(self, name: str, nodes: Sequence[SlurmNode | None], *, is_lost: bool) -> bool:
        """Return whether nothing can be left on nodes: if Slurm lost none of them, a job ends after its processes."""
        if all(node is not None and node.is_fenced for node in nodes):
            return True
        if not all(node is not None and (node.is_fenced or node.is_back) for node in nodes):
            self._back_s.pop(name, None)
            self._away.add(name)
            return False
        return not is_lost or time.monotonic() > self._back_s.setdefault(name, time.monotonic()) + self._times.stray_s

    def forget(self, name: str) -> None:
        """Forget the retries for an attempt."""
        self._again_s.pop(name, None)
        self._back_s.pop(name, None)
        self._away.discard(name)
        self._checked.discard(name)

    def _at_most_every(self, what: str, do: Callable[[], None]) -> None:
        if time.monotonic() >= self._again_s.get(what, 0.0):
            self._again_s[what] = time.monotonic() + self._times.again_s
            do()


def job_of(name: str) -> str:
    """Return the id of the job of an attempt."""
    return name.removeprefix("ls-").rpartition("-")[0]


def _plain(placement: Placement) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((share.node, share.gpus) for share in placement)
