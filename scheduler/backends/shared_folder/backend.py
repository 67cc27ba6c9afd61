"""What the backends whose nodes share a folder with the scheduler have in common."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ....cluster.files.durable import is_there, write_first
from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement
from ...model.states import Run, Status
from ..local.folders import (
    Folders,
    as_backend_error,
    delete_but,
    launched_in,
    opened,
    read_log_of,
    read_step_lines,
    write_spec,
)
from ..local.ranks import SPEC_FILE, Spec
from ..local.supervision import CANCELLED
from ..protocol import Attempt, Backend, StepLines
from .node import revoke
from .records import AttemptRecords, is_released, read_records, status_of


class SharedFolderBackend(Backend):
    """Writes what is to be run, and reads what supervisors on the nodes write.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; created if missing.
        nodes: GPUs of each node, in cluster-file order.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, int]) -> None:
        self._folders = Folders(folder)
        self._nodes = dict(nodes)

    def released(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone, by their supervisors or by a sweep."""
        self._folders.path(name)
        try:
            records = self._records(name)
        except (OSError, ValueError):
            return False
        return records is None or is_released(records)

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them."""
        return read_log_of(self._folders, name, rank, offset, max_bytes, _parts)

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank has reported of its steps and checkpoints since the last call."""
        self._folders.path(name)
        found = list[StepLines]()
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                return found
            for part, share in enumerate(placement):
                if not is_there(folder, f"part-{part}"):
                    return []
                with opened(folder, f"part-{part}") as own:
                    first = len(found)
                    found += read_step_lines(own, first, before[first : first + len(share.gpus)])
        return found

    def launched(self) -> dict[str, tuple[Attempt, Placement]]:
        """Return all attempts that were launched and not forgotten, with their GPUs, by name."""
        return launched_in(self._folders)

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, except its logs and the proof that it ended."""
        if not self.released(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                return
            parts = _parts(folder)
            for part in parts:
                with opened(folder, part) as own:
                    delete_but(own, {"exit.json", "gone.json"})
            # Without a claim it never began: a late launch must find that it was cancelled.
            delete_but(folder, {"claim.json" if is_there(folder, "claim.json") else "cancel.json", *parts})

    def _write_spec(self, attempt: Attempt, placement: Placement) -> tuple[Spec, bool] | None:
        """Write what is to be run, as `write_spec` does, unless the attempt was cancelled before."""
        name = attempt.name
        written = write_spec(self._folders, attempt, placement, self._nodes, ("claim.json",))
        with as_backend_error(name), self._folders.open(name) as folder:
            if written is None or folder is None or not is_there(folder, "cancel.json"):
                return written
            revoke(folder, name, CANCELLED)
        return None

    @contextmanager
    def _request_stop(self, name: str, reason: str) -> Iterator[int | None]:
        """Store the request that an attempt stops, and open its folder if it was launched and may run.

        Raises:
            BackendError: If the request could not be stored.
        """
        self._folders.path(name)
        with as_backend_error(name), self._folders.make(name) as folder:
            if is_there(folder, "claim.json") and self.released(name):
                yield None
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            yield folder if is_there(folder, SPEC_FILE) else None

    def _read_all(self, names: tuple[str, ...]) -> tuple[dict[str, Status], dict[str, AttemptRecords]]:
        """Return the statuses that records prove, and the records of the attempts of which they do not prove any.

        Raises:
            BackendError: If one of these is no name of an attempt.
        """
        found: dict[str, Status] = {}
        unclear: dict[str, AttemptRecords] = {}
        for name in names:
            try:
                records = self._records(name)
            except (OSError, ValueError) as error:
                found[name] = Status(Run.UNREACHABLE, words=str(error))
                continue
            status = Status(Run.ABSENT) if records is None else status_of(records)
            if status is not None:
                found[name] = status
            elif records is not None:
                unclear[name] = records
        return found, unclear

    def _records(self, name: str) -> AttemptRecords | None:
        with self._folders.open(name) as folder:
            return None if folder is None else read_records(folder, name)


def _parts(folder: int) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("part-"))
