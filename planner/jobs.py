"""Models and plans for the jobs of a trace, for the simulator.

Models are decoders (GPT and similar), which a YAML file describes by their shapes. Their profiles follow from formulas:
one layer has 24 s h^2 + 4 s^2 h forward FLOPs for a sample, 12 h^2 parameters, and keeps 34 s h bytes with an attention
that keeps no matrix of sequence x sequence (Korthikanti and others 2022). The head has 2 s h V FLOPs.

A trace has the GPUs and the duration of a job, and not its model. Each job gets a model, drawn evenly among those that
its GPUs can train data parallel with enough iterations in that time. Data parallel on these GPUs is its first plan, and
takes as long as in the trace; the others do the same iterations. So the work is the trace's, the models are ours.

Source: SPEC P1, P2.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from ..cluster.files.yaml_file import read_yaml, validated
from ..cluster.model.problem import reference_iteration_by_rules_s, with_layout
from ..cluster.model.workload import Iteration, JobPlan, Workload
from ..cluster.presets.cluster_file import ClusterSetup
from .hardware import HardwareProfile
from .plan import FoundPlan
from .profile.profiling import LayerProfile, ModelProfile
from .request import GpuType, gpu_pool_of, make_request
from .search import fastest_by_gpus
from .step_time import NUMBER_BYTES

KEPT_BYTES = 34.0  # bytes that a layer keeps for each number of its activation
Size = Annotated[int, Field(ge=1, le=1_000_000)]


class Decoder(BaseModel, frozen=True, extra="forbid", strict=True):
    """A decoder and its batch."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    layers: Annotated[int, Field(ge=1, le=1000)]
    hidden: Size
    heads: Size
    batch: Size  # samples of an iteration, on all GPUs together
    sequence: Size = 2048  # tokens of a sample
    vocabulary: Size = 51_200

    @model_validator(mode="after")
    def _heads_divide_the_hidden_size(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"{self.heads} heads do not divide the hidden size {self.hidden}")
        return self

    @property
    def profile(self) -> ModelProfile:
        """The profile of its layers."""
        s, h, v = float(self.sequence), float(self.hidden), float(self.vocabulary)
        width, words = s * h, NUMBER_BYTES * s * h
        first = _layer_profile("words", 0.0, v * h, 8.0 * s, s, words)
        block = _layer_profile("block", 24.0 * s * h**2 + 4.0 * s**2 * h, 12.0 * h**2, KEPT_BYTES * width, width, words)
        block = block.model_copy(update={"heads": self.heads, "is_block": True, "fixed_costs": 1.0})
        head = _layer_profile("head", 2.0 * s * h * v, 0.0, NUMBER_BYTES * width, width, NUMBER_BYTES * s * v)
        head = head.model_copy(update={"tied_parameters": v * h})
        blocks = (block.model_copy(update={"name": f"block.{number}"}) for number in range(self.layers))
        return ModelProfile(name=self.name, rung="by formula", tokens_per_sample=s, layers=(first, *blocks, head))


