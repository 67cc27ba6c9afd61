"""A twin of NVML for tests: it tells what it was told to tell.

It leaves out: that calls take time, that counters change by themselves, and everything that a real driver does when a
GPU is lost in the midst of a call. No test with it shows that a real GPU is read rightly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .readers import Clocks, Driver, Gpu, GpuLostError, Holder, NvLink, Pcie, Rows


@dataclass
class ScriptedGpu:
    """What is told of one GPU; None is not supported."""

    gpu: Gpu
    uncorrected_errors: int | None = 0
    rows: Rows | None = field(default_factory=lambda: Rows(0, 0, pending=False, failed=False))
    pcie: Pcie | None = field(default_factory=lambda: Pcie(4, 16, 16))
    nvlinks: Sequence[NvLink] | None = None
    clocks: Clocks | None = field(default_factory=lambda: Clocks(()))
    holders: Sequence[Holder] | None = ()
    resets: bool | None = True
    sets: bool | None = True  # clocks and limits of power
    clock_mhz: int = 0  # as set, 0 for that by default
    power_w: float = 0.0
    lost: bool = False


class ScriptedReader:
    """Tells of scripted GPUs.

    Args:
        gpus: What is told of each.
        driver: The versions.
    """

    def __init__(self, gpus: Sequence[ScriptedGpu], driver: Driver | None = None) -> None:
        self.scripted = list(gpus)
        self.versions = driver or Driver("580.65.06", "13.580.65", "96.00.5E")

    def driver(self) -> Driver:
        """Return the versions."""
        return self.versions

    def gpus(self) -> Sequence[Gpu]:
        """Return all GPUs; a lost one is not among them, as with NVML after a restart of the driver."""
        return [it.gpu for it in self.scripted if not it.lost]

    def _of(self, gpu: int) -> ScriptedGpu:
        found = next((it for it in self.scripted if it.gpu.index == gpu), None)
        if found is None or found.lost:
            raise GpuLostError(f"GPU {gpu} does not answer")
        return found

    def uncorrected_errors(self, gpu: int) -> int | None:
        """Return what was scripted."""
        return self._of(gpu).uncorrected_errors

    def rows(self, gpu: int) -> Rows | None:
        """Return what was scripted."""
        return self._of(gpu).rows

    def pcie(self, gpu: int) -> Pcie | None:
        """Return what was scripted."""
        return self._of(gpu).pcie

    def nvlinks(self, gpu: int) -> Sequence[NvLink] | None:
        """Return what was scripted."""
        return self._of(gpu).nvlinks

    def clocks(self, gpu: int) -> Clocks | None:
        """Return what was scripted."""
        return self._of(gpu).clocks

    def holders(self, gpu: int) -> Sequence[Holder] | None:
        """Return what was scripted."""
        return self._of(gpu).holders

    def lock_clock(self, gpu: int, mhz: int) -> bool | None:
        """Set it if it can be, and return what was scripted."""
        it = self._of(gpu)
        it.clock_mhz = mhz if it.sets else it.clock_mhz
        return it.sets

    def limit_power(self, gpu: int, watts: float) -> bool | None:
        """Set it if it can be, and return what was scripted."""
        it = self._of(gpu)
        it.power_w = watts if it.sets else it.power_w
        return it.sets

    def reset_clocks(self, gpu: int) -> bool | None:
        """Take back what was set if that can be done, and return what was scripted."""
        it = self._of(gpu)
        if it.resets:
            it.clock_mhz, it.power_w = 0, 0.0
        return it.resets
