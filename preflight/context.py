"""What a check is given: the node, the job, readers of its hardware, and counters since the last reading."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..cluster.files.errors import BackendError
from .check import Finding, Need, Outcome, incomplete, skipped
from .checked_job import CheckedJob, Dtype
from .readers import KMSG, SYSFS, GpuReader, Port, read_log, read_ports, shown_gpus

if TYPE_CHECKING:
    from .arithmetic import Products
    from .groups import Members
    from .wiring import Blueprint


class Counters:
    """Remembers counters. One that falls was reset, by a new driver or a new boot: it counts from there on."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], int] = {}

    def look(self, device: str, values: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return what each counter was and is, and remember it; one that is seen first, or fell, has not risen.

        Args:
            device: Whose they are.
            values: By name.
        """
        found = {}
        for name, now in values.items():
            found[name] = (min(self._before.get((device, name), now), now), now)
            self._before[device, name] = now
        return found


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """A node as its warm process knows it. The process is given it when it begins."""

    node: str
    folder: Path  # of references and what else is kept between rounds; all nodes of a machine may share it
    slots: bool = False  # its GPUs are slots that only behave like GPUs
    dtype: Dtype = "fp32"  # that is loaded beforehand
    sysfs: Path = SYSFS
    kernel_log: Path = KMSG
    wiring: Path | None = None  # file of expected wiring
    port_facts: Path | None = None  # file in which a tool of the site tells of transceivers and neighbours
    warmed: tuple[int, ...] | None = None  # GPUs that are used before a check asks for them; None for all


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is asked of a node in one check."""

    gpus: tuple[int, ...]  # of the node
    nodes: tuple[str, ...]  # of the job, in ring order
    level: int
    limit_s: float  # after which the process is killed
    cleared_s: float = 0.0  # since the boot: faults that the log tells of from before are over
    attempt: str = ""  # of which processes may be left, after a job
    scratch: str = ""  # folder that was the job's own, after it


@dataclass(frozen=True, slots=True)
class Group:
    """A group that a node belongs to in one check."""

    name: str  # another one each time
    members: tuple[str, ...]
    shares: tuple[int, ...]  # GPUs of each member
    store: str  # a file on this machine, or tcp://HOST:PORT that the first member serves
    address: str = "127.0.0.1"  # at which this member can be reached


@dataclass
class Context:
    """What a check may look at. One lives as long as the warm process of its node."""

    place: NodeSetup
    gpu_reader: GpuReader | None  # None without a driver
    why_no_gpus: str = ""
    workload: CheckedJob = field(default_factory=CheckedJob)
    chosen: Chosen = Chosen((), (), 1, 1.0)
    group: Group | None = None
    counters: Counters = field(default_factory=Counters)
    products: dict[str, "Products"] = field(default_factory=dict)
    joined: dict[str, "Members"] = field(default_factory=dict)
    stores: dict[str, object] = field(default_factory=dict)  # by address

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.place.node

    @property
    def is_long(self) -> bool:
        """Whether checks that can go on longer are to do so."""
        return self.chosen.level >= 2

    def ports(self) -> list[Port]:
        """Return the network ports of the node."""
        return list(read_ports(self.place.sysfs))

    def blueprint(self) -> "Blueprint | None":
        """Return the expected wiring, None where there is no file.

        Raises:
            InputError: If the file cannot be used.
        """
        from .wiring import read_blueprint

        return None if self.place.wiring is None else read_blueprint(self.place.wiring)

    @property
    def accelerators(self) -> tuple[int, ...]:
        """The chosen GPUs; of slots the first, as one processor stands behind all."""
        return self.chosen.gpus[:1] if self.place.slots else self.chosen.gpus

    def where(self, gpu: int) -> str:
        """Return what PyTorch calls a GPU of the node; the processor where slots stand for GPUs.

        Raises:
            BackendError: If CUDA does not show the GPU to this process.
        """
        if self.place.slots:
            return "cpu"
        shown = self.shown()
        if shown is None:
            return f"cuda:{gpu}"
        if gpu not in shown:
            raise BackendError(f"CUDA_VISIBLE_DEVICES does not show gpu {gpu}; unset it where checks are run")
        return f"cuda:{shown.index(gpu)}"

    def shown(self) -> list[int] | None:
        """Return the GPUs that CUDA shows this process, in its order; None if it shows all, or that cannot be told."""
        told, reader = os.environ.get("CUDA_VISIBLE_DEVICES"), self.gpu_reader
        return None if told is None else shown_gpus(told, None if reader is None else reader.gpus())

    def lacks(self, need: Need) -> Finding | None:
        """Return why a check that needs something cannot run, None if it can."""
        return _LACKS[need](self)


def _no_gpu(context: Context) -> Finding | None:
    if context.place.slots:
        return skipped("slots stand for GPUs here")
    if context.gpu_reader is None:
        return incomplete(context.why_no_gpus or "no GPU is told of", "install the driver and nvidia-ml-py")
    return None


def _no_nvlink(context: Context) -> Finding | None:
    if "nvlink" not in context.workload.attachments:
        return skipped("the workload uses no links between GPUs")
    return _no_gpu(context)


def _no_nic(context: Context) -> Finding | None:
    if "nic" not in context.workload.attachments:
        return skipped("the workload uses no network ports")
    if not context.ports():
        return skipped(f"no port is told of at {context.place.sysfs}")
    return None


def _no_host(context: Context) -> Finding | None:
    return None if "host" in context.workload.attachments else skipped("the GPUs are not reached through the host")


def _no_log(context: Context) -> Finding | None:
    if read_log(context.place.kernel_log) is None:
        return skipped(f"{context.place.kernel_log} may not be read; run as root to have the log looked through")
    return None


def _no_dcgm(context: Context) -> Finding | None:
    from shutil import which

    if which("dcgmi") is None:
        return skipped("dcgmi is not installed")
    return _no_gpu(context)


def _no_wiring(context: Context) -> Finding | None:
    return skipped("no file of expected wiring is given") if context.place.wiring is None else None


def _no_others(context: Context) -> Finding | None:
    group = context.group
    return skipped("there is one accelerator alone") if group is not None and sum(group.shares) < 2 else None


_LACKS: dict[Need, Callable[[Context], Finding | None]] = {
    Need.GPU: _no_gpu,
    Need.NVLINK: _no_nvlink,
    Need.NIC: _no_nic,
    Need.HOST: _no_host,
    Need.LOG: _no_log,
    Need.DCGM: _no_dcgm,
    Need.WIRING: _no_wiring,
    Need.SEVERAL: _no_others,
}


def open_context(place: NodeSetup) -> Context:
    """Return the context of a node with the readers of its real hardware."""
    if place.slots:
        return Context(place, None)
    from .readers import open_nvml

    try:
        return Context(place, open_nvml())
    except BackendError as error:
        return Context(place, None, str(error))


def is_bad(finding: Finding) -> bool:
    """Say whether a finding ends the list of its node."""
    return finding.outcome in (Outcome.FAIL, Outcome.INCOMPLETE)
