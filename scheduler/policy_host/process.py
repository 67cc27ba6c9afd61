"""The scheduler's side of a policy that decides in a process of its own.

`PolicyProcess` sends the questions of one process, under a deadline. `Rollover` has one process after the other: it
starts one anew after a rest, leaves the policy alone after many misses, and lets a newer version take over.

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
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum
from functools import cache
from queue import SimpleQueue
from typing import NoReturn

from ...agents.registry import checkpoint_in
from ...cluster.files.errors import PluginError
from ...cluster.files.output_file import in_one_line
from ..mirror.cluster_mirror import ClusterMirror, ClusterSite, MirrorCall, MirrorSnapshot
from .messages import (
    MAX_MESSAGE_BYTES,
    Channel,
    Edition,
    Failed,
    Followed,
    Message,
    PolicyAnswer,
    Ready,
    checkpoint_stamp,
    read_edition,
    read_message,
)
from .worker import Begin, DecisionQuestion

log = logging.getLogger(__name__)


class Miss(StrEnum):
    """Kinds of reasons; the stored decision has the exact one."""

    LATE = "late"  # no answer before the deadline
    RAISED = "raised"  # it raised an error
    REFUSED = "refused"  # its answer cannot be carried out
    MALFORMED = "malformed"  # its process sent no valid answer
    DEAD = "dead"  # its process has ended
    UNLOADABLE = "unloadable"  # it cannot be loaded
    LOADING = "loading"  # it is being loaded
    BEHIND = "behind"  # it does not know all events yet
    RESTING = "resting"  # it gets no questions for a while after misses


MISS_WORDS = {  # for users who may not read the reason: it may name other users' jobs, and files of the scheduler
    Miss.LATE: "it did not answer in time",
    Miss.RAISED: "it raised an error",
    Miss.REFUSED: "its answer could not be carried out",
    Miss.MALFORMED: "what it sent was no answer",
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

    It is started without waiting for it: `poll_ready` returns whether it is loaded. After a missed question it is
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
                self._process = _start_in_lasting_thread(theirs.fileno())
            except (OSError, RuntimeError):
                self._connection.close()
                raise
        self._channel = Channel(self._connection, MAX_MESSAGE_BYTES)
        self._send_in_thread(Begin(edition, deadline_s, site, sample_temperature))

    def _send_in_thread(self, message: Begin | DecisionQuestion) -> None:
        """Send what is more than the connection holds, to a process that may have to begin before it reads."""
        self._sends = threading.Thread(target=self._send_message, args=(message,), daemon=True)
        self._sends.start()

    def _send_message(self, message: Begin | DecisionQuestion) -> None:
        with suppress(OSError):  # the reader finds that it has ended
            self._channel.send(pickle.dumps(message))

    @property
    def pid(self) -> int:
        """Number of the process, and of the session that it leads."""
        return self._process.pid

    def record_calls(self, calls: Sequence[MirrorCall]) -> None:
        """Record what has happened, for the next question."""
        if self._has_cluster:
            self._backlog += calls

    def reset_cluster(self) -> None:
        """Follow another cluster from the next question on."""
        self._has_cluster, self._backlog = False, []

    def poll_ready(self, wait_s: float = 0.0) -> Ready | None:
        """Return the message of the process once the policy is loaded, None before.

        Raises:
            MissError: If it could not be loaded, with the reason; the process is over then.
        """
        if self.known is not None or self.is_over:
            return self.known
        try:
            message = self._read_message(time.monotonic() + wait_s)
        except TimeoutError:
            if time.monotonic() - self._busy_since > LOADED_S:
                raise self._end_with_miss(Miss.UNLOADABLE, f"the policy is not loaded after {LOADED_S:.0f} s") from None
            return None
        if not isinstance(message, Ready):
            reason = message.reason if isinstance(message, Failed) else "it answered before a question"
            raise self._end_with_miss(Miss.UNLOADABLE, f"policy {self.edition.name!r} cannot be loaded: {reason}")
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
        if self._catches_up and not self._poll_caught_up(until):
            return False
        if self._has_cluster and len(self._backlog) <= MAX_CALLS:
            return True
        self._number += 1
        self._has_cluster, self._catches_up, self._backlog = True, True, []
        self._busy_since = time.monotonic()
        self._send_in_thread(DecisionQuestion(self._number, snapshot=snapshot()))
        return self._poll_caught_up(until)

    def _poll_caught_up(self, until: float) -> bool:
        try:
            message = self._read_message(until)
        except TimeoutError:
            if time.monotonic() - self._busy_since > CAUGHT_UP_S:
                raise self._end_with_miss(Miss.LATE, f"it did not read the cluster for {CAUGHT_UP_S:.0f} s") from None
            return False
        if not isinstance(message, Followed) or message.number != self._number:
            raise self._end_with_miss(Miss.MALFORMED, UNEXPECTED)
        self._catches_up = False
        return True

    def send_question(self, snapshot: Callable[[], MirrorSnapshot]) -> None:
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
            raise self._end_with_miss(Miss.LATE, "it does not read its questions") from error
        except OSError as error:
            raise self._end_with_miss(Miss.DEAD, ENDED) from error

    def receive_answer(self) -> PolicyAnswer:
        """Return the answer to the last question.

        Raises:
            MissError: If there is none in time, or no usable one; unless the policy itself raised an error, the process
                is over then.
        """
        try:
            message = self._read_message(self._until)
        except TimeoutError:
            raise self._end_with_miss(Miss.LATE, f"no decision within {1000.0 * self.deadline_s:.0f} ms") from None
        if isinstance(message, Failed) and message.number == self._number:
            raise MissError(Miss.RAISED, message.reason)
        if not isinstance(message, PolicyAnswer) or message.number != self._number:
            raise self._end_with_miss(Miss.MALFORMED, UNEXPECTED)
        return message

    def _read_message(self, until: float) -> Message:
        try:
            return read_message(self._channel.receive(until))
        except TimeoutError:
            raise
        except (EOFError, ConnectionError) as error:
            raise self._end_with_miss(Miss.DEAD, ENDED) from error
        except (OSError, PluginError) as error:
            raise self._end_with_miss(Miss.MALFORMED, str(error)) from error

    def _end_with_miss(self, kind: Miss, reason: str) -> MissError:
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


StartRequest = tuple[int, Future[subprocess.Popen[bytes]]]  # descriptor of a connection, and the process that serves it


def _start_in_lasting_thread(connection: int) -> subprocess.Popen[bytes]:
    """Start a process that serves the connection of this descriptor, and that outlives the thread that calls this.

    The system kills the process when the thread that started it ends: that of a request may end after seconds.

    Raises:
        OSError: If the machine has no more processes.
        RuntimeError: If it has no more threads.
    """
    started: Future[subprocess.Popen[bytes]] = Future()
    _start_requests().put((connection, started))
    return started.result()


@cache
def _start_requests() -> SimpleQueue[StartRequest]:
    """Return the queue of a thread that starts processes and lives as long as this process."""
    requests: SimpleQueue[StartRequest] = SimpleQueue()
    threading.Thread(target=_start_requested, args=(requests,), name="policy starter", daemon=True).start()
    return requests


def _start_requested(requests: SimpleQueue[StartRequest]) -> NoReturn:
    while True:
        connection, started = requests.get()
        try:
            started.set_result(_start_process(connection))
        except Exception as error:  # it is raised in the thread that waits
            started.set_exception(error)


def _start_process(connection: int) -> subprocess.Popen[bytes]:
    """Start a process that serves the connection of this descriptor, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, str(connection), str(os.getpid()), os.pathsep.join(sys.path)],
        # One thread: several that share out a small network take longer, and the cores belong to others.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=(connection,),
        start_new_session=True,
    )


