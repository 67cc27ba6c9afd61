"""A policy's processes, one after the other: started anew after a rest, left alone after many misses.

Source: SPEC R12.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum

from ..mirror.cluster_mirror import ClusterMirror, MirrorCall
from .answer import Edition, PolicyAnswer, checkpoint_of, read_edition, stamp_of
from .process import NOT_COUNTED, Miss, MissError, PolicyProcess

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


log = logging.getLogger(__name__)

CHECKPOINT_POLL_S = 1.0  # between two checks of a checkpoint, which must find it unchanged before it is loaded


class Reload(StrEnum):
    """The outcome of a reload."""

    DONE = "done"
    REFUSED = "refused"  # it could not be loaded, and the one before stays
    UNCHANGED = "unchanged"  # it is the same


class Rollover:
    """The process that decides, and one that may replace it between two decisions.

    All but `reload` is called from one thread.

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
        self._stamp = self._changed = stamp_of(name)  # before it is read, or a change in between would be missed
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

    def begin(self, mirror: ClusterMirror) -> None:
        """Follow a cluster from here on."""
        for process in (self._serving, self._successor):
            if process is not None:
                process.reset()
        if self._serving is None and not self._breaker.is_open:
            with suppress(MissError):
                self._serve(mirror)

    def _start(self, edition: Edition, mirror: ClusterMirror) -> PolicyProcess:
        try:
            return PolicyProcess(edition, mirror.site, self.deadline_s, self.sample_temperature)
        except (OSError, RuntimeError) as error:  # the machine has no more processes, descriptors or threads
            raise MissError(Miss.DEAD, f"no process can be started: {error}") from error

    def _serve(self, mirror: ClusterMirror) -> PolicyProcess:
        """Start the process that decides."""
        if self._edition.content is None and checkpoint_of(self.name) is not None:
            self._edition = read_edition(self.name)  # the file may exist by now
        try:
            self._serving = self._start(self._edition, mirror)
        except MissError as miss:
            log.warning("policy %s: %s", self.name, miss)
            self._breaker.record_miss(is_over=True)
            raise
        return self._serving

    def record(self, calls: Sequence[MirrorCall]) -> None:
        """Record what has happened, for all processes."""
        for process in (self._serving, self._successor):
            if process is not None:
                process.record(calls)

    def request(self, mirror: ClusterMirror) -> None:
        """Send the question of the decision that is due.

        Raises:
            MissError: If that is not possible.
        """
        self.update(mirror)
        if self._breaker.is_open:
            raise MissError(Miss.RESTING, "it rests after misses")
        serving = self._serving or self._serve(mirror)
        try:
            if serving.ready() is None:
                raise MissError(Miss.LOADING, "it is being loaded")
            serving.request(mirror.snapshot)
        except MissError as miss:
            self.record_miss(miss)
            raise

    def answer(self) -> PolicyAnswer:
        """Return the answer of the policy.

        Raises:
            MissError: If there is no usable one. The caller records the miss.
        """
        if self._serving is None:
            raise MissError(Miss.DEAD, "the policy's process has ended")
        return self._serving.answer()

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
            return self._serving is not None and self._serving.ready(wait_s) is not None
        except MissError as miss:
            self.record_miss(miss)
            return False

    def load(self, wait_s: float) -> None:
        """Wait until the policy is loaded for the first time.

        Raises:
            MissError: If it cannot be loaded.
        """
        if self._serving is None:
            raise MissError(Miss.DEAD, f"no process can be started for policy {self.name!r}")
        try:
            if self._serving.ready(wait_s) is None:
                raise MissError(Miss.LOADING, f"policy {self.name!r} was not loaded within {wait_s:.0f} s")
        except MissError:
            # The caller logs it.
            if self._serving.is_over:
                self._breaker.record_miss(is_over=True)
                self._serving = None
            raise

    def reload(self) -> None:
        """Check for a newer version soon. Any thread, and a signal's handler, may call it."""
        self._reload_requested.set()

    def update(self, mirror: ClusterMirror) -> None:
        """Begin to load a newer version if there is one, and let one take over that is loaded. Never takes long."""
        if self._successor is not None:
            self._succeed(self._successor, mirror)
        elif self._reading is not None:
            if self._reading.done():
                reading, self._reading = self._reading, None
                try:
                    edition = reading.result()
                except Exception as error:  # of a package that is being replaced, or without memory
                    self._refuse(MissError(Miss.UNLOADABLE, f"it cannot be read: {error}"))
                else:
                    self._prepare(edition, mirror)
        elif self._reload_requested.is_set() or time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + CHECKPOINT_POLL_S
            stamp = stamp_of(self.name)
            is_stable, self._changed = stamp == self._changed, stamp
            if self._reload_requested.is_set() or (stamp is not None and stamp != self._stamp and is_stable):
                self._reload_requested.clear()
                self._stamp = stamp
                self._reading = _read_aside(self.name)

    def _prepare(self, edition: Edition, mirror: ClusterMirror) -> None:
        if edition.content is not None and edition == self._edition:
            self.reloads[Reload.UNCHANGED] += 1
            return
        log.info("policy %s: version %.12s is being loaded", self.name, edition.version)
        try:
            self._successor = self._start(edition, mirror)
        except MissError as miss:
            self._refuse(miss)

    def _refuse(self, miss: MissError) -> None:
        self._successor, self.last_refusal = None, str(miss)
        self.reloads[Reload.REFUSED] += 1
        log.warning("policy %s stays at version %.12s: %s", self.name, self.version, miss)

    def _succeed(self, successor: PolicyProcess, mirror: ClusterMirror) -> None:
        """Let a newer version take over if it is loaded and knows all that has happened."""
        try:
            if successor.ready() is None or not successor.catch_up(mirror.snapshot, time.monotonic()):
                return
        except MissError as miss:
            successor.end()
            self._refuse(miss)
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


def _read_aside(name: str) -> Future[Edition]:
    """Read a version in a thread of its own: a large file on a slow disk must delay no decision."""
    found: Future[Edition] = Future()

    def read() -> None:
        try:
            found.set_result(read_edition(name))
        except Exception as error:  # it is raised in the thread that waits
            found.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return found
