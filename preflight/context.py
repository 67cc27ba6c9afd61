"""What a check gets: the node, the job, readers of its hardware, and counters since the last reading."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..cluster.files.errors import BackendError
from .check import ATTACHED, CheckedJob, CheckFinding, Dtype, Need, incomplete, skipped
from .readers import KMSG, SYSFS, GpuReader, Port, open_nvml, read_kernel_log, read_ports, visible_gpus

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .arithmetic import ReferencedProduct
    from .wiring import Blueprint


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """A node as its warm process knows it from its start."""

    node: str
    folder: Path  # of references, kept between rounds; all nodes of a machine may share it
    slots: bool = False  # its GPUs are slots on a machine without GPUs
    dtype: Dtype = "fp32"  # that is warmed up
    sysfs: Path = SYSFS
    kernel_log: Path = KMSG
    wiring: Path | None = None  # file of expected wiring
    port_facts: Path | None = None  # file of the site's tool on transceivers and neighbours
    warmed: tuple[int, ...] | None = None  # GPUs that are warmed up; None for all


WHOLE_NODE = -1  # in place of a GPU


@dataclass(frozen=True, slots=True)
class CheckScope:
    """What one check covers on a node."""

    gpus: tuple[int, ...]  # of the node
    nodes: tuple[str, ...]  # of the job, in ring order
    level: int
    limit_s: float  # after which the process is killed
    cleared_s: Mapping[int, float] = field(default_factory=dict)  # Unix times, by GPU: older faults do not count
    attempt: str = ""  # after a job: whose processes may be left
    scratch: str = ""  # after a job: its scratch folder


@dataclass(frozen=True, slots=True)
class CheckGroup:
    """A group that a node belongs to in one check."""

    name: str  # never used before
    members: tuple[str, ...]
    shares: tuple[int, ...]  # GPUs of each member
    store: str  # a file on this machine, or tcp://HOST:PORT that the first member serves
    address: str = "127.0.0.1"  # at which this member can be reached
    node: str = ""  # of this member, where a node may have several; "" if each member is a node


@dataclass
class Context:
    """What a check may use. It lives as long as the warm process of its node."""

    setup: NodeSetup
    gpu_reader: GpuReader | None  # None without a driver
    why_no_gpus: str = ""
    workload: CheckedJob = field(default_factory=CheckedJob)
    chosen: CheckScope = CheckScope((), (), 1, 1.0)
    group: CheckGroup | None = None
    counters: dict[tuple[str, str], int] = field(default_factory=dict)  # when last read, by device and name
    power_limits_w: dict[int, float] = field(default_factory=dict)  # of GPUs, before a job's own were set
    products: dict[str, "ReferencedProduct"] = field(default_factory=dict)
    joined: dict[str, "ProcessGroup"] = field(default_factory=dict)
    stores: dict[str, object] = field(default_factory=dict)  # by address

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.setup.node

    @property
    def is_long(self) -> bool:
        """Whether extendable checks run longer."""
        return self.chosen.level >= 2

    def begin_counters(self, device: str, values: Mapping[str, int]) -> None:
        """Keep the first values of counters of a device, for comparison with later ones."""
        for name, now in values.items():
            self.counters.setdefault((device, name), now)

    def update_counters(self, device: str, values: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return counters of a device when they were last read, and now; those without an earlier value are left out.

        One that falls was reset, by a new driver or a new boot: it counts from there on.
        """
        found = {}
        for name, now in values.items():
            before = self.counters.get((device, name))
            if before is not None:
                found[name] = (min(before, now), now)
            self.counters[device, name] = now
        return found

    def ports(self) -> list[Port]:
        """Return the network ports of the node."""
        return list(read_ports(self.setup.sysfs))

    def blueprint(self) -> "Blueprint | None":
        """Return the expected wiring, None where there is no file.

        Raises:
            InputError: If the file cannot be used.
        """
        from .wiring import read_blueprint

        return None if self.setup.wiring is None else read_blueprint(self.setup.wiring)

    @property
    def accelerators(self) -> tuple[int, ...]:
        """The chosen GPUs; of slots only the first, as all run on one processor."""
        return self.chosen.gpus[:1] if self.setup.slots else self.chosen.gpus

    def gpus_with_reader(self) -> Iterator[tuple[int, GpuReader]]:
        """Yield each chosen GPU with the reader; nothing without a driver."""
        if self.gpu_reader is not None:
            yield from ((gpu, self.gpu_reader) for gpu in self.chosen.gpus)

    def torch_device(self, gpu: int) -> str:
        """Return the PyTorch device of a GPU of the node; the processor for slots.

        Raises:
            BackendError: If CUDA does not show the GPU to this process.
        """
        if self.setup.slots:
            return "cpu"
        shown = self.visible_gpus()
        if shown is None:
            return f"cuda:{gpu}"
        if gpu not in shown:
            raise BackendError(f"CUDA_VISIBLE_DEVICES does not show gpu {gpu}; unset it where checks run")
        return f"cuda:{shown.index(gpu)}"

    def visible_gpus(self) -> list[int] | None:
        """Return the GPUs that CUDA shows this process, in its order; None if it shows all, or that is unknown."""
        visible, reader = os.environ.get("CUDA_VISIBLE_DEVICES"), self.gpu_reader
        return None if visible is None else visible_gpus(visible, None if reader is None else reader.gpus())

    def why_unmet(self, need: Need) -> CheckFinding | None:
        """Return why a check with a need cannot run, None if it can."""
        if need in ATTACHED and ATTACHED[need] not in self.workload.attachments:
            return skipped(_NOT_ATTACHED[ATTACHED[need]])
        return _LACKS[need](self) if need in _LACKS else None


def _no_gpu(context: Context) -> CheckFinding | None:
    if context.setup.slots:
        return skipped("the node has slots, and no GPUs")
    if context.gpu_reader is None:
        return incomplete(context.why_no_gpus or "there is no driver", "install the driver and nvidia-ml-py")
    return None


def _no_nic(context: Context) -> CheckFinding | None:
    return None if context.ports() else skipped(f"there is no port at {context.setup.sysfs}")


def _no_log(context: Context) -> CheckFinding | None:
    if read_kernel_log(context.setup.kernel_log) is None:
        return skipped(f"{context.setup.kernel_log} may not be read; run as root to have the log checked")
    return None


def _no_dcgm(context: Context) -> CheckFinding | None:
    return skipped("dcgmi is not installed") if shutil.which("dcgmi") is None else _no_gpu(context)


def _no_wiring(context: Context) -> CheckFinding | None:
    return skipped("there is no file of expected wiring") if context.setup.wiring is None else None


def _no_others(context: Context) -> CheckFinding | None:
    group = context.group
    return skipped("there is only one accelerator") if group is not None and sum(group.shares) < 2 else None


_NOT_ATTACHED = {
    "nvlink": "the workload uses no links between GPUs", "nic": "the workload uses no network ports",
    "host": "the GPUs are not reached through the host",
}  # fmt: skip
_LACKS: dict[Need, Callable[[Context], CheckFinding | None]] = {
    Need.GPU: _no_gpu, Need.NVLINK: _no_gpu, Need.NIC: _no_nic, Need.LOG: _no_log, Need.DCGM: _no_dcgm,
    Need.WIRING: _no_wiring, Need.SEVERAL: _no_others,
}  # fmt: skip


def open_context(setup: NodeSetup) -> Context:
    """Return the context of a node with the readers of its real hardware."""
    if setup.slots:
        return Context(setup, None)
    try:
        return Context(setup, open_nvml())
    except BackendError as error:
        return Context(setup, None, str(error))
