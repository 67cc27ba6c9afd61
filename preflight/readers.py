"""Readers of hardware: GPUs through NVML, the kernel's log, Xid numbers, and network ports.

None stands for what a GPU or its driver does not support.

Source: NVIDIA's catalogue of Xid errors, as of 2025-10; CUDA C++ Programming Guide, CUDA Environment Variables.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ..cluster.files.errors import BackendError

log = logging.getLogger(__name__)


class GpuLostError(Exception):
    """Raised when a GPU does not answer."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU, as its driver reports it."""

    index: int  # in the order of PCI addresses
    uuid: str
    name: str
    pci: str  # such as 0000:0f:00.0
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class DriverVersions:
    """Versions that have to be equal on all nodes of a job."""

    driver: str
    library: str  # NVML's own
    firmware: str = ""  # of the GPUs, all of them


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows that a GPU has remapped."""

    corrected: int
    uncorrected: int
    pending: bool  # one waits for a reset
    failed: bool  # there was no spare row


@dataclass(frozen=True, slots=True)
class Pcie:
    """The link of a GPU to its host."""

    generation: int
    width: int
    max_width: int  # of slot and card, the smaller


@dataclass(frozen=True, slots=True)
class NvLink:
    """One link of a GPU to another, or to a switch."""

    link: int
    active: bool
    remote_pci: str  # of the other end; "" if unknown
    recoveries: int | None = None  # how often it was set up again
    replays: int | None = None
    crc_errors: int | None = None


@dataclass(frozen=True, slots=True)
class ClockLimits:
    """Why a GPU runs slower than it could."""

    reasons: tuple[str, ...] | None  # hardware reasons, each of which is a fault; None if they are not reported
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU at one moment."""

    index: int
    healthy: bool  # it answers, and has no error that only a reset clears
    utilisation: float = 0.0  # 0 to 1
    free_bytes: int = 0  # of its memory
    temperature_c: float | None = None
    ecc_errors: int | None = None  # uncorrected ones since the driver was loaded
    link_errors: int | None = None  # how often its links to other GPUs repeated what they sent, or were set up again


KMSG = Path("/dev/kmsg")
MAX_KERNEL_LOG_BYTES = 16 << 20  # that are read; the kernel keeps much less
RECORD_BYTES = 8192
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{1,20})\): (\d{1,4})\b")


@dataclass(frozen=True, slots=True)
class XidLine:
    """A fault in the log."""

    at_s: float  # since the boot
    pci: str  # as the driver writes it: 0000:0f:00
    number: int
    line: str


