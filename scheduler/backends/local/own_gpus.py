"""The GPUs of this machine, as its driver reports them: class `OwnGpus`."""

import logging
import os
import threading
import time
from collections.abc import Sequence

from ....cluster.files.errors import BackendError
from ....preflight.readers import GpuLostError, GpuReader, GpuState, open_nvml
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
        self._states: Sequence[GpuState] = ()
        self._read_s = time.monotonic()
        self._has_read, self._is_closed = threading.Event(), threading.Event()
        threading.Thread(target=self._read_on, name="GPUs of this machine", daemon=True).start()
        self._has_read.wait(_FIRST_WITHIN_S)

    def views(self, gpus: int) -> tuple[GpuView, ...]:
        """Return the first GPUs; one that the driver does not report, or reports as lost, is not healthy."""
        is_silent = time.monotonic() - self._read_s > _SILENT_S
        known = {} if is_silent else {state.index: state for state in self._states}
        return tuple(_view_of(known.get(gpu, GpuState(gpu, healthy=False))) for gpu in range(gpus))

    def close(self) -> None:
        """Read no more."""
        self._is_closed.set()

    def _read_on(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._states = self._reader.states()
            except GpuLostError as error:
                log.warning("the driver of the GPUs does not answer: %s", error)
                self._states = ()
            self._read_s = time.monotonic()
            self._has_read.set()
            self._is_closed.wait(self._every_s)


def _view_of(state: GpuState) -> GpuView:
    return GpuView(
        state.index, state.healthy, state.utilisation, float(state.free_bytes), state.temperature_c or 0.0
    )  # fmt: skip


def own_gpus_of(nodes: dict[str, int]) -> OwnGpus | None:
    """Return the GPUs of this machine if one of the nodes has its name and no more GPUs than it has; else None."""
    wanted = nodes.get(os.uname().nodename)
    if wanted is None:
        return None
    try:
        reader = open_nvml()
        found = reader.count()
    except (BackendError, GpuLostError) as error:
        log.info("the GPUs of this machine are slots: %s", error)
        return None
    return OwnGpus(reader) if found >= wanted else None
