"""A plan: sub-tasks with what each computes, needs and sends, and how long all of it takes.

Source: SPEC P1.
"""

from dataclasses import dataclass

from ..model.playing import Seconds
from .layouts import Layout


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
class Plan:
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
