"""A plan: its layout, and its stages with what each computes, needs and sends.

Source: SPEC P1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.model.training_plan import MemorySaving
from .schedule import StageSeconds

Counts = NDArray[np.int64]
SAVINGS = tuple(MemorySaving)
ZERO = np.array([float(saving.zero) for saving in SAVINGS])  # stage of ZeRO of each
RECOMPUTES = np.array([float(saving.recomputes) for saving in SAVINGS])  # 1 or 0
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # samples: efficiency is flat long before the last
MAX_LAYOUTS = 2_000_000  # beyond, longer pipelines are omitted: only batches of hundreds of divisors have more


class PlanLayout(NamedTuple):
    """How a model is spread over GPUs."""

    data: int
    pipeline: int
    tensor: int
    micro_batch: int  # samples
    saving: MemorySaving

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.data * self.pipeline * self.tensor


class PlanLayouts(NamedTuple):
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

    def layout(self, index: int) -> PlanLayout:
        """Return one of them."""
        data, pipeline, tensor, micro_batch, saving = (int(column[index]) for column in self)
        return PlanLayout(data, pipeline, tensor, micro_batch, SAVINGS[saving])


def divisors(number: int, limit: int) -> list[int]:
    """Return the divisors of a number up to a bound, in ascending order."""
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def tensor_degrees(heads: int, gpus_per_node: Sequence[int]) -> list[int]:
    """Return the degrees of tensor parallelism: each divides the heads, and the GPUs of the nodes of every type."""
    most = int(np.gcd.reduce([heads, *gpus_per_node]))
    return divisors(most, most) if heads else [1]


def possible_layouts(batch: int, layers: int, tensor: list[int], gpus: int, min_samples: int = 1) -> PlanLayouts:
    """Return every layout that takes at most N GPUs.

    Args:
        batch: Samples of an iteration; each data-parallel member gets the same share, in equal micro-batches.
        layers: Of the model; each stage has one at least.
        tensor: Degrees of tensor parallelism to try.
        gpus: At most.
        min_samples: Of a micro-batch.
    """
    # Members, and what each computes at a time.
    sizes = sorted(size for size in {*MICRO_BATCHES, min_samples} if size >= min_samples)
    data = [(d, b) for d in divisors(batch, gpus) for b in sizes if batch // d % b == 0]
    if not data:
        return PlanLayouts(*(np.zeros(0, dtype=np.int64) for _ in PlanLayouts._fields))
    max_stages = MAX_LAYOUTS // (len(data) * len(tensor) * len(SAVINGS))
    stages = np.arange(1, min(layers, gpus, max(1, max_stages)) + 1)
    grid = np.meshgrid(np.arange(len(data)), stages, np.array(tensor), np.arange(len(SAVINGS)), indexing="ij")
    pair, p, t, saving = (axis.ravel() for axis in grid)
    d, b = np.array(data, dtype=np.int64)[pair].T
    found = PlanLayouts(d, p, t, b, saving)
    keep = (found.gpus <= gpus) & _distinct_mask(found)
    return PlanLayouts(*(column[keep] for column in found))


def _distinct_mask(found: PlanLayouts) -> NDArray[np.bool_]:
    """Return which layouts differ from all others: ZeRO spreads over data-parallel members only."""
    zero = ZERO[found.saving]
    alone: NDArray[np.bool_] = (zero == 0) | (found.data > 1)
    # ZeRO-3 gathers a layer for every micro-batch: in a pipeline that is too often, and no library offers it.
    whole: NDArray[np.bool_] = (zero != 3) | ((found.pipeline == 1) & (found.tensor == 1))
    return alone & whole


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage of a pipeline; without a pipeline, the whole model. Figures are of each of its GPUs."""

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
    memory_bytes: float  # that each GPU needs, with fragmentation and context
    gpu_memory_bytes: float  # that it has
    tensor_bytes: float  # that each GPU sends for a micro-batch, inside its node
    next_bytes: float  # to the next stage for a micro-batch, and as much back
    ring_bytes: float  # that each GPU sends for an iteration, to sum gradients
    seconds: StageSeconds  # of an iteration, on each GPU; the stage waits for the rest
    away_bytes: float = 0.0  # of optimizer state, offloaded during the passes


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Where the time of an iteration goes, in seconds."""

    compute_s: float  # matrix products of the slowest stage
    tensor_s: float  # its all-reduces of tensor parallelism
    fixed_s: float  # its launches
    bubble_s: float  # while the pipeline fills and empties
    gradients_s: float  # sum of gradients, with what ZeRO-3 gathers
    optimizer_s: float
    iteration_s: float  # fixed cost
    offload_s: float = 0.0  # copies of state that are not hidden

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

    layout: PlanLayout
    micro_batches: int  # of each data-parallel member, in an iteration
    stages: tuple[PlanStage, ...]
    times: IterationTimes
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
        """Upper bound of the training time."""
        return self.total_s * self.bound_factor

    @property
    def gpu_hours(self) -> float:
        """Its cost in GPU-hours."""
        return self.gpus * self.total_s / 3600.0

    @property
    def away_bytes(self) -> float:
        """Largest optimizer state that a GPU offloads during the passes."""
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
    """A layout that does not fit into memory, whatever its cuts."""

    layout: PlanLayout
    gpu_type: str
    needed_bytes: float  # of a GPU, by the best cuts
    gpu_memory_bytes: float
