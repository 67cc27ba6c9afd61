"""A sub-task's side of a device that it shares: it computes only while it has the device.

Source: SPEC P6.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...cluster.files.errors import BackendError
from .arbiter import name_of
from .device import Kind, Pass

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
            module = "longshore.planner.sharing.arbiter"
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
