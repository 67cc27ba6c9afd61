"""Sub-tasks of one job that share a device take turns on it, in the order of their passes.

The process that gives a device of this node to sub-tasks of one job: `python -m longshore.planner.sharing`.

Each sub-task has a connection. It says `job NAME`, then for each piece of work `want ITERATION KIND MICRO_BATCH RANK`
and, after the answer `go`, `done`. One that is killed loses its connection, and with it the device. The process ends
with its last sub-task.

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


class Kind(IntEnum):
    """What a sub-task wants a device for; the lower comes first."""

    backward = 0  # frees what the forward pass has kept, and others wait for its gradients
    forward = 1
    update = 2
    phase = 3  # all passes of an iteration, of a sub-task without a pipeline, up to its synchronisation


class Pass(NamedTuple):
    """A piece of work that is ready to run; smaller ones come first.

    An earlier iteration comes before all of a later one. So nobody is overtaken for ever: others have only so many
    passes up to the iteration in which one waits.
    """

    iteration: int
    kind: Kind
    micro_batch: int = 0
    rank: int = 0


class Device:
    """A device, with who has it and who waits for it. Sub-tasks go by names of the caller's choice."""

    def __init__(self) -> None:
        self.holder: object = None
        self._waiting = dict[object, Pass]()

    def want(self, who: object, it: Pass) -> None:
        """Take in what is ready; a sub-task waits with one pass at a time."""
        self._waiting[who] = it

    def done(self, who: object) -> None:
        """Take the device from a sub-task if it has it, also from one that has ended."""
        self._waiting.pop(who, None)
        if self.holder is who:
            self.holder = None

    def grant(self) -> object:
        """Give the device to the first that waits; return who that is, None if it is taken or nobody waits."""
        if self.holder is not None or not self._waiting:
            return None
        self.holder = min(self._waiting, key=self._waiting.__getitem__)
        del self._waiting[self.holder]
        return self.holder


FIRST_S = 60.0  # in which the first sub-task has to come
LONGEST_LINE = 200


def name_of(job: str, device: int) -> str:
    """Return the name of the socket of a device: one without a file, so nothing is left behind."""
    return f"\0longshore-device-{os.getuid()}-{job}-{device}"


class Arbiter:
    """A device and the connections of those who share it.

    Args:
        job: Whose sub-tasks may have it.
        listener: Where they come.
    """

    def __init__(self, job: str, listener: socket.socket) -> None:
        self._job, self._listener = job, listener
        self._device = Device()
        self._heard = dict[socket.socket, bytes]()  # of each connection, a line that is not whole
        self._is_known = dict[socket.socket, bool]()  # whether it is of the job
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the last sub-task has ended."""
        had_any = False
        while self._heard or not had_any:
            events = self._selector.select(None if self._heard else FIRST_S)
            if not events:
                return
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._hear(key.fileobj)
            had_any = had_any or any(self._is_known.values())
            self._grant()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            connection.close()
            return
        self._heard[connection], self._is_known[connection] = b"", False
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            came = connection.recv(4096)
        except OSError:
            came = b""
        *lines, rest = (self._heard[connection] + came).split(b"\n")
        self._heard[connection] = rest
        if not came or len(rest) > LONGEST_LINE or not all(self._take(connection, it) for it in lines):
            self._drop(connection)

    def _take(self, connection: socket.socket, line: bytes) -> bool:
        """Do what a line says; return whether it is one of ours."""
        word, *rest = line.decode(errors="replace").split() or [""]
        if not self._is_known[connection]:
            self._is_known[connection] = (word, rest) == ("job", [self._job])
            return self._is_known[connection]
        if word == "done":
            self._device.done(connection)
            return True
        try:
            iteration, kind, micro_batch, rank = map(int, rest)
            self._device.want(connection, Pass(iteration, Kind(kind), micro_batch, rank))
        except ValueError:
            return False
        return word == "want"

    def _drop(self, connection: socket.socket) -> None:
        self._device.done(connection)
        self._selector.unregister(connection)
        del self._heard[connection], self._is_known[connection]
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
        listener.bind(name_of(job, int(device)))
        listener.listen()
        Arbiter(job, listener).run()


START_S, LOOK_S = 60.0, 0.02


class Turn:
    """A connection to the arbiter of a device.

    Args:
        job: Whose sub-task this is.
        device: On this node, counted from 0.
        rank: Of the sub-task.
        starts: Whether this sub-task starts the arbiter; one of those that share the device does.

    Raises:
        BackendError: If there is no arbiter within a minute.
    """

    def __init__(self, job: str, device: int, rank: int, *, starts: bool) -> None:
        self._device, self._rank = device, rank
        self._arbiter: subprocess.Popen[bytes] | None = None
        if starts:
            module = "longshore.planner.sharing"
            self._arbiter = subprocess.Popen([sys.executable, "-m", module, job, str(device)])
        self._line = _connected(name_of(job, device), device)
        self._line.sendall(f"job {job}\n".encode())

    @contextmanager
    def of(self, iteration: int, kind: Kind, micro_batch: int = 0) -> Iterator[None]:
        """Wait for the device, and have it until the block ends.

        Raises:
            BackendError: If the arbiter has ended.
        """
        it = Pass(iteration, kind, micro_batch, self._rank)
        try:
            self._line.sendall(f"want {it.iteration} {int(it.kind)} {it.micro_batch} {it.rank}\n".encode())
            answer = self._line.recv(16)
        except OSError:
            answer = b""
        if not answer:
            raise BackendError(f"device {self._device}: its arbiter has ended, or is another job's")
        try:
            yield
        finally:
            with suppress(OSError):  # the next piece of work says it
                self._line.sendall(b"done\n")

    def close(self) -> None:
        """Leave the device to others; the arbiter ends with the last of them."""
        self._line.close()
        if self._arbiter is not None:
            self._arbiter.wait()


def _connected(name: str, device: int) -> socket.socket:
    give_up_s = time.monotonic() + START_S
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(name)
        except OSError as error:
            line.close()
            if time.monotonic() > give_up_s:
                raise BackendError(f"device {device}: its arbiter does not answer: {error.strerror}") from error
            time.sleep(LOOK_S)
        else:
            return line


if __name__ == "__main__":
    main(sys.argv[1:])
