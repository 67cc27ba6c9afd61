"""The request of a search: a model, GPUs by type and limits; and what the model's layers cost under a layout.

Source: SPEC P1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from ..cluster.model.topology import Cluster
from ..cluster.model.training_plan import MemorySaving
from ..cluster.presets.cluster_file import ClusterSetup
from .hardware import HOST_NUMBER_BYTES, HardwareProfile, HostProfile, scaled_to_bandwidths
from .memory import kept_activation_share, optimizer_bytes_per_parameter, state_bytes_per_parameter
from .plan import PlanLayout
from .profile.profiling import ModelProfile
from .step_time import NUMBER_BYTES, Array, Constants, HardwareRates, MicroBatchWork, all_reduce_bytes


class GpuType(NamedTuple):
    """GPUs of one type."""

    name: str
    gpus: int
    peak_flops: float  # of one GPU
    memory_bytes: float  # of one GPU
    gpus_per_node: int
    intra_bytes_per_s: float  # between two GPUs of a node
    nic_bytes_per_s: float  # between nodes, the slowest link on the way
    host_bytes_per_s: float = 0.0  # between a GPU and host memory; 0 if unknown
    host_room_bytes: float = math.inf  # of host memory, for each GPU


Pool = tuple[GpuType, ...]  # fastest first
Chain = Pool  # types that one plan may use, in the order in which their GPUs are taken


def gpu_pool_of(setup: ClusterSetup) -> Pool:
    """Return the GPUs of a cluster file by type, fastest first."""
    cluster = setup.cluster
    counts = np.diff(cluster.first_gpu)
    found = [
        _gpu_type(cluster, number, offer.gpu_type, counts)._replace(
            host_bytes_per_s=host_bytes_per_s, host_room_bytes=offer.host_memory_bytes_per_gpu
        )
        for number, (offer, host_bytes_per_s) in enumerate(zip(setup.offers, setup.host_bytes_per_s, strict=True))
    ]
    return tuple(
        sorted(
            (gpu_type for gpu_type in found if gpu_type.gpus),
            key=lambda gpu_type: (-gpu_type.peak_flops, gpu_type.name),
        )
    )


def rank_pool_of(host: HostProfile) -> Pool:
    """Return the ranks of a machine without GPUs as GPUs; their speed is in the profile."""
    return (GpuType("rank", host.ranks, 1.0, host.memory_bytes / host.ranks, host.ranks, 1.0, 1.0),)


def _gpu_type(
    cluster: Cluster, type_index: int, name: str, gpus_of_node: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> GpuType:
    nodes = np.flatnonzero(cluster.node_type == type_index)
    if not nodes.size:
        return GpuType(name, 0, 1.0, 1.0, 1, 1.0, 1.0)
    racks = np.unique(cluster.node_rack[nodes])
    # Nodes of several racks communicate through their uplinks.
    uplink = float(cluster.uplink_bytes_per_s[racks].min()) if racks.size > 1 else np.inf
    first = int(nodes[0])
    return GpuType(
        name,
        int(gpus_of_node[nodes].sum()),
        float(cluster.peak_flops[first]),
        float(cluster.memory_bytes[first]),
        int(gpus_of_node[first]),
        float(cluster.intra_bytes_per_s[first]),
        min(float(cluster.nic_bytes_per_s[first]), uplink),
    )


def effective_type(types: Sequence[GpuType]) -> GpuType:
    """Return the effective type of a group of several types: the smallest of each figure."""
    names = " + ".join(dict.fromkeys(gpu_type.name for gpu_type in types))
    return GpuType(
        names, sum(gpu_type.gpus for gpu_type in types), *(min(column) for column in list(zip(*types, strict=True))[2:])
    )


@dataclass(frozen=True, slots=True)
class LayerArrays:
    """The figures of a profile as arrays of shape (layers,), for one sample."""

    forward_flops: Array
    backward_flops: Array
    parameters: Array  # that are trained
    frozen_parameters: Array
    frozen_bytes: Array  # of these and of buffers
    tied_parameters: Array  # that are trained
    tied_frozen_bytes: Array
    saved_bytes: Array
    input_elements: Array
    output_bytes: Array
    fixed_costs: Array
    is_block: Array  # 1 or 0
    has_heads: Array  # 1 or 0
    heads: int  # a divisor of those of all layers, 0 without attention

    @property
    def count(self) -> int:
        """Number of layers."""
        return int(self.parameters.size)


def layer_arrays(profile: ModelProfile) -> LayerArrays:
    """Return the figures of a profile as arrays."""
    names = [field.name for field in fields(LayerArrays) if field.name not in ("has_heads", "heads")]
    columns = {name: profile.column(name) for name in names}
    columns["parameters"] -= columns["frozen_parameters"]
    has_heads = (profile.column("heads") > 0).astype(np.float64)
    return LayerArrays(**columns, has_heads=has_heads, heads=profile.heads)


def host_layer_arrays(profile: ModelProfile) -> LayerArrays:
    """Return the figures of a profile as arrays, with the bytes of numbers on a machine without GPUs."""
    found, wider = layer_arrays(profile), HOST_NUMBER_BYTES / NUMBER_BYTES
    names = ("saved_bytes", "output_bytes", "frozen_bytes", "tied_frozen_bytes")
    return replace(found, **{name: getattr(found, name) * wider for name in names})


def layer_work(layers: LayerArrays, tensor: Array, micro_batch: Array, recomputes: Array) -> MicroBatchWork:
    """Return what a micro-batch does in each layer, arrays of shape (cases, layers).

    Args:
        layers: Of the model.
        tensor: Degree of tensor parallelism of each case, shape (cases, 1).
        micro_batch: Samples, in the same shape.
        recomputes: Whether blocks are computed again in the backward pass, 1 or 0, in the same shape.
    """
    again = recomputes * layers.is_block
    once = layers.forward_flops + layers.backward_flops
    # A decoder layer has four all-reduces, two on either way; with recomputation two more.
    reduces = (4.0 + 2.0 * again) * layers.has_heads
    return MicroBatchWork(
        flops=micro_batch / tensor * (once + again * layers.forward_flops),
        elements=micro_batch / tensor * layers.input_elements,
        tensor_bytes=all_reduce_bytes(tensor, reduces * micro_batch * layers.output_bytes),
        layers=layers.fixed_costs + np.zeros_like(tensor),
        tensor_layers=np.where(tensor > 1, layers.has_heads, 0.0),
    )


@dataclass(frozen=True, slots=True)
class MemoryCosts:
    """What the layers take on a GPU, arrays of shape (layers,)."""

    state_bytes: Array  # weights, gradients and optimizer, and weights that are not trained
    optimizer_bytes: Array  # of these, the optimizer's
    kept_bytes: Array  # for each micro-batch in the pipeline
    working_bytes: float  # for the layer that is computed, whichever it is


def memory_costs(
    layers: LayerArrays, saving: MemorySaving, data: int, tensor: int, micro_batch: int, *, has_tied_copies: bool
) -> MemoryCosts:
    """Return what the layers take on a GPU.

    Args:
        layers: Of the model.
        saving: How memory is saved.
        data: Data-parallel members.
        tensor: Tensor-parallel members.
        micro_batch: Samples.
        has_tied_copies: Whether tied parameters may be on two stages, and each of these has them.
    """
    parameters = layers.parameters + (layers.tied_parameters if has_tied_copies else 0.0)
    frozen = (layers.frozen_bytes + (layers.tied_frozen_bytes if has_tied_copies else 0.0)) / tensor
    saved = layers.saved_bytes * micro_batch * kept_activation_share(tensor)
    again = layers.is_block if saving.recomputes else np.zeros_like(saved)
    inputs = NUMBER_BYTES * layers.input_elements * micro_batch
    working = float((saved * again).max())
    if saving.zero == 3:  # weights of a layer and of the one after it, and the gradients of one
        working += float((3.0 * NUMBER_BYTES * layers.parameters + 2.0 * layers.frozen_bytes).max())
    return MemoryCosts(
        state_bytes=parameters / tensor * state_bytes_per_parameter(saving, data)
        + frozen / (data if saving.zero == 3 else 1),
        optimizer_bytes=parameters / tensor * optimizer_bytes_per_parameter(saving, data),
        kept_bytes=np.where(again > 0, inputs, saved),
        working_bytes=working,
    )


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model, the time for its training, and the GPUs.

    Args:
        profile: Of the model.
        layers: The same as arrays.
        hardware: Constants of the step-time model, or rates of ranks of one machine.
        pool: GPUs that may be used.
        batch: Samples of an iteration.
        iterations: Of the whole training.
        deadline_s: Time for all of them; None for the fastest plan.
        degrees: Required data, pipeline and tensor degree; None for any.
        is_plain: Whether plans are limited to those that `longshore.stage` can run.
        is_replicated: Whether plans are limited to those whose ranks are interchangeable.
        offload: Whether a plan that does not fit otherwise may offload its optimizer state to host memory.
    """

    profile: ModelProfile
    layers: LayerArrays
    hardware: HardwareProfile | HostProfile
    pool: Pool
    batch: int
    iterations: int
    deadline_s: float | None
    degrees: tuple[int, int, int] | None = None
    is_plain: bool = False
    is_replicated: bool = False
    offload: bool = False

    @property
    def max_step_s(self) -> float:
        """Longest predicted iteration whose bound meets the deadline; inf without one."""
        if self.deadline_s is None:
            return math.inf
        return self.deadline_s / (self.iterations * self.hardware.accuracy.bound_factor)

    @property
    def gpu_hardware(self) -> HardwareProfile:
        """The constants of the step-time model, for plans on GPUs."""
        assert isinstance(self.hardware, HardwareProfile)
        return self.hardware

    def constants(self, gpu_type: GpuType) -> Constants:
        """Return the constants on GPUs of a type."""
        return scaled_to_bandwidths(
            self.gpu_hardware.as_constants,
            self.gpu_hardware.measured_on,
            gpu_type.intra_bytes_per_s,
            gpu_type.nic_bytes_per_s,
        )

    def hardware_rates(self, gpu_type: GpuType) -> HardwareRates:
        """Return the rates of GPUs of a type; the bandwidth of their memory is that of the measured ones."""
        memory_bytes_per_s = self.gpu_hardware.measured_on.memory_bytes_per_s
        return HardwareRates(gpu_type.peak_flops, memory_bytes_per_s, gpu_type.nic_bytes_per_s)


