"""The scheduler's side of a policy that decides in a process of its own.

Source: SPEC R8, R12.
"""

import pickle
import socket
import time
from collections.abc import Sequence
from multiprocessing import get_context

from ...cluster.errors import PluginError
from ..live import Known, Site, Told
from .answer import Choice, Failed, Ready, Refused, read_message
from .frames import receive_frame, send_frame
from .worker import serve


class PolicyProcess:
    """A process that follows the cluster and decides as a policy does.

    It is started without waiting for it: `ready` says when it can be asked. What happens meanwhile is told to it with
    the next question. Once it has missed a question it is of no more use, for nobody knows what it is doing.

    Args:
        name: Of the policy, as `longshore policies` lists them, or the path of a checkpoint.
        site: The cluster.
        known: Where it stands.
    """

    def __init__(self, name: str, site: Site, known: Known) -> None:
        self.name = name
        self.is_over = False
        self.known: Ready | None = None  # what it said once it was loaded
        self._number = 0
        self._connection, theirs = socket.socketpair()
        self._process = get_context("spawn").Process(target=serve, args=(theirs, name, site, known), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self, wait_s: float = 0.0) -> Ready | None:
        """Return what the process says of the policy once that is loaded, None before.

        Raises:
            PluginError: If it could not be loaded, with the reason; the process is over then.
        """
        if self.known is None and not self.is_over:
            try:
                message = self._read(time.monotonic() + wait_s)
            except TimeoutError:
                return None
            if isinstance(message, Ready):
                self.known = message
            else:
                self.end()
                reason = message.reason if isinstance(message, Refused) else "it answered before it was asked"
                raise PluginError(f"policy {self.name!r} cannot be loaded: {reason}")
        return self.known

    def ask(self, told: Sequence[Told], deadline_s: float) -> Choice:
        """Return what the policy would do at the decision that is due.

        Args:
            told: What has happened since the last question.
            deadline_s: Seconds from now until when an answer counts.

        Raises:
            PluginError: If there is no answer in time, or none of use; unless the policy itself raised an error, the
                process is over then.
        """
        self._number += 1
        until = time.monotonic() + deadline_s
        try:
            send_frame(self._connection, pickle.dumps((list(told), self._number)), until)
            message = self._read(until)
        except TimeoutError as error:
            self.end()
            raise PluginError(f"no decision within {1000.0 * deadline_s:.0f} ms") from error
        except OSError as error:
            self.end()
            raise PluginError("the policy's process has ended") from error
        if isinstance(message, Failed) and message.number == self._number:
            raise PluginError(message.reason)
        if not isinstance(message, Choice) or message.number != self._number:
            self.end()
            raise PluginError("the policy's process answered something that was not asked")
        return message

    def _read(self, until: float) -> Ready | Refused | Choice | Failed:
        try:
            return read_message(receive_frame(self._connection, until))
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            self.end()
            raise PluginError("the policy's process has ended") from error
        except PluginError:
            self.end()
            raise

    def end(self) -> None:
        """Kill the process; it may be doing anything."""
        self.is_over = True
        self._process.kill()
        self._connection.close()