def read_kernel_log(path: Path) -> list[str] | None:
    """Return the lines of the kernel's log, None without the right to read it, or where there is none.

    Args:
        path: /dev/kmsg, or a file with the same lines.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return list(_log_lines(file))
    except PermissionError:
        return None
    finally:
        os.close(file)


def _log_lines(log_fd: int) -> Iterator[str]:
    """Yield lines until there are no more; each read of /dev/kmsg returns one record."""
    rest, taken = b"", 0
    while taken < MAX_KERNEL_LOG_BYTES:
        try:
            part = os.read(log_fd, RECORD_BYTES)
        except BlockingIOError:
            break
        except BrokenPipeError:  # records were overwritten; the next read continues behind them
            continue
        if not part:
            break
        taken += len(part)
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def xid_lines(lines: Iterable[str]) -> list[XidLine]:
    """Return the faults in lines of the log.

    Args:
        lines: In the format of /dev/kmsg: `6,1234,5678901,-;text`, the third number in microseconds since the boot.
    """
    found = []
    for line in lines:
        head, _, text = line.partition(";")
        match = _XID.search(text or head)
        if match is not None:
            found.append(
                XidLine(_seconds_since_boot(head), match[1].lower(), int(match[2]), (text or head).strip()[:300])
            )
    return found


def _seconds_since_boot(record_head: str) -> float:
    fields = record_head.split(",")
    return int(fields[2]) / 1e6 if len(fields) >= 3 and fields[2].isdecimal() and len(fields[2]) < 20 else 0.0


def is_line_of_gpu(pci: str, line: XidLine) -> bool:
    """Return whether a line is about the GPU at a PCI address."""
    return pci_domain_and_slot(pci) == pci_domain_and_slot(line.pci)


def pci_domain_and_slot(pci: str) -> tuple[str, str]:
    """Return domain and slot of a PCI address, in one form: domains have 4 digits in some sources, 8 in others."""
    domain, _, rest = pci.lower().partition(":")
    return domain.lstrip("0"), rest.partition(".")[0]


class FaultSource(StrEnum):
    """Where the cause of a fault is."""

    NOTHING = "nothing"
    JOB = "job"  # unless two jobs see it on one GPU
    WARN = "warn"
    GPU = "gpu"
    LINK = "link"
    NODE = "node"  # at once


@dataclass(frozen=True, slots=True)
class Xid:
    """The meaning of an Xid number."""

    about: str
    source: FaultSource
    action: str


_RESET = "reset the GPU, then run level 2"
_TABLE = (
    ((13, 31, 32, 69), Xid("exception or page fault of a program", FaultSource.JOB, "restart the job")),
    ((43, 45), Xid("stopped after another fault", FaultSource.NOTHING, "")),
    ((46, 62, 109, 110, 119, 120, 143, 158), Xid("time-out, firmware or start-up", FaultSource.GPU, _RESET)),
    ((48,), Xid("double-bit memory error", FaultSource.GPU, _RESET)),
    ((63,), Xid("a memory row was remapped", FaultSource.WARN, "reset the GPU when it is idle")),
    ((64,), Xid("a memory row could not be remapped", FaultSource.GPU, "reset the GPU; replace it if it returns")),
    ((74, 144, 145, 149), Xid("NVLink", FaultSource.LINK, "reset the GPUs; check fabric manager and bridge")),
    ((79,), Xid("the GPU has fallen off the bus", FaultSource.NODE, "restart the machine; reseat or replace the GPU")),
    ((92,), Xid("many single-bit memory errors", FaultSource.WARN, "run level 2 when it is idle")),
    ((94,), Xid("a contained memory error", FaultSource.WARN, "restart the job")),
    ((95, 140), Xid("an uncontained memory error", FaultSource.GPU, _RESET)),
)
XIDS = {number: xid for numbers, xid in _TABLE for number in numbers}
UNKNOWN_XID = Xid("not in our table", FaultSource.WARN, "see NVIDIA's catalogue of Xid errors")


def xid_of(number: int) -> Xid:
    """Return the meaning of an Xid number."""
    return XIDS.get(number, UNKNOWN_XID)


Value = TypeVar("Value")

_LOST_ERRORS = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNKNOWN")
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that are faults; idle and power cap are not.
_HARDWARE_REASONS = {
    0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "power brake",
}  # fmt: skip


def open_nvml() -> "GpuReader":
    """Return a reader of the GPUs of this machine.

    Raises:
        BackendError: If the package is not installed, or there is no driver.
    """
    try:
        import pynvml
    except ImportError as error:
        problem = "nvidia-ml-py is not installed; run pip install '.[nvidia]' in a clone of Longshore"
        raise BackendError(problem) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise BackendError(f"the driver of the GPUs does not answer: {error}") from error
    return GpuReader(pynvml)


class GpuReader:
    """Reads the GPUs of this node through NVML. Each method raises GpuLostError if a GPU or the driver does not answer.

    Args:
        nvml: The module `pynvml`, after `nvmlInit`.
    """

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._lost = tuple(getattr(nvml, name) for name in _LOST_ERRORS)

    def driver_versions(self) -> DriverVersions:
        """Return the versions."""
        nvml = self._nvml
        firmware = {
            self._read_optional(partial(nvml.nvmlDeviceGetVbiosVersion, self._handle(gpu.index))) for gpu in self.gpus()
        }
        versions = [
            self._read_required(call) for call in (nvml.nvmlSystemGetDriverVersion, nvml.nvmlSystemGetNVMLVersion)
        ]
        return DriverVersions(
            _decoded_text(versions[0]),
            _decoded_text(versions[1]),
            " ".join(sorted(_decoded_text(version) for version in firmware if version)),
        )

    def count(self) -> int:
        """Return the number of GPUs, including those that do not answer."""
        return int(self._read_required(self._nvml.nvmlDeviceGetCount))

    def gpus(self) -> Sequence[GpuInfo]:
        """Return all GPUs that answer, in the order of their PCI addresses."""
        found = (self._read_gpu(index) for index in range(self.count()))
        return [gpu for gpu in found if gpu is not None]

    def states(self) -> tuple[GpuReading, ...]:
        """Return all GPUs at this moment, in the order of their PCI addresses; one that is lost is not healthy.

        A GPU with MIG never reports its utilisation, and its memory only to users with the right to read it.
        """
        return tuple(self._read_state(index) for index in range(self.count()))

    def _read_state(self, index: int) -> GpuReading:
        nvml = self._nvml
        try:
            gpu = self._handle(index)
            free_bytes = self._read_if_allowed(lambda: int(nvml.nvmlDeviceGetMemoryInfo(gpu).free))
            busy_percent = self._read_if_allowed(lambda: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu))
        except GpuLostError as error:
            log.warning("GPU %d does not answer: %s", index, error)
            return GpuReading(index, healthy=False)
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        ecc_errors = self._read_or_none(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(gpu, *kinds)))
        counters = (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
        links = [(link, counter) for link in range(nvml.NVML_NVLINK_MAX_LINKS) for counter in counters]
        counts = [self._read_or_none(partial(nvml.nvmlDeviceGetNvLinkErrorCounter, gpu, *link)) for link in links]
        known = [int(count) for count in counts if count is not None]
        temperature = partial(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
        temperature_c = self._read_or_none(temperature)
        return GpuReading(
            index,
            healthy=not ecc_errors,
            utilisation=min((busy_percent or 0) / 100.0, 1.0),
            free_bytes=free_bytes or 0,
            temperature_c=None if temperature_c is None else float(temperature_c),
            ecc_errors=ecc_errors,
            link_errors=sum(known) if known else None,
        )

    def _read_gpu(self, index: int) -> GpuInfo | None:
        nvml = self._nvml
        try:
            gpu = self._handle(index)
            memory = self._read_required(partial(nvml.nvmlDeviceGetMemoryInfo, gpu))
            uuid, name = (
                _decoded_text(self._read_required(partial(call, gpu)))
                for call in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName)
            )
            pci = _decoded_text(self._read_required(partial(nvml.nvmlDeviceGetPciInfo, gpu)).busId)
        except GpuLostError:
            return None
        return GpuInfo(index, uuid, name, pci, int(memory.total), int(memory.free))

    def uncorrected_errors(self, gpu: int) -> int | None:
        """Return the uncorrected memory errors since the driver was loaded."""
        nvml, handle = self._nvml, self._handle(gpu)
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        return self._read_optional(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds)))

    def remapped_rows(self, gpu: int) -> RemappedRows | None:
        """Return the remapped memory rows."""
        found = self._read_optional(partial(self._nvml.nvmlDeviceGetRemappedRows, self._handle(gpu)))
        if found is None:
            return None
        corrected, uncorrected, pending, failure = found
        return RemappedRows(int(corrected), int(uncorrected), pending=bool(pending), failed=bool(failure))

    def pcie(self, gpu: int) -> Pcie | None:
        """Return the link to the host."""
        nvml, handle = self._nvml, self._handle(gpu)
        calls = (
            nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth,
            nvml.nvmlDeviceGetMaxPcieLinkWidth,
        )  # fmt: skip
        values = [self._read_optional(partial(call, handle)) for call in calls]
        known = [int(value) for value in values if value is not None]
        return Pcie(*known) if len(known) == len(calls) else None

    def max_pcie_generation(self, gpu: int) -> int | None:
        """Return the generation of slot and card, the smaller; an idle link may run as an older one."""
        found = self._read_or_none(partial(self._nvml.nvmlDeviceGetMaxPcieLinkGeneration, self._handle(gpu)))
        return None if found is None else int(found)

    def nvlinks(self, gpu: int) -> Sequence[NvLink] | None:
        """Return the links to other GPUs; None if the GPU has none."""
        handle = self._handle(gpu)
        found = [self._read_nvlink(handle, link) for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)]
        known = [link for link in found if link is not None]
        return known or None

    def _read_nvlink(self, handle: object, link: int) -> NvLink | None:
        nvml = self._nvml
        state = self._read_optional(partial(nvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is None:
            return None
        remote = self._read_optional(partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        kinds = (nvml.NVML_NVLINK_ERROR_DL_RECOVERY, nvml.NVML_NVLINK_ERROR_DL_REPLAY,
                 nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)  # fmt: skip
        errors = [
            self._read_optional(partial(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind)) for kind in kinds
        ]
        counted = [None if count is None else int(count) for count in errors]
        return NvLink(link, bool(state), "" if remote is None else _decoded_text(remote.busId), *counted)

    def clock_limits(self, gpu: int) -> ClockLimits | None:
        """Return why it is slow."""
        nvml, handle = self._nvml, self._handle(gpu)
        mask = self._read_optional(partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle))
        calls = (nvml.nvmlDeviceGetPowerManagementLimit, nvml.nvmlDeviceGetPowerManagementDefaultLimit)
        limits = [self._read_optional(partial(call, handle)) for call in calls]
        watts = [None if limit is None else int(limit) / 1000.0 for limit in limits]
        if mask is None:
            return None if watts == [None, None] else ClockLimits(None, *watts)
        return ClockLimits(tuple(name for bit, name in _HARDWARE_REASONS.items() if int(mask) & bit), *watts)

    def memory_holders(self, gpu: int) -> Sequence[GpuProcess] | None:
        """Return the processes that hold its memory."""
        nvml, handle = self._nvml, self._handle(gpu)
        # Without a version the call needs the newest driver; an older one has the second.
        for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses_v2):
            found = self._read_optional(partial(call, handle))
            if found is not None:
                return [GpuProcess(int(process.pid), int(process.usedGpuMemory or 0)) for process in found]
        return None

    def lock_clock(self, gpu: int, mhz: int) -> bool | None:
        """Lock its clock until it is reset; None without the right to do so."""
        handle = self._handle(gpu)
        return self._try_change(partial(self._nvml.nvmlDeviceSetGpuLockedClocks, handle, mhz, mhz))

    def limit_power(self, gpu: int, watts: float) -> bool | None:
        """Limit its power until that is reset; None without the right to do so."""
        handle = self._handle(gpu)
        return self._try_change(partial(self._nvml.nvmlDeviceSetPowerManagementLimit, handle, round(watts * 1000.0)))

    def reset_clock(self, gpu: int) -> bool | None:
        """Unlock its clock; None without the right to do so."""
        return self._try_change(partial(self._nvml.nvmlDeviceResetGpuLockedClocks, self._handle(gpu)))

    def _try_change(self, change: Callable[[], object]) -> bool | None:
        """Change a setting; return whether that worked, None without the right to do so."""
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
        return self._read_required(partial(self._nvml.nvmlDeviceGetHandleByIndex, gpu))

    def _read_required(self, read: Callable[[], Value]) -> Value:
        try:
            return read()
        except self._nvml.NVMLError as error:
            raise GpuLostError(str(error)) from error

    def _read_if_allowed(self, read: Callable[[], Value]) -> Value | None:
        """Return a value that a healthy GPU has, None where it is not supported or not permitted.

        Raises:
            GpuLostError: If the GPU does not answer.
        """
        nvml = self._nvml
        try:
            return read()
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION):
                raise GpuLostError(str(error)) from error
            return None

    def _read_or_none(self, read: Callable[[], Value]) -> Value | None:
        """Return a value, None where there is none, whatever the reason."""
        try:
            return read()
        except (self._nvml.NVMLError, self._nvml.NVMLLibraryMismatchError):
            return None

    def _read_optional(self, read: Callable[[], Value]) -> Value | None:
        """Return a value, None if it is not supported.

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


