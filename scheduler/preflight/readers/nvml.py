"""The GPUs of this machine through NVML, NVIDIA's management library (package nvidia-ml-py)."""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TypeVar

from ....cluster.files.errors import BackendError
from .gpu_reader import Clocks, Driver, Gpu, GpuLostError, Holder, NvLink, Pcie, Rows

Value = TypeVar("Value")

_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNKNOWN")
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean that something is wrong; idle and power cap do not.
_HARDWARE_REASONS = {
    0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "power brake",
}  # fmt: skip


def open_nvml() -> "NvmlReader":
    """Return a reader of the GPUs of this machine.

    Raises:
        BackendError: If the package is not installed, or there is no driver.
    """
    try:
        import pynvml
    except ImportError as error:
        problem = "nvidia-ml-py is not installed; run pip install 'longshore[nvidia]'"
        raise BackendError(problem) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise BackendError(f"the driver of the GPUs does not answer: {error}") from error
    return NvmlReader(pynvml)


class NvmlReader:
    """Reads GPUs through NVML.

    Args:
        nvml: The module `pynvml`, after `nvmlInit`.
    """

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._lost = tuple(getattr(nvml, name) for name in _LOST)

    def driver(self) -> Driver:
        """Return the versions.

        Raises:
            GpuLostError: If the driver does not answer.
        """
        nvml = self._nvml
        firmware = {self._told(partial(nvml.nvmlDeviceGetVbiosVersion, self._handle(gpu.index))) for gpu in self.gpus()}
        versions = [self._must(call) for call in (nvml.nvmlSystemGetDriverVersion, nvml.nvmlSystemGetNVMLVersion)]
        return Driver(_text(versions[0]), _text(versions[1]), " ".join(sorted(_text(it) for it in firmware if it)))

    def count(self) -> int:
        """Return how many GPUs there are, with those that do not answer.

        Raises:
            GpuLostError: If the driver does not.
        """
        return int(self._must(self._nvml.nvmlDeviceGetCount))

    def gpus(self) -> Sequence[Gpu]:
        """Return all GPUs that answer.

        Raises:
            GpuLostError: If the driver does not.
        """
        found = (self._gpu(index) for index in range(self.count()))
        return [gpu for gpu in found if gpu is not None]

    def _gpu(self, index: int) -> Gpu | None:
        nvml = self._nvml
        try:
            gpu = self._handle(index)
            memory = self._must(partial(nvml.nvmlDeviceGetMemoryInfo, gpu))
            uuid, name = (
                _text(self._must(partial(call, gpu))) for call in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName)
            )
            pci = _text(self._must(partial(nvml.nvmlDeviceGetPciInfo, gpu)).busId)
        except GpuLostError:
            return None
        return Gpu(index, uuid, name, pci, int(memory.total), int(memory.free))

    def uncorrected_errors(self, gpu: int) -> int | None:
        """Return the uncorrected memory errors since the driver was loaded."""
        nvml, handle = self._nvml, self._handle(gpu)
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        return self._told(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds)))

    def rows(self, gpu: int) -> Rows | None:
        """Return the replaced rows of memory."""
        found = self._told(partial(self._nvml.nvmlDeviceGetRemappedRows, self._handle(gpu)))
        if found is None:
            return None
        corrected, uncorrected, pending, failure = found
        return Rows(int(corrected), int(uncorrected), pending=bool(pending), failed=bool(failure))

    def pcie(self, gpu: int) -> Pcie | None:
        """Return the link to the host."""
        nvml, handle = self._nvml, self._handle(gpu)
        calls = (
            nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth,
            nvml.nvmlDeviceGetMaxPcieLinkWidth,
        )  # fmt: skip
        values = [self._told(partial(call, handle)) for call in calls]
        known = [int(value) for value in values if value is not None]
        return Pcie(*known) if len(known) == len(calls) else None

    def nvlinks(self, gpu: int) -> Sequence[NvLink] | None:
        """Return the links to other GPUs; None of a GPU that has none."""
        handle = self._handle(gpu)
        found = [self._nvlink(handle, link) for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)]
        known = [link for link in found if link is not None]
        return known or None

    def _nvlink(self, handle: object, link: int) -> NvLink | None:
        nvml = self._nvml
        state = self._told(partial(nvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is None:
            return None
        remote = self._told(partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        kinds = (nvml.NVML_NVLINK_ERROR_DL_RECOVERY, nvml.NVML_NVLINK_ERROR_DL_REPLAY,
                 nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)  # fmt: skip
        errors = [self._told(partial(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind)) for kind in kinds]
        counted = [None if it is None else int(it) for it in errors]
        return NvLink(link, bool(state), "" if remote is None else _text(remote.busId), *counted)

    def clocks(self, gpu: int) -> Clocks | None:
        """Return why it is slow."""
        nvml, handle = self._nvml, self._handle(gpu)
        mask = self._told(partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle))
        if mask is None:
            return None
        calls = (nvml.nvmlDeviceGetPowerManagementLimit, nvml.nvmlDeviceGetPowerManagementDefaultLimit)
        limits = [self._told(partial(call, handle)) for call in calls]
        watts = [None if it is None else int(it) / 1000.0 for it in limits]
        return Clocks(tuple(words for bit, words in _HARDWARE_REASONS.items() if int(mask) & bit), *watts)

    def holders(self, gpu: int) -> Sequence[Holder] | None:
        """Return the processes that hold its memory."""
        nvml, handle = self._nvml, self._handle(gpu)
        # The call without a version is that of the newest driver; an older one has the second.
        for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses_v2):
            found = self._told(partial(call, handle))
            if found is not None:
                return [Holder(int(it.pid), int(it.usedGpuMemory or 0)) for it in found]
        return None

    def lock_clock(self, gpu: int, mhz: int) -> bool | None:
        """Let its cores run at a clock, until it is reset; None without the right to do so."""
        handle = self._handle(gpu)
        return self._did(partial(self._nvml.nvmlDeviceSetGpuLockedClocks, handle, mhz, mhz))

    def limit_power(self, gpu: int, watts: float) -> bool | None:
        """Let it take no more power, until that is reset; None without the right to do so."""
        handle = self._handle(gpu)
        return self._did(partial(self._nvml.nvmlDeviceSetPowerManagementLimit, handle, round(watts * 1000.0)))

    def reset_clocks(self, gpu: int) -> bool | None:
        """Let its clocks and its power limit be as they are by default; None without the right to do so."""
        nvml, handle = self._nvml, self._handle(gpu)

        def reset() -> None:
            nvml.nvmlDeviceResetGpuLockedClocks(handle)
            default = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
            nvml.nvmlDeviceSetPowerManagementLimit(handle, default)

        return self._did(reset)

    def _did(self, change: Callable[[], object]) -> bool | None:
        """Change something, and say whether that was done; None without the right to do so."""
        nvml = self._nvml
        try:
            change()
        except nvml.NVMLError as error:
            unable = (
                nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            )  # fmt: skip
            return None if error.value in unable else False
        return True

    def _handle(self, gpu: int) -> object:
        return self._must(partial(self._nvml.nvmlDeviceGetHandleByIndex, gpu))

    def _must(self, read: Callable[[], Value]) -> Value:
        try:
            return read()
        except self._nvml.NVMLError as error:
            raise GpuLostError(str(error)) from error

    def _told(self, read: Callable[[], Value]) -> Value | None:
        """Return a value, None where it is not supported.

        Raises:
            GpuLostError: If the GPU does not answer.
        """
        try:
            return read()
        except self._nvml.NVMLError as error:
            if error.value in self._lost:
                raise GpuLostError(str(error)) from error
            return None
        except self._nvml.NVMLLibraryMismatchError:  # the driver is older than the package
            return None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
