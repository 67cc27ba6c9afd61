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
from .decoders import Decoder
from .tables import Tables, iteration_of

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
    fewer than all that are as fast.
    """
    choices = tables.choices(decoder, gpus)
    if choices is None:
        return ()
    each = choices.gpu_type.gpus_per_node
    counts = [it for it in range(1, gpus + 1) if it == gpus or each % it == 0 or it % each == 0]
    asked = [choices.data_parallel[gpus], *(choices.any_layout[it] for it in counts if it in choices.any_layout)]
    found = []
    for it in asked:
        did = iteration_of(it, choices.gpu_type, choices.speed)
        found.append(Plan(did, reference_s(did, tables.setup.rules), max(stage.memory_bytes for stage in it.stages)))
    fixed, others = found[0], sorted(found[1:], key=lambda it: (it.gpus, it.work_s))
    kept, least_s = [fixed], np.inf
    for other in others:
        if other.work_s < least_s and other != fixed:
            kept.append(other)
        least_s = min(least_s, other.work_s)
    return tuple(kept)


def enough(first: Plan, work_s: float) -> bool:
    """Say whether a job of so much work does enough iterations by a plan of one."""
    return work_s >= LEAST_ITERATIONS * first.work_s


def for_work(plans: Sequence[Plan], work_s: float) -> tuple[Plan, ...]:
    """Return plans of one iteration as those of a job that takes so long by the first."""
    iterations = work_s / plans[0].work_s
    return (plans[0]._replace(work_s=work_s), *(it._replace(work_s=it.work_s * iterations) for it in plans[1:]))
