"""The Slurm backend: each attempt is one Slurm job with the exact nodes and GPUs that were decided."""

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ....cluster.files.durable import is_there
from ....cluster.files.errors import BackendError, InputError
from ....cluster.model.placement import Placement, Share
from ...model.gpu_index import Layout
from ...model.states import EndedBy, Run, Status
from ..local.folders import as_backend_error, delete_all_but, read_marker
from ..local.ranks import Spec, read_spec
from ..local.ring_files import RING, Piece, added_gpu_file, given_file, is_ring_over, pieces_of
from ..local.supervision import CANCELLED
from ..protocol import Attempt, CannotHonourError, Capabilities, ExternalJob, GpuView, NodeView, refuse_bad_placement
from ..shared_folder.backend import AttemptRecords, PartRecord, SharedFolderBackend, status_of_running
from ..shared_folder.node import nodes_of, prove_never_started, revoke_unclaimed, write_stop
from .commands import SLURM_TIMES, TIMED_OUT, Commands, SlurmNode, SlurmSnapshot, SlurmTimes, SlurmView
from .held import AttemptJob, EndedMarker, HeldAttempts, why_unplaceable
from .submission import (
    Cleanup,
    comment_of,
    gres_request,
    is_late_to_stop,
    resolved_address,
    submit,
    submit_piece,
)

SLURM_NAME_WORDS = "At most 253 letters, digits and characters of _.,+-"
# One of Slurm's names, or several of them.
SlurmNames = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,+-]+$", max_length=253, description=SLURM_NAME_WORDS)]
SBATCH_OPTIONS = ("--account=", "--partition=", "--qos=", "--reservation=")
_PATIENCE_S = 0.2  # for a question; the plug-in waits about as long
_MAX_QUESTION_BYTES = 256
_BACKLOG = 64
_ACCEPT_AGAIN_S = 0.5
SOCKET_AGAIN_S = 5.0  # between two checks whether another scheduler still answers
ADDED_WITHIN_S = 60.0  # for a GPU that a ring gets later to begin; then it gets another one
BEGINS_WITHIN_S = 300.0  # for a piece of a ring's start, from the claim of the first
_QUESTION = re.compile(rb"(\d{1,5})\t(\d{1,5})\n")

log = logging.getLogger(__name__)


