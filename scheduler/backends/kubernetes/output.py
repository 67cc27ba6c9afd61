"""The logs of attempts, from the cluster into the scheduler's own files, and out of these."""

import logging
import os
import time

from ...files.durable import is_there, open_file
from ..local.supervisor.logs import log_name, read_log
from ..protocol import NoLogError
from .api import AnswerError, Api
from .logs import pieces_of, since_s, store_pieces
from .objects.objects import FIRST_RANK, RANKS, Pod
from .records import Records

log = logging.getLogger(__name__)

_WAITING = 400  # the container has not started
_MOST_BYTES = 64 << 20  # of a log that are asked for at once; nodes keep 10 MiB unless told otherwise


class Output:
    """Copies the logs of pods.

    Args:
        api: The cluster.
        namespace: Of the pods.
        records: Whose folders the copies are in.
    """

    def __init__(self, api: Api, namespace: str, records: Records) -> None:
        self._api, self._namespace, self._records = api, namespace, records
        self._last_s: dict[str, float] = {}  # time of the last line that was copied, by uid of the pod
        self._whole: set[str] = set()  # uids of pods that are over and copied

    def fetch(self, attempt: str, pod: Pod) -> None:
        """Copy what a pod has printed since the last time, as much of it as comes before the deadline.

        Raises:
            BackendError: If it cannot be had at the moment.
        """
        never_ran = pod.state.running is None and pod.state.terminated is None
        if never_ran or pod.metadata.uid in self._whole:
            return
        api, uid = self._api, pod.metadata.uid
        asked = {"since_seconds": since_s(self._last_s.get(uid, 0.0), time.time())}
        try:
            content, whole = api.read_some(
                api.core.read_namespaced_pod_log, pod.metadata.name, self._namespace, timestamps=True,
                limit_bytes=_MOST_BYTES, **{name: value for name, value in asked.items() if value is not None},
            )  # fmt: skip
        except AnswerError as error:
            if error.code == _WAITING:
                return
            raise
        pieces, last_s = pieces_of(content, range(pod.count(FIRST_RANK), pod.count(FIRST_RANK) + pod.count(RANKS)))
        with self._records.made(attempt) as folder:
            store_pieces(folder, pieces)
        self._last_s[uid] = max(last_s, self._last_s.get(uid, 0.0))
        if whole and pod.is_over:
            self._whole.add(uid)

    def fetch_what_is_left(self, attempt: str, pod: Pod) -> None:
        """Copy the end of a pod's output if its node still has it.

        Raises:
            BackendError: If the cluster does not answer, so that it may be had later.
        """
        uid = pod.metadata.uid
        try:
            before_s = -1.0
            while uid not in self._whole and self._last_s.get(uid, 0.0) > before_s:
                before_s = self._last_s.get(uid, 0.0)
                self.fetch(attempt, pod)
        except AnswerError as error:
            log.warning("%s: the rest of its output is lost: %s", pod.metadata.name, error)
        self._last_s.pop(uid, None)
        self._whole.discard(uid)

    def read(self, attempt: str, rank: int, offset: int, most: int, *, exists: bool) -> tuple[bytes, int]:
        """Return what has been copied of a rank's output, and the offset after it.

        Args:
            attempt: Its name.
            rank: Which one.
            offset: Where to begin.
            most: Bytes at most.
            exists: Whether there is such a rank, so that it may just not have printed anything.

        Raises:
            NoLogError: If there is no such rank.
            BackendError: If its file cannot be read.
        """
        with self._records.opened(attempt) as folder:
            if folder is not None and rank >= 0 and is_there(folder, log_name(rank)):
                log_file = open_file(folder, log_name(rank))
                try:
                    return read_log(log_file, offset, most)
                finally:
                    os.close(log_file)
        if not exists:
            raise NoLogError(f"{attempt} has no rank {rank}")
        return b"", offset
