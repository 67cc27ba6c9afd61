"""A plan: its layout, and its sub-tasks with what each computes, needs and sends.

Source: SPEC P1.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.model.training_plan import Saving
from .model import Seconds
from .pool import GpuType

Counts = NDArray[np.int64]
SAVINGS = tuple(Saving)
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # samples: efficiency is flat long before the last
MOST_LAYOUTS = 2_000_000  # beyond, longer pipelines are left out: only batches of hundreds of divisors have so many


class Layout(NamedTuple):
    """How a model is spread over GPUs."""

    data: int
    pipeline: int
    tensor: int
    micro_batch: int  # samples
    saving: Saving

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.data * self.pipeline * self.tensor


class Layouts(NamedTuple):
    """Many layouts, each array of shape (layouts,)."""

    data: Counts
    pipeline: Counts
    tensor: Counts
    micro_batch: Counts
    saving: Counts  # index in SAVINGS

    @property
    def gpus(self) -> Counts:
        """GPUs that each takes, shape (layouts,)."""
        return self.data * self.pipeline * self.tensor

    def one(self, at: int) -> Layout:
        """Return one of them."""
        data, pipeline, tensor, micro_batch, saving = (int(column[at]) for column in self)
        return Layout(data, pipeline, tensor, micro_batch, SAVINGS[saving])


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number up to a bound, in ascending order."""
    return [it for it in range(1, min(number, most) + 1) if number % it == 0]


def tensor_degrees(heads: int, node: GpuType) -> list[int]:
    """Return the degrees of tensor parallelism: inside a node, and each member with as many attention heads."""
    return divisors(int(np.gcd(heads, node.gpus_per_node)), node.gpus_per_node) if heads else [1]


def layouts(batch: int, layers: int, tensor: list[int], gpus: int, least_samples: int = 1) -> Layouts:
    """Return every layout that takes at most so many GPUs.

    Args:
        batch: Samples of an iteration; data-parallel members get as many each, in equal micro-batches.
        layers: Of the model; each stage has one at least.
        tensor: Degrees of tensor parallelism to try.
        gpus: At most.
        least_samples: Of a micro-batch.
    """
    # Members, and what each computes at a time.
    sizes = sorted(it for it in {*MICRO_BATCHES, least_samples} if it >= least_samples)
    data = [(d, b) for d in divisors(batch, gpus) for b in sizes if batch // d % b == 0]
    if not data:
        return Layouts(*(np.zeros(0, dtype=np.int64) for _ in Layouts._fields))
    most_stages = MOST_LAYOUTS // (len(data) * len(tensor) * len(SAVINGS))
    stages = np.arange(1, min(layers, gpus, max(1, most_stages)) + 1)
    grid = np.meshgrid(np.arange(len(data)), stages, np.array(tensor), np.arange(len(SAVINGS)), indexing="ij")
    pair, p, t, saving = (axis.ravel() for axis in grid)
    d, b = np.array(data, dtype=np.int64)[pair].T
    found = Layouts(d, p, t, b, saving)
    keep = (found.gpus <= gpus) & _makes_sense(found)
    return Layouts(*(column[keep] for column in found))


def _makes_sense(found: Layouts) -> NDArray[np.bool_]:
    """Say which layouts are no other one in disguise: ZeRO spreads over data-parallel members alone."""
    zero = np.array([saving.zero for saving in SAVINGS])[found.saving]
    alone: NDArray[np.bool_] = (zero == 0) | (found.data > 1)
    # ZeRO-3 gathers a layer for every micro-batch: in a pipeline it would do so too often, and no library offers it.
    whole: NDArray[np.bool_] = (zero != 3) | ((found.pipeline == 1) & (found.tensor == 1))
    return alone & whole


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline; without one, the whole model. Each of its GPUs does as follows."""

    first_layer: int
    last_layer: int
    gpu_type: str
    gpus: int  # data-parallel times tensor-parallel members
    micro_batch_s: float  # forward and backward
    compute_s: float  # of it, in matrix products
    tensor_s: float  # of it, in all-reduces of tensor parallelism
    flops: float  # of an iteration, on each GPU
    parameters: float  # that each GPU holds
    trained_parameters: float  # of these
    memory_bytes: float  # that each GPU needs, fragmentation and context with it
    gpu_memory_bytes: float  # that it has
    tensor_bytes: float  # that each GPU sends for a micro-batch, inside its node
    next_bytes: float  # to the next stage for a micro-batch, and as much back
    ring_bytes: float  # that each GPU sends for an iteration, to sum gradients
    seconds: Seconds  # of an iteration, on each GPU; the rest of it the stage waits
    away_bytes: float = 0.0  # of optimizer state, in host memory during the passes


@dataclass(frozen=True, slots=True)
class Times:
    """Where the time of an iteration goes, in seconds."""

    compute_s: float  # matrix products of the slowest stage
    tensor_s: float  # its all-reduces of tensor parallelism
    fixed_s: float  # its launches
    bubble_s: float  # while the pipeline fills and empties
    gradients_s: float  # sum of gradients, with what ZeRO-3 gathers
    optimizer_s: float
    iteration_s: float  # fixed cost
    offload_s: float = 0.0  # copies of state that nothing hides

    @property
    def total_s(self) -> float:
        """The whole iteration."""
        return (
            self.compute_s + self.tensor_s + self.fixed_s + self.bubble_s + self.gradients_s + self.optimizer_s
            + self.iteration_s + self.offload_s
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """A layout that fits, with its stages and times."""

    layout: Layout
    micro_batches: int  # of each data-parallel member, in an iteration
    stages: tuple[Stage, ...]
    times: Times
    iterations: int
    bound_factor: float  # times the prediction is an upper bound

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.layout.gpus

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types of them, in the order of the stages."""
        return tuple(dict.fromkeys(stage.gpu_type for stage in self.stages))

    @property
    def step_s(self) -> float:
        """Predicted time of an iteration."""
        return self.times.total_s

    @property
    def total_s(self) -> float:
        """Predicted time of the training, without faults."""
        return self.step_s * self.iterations

    @property
    def bound_s(self) -> float:
        """Upper bound of it."""
        return self.total_s * self.bound_factor

    @property
    def gpu_hours(self) -> float:
        """What it costs."""
        return self.gpus * self.total_s / 3600.0

    @property
    def away_bytes(self) -> float:
        """Optimizer state that a GPU has in host memory during the passes, on the stage that has most."""
        return max(stage.away_bytes for stage in self.stages)

    @property
    def kind(self) -> str:
        """Data parallel, pipeline, tensor parallel or hybrid."""
        names = [
            name
            for name, degree in zip(("data parallel", "pipeline", "tensor parallel"), self.layout[:3], strict=True)
            if degree > 1
        ]
        return "one GPU" if not names else names[0] if len(names) == 1 else f"hybrid ({' x '.join(names)})"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A layout that needs more memory than there is, however its layers are cut."""

    layout: Layout
    gpu_type: str
    needed_bytes: float  # of a GPU, by the cuts that need least
    gpu_memory_bytes: float
