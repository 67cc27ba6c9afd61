"""What is asked of the planner for a job: a model on the GPUs of a scheduler's cluster, as the API tells of them.

Source: SPEC P1, P2.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cluster.files.errors import InputError
from ..planner.asking import model_of, samples_of
from ..planner.calibration import read_hardware
from ..planner.model import DEFAULT, GpuType, HostProfile, ranks_of
from ..planner.profile.profiling import Limits
from ..planner.question import Question, question
from ..planner.search import Choice, choose
from .plan_wishes import PlanWish

Cluster = Mapping[str, Any]  # what the API answers


def questions(
    wish: PlanWish,
    folder: Path,
    here: Cluster,
    accepted: Collection[str],
    *,
    is_plain: bool,
    is_replicated: bool,
    spares: int,
) -> list[Question]:
    """Return what is asked of each type of GPUs alone: of several, a job would get any, in any order.

    Args:
        wish: Of the job file.
        folder: That its paths begin at.
        here: The cluster.
        accepted: Types that the job accepts; all if there are none.
        is_plain: Whether only plans count that the module of ours carries out.
        is_replicated: Whether only plans count whose ranks all do the same.
        spares: GPUs that the job holds beside those of its plan.

    Raises:
        InputError: If the model cannot be profiled, or there is no GPU for it.
    """
    hardware = DEFAULT if wish.hardware is None else read_hardware(folder / wish.hardware)
    pool = [_gpu_type(it) for it in here["node_types"] if not accepted or it["name"] in accepted]
    pool = [it._replace(gpus=max(0, it.gpus - spares)) for it in pool]
    gpus = sum(it.gpus for it in pool)
    if not gpus:
        types = f" of type {' or '.join(accepted)}" if accepted else ""
        types += f" beside {spares} spares" if spares else ""
        raise InputError(f"no GPU{types} is in service", "`longshore nodes` says why", field="--gpus")
    if isinstance(hardware, HostProfile):
        rank = ranks_of(hardware)[0]
        pool = [rank._replace(gpus=min(rank.gpus, gpus))]
    profile = model_of(str(folder / wish.model), Limits())
    samples = samples_of(profile, samples=wish.samples, tokens=wish.tokens)
    return [
        replace(
            question(
                profile, hardware, (it._replace(gpus=min(it.gpus, wish.gpus or it.gpus)),), batch=wish.batch,
                samples=samples, deadline_s=wish.deadline_s, degrees=wish.wanted,
            ),
            is_plain=is_plain, is_replicated=is_replicated,
        )
        for it in pool
        if it.gpus
    ]  # fmt: skip


def _gpu_type(it: Mapping[str, Any]) -> GpuType:
    across = min(it["nic_bytes_per_s"], it["uplink_bytes_per_s"] or it["nic_bytes_per_s"])
    return GpuType(
        it["name"], it["gpus_in_service"], it["peak_flops"], it["memory_bytes"], it["gpus_per_node"],
        it["intra_bytes_per_s"], across,
    )  # fmt: skip


def best(asked: Sequence[Question]) -> tuple[Question, Choice]:
    """Return the best of several answers: the one that meets the deadline with the fewest GPUs, or the fastest.

    Raises:
        InputError: If none of the questions makes sense.
    """
    found, errors = [], []
    for it in asked:
        try:
            found.append((it, choose(it)))
        except InputError as error:  # such as degrees that this type has too few GPUs for
            errors.append(error)
    if not found:
        raise errors[0]
    return min(found, key=_rank)


def _rank(answer: tuple[Question, Choice]) -> tuple[bool, bool, float, float]:
    asked, choice = answer
    if choice.plan is None:
        return True, True, 0.0, 0.0
    counts = choice.meets and asked.deadline_s is not None
    return False, not choice.meets, choice.plan.gpus if counts else 0.0, choice.plan.total_s
