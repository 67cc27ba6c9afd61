"""The scheduler's own files of attempts: requests and ends that no object of the cluster has, and copies of output.

The log of a container cannot be read from an offset, only from a time on, by the node's clock. Its lines have offsets,
see `launcher`. So a copy continues where it ended, and has holes where the node dropped the oldest output before it was
copied.
"""

import json
import logging
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ....cluster.files.durable import is_there, open_file, read_whole, write_first, write_whole
from ....cluster.files.errors import BackendError
from ...logs import Repeats
from ...model.states import EndedBy, RankEnd, Run, Status, parse_reason_line
from ..local.folders import opened_folder
from ..local.ranks import drop_beginning, log_name, read_log
from ..protocol import NoLogError
from .api import ApiStatusError, KubernetesApi
from .objects import FIRST_RANK, RANKS_ANNOTATION, GpuOrder, KubernetesPod

_MAX_RECORD_BYTES = 1 << 20
_GPU_ORDER = TypeAdapter(dict[str, tuple[str, ...]])
_LOG_LINE = re.compile(rb"(?:(?P<time>\S+) )?(?P<rank>\d{1,6})@(?P<offset>\d{1,15})(?P<mark>[ +])", re.DOTALL)
_KEEP_BYTES = 64 << 20  # of each rank's output at least, as the local backend does; twice as much at most
_BACK_S, _MAX_BACK_S = 2.0, 86_400.0  # read again: the server rounds to seconds, and node clocks may be set
_MISSING = 404
COPY_S = 30.0  # between two copies of a pod's output in the background
# With less, output is copied only for a reader and at the end of a job: the rest is for jobs to start and end.
_LEAST_FREE_BYTES = 1 << 30
_CONTAINER_WAITING = 400  # the container has not started
_MAX_LOG_BYTES = 64 << 20  # of a log, read at once; nodes keep 10 MiB by default

log = logging.getLogger(__name__)


class RecordError(BackendError):
    """Raised when what is recorded here of one attempt cannot be read or written."""