class ModelsFile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A file of models; see docs/planner.md."""

    models: Annotated[tuple[Decoder, ...], Field(min_length=1, max_length=100, strict=False)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [decoder.name for decoder in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models have the name {name}")
        return self


def _layer_profile(
    name: str, flops: float, parameters: float, saved_bytes: float, input_elements: float, output_bytes: float
) -> LayerProfile:
    return LayerProfile(
        name=name, forward_flops=flops, backward_flops=2.0 * flops, parameters=parameters, saved_bytes=saved_bytes,
        input_elements=input_elements, output_bytes=output_bytes,
    )  # fmt: skip


def read_models(path: Path) -> tuple[Decoder, ...]:
    """Return the models of a file.

    Raises:
        InputError: If it cannot be used.
    """
    file = read_yaml(path, "docs/planner.md")
    return validated(file, ModelsFile, file.data).models


@dataclass(frozen=True, slots=True)
class TypePlans:
    """The plans of a model on GPUs of one type, by the number of GPUs."""

    speed: float  # of the type
    gpu_type: GpuType
    data_parallel: dict[int, FoundPlan]
    any_layout: dict[int, FoundPlan]
    offload: dict[int, FoundPlan]  # with offloading allowed; the same plans where that saves no time


@dataclass(frozen=True, slots=True)
class PlanTables:
    """The plans of models on a cluster, each computed once."""

    setup: ClusterSetup
    hardware: HardwareProfile
    max_gpus: int  # that a job may request
    _known: dict[str, list[TypePlans]] = field(default_factory=dict)

    def plans_for(self, decoder: Decoder, gpus: int) -> TypePlans | None:
        """Return the plans of a model on the GPU type of least memory on which N GPUs can train it data parallel.

        None if there is no such type. The least memory lets the job run on the most types.
        """
        if decoder.name not in self._known:
            by_memory = sorted(
                gpu_pool_of(self.setup), key=lambda each: (each.memory_bytes, -each.peak_flops, each.name)
            )
            self._known[decoder.name] = [self._plans_on_type(decoder, gpu_type) for gpu_type in by_memory]
        return next((known for known in self._known[decoder.name] if gpus in known.data_parallel), None)

    def _plans_on_type(self, decoder: Decoder, gpu_type: GpuType) -> TypePlans:
        mine = gpu_type._replace(gpus=min(gpu_type.gpus, self.max_gpus))
        request = make_request(
            decoder.profile, self.hardware, (mine,), batch=decoder.batch, samples=decoder.batch, deadline_s=None
        )
        with_offload = replace(request, offload=gpu_type.host_bytes_per_s > 0.0)
        cluster, number = self.setup.cluster, self.setup.type_names.index(gpu_type.name)
        speed = float(cluster.speed[cluster.node_type == number][0])
        data_parallel, any_layout = (fastest_by_gpus(request, mine, data_parallel=only) for only in (True, False))
        offload = fastest_by_gpus(with_offload, mine) if with_offload.offload else any_layout
        return TypePlans(speed, mine, data_parallel, any_layout, offload)


def iteration_of(plan: FoundPlan, gpu_type: GpuType, speed: float) -> Iteration:
    """Return the work of an iteration by a plan, which takes the time that the planner predicts.

    Its bytes are those that links at the full bandwidth of the cluster file carry in the planner's times, which are of
    fitted bandwidths. Transfers between stages are hidden behind computing, except while the pipeline fills and
    empties. All GPUs of a node share its network.
    """
    times, layout = plan.times, plan.layout
    d, p = layout.data, layout.pipeline
    steps = (plan.micro_batches + p - 1) / plan.micro_batches
    is_inside = plan.gpus <= gpu_type.gpus_per_node
    link = gpu_type.intra_bytes_per_s if is_inside else gpu_type.nic_bytes_per_s
    sharing = 1 if is_inside else min(d * layout.tensor, gpu_type.gpus_per_node)
    return Iteration(
        data=d,
        pipeline=p,
        tensor=layout.tensor,
        compute_s=times.compute_s * steps * speed,
        fixed_s=times.fixed_s * steps + times.optimizer_s + times.iteration_s + times.offload_s,
        gradient_bytes=times.gradients_s * link * d / (2.0 * (d - 1)) if d > 1 else 0.0,
        edge_bytes=2.0 * (p - 1) * max(stage.next_bytes for stage in plan.stages) * sharing,
        tensor_bytes=times.tensor_s * steps * gpu_type.intra_bytes_per_s,
    )


MIN_ITERATIONS = 20  # of a job with a plan: a shorter one is not worth planning


def attach_plans(
    workload: Workload, models: Sequence[Decoder], tables: PlanTables, seed: int
) -> tuple[Workload, Counter[str]]:
    """Return the jobs of a workload with plans of models drawn for them, and how many train each model ("" for none).

    Args:
        workload: The jobs, none of which requests more GPUs than the tables have.
        models: To draw from, in this order.
        tables: Of the models on the cluster.
        seed: One number is drawn for each job, in their order.
    """
    drawn = np.random.default_rng(seed).random(workload.jobs)
    counts, plans = Counter[str](), list[tuple[JobPlan, ...]]()
    known: dict[tuple[str, int], tuple[JobPlan, ...]] = {}
    for job in range(workload.jobs):
        gpus, work_s = int(workload.gpus[job]), float(workload.work_s[job])
        for model in models:
            if (model.name, gpus) not in known:
                known[model.name, gpus] = one_iteration_plans(model, gpus, tables)
        fitting = [
            decoder
            for decoder in models
            if (found := known[decoder.name, gpus]) and has_enough_iterations(found[0], work_s)
        ]
        chosen = fitting[int(drawn[job] * len(fitting))] if fitting else None
        counts[chosen.name if chosen else ""] += 1
        plans.append(scale_to_work(known[chosen.name, gpus], work_s) if chosen else ())
    return with_layout(replace(workload, plans=tuple(plans)), "fixed"), counts


def one_iteration_plans(decoder: Decoder, gpus: int, tables: PlanTables) -> tuple[JobPlan, ...]:
    """Return the plans of a job of one iteration, none if its GPUs cannot train the model data parallel.

    The first is data parallel. The others have as many GPUs, or fewer that share a node or fill nodes, and each has
    fewer than all that are as fast. Those that offload state come last: each is faster than all with no more GPUs.
    """
    known = tables.plans_for(decoder, gpus)
    if known is None:
        return ()
    each = known.gpu_type.gpus_per_node
    counts = [count for count in range(1, gpus + 1) if count == gpus or each % count == 0 or count % each == 0]
    candidates = [
        known.data_parallel[gpus],
        *(known.any_layout[count] for count in counts if count in known.any_layout),
    ]
    candidates += [plan for count in counts if (plan := known.offload.get(count)) is not None and plan.away_bytes]
    fixed, *others = [_job_plan(found, known, tables) for found in candidates]
    order = sorted(others, key=lambda plan: (plan.away_bytes > 0.0, plan.gpus, plan.work_s))
    faster = [
        plan
        for plan in order
        if all(plan.work_s < other.work_s for other in others if _is_preferred_if_as_fast(other, plan))
    ]
    return (fixed, *(plan for plan in faster if plan != fixed))


def _job_plan(found: FoundPlan, type_plans: TypePlans, tables: PlanTables) -> JobPlan:
    did = iteration_of(found, type_plans.gpu_type, type_plans.speed)
    memory_bytes = max(stage.memory_bytes for stage in found.stages)
    return JobPlan(did, reference_iteration_by_rules_s(did, tables.setup.rules), memory_bytes, found.away_bytes)


def _is_preferred_if_as_fast(other: JobPlan, plan: JobPlan) -> bool:
    """Return whether the other of two equally fast plans is preferred."""
    return other is not plan and other.gpus <= plan.gpus and (other.away_bytes > 0.0) <= (plan.away_bytes > 0.0)


def has_enough_iterations(one_iteration: JobPlan, work_s: float) -> bool:
    """Return whether a job with this work does enough iterations, given a plan of one iteration."""
    return work_s >= MIN_ITERATIONS * one_iteration.work_s


def scale_to_work(plans: Sequence[JobPlan], work_s: float) -> tuple[JobPlan, ...]:
    """Scale plans of one iteration to a job that takes `work_s` by the first plan."""
    iterations = work_s / plans[0].work_s
    return (plans[0]._replace(work_s=work_s), *(plan._replace(work_s=plan.work_s * iterations) for plan in plans[1:]))