def make_request(
    profile: ModelProfile,
    hardware: HardwareProfile | HostProfile,
    pool: Pool,
    *,
    batch: int,
    samples: float,
    deadline_s: float | None,
    degrees: tuple[int, int, int] | None = None,
    is_plain: bool = False,
) -> PlanRequest:
    """Return the request of training a model on a number of samples."""
    iterations = max(1, math.ceil(samples / batch))
    layers = host_layer_arrays(profile) if isinstance(hardware, HostProfile) else layer_arrays(profile)
    return PlanRequest(profile, layers, hardware, pool, batch, iterations, deadline_s, degrees, is_plain=is_plain)


def chains(pool: Pool) -> list[Chain]:
    """Return the types that a plan may use: each alone, and the fastest two, three and so on together."""
    return [*((gpu_type,) for gpu_type in pool), *(pool[:count] for count in range(2, len(pool) + 1))]


def total_gpus(chain: Chain) -> int:
    """Return the GPUs of all types."""
    return sum(gpu_type.gpus for gpu_type in chain)


def stage_types(chain: Chain, layout: PlanLayout) -> list[GpuType]:
    """Return the effective GPU type of each stage: a stage is as fast as its slowest member.

    GPUs are taken in the order of the chain, so the first stages, which keep most, have the fastest.
    """
    each = layout.data * layout.tensor
    found, taken = [], 0
    for _ in range(layout.pipeline):
        found.append(effective_type(_types_between(chain, taken, taken + each)))
        taken += each
    return found


def _types_between(chain: Chain, first_gpu: int, end_gpu: int) -> list[GpuType]:
    """Return the types of the GPUs from one to another, with the number taken of each."""
    found, passed = list[GpuType](), 0
    for gpu_type in chain:
        taken = min(end_gpu, passed + gpu_type.gpus) - max(first_gpu, passed)
        if taken > 0:
            found.append(gpu_type._replace(gpus=taken))
        passed += gpu_type.gpus
    return found
