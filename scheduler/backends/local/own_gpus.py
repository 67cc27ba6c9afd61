"""The GPUs of this machine, as its driver reports them: class `OwnGpus`."""

import logging
import os
import threading
import time
from collections.abc import Sequence

from ....cluster.files.errors import BackendError
from ....preflight.readers import GpuLostError, GpuReader, GpuReading, open_nvml
from ..protocol import GpuView

log = logging.getLogger(__name__)

READ_EVERY_S = 2.0
_FIRST_WITHIN_S = 10.0
_SILENT_S = 30.0  # of the driver, after which no GPU counts as healthy


class OwnGpus:
    """Reads GPUs again and again, in a thread of its own: a driver may take for ever to answer.

    Args:
        reader: Of this machine's GPUs.
        every_s: Between two readings.
    """

    def __init__(self, reader: GpuReader, every_s: float = READ_EVERY_S) -> None:
        self._reader, self._every_s = reader, every_s
        self._states: Sequence[GpuReading] = ()
        self._doubted: frozenset[int] = frozenset()  # GPUs that only the last reading called faulty
        self._read_s = time.monotonic()
        self._has_read, self._is_closed = threading.Event(), threading.Event()
        threading.Thread(target=self._read_on, name="GPUs of this machine", daemon=True).start()
        self._has_read.wait(_FIRST_WITHIN_S)

    def views(self, gpus: int) -> tuple[GpuView, ...]:
        """Return the first GPUs; one that two readings in a row do not have, or have as faulty, is not healthy.

        Raises:
            BackendError: If the driver has not answered yet.
        """
        if not self._has_read.is_set():
            raise BackendError("the driver of the GPUs has not answered yet")
        is_silent = time.monotonic() - self._read_s > _SILENT_S
        known = {} if is_silent else {state.index: state for state in self._states}
        found = [known.get(gpu, GpuReading(gpu, healthy=False)) for gpu in range(gpus)]
        return tuple(_view_of(state, is_doubted=not is_silent and state.index in self._doubted) for state in found)

    def close(self) -> None:
        """Read no more."""
        self._is_closed.set()

    def _read_on(self) -> None:
        while not self._is_closed.is_set():
            self.read()
            self._is_closed.wait(self._every_s)

    def read(self) -> None:
        """Read all GPUs once, as the thread does; a driver that does not answer leaves the last reading."""
        try:
            states = self._reader.states()
        except GpuLostError as error:
            log.warning("the driver of the GPUs does not answer: %s", error)
            return
        healthy = {state.index for state in states if state.healthy}
        before = {state.index for state in self._states if state.healthy}
        self._doubted, self._states = frozenset(before - healthy), states
        self._read_s = time.monotonic()
        self._has_read.set()


def _view_of(state: GpuReading, *, is_doubted: bool) -> GpuView:
    is_healthy = state.healthy or is_doubted
    return GpuView(state.index, is_healthy, state.utilisation, float(state.free_bytes), state.temperature_c or 0.0)


def open_own_gpus() -> GpuReader:
    """Return a reader of the GPUs that a scheduler of this machine may give away.

    Raises:
        BackendError: If there are none, or their driver does not answer soon.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise BackendError("CUDA_VISIBLE_DEVICES is set, so not all GPUs of this machine are the scheduler's")
    found: list[GpuReader | BackendError] = []

    def open_reader() -> None:
        try:
            reader = open_nvml()
            reader.count()
            found.append(reader)
        except (BackendError, GpuLostError) as error:
            found.append(BackendError(str(error)))

    thread = threading.Thread(target=open_reader, name="driver of the GPUs", daemon=True)
    thread.start()
    thread.join(_FIRST_WITHIN_S)
    if not found:
        raise BackendError(f"the driver of the GPUs does not answer within {_FIRST_WITHIN_S:.0f} s")
    if isinstance(found[0], BackendError):
        raise found[0]
    return found[0]


def own_gpus_of(nodes: dict[str, int]) -> OwnGpus | None:
    """Return the GPUs of this machine if it has any, and one of the nodes has its name; else None."""
    if os.uname().nodename not in nodes:
        return None
    try:
        return OwnGpus(open_own_gpus())
    except BackendError as error:
        log.warning("the GPUs of node %s are slots: %s", os.uname().nodename, error)
        return None
