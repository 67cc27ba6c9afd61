"""Jobs that users submitted by sbatch: held by job_submit.lua, assigned their GPUs, and released.

Slurm runs the user's script, and reports how that ended. In the attempt's folder:

    taken.json   which Slurm job it is, and where it was to run; before it is released
    cancel.json  a request to stop, or never to start
    ended.json   how it ended, by Slurm's report: after some minutes it forgets
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple, NoReturn

from pydantic import Field

from ....cluster.files.durable import is_there, write_first
from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement
from ...model.job import job_id_of
from ...model.states import EndedBy, RankEnd, Run, Status, parse_reason_line
from ..local.folders import AttemptFolders, Marker, as_backend_error, read_marker
from ..protocol import Attempt, CannotHonourError, ExternalJob, RefusedError
from ..shared_folder.node import MISPLACED
from .commands import OVER_STATES, SLURM_TIMES, TIMED_OUT, Commands, SlurmNode, SlurmTimes, SlurmView
from .submission import gres_request

# No field that users write themselves, so that no line can be forged. Widths: Slurm cuts off what is longer.
_SQUEUE_FIELDS = (
    "JobArrayID:40|,State:24|,PriorityLong:14|,exit_code:10|,RestartCnt:8|,EligibleTime:24|,TimeLimit:20|,UserName:80|,"
    "admin_comment:160|"
)
_SQUEUE_HELD = ("--all", "--array", "--states=all", "--noheader", f"--Format={_SQUEUE_FIELDS}")
# What job_submit.lua stamps: Unix time of the submission, chance, nodes, GPUs on each of them, name. Why a job is
# refused may follow.
_STAMP = re.compile(r"(longshore:(\d{9,11}):([0-9a-f]{20}):(\d{1,5})x(\d{1,5}):([0-9A-Za-z-]{0,40}))(?: refused: .*)?")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_LOST_STATES = frozenset(("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"))  # no fault of the job
_SIGKILL = 9
_DONE = frozenset(("COMPLETED", "CANCELLED"))  # and there is nothing to retry
_DISABLED = "disabled"  # of requeueing: by its owner or by the site
_SHOWN = re.compile(r"^   (AdminComment|Priority|ReqNodeList|TresPerNode)=(\S*)", re.MULTILINE)
_RUNS = re.compile(r"^   JobState=RUNNING ", re.MULTILINE)
_GRANTED = re.compile(r"^     Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)

log = logging.getLogger(__name__)


class HeldJob(NamedTuple):
    """A job of sbatch; held, released, running or over."""

    id: str  # in the store; its number may be another job's after a crash of Slurm
    number: str  # such as 17, or 17_3 of an array
    stamp: str
    state: str  # in Slurm's words
    is_held: bool  # it waits for its GPUs
    is_early: bool  # its user set a later begin time
    exit_status: int  # as of wait(); of a job that is over
    restarts: int  # by Slurm
    external: ExternalJob

    @property
    def is_over(self) -> bool:
        """Whether it has ended, unless it is requeued."""
        return self.state in OVER_STATES


class AttemptJob(Marker):
    """Which Slurm job an attempt is, and where it was to run."""

    file_name = "taken.json"

    stamp: str
    number: str
    restarts: Annotated[int, Field(ge=0)]  # of the Slurm job before it was released
    placement: tuple[tuple[str, tuple[int, ...]], ...]


class EndedMarker(Marker):
    """How an attempt ended."""

    file_name = "ended.json"

    run: str
    reason: str
    code: Annotated[int, Field(ge=0, le=255)]
    signal: Annotated[int, Field(ge=0, le=127)]
    has_code: bool  # False where Slurm reports no code
    ended_s: float


class HeldAttempts:
    """Runs Slurm's held jobs on the GPUs chosen for them, and reports their status."""

    def __init__(
        self,
        folders: AttemptFolders,
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

    def _refresh(self, max_age_s: float) -> None:
        if time.monotonic() > self._read_s + max_age_s:
            self._read_jobs()

    def _read_jobs(self) -> None:
        self._read_s, self._jobs = time.monotonic(), dict(_read_stamped_jobs(self._commands))
        never = {
            job.id: why_unplaceable(job.external.nodes, job.external.gpus // job.external.nodes, self._nodes)
            for job in self._jobs.values()
        }
        self._external = tuple(job.external for job in self._jobs.values() if not never[job.id] and not job.is_early)
        for job in self._jobs.values():
            if never[job.id] and job.is_held:  # no scheduler answered when it was submitted
                log.warning("job %s is refused: %s", job.number, never[job.id])
                self._do_unless_recent(job.id, partial(_refuse_job, self._commands, job, never[job.id]))

    def _invalidate(self) -> None:
        self._read_s = float("-inf")

    def discard(self, job: str) -> None:
        """End a job for good.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        if job in self._jobs and not self._jobs[job].is_over:
            self._do_unless_recent(job, partial(_cancel_job, self._commands, self._jobs[job]))

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Let a held job run on exactly these GPUs; again, or after its end, this does nothing.

        Raises:
            CannotHonourError: If Slurm cannot give these GPUs.
            RefusedError: If Slurm has no such job any more, or it may not run again.
            BackendError: If it is not known whether it starts.
        """
        self._refresh(self._times.old_s)
        job = self._job_of_attempt(attempt)
        with as_backend_error(attempt.name), self._folders.open_or_create(attempt.name) as folder:
            if is_there(folder, "cancel.json"):
                return
            own = read_marker(folder, attempt.name, AttemptJob)
            if own is None:
                own = self._record_job(folder, attempt, job, placement)
            elif own.placement != _as_tuples(placement):
                raise BackendError(f"{attempt.name} was launched before with another placement")
        if not job.is_held or job.restarts != own.restarts:
            return  # it was released before
        try:
            _release_on(self._commands, job, placement, self._view.read().nodes)
        except BackendError:
            self._invalidate()  # it may have been released
            raise
        self._jobs[job.id] = job._replace(is_held=False)

    def _job_of_attempt(self, attempt: Attempt) -> HeldJob:
        """Return the job of an attempt."""
        job = self._jobs.get(attempt.job)
        if job is None:
            self._view.read_complete()
            raise RefusedError(f"{attempt.name}: Slurm does not know its job any more")
        return job

    def _record_job(self, folder: int, attempt: Attempt, job: HeldJob, placement: Placement) -> AttemptJob:
        """Record which held Slurm job an attempt is."""
        if job.is_over:
            self._requeue(attempt, job)
        if not job.is_held:
            self._invalidate()
            _hold_again(self._commands, job)
            raise BackendError(f"{attempt.name}: job {job.number} is being put back into Slurm's queue")
        own = AttemptJob(
            attempt=attempt.name, stamp=job.stamp, number=job.number, restarts=job.restarts,
            placement=_as_tuples(placement),
        )  # fmt: skip
        write_first(folder, AttemptJob.file_name, own.model_dump_json().encode())
        return own

    def _requeue(self, attempt: Attempt, job: HeldJob) -> NoReturn:
        """Requeue a job that is over; this always raises an error, as the job is not held at once."""
        if job.state in _DONE:
            raise RefusedError(f"{attempt.name}: Slurm reports job {job.number} as {job.state}")
        self._invalidate()
        _check_same_job(self._commands, job)
        try:
            self._commands.call("scontrol", ("requeuehold", job.number))
        except BackendError as error:
            if _DISABLED not in str(error):
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
            return _kept_status(ended)
        self._refresh(self._times.idle_poll_s)
        status = self._status_by_slurm(folder, name, own, self._jobs.get(_job_id_of(name)))
        if status.run in (Run.EXITED, Run.LOST):
            write_first(folder, EndedMarker.file_name, _ended_marker(name, status).model_dump_json().encode())
        return status

    def _status_by_slurm(self, folder: int, name: str, own: AttemptJob, job: HeldJob | None) -> Status:
        is_cancelled = is_there(folder, "cancel.json")
        if job is None:
            return self._status_of_missing("Slurm does not know its job any more, nor how it ended")
        if job.restarts > own.restarts:
            if is_cancelled:
                return Status(Run.EXITED, by=EndedBy.CANCEL)
            words = f"Slurm has put job {job.number} back into its queue"
            return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=words)
        if job.is_over:
            return _ended_status(job, is_cancelled=is_cancelled)
        if job.is_held:
            return Status(Run.ABSENT)
        if job.state == "PENDING":
            return Status(Run.PENDING)
        return self._status_of_running(name, own, job)

    def _status_of_missing(self, words: str) -> Status:
        snapshot = self._view.read()
        if snapshot.read_s < self._read_s or not self._view.is_complete(snapshot):
            return Status(Run.UNREACHABLE, words="Slurm does not know all its nodes yet")
        return Status(Run.LOST, words=words)

    def _status_of_running(self, name: str, own: AttemptJob, job: HeldJob) -> Status:
        wanted = {node: list(gpus) for node, gpus in own.placement}
        if name not in self._checked and job.state == "RUNNING":
            got = _granted_gpus(self._commands, job.number)
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
        self._do_unless_recent(name, partial(self._stop_attempt, name, is_misplaced=is_misplaced))

    def _stop_attempt(self, name: str, *, is_misplaced: bool) -> None:
        self._read_jobs()
        job = self._jobs.get(_job_id_of(name))
        if job is None or job.is_held or job.is_over:
            return
        self._invalidate()
        _hold_again(self._commands, job, must_stop=is_misplaced)

    def is_proven_gone(self, folder: int, name: str, own: AttemptJob) -> bool:
        """Return whether all processes of an attempt are proven gone.

        Raises:
            OSError: If its folder cannot be used.
            ValueError: If a marker makes no sense.
        """
        ended = read_marker(folder, name, EndedMarker)
        try:
            self._refresh(self._times.idle_poll_s)
            job, snapshot = self._jobs.get(_job_id_of(name)), self._view.read()
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
        return self._are_nodes_clear(name, [snapshot.nodes.get(node) for node, _ in own.placement], is_lost=is_lost)

    def _are_nodes_clear(self, name: str, nodes: Sequence[SlurmNode | None], *, is_lost: bool) -> bool:
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

    def _do_unless_recent(self, key: str, action: Callable[[], None]) -> None:
        if time.monotonic() >= self._again_s.get(key, 0.0):
            self._again_s[key] = time.monotonic() + self._times.again_s
            action()


def _job_id_of(name: str) -> str:
    """Return the id of the job of an attempt."""
    return name.removeprefix("ls-").rpartition("-")[0]


def _as_tuples(placement: Placement) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((share.node, share.gpus) for share in placement)


def _read_stamped_jobs(commands: Commands) -> Mapping[str, HeldJob]:
    """Return all stamped jobs of sbatch, by their ids in the store, in the order of submission."""
    jobs = (_parse_job(line, time.time()) for line in commands.call("squeue", _SQUEUE_HELD).splitlines())
    ours = [job for job in jobs if job is not None]
    return {job.id: job for job in sorted(ours, key=lambda job: (job.external.submitted_s, *_number_parts(job.number)))}


def _parse_limit_s(text: str) -> float | None:
    """Return a time limit in seconds, None for none."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds) or None


def _parse_job(line: str, now_s: float) -> HeldJob | None:
    fields = [field.strip() for field in line.split("|")]
    stamp = _STAMP.fullmatch(fields[8]) if len(fields) == 10 else None
    if stamp is None:
        return None  # not stamped
    number, state, priority, status, restarts, eligible, limit, user, _, _ = fields
    mark, since, chance, nodes, gpus, name = stamp.groups()
    try:
        is_held = state == "PENDING" and int(priority) == 0
        exit_status, restarted = int(status), int(restarts)
        is_early = _begins_later(eligible, now_s)
    except ValueError as error:
        raise BackendError(f"Slurm reports {line!r}, which cannot be read: {error}") from error
    external = ExternalJob(
        _job_id(float(since), chance, number), number, name, user, int(nodes), int(nodes) * int(gpus),
        _parse_limit_s(limit), float(since), state in OVER_STATES, state == "CANCELLED",
    )  # fmt: skip
    return HeldJob(external.job, number, mark, state, is_held, is_early, exit_status, restarted, external)


def _begins_later(eligible: str, now_s: float) -> bool:
    """Return whether a job's begin time, which Slurm's commands print in UTC here, is still to come."""
    return eligible[:1].isdigit() and datetime.fromisoformat(eligible).replace(tzinfo=UTC).timestamp() > now_s


def _number_parts(number: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", number)))


def _job_id(since_s: float, chance: str, number: str) -> str:
    """Return the id of a job, which is another one for each task of an array."""
    task = number.partition("_")[2]
    bits = hashlib.sha256(f"{chance}_{task}".encode()).hexdigest()[:20] if task else chance
    return job_id_of(since_s, int(bits, 16))


def _ended_status(job: HeldJob, *, is_cancelled: bool) -> Status:
    """Return how a job that is over ended, by Slurm's report."""
    if job.state == "CANCELLED":  # by its owner, whose request is known by now, or by us
        return Status(Run.EXITED, by=EndedBy.CANCEL) if is_cancelled else Status(Run.ABSENT)
    if job.state in TIMED_OUT:
        return Status(Run.EXITED, by=EndedBy.TIME_LIMIT)
    if job.state in _LOST_STATES:
        return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=f"Slurm reports {job.state}")
    code, signal = job.exit_status >> 8 & 255, job.exit_status & 127
    if job.state == "OUT_OF_MEMORY":
        code, signal = 0, _SIGKILL
    elif (job.state == "COMPLETED") != (job.exit_status == 0):
        return Status(Run.LOST, words=f"Slurm reports {job.state} with exit status {job.exit_status}")
    return Status(Run.EXITED, (RankEnd(0, code, signal, time.time()),))


