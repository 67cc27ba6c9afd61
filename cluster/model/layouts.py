"""By which of its plans each job of a workload runs.

Source: SPEC P1.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from .needs import ANYTHING, Needs
from .plans import Iteration, Plan, best_plan, reference_iteration_s
from .scenarios import Rules
from .workload import Workload

PER_JOB = ("gpus", "work_s", "estimate_s", "compute_s", "parameter_bytes")


def first_plan(plans: Sequence[Plan]) -> Plan:
    """Return the plan that the trace asks for: one fixed layout for all jobs, if the trace is of ours."""
    return plans[0]


FIXED, BEST, OFFLOAD = "fixed", "best", "offload"
LAYOUTS: dict[str, Callable[[Sequence[Plan]], Plan]] = {
    FIXED: first_plan,
    BEST: best_plan,
    OFFLOAD: partial(best_plan, offload=True),
}


def laid_out(workload: Workload, layout: str) -> Workload:
    """Return a workload whose jobs run by one of their plans, which then stands first; others stay as they are.

    Estimates keep their ratio to the work. A job then needs the GPU memory of its plan, if that tells any,
    and room in host memory for what the plan puts away.

    Args:
        workload: The jobs.
        layout: Which plan, one of LAYOUTS.
    """
    if workload.plans is None:
        return workload
    columns = {name: getattr(workload, name).copy() for name in PER_JOB}
    needs, ordered = list(workload.needs or (ANYTHING,) * workload.jobs), list(workload.plans)
    for job, plans in enumerate(workload.plans):
        if not plans:
            continue
        chosen = LAYOUTS[layout](plans)
        if chosen.work_s != workload.work_s[job]:
            columns["estimate_s"][job] *= chosen.work_s / workload.work_s[job]
        did = chosen.iteration
        columns["gpus"][job], columns["work_s"][job] = chosen.gpus, chosen.work_s
        columns["compute_s"][job], columns["parameter_bytes"][job] = did.compute_s, did.gradient_bytes
        needs[job] = _with_memory(needs[job], chosen)
        ordered[job] = (chosen, *(it for it in plans if it is not chosen))
    told = tuple(needs) if any(it != ANYTHING for it in needs) else workload.needs
    return replace(workload, plans=tuple(ordered), needs=told, **columns)


def _with_memory(needs: Needs, plan: Plan) -> Needs:
    host_bytes = max(needs.host_memory_bytes_per_gpu, plan.away_bytes)
    return needs._replace(
        gpu_memory_bytes=plan.memory_bytes or needs.gpu_memory_bytes, host_memory_bytes_per_gpu=host_bytes
    )


def reference_s(iteration: Iteration, rules: Rules) -> float:
    """Return how long an iteration takes on GPUs of speed 1, on as few reference nodes as hold the job."""
    links = rules.reference_intra_bytes_per_s, rules.reference_nic_bytes_per_s
    return float(reference_iteration_s(iteration, rules.reference_gpus, *links))
