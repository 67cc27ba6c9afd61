"""A scheduler's connection to the coordinator of a ring: to read its status, retire members, and fill empty seats.

The job may write to the ring's folder, and may answer in the coordinator's place. So files are read as untrusted input,
and each exchange as a whole has a limit.

Source: SPEC F8 to F10.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from ..cluster.files.durable import open_folder, read_whole
from .folder import RING, read_state
from .wire import (
    Hello,
    Message,
    MessageBuffer,
    Retire,
    RingEnd,
    RingReport,
    ScriptHint,
    SeatRequest,
    detect_silence,
    encode,
    from_json,
    greet_blocking,
)

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 0.5
RING_RETRY_S = 0.2  # until a client connects again
WATCH_S = 0.05  # between two checks of the watched file
MAX_HINTS, MAX_HINT = 8, 500  # that wait to be read, and characters of each
LOOPBACK = frozenset({"127.0.0.1"})
MAX_SETTINGS_BYTES = 1 << 16
# What files or answers that a job has made up may cause.
MADE_UP_ERRORS = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


def request_ring_report(folder: Path, hosts: Collection[str] = LOOPBACK) -> RingReport | None:
    """Return the report of a ring; None if there is no ring in the folder, or its coordinator does not answer.

    `hosts` are the addresses at which it may be: the file that names its address is the job's to write.
    """
    reply = _send_and_receive(folder, hosts, "status", [])
    return reply if isinstance(reply, RingReport) else None


def read_written_ring_report(folder: Path) -> RingReport | None:
    """Return the report that the coordinator wrote last; None if there is none."""
    try:
        report: RingReport = from_json(read_state(folder)[1]["report"], RingReport)
    except MADE_UP_ERRORS:
        return None
    return report


def retire_members(folder: Path, members: Mapping[int, str], hosts: Collection[str] = LOOPBACK) -> bool:
    """Let members leave a ring, each with the reason; return whether the ring continues without them, or is done.

    A second call for the same members changes nothing.

    Raises:
        TimeoutError: If its coordinator does not answer: one that was killed is restarted, one ends with its ring.
    """
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < until_s:
        report = request_ring_report(folder, hosts)
        if report is not None and report.phase in ("done", "lost"):
            return report.phase == "done"
        if report is not None:
            left = {member: reason for member, reason in members.items() if str(member) not in report.gone}
            if not left:
                return any(member not in members for member in (*report.order, *report.spares) if member >= 0)
            retirements: list[Message] = [Retire(member, reason) for member, reason in left.items()]
            _send_and_receive(folder, hosts, "scheduler", retirements, awaits_reply=False)
        time.sleep(0.02)
    raise TimeoutError(f"the coordinator of {folder} does not answer")


class RingClient:
    """A connection by which a scheduler receives a ring's seat requests and offers members.

    It connects again whenever the coordinator was restarted. A thread of its own listens.

    Args:
        folder: Of the ring; it may not exist yet.
        wake: Called from that thread when there is news.
        watched: Returns files whose change is news too, while a seat is empty; by default none.
        hosts: Returns the addresses at which the coordinator may be.
    """

    def __init__(
        self, folder: Path, wake: Callable[[], object], watched: Callable[[], Iterable[Path]] = tuple,
        hosts: Callable[[], Collection[str]] = lambda: LOOPBACK,
    ) -> None:  # fmt: skip
        self._folder, self._wake, self._watched, self._hosts = folder, wake, watched, hosts
        self.seat_request: SeatRequest | None = None  # the last one; None before the first, and once the ring is over
        self._connection: socket.socket | None = None
        self._closed = threading.Event()
        self._hints: list[str] = []
        self._hints_lock = threading.Lock()  # the thread adds one while the caller takes all
        self._seen_ns: list[int] = []
        self._thread = threading.Thread(
            target=self._keep_listening, name=f"client of {folder.parent.name}", daemon=True
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether the coordinator answers at present."""
        return self._connection is not None

    def hints(self) -> list[str]:
        """Return the coordinator's hints on the script, each once."""
        with self._hints_lock:
            found, self._hints = self._hints, []
        return found

    def send(self, message: Message) -> bool:
        """Send a message to the coordinator; return whether it was sent."""
        connection = self._connection
        try:
            if connection is None:
                return False
            connection.sendall(encode(message))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(ANSWER_TIMEOUT_S)

    def _keep_listening(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except MADE_UP_ERRORS as error:
                log.debug("connection to %s: %s", self._folder, error)
            except Exception:  # this thread is the ring's only way to further GPUs
                log.exception("connection to %s", self._folder)
            self._connection, self.seat_request = None, None
            self._closed.wait(RING_RETRY_S)

    def _listen(self) -> None:
        """Receive messages until the connection ends."""
        connection, buffer, received = _connect_and_greet(
            self._folder, self._hosts(), "scheduler", time.monotonic() + ANSWER_TIMEOUT_S
        )
        with connection:
            self._connection = connection
            for message in received:
                self._receive(message)
            while not self._closed.is_set():
                is_short = self.seat_request is not None and bool(self.seat_request.empty)
                connection.settimeout(WATCH_S if is_short else ANSWER_TIMEOUT_S)
                try:
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    self._check_watched()
                    continue
                if not data:
                    return
                for message in buffer.feed(data):
                    self._receive(message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, SeatRequest):
            self.seat_request = message
            self._wake()
        elif isinstance(message, ScriptHint):
            with self._hints_lock:
                is_kept = len(self._hints) < MAX_HINTS
                if is_kept:
                    self._hints.append(message.text[:MAX_HINT])
            if is_kept:
                self._wake()
        elif isinstance(message, RingEnd):
            self.seat_request = None

    def _check_watched(self) -> None:
        """Wake the scheduler if a watched file has changed while a seat is empty."""
        if self.seat_request is None or not self.seat_request.empty:
            return
        changed_ns = list[int]()
        for file in self._watched():
            with contextlib.suppress(FileNotFoundError):
                changed_ns.append(file.stat().st_mtime_ns)
        if changed_ns != self._seen_ns:
            self._seen_ns = changed_ns
            self._wake()


def _connect_and_greet(
    folder: Path, hosts: Collection[str], role: str, until_s: float
) -> tuple[socket.socket, MessageBuffer, list[Message]]:
    """Return a greeted connection to a ring's coordinator, and what it sent after its welcome.

    Raises:
        OSError: If the coordinator does not answer, there is no such ring, or something else than files.
        ValueError: If its files are damaged, as a KeyError, a TypeError, an OverflowError or a RecursionError, if they
            name another host, or if the process that answers does not know the ring's secret.
    """
    opened = open_folder(str(folder))
    try:
        secret = str(json.loads(read_whole(opened, RING, MAX_SETTINGS_BYTES))["secret"])
    finally:
        os.close(opened)
    _, state = read_state(folder)
    if state["host"] not in hosts:
        raise ValueError(f"its coordinator cannot be at {state['host']!r}")
    connection = socket.create_connection((state["host"], int(state["port"])), ANSWER_TIMEOUT_S)
    try:
        detect_silence(connection)
        return connection, *greet_blocking(connection, secret, Hello(role), until_s, state["epoch"])
    except (OSError, ValueError):
        connection.close()
        raise


def _send_and_receive(
    folder: Path, hosts: Collection[str], role: str, messages: list[Message], *, awaits_reply: bool = True
) -> Message | None:
    """Send messages to a coordinator, and return its first reply within the limit, if one is awaited."""
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    try:
        connection, buffer, received = _connect_and_greet(folder, hosts, role, until_s)
        with connection:
            connection.sendall(b"".join(map(encode, messages)))
            if received:
                return received[0]
            while awaits_reply and (left_s := until_s - time.monotonic()) > 0.0:
                connection.settimeout(left_s)  # of the whole: single bytes now and then do not prolong it
                data = connection.recv(1 << 16)
                if not data:
                    break
                for message in buffer.feed(data):
                    return message
    except MADE_UP_ERRORS:
        pass
    return None
