"""What a driver tells of the GPUs of a node, as a protocol: NVML has it, and a scripted twin for tests.

None stands for what a GPU or its driver does not support.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class GpuLostError(Exception):
    """Raised when a GPU that is there does not answer."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU and what it is."""

    index: int  # in the order of PCI addresses
    uuid: str
    name: str
    pci: str  # such as 0000:0f:00.0
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions that have to be the same on all nodes of a job."""

    driver: str
    library: str  # NVML's own
    firmware: str = ""  # of the GPUs, all of them


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of memory that a GPU has replaced."""

    corrected: int
    uncorrected: int
    pending: bool  # a reset puts it in force
    failed: bool  # there was no spare row left


@dataclass(frozen=True, slots=True)
class Pcie:
    """The link of a GPU to its host."""

    generation: int
    width: int
    most_width: int  # the lesser of what slot and card can


@dataclass(frozen=True, slots=True)
class NvLink:
    """One link of a GPU to another, or to a switch."""

    link: int
    active: bool
    remote_pci: str  # of what is at its other end; "" where that is not told
    recoveries: int | None = None  # how often it had to be set up again
    replays: int | None = None
    crc_errors: int | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Why a GPU runs slower than it could."""

    reasons: tuple[str, ...]  # names of those of the hardware, which mean that something is wrong
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU."""

    pid: int
    bytes: int


class GpuReader(Protocol):
    """Reads the GPUs of this node. Each method may raise GpuLostError."""

    def driver(self) -> Driver:
        """Return the versions."""
        ...

    def gpus(self) -> Sequence[Gpu]:
        """Return all GPUs in the order of their PCI addresses."""
        ...

    def uncorrected_errors(self, gpu: int) -> int | None:
        """Return the uncorrected memory errors since the driver was loaded."""
        ...

    def rows(self, gpu: int) -> Rows | None:
        """Return the replaced rows of memory."""
        ...

    def pcie(self, gpu: int) -> Pcie | None:
        """Return the link to the host."""
        ...

    def nvlinks(self, gpu: int) -> Sequence[NvLink] | None:
        """Return the links to other GPUs."""
        ...

    def clocks(self, gpu: int) -> Clocks | None:
        """Return why it is slow."""
        ...

    def holders(self, gpu: int) -> Sequence[Holder] | None:
        """Return the processes that hold its memory."""
        ...

    def lock_clock(self, gpu: int, mhz: int) -> bool | None:
        """Let its cores run at a clock, until it is reset; None without the right to do so."""
        ...

    def limit_power(self, gpu: int, watts: float) -> bool | None:
        """Let it take no more power, until that is reset; None without the right to do so."""
        ...

    def reset_clocks(self, gpu: int) -> bool | None:
        """Let its clocks and its power limit be as they are by default; None without the right to do so."""
        ...
