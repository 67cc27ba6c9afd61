"""The output of ranks: copied from the cluster into files of the scheduler, by rank and offset, and read there.

The log of a container cannot be read from an offset; its lines have offsets, see `launcher`. So a copy continues where
it ended, and has holes where the node dropped the oldest output before it was copied.
"""

import logging
import os
import re
import time
from datetime import datetime
from typing import NamedTuple

from ....cluster.files.durable import is_there, open_file
from ..local.ranks import drop_beginning, log_name, read_log
from ..protocol import NoLogError
from .api import ApiStatusError, KubernetesApi
from .objects import FIRST_RANK, RANKS_ANNOTATION, KubernetesPod
from .records import RecordFolders

_LOG_LINE = re.compile(rb"(?:(?P<time>\S+) )?(?P<rank>\d{1,6})@(?P<offset>\d{1,15})(?P<mark>[ +])", re.DOTALL)
_KEEP_BYTES = 64 << 20  # of each rank's output at least, as the local backend does; twice as much at most
_BACK_S = 2.0  # read again: the server rounds to seconds, and its clock is not ours


class Piece(NamedTuple):
    """A piece of a rank's output."""

    rank: int
    offset: int
    content: bytes


def pieces_of(content: bytes, ranks: range) -> tuple[list[Piece], float]:
    """Return the pieces in a container's log with times, and the Unix time of the last of them.

    Args:
        content: The log; half a line at its end is left for later.
        ranks: Those of the container, as a job could write lines of others.
    """
    pieces, last_s = [], 0.0
    for line in content.split(b"\n")[:-1]:
        found = _LOG_LINE.match(line)
        if found is None or int(found["rank"]) not in ranks:
            continue  # Output of the runtime, or a line without its beginning.
        end = b"\n" if found["mark"] == b" " else b""
        pieces.append(Piece(int(found["rank"]), int(found["offset"]), line[found.end() :] + end))
        last_s = _seconds(found["time"]) or last_s
    return pieces, last_s


def since_s(last_s: float, now_s: float) -> int | None:
    """Return how many seconds of a log to read; None for all of it."""
    return None if last_s == 0.0 else max(int(now_s - last_s + _BACK_S), 1)


def store_pieces(folder: int, pieces: list[Piece]) -> None:
    """Write pieces into the files of their ranks; existing content stays.

    Args:
        folder: Descriptor of the attempt's folder.
        pieces: In the order of their offsets, for each rank.
    """
    for rank in sorted({piece.rank for piece in pieces}):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(log_name(rank), flags, 0o600, dir_fd=folder)
        try:
            end = os.fstat(log).st_size
            for piece in pieces:
                known = max(end - piece.offset, 0)
                if piece.rank == rank and known < len(piece.content):
                    begin = piece.offset + known
                    end = begin + os.pwrite(log, piece.content[known:], begin)
            drop_beginning(log, _KEEP_BYTES)
        finally:
            os.close(log)


def _seconds(text: bytes | None) -> float:
    """Return a time of the log as Unix time, 0 if it is none. Nanoseconds are cut off."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", (text or b"").decode())).timestamp()
    except ValueError:
        return 0.0


log = logging.getLogger(__name__)

_CONTAINER_WAITING = 400  # the container has not started
_MAX_LOG_BYTES = 64 << 20  # of a log, read at once; nodes keep 10 MiB by default


class Output:
    """Copies the logs of pods.

    Args:
        api: The cluster.
        namespace: Of the pods.
        records: Whose folders the copies are in.
    """

    def __init__(self, api: KubernetesApi, namespace: str, records: RecordFolders) -> None:
        self._api, self._namespace, self._records = api, namespace, records
        self._last_s: dict[str, float] = {}  # time of the last line that was copied, by uid of the pod
        self._whole: set[str] = set()  # uids of pods that are over and copied

    def fetch(self, attempt: str, pod: KubernetesPod) -> None:
        """Copy what a pod has printed since the last call, as far as it comes before the deadline.

        Raises:
            BackendError: If it cannot be read at the moment.
        """
        never_ran = pod.state.running is None and pod.state.terminated is None
        if never_ran or pod.metadata.uid in self._whole:
            return
        api, uid = self._api, pod.metadata.uid
        options = {"since_seconds": since_s(self._last_s.get(uid, 0.0), time.time())}
        try:
            content, whole = api.read_some(
                api.core.read_namespaced_pod_log, pod.metadata.name, self._namespace, timestamps=True,
                limit_bytes=_MAX_LOG_BYTES, **{name: value for name, value in options.items() if value is not None},
            )  # fmt: skip
        except ApiStatusError as error:
            if error.code == _CONTAINER_WAITING:
                return
            raise
        pieces, last_s = pieces_of(
            content, range(pod.count(FIRST_RANK), pod.count(FIRST_RANK) + pod.count(RANKS_ANNOTATION))
        )
        with self._records.made(attempt) as folder:
            store_pieces(folder, pieces)
        self._last_s[uid] = max(last_s, self._last_s.get(uid, 0.0))
        if whole and pod.is_over:
            self._whole.add(uid)

    def fetch_what_is_left(self, attempt: str, pod: KubernetesPod) -> None:
        """Copy the end of a pod's output if its node still has it.

        Raises:
            BackendError: If the cluster does not answer, so that a later call may read it.
        """
        uid = pod.metadata.uid
        try:
            before_s = -1.0
            while uid not in self._whole and self._last_s.get(uid, 0.0) > before_s:
                before_s = self._last_s.get(uid, 0.0)
                self.fetch(attempt, pod)
        except ApiStatusError as error:
            log.warning("%s: the rest of its output is lost: %s", pod.metadata.name, error)
        self._last_s.pop(uid, None)
        self._whole.discard(uid)

    def read(self, attempt: str, rank: int, offset: int, max_bytes: int, *, exists: bool) -> tuple[bytes, int]:
        """Return what has been copied of a rank's output, and the offset after it.

        Args:
            attempt: Its name.
            rank: Which one.
            offset: Where to begin.
            max_bytes: What to read at most.
            exists: Whether there is such a rank, which then may not have printed anything.

        Raises:
            NoLogError: If there is no such rank.
            BackendError: If its file cannot be read.
        """
        with self._records.opened(attempt) as folder:
            if folder is not None and rank >= 0 and is_there(folder, log_name(rank)):
                log_file = open_file(folder, log_name(rank))
                try:
                    return read_log(log_file, offset, max_bytes)
                finally:
                    os.close(log_file)
        if not exists:
            raise NoLogError(f"{attempt} has no rank {rank}")
        return b"", offset
