"""Plans of jobs: how each may be spread over GPUs, in numbers, and how long its iterations then take.

A plan has a data, a pipeline and a tensor degree. Its GPUs stand in the order of nodes: members of a tensor-parallel
group side by side, those of a stage of the pipeline behind one another, the stages last. So a stage whose GPUs divide
what each node gives lies on one node, and so does a group. docs/simulator.md has the formula.

Source: SPEC P1, P2.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..kernels.compiled import kernel


class Iteration(NamedTuple):
    """What an iteration of a job does by its plan. Bytes are those that the slowest of its links carries."""

    data: int  # degrees of parallelism; their product is the number of GPUs
    pipeline: int
    tensor: int
    compute_s: float  # on GPUs of speed 1, the filling and emptying of the pipeline counted
    fixed_s: float  # that neither faster GPUs nor faster links would save
    gradient_bytes: float  # that the ring of each stage sums
    edge_bytes: float  # between stages, one after the other, that are not hidden behind computing
    tensor_bytes: float  # that a GPU sends to others of its tensor-parallel group


class Plan(NamedTuple):
    """One way to run a job."""

    iteration: Iteration
    work_s: float  # fault-free run time of the whole job on the reference placement
    memory_bytes: float = 0.0  # that each GPU needs
    away_bytes: float = 0.0  # of each GPU's state, in host memory while nothing needs it; 0 without offload

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.iteration.data * self.iteration.pipeline * self.iteration.tensor

    @property
    def gpu_s(self) -> float:
        """GPU-time that it takes on the reference placement."""
        return self.gpus * self.work_s

    @property
    def degrees(self) -> str:
        """For people: data x pipeline x tensor."""
        return f"{self.iteration.data}x{self.iteration.pipeline}x{self.iteration.tensor}"


@kernel
def iteration_s(it: Iteration, share: float, speed: float, inside: float, across: float, grain: int) -> float:
    """Return how long an iteration takes on a placement.

    Args:
        it: What it does.
        share: Of the batch that each GPU computes, by what it has where no GPU is missing.
        speed: Of the slowest GPU.
        inside: Slowest bandwidth inside a node, bytes/s.
        across: Slowest of all bandwidths, where GPUs of several nodes talk.
        grain: Largest number that divides the GPUs that each node gives, or 0 where all is on one node.
    """
    stage = it.data * it.tensor  # GPUs
    time_s = share * it.compute_s / speed + it.fixed_s
    if it.tensor > 1:
        time_s += it.tensor_bytes / (inside if grain % it.tensor == 0 else across)
    if it.pipeline > 1:
        time_s += it.edge_bytes / (inside if grain % (stage * it.pipeline) == 0 else across)
    if it.data > 1:
        volume = 2.0 * (it.data - 1) / it.data * it.gradient_bytes
        time_s += volume / (inside if grain % stage == 0 else across)
    return time_s


@kernel
def reference_iteration_s(
    it: Iteration, reference_gpus: int, intra_bytes_per_s: float, nic_bytes_per_s: float
) -> float:
    """Return how long an iteration takes on GPUs of speed 1, on as few reference nodes as hold the job."""
    gpus = it.data * it.pipeline * it.tensor
    if gpus <= reference_gpus:
        return iteration_s(it, 1.0, 1.0, intra_bytes_per_s, intra_bytes_per_s, 0)
    full, rest = reference_gpus, gpus  # what full nodes and the last one give have this divisor
    while rest > 0:
        full, rest = rest, full % rest
    return iteration_s(it, 1.0, 1.0, intra_bytes_per_s, min(intra_bytes_per_s, nic_bytes_per_s), full)


def best_plan(plans: Sequence[Plan], *, offload: bool = False) -> Plan:
    """Return the plan of the fewest GPUs that ends no later than the first, at no more GPU-time; then the fastest.

    Args:
        plans: Of a job. The first may always be taken.
        offload: Whether others may put state away, too.
    """
    fixed = plans[0]
    allowed = [fixed, *(it for it in plans[1:] if offload or not it.away_bytes)]
    fits = [it for it in allowed if it.work_s <= fixed.work_s and it.gpu_s <= fixed.gpu_s]
    return min(fits, key=lambda it: (it.gpus, it.work_s))
