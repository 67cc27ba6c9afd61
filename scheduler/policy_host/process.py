"""The scheduler's side of a policy that decides in a process of its own.

Source: SPEC R8, R12.
"""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum

from ...cluster.files.errors import PluginError
from ...cluster.files.output_file import in_one_line
from ..mirror.cluster_mirror import ClusterSite, MirrorCall, MirrorSnapshot
from .answer import (
    MAX_MESSAGE_BYTES,
    Channel,
    Edition,
    Failed,
    Followed,
    Message,
    PolicyAnswer,
    Ready,
    Refused,
    read_message,
)
from .worker import Begin, DecisionQuestion


class Miss(StrEnum):
    """Kinds of reasons; the stored decision has the exact one."""

    LATE = "late"  # no answer before the deadline
    RAISED = "raised"  # it raised an error
    REFUSED = "refused"  # its answer cannot be carried out
    RUBBISH = "rubbish"  # its process sent no valid answer
    DEAD = "dead"  # its process has ended
    UNLOADABLE = "unloadable"  # it cannot be loaded
    LOADING = "loading"  # it is being loaded
    BEHIND = "behind"  # it does not know all events yet
    RESTING = "resting"  # it gets no questions for a while after misses


MISS_WORDS = {  # for users who may not read the reason: it may name other users' jobs, and files of the scheduler
    Miss.LATE: "it did not answer in time",
    Miss.RAISED: "it raised an error",
    Miss.REFUSED: "its answer could not be carried out",
    Miss.RUBBISH: "what it sent was no answer",
    Miss.DEAD: "its process had ended",
    Miss.UNLOADABLE: "it could not be loaded",
    Miss.LOADING: "it was being loaded",
    Miss.BEHIND: "it had not yet taken in all that had happened",
    Miss.RESTING: "it rested after misses",
}
MAX_REASON = 500  # characters
NOT_COUNTED = frozenset({Miss.LOADING, Miss.BEHIND, Miss.RESTING})


class MissError(PluginError):
    """A decision without a usable answer of the policy.

    Args:
        kind: Of the reason.
        reason: For people. It may come from a plug-in: it becomes one printable line of limited length.
    """

    def __init__(self, kind: Miss, reason: str) -> None:
        head = reason[: 2 * MAX_REASON]
        super().__init__(in_one_line(head)[:MAX_REASON])
        self.kind = kind


log = logging.getLogger(__name__)

MAX_CALLS = 500  # entries in a question; beyond that the cluster is sent anew
LOADED_S, CAUGHT_UP_S = 300.0, 10.0  # far more than a policy takes to load, and to read a cluster
ENDED, UNEXPECTED = "the policy's process has ended", "the policy's process sent an unexpected answer"
_RUN = """\
import os, sys
sys.path[:] = sys.argv.pop().split(os.pathsep)
from longshore.scheduler.policy_host.worker import main
main()
"""


