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

from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.records import MirrorCall
from .answer import Choice, Edition, checkpoint_of, read_edition, stamp_of
from .process import BLAMELESS, Miss, MissError, PolicyProcess

MOST_IN_A_ROW = 3  # misses of a process that goes on; one that is over rests at once
FIRST_REST_S, LONGEST_REST_S = 5.0, 600.0  # doubled with each rest
FORGIVEN_AFTER = 100  # answers in a row, after which the next rest is the first again


class Breaker:
    """Counts misses and answers, and says when a policy rests.

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

    def answered(self) -> None:
        """Note an answer of use."""
        self._misses = 0
        self._answers += 1
        if self._answers == FORGIVEN_AFTER:
            self._rests = 0

    def missed(self, *, is_over: bool) -> bool:
        """Note a miss; return whether the policy is to rest.

        Args:
            is_over: Whether its process is.
        """
        self._misses += 1
        self._answers = 0
        if not is_over and self._misses < MOST_IN_A_ROW:
            return False
        rest_s = min(LONGEST_REST_S, self._first_rest_s * 2.0**self._rests)
        self._misses, self._rests, self._rest_until = 0, min(self._rests + 1, 20), time.monotonic() + rest_s
        return True

    def close(self) -> None:
        """End a rest, for there is a new version of the policy."""
        self._misses, self._rests, self._rest_until = 0, 0, 0.0


log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at a checkpoint, which must find it unchanged before it is loaded


class Reload(StrEnum):
    """What came of a newer version."""

    DONE = "done"
    REFUSED = "refused"  # it could not be loaded, and the one before goes on
    UNCHANGED = "unchanged"  # it is the same


class Rollover:
    """The process that is asked, and one that may take its place between two decisions.

    All but `reload` is called from one thread.

    Args:
        name: Of the policy.
        deadline_s: For a decision.
        breaker: Says when it rests; one of its own if left out.
        sample_temperature: At which it draws what it does; None if it does what it holds for best.
    """

    def __init__(
        self, name: str, deadline_s: float, breaker: Breaker | None = None, *, sample_temperature: float | None = None
    ) -> None:
        self.name, self.deadline_s, self.sample_temperature = name, deadline_s, sample_temperature
        self.reloads: Counter[Reload] = Counter()
        self.last_refusal = ""  # why a newer version was refused, "" since one took over
        self._stamp = self._changed = stamp_of(name)  # before it is read, or a change in between would be missed
        self._look_at = 0.0  # of `time.monotonic`
        self._edition = read_edition(name)  # that runs well, as far as is known
        self._serving: PolicyProcess | None = None
        self._successor: PolicyProcess | None = None
        self._breaker = breaker or Breaker()
        self._wanted = threading.Event()
        self._reading: Future[Edition] | None = None  # of a file that has changed

    @property
    def version(self) -> str:
        """Version of the policy that is asked."""
        return self._edition.version if self._serving is None else self._serving.edition.version

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes, of which each leads a session."""
        return [process.pid for process in (self._serving, self._successor) if process is not None]

    def begin(self, mirror: ClusterMirror) -> None:
        """Follow a cluster from here on."""
        for process in (self._serving, self._successor):
            if process is not None:
                process.let_go()
        if self._serving is None and not self._breaker.is_open:
            with suppress(MissError):
                self._serve(mirror)

    def _start(self, edition: Edition, mirror: ClusterMirror) -> PolicyProcess:
        try:
            return PolicyProcess(edition, mirror.site, self.deadline_s, self.sample_temperature)
        except (OSError, RuntimeError) as error:  # the machine has no more processes, descriptors or threads
            raise MissError(Miss.DEAD, f"no process can be started: {error}") from error

    def _serve(self, mirror: ClusterMirror) -> PolicyProcess:
        """Start the process that is asked."""
        if self._edition.content is None and checkpoint_of(self.name) is not None:
            self._edition = read_edition(self.name)  # the file may be there by now
        try:
            self._serving = self._start(self._edition, mirror)
        except MissError as miss:
            log.warning("policy %s: %s", self.name, miss)
            self._breaker.missed(is_over=True)
            raise
        return self._serving

    def tell(self, calls: Sequence[MirrorCall]) -> None:
        """Note what has happened, for all processes."""
        for process in (self._serving, self._successor):
            if process is not None:
                process.tell(calls)

    def ask(self, mirror: ClusterMirror) -> None:
        """Ask the policy what it would do at the decision that is due.

        Raises:
            MissError: If it cannot be asked.
        """
        self.look(mirror)
        if self._breaker.is_open:
            raise MissError(Miss.RESTING, "it rests after misses")
        serving = self._serving or self._serve(mirror)
        try:
            if serving.ready() is None:
                raise MissError(Miss.LOADING, "it is being loaded")
            serving.ask(mirror.snapshot)
        except MissError as miss:
            self.blame(miss)
            raise

    def answer(self) -> Choice:
        """Return what the policy says that was asked.

        Raises:
            MissError: If that is nothing of use; the caller blames it for that, as for what only the caller can tell.
        """
        if self._serving is None:
            raise MissError(Miss.DEAD, "the policy's process has ended")
        return self._serving.answer()

    def thank(self) -> None:
        """Note that the last answer was of use."""
        self._breaker.answered()

    def blame(self, miss: MissError) -> None:
        """Note that there was no answer of use."""
        if miss.kind in BLAMELESS or self._serving is None:
            return
        log.warning("policy %s: %s", self.name, miss)
        if self._breaker.missed(is_over=self._serving.is_over):
            log.warning("policy %s rests", self.name)
            self._serving.end()
        if self._serving.is_over:
            self._serving = None

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the policy can be asked."""
        try:
            return self._serving is not None and self._serving.ready(wait_s) is not None
        except MissError as miss:
            self.blame(miss)
            return False

    def load(self, wait_s: float) -> None:
        """Wait until the policy can be asked for the first time.

        Raises:
            MissError: If it cannot be loaded.
        """
        if self._serving is None:
            raise MissError(Miss.DEAD, f"no process can be started for policy {self.name!r}")
        try:
            if self._serving.ready(wait_s) is None:
                raise MissError(Miss.LOADING, f"policy {self.name!r} was not loaded within {wait_s:.0f} s")
        except MissError:
            # Proposal once, by who called.
            if self._serving.is_over:
                self._breaker.missed(is_over=True)
                self._serving = None
            raise

    def reload(self) -> None:
        """Look for a newer version soon. Any thread, and a signal's handler, may call it."""
        self._wanted.set()

    def look(self, mirror: ClusterMirror) -> None:
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
        elif self._wanted.is_set() or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            stamp = stamp_of(self.name)
            is_stable, self._changed = stamp == self._changed, stamp
            if self._wanted.is_set() or (stamp is not None and stamp != self._stamp and is_stable):
                self._wanted.clear()
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
        log.warning("policy %s goes on with version %.12s: %s", self.name, self.version, miss)

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
            self._wanted.set()
        for process in (self._serving, self._successor):
            if process is not None:
                process.end()
        self._serving = self._successor = None


def _read_aside(name: str) -> Future[Edition]:
    """Read a version in a thread of its own: a large file on a slow disk must hold up no decision."""
    found: Future[Edition] = Future()

    def read() -> None:
        try:
            found.set_result(read_edition(name))
        except Exception as error:  # whoever waits for it must hear of it
            found.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return found
