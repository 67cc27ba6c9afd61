"""The process that gives a device of this node to sub-tasks of one job: `python -m longshore.planner.sharing.arbiter`.

Each sub-task has a connection. It says `job NAME`, then for each piece of work `want ITERATION KIND MICRO_BATCH RANK`
and, after the answer `go`, `done`. One that is killed loses its connection, and with it the device. The process ends
with its last sub-task.

Source: SPEC P6.
"""

import os
import selectors
import socket
import struct
import sys
from collections.abc import Sequence

from .device import Device, Kind, Pass

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


if __name__ == "__main__":
    main(sys.argv[1:])
