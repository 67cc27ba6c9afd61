"""The GPUs of this machine through NVML, NVIDIA's management library. A machine without them has none to tell of.

Source: SPEC F1.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import TypeVar

from ...cluster.files.errors import BackendError
from .reports import GpuReport

log = logging.getLogger(__name__)

Value = TypeVar("Value")


@cache
def _nvml() -> ModuleType | None:
    """Return the library once it works; None on a machine without it, or without a driver."""
    try:
        import pynvml
    except ImportError:
        log.warning("no GPU is reported: nvidia-ml-py is not installed (pip install 'longshore[nvidia]')")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.warning("no GPU is reported: %s", error)
        return None
    library: ModuleType = pynvml
    return library


def gpu_reports() -> tuple[GpuReport, ...]:
    """Return all GPUs of this machine in the order of their PCI addresses; one that is lost is faulty.

    Raises:
        BackendError: If the driver that was there does not answer any more.
    """
    nvml = _nvml()
    if nvml is None:
        return ()
    try:
        gpus = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise BackendError(f"the driver of the GPUs does not answer: {error}; restart the agent") from error
    return tuple(_report(nvml, index) for index in range(gpus))


def _report(nvml: ModuleType, index: int) -> GpuReport:
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        free_bytes = _or_untold(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(gpu).free))
        busy_percent = _or_untold(nvml, lambda: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu))
    except nvml.NVMLError as error:
        log.warning("GPU %d does not answer: %s", index, error)
        return GpuReport(index=index, healthy=False, utilisation=0.0, free_bytes=0)
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    ecc_errors = _told(nvml, lambda: int(nvml.nvmlDeviceGetTotalEccErrors(gpu, *kinds)))
    return GpuReport(
        index=index,
        healthy=not ecc_errors,
        utilisation=min((busy_percent or 0) / 100.0, 1.0),
        free_bytes=free_bytes or 0,
        temperature_c=_told(nvml, lambda: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        ecc_errors=ecc_errors,
        link_errors=_link_errors(nvml, gpu),
    )


def _or_untold(nvml: ModuleType, read: Callable[[], Value]) -> Value | None:
    """Return a value that a GPU which is well tells, None where it may not.

    One that is split up (MIG) never tells how busy it is, and tells its memory to those alone who have the right to.

    Raises:
        NVMLError: If the GPU does not answer.
    """
    try:
        return read()
    except nvml.NVMLError as error:
        if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION):
            raise
        return None


def _link_errors(nvml: ModuleType, gpu: object) -> int | None:
    """Return how often the links of a GPU repeated what they sent, or had to be set up again."""
    found = [
        _told(nvml, partial(nvml.nvmlDeviceGetNvLinkErrorCounter, gpu, link, counter))
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        for counter in (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
    ]
    told = [int(errors) for errors in found if errors is not None]
    return sum(told) if told else None


def _told(nvml: ModuleType, read: Callable[[], Value]) -> Value | None:
    """Return a value, None of a GPU that does not have it."""
    try:
        return read()
    except nvml.NVMLError:
        return None
