"""The plans that a model may be trained by, as the simulator takes them.

Source: SPEC P1, P2.
"""

from dataclasses import dataclass, field, replace

from ...cluster.model.plans import Iteration
from ...cluster.presets.cluster_file import ClusterSetup
from ..model.hardware import HardwareProfile
from ..model.pool import GpuType, Pool, pool_of
from ..search.by_gpus import fastest_by_gpus
from ..search.plan import Plan
from ..search.question import question
from .decoders import Decoder


@dataclass(frozen=True, slots=True)
class Choices:
    """By what a model may be trained on GPUs of one type, by the number of GPUs."""

    speed: float  # of the type
    gpu_type: GpuType
    data_parallel: dict[int, Plan]
    any_layout: dict[int, Plan]
    offload: dict[int, Plan]  # the same where state may be put away; the same plans where that saves no time


@dataclass(frozen=True, slots=True)
class Tables:
    """The choices of models on a cluster, each worked out once."""

    setup: ClusterSetup
    hardware: HardwareProfile
    most_gpus: int  # that a job may ask for
    _known: dict[str, list[Choices]] = field(default_factory=dict)

    def choices(self, decoder: Decoder, gpus: int) -> Choices | None:
        """Return the choices of a model on the type of least memory on which so many GPUs may train it data parallel.

        None if there is no such type. So the job may run on as many types as can be.
        """
        if decoder.name not in self._known:
            self._known[decoder.name] = [self._on_type(decoder, it) for it in _by_memory(pool_of(self.setup))]
        return next((it for it in self._known[decoder.name] if gpus in it.data_parallel), None)

    def _on_type(self, decoder: Decoder, gpu_type: GpuType) -> Choices:
        mine = gpu_type._replace(gpus=min(gpu_type.gpus, self.most_gpus))
        asked = question(
            decoder.profile, self.hardware, (mine,), batch=decoder.batch, samples=decoder.batch, deadline_s=None
        )
        putting_away = replace(asked, offload=gpu_type.host_bytes_per_s > 0.0)
        cluster, number = self.setup.cluster, self.setup.type_names.index(gpu_type.name)
        speed = float(cluster.speed[cluster.node_type == number][0])
        data_parallel, any_layout = (fastest_by_gpus(asked, mine, data_parallel=only) for only in (True, False))
        offload = fastest_by_gpus(putting_away, mine) if putting_away.offload else any_layout
        return Choices(speed, mine, data_parallel, any_layout, offload)


def _by_memory(pool: Pool) -> Pool:
    return tuple(sorted(pool, key=lambda it: (it.memory_bytes, -it.peak_flops, it.name)))


def iteration_of(plan: Plan, it: GpuType, speed: float) -> Iteration:
    """Return what an iteration by a plan does, such that it takes as long as the planner says.

    Its bytes are those that links carry at the full bandwidth of the cluster file in the time that the planner's fitted
    ones take. Transfers between stages are hidden behind computing but for those that fill and empty the pipeline; all
    GPUs of a node share its network.

    Args:
        plan: The plan.
        it: The type of GPUs that it is for.
        speed: Of that type.
    """
    times, layout = plan.times, plan.layout
    d, p = layout.data, layout.pipeline
    steps = (plan.micro_batches + p - 1) / plan.micro_batches
    is_inside = plan.gpus <= it.gpus_per_node
    link = it.intra_bytes_per_s if is_inside else it.nic_bytes_per_s
    sharing = 1 if is_inside else min(d * layout.tensor, it.gpus_per_node)
    return Iteration(
        data=d,
        pipeline=p,
        tensor=layout.tensor,
        compute_s=times.compute_s * steps * speed,
        fixed_s=times.fixed_s * steps + times.optimizer_s + times.iteration_s + times.offload_s,
        gradient_bytes=times.gradients_s * link * d / (2.0 * (d - 1)) if d > 1 else 0.0,
        edge_bytes=2.0 * (p - 1) * max(stage.next_bytes for stage in plan.stages) * sharing,
        tensor_bytes=times.tensor_s * steps * it.intra_bytes_per_s,
    )