def _decoded_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


SYSFS = Path("/sys/class/infiniband")
FATAL = ("link_downed", "link_error_recovery")  # counters of which none may rise
RATED = ("symbol_error", "port_rcv_errors")  # counters that may rise slowly


@dataclass(frozen=True, slots=True)
class Port:
    """A port as it is at one moment."""

    name: str  # such as mlx5_0/1
    state: str  # such as ACTIVE; "" if unknown
    physical: str  # such as LinkUp
    rate: str  # such as 400 Gb/sec (4X NDR)
    counters: Mapping[str, int]  # by name, without those that cannot be read


def read_ports(root: Path) -> Sequence[Port]:
    """Return all ports, in the order of their names.

    Args:
        root: Such as SYSFS. A missing folder has no ports.
    """
    folders = sorted(root.glob("*/ports/*"), key=lambda path: (path.parent.parent.name, path.name))
    return [_read_port(path) for path in folders if path.is_dir()]


def _read_port(path: Path) -> Port:
    counters = {}
    for name in (*FATAL, *RATED):
        with suppress(OSError, ValueError):
            counters[name] = int((path / "counters" / name).read_text())
    return Port(
        f"{path.parent.parent.name}/{path.name}",
        _read_word(path / "state"), _read_word(path / "phys_state"), _read_line(path / "rate"), counters,
    )  # fmt: skip