class PolicyProcess:
    """A process that follows the cluster and decides as a policy does.

    It is started without waiting for it: `ready` returns whether it is loaded. After a missed question it is
    killed, as its state is unknown.

    Args:
        edition: Of the policy.
        site: The cluster.
        deadline_s: For a decision.
        sample_temperature: At which it draws what it does; None to choose the best action.
    """

    def __init__(
        self, edition: Edition, site: ClusterSite, deadline_s: float, sample_temperature: float | None = None
    ) -> None:
        self.edition, self.deadline_s = edition, deadline_s
        self.is_over = False
        self.known: Ready | None = None  # its message once the policy was loaded
        self._has_cluster = False  # it knows where the cluster stood, and all since then but the backlog
        self._catches_up = False  # it was sent the cluster, and has not answered
        self._backlog: list[MirrorCall] = []
        self._number = 0
        self._busy_since = time.monotonic()
        self._until = 0.0  # of `time.monotonic`, for the answer
        self._connection, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _started(theirs.fileno())
            except OSError:
                self._connection.close()
                raise
        self._channel = Channel(self._connection, MAX_MESSAGE_BYTES)
        self._send_aside(Begin(edition, deadline_s, site, sample_temperature))

    def _send_aside(self, what: Begin | DecisionQuestion) -> None:
        """Send what is more than the connection holds, to a process that may have to begin before it reads."""
        self._sends = threading.Thread(target=self._send_all, args=(what,), daemon=True)
        self._sends.start()

    def _send_all(self, what: Begin | DecisionQuestion) -> None:
        with suppress(OSError):  # that it has ended is found by who reads
            self._channel.send(pickle.dumps(what))

    @property
    def pid(self) -> int:
        """Number of the process, and of the session that it leads."""
        return self._process.pid

    def record(self, calls: Sequence[MirrorCall]) -> None:
        """Record what has happened, for the next question."""
        if self._has_cluster:
            self._backlog += calls

    def reset(self) -> None:
        """Follow another cluster from the next question on."""
        self._has_cluster, self._backlog = False, []

    def ready(self, wait_s: float = 0.0) -> Ready | None:
        """Return the message of the process once the policy is loaded, None before.

        Raises:
            MissError: If it could not be loaded, with the reason; the process is over then.
        """
        if self.known is not None or self.is_over:
            return self.known
        try:
            message = self._read(time.monotonic() + wait_s)
        except TimeoutError:
            if time.monotonic() - self._busy_since > LOADED_S:
                raise self._ended(Miss.UNLOADABLE, f"the policy is not loaded after {LOADED_S:.0f} s") from None
            return None
        if not isinstance(message, Ready):
            reason = message.reason if isinstance(message, Refused) else "it answered before a question"
            raise self._ended(Miss.UNLOADABLE, f"policy {self.edition.name!r} cannot be loaded: {reason}")
        self.known = message
        if message.remark:
            log.warning("policy %s: %s", self.edition.name, in_one_line(message.remark))
        return message

    def catch_up(self, snapshot: Callable[[], MirrorSnapshot], until: float) -> bool:
        """Return whether a loaded policy knows the cluster; after too many events it is sent anew.

        Args:
            snapshot: Returns the present cluster.
            until: Of `time.monotonic`; if it is not done by then, call this again.

        Raises:
            MissError: If it does not read the cluster; the process is over then.
        """
        if self._catches_up and not self._has_caught_up(until):
            return False
        if self._has_cluster and len(self._backlog) <= MAX_CALLS:
            return True
        self._number += 1
        self._has_cluster, self._catches_up, self._backlog = True, True, []
        self._busy_since = time.monotonic()
        self._send_aside(DecisionQuestion(self._number, snapshot=snapshot()))
        return self._has_caught_up(until)

    def _has_caught_up(self, until: float) -> bool:
        try:
            message = self._read(until)
        except TimeoutError:
            if time.monotonic() - self._busy_since > CAUGHT_UP_S:
                raise self._ended(Miss.LATE, f"it did not read the cluster for {CAUGHT_UP_S:.0f} s") from None
            return False
        if not isinstance(message, Followed) or message.number != self._number:
            raise self._ended(Miss.RUBBISH, UNEXPECTED)
        self._catches_up = False
        return True

    def request(self, snapshot: Callable[[], MirrorSnapshot]) -> None:
        """Send the question of the decision that is due.

        Args:
            snapshot: Returns the present cluster.

        Raises:
            MissError: If it does not know the cluster yet; or does not read the question, and is over then.
        """
        self._until = time.monotonic() + self.deadline_s
        # Do not wait twice for a process that began to read the cluster at the last question.
        if not self.catch_up(snapshot, time.monotonic() if self._catches_up else self._until):
            raise MissError(Miss.BEHIND, "it is reading the cluster")
        calls, self._backlog = self._backlog, []
        self._number += 1
        try:
            self._channel.send(pickle.dumps(DecisionQuestion(self._number, calls)), self._until)
        except TimeoutError as error:
            raise self._ended(Miss.LATE, "it does not read its questions") from error
        except OSError as error:
            raise self._ended(Miss.DEAD, ENDED) from error

    def answer(self) -> PolicyAnswer:
        """Return the answer to the last question.

        Raises:
            MissError: If there is none in time, or no usable one; unless the policy itself raised an error, the process
                is over then.
        """
        try:
            message = self._read(self._until)
        except TimeoutError:
            raise self._ended(Miss.LATE, f"no decision within {1000.0 * self.deadline_s:.0f} ms") from None
        if isinstance(message, Failed) and message.number == self._number:
            raise MissError(Miss.RAISED, message.reason)
        if not isinstance(message, PolicyAnswer) or message.number != self._number:
            raise self._ended(Miss.RUBBISH, UNEXPECTED)
        return message

    def _read(self, until: float) -> Message:
        try:
            return read_message(self._channel.receive(until))
        except TimeoutError:
            raise
        except (EOFError, ConnectionError) as error:
            raise self._ended(Miss.DEAD, ENDED) from error
        except (OSError, PluginError) as error:
            raise self._ended(Miss.RUBBISH, str(error)) from error

    def _ended(self, kind: Miss, reason: str) -> MissError:
        self.end()
        return MissError(kind, reason)

    def end(self) -> None:
        """Kill the process and those that it has started; it may be doing anything."""
        if self.is_over:
            return
        self.is_over = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(OSError):
            self._channel.close()
        threading.Thread(target=self._reap, daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()
        self._sends.join()
        self._connection.close()


def _started(connection: int) -> "subprocess.Popen[bytes]":
    """Start a process that serves the connection of this descriptor, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, str(connection), str(os.getpid()), os.pathsep.join(sys.path)],
        # One thread: several that share out a small network take longer, and the cores belong to others.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=(connection,),
        start_new_session=True,
    )
