"""Models and plans for the jobs of a trace, whose models nobody knows.

A trace tells how many GPUs a job had and for how long. We give it a model, drawn evenly among those that so many GPUs
can train data parallel and that would do enough iterations in that time. Data parallel on these GPUs is its first plan,
and takes as long as the trace says; the others do as many iterations. So the work is the trace's, the models are ours.

Source: SPEC P1.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...cluster.model.layouts import laid_out, reference_s
from ...cluster.model.plans import Plan
from ...cluster.model.workload import Workload
from ..search.plan import Plan as Found
from .decoders import Decoder
from .tables import Choices, Tables, iteration_of

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