def _ended_marker(name: str, status: Status) -> EndedMarker:
    """Return what is kept of the end of an attempt."""
    end = status.ends[0] if status.ends else RankEnd(0, 0, 0, time.time())
    return EndedMarker(
        attempt=name, run=status.run.value, reason=status.reason, code=end.code, signal=end.signal,
        has_code=bool(status.ends), ended_s=end.ended_s,
    )  # fmt: skip


def _kept_status(ended: EndedMarker) -> Status:
    """Return the status that was kept."""
    ends = (RankEnd(0, ended.code, ended.signal, ended.ended_s),) if ended.has_code else ()
    return Status(Run(ended.run), ends, *parse_reason_line(ended.reason))


def why_unplaceable(needed_nodes: int, gpus: int, nodes: Mapping[str, int]) -> str:
    """Return why a job can never be placed, "" if it can.

    Args:
        needed_nodes: Nodes that it needs.
        gpus: That it needs on each of them.
        nodes: GPUs of each node.
    """
    able = sum(there >= gpus for there in nodes.values())
    if able >= needed_nodes > 0 and gpus > 0:
        return ""
    return f"{needed_nodes} nodes with {gpus} GPUs each are requested, and there are {able}"


def _release_on(commands: Commands, job: HeldJob, placement: Placement, nodes: Mapping[str, SlurmNode]) -> None:
    """Let a held job run on exactly these GPUs. After an error it stays held, and this can be called again."""
    requests = {gres_request(share, nodes) for share in placement}
    if len(requests) != 1:
        raise CannotHonourError(f"job {job.number} can only have the same GPUs of each node, not {sorted(requests)}")
    gres, names = requests.pop(), [share.node for share in placement]
    # One by one, since Slurm refuses some of them together. An emptied request gives way to the one that follows; any
    # other is added up with it.
    changes = (
        f"NumNodes={len(names)}-{len(names)}", f"ReqNodeList={','.join(names)}", "TresPerJob=", "TresPerNode=",
        f"Gres={gres}",
    )  # fmt: skip
    _check_same_job(commands, job)
    for change in changes:
        commands.call("scontrol", ("update", f"JobId={job.number}", change))
    _check_update(commands, job, gres, names)
    commands.call("scontrol", ("release", job.number))


