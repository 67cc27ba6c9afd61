"""Jobs that users submitted by sbatch: held by job_submit.lua, assigned their GPUs, and released.

`SubmitSocket` answers job_submit.lua, which asks before it accepts a job of sbatch: from memory, so that no submission
has to wait.

One line in, `NODES TAB GPUS-ON-EACH`, and one line out: `hold`, or `refuse TAB REASON`.
"""

import hashlib
import logging
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement
from ...model.job import job_id_of
from ...model.states import EndedBy, RankEnd, Run, Status, read_reason
from ..local.folders import Marker
from ..protocol import CannotHonourError, ExternalJob
from .commands import OVER_STATES, TIMED_OUT, Commands, SlurmNode
from .submission import gres_of

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


def read_held(commands: Commands) -> Mapping[str, HeldJob]:
    """Return all stamped jobs of sbatch, by their ids in the store, in the order of submission.

    Raises:
        BackendError: If Slurm does not answer, or not in a known format.
    """
    jobs = (_job(line, time.time()) for line in commands.call("squeue", _SQUEUE_HELD).splitlines())
    ours = [job for job in jobs if job is not None]
    return {job.id: job for job in sorted(ours, key=lambda job: (job.external.submitted_s, *_parts(job.number)))}


def _read_limit_s(text: str) -> float | None:
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
        return None  # not stamped
    number, state, priority, status, restarts, eligible, limit, user, _, _ = fields
    mark, since, chance, nodes, gpus, name = stamp.groups()
    try:
        is_held = state == "PENDING" and int(priority) == 0
        exit_status, restarted = int(status), int(restarts)
        is_early = _is_early(eligible, now_s)
    except ValueError as error:
        raise BackendError(f"Slurm reports {line!r}, which cannot be read: {error}") from error
    external = ExternalJob(
        _id(float(since), chance, number), number, name, user, int(nodes), int(nodes) * int(gpus),
        _read_limit_s(limit), float(since), state in OVER_STATES, state == "CANCELLED",
    )  # fmt: skip
    return HeldJob(external.job, number, mark, state, is_held, is_early, exit_status, restarted, external)


def _is_early(eligible: str, now_s: float) -> bool:
    """Return whether a job's begin time is still to come."""
    return eligible[:1].isdigit() and datetime.fromisoformat(eligible).timestamp() > now_s


