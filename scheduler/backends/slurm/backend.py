"""The Slurm backend: each attempt is one Slurm job with the exact nodes and GPUs that were decided."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ....cluster.errors import BackendError, InputError
from ...layout import Layout
from ..local.durable import is_there, read_whole, write_first
from ..local.folders import Folders, delete_but, told_as_backend_error
from ..local.launching import refuse_what_cannot_start, spec_of
from ..local.markers import read_marker
from ..local.rank_logs import opened, read_log_of
from ..local.spec import encode
from ..local.supervision import SPEC_BYTES
from ..local.told import read_told
from ..protocol import Attempt, Capabilities, GpuSeen, Held, NodeSeen, Placement, Run, Status, Told
from ..refusals import refuse_placement
from .commands import Commands
from .door import answer_at
from .ending import Endings, is_late, revoke
from .held_attempts import HeldAttempts
from .held_ends import Ended, Taken
from .node import CANCELLED, TIME_LIMIT
from .records import Records, is_released, read_records, status_of, status_of_running
from .settings import SlurmSettings
from .snapshot import TIMED_OUT, Node, Snapshot
from .submission import comment_of, submit
from .view import View

OPTIONS = ("--account=", "--partition=", "--qos=", "--reservation=")


class SlurmBackend:
    """Runs each attempt as a Slurm job whose supervisors, one a node, write down how it ended.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; made if need be.
        nodes: GPUs of each node, in cluster-file order, under Slurm's names.
        conf: Slurm's configuration; where Slurm looks for it by itself if left out.
        options: Of every sbatch, from OPTIONS.
        door: Socket at which job_submit.lua asks; None if users of sbatch go their own way.

    Raises:
        BackendError: If Slurm's commands are not there, or the socket cannot be made.
        InputError: If one of the options is another.
    """

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=True)

    Settings = SlurmSettings

    @classmethod
    def build(cls, settings: SlurmSettings, folder: Path, layout: Layout) -> "SlurmBackend":
        """Return the backend of a scheduler.

        Raises:
            BackendError: If Slurm's commands are not there.
        """
        return cls(folder, layout.nodes, conf=settings.conf, options=settings.options, door=settings.sbatch_socket)

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, int],
        *,
        conf: Path | None = None,
        options: Sequence[str] = (),
        door: Path | None = None,
    ) -> None:
        for option in options:
            if not option.startswith(OPTIONS):
                raise InputError(f"sbatch's {option!r} is not Longshore's to pass on", f"use {', '.join(OPTIONS)}")
        self._folders = Folders(folder)
        self._nodes, self._options = dict(nodes), tuple(options)
        self._commands = Commands(conf)
        self._view = View(self._commands, self._nodes)
        self._answered_s: dict[str, float] = {}  # last answer of each node
        self._endings = Endings(self._commands, self._options)
        self._held = HeldAttempts(self._folders, self._commands, self._view, self._nodes)
        self._takes_sbatch = door is not None
        if door is not None:
            answer_at(door, self._nodes)

    def held(self) -> Sequence[Held]:
        """Return all jobs that came by sbatch; none if these are not asked for.

        Raises:
            BackendError: If Slurm does not answer.
        """
        return () if not self._takes_sbatch else self._held.held()

    def discard(self, job: str) -> None:
        """End a job that came by sbatch, for good.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        self._held.discard(job)

    def observe(self) -> tuple[NodeSeen, ...]:
        """Return all nodes; one that Slurm has out of service takes no jobs, and a GPU that Slurm lacks is faulty.

        Raises:
            BackendError: If Slurm does not answer, or does not know all nodes yet.
        """
        snapshot = self._view.look_complete()
        return tuple(self._seen(name, gpus, snapshot.nodes.get(name)) for name, gpus in self._nodes.items())

    def _seen(self, name: str, gpus: int, node: Node | None) -> NodeSeen:
        if node is not None and node.answers:
            self._answered_s[name] = time.time()
        types = {} if node is None else node.types
        found = tuple(GpuSeen(gpu, healthy=gpu in types) for gpu in range(gpus))
        takes_jobs = node is not None and node.in_service
        return NodeSeen(name, found, self._answered_s.get(name, 0.0), takes_jobs=takes_jobs)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Submit an attempt with exactly these GPUs; again, or after its end, it does nothing.

        Raises:
            CannotHonourError: If there are no such GPUs, or Slurm cannot give them by their index.
            RefusedError: If its program or folder is not there.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        if attempt.is_held:
            refuse_placement(attempt, placement, self._nodes)
            self._held.launch(attempt, placement)
            return
        name, path = attempt.name, self._folders.path(attempt.name)
        spec = spec_of(attempt, placement, self._nodes, path / "work")
        with told_as_backend_error(name):
            with self._folders.open(name) as folder:
                if folder is not None and _has_begun(folder, name, encode(spec)):
                    return
            refuse_what_cannot_start(spec, makes_folder=not attempt.folder)
            with self._folders.make(name) as folder:
                if not attempt.folder:
                    (path / "work").mkdir(exist_ok=True)
                is_first = write_first(folder, "spec.json", encode(spec))
                if not is_first and _has_begun(folder, name, encode(spec)):
                    return
                if is_there(folder, "cancel.json"):
                    revoke(folder, name, CANCELLED)
                    return
        if is_first or not self._is_submitted(name):
            nodes = self._view.look().nodes
            self._view.forget()
            submit(self._commands, spec, placement, nodes, str(path), self._options)

    def status(self, name: str) -> Status:
        """Return what is known of an attempt.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        return self.statuses((name,))[name]

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts, after at most one look at Slurm.

        Raises:
            BackendError: If one of these is no name of an attempt.
        """
        told: dict[str, Status] = {}
        unclear: dict[str, Records] = {}
        for name in names:
            try:
                records = self._read(name)
            except (OSError, ValueError, BackendError) as error:
                told[name] = Status(Run.UNREACHABLE, reason=str(error))
                continue
            status = records if not isinstance(records, Records) else status_of(records)
            if status is not None:
                told[name] = status
            elif isinstance(records, Records):
                unclear[name] = records
        told |= self._ask(unclear)
        return {name: self._with_limit(name, status) for name, status in told.items()}

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or before it starts; one that does not is left to Slurm to kill.

        Raises:
            BackendError: If the wish could not be written down.
        """
        self._folders.path(name)
        with told_as_backend_error(name), self._folders.make(name) as folder:
            if is_there(folder, Taken.file_name):
                self._held.cancel(folder, name)
                return
            if is_there(folder, "claim.json") and self.released(name):
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            if not is_there(folder, "spec.json"):
                return
            if revoke(folder, name, CANCELLED) or is_late(folder):
                self._endings.kill(name)

    def released(self, name: str) -> bool:
        """Say whether all processes of an attempt are proven gone: by their supervisors, or by a look at each node."""
        self._folders.path(name)
        try:
            with self._folders.open(name) as folder:
                if folder is None:
                    return True
                taken = read_marker(folder, name, Taken)
                if taken is not None:
                    return self._held.released(folder, name, taken)
                return is_released(read_records(folder, name))
        except (OSError, ValueError):
            return False

    def logs(self, name: str, rank: int, offset: int, most: int) -> tuple[bytes, int]:
        """Return at most so many bytes of a rank's output from an offset on, and the offset after them.

        Raises:
            BackendError: If there is no such rank, or its log is not a file.
            ValueError: If the offset or the size is negative.
        """
        return read_log_of(self._folders, name, rank, offset, most, _parts)

    def told(self, name: str, placement: Placement, before: Sequence[Told]) -> list[Told]:
        """Return what each rank has told of its steps and checkpoints since the last time.

        Raises:
            BackendError: If that cannot be seen.
        """
        self._folders.path(name)
        told = list[Told]()
        with told_as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                return told
            for part, share in enumerate(placement):
                if not is_there(folder, f"part-{part}"):
                    return []
                with opened(folder, f"part-{part}") as own:
                    first = len(told)
                    told += read_told(own, first, before[first : first + len(share.gpus)])
        return told

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, but for its logs and the proof that it ended.

        Raises:
            BackendError: If its processes are not proven gone, or something cannot be deleted.
        """
        if not self.released(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with told_as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                return
            if is_there(folder, Taken.file_name):
                delete_but(folder, {Taken.file_name, Ended.file_name})
                self._held.forget(name)
                return
            parts = _parts(folder)
            for part in parts:
                with opened(folder, part) as own:
                    delete_but(own, {"exit.json", "gone.json"})
            # Without a claim it never began: a launch that comes late must find that it was cancelled.
            delete_but(folder, {"claim.json" if is_there(folder, "claim.json") else "cancel.json", *parts})
        self._endings.forget(name)

    def _read(self, name: str) -> Records | Status:
        """Return what is known of an attempt without Slurm, or its status if that is enough or Slurm runs it alone."""
        self._folders.path(name)
        with self._folders.open(name) as folder:
            if folder is None:
                return Status(Run.ABSENT)
            taken = read_marker(folder, name, Taken)
            return read_records(folder, name) if taken is None else self._held.status(folder, name, taken)

    def _ask(self, unclear: Mapping[str, Records]) -> dict[str, Status]:
        """Return what is known of attempts that only Slurm knows enough of."""
        if not unclear:
            return {}
        try:
            snapshot = self._view.look()
        except BackendError as error:
            return {name: _without_slurm(records, str(error)) for name, records in unclear.items()}
        return {name: self._by_slurm(name, records, snapshot) for name, records in unclear.items()}

    def _with_limit(self, name: str, status: Status) -> Status:
        """Return the status of an attempt, and that of one which Slurm stopped at a limit as one that tells so."""
        if status.run is not Run.LOST:
            return status
        with suppress(BackendError):  # Then it is lost, which is right too.
            if any(job.state in TIMED_OUT for job in self._view.look().jobs.get(comment_of(name), ())):
                return replace(status, run=Run.EXITED, reason=TIME_LIMIT)
        return status

    def _by_slurm(self, name: str, records: Records, snapshot: Snapshot) -> Status:
        claim, jobs = records.claim, snapshot.jobs.get(comment_of(name), ())
        if claim is not None:
            jobs = tuple(job for job in jobs if job.number == claim.job)
        if not all(job.is_over for job in jobs):
            return Status(Run.PENDING) if claim is None else status_of_running(records.parts)
        if not self._view.is_complete(snapshot):
            return _without_slurm(records, "Slurm does not know all its nodes yet")
        if claim is None and not jobs:
            return Status(Run.ABSENT)
        said = f"Slurm says {jobs[0].state}" if jobs else "Slurm does not know its job any more"
        try:
            return self._end(name, records, snapshot, said)
        except OSError as error:
            return Status(Run.UNREACHABLE, reason=str(error))

    def _end(self, name: str, records: Records, snapshot: Snapshot, said: str) -> Status:
        """See to the end of an attempt whose Slurm job is over though its supervisors have not told of it."""
        with self._folders.open(name) as folder:
            if folder is None:
                return Status(Run.ABSENT)
            if records.claim is None:
                reason = f"not started: {said}"
                if revoke(folder, name, reason):
                    return Status(Run.LOST, reason=reason)
            else:
                self._endings.sweep(folder, name, str(self._folders.path(name)), records, snapshot)
        return _without_slurm(records, f"{said}, and it is not proven yet that all its processes are gone")

    def _is_submitted(self, name: str) -> bool:
        """Say whether Slurm knows a job of an attempt, running or ended.

        Raises:
            BackendError: If that cannot be told.
        """
        if comment_of(name) in self._view.look().jobs:
            return True
        self._view.forget()
        return comment_of(name) in self._view.look_complete().jobs


def _without_slurm(records: Records, reason: str) -> Status:
    """Return what the supervisors alone tell: they live on when Slurm, or its part on their node, does not."""
    parts = records.parts
    if parts and all(part.is_over or part.is_alive for part in parts):
        return status_of_running(parts)
    return Status(Run.UNREACHABLE, reason=reason)


def _has_begun(folder: int, name: str, content: bytes) -> bool:
    """Say whether an attempt is claimed.

    Raises:
        BackendError: If what was to be run under its name is something else.
    """
    if is_there(folder, "spec.json") and read_whole(folder, "spec.json", SPEC_BYTES) != content:
        raise BackendError(f"{name} was launched before with another command or placement")
    return is_there(folder, "claim.json")


def _parts(folder: int) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("part-"))