class _EndRecord(BaseModel):
    """How an attempt ended, `ended.json`: all that is left of it but its logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: str
    reason: str
    started_s: float
    ends: tuple[tuple[int, int, int, float], ...]
    progress: dict[str, float]


class RecordFolders:
    """A folder, created if missing, with one of each attempt; the order of GPUs, `gpus.json`; and `installation`.

    `launched.json` has the digest of what was to be run; with `lifted.json` its pods can start; with `cancelled.json`
    it is not to run; `ended.json` has how it ended, once it was forgotten.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def installation_id(self) -> str:
        """Return the id of this folder's installation."""
        try:
            with opened_folder(str(self.folder)) as folder:
                write_first(folder, "installation", uuid.uuid4().hex.encode())
                return read_whole(folder, "installation", _MAX_RECORD_BYTES).decode("ascii")
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.folder / 'installation'}: {error}") from error

    def read_gpu_order(self) -> GpuOrder:
        """Return the stored order of the nodes' GPUs."""
        try:
            return _GPU_ORDER.validate_json((self.folder / "gpus.json").read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.folder / 'gpus.json'}: {error}") from error

    def store_gpu_order(self, order: GpuOrder) -> None:
        """Store the order of the nodes' GPUs."""
        try:
            with opened_folder(str(self.folder)) as folder:
                write_whole(folder, "gpus.json", _GPU_ORDER.dump_json(dict(order)))
        except OSError as error:
            raise BackendError(f"{self.folder / 'gpus.json'}: {error}") from error

    def launched_digest(self, name: str) -> str:
        """Return the digest of what was launched under a name, "" if nothing was."""
        with self.open(name) as folder:
            if folder is None or not is_there(folder, "launched.json"):
                return ""
            return str(json.loads(read_whole(folder, "launched.json", _MAX_RECORD_BYTES)))

    def knows_attempt(self, name: str) -> bool:
        """Return whether there is any record of an attempt."""
        return (self.folder / name).is_dir()

    def has_record(self, name: str, record: str) -> bool:
        """Return whether there is a record, such as "cancelled"."""
        with self.open(name) as folder:
            return folder is not None and is_there(folder, f"{record}.json")

    def status_without_pods(self, name: str) -> Status:
        """Return what is known of an attempt that has no pods."""
        end = self.read_end(name)
        if end is not None:
            return end
        if self.has_record(name, "lifted"):
            return Status(Run.LOST, words="its pods were deleted, and with them the record of how it ended")
        if self.has_record(name, "cancelled") and self.has_record(name, "launched"):
            return Status(Run.EXITED, by=EndedBy.CANCEL)
        return Status(Run.ABSENT)

    def write_record(self, name: str, record: str, content: object) -> None:
        """Write a record durably, unless it exists."""
        with self.open_or_create(name) as folder:
            write_first(folder, f"{record}.json", json.dumps(content).encode())

    def write_end(self, name: str, status: Status) -> None:
        """Write how an attempt ended, unless that is stored."""
        ends = tuple((end.rank, end.code, end.signal, end.ended_s) for end in status.ends)
        end = _EndRecord(
            run=status.run, reason=status.reason, started_s=status.started_s, ends=ends, progress=dict(status.progress)
        )  # fmt: skip
        self.write_record(name, "ended", end.model_dump(mode="json"))
        with self.open_or_create(name) as folder:
            for record in ("launched", "lifted", "cancelled"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{record}.json", dir_fd=folder)

    def read_end(self, name: str) -> Status | None:
        """Return how an attempt ended that was forgotten."""
        with self.open(name) as folder:
            if folder is None or not is_there(folder, "ended.json"):
                return None
            end = _EndRecord.model_validate_json(read_whole(folder, "ended.json", _MAX_RECORD_BYTES))
        ends = tuple(RankEnd(*each) for each in end.ends)
        return Status(Run(end.run), ends, *parse_reason_line(end.reason), end.started_s, end.progress)

    @contextmanager
    def open(self, name: str) -> Iterator[int | None]:
        """Open the folder of an attempt, None if it has none.

        Raises:
            RecordError: If it cannot be read.
        """
        try:
            with (
                opened_folder(str(self.folder)) as folders,
                opened_folder(name, folders) if is_there(folders, name) else nullcontext() as folder,
            ):
                yield folder
        except (OSError, ValueError) as error:
            raise RecordError(f"{name}: {error}") from error

    @contextmanager
    def open_or_create(self, name: str) -> Iterator[int]:
        """Open the folder of an attempt, created if missing; errors are those of `open`."""
        try:
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RecordError(f"{name}: {error}") from error
        with self.open(name) as folder:
            if folder is None:
                raise RecordError(f"{name}: its folder was deleted")
            yield folder


class _LogPart(NamedTuple):
    """The end of a container's log, or a part from the middle of it."""

    pieces: dict[int, list[tuple[int, bytes]]]  # of output, each with its offset, by rank
    last_s: float  # Unix time of the last one, by the node's clock; 0 if unknown
    reaches_end: bool  # of the log at that moment

    def continues_copy(self, ends: Mapping[int, int], *, is_exact: bool) -> bool:
        """Return whether nothing is missing between what was copied before and this part, nor inside it.

        Args:
            ends: End of the copy of each rank.
            is_exact: Whether it is known to begin before the end of the copy; else a piece that was copied proves it.
        """
        begins_before = is_exact
        for rank, found in self.pieces.items():
            end = ends.get(rank, 0)
            begins_before |= found[0][0] < end
            for offset, content in found:
                if offset > end:
                    return False
                end = max(end, offset + len(content))
        return begins_before


def _parse_log(content: bytes, ranks: range, *, reaches_end: bool) -> _LogPart:
    """Return what is in a container's log.

    Args:
        content: The log, with times; half a line at its end is left for later.
        ranks: Those of the container, as a job could write lines of others.
        reaches_end: Whether it is the end of the log.
    """
    pieces: dict[int, list[tuple[int, bytes]]] = {}
    last_s = 0.0
    for line in content.split(b"\n")[:-1]:
        found = _LOG_LINE.match(line)
        if found is None or int(found["rank"]) not in ranks:
            continue  # Output of the runtime, or a line without its beginning.
        end = b"\n" if found["mark"] == b" " else b""
        pieces.setdefault(int(found["rank"]), []).append((int(found["offset"]), line[found.end() :] + end))
        last_s = _log_time_s(found["time"]) or last_s
    return _LogPart(pieces, last_s, reaches_end)


def _ends_of_copies(folder: int, ranks: Iterable[int]) -> dict[int, int]:
    """Return the end of the copy of each rank that has one."""
    ends = {}
    for rank in ranks:
        with suppress(FileNotFoundError):
            ends[rank] = os.stat(log_name(rank), dir_fd=folder, follow_symlinks=False).st_size
    return ends


def _store_pieces(folder: int, rank: int, pieces: list[tuple[int, bytes]]) -> None:
    """Write pieces, in the order of their offsets, into the file of their rank; existing content stays."""
    file = os.open(log_name(rank), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        end = os.fstat(file).st_size
        for offset, content in pieces:
            known = max(end - offset, 0)
            if known < len(content):
                begin = offset + known
                end = begin + os.pwrite(file, content[known:], begin)
        drop_beginning(file, _KEEP_BYTES)
    finally:
        os.close(file)


def _log_time_s(text: bytes | None) -> float:
    """Return a time of the log as Unix time, 0 if it is none. Nanoseconds are cut off."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", (text or b"").decode())).timestamp()
    except ValueError:
        return 0.0


class _CopyState(NamedTuple):
    """How far the log of a pod has been copied. Times are of the monotonic clock."""

    begun_s: float = float("-inf")  # of the last read
    until_s: float | None = None  # up to which it was copied; None: nothing was
    # Whether all output up to that time was copied. Otherwise there was more than could be read at once, and the time
    # is an estimate, by the node's clock and ours.
    is_exact: bool = False
    back_s: float = _BACK_S  # time before that which is read again
    is_complete: bool = False  # the pod is over, and all of it was copied

    def after_read(self, begun_s: float, back_s: float, part: _LogPart, *, is_over: bool) -> "_CopyState":
        """Return the state after a part was copied that a read has returned which began at a time."""
        if part.reaches_end:
            return _CopyState(begun_s, begun_s, is_exact=True, back_s=back_s, is_complete=is_over)
        if part.last_s:
            return _CopyState(begun_s, begun_s - (time.time() - part.last_s), back_s=back_s)
        return self._replace(begun_s=begun_s, back_s=back_s)


class PodLogs:
    """Copies the logs of pods. Any thread may use it."""

    def __init__(self, api: KubernetesApi, namespace: str, records: RecordFolders) -> None:
        self._api, self._namespace, self._records = api, namespace, records
        self._states: dict[str, _CopyState] = {}  # by uid of the pod

    def copy_new(self, attempt: str, pod: KubernetesPod) -> bool:
        """Copy what a pod has printed since the last call, as far as it comes before the deadline.

        1. Read the log from where the copy ends.
        2. If that does not continue the copy, read the whole log: the node's clock is another than it seemed.
        3. Store what is new.

        Returns:
            Whether there is more, and the next call may copy it.

        Raises:
            BackendError: If it cannot be read at the moment.
        """
        state, begun_s, ranks = self._states.get(pod.uid, _CopyState()), time.monotonic(), _ranks_of(pod)
        never_ran = pod.running is None and pod.terminated is None
        if never_ran or state.is_complete:
            return False
        since_s = None if state.until_s is None else begun_s - state.until_s + state.back_s
        with self._records.open_or_create(attempt) as folder:
            ends = _ends_of_copies(folder, ranks)
        try:
            part, back_s = self._read_log(pod, ranks, since_s), state.back_s
            if since_s is not None and not part.continues_copy(ends, is_exact=state.is_exact):
                part = self._read_log(pod, ranks, None)
                if part.continues_copy(ends, is_exact=True):  # else its node does not have any more what is missing
                    back_s = min(4.0 * back_s, _MAX_BACK_S)
        except ApiStatusError as error:
            if error.code == _CONTAINER_WAITING:
                return False
            raise
        with self._records.open_or_create(attempt) as folder:
            for rank, found in sorted(part.pieces.items()):
                _store_pieces(folder, rank, found)
            is_changed = _ends_of_copies(folder, ranks) != ends or back_s > state.back_s
        self._states[pod.uid] = state.after_read(begun_s, back_s, part, is_over=pod.is_over)
        return is_changed and not part.reaches_end

    def _read_log(self, pod: KubernetesPod, ranks: range, since_s: float | None) -> _LogPart:
        """Read a pod's log of the last seconds, all of it by default, as far as it comes before the deadline."""
        api, since = self._api, {} if since_s is None else {"since_seconds": max(math.ceil(since_s), 1)}
        content, is_whole = api.read_until_deadline(
            api.core.read_namespaced_pod_log, pod.name, self._namespace, timestamps=True,
            limit_bytes=_MAX_LOG_BYTES, **since,
        )  # fmt: skip
        return _parse_log(content, ranks, reaches_end=is_whole and len(content) < _MAX_LOG_BYTES)

    def copy_rest(self, attempt: str, pod: KubernetesPod) -> None:
        """Copy the end of a pod's output if its node still has it.

        Raises:
            BackendError: If the cluster does not answer, so that a later call may read it.
        """
        try:
            while self.copy_new(attempt, pod):
                pass
        except ApiStatusError as error:
            log.warning("%s: the rest of its output is lost: %s", pod.name, error)
        self._states.pop(pod.uid, None)

    def is_due(self, pod: KubernetesPod, after_s: float) -> bool:
        """Return whether the last copy of a pod's output began at least that long ago."""
        return time.monotonic() - self._states.get(pod.uid, _CopyState()).begun_s >= after_s

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Forget how far the logs of all other pods have been copied."""
        for uid in list(self._states):  # a copy: other threads add and remove
            if uid not in uids:
                self._states.pop(uid, None)

    def read(self, attempt: str, rank: int, offset: int, max_bytes: int, *, exists: bool) -> tuple[bytes, int]:
        """Return what has been copied of a rank's output, and the offset after it.

        Raises:
            NoLogError: If there is no such rank.
            BackendError: If its file cannot be read.
        """
        with self._records.open(attempt) as folder:
            if folder is not None and rank >= 0 and is_there(folder, log_name(rank)):
                file = open_file(folder, log_name(rank))
                try:
                    return read_log(file, offset, max_bytes)
                finally:
                    os.close(file)
        if not exists:
            raise NoLogError(f"{attempt} has no rank {rank}")
        return b"", offset


def _ranks_of(pod: KubernetesPod) -> range:
    first = pod.annotated_count(FIRST_RANK)
    return range(first, first + pod.annotated_count(RANKS_ANNOTATION))


class BackgroundCopies:
    """Copies the output of pods while they run, one pod after the other, in a thread of its own.

    Args:
        logs: Where it is copied.
        folder: On the disk of the copies.
        pods: Returns the pods, each with its attempt.
        every_s: Between two copies of one pod's output.
    """

    def __init__(
        self, logs: PodLogs, folder: Path, pods: Callable[[], Iterable[tuple[str, KubernetesPod]]], every_s: float
    ) -> None:  # fmt: skip
        self._logs, self._folder, self._pods, self._every_s = logs, folder, pods, every_s
        self._ends, self._repeats = threading.Event(), Repeats()
        self._thread = threading.Thread(target=self._run_thread, name="kubernetes logs", daemon=True)

    def start(self) -> None:
        """Start to copy."""
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Stop to copy, and wait for that at most so long."""
        self._ends.set()
        self._thread.join(within_s)

    def _run_thread(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self._copy_all()
            except Exception as error:  # Without this thread nothing would be copied any more.
                self._log_failure(f"no output of pods is copied at the moment: {error}", error)

    def _copy_all(self) -> None:
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
            self._log_failure(f"no output of pods is copied while less than 1 GiB is free for {self._folder}")
            return
        pods, failures = list(self._pods()), dict[str, BackendError]()
        self._logs.forget_all_but({pod.uid for _, pod in pods})
        silent = set[str]()  # nodes; each further pod of one could take as long to fail
        for attempt, pod in pods:
            if self._ends.is_set():
                return
            # Half of the time: a round may be faster than the last one.
            if pod.node in silent or not self._logs.is_due(pod, self._every_s / 2.0):
                continue
            try:
                self._logs.copy_new(attempt, pod)
            except BackendError as error:
                if isinstance(error, ApiStatusError) and error.code == _MISSING:
                    continue  # its attempt was forgotten meanwhile, after the rest was copied
                failures[pod.name] = error
                if not isinstance(error, ApiStatusError | RecordError):
                    silent.add(pod.node)
        if failures:
            name, first = next(iter(failures.items()))
            self._log_failure(f"the output of {len(failures)} pods cannot be copied now; {name}: {first}")

    def _log_failure(self, words: str, error: Exception | None = None) -> None:
        if message := self._repeats.message_to_log(words, time.monotonic()):
            is_bug = error is not None and not isinstance(error, BackendError)
            log.warning("%s", message, exc_info=error if is_bug else None)
