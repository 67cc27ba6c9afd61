"""The scheduler's side of a policy that decides in a process of its own.

Source: SPEC R8, R12.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ...cluster.errors import PluginError
from ..live import Snapshot, Told
from .answer import Choice, Failed, Followed, Message, Ready, Refused, read_message
from .editions import Edition
from .frames import MOST_BYTES, Channel
from .misses import Miss, MissError
from .worker import Begin, Question

READS_S = 0.02
MOST_TOLD = 500  # entries that a question carries; what is more is told before it
LOADED_S, CAUGHT_UP_S = 300.0, 10.0  # far more than a policy takes to be loaded, and to take in what has happened
_RUN = """\
import os, sys
sys.path[:] = sys.argv.pop().split(os.pathsep)
from longshore.scheduler.plugins.worker import main
main()
"""


class PolicyProcess:
    """A process that follows the cluster and decides as a policy does.

    It is started without waiting for it: `ready` says when it can be asked. Once it has missed a question it is of no
    more use, for nobody knows what it is doing.

    Args:
        edition: Of the policy.
        snapshot: The cluster.
        deadline_s: For a decision.
    """

    def __init__(self, edition: Edition, snapshot: Snapshot, deadline_s: float) -> None:
        self.edition, self.deadline_s = edition, deadline_s
        self.is_over = False
        self.known: Ready | None = None  # what it said once it was loaded
        self._backlog: list[Told] = []
        self._number = 0
        self._follows = False  # it was told more than a question carries, and has not answered
        self._busy_since = time.monotonic()
        self._until = 0.0  # of `time.monotonic`, for the answer
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = _started(theirs.fileno())
        self._channel = Channel(self._connection, MOST_BYTES)
        # A cluster with many jobs is more than the connection holds, and the process has to begin before it reads.
        begin = Begin(edition, deadline_s, snapshot)
        self._sends = threading.Thread(target=self._send_begin, args=(begin,), daemon=True)
        self._sends.start()

    def _send_begin(self, begin: Begin) -> None:
        with suppress(OSError):  # that it has ended is found by who reads
            self._channel.send(pickle.dumps(begin))

    @property
    def pid(self) -> int:
        """Number of the process, and of the session that it leads."""
        return self._process.pid

    def tell(self, told: Sequence[Told]) -> None:
        """Note what has happened, for the next question."""
        self._backlog += told

    def ready(self, wait_s: float = 0.0) -> Ready | None:
        """Return what the process says of the policy once that is loaded, None before.

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
            reason = message.reason if isinstance(message, Refused) else "it answered before it was asked"
            raise self._ended(Miss.UNLOADABLE, f"policy {self.edition.name!r} cannot be loaded: {reason}")
        self.known = message
        return message

    def catch_up(self, until: float) -> bool:
        """Tell a loaded policy what has happened, and return whether a question can carry what is left.

        Args:
            until: Of `time.monotonic`; it may be told a part in this time, and more at the next call.

        Raises:
            MissError: If it takes no part; the process is over then.
        """
        while self._follows or len(self._backlog) > MOST_TOLD:
            try:
                if not self._follows:
                    self._follows, self._busy_since = True, time.monotonic()
                    # It does nothing else now: one that does not read at once never will.
                    self._send(self._backlog[:MOST_TOLD], is_asked=False, until=max(until, self._busy_since + READS_S))
                    del self._backlog[:MOST_TOLD]
                message = self._read(until)
            except TimeoutError:
                if time.monotonic() - self._busy_since > CAUGHT_UP_S:
                    raise self._ended(Miss.LATE, f"it took in nothing for {CAUGHT_UP_S:.0f} s") from None
                return False
            if not isinstance(message, Followed) or message.number != self._number:
                raise self._ended(Miss.RUBBISH, "the policy's process answered something that was not asked")
            self._follows = False
        return True

    def ask(self) -> None:
        """Ask what the policy would do at the decision that is due.

        Raises:
            MissError: If it has not taken in all that has happened; if it does not listen, and then it is over.
        """
        self._until = time.monotonic() + self.deadline_s
        # Who was behind at the last question is not waited for again.
        if not self.catch_up(time.monotonic() if self._follows else self._until):
            raise MissError(Miss.BEHIND, f"it has {len(self._backlog)} more events to take in")
        told, self._backlog = self._backlog, []
        self._send(told, is_asked=True, until=self._until)

    def answer(self) -> Choice:
        """Return the answer to the last question.

        Raises:
            MissError: If there is none in time, or none of use; unless the policy itself raised an error, the process
                is over then.
        """
        try:
            message = self._read(self._until)
        except TimeoutError:
            raise self._ended(Miss.LATE, f"no decision within {1000.0 * self.deadline_s:.0f} ms") from None
        if isinstance(message, Failed) and message.number == self._number:
            raise MissError(Miss.RAISED, message.reason)
        if not isinstance(message, Choice) or message.number != self._number:
            raise self._ended(Miss.RUBBISH, "the policy's process answered something that was not asked")
        return message

    def _send(self, told: Sequence[Told], *, is_asked: bool, until: float) -> None:
        self._number += 1
        try:
            self._channel.send(pickle.dumps(Question(self._number, told, is_asked)), until)
        except TimeoutError as error:
            raise self._ended(Miss.LATE, "it does not listen") from error
        except OSError as error:
            raise self._ended(Miss.DEAD, "the policy's process has ended") from error

    def _read(self, until: float) -> Message:
        try:
            return read_message(self._channel.receive(until))
        except TimeoutError:
            raise
        except (EOFError, ConnectionError) as error:
            raise self._ended(Miss.DEAD, "the policy's process has ended") from error
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
        threading.Thread(target=self._bury, daemon=True).start()

    def _bury(self) -> None:
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