def _parts(number: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", number)))


def _id(since_s: float, chance: str, number: str) -> str:
    """Return the id of a job, which is another one for each task of an array."""
    task = number.partition("_")[2]
    bits = hashlib.sha256(f"{chance}_{task}".encode()).hexdigest()[:20] if task else chance
    return job_id_of(since_s, int(bits, 16))


_LOST_STATES = frozenset(("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"))  # no fault of the job
_SIGKILL = 9


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


def end_of(job: HeldJob, *, is_cancelled: bool) -> Status:
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


def ended_of(name: str, status: Status) -> EndedMarker:
    """Return what is kept of the end of an attempt."""
    end = status.ends[0] if status.ends else RankEnd(0, 0, 0, time.time())
    return EndedMarker(
        attempt=name, run=status.run.value, reason=status.reason, code=end.code, signal=end.signal,
        has_code=bool(status.ends), ended_s=end.ended_s,
    )  # fmt: skip


def status_of(ended: EndedMarker) -> Status:
    """Return the status that was kept."""
    ends = (RankEnd(0, ended.code, ended.signal, ended.ended_s),) if ended.has_code else ()
    return Status(Run(ended.run), ends, *read_reason(ended.reason))


log = logging.getLogger(__name__)

_PATIENCE_S = 0.2  # for a question; the plug-in waits about as long
_MAX_QUESTION_BYTES = 256
_BACKLOG = 64
SOCKET_AGAIN_S = 5.0  # between two checks whether another scheduler still answers
_QUESTION = re.compile(rb"(\d{1,5})\t(\d{1,5})\n")


class SubmitSocket:
    """Answers at a socket, in a thread of its own, until the process ends.

    Args:
        path: Of the socket.
        nodes: GPUs of each node.
        again_s: Between two checks whether another scheduler still answers.

    Raises:
        BackendError: If the socket cannot be made.
    """

    def __init__(self, path: Path, nodes: Mapping[str, int], *, again_s: float = SOCKET_AGAIN_S) -> None:
        self._path, self._nodes, self._after_s = path, dict(nodes), again_s
        self._is_open, self._again_s = False, 0.0
        self._open()

    def take_over(self) -> None:
        """Answer from now on, if another scheduler did so far and has ended."""
        if not self._is_open and time.monotonic() >= self._again_s:
            try:
                self._open()
            except BackendError as error:
                log.warning("%s", error)

    def _open(self) -> None:
        self._again_s = time.monotonic() + self._after_s
        listener = socket.socket(socket.AF_UNIX)
        try:
            if _has_server(self._path):
                listener.close()
                return
            if self._path.is_socket():  # of a scheduler that has ended
                self._path.unlink()
            listener.bind(str(self._path))
            self._path.chmod(0o666)  # Slurm's controller may be another user, and the questions are no secret.
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise BackendError(f"no socket for job_submit.lua can be made at {self._path}: {error}") from error
        threading.Thread(target=_answer_all, args=(listener, self._nodes), name="sbatch socket", daemon=True).start()
        self._is_open = True


def _has_server(path: Path) -> bool:
    """Return whether another scheduler answers: a waiting one, or the one that this one is to replace.

    Raises:
        OSError: If the path is something else.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (BlockingIOError, TimeoutError):  # its backlog is full
            return True
    return True


def _answer_all(listener: socket.socket, nodes: Mapping[str, int]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_PATIENCE_S)
                if question := connection.recv(
                    _MAX_QUESTION_BYTES
                ):  # else it was only a check whether a scheduler answers
                    connection.sendall(answer(question, nodes))
        except OSError as error:
            log.warning("job_submit.lua was not answered: %s", error)


def answer(question: bytes, nodes: Mapping[str, int]) -> bytes:
    """Return the answer to a question."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        return b"refuse\tthis is no question of Longshore's job_submit.lua\n"
    wanted, gpus = int(found[1]), int(found[2])
    reason = why_unplaceable(wanted, gpus, nodes)
    return f"refuse\t{reason}\n".encode() if reason else b"hold\n"


def why_unplaceable(wanted: int, gpus: int, nodes: Mapping[str, int]) -> str:
    """Return why a job can never be placed, "" if it can.

    Args:
        wanted: Nodes that it needs.
        gpus: That it needs on each of them.
        nodes: GPUs of each node.
    """
    able = sum(there >= gpus for there in nodes.values())
    if able >= wanted > 0 and gpus > 0:
        return ""
    return f"{wanted} nodes with {gpus} GPUs each are requested, and there are {able}"


DISABLED = "disabled"  # of requeueing: by its owner or by the site
_SHOWN = re.compile(r"^   (AdminComment|Priority|ReqNodeList|TresPerNode)=(\S*)", re.MULTILINE)
_RUNS = re.compile(r"^   JobState=RUNNING ", re.MULTILINE)
_GRANTED = re.compile(r"^     Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)


def release_on(commands: Commands, job: HeldJob, placement: Placement, nodes: Mapping[str, SlurmNode]) -> None:
    """Let a held job run on exactly these GPUs. After an error it stays held, and this can be called again.

    Raises:
        CannotHonourError: If Slurm cannot give these GPUs.
        BackendError: If it is not known whether it was released.
    """
    requests = {gres_of(share, nodes) for share in placement}
    if len(requests) != 1:
        raise CannotHonourError(f"job {job.number} can only have the same GPUs of each node, not {sorted(requests)}")
    gres, names = requests.pop(), [share.node for share in placement]
    # One by one, since Slurm refuses some of them together. An emptied request gives way to the one that follows; any
    # other is added up with it.
    changes = (
        f"NumNodes={len(names)}-{len(names)}", f"ReqNodeList={','.join(names)}", "TresPerJob=", "TresPerNode=",
        f"Gres={gres}",
    )  # fmt: skip
    check_same_job(commands, job)
    for change in changes:
        commands.call("scontrol", ("update", f"JobId={job.number}", change))
    _check(commands, job, gres, names)
    commands.call("scontrol", ("release", job.number))


def _check(commands: Commands, job: HeldJob, gres: str, names: Sequence[str]) -> None:
    """Check that a job has its update before it is released.

    Raises:
        BackendError: If it is not.
    """
    shown = show(commands, job.number)
    found = (
        shown.get("AdminComment"), shown.get("Priority"), shown.get("TresPerNode", "").replace("gres:", ""),
        hosts(commands, shown.get("ReqNodeList", "")),
    )  # fmt: skip
    wanted = (job.stamp, "0", gres, sorted(names))
    if found != wanted:
        raise BackendError(f"job {job.number} is {found} after its update, not {wanted}; it stays held")


def check_same_job(commands: Commands, job: HeldJob) -> None:
    """Check that a job's number still belongs to it.

    Raises:
        BackendError: If it does not.
    """
    if show(commands, job.number).get("AdminComment") != job.stamp:
        raise BackendError(f"job {job.number} is another job now")


def hold_again(commands: Commands, job: HeldJob, *, must_stop: bool = False) -> None:
    """Hold a job again; its processes are killed, unless it may not run a second time.

    Args:
        commands: Slurm's.
        job: The job.
        must_stop: Whether a job that may not run a second time ends for good, and does not continue.

    Raises:
        BackendError: If it continues, or it is not known whether it will be held.
    """
    check_same_job(commands, job)
    if job.state == "PENDING":
        commands.call("scontrol", ("hold", job.number))
        return
    try:
        commands.call("scontrol", ("requeuehold", job.number))
    except BackendError as error:
        if DISABLED not in str(error):
            raise
        if not must_stop:
            raise BackendError(f"job {job.number} may not be requeued (--no-requeue), and runs to its end") from error
        cancel_job(commands, job)


def cancel_job(commands: Commands, job: HeldJob) -> None:
    """End a job for good.

    Raises:
        BackendError: If it is not known whether it ends.
    """
    check_same_job(commands, job)
    commands.call("scancel", (job.number,))


def refuse(commands: Commands, job: HeldJob, reason: str) -> None:
    """End a job that can never be placed, with the reason where `scontrol show job` shows it.

    Raises:
        BackendError: If it is not known whether it ends.
    """
    check_same_job(commands, job)
    # Slurm does not update a job that is over; and a job without its stamp that does not end would not be followed.
    commands.call("scontrol", ("update", f"JobId={job.number}", f"AdminComment={job.stamp} refused: {reason}"))
    cancel_job(commands, job)


def granted_gpus(commands: Commands, number: str) -> dict[str, list[int]] | None:
    """Return the GPUs of each node that a job got, None if it does not run any more.

    Raises:
        BackendError: If Slurm does not answer.
    """
    text = _show(commands, number)
    if _RUNS.search(text) is None:
        return None
    found = _GRANTED.findall(text)
    return {name: _indices(gres) for names, gres in found for name in hosts(commands, names)}


def show(commands: Commands, number: str) -> dict[str, str]:
    """Return what Slurm reports of a job: its stamp, priority, request and nodes.

    Raises:
        BackendError: If it does not answer, or there is no such job.
    """
    text = _show(commands, number)
    return dict(reversed(_SHOWN.findall(text)))


def hosts(commands: Commands, text: str) -> list[str]:
    """Return the names of a list of nodes, sorted.

    Raises:
        BackendError: If Slurm does not answer.
    """
    if "[" in text:
        text = ",".join(commands.call("scontrol", ("show", "hostnames", text)).split())
    return sorted(text.split(","))


def _show(commands: Commands, number: str) -> str:
    return commands.call("scontrol", ("show", "--details", "job", number))


def _indices(gres: str) -> list[int]:
    """Return the indices in a text such as `gpu:i1:1(IDX:1),gpu:i3:0(IDX:)`; of an untyped one `gpu:2(IDX:0-1)`."""
    found: list[int] = []
    for part in gres.replace("(IDX:", "\n").split("\n")[1:]:
        for span in part.partition(")")[0].split(","):
            first, _, last = span.partition("-")
            if first:
                found += range(int(first), int(last or first) + 1)
    return sorted(found)
