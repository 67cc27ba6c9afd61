"""The scheduler's own records of attempts: requests and ends that no object of the cluster has."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ....cluster.files.durable import is_there, open_folder, read_whole, write_first, write_whole
from ....cluster.files.errors import BackendError
from ...model.states import EndedBy, RankEnd, Run, Status, read_reason
from .objects import GpuOrder

_MAX_RECORD_BYTES = 1 << 20
_GPU_ORDER = TypeAdapter(dict[str, tuple[str, ...]])


class _End(BaseModel):
    """How an attempt ended, `ended.json`: all that is left of it but its logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: str
    reason: str
    started_s: float
    ends: tuple[tuple[int, int, int, float], ...]
    progress: dict[str, float]


class RecordFolders:
    """The folders of attempts, each with up to four files; the order of GPUs, `gpus.json`; and `installation`.

    `launched.json` has the digest of what was to be run; with `lifted.json` its pods can start; with `cancelled.json`
    it is not to run; `ended.json` has how it ended, once it was forgotten.

    Args:
        folder: Of all attempts; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def installation(self) -> str:
        """Return the id of this folder's installation."""
        try:
            folder = open_folder(str(self.folder))
            try:
                write_first(folder, "installation", uuid.uuid4().hex.encode())
                return read_whole(folder, "installation", _MAX_RECORD_BYTES).decode("ascii")
            finally:
                os.close(folder)
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.folder / 'installation'}: {error}") from error

    def gpus(self) -> GpuOrder:
        """Return the stored order of the nodes' GPUs."""
        try:
            return _GPU_ORDER.validate_json((self.folder / "gpus.json").read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.folder / 'gpus.json'}: {error}") from error

    def store_gpus(self, order: GpuOrder) -> None:
        """Store the order of the nodes' GPUs."""
        try:
            folder = open_folder(str(self.folder))
            try:
                write_whole(folder, "gpus.json", _GPU_ORDER.dump_json(dict(order)))
            finally:
                os.close(folder)
        except OSError as error:
            raise BackendError(f"{self.folder / 'gpus.json'}: {error}") from error

    def digest(self, name: str) -> str:
        """Return the digest of what was launched under a name, "" if nothing was."""
        with self.opened(name) as folder:
            if folder is None or not is_there(folder, "launched.json"):
                return ""
            return str(json.loads(read_whole(folder, "launched.json", _MAX_RECORD_BYTES)))

    def knows(self, name: str) -> bool:
        """Return whether there is any record of an attempt."""
        return (self.folder / name).is_dir()

    def has(self, name: str, record: str) -> bool:
        """Return whether there is a record, such as "cancelled"."""
        with self.opened(name) as folder:
            return folder is not None and is_there(folder, f"{record}.json")

    def status(self, name: str) -> Status:
        """Return what is known of an attempt that has no pods."""
        end = self.end(name)
        if end is not None:
            return end
        if self.has(name, "lifted"):
            return Status(Run.LOST, words="its pods were deleted, and with them the record of how it ended")
        if self.has(name, "cancelled") and self.has(name, "launched"):
            return Status(Run.EXITED, by=EndedBy.CANCEL)
        return Status(Run.ABSENT)

    def note(self, name: str, record: str, content: object) -> None:
        """Write a record durably, unless it exists."""
        with self.made(name) as folder:
            write_first(folder, f"{record}.json", json.dumps(content).encode())

    def note_end(self, name: str, status: Status) -> None:
        """Write how an attempt ended, unless that is stored."""
        ends = tuple((end.rank, end.code, end.signal, end.ended_s) for end in status.ends)
        end = _End(
            run=status.run, reason=status.reason, started_s=status.started_s, ends=ends, progress=dict(status.progress)
        )  # fmt: skip
        self.note(name, "ended", end.model_dump(mode="json"))
        with self.made(name) as folder:
            for record in ("launched", "lifted", "cancelled"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{record}.json", dir_fd=folder)

    def end(self, name: str) -> Status | None:
        """Return how an attempt ended that was forgotten."""
        with self.opened(name) as folder:
            if folder is None or not is_there(folder, "ended.json"):
                return None
            end = _End.model_validate_json(read_whole(folder, "ended.json", _MAX_RECORD_BYTES))
        ends = tuple(RankEnd(*each) for each in end.ends)
        return Status(Run(end.run), ends, *read_reason(end.reason), end.started_s, end.progress)

    @contextmanager
    def opened(self, name: str) -> Iterator[int | None]:
        """Open the folder of an attempt, None if it has none.

        Raises:
            BackendError: If it cannot be read.
        """
        try:
            folder = self._open(name)
        except OSError as error:
            raise BackendError(f"{name}: {error}") from error
        try:
            yield folder
        except (OSError, ValueError) as error:
            raise BackendError(f"{name}: {error}") from error
        finally:
            if folder is not None:
                os.close(folder)

    @contextmanager
    def made(self, name: str) -> Iterator[int]:
        """Open the folder of an attempt, created if missing; errors are those of `opened`."""
        try:
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise BackendError(f"{name}: {error}") from error
        with self.opened(name) as folder:
            if folder is None:
                raise BackendError(f"{name}: its folder was deleted")
            yield folder

    def _open(self, name: str) -> int | None:
        inside = open_folder(str(self.folder))
        try:
            return open_folder(name, inside=inside)
        except FileNotFoundError:
            return None
        finally:
            os.close(inside)
