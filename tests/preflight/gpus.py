"""A node with scripted GPUs, and what a check finds on it, in this process.

`ScriptedReader` stands in for NVML. It leaves out that calls take time, that counters change by themselves, and what a
real driver does when a GPU is lost in the middle of a call. No test with it shows that a real GPU is read correctly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from longshore.preflight.check import CheckedJob, CheckFinding, find_check
from longshore.preflight.context import CheckScope, Context, NodeSetup
from longshore.preflight.readers import (
    ClockLimits,
    DriverVersions,
    GpuInfo,
    GpuLostError,
    GpuProcess,
    GpuReader,
    NvLink,
    Pcie,
    RemappedRows,
)
from longshore.preflight.warm_worker import CheckRequest, run_check


@dataclass
class ScriptedGpu:
    """What the reader reports of one GPU; None is not supported."""

    gpu: GpuInfo
    uncorrected_errors: int | None = 0
    rows: RemappedRows | None = field(default_factory=lambda: RemappedRows(0, 0, pending=False, failed=False))
    pcie: Pcie | None = field(default_factory=lambda: Pcie(4, 16, 16))
    nvlinks: Sequence[NvLink] | None = None
    clocks: ClockLimits | None = field(default_factory=lambda: ClockLimits(()))
    holders: Sequence[GpuProcess] | None = ()
    resets: bool | None = True
    sets: bool | None = True  # clocks and limits of power
    clock_mhz: int = 0  # as set, 0 for that by default
    lost: bool = False


class ScriptedReader(GpuReader):
    """Reports scripted GPUs.

    Args:
        gpus: What it reports of each.
        driver: The versions.
    """

    def __init__(self, gpus: Sequence[ScriptedGpu], driver: DriverVersions | None = None) -> None:
        self.scripted = list(gpus)
        self.versions = driver or DriverVersions("580.65.06", "13.580.65", "96.00.5E")

    def driver_versions(self) -> DriverVersions:
        return self.versions

    def gpus(self) -> Sequence[GpuInfo]:
        """Return all GPUs; a lost one is not among them, as with NVML after a restart of the driver."""
        return [it.gpu for it in self.scripted if not it.lost]

    def _of(self, gpu: int) -> ScriptedGpu:
        found = next((it for it in self.scripted if it.gpu.index == gpu), None)
        if found is None or found.lost:
            raise GpuLostError(f"GPU {gpu} does not answer")
        return found

    def uncorrected_errors(self, gpu: int) -> int | None:
        return self._of(gpu).uncorrected_errors

    def remapped_rows(self, gpu: int) -> RemappedRows | None:
        return self._of(gpu).rows

    def pcie(self, gpu: int) -> Pcie | None:
        return self._of(gpu).pcie

    def nvlinks(self, gpu: int) -> Sequence[NvLink] | None:
        return self._of(gpu).nvlinks

    def clock_limits(self, gpu: int) -> ClockLimits | None:
        return self._of(gpu).clocks

    def memory_holders(self, gpu: int) -> Sequence[GpuProcess] | None:
        return self._of(gpu).holders

    def lock_clock(self, gpu: int, mhz: int) -> bool | None:
        """Set it if it can be, and return what was scripted."""
        it = self._of(gpu)
        it.clock_mhz = mhz if it.sets else it.clock_mhz
        return it.sets

    def limit_power(self, gpu: int, watts: float) -> bool | None:
        """Set it if it can be, and return what was scripted."""
        it = self._of(gpu)
        if it.sets and it.clocks is not None:
            it.clocks = replace(it.clocks, power_limit_w=watts)
        return it.sets

    def reset_clock(self, gpu: int) -> bool | None:
        """Take back what was set if that can be done, and return what was scripted."""
        it = self._of(gpu)
        it.clock_mhz = 0 if it.resets else it.clock_mhz
        return it.resets


def gpu(index: int, name: str = "NVIDIA A100-SXM4-80GB") -> ScriptedGpu:
    return ScriptedGpu(GpuInfo(index, f"GPU-{index}", name, f"00000000:{index + 0x0F:02X}:00.0", 80 << 30, 79 << 30))


def node(folder: Path, gpus: Sequence[ScriptedGpu] | None = None, **setup: object) -> Context:
    sysfs, log = folder / "infiniband", folder / "kmsg"
    whole: dict[str, object] = {"sysfs": sysfs, "kernel_log": log} | setup
    reader = None if gpus is None else ScriptedReader(gpus)
    return Context(NodeSetup("n1", folder, **whole), reader)  # type: ignore[arg-type]


def ask(
    context: Context,
    check: str,
    gpus: Sequence[int] = (0, 1),
    workload: CheckedJob | None = None,
    cleared_s: Mapping[int, float] | None = None,
) -> list[CheckFinding]:
    """Return what a check finds, as a warm process reports it."""
    chosen = CheckScope(tuple(gpus), ("n1",), 1, find_check(check).limit_s, cleared_s or {})
    request = CheckRequest(number=1, check=check, chosen=chosen, workload=workload or CheckedJob())
    return run_check(request, context)


def ask_after(folder: Path, scratch: Path) -> list[CheckFinding]:
    """Return what the clean-up of a node of slots finds, whose job had a scratch folder."""
    chosen = CheckScope((0,), ("n1",), 1, find_check("post.reset").limit_s, scratch=str(scratch))
    request = CheckRequest(number=1, check="post.reset", chosen=chosen, workload=CheckedJob())
    return run_check(request, node(folder, None, slots=True))


def write_port(root: Path, name: str, state: str = "4: ACTIVE", physical: str = "5: LinkUp", **counters: int) -> None:
    device, _, port = name.partition("/")
    folder = root / device / "ports" / port
    (folder / "counters").mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "phys_state").write_text(f"{physical}\n")
    (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for counter, value in counters.items():
        (folder / "counters" / counter).write_text(f"{value}\n")