def _read_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:200]
    except OSError:
        return ""


def _read_word(path: Path) -> str:
    """Return the word of a line such as `4: ACTIVE`."""
    return _read_line(path).rpartition(":")[2].strip()


def visible_gpus(visible: str | None, gpus: Sequence[GpuInfo] | None) -> list[int] | None:
    """Return NVML's numbers of the GPUs that CUDA shows, in CUDA's order; None if these are all, or unknown.

    CUDA ignores all entries after one that names no GPU. Parts of GPUs (MIG) are unknown.

    Args:
        visible: CUDA_VISIBLE_DEVICES: numbers by PCI address, or prefixes of UUIDs. None if unset.
        gpus: All that NVML sees; None without NVML, so that UUIDs are unknown.
    """
    if visible is None or "MIG-" in visible:
        return None
    found: list[int] = []
    for entry in visible.split(","):
        name = entry.strip()
        if gpus is None and name.startswith("GPU-"):
            return None
        number = _gpu_index(name, gpus or ())
        if number is None:
            break
        found.append(number)
    return found


def _gpu_index(index_or_uuid: str, gpus: Sequence[GpuInfo]) -> int | None:
    if index_or_uuid.isascii() and index_or_uuid.isdecimal():
        return int(index_or_uuid[:9])
    named = (
        [gpu.index for gpu in gpus if gpu.uuid.startswith(index_or_uuid)] if index_or_uuid.startswith("GPU-") else []
    )
    return named[0] if len(named) == 1 else None