def _check_update(commands: Commands, job: HeldJob, gres: str, names: Sequence[str]) -> None:
    """Check that a job has its update before it is released."""
    shown = _shown_fields(commands, job.number)
    found = (
        shown.get("AdminComment"), shown.get("Priority"), shown.get("TresPerNode", "").replace("gres:", ""),
        _host_names(commands, shown.get("ReqNodeList", "")),
    )  # fmt: skip
    wanted = (job.stamp, "0", gres, sorted(names))
    if found != wanted:
        raise BackendError(f"job {job.number} is {found} after its update, not {wanted}; it stays held")


def _check_same_job(commands: Commands, job: HeldJob) -> None:
    """Check that a job's number still belongs to it."""
    if _shown_fields(commands, job.number).get("AdminComment") != job.stamp:
        raise BackendError(f"job {job.number} is another job now")


def _hold_again(commands: Commands, job: HeldJob, *, must_stop: bool = False) -> None:
    """Hold a job again; its processes are killed, unless it may not run a second time.

    Args:
        commands: Slurm's.
        job: The job.
        must_stop: Whether a job that may not run a second time ends for good, and does not continue.
    """
    _check_same_job(commands, job)
    if job.state == "PENDING":
        commands.call("scontrol", ("hold", job.number))
        return
    try:
        commands.call("scontrol", ("requeuehold", job.number))
    except BackendError as error:
        if _DISABLED not in str(error):
            raise
        if not must_stop:
            raise BackendError(f"job {job.number} may not be requeued (--no-requeue), and runs to its end") from error
        _cancel_job(commands, job)


