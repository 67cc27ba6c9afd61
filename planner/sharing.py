"""Sub-tasks of one job that share a device: an arbiter grants it to one at a time, in the order of their passes.

The arbiter is a process per device: `python -m longshore.planner.sharing`. Each sub-task has a connection to it. It
sends `job NAME`, then for each pass `want ITERATION KIND MICRO_BATCH RANK` and, after the reply `go`, `done`. A killed
sub-task loses its connection, and with it the device. The arbiter ends with its last sub-task.

Source: SPEC P6.
"""

import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import NamedTuple

from ..cluster.files.errors import BackendError


class PassKind(IntEnum):
    """What a sub-task needs a device for; the lower comes first."""

    backward = 0  # frees activations, and other stages wait for its gradients
    forward = 1
    update = 2
    phase = 3  # all passes of an iteration, of a sub-task without a pipeline, up to its synchronisation


class ReadyPass(NamedTuple):
    """A pass that is ready to run; smaller ones come first.

    An earlier iteration comes before all of a later one. So no sub-task starves: the others have a limited number of
    passes up to the iteration in which it waits.
    """

    iteration: int
    kind: PassKind
    micro_batch: int = 0
    rank: int = 0


class SharedDevice:
    """A device, its holder, and the waiting sub-tasks. The caller chooses the keys of sub-tasks."""

    def __init__(self) -> None:
        self.holder: object = None
        self._waiting = dict[object, ReadyPass]()

    def request(self, sub_task: object, ready: ReadyPass) -> None:
        """Add the pass that a sub-task waits with; it waits with one at a time."""
        self._waiting[sub_task] = ready

    def release(self, sub_task: object) -> None:
        """Take the device from a sub-task if it holds it, also from one that has ended."""
        self._waiting.pop(sub_task, None)
        if self.holder is sub_task:
            self.holder = None

    def grant(self) -> object:
        """Grant the device to the first waiting sub-task; return that, None if the device is held or none waits."""
        if self.holder is not None or not self._waiting:
            return None
        self.holder = min(self._waiting, key=self._waiting.__getitem__)
        del self._waiting[self.holder]
        return self.holder


FIRST_CONNECTION_S = 60.0  # in which the first sub-task has to connect
MAX_REQUEST_LINE_BYTES = 200


def socket_name(job: str, device: int) -> str:
    """Return the name of the socket of a device: an abstract one, so no file is left behind."""
    return f"\0longshore-device-{os.getuid()}-{job}-{device}"


class Arbiter:
    """A device and the connections of the sub-tasks that share it."""

    def __init__(self, job: str, listener: socket.socket) -> None:
        self._job, self._listener = job, listener
        self._device = SharedDevice()
        self._received = dict[socket.socket, bytes]()  # of each connection, an incomplete line
        self._is_known = dict[socket.socket, bool]()  # whether it is of the job
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the last sub-task has ended."""
        had_any = False
        while self._received or not had_any:
            events = self._selector.select(None if self._received else FIRST_CONNECTION_S)
            if not events:
                return
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._receive(key.fileobj)
            had_any = had_any or any(self._is_known.values())
            self._grant()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            connection.close()
            return
        self._received[connection], self._is_known[connection] = b"", False
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(4096)
        except OSError:
            received = b""
        *lines, rest = (self._received[connection] + received).split(b"\n")
        self._received[connection] = rest
        if (
            not received
            or len(rest) > MAX_REQUEST_LINE_BYTES
            or not all(self._process_line(connection, line) for line in lines)
        ):
            self._drop(connection)

    def _process_line(self, connection: socket.socket, line: bytes) -> bool:
        """Process a line; return whether it is valid."""
        word, *rest = line.decode(errors="replace").split() or [""]
        if not self._is_known[connection]:
            self._is_known[connection] = (word, rest) == ("job", [self._job])
            return self._is_known[connection]
        if word == "done":
            self._device.release(connection)
            return True
        try:
            iteration, kind, micro_batch, rank = map(int, rest)
            self._device.request(connection, ReadyPass(iteration, PassKind(kind), micro_batch, rank))
        except ValueError:
            return False
        return word == "want"

    def _drop(self, connection: socket.socket) -> None:
        self._device.release(connection)
        self._selector.unregister(connection)
        del self._received[connection], self._is_known[connection]
        connection.close()

    def _grant(self) -> None:
        while (granted := self._device.grant()) is not None:
            assert isinstance(granted, socket.socket)
            try:
                granted.sendall(b"go\n")
            except OSError:
                self._drop(granted)


def main(arguments: Sequence[str]) -> None:
    """Serve one device of a job."""
    job, device = arguments
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_name(job, int(device)))
        listener.listen()
        Arbiter(job, listener).run()


ARBITER_START_S, ARBITER_POLL_S = 60.0, 0.02


class DeviceTurn:
    """A sub-task's connection to the arbiter of a device.

    Args:
        job: Of the sub-task.
        device: On this node, from 0.
        rank: Of the sub-task.
        starts: Whether this sub-task starts the arbiter; one of the sub-tasks of a device does.

    Raises:
        BackendError: If there is no arbiter within a minute.
    """

    def __init__(self, job: str, device: int, rank: int, *, starts: bool) -> None:
        self._device, self._rank = device, rank
        self._arbiter: subprocess.Popen[bytes] | None = None
        if starts:
            module = "longshore.planner.sharing"
            self._arbiter = subprocess.Popen([sys.executable, "-m", module, job, str(device)])
        self._line = _connect(socket_name(job, device), device)
        self._line.sendall(f"job {job}\n".encode())

    @contextmanager
    def hold(self, iteration: int, kind: PassKind, micro_batch: int = 0) -> Iterator[None]:
        """Wait for the device, and hold it until the block ends.

        Raises:
            BackendError: If the arbiter has ended.
        """
        try:
            self._line.sendall(f"want {iteration} {int(kind)} {micro_batch} {self._rank}\n".encode())
            answer = self._line.recv(16)
        except OSError:
            answer = b""
        if not answer:
            raise BackendError(f"device {self._device}: its arbiter has ended, or is another job's")
        try:
            yield
        finally:
            with suppress(OSError):  # the next pass reports it
                self._line.sendall(b"done\n")

    def close(self) -> None:
        """Leave the device; the arbiter ends with its last sub-task."""
        self._line.close()
        if self._arbiter is not None:
            self._arbiter.wait()


def _connect(name: str, device: int) -> socket.socket:
    until_s = time.monotonic() + ARBITER_START_S
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(name)
        except OSError as error:
            line.close()
            if time.monotonic() > until_s:
                raise BackendError(f"device {device}: its arbiter does not respond: {error.strerror}") from error
            time.sleep(ARBITER_POLL_S)
        else:
            return line


if __name__ == "__main__":
    main(sys.argv[1:])
