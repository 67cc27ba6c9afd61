"""Models and plans for the jobs of a trace, as the simulator takes them.

Decoders (GPT and its kin) by their shapes, in a YAML file, and their profiles by the formulas that are printed.

One layer has 24 s h^2 + 4 s^2 h forward FLOPs for a sample, 12 h^2 parameters, and keeps 34 s h bytes with an attention
that keeps no matrix of sequence x sequence (Korthikanti and others 2022). The head has 2 s h V FLOPs.

Models and plans for the jobs of a trace, whose models nobody knows.

A trace tells how many GPUs a job had and for how long. We give it a model, drawn evenly among those that so many GPUs
can train data parallel and that would do enough iterations in that time. Data parallel on these GPUs is its first plan,
and takes as long as the trace says; the others do as many iterations. So the work is the trace's, the models are ours.

Source: SPEC P1, P2.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..cluster.files.yaml_file import read_yaml, validated
from ..cluster.model.problem import laid_out, reference_s
from ..cluster.model.workload import Iteration, Plan, Workload
from ..cluster.presets.cluster_file import ClusterSetup
from .model import NUMBER_BYTES, HardwareProfile
from .plan import FoundPlan
from .plan import FoundPlan as Found
from .pool import GpuType, Pool, pool_of
from .profile.profiling import LayerProfile, ModelProfile
from .question import question
from .search import fastest_by_gpus

KEPT = 34.0  # bytes that a layer keeps for each number of its activation
Size = Annotated[int, Field(ge=1, le=1_000_000)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Decoder(_Section):
    """A decoder and the batch that it is trained with."""

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
        """What its layers compute, keep and send."""
        s, h, v = float(self.sequence), float(self.hidden), float(self.vocabulary)
        width, words = s * h, NUMBER_BYTES * s * h
        first = _layer("words", 0.0, v * h, 8.0 * s, s, words)
        block = _layer("block", 24.0 * s * h**2 + 4.0 * s**2 * h, 12.0 * h**2, KEPT * width, width, words)
        block = block.model_copy(update={"heads": self.heads, "is_block": True, "fixed_costs": 1.0})
        head = _layer("head", 2.0 * s * h * v, 0.0, NUMBER_BYTES * width, width, NUMBER_BYTES * s * v)
        head = head.model_copy(update={"tied_parameters": v * h})
        blocks = (block.model_copy(update={"name": f"block.{number}"}) for number in range(self.layers))
        return ModelProfile(name=self.name, rung="by formula", tokens_per_sample=s, layers=(first, *blocks, head))


class ModelsFile(_Section):
    """A file of models; see docs/planner.md."""

    models: Annotated[tuple[Decoder, ...], Field(min_length=1, max_length=100, strict=False)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [it.name for it in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are called {name}")
        return self


def _layer(name: str, flops: float, parameters: float, kept: float, elements: float, output: float) -> LayerProfile:
    return LayerProfile(
        name=name, forward_flops=flops, backward_flops=2.0 * flops, parameters=parameters, saved_bytes=kept,
        input_elements=elements, output_bytes=output,
    )  # fmt: skip


def read_models(path: Path) -> tuple[Decoder, ...]:
    """Return the models of a file.

    Raises:
        InputError: If it cannot be used.
    """
    file = read_yaml(path, "docs/planner.md")
    return validated(file, ModelsFile, file.data).models


@dataclass(frozen=True, slots=True)
class Choices:
    """By what a model may be trained on GPUs of one type, by the number of GPUs."""

    speed: float  # of the type
    gpu_type: GpuType
    data_parallel: dict[int, FoundPlan]
    any_layout: dict[int, FoundPlan]
    offload: dict[int, FoundPlan]  # the same where state may be put away; the same plans where that saves no time


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


def iteration_of(plan: FoundPlan, it: GpuType, speed: float) -> Iteration:
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


LEAST_ITERATIONS = 20  # that a job does: of less, nobody would make a plan


class Attached(NamedTuple):
    """Jobs with plans."""

    workload: Workload
    models: Counter[str]  # how many jobs have each; "" for jobs without plans


def attach(workload: Workload, models: Sequence[Decoder], tables: Tables, seed: int) -> Attached:
    """Return the jobs of a workload with plans of models that are drawn for them.

    Args:
        workload: The jobs, none of which asks more GPUs than the tables have.
        models: To draw from, in this order.
        tables: Of the models on the cluster.
        seed: One number is drawn for each job, in their order.
    """
    drawn, counts, plans = np.random.default_rng(seed).random(workload.jobs), Counter[str](), list[tuple[Plan, ...]]()
    known: dict[tuple[str, int], tuple[Plan, ...]] = {}
    for job in range(workload.jobs):
        gpus, work_s = int(workload.gpus[job]), float(workload.work_s[job])
        for it in models:
            if (it.name, gpus) not in known:
                known[it.name, gpus] = plans_of_iteration(it, gpus, tables)
        fitting = [it for it in models if (found := known[it.name, gpus]) and enough(found[0], work_s)]
        chosen = fitting[int(drawn[job] * len(fitting))] if fitting else None
        counts[chosen.name if chosen else ""] += 1
        plans.append(for_work(known[chosen.name, gpus], work_s) if chosen else ())
    return Attached(laid_out(replace(workload, plans=tuple(plans)), "fixed"), counts)


def plans_of_iteration(decoder: Decoder, gpus: int, tables: Tables) -> tuple[Plan, ...]:
    """Return the plans of a job of one iteration, none if so many GPUs cannot train the model data parallel.

    The first is data parallel. The others have as many GPUs, or fewer that share a node or fill nodes, and each has
    fewer than all that are as fast. Those that put state away come last: each is faster than all with no more GPUs.
    """
    choices = tables.choices(decoder, gpus)
    if choices is None:
        return ()
    each = choices.gpu_type.gpus_per_node
    counts = [it for it in range(1, gpus + 1) if it == gpus or each % it == 0 or it % each == 0]
    asked = [choices.data_parallel[gpus], *(choices.any_layout[it] for it in counts if it in choices.any_layout)]
    asked += [it for count in counts if (it := choices.offload.get(count)) is not None and it.away_bytes]
    fixed, *others = [_plan_of(it, choices, tables) for it in asked]
    order = sorted(others, key=lambda it: (it.away_bytes > 0.0, it.gpus, it.work_s))
    faster = [it for it in order if all(it.work_s < other.work_s for other in others if _comes_before(other, it))]
    return (fixed, *(it for it in faster if it != fixed))


def _plan_of(found: Found, choices: Choices, tables: Tables) -> Plan:
    did = iteration_of(found, choices.gpu_type, choices.speed)
    memory_bytes = max(stage.memory_bytes for stage in found.stages)
    return Plan(did, reference_s(did, tables.setup.rules), memory_bytes, found.away_bytes)


def _comes_before(other: Plan, it: Plan) -> bool:
    """Say whether of two plans that are as fast the other one would be taken."""
    return other is not it and other.gpus <= it.gpus and (other.away_bytes > 0.0) <= (it.away_bytes > 0.0)


def enough(first: Plan, work_s: float) -> bool:
    """Say whether a job of so much work does enough iterations by a plan of one."""
    return work_s >= LEAST_ITERATIONS * first.work_s


def for_work(plans: Sequence[Plan], work_s: float) -> tuple[Plan, ...]:
    """Return plans of one iteration as those of a job that takes so long by the first."""
    iterations = work_s / plans[0].work_s
    return (plans[0]._replace(work_s=work_s), *(it._replace(work_s=it.work_s * iterations) for it in plans[1:]))