def _cancel_job(commands: Commands, job: HeldJob) -> None:
    """End a job for good."""
    _check_same_job(commands, job)
    commands.call("scancel", (job.number,))


def _refuse_job(commands: Commands, job: HeldJob, reason: str) -> None:
    """End a job that can never be placed, with the reason where `scontrol show job` shows it."""
    _check_same_job(commands, job)
    # Slurm does not update a job that is over; and a job without its stamp that does not end would not be followed.
    commands.call("scontrol", ("update", f"JobId={job.number}", f"AdminComment={job.stamp} refused: {reason}"))
    _cancel_job(commands, job)


def _granted_gpus(commands: Commands, number: str) -> dict[str, list[int]] | None:
    """Return the GPUs of each node that a job got, None if it does not run any more."""
    text = _show_job(commands, number)
    if _RUNS.search(text) is None:
        return None
    found = _GRANTED.findall(text)
    return {name: _gpu_indices(gres) for names, gres in found for name in _host_names(commands, names)}


def _shown_fields(commands: Commands, number: str) -> dict[str, str]:
    """Return what Slurm reports of a job: its stamp, priority, request and nodes."""
    text = _show_job(commands, number)
    return dict(reversed(_SHOWN.findall(text)))


def _host_names(commands: Commands, text: str) -> list[str]:
    """Return the names of a list of nodes, sorted."""
    if "[" in text:
        text = ",".join(commands.call("scontrol", ("show", "hostnames", text)).split())
    return sorted(text.split(","))


def _show_job(commands: Commands, number: str) -> str:
    return commands.call("scontrol", ("show", "--details", "job", number))


def _gpu_indices(gres: str) -> list[int]:
    """Return the indices in a text such as `gpu:i1:1(IDX:1),gpu:i3:0(IDX:)`; of an untyped one `gpu:2(IDX:0-1)`."""
    found: list[int] = []
    for part in gres.replace("(IDX:", "\n").split("\n")[1:]:
        for span in part.partition(")")[0].split(","):
            first, _, last = span.partition("-")
            if first:
                found += range(int(first), int(last or first) + 1)
    return sorted(found)
