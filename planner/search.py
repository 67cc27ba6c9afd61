"""The search: the plan with the fewest GPUs whose upper bound meets the deadline, or else the fastest one.

Source: SPEC P1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import InputError
from ..cluster.model.training_plan import Saving
from .evaluating import evaluate, least_step_s, may_fit
from .model import Array, HostProfile
from .on_host import stages_at_most
from .plan import SAVINGS, FoundPlan, Layout, Layouts, Misfit, layouts, tensor_degrees
from .pool import GpuType
from .question import Chain, Question, chains, gpus_of

MOST_GPUS = 65_536  # of a cluster that would do


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer."""

    plan: FoundPlan | None  # None if nothing fits into memory
    meets: bool  # its bound meets the deadline; True without one
    closest: Misfit | None  # where nothing fits: what is nearest to it
    looked_at: int  # layouts
    worked_out: int  # of these; the others were shown to be slower, or not to fit, without it
    would_do: FoundPlan | None  # where the deadline is missed: with more GPUs of a type of the cluster
    fewer: FoundPlan | None = None  # where it is met: the fastest with fewer GPUs, None if nothing fits into theirs


@dataclass(frozen=True, slots=True)
class _Field:
    """All layouts on all chains, flat: arrays of shape (all,)."""

    asked: Question
    chains: list[Chain]
    found: list[Layouts]
    chain: NDArray[np.int64]  # index of the chain
    row: NDArray[np.int64]  # in the layouts of that chain
    gpus: NDArray[np.int64]
    least_s: Array  # an iteration takes at least so long; infinite where it cannot fit

    def layout(self, at: int) -> tuple[Chain, Layout]:
        """Return one of them."""
        chain = int(self.chain[at])
        return self.chains[chain], self.found[chain].one(int(self.row[at]))

    def worked_out(self, at: int) -> FoundPlan | Misfit:
        """Return the plan of one of them, or that it does not fit."""
        return evaluate(self.asked, *self.layout(at))


def choose(asked: Question) -> Choice:
    """Return the best plan; see the top of this file.

    Args:
        asked: The model, the GPUs and the deadline.
    """
    field = _field(asked, chains(asked.pool))
    counted = _Counted(field)
    plan = None
    if asked.deadline_s is not None:
        plan = _fewest(field, counted)
    if plan is not None:
        order = np.argsort(field.least_s, kind="stable")
        fewer = _fastest(order[field.gpus[order] < plan.gpus], counted)
        return Choice(plan, True, None, field.gpus.size, counted.count, None, fewer)  # noqa: FBT003  # its second field
    plan = _fastest(np.argsort(field.least_s, kind="stable"), counted)
    meets = plan is not None and asked.deadline_s is None
    closest = None if plan is not None else _closest(field)
    would_do = None if meets else _that_would_do(asked)
    return Choice(plan, meets, closest, field.gpus.size, counted.count, would_do)


class _Counted:
    """Works layouts out and counts how many."""

    def __init__(self, field: _Field) -> None:
        self.field, self.count = field, 0

    def __call__(self, at: int) -> FoundPlan | Misfit:
        self.count += 1
        return self.field.worked_out(at)


def _field(asked: Question, tried: list[Chain]) -> _Field:
    parts = [fitting_layouts(asked, chain) for chain in tried]
    found = [it for it, _ in parts]
    if not sum(it.data.size for it in found):
        if asked.degrees is None:
            least = asked.profile.least_samples
            problem = (
                f"the model does not train on fewer than {least} samples at a time, and no part of a batch has them"
            )
            raise InputError(problem, f"take a multiple of {least}", field="--batch")
        degrees = "x".join(map(str, asked.degrees))
        fix = f"take a data degree that divides {asked.batch}, stages of one layer at least, and GPUs that there are"
        raise InputError(f"no plan has the degrees {degrees}", fix, field="--degrees")
    return _Field(
        asked=asked,
        chains=tried,
        found=found,
        chain=np.repeat(np.arange(len(tried)), [it.data.size for it in found]),
        row=np.concatenate([np.arange(it.data.size) for it in found]),
        gpus=np.concatenate([it.gpus for it in found]),
        least_s=np.concatenate([least_s for _, least_s in parts]),
    )


def fitting_layouts(asked: Question, chain: Chain) -> tuple[Layouts, Array]:
    """Return the layouts on a chain that use its last type, and what iterations take at least; inf where none fits."""
    if isinstance(asked.hardware, HostProfile):
        return _of_host(asked, chain)
    node = min(chain, key=lambda it: it.gpus_per_node)
    degrees = tensor_degrees(asked.layers.heads, _common_node(chain, node))
    found = layouts(asked.batch, asked.layers.count, degrees, gpus_of(chain), asked.profile.least_samples)
    found = _with_degrees(asked, _kept(found, found.gpus > gpus_of(chain[:-1])))
    least_s = least_step_s(asked, chain, found)
    return found, np.where(may_fit(asked, chain, found), least_s, np.inf)


def _of_host(asked: Question, chain: Chain) -> tuple[Layouts, Array]:
    """Return the same for ranks of one machine: they are few, and each is worked out."""
    stages = stages_at_most(asked.profile)
    found = layouts(asked.batch, stages, [1], gpus_of(chain), asked.profile.least_samples)
    found = _with_degrees(asked, _kept(found, found.saving == SAVINGS.index(Saving.none)))
    return found, np.zeros(found.data.size)