MAX_MISSES = 3  # misses of a process that lives; the policy of a dead one rests at once
FIRST_REST_S, LONGEST_REST_S = 5.0, 600.0  # doubled with each rest
FORGIVEN_AFTER = 100  # answers in a row, after which the next rest is the first again


class Breaker:
    """Counts misses and answers, and decides when a policy rests.

    Args:
        first_rest_s: How long the first time; then twice as long with each rest.
    """

    def __init__(self, *, first_rest_s: float = FIRST_REST_S) -> None:
        self._first_rest_s = first_rest_s
        self._misses, self._answers, self._rests = 0, 0, 0
        self._rest_until = 0.0  # of `time.monotonic`

    @property
    def is_open(self) -> bool:
        """Whether the policy rests."""
        return time.monotonic() < self._rest_until

    def record_answer(self) -> None:
        """Record a usable answer."""
        self._misses = 0
        self._answers += 1
        if self._answers == FORGIVEN_AFTER:
            self._rests = 0

    def record_miss(self, *, is_over: bool) -> bool:
        """Record a miss; return whether the policy is to rest.

        Args:
            is_over: Whether its process is.
        """
        self._misses += 1
        self._answers = 0
        if not is_over and self._misses < MAX_MISSES:
            return False
        rest_s = min(LONGEST_REST_S, self._first_rest_s * 2.0**self._rests)
        self._misses, self._rests, self._rest_until = 0, min(self._rests + 1, 20), time.monotonic() + rest_s
        return True

    def close(self) -> None:
        """End a rest: there is a new version of the policy."""
        self._misses, self._rests, self._rest_until = 0, 0, 0.0