class SlurmSettings(BaseModel):
    """Which Slurm, and what all of its jobs are submitted with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    conf: Path | None = None  # Slurm's configuration; by default where Slurm finds it itself
    account: SlurmNames | None = None
    partition: SlurmNames | None = None
    qos: SlurmNames | None = None
    reservation: SlurmNames | None = None
    sbatch_socket: Path | None = None  # where job_submit.lua connects; without it, users' own sbatch is left alone

    @property
    def options(self) -> tuple[str, ...]:
        """Options of each sbatch."""
        given = self.model_dump(exclude={"conf", "sbatch_socket"}, exclude_none=True)
        return tuple(f"--{name}={value}" for name, value in given.items())


class SlurmBackend(SharedFolderBackend):
    """Runs each attempt as a Slurm job whose supervisors, one a node, write down how it ended.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; created if missing.
        nodes: GPUs of each node, in cluster-file order, under Slurm's names.
        conf: Slurm's configuration; by default where Slurm finds it itself.
        options: Of every sbatch, from SBATCH_OPTIONS.
        sbatch_socket: Where job_submit.lua connects; None to leave users' own sbatch alone.
        times: Deadlines, and pauses between polls.

    Raises:
        BackendError: If Slurm's commands are not installed, or the socket cannot be created.
        InputError: If one of the options is another.
    """

    capabilities = Capabilities(
        exact_gpus=True, atomic_gang=True, enforced=True, lists_attempts=True, reads_steps=True, runs_rings=True,
        moves_coordinators=True,
        has_external_jobs=True,
    )  # fmt: skip

    Settings = SlurmSettings

    @classmethod
    def build(cls, settings: SlurmSettings, folder: Path, layout: Layout) -> "SlurmBackend":
        """Return the backend of a scheduler.

        Raises:
            BackendError: If Slurm's commands are not installed.
        """
        return cls(
            folder, layout.nodes, conf=settings.conf, options=settings.options, sbatch_socket=settings.sbatch_socket
        )

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, int],
        *,
        conf: Path | None = None,
        options: Sequence[str] = (),
        sbatch_socket: Path | None = None,
        times: SlurmTimes = SLURM_TIMES,
    ) -> None:
        for option in options:
            if not option.startswith(SBATCH_OPTIONS):
                raise InputError(
                    f"sbatch's {option!r} is not Longshore's to pass on", f"use {', '.join(SBATCH_OPTIONS)}"
                )
        super().__init__(folder, nodes)
        self._options = tuple(options)
        self._commands = Commands(conf, times)
        self._view = SlurmView(self._commands, self._nodes)
        self._answered_s: dict[str, float] = {}  # last answer of each node
        self._addresses: frozenset[str] = frozenset()  # of all nodes
        self._cleanup = Cleanup(self._commands, self._options)
        self._held = HeldAttempts(self._folders, self._commands, self._view, self._nodes, times)
        self._submit_socket = None if sbatch_socket is None else SubmitSocket(sbatch_socket, self._nodes)

    def external_jobs(self) -> Sequence[ExternalJob]:
        """Return all jobs of sbatch; none if users' own sbatch is left alone."""
        if self._submit_socket is None:
            return ()
        self._submit_socket.take_over()
        return self._held.external_jobs()

    def discard_external_job(self, job: str) -> None:
        """End a job of sbatch, for good."""
        self._held.discard(job)

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; one that Slurm has out of service takes no jobs, and a GPU that Slurm lacks is faulty."""
        snapshot = self._view.read_complete()
        self._addresses |= {resolved_address(node.address) for node in snapshot.nodes.values()}
        return tuple(self._node_view(name, gpus, snapshot.nodes.get(name)) for name, gpus in self._nodes.items())

    def _node_view(self, name: str, gpus: int, node: SlurmNode | None) -> NodeView:
        if node is not None and node.answers:
            self._answered_s[name] = time.time()
        types = {} if node is None else node.types
        found = tuple(GpuView(gpu, healthy=gpu in types) for gpu in range(gpus))
        takes_jobs = node is not None and node.takes_jobs
        return NodeView(name, found, self._answered_s.get(name, 0.0), takes_jobs=takes_jobs)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Submit an attempt with exactly these GPUs; again, or after its end, this does nothing."""
        if attempt.is_external:
            refuse_bad_placement(attempt, placement, self._nodes)
            self._held.launch(attempt, placement)
            return
        wanted = self._write_spec(attempt, placement)
        if wanted is None:
            return
        spec, is_first = wanted
        if spec.seats:
            self._submit_pieces(spec)
        elif is_first or not self._is_submitted(comment_of(attempt.name)):
            nodes = self._view.read().nodes
            self._view.invalidate()
            path = str(self._folders.path(attempt.name))
            submit(self._commands, spec, placement, nodes, path, self._options)

    def _submit_pieces(self, spec: Spec) -> None:
        """Submit the pieces of a ring that Slurm does not know."""
        name = spec.attempt
        with as_backend_error(name), self._folders.open_or_create(name) as folder:
            pieces = pieces_of(spec, self._ring_folder(name))
            left = [
                piece for piece in pieces
                if not is_there(folder, f"part-{piece.number}")
                and not self._is_submitted(comment_of(name, piece.number))
            ]  # fmt: skip
        snapshot = self._view.read()
        for piece in left:  # before any of them is submitted
            gres_request(Share(piece.node, tuple(piece.gpus.values())), snapshot.nodes)
        self._view.invalidate()
        path = str(self._folders.path(name))
        for piece in left:
            try:
                submit_piece(self._commands, spec, piece, snapshot.nodes, path, self._options)
            except CannotHonourError as error:
                if len(pieces) == 1:
                    raise
                # Others may run by now: they end, and what became of the attempt is found as that of any other.
                with as_backend_error(name), self._folders.open_or_create(name) as folder:
                    revoke_unclaimed(folder, name, f"not started: {error}")
                    write_stop(folder, name, f"not started: {error}")
                raise BackendError(str(error)) from error

    def _start_added(self, name: str, rank: int) -> None:
        """Submit the piece of a GPU that was added to a ring, unless it begins or is known to Slurm."""
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                raise BackendError(f"{name} does not exist")
            try:
                spec = read_spec(folder)
            except ValueError as error:
                raise BackendError(f"{name}: {error}") from error
            pieces = pieces_of(spec, self._ring_folder(name))
            piece = next(piece for piece in pieces if rank in piece.gpus)
            if is_there(folder, f"part-{piece.number}"):
                return
        if not self._is_submitted(comment_of(name, piece.number)):
            nodes = self._view.read().nodes
            self._view.invalidate()
            submit_piece(self._commands, spec, piece, nodes, str(self._folders.path(name)), self._options)

    def _ring_hosts(self) -> Collection[str]:
        """Return the addresses of all nodes that were ever seen."""
        return self._addresses

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts, by at most one poll of Slurm."""
        found: dict[str, Status] = {}
        own = []
        for name in names:
            self._folders.path(name)
            try:
                status = self._status_of_held(name)
            except (OSError, ValueError, BackendError) as error:  # of one attempt: the others are not concerned
                status = Status(Run.UNREACHABLE, words=str(error))
            if status is None:
                own.append(name)
            else:
                found[name] = status
        proven, unclear = self._read_proven_statuses(tuple(own))
        found |= proven | self._statuses_by_slurm(unclear)
        return {name: self._with_time_limit(name, status) for name, status in found.items()}

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or before it starts; Slurm kills one that does not."""
        with self._open_held_folder(name) as folder:
            if folder is not None:
                self._held.cancel(folder, name)
                return
        with self._store_stop_request(name, reason) as folder:
            if folder is not None and (revoke_unclaimed(folder, name, CANCELLED) or is_late_to_stop(folder)):
                self._cleanup.kill(name)
            elif folder is not None and is_there(folder, RING):
                self._cleanup.kill_pending(name)

    def is_proven_gone(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone, by their supervisors or by a sweep."""
        try:
            with self._open_held_folder(name) as folder:
                if folder is None:
                    return super().is_proven_gone(name)
                own = read_marker(folder, name, AttemptJob)
                return own is not None and self._held.is_proven_gone(folder, name, own)
        except (OSError, ValueError, BackendError):
            return False

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, except its logs and the proof that it ended."""
        with self._open_held_folder(name) as folder:
            if folder is not None:
                if not self.is_proven_gone(name):
                    raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
                # A late launch must find that it was cancelled.
                delete_all_but(folder, {AttemptJob.file_name, EndedMarker.file_name, "cancel.json"})
                self._held.forget(name)
                return
        super().forget(name)
        self._cleanup.forget(name)

    @contextmanager
    def _open_held_folder(self, name: str) -> Iterator[int | None]:
        """Open the folder of an attempt of a job of sbatch; None for any other."""
        self._folders.path(name)
        with as_backend_error(name), self._folders.open(name) as folder:
            yield folder if folder is not None and is_there(folder, AttemptJob.file_name) else None

    def _status_of_held(self, name: str) -> Status | None:
        """Return what is known of an attempt of a job of sbatch, None for any other."""
        with self._open_held_folder(name) as folder:
            own = None if folder is None else read_marker(folder, name, AttemptJob)
            if folder is None or own is None:
                return None
            return self._held.status(folder, name, own)

    def _statuses_by_slurm(self, unclear: Mapping[str, AttemptRecords]) -> dict[str, Status]:
        """Return what Slurm knows of attempts whose records prove nothing."""
        if not unclear:
            return {}
        try:
            snapshot = self._view.read()
        except BackendError as error:
            return {name: _status_without_slurm(records, str(error)) for name, records in unclear.items()}
        return {name: self._status_by_slurm(name, records, snapshot) for name, records in unclear.items()}

    def _with_time_limit(self, name: str, status: Status) -> Status:
        """Return the status of an attempt, with the time limit as its end if Slurm stopped it at that."""
        if status.run is not Run.LOST:
            return status
        with suppress(BackendError):  # Then it is lost, which is right too.
            if any(job.state in TIMED_OUT for job in self._view.read().jobs.get(comment_of(name), ())):
                return replace(status, run=Run.EXITED, by=EndedBy.TIME_LIMIT, words="")
        return status

    def _status_by_slurm(self, name: str, records: AttemptRecords, snapshot: SlurmSnapshot) -> Status:
        if records.is_ring:
            return self._status_of_ring(name, records, snapshot)
        claim, jobs = records.claim, snapshot.jobs.get(comment_of(name), ())
        if claim is not None:
            jobs = tuple(job for job in jobs if job.number == claim.job)
        if not all(job.is_over for job in jobs):
            return Status(Run.PENDING) if claim is None else status_of_running(records)
        if not self._view.is_complete(snapshot):
            return _status_without_slurm(records, "Slurm does not know all its nodes yet")
        if claim is None and not jobs:
            return Status(Run.ABSENT)
        report = f"Slurm reports {jobs[0].state}" if jobs else "Slurm does not know its job any more"
        try:
            return self._prove_end(name, records, snapshot, report)
        except OSError as error:
            return Status(Run.UNREACHABLE, words=str(error))

    def _status_of_ring(self, name: str, records: AttemptRecords, snapshot: SlurmSnapshot) -> Status:
        """Return the status of a ring that has begun, and get the proof that nothing is left of each lost piece.

        A piece is lost once its Slurm job is over without an exit marker, also while the ring goes on without it.
        """
        if not self._view.is_complete(snapshot):
            return _status_without_slurm(records, "Slurm does not know all its nodes yet")
        is_over, has_living_job = is_ring_over(self._folders.path(name)), False
        try:
            with self._folders.open(name) as folder:
                if folder is None:
                    return Status(Run.ABSENT)
                lost = []
                for piece in pieces_of(read_spec(folder), self._ring_folder(name)):
                    jobs = snapshot.jobs.get(comment_of(name, piece.number), ())
                    lives = not all(job.is_over for job in jobs)
                    has_living_job = has_living_job or lives
                    part = (
                        records.parts[piece.number] if piece.number < len(records.parts) else PartRecord(is_begun=True)
                    )
                    if part.is_over:
                        continue
                    if not part.is_begun and (is_over or self._is_overdue(folder, piece)):
                        prove_never_started(folder, name, piece.number)  # its job ends at once when it starts
                    elif not lives and (part.is_begun or jobs):
                        lost.append((piece.number, piece.node))
                if is_over and has_living_job:
                    self._cleanup.kill_pending(name)
                self._cleanup.sweep(folder, str(self._folders.path(name)), lost, snapshot)
        except (OSError, ValueError) as error:
            return Status(Run.UNREACHABLE, words=str(error))
        if has_living_job or any(part.is_alive and not part.is_over for part in records.parts):
            return status_of_running(records)
        return Status(Run.UNREACHABLE, words="it is not proven yet that all processes of its ring are gone")

    def _is_overdue(self, folder: int, piece: Piece) -> bool:
        """Return whether a piece has not begun for so long after it was handed over that its GPUs are given up."""
        first = min(piece.gpus)
        handed_over, limit_s = "claim.json", BEGINS_WITHIN_S
        if is_there(folder, f"{RING}/{added_gpu_file(first)}"):
            handed_over, limit_s = f"{RING}/{given_file(first)}", ADDED_WITHIN_S
            if not is_there(folder, handed_over):
                return False
        return time.time() - os.stat(handed_over, dir_fd=folder, follow_symlinks=False).st_mtime > limit_s

    def _prove_end(self, name: str, records: AttemptRecords, snapshot: SlurmSnapshot, report: str) -> Status:
        """Prove the end of an attempt whose Slurm job is over though its supervisors have not reported it."""
        with self._folders.open(name) as folder:
            if folder is None:
                return Status(Run.ABSENT)
            if records.claim is None:
                reason = f"not started: {report}"
                if revoke_unclaimed(folder, name, reason):
                    return Status(Run.LOST, words=reason)
            else:
                nodes = enumerate(nodes_of(read_spec(folder)))
                left = [(part, node) for part, node in nodes if not records.parts[part].is_over]
                self._cleanup.sweep(folder, str(self._folders.path(name)), left, snapshot)
        return _status_without_slurm(records, f"{report}, and it is not proven yet that all its processes are gone")

    def _is_submitted(self, comment: str) -> bool:
        """Return whether Slurm knows a job, running or ended."""
        if comment in self._view.read().jobs:
            return True
        self._view.invalidate()
        return comment in self._view.read_complete().jobs


def _status_without_slurm(records: AttemptRecords, reason: str) -> Status:
    """Return what the supervisors alone report: they continue when Slurm, or its daemon on their node, does not."""
    parts = records.parts
    if parts and (any if records.is_ring else all)(part.is_over or part.is_alive for part in parts):
        return status_of_running(records)
    return Status(Run.UNREACHABLE, words=reason)


class SubmitSocket:
    """Answers job_submit.lua, which asks before it accepts a job of sbatch, in a thread until the process ends.

    It answers from memory, so that no submission has to wait. One line in, `NODES TAB GPUS-ON-EACH`, and one line out:
    `hold`, or `refuse TAB REASON`.

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
        self._open_unless_served()

    def take_over(self) -> None:
        """Answer from now on, if another scheduler did so far and has ended."""
        if not self._is_open and time.monotonic() >= self._again_s:
            try:
                self._open_unless_served()
            except BackendError as error:
                log.warning("%s", error)

    def _open_unless_served(self) -> None:
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
    """Return whether another scheduler answers: a waiting one, or the one that this one is to replace."""
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
        except OSError as error:  # such as too many open files; the next call would fail as fast
            log.warning("job_submit.lua cannot be answered: %s", error)
            time.sleep(_ACCEPT_AGAIN_S)
            continue
        try:
            with connection:
                connection.settimeout(_PATIENCE_S)
                # Without a question it was only a check whether a scheduler answers.
                if question := connection.recv(_MAX_QUESTION_BYTES):
                    connection.sendall(answer_submission(question, nodes))
        except OSError as error:
            log.warning("job_submit.lua was not answered: %s", error)


def answer_submission(question: bytes, nodes: Mapping[str, int]) -> bytes:
    """Return the answer to a question."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        return b"refuse\tthis is no question of Longshore's job_submit.lua\n"
    wanted, gpus = int(found[1]), int(found[2])
    reason = why_unplaceable(wanted, gpus, nodes)
    return f"refuse\t{reason}\n".encode() if reason else b"hold\n"