def _with_degrees(asked: Question, found: Layouts) -> Layouts:
    if asked.is_plain:
        found = _kept(found, (found.tensor == 1) & (found.saving == SAVINGS.index(Saving.none)))
    if asked.is_replicated:
        whole = np.array([it.zero == 0 for it in SAVINGS])[found.saving]
        found = _kept(found, (found.pipeline == 1) & (found.tensor == 1) & whole)
    if asked.degrees is None:
        return found
    return _kept(found, np.all(np.stack(found[:3]) == np.array(asked.degrees)[:, None], axis=0))


def _kept(found: Layouts, keep: NDArray[np.bool_]) -> Layouts:
    return Layouts(*(column[keep] for column in found))


def _common_node(chain: Chain, node: GpuType) -> GpuType:
    """Return a node whose GPUs divide those of the nodes of all types: tensor parallelism stays inside nodes."""
    return node._replace(gpus_per_node=int(np.gcd.reduce([it.gpus_per_node for it in chain])))


def _fewest(field: _Field, work_out: _Counted) -> FoundPlan | None:
    """Return the fastest of the plans with the fewest GPUs that meet the deadline."""
    may = np.flatnonzero(field.least_s <= field.asked.most_step_s)
    order = may[np.lexsort((field.least_s[may], field.gpus[may]))]
    met: FoundPlan | None = None
    for at in order.tolist():
        if met is not None and field.gpus[at] > met.gpus:
            return met
        if met is not None and field.least_s[at] >= met.step_s:
            continue
        plan = work_out(at)
        if isinstance(plan, FoundPlan) and plan.step_s <= min(field.asked.most_step_s, met.step_s if met else np.inf):
            met = plan
    return met


def _fastest(order: NDArray[np.int64], work_out: _Counted) -> FoundPlan | None:
    """Return the fastest of all plans; of several, the one with the fewest GPUs."""
    field, found = work_out.field, None
    for at in order.tolist():
        if field.least_s[at] > (np.finfo(float).max if found is None else found.step_s):
            break
        plan = work_out(at)
        if isinstance(plan, FoundPlan) and (found is None or (plan.step_s, plan.gpus) < (found.step_s, found.gpus)):
            found = plan
    return found


def _closest(field: _Field) -> Misfit | None:
    """Return what lacks least memory, of the layouts that spread the model most."""
    widest = np.argsort(-field.gpus, kind="stable")[:200]
    found = [it for it in (field.worked_out(int(at)) for at in widest) if isinstance(it, Misfit)]
    return min(found, key=lambda it: it.needed_bytes / it.gpu_memory_bytes, default=None)


def _that_would_do(asked: Question) -> FoundPlan | None:
    """Return the plan with the fewest GPUs that would do, if the cluster had as many of one of its types."""
    found = list[FoundPlan]()
    if isinstance(asked.hardware, HostProfile):
        return None  # with more ranks it was not measured
    for it in asked.pool:
        for gpus in _doubled(it.gpus):
            more = replace(asked, pool=(it._replace(gpus=gpus),))
            field = _field(more, [more.pool])
            plan = _fewest(field, _Counted(field)) if asked.deadline_s is not None else None
            if plan is not None:
                found.append(plan)
                break
    return min(found, key=lambda it: (it.gpus, it.step_s), default=None)


def _doubled(gpus: int) -> Iterator[int]:
    while gpus < MOST_GPUS:
        gpus = min(2 * gpus, MOST_GPUS)
        yield gpus


def every_plan(asked: Question) -> Iterator[FoundPlan | Misfit]:
    """Yield for each data, pipeline and tensor degree the plan that is fastest, or what lacks least memory."""
    field = _field(asked, chains(asked.pool))
    parts = [np.stack(it[:3], axis=1) for it in field.found]
    degrees = np.column_stack([np.concatenate(parts), field.chain])
    order = np.argsort(field.least_s, kind="stable")
    _, which = np.unique(degrees[order], axis=0, return_inverse=True)
    for group in range(int(which.max()) + 1 if which.size else 0):
        members = order[which == group]
        fits = members[np.isfinite(field.least_s[members])]
        plan = _fastest(fits, _Counted(field))
        yield (
            plan
            if plan is not None
            else min(
                (it for it in map(field.worked_out, members.tolist()) if isinstance(it, Misfit)),
                key=lambda it: it.needed_bytes,
            )
        )


def fastest_by_gpus(asked: Question, gpu_type: GpuType, *, data_parallel: bool = False) -> dict[int, FoundPlan]:
    """Return the fastest plan that fits for each number of GPUs of a type that has one.

    Args:
        asked: The model and its batch.
        gpu_type: The GPUs, of which at most as many are used as there are.
        data_parallel: Whether plans may be data parallel only.
    """
    chain = (gpu_type,)
    found, least_s = fitting_layouts(asked, chain)
    is_open = np.isfinite(least_s)
    if data_parallel:
        is_open &= (found.pipeline == 1) & (found.tensor == 1)
    fastest: dict[int, FoundPlan] = {}
    order = np.flatnonzero(is_open)
    for at in order[np.argsort(least_s[order], kind="stable")].tolist():
        known = fastest.get(int(found.gpus[at]))
        if known is not None and least_s[at] >= known.step_s:
            continue
        plan = evaluate(asked, chain, found.one(at))
        if isinstance(plan, FoundPlan) and (known is None or plan.step_s < known.step_s):
            fastest[plan.gpus] = plan
    return fastest