CHECKPOINT_POLL_S = 1.0  # between two checks of a checkpoint, which must find it unchanged before it is loaded


class Reload(StrEnum):
    """The outcome of a reload."""

    DONE = "done"
    REFUSED = "refused"  # it could not be loaded, and the one before stays
    UNCHANGED = "unchanged"  # it is the same


class Rollover:
    """The process that decides, and one that may replace it between two decisions.

    All but `request_reload` is called from one thread.

    Args:
        name: Of the policy.
        deadline_s: For a decision.
        breaker: Decides when it rests; by default one of its own.
        sample_temperature: At which it draws what it does; None to choose the best action.
    """

    def __init__(
        self, name: str, deadline_s: float, breaker: Breaker | None = None, *, sample_temperature: float | None = None
    ) -> None:
        self.name, self.deadline_s, self.sample_temperature = name, deadline_s, sample_temperature
        self.reloads: Counter[Reload] = Counter()
        self.last_refusal = ""  # why a newer version was refused, "" since one took over
        # Before it is read, or a change in between would be missed.
        self._stamp = self._changed = checkpoint_stamp(name)
        self._poll_at = 0.0  # of `time.monotonic`
        self._edition = read_edition(name)  # the last one that runs
        self._serving: PolicyProcess | None = None
        self._successor: PolicyProcess | None = None
        self._breaker = breaker or Breaker()
        self._reload_requested = threading.Event()
        self._reading: Future[Edition] | None = None  # of a file that has changed

    @property
    def version(self) -> str:
        """Version of the policy that decides."""
        return self._edition.version if self._serving is None else self._serving.edition.version

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes, of which each leads a session."""
        return [process.pid for process in (self._serving, self._successor) if process is not None]

    def follow_mirror(self, mirror: ClusterMirror) -> None:
        """Follow a cluster from here on."""
        for process in (self._serving, self._successor):
            if process is not None:
                process.reset_cluster()
        if self._serving is None and not self._breaker.is_open:
            with suppress(MissError):
                self._start_serving(mirror)

    def _start_version(self, edition: Edition, mirror: ClusterMirror) -> PolicyProcess:
        try:
            return PolicyProcess(edition, mirror.site, self.deadline_s, self.sample_temperature)
        except (OSError, RuntimeError) as error:  # the machine has no more processes, descriptors or threads
            raise MissError(Miss.DEAD, f"no process can be started: {error}") from error

    def _start_serving(self, mirror: ClusterMirror) -> PolicyProcess:
        """Start the process that decides."""
        if self._edition.content is None and checkpoint_in(self.name) is not None:
            self._edition = read_edition(self.name)  # the file may exist by now
        try:
            self._serving = self._start_version(self._edition, mirror)
        except MissError as miss:
            log.warning("policy %s: %s", self.name, miss)
            self._breaker.record_miss(is_over=True)
            raise
        return self._serving

    def record_calls(self, calls: Sequence[MirrorCall]) -> None:
        """Record what has happened, for all processes."""
        for process in (self._serving, self._successor):
            if process is not None:
                process.record_calls(calls)

    def send_question(self, mirror: ClusterMirror) -> None:
        """Send the question of the decision that is due.

        Raises:
            MissError: If that is not possible.
        """
        self.advance_reload(mirror)
        if self._breaker.is_open:
            raise MissError(Miss.RESTING, "it rests after misses")
        serving = self._serving or self._start_serving(mirror)
        try:
            if serving.poll_ready() is None:
                raise MissError(Miss.LOADING, "it is being loaded")
            serving.send_question(mirror.snapshot)
        except MissError as miss:
            self.record_miss(miss)
            raise

    def receive_answer(self) -> PolicyAnswer:
        """Return the answer of the policy.

        Raises:
            MissError: If there is no usable one. The caller records the miss.
        """
        if self._serving is None:
            raise MissError(Miss.DEAD, "the policy's process has ended")
        return self._serving.receive_answer()

    def record_success(self) -> None:
        """Record that the last answer was usable."""
        self._breaker.record_answer()

    def record_miss(self, miss: MissError) -> None:
        """Record that there was no usable answer."""
        if miss.kind in NOT_COUNTED or self._serving is None:
            return
        log.warning("policy %s: %s", self.name, miss)
        if self._breaker.record_miss(is_over=self._serving.is_over):
            log.warning("policy %s rests", self.name)
            self._serving.end()
        if self._serving.is_over:
            self._serving = None

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the policy is loaded."""
        try:
            return self._serving is not None and self._serving.poll_ready(wait_s) is not None
        except MissError as miss:
            self.record_miss(miss)
            return False

    def wait_until_loaded(self, wait_s: float) -> None:
        """Wait until the policy is loaded for the first time.

        Raises:
            MissError: If it cannot be loaded.
        """
        if self._serving is None:
            raise MissError(Miss.DEAD, f"no process can be started for policy {self.name!r}")
        try:
            if self._serving.poll_ready(wait_s) is None:
                raise MissError(Miss.LOADING, f"policy {self.name!r} was not loaded within {wait_s:.0f} s")
        except MissError:
            # The caller logs it.
            if self._serving.is_over:
                self._breaker.record_miss(is_over=True)
                self._serving = None
            raise

    def request_reload(self) -> None:
        """Check for a newer version soon. Any thread, and a signal's handler, may call it."""
        self._reload_requested.set()

    def advance_reload(self, mirror: ClusterMirror) -> None:
        """Begin to load a newer version if there is one, and let one take over that is loaded. Never takes long.

        1. Check the policy's file; once it has changed, read it in a thread.
        2. Once it is read, start a process with it, the successor.
        3. Once the successor is loaded and knows all that has happened, let it take over.
        """
        if self._successor is not None:
            self._let_take_over(self._successor, mirror)
        elif self._reading is not None:
            if self._reading.done():
                reading, self._reading = self._reading, None
                self._start_successor(reading, mirror)
        elif self._reload_requested.is_set() or time.monotonic() >= self._poll_at:
            self._read_changed_file()

    def _read_changed_file(self) -> None:
        """Begin to read the policy's file if it has changed, and stays as it is."""
        self._poll_at = time.monotonic() + CHECKPOINT_POLL_S
        stamp = checkpoint_stamp(self.name)
        is_stable, self._changed = stamp == self._changed, stamp
        if self._reload_requested.is_set() or (stamp is not None and stamp != self._stamp and is_stable):
            self._reload_requested.clear()
            self._stamp = stamp
            self._reading = _read_edition_in_thread(self.name)

    def _start_successor(self, reading: Future[Edition], mirror: ClusterMirror) -> None:
        """Start a process with a version that was read, unless it is the one that decides."""
        try:
            edition = reading.result()
        except Exception as error:  # of a package that is being replaced, or without memory
            self._refuse_version(MissError(Miss.UNLOADABLE, f"it cannot be read: {error}"))
            return
        if edition.content is not None and edition == self._edition:
            self.reloads[Reload.UNCHANGED] += 1
            return
        log.info("policy %s: version %.12s is being loaded", self.name, edition.version)
        try:
            self._successor = self._start_version(edition, mirror)
        except MissError as miss:
            self._refuse_version(miss)

    def _refuse_version(self, miss: MissError) -> None:
        self._successor, self.last_refusal = None, str(miss)
        self.reloads[Reload.REFUSED] += 1
        log.warning("policy %s stays at version %.12s: %s", self.name, self.version, miss)

    def _let_take_over(self, successor: PolicyProcess, mirror: ClusterMirror) -> None:
        """Let a newer version take over if it is loaded and knows all that has happened."""
        try:
            if successor.poll_ready() is None or not successor.catch_up(mirror.snapshot, time.monotonic()):
                return
        except MissError as miss:
            successor.end()
            self._refuse_version(miss)
            return
        if self._serving is not None:
            self._serving.end()
        self._serving, self._successor, self._edition, self.last_refusal = successor, None, successor.edition, ""
        self._breaker.close()
        self.reloads[Reload.DONE] += 1
        log.info("policy %s: version %.12s has taken over", self.name, self.version)

    def end(self) -> None:
        """End all processes."""
        if self._successor is not None:
            self._reload_requested.set()
        for process in (self._serving, self._successor):
            if process is not None:
                process.end()
        self._serving = self._successor = None


def _read_edition_in_thread(name: str) -> Future[Edition]:
    """Read a version in a thread of its own: a large file on a slow disk must delay no decision."""
    found: Future[Edition] = Future()

    def read() -> None:
        try:
            found.set_result(read_edition(name))
        except Exception as error:  # it is raised in the thread that waits
            found.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return found
