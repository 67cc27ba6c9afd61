"""What the search is given: a model, GPUs and limits; and what the model's layers cost under a layout.

Source: SPEC P1.
"""

from dataclasses import dataclass, fields, replace
from math import ceil

import numpy as np

from ..cluster.model.training_plan import Saving
from .model import HOST_NUMBER_BYTES as HOST_BYTES
from .model import (
    NUMBER_BYTES,
    Array,
    Constants,
    HardwareProfile,
    HostProfile,
    Pieces,
    all_reduce_bytes,
    kept_share,
    optimizer_state_bytes,
    state_bytes,
)
from .plan import Layout
from .pool import GpuType, Pool, carried_over, slowest
from .profile.profiling import ModelProfile


@dataclass(frozen=True, slots=True)
class Layers:
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


def layers_of(profile: ModelProfile) -> Layers:
    """Return the figures of a profile as arrays."""
    names = [it.name for it in fields(Layers) if it.name not in ("has_heads", "heads")]
    columns = {name: profile.column(name) for name in names}
    columns["parameters"] -= columns["frozen_parameters"]
    has_heads = (profile.column("heads") > 0).astype(np.float64)
    return Layers(**columns, has_heads=has_heads, heads=profile.heads)


def host_layers(profile: ModelProfile) -> Layers:
    """Return the figures of a profile as arrays, with the bytes of numbers on a machine without GPUs."""
    found, wider = layers_of(profile), HOST_BYTES / NUMBER_BYTES
    names = ("saved_bytes", "output_bytes", "frozen_bytes", "tied_frozen_bytes")
    return replace(found, **{name: getattr(found, name) * wider for name in names})


def pieces(layers: Layers, tensor: Array, micro_batch: Array, recomputes: Array) -> Pieces:
    """Return what a micro-batch does in each layer, arrays of shape (cases, layers).

    Args:
        layers: Of the model.
        tensor: Degree of tensor parallelism of each case, shape (cases, 1).
        micro_batch: Samples, in the same shape.
        recomputes: Whether blocks are computed again on the way back, 1 or 0, in the same shape.
    """
    again = recomputes * layers.is_block
    once = layers.forward_flops + layers.backward_flops
    # A decoder layer has four all-reduces, two on either way; with recomputation two more.
    reduces = (4.0 + 2.0 * again) * layers.has_heads
    return Pieces(
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
    kept_bytes: Array  # for each micro-batch that is on its way
    working_bytes: float  # for the layer at work, whichever it is


def memory(layers: Layers, saving: Saving, data: int, tensor: int, micro_batch: int, *, copies: bool) -> MemoryCosts:
    """Return what the layers take on a GPU.

    Args:
        layers: Of the model.
        saving: What is done to need less.
        data: Data-parallel members.
        tensor: Tensor-parallel members.
        micro_batch: Samples.
        copies: Whether tied parameters may be on two stages, and each of these has them.
    """
    parameters = layers.parameters + (layers.tied_parameters if copies else 0.0)
    frozen = (layers.frozen_bytes + (layers.tied_frozen_bytes if copies else 0.0)) / tensor
    saved = layers.saved_bytes * micro_batch * kept_share(tensor)
    again = layers.is_block if saving.recomputes else np.zeros_like(saved)
    inputs = NUMBER_BYTES * layers.input_elements * micro_batch
    working = float((saved * again).max())
    if saving.zero == 3:  # weights of a layer and of the one after it, and the gradients of one
        working += float((3.0 * NUMBER_BYTES * layers.parameters + 2.0 * layers.frozen_bytes).max())
    return MemoryCosts(
        state_bytes=parameters / tensor * state_bytes(saving, data) + frozen / (data if saving.zero == 3 else 1),
        optimizer_bytes=parameters / tensor * optimizer_state_bytes(saving, data),
        kept_bytes=np.where(again > 0, inputs, saved),
        working_bytes=working,
    )


Chain = Pool  # types that one plan may use, in the order in which their GPUs are taken


@dataclass(frozen=True, slots=True)
class Question:
    """A model, how long it may take, and with what.

    Args:
        profile: Of the model.
        layers: The same as arrays.
        hardware: Constants of the step-time model, or what ranks of one machine do in a second.
        pool: GPUs that may be used.
        batch: Samples of an iteration.
        iterations: Of the whole training.
        deadline_s: Time for all of them; None for as soon as possible.
        degrees: Data, pipeline and tensor degree of all plans that count; None for any.
        is_plain: Whether only plans count that `longshore.stage` carries out.
        is_replicated: Whether only plans count whose ranks all do the same, so that any may take another's place.
        offload: Whether a plan that does not fit otherwise may put its optimizer state into host memory.
    """

    profile: ModelProfile
    layers: Layers
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
    def most_step_s(self) -> float:
        """What an iteration may be predicted to take, so that the bound meets the deadline."""
        if self.deadline_s is None:
            return 0.0
        return self.deadline_s / (self.iterations * self.hardware.accuracy.bound_factor)

    @property
    def fitted(self) -> HardwareProfile:
        """The constants of the step-time model, where GPUs are planned with."""
        assert isinstance(self.hardware, HardwareProfile)
        return self.hardware

    def constants(self, gpu_type: GpuType) -> Constants:
        """Return the constants on GPUs of a type."""
        return carried_over(self.fitted.values, self.fitted.measured_on, gpu_type)


def question(
    profile: ModelProfile,
    hardware: HardwareProfile | HostProfile,
    pool: Pool,
    *,
    batch: int,
    samples: float,
    deadline_s: float | None,
    degrees: tuple[int, int, int] | None = None,
    is_plain: bool = False,
) -> Question:
    """Return the question of training a model on so many samples."""  # fmt: skip
    iterations = max(1, ceil(samples / batch))
    layers = host_layers(profile) if isinstance(hardware, HostProfile) else layers_of(profile)
    return Question(profile, layers, hardware, pool, batch, iterations, deadline_s, degrees, is_plain=is_plain)


def chains(pool: Pool) -> list[Chain]:
    """Return which types plans may use: each alone, and the fastest two, three and so on together."""
    return [*((it,) for it in pool), *(pool[:count] for count in range(2, len(pool) + 1))]


def gpus_of(chain: Chain) -> int:
    """Return the GPUs of all types."""
    return sum(it.gpus for it in chain)


def stage_types(chain: Chain, layout: Layout) -> list[GpuType]:
    """Return what the GPUs of each stage amount to: a stage goes as fast as its slowest member.

    GPUs are taken in the order of the chain, so the first stages, which keep most, have the fastest.
    """
    each = layout.data * layout.tensor
    found, taken = [], 0
    for _ in range(layout.pipeline):
        found.append(slowest(_between(chain, taken, taken + each)))
        taken += each
    return found


def _between(chain: Chain, first: int, end: int) -> list[GpuType]:
    """Return the types of the GPUs from one to another, with as many GPUs as are taken of each."""
    found, passed = list[GpuType](), 0
    for it in chain:
        taken = min(end, passed + it.gpus) - max(first, passed)
        if taken > 0:
            found.append(it._replace(gpus=taken))
        passed += it.gpus
    return found
