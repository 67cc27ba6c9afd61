"""Words with the coordinator of a ring, from a process that is none of the ring.

The ring's folder may be written by its job, and whoever answers may be the job too. So files are read as what a job put
there, and each exchange as a whole has a limit.

Source: SPEC F8 to F10.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..cluster.files.durable import open_folder, read_whole
from ..cluster.files.typed_json import from_json
from .standing import RING, STATE
from .wire import End, Hello, Hint, Lines, Message, Report, Retire, Want, encode, greet_blocking

log = logging.getLogger(__name__)

WITHIN_S = 0.5
RETRY_S = 0.2  # until a desk connects again
LOOK_S = 0.05  # between two looks of a desk at the file that it watches
MOST_HINTS, MOST_HINT = 8, 500  # that wait to be told, and characters of each
HOST = "127.0.0.1"  # of coordinators: rings that a scheduler starts are on its machine
MOST_SETTINGS, MOST_STATE = 1 << 16, 1 << 24  # bytes of files
# What comes of files or of an answer that a job has made up.
BROKEN = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


def ask_report(folder: Path) -> Report | None:
    """Return how the ring of a folder stands; None if there is none, or its coordinator does not answer."""
    said = _exchange(folder, "status", [])
    return said if isinstance(said, Report) else None


def last_report(folder: Path) -> Report | None:
    """Return how the ring of a folder stood when its coordinator wrote that down last; None if there is none."""
    try:
        report: Report = from_json(_read(folder, STATE, MOST_STATE)["report"], Report)
    except BROKEN:
        return None
    return report


def retire(folder: Path, members: Mapping[int, str]) -> bool:
    """Let members leave a ring, each with the reason; return whether the ring goes on without them, or is done.

    Asked again, it does nothing more.

    Raises:
        TimeoutError: If its coordinator does not answer: one that was killed is started again, one ends with its ring.
    """
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        report = ask_report(folder)
        if report is not None and report.phase in ("done", "lost"):
            return report.phase == "done"
        if report is not None:
            left = {member: reason for member, reason in members.items() if str(member) not in report.gone}
            if not left:
                return any(member not in members for member in (*report.order, *report.spares) if member >= 0)
            _exchange(folder, "desk", [Retire(member, reason) for member, reason in left.items()], hears=False)
        time.sleep(0.02)
    raise TimeoutError(f"the coordinator of {folder} does not answer")


class RingDesk:
    """A connection to the coordinator of a ring, as its desk: it hears which seats are empty, and says who comes.

    It connects again whenever the coordinator was started again. A thread of its own listens.

    Args:
        folder: Of the ring; it may not be there yet.
        wake: Called when something is new, from that thread.
        watched: A file whose change is something new too, while a seat is empty.
    """

    def __init__(self, folder: Path, wake: Callable[[], object], watched: Path) -> None:
        self._folder, self._wake, self._watched = folder, wake, watched
        self._want: Want | None = None
        self._connection: socket.socket | None = None
        self._closed = threading.Event()
        self._hints: list[str] = []
        self._seen_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"desk of {folder.parent.name}", daemon=True)
        self._thread.start()

    @property
    def want(self) -> Want | None:
        """What the coordinator said last of its empty seats; None while nobody knows, or once the ring is over."""
        return self._want

    def hints(self) -> list[str]:
        """Return what the coordinator found that may be wrong with the script, each once."""
        found, self._hints = self._hints, []
        return found

    def say(self, message: Message) -> bool:
        """Say something to the coordinator; return whether it was sent."""
        connection = self._connection
        try:
            if connection is None:
                return False
            connection.sendall(encode(message))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let the coordinator do without a desk."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(WITHIN_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except BROKEN as error:
                log.debug("desk of %s: %s", self._folder, error)
            self._connection, self._want = None, None
            self._closed.wait(RETRY_S)

    def _listen(self) -> None:
        """Hear what the coordinator says until the connection ends."""
        connection, lines, heard = _connected(self._folder, "desk", time.monotonic() + WITHIN_S)
        with connection:
            self._connection = connection
            for message in heard:
                self._hear(message)
            while not self._closed.is_set():
                connection.settimeout(LOOK_S if self._want is not None and self._want.empty else WITHIN_S)
                try:
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    self._watch()
                    continue
                if not data:
                    return
                for message in lines.feed(data):
                    self._hear(message)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Want):
            self._want = message
            self._wake()
        elif isinstance(message, Hint) and len(self._hints) < MOST_HINTS:
            self._hints.append(message.words[:MOST_HINT])
            self._wake()
        elif isinstance(message, End):
            self._want = None

    def _watch(self) -> None:
        """Tell of a change of the watched file while a seat is empty."""
        if self._want is None or not self._want.empty:
            return
        with contextlib.suppress(FileNotFoundError):
            changed_ns = self._watched.stat().st_mtime_ns
            if changed_ns != self._seen_ns:
                self._seen_ns = changed_ns
                self._wake()


def _secret_and_port(folder: Path) -> tuple[str, int]:
    """Return by what a coordinator knows us, and where it listens.

    Raises:
        OSError: If there is no such ring, or something else than files.
        ValueError: If its files are damaged, as a KeyError, a TypeError or a RecursionError.
    """
    return str(_read(folder, RING, MOST_SETTINGS)["secret"]), int(_read(folder, STATE, MOST_STATE)["port"])


def _read(folder: Path, name: str, most_bytes: int) -> Any:
    opened = open_folder(str(folder))
    try:
        return json.loads(read_whole(opened, name, most_bytes))
    finally:
        os.close(opened)


def _connected(folder: Path, role: str, until_s: float) -> tuple[socket.socket, Lines, list[Message]]:
    """Return a connection to a ring's coordinator that was greeted, and what it said behind its welcome.

    Raises:
        OSError: If nobody answers, or there is no such ring.
        ValueError: If its files are damaged, as a KeyError, a TypeError, an OverflowError or a RecursionError, or if
            whoever answers does not know the ring's secret.
    """
    secret, port = _secret_and_port(folder)
    connection = socket.create_connection((HOST, port), WITHIN_S)
    try:
        return connection, *greet_blocking(connection, secret, Hello(role), until_s)
    except (OSError, ValueError):
        connection.close()
        raise


def _exchange(folder: Path, role: str, messages: list[Message], *, hears: bool = True) -> Message | None:
    """Say something to a coordinator, and return the first that it says within the limit, if that is to be heard."""
    until_s = time.monotonic() + WITHIN_S
    try:
        connection, lines, heard = _connected(folder, role, until_s)
        with connection:
            connection.sendall(b"".join(map(encode, messages)))
            if heard:
                return heard[0]
            while hears and (left_s := until_s - time.monotonic()) > 0.0:
                connection.settimeout(left_s)  # of the whole: one that sends a byte now and then is not waited for
                data = connection.recv(1 << 16)
                if not data:
                    break
                for message in lines.feed(data):
                    return message
    except BROKEN:
        pass
    return None
