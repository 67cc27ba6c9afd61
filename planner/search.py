"""The search for a parallel plan: which layout of a model on GPUs meets a deadline with the fewest GPUs.

Source: SPEC P1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import InputError
from ..cluster.model.training_plan import MemorySaving
from .evaluating import evaluate, may_fit, min_step_s
from .model import Array, HostProfile
from .on_host import max_stages
from .plan import SAVINGS, FoundPlan, Misfit, PlanLayouts, layouts, tensor_degrees
from .pool import GpuType
from .request import Chain, PlanRequest, chains, gpus_of

MAX_CLUSTER_GPUS = 65_536  # of a larger cluster that is tried


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search."""

    plan: FoundPlan | None  # None if nothing fits into memory
    meets: bool  # its bound meets the deadline; True without one
    closest: Misfit | None  # if nothing fits: the layout that needs the least more memory
    layouts: int  # in the search
    evaluated: int  # of these; the others were proven to be slower, or not to fit
    with_more_gpus: FoundPlan | None  # if the deadline is missed: a plan on more GPUs of one type that meets it
    with_fewer_gpus: FoundPlan | None = None  # if it is met: the fastest plan on fewer GPUs, None if none fits


def find_plan(request: PlanRequest) -> SearchResult:
    """Find the plan with the fewest GPUs whose upper bound meets the deadline, or else the fastest plan.

    1. List the chains of GPU types that a plan may use: each type alone, and the fastest two, three and so on together.
    2. List the layouts on each chain: degrees of data, pipeline and tensor parallelism, micro-batch, memory saving.
    3. Bound the time of an iteration of each layout from below, all layouts at once; infinite if it cannot fit.
    4. With a deadline, evaluate layouts by ascending GPUs, then by ascending bound, and take the fastest plan among
       those with the fewest GPUs that meet it. Layouts whose bound is too long are not evaluated.
    5. If a plan meets the deadline, find the fastest plan on fewer GPUs, for comparison.
    6. Otherwise find the fastest plan: evaluate layouts by ascending bound, until no bound is below the best time.
    7. If that plan misses the deadline, find the number of GPUs of one type that meets it. If no plan fits, find the
       layout that is closest to fitting.

    To evaluate a layout is to cut the model into its stages, and to compute their time and memory (`evaluate`).

    Args:
        request: The model, the GPUs and the deadline.

    Raises:
        InputError: If no layout exists for the batch or the requested degrees.
    """
    space = _search_space(request, chains(request.pool))  # 1 to 3
    by_bound = np.argsort(space.min_step_s, kind="stable")
    plan = _fewest_gpus(space) if request.deadline_s is not None else None  # 4
    if plan is not None:
        fewer = _fastest(space, by_bound[space.gpus[by_bound] < plan.gpus])  # 5
        return SearchResult(plan, True, None, space.gpus.size, space.evaluated, None, fewer)  # noqa: FBT003  # `meets`
    plan = _fastest(space, by_bound)  # 6
    evaluated = space.evaluated
    meets = plan is not None and request.deadline_s is None
    more = None if meets else _with_more_gpus(request)  # 7
    closest = None if plan is not None else _closest_to_fitting(space)
    return SearchResult(plan, meets, closest, space.gpus.size, evaluated, more)


@dataclass(slots=True)
class _SearchSpace:
    """All layouts on all chains, flat: arrays of shape (all,)."""

    request: PlanRequest
    chains: list[Chain]
    found: list[PlanLayouts]  # on each chain
    chain: NDArray[np.int64]  # index of the chain
    row: NDArray[np.int64]  # in the layouts of that chain
    gpus: NDArray[np.int64]
    min_step_s: Array  # lower bound of an iteration; infinite if it cannot fit
    evaluated: int = 0  # layouts so far

    def evaluate(self, at: int) -> FoundPlan | Misfit:
        """Return the plan of a layout, or that it does not fit."""
        self.evaluated += 1
        chain = int(self.chain[at])
        return evaluate(self.request, self.chains[chain], self.found[chain].one(int(self.row[at])))


def _search_space(request: PlanRequest, tried: list[Chain]) -> _SearchSpace:
    parts = [layouts_on(request, chain) for chain in tried]
    found = [rows for rows, _ in parts]
    if not sum(rows.data.size for rows in found):
        if request.degrees is None:
            samples = request.profile.min_samples
            problem = (
                f"the model does not train on fewer than {samples} samples at a time, and no part of a batch has them"
            )
            raise InputError(problem, f"take a multiple of {samples}", field="--batch")
        degrees = "x".join(map(str, request.degrees))
        fix = f"take a data degree that divides {request.batch}, stages of one layer at least, and GPUs that there are"
        raise InputError(f"no plan has the degrees {degrees}", fix, field="--degrees")
    return _SearchSpace(
        request=request,
        chains=tried,
        found=found,
        chain=np.repeat(np.arange(len(tried)), [rows.data.size for rows in found]),
        row=np.concatenate([np.arange(rows.data.size) for rows in found]),
        gpus=np.concatenate([rows.gpus for rows in found]),
        min_step_s=np.concatenate([bound_s for _, bound_s in parts]),
    )


def layouts_on(request: PlanRequest, chain: Chain) -> tuple[PlanLayouts, Array]:
    """Return the layouts on a chain that use its last type, and a lower bound of their iterations; inf if none fits."""
    if isinstance(request.hardware, HostProfile):
        return _layouts_on_host(request, chain)
    degrees = tensor_degrees(request.layers.heads, _common_node(chain))
    found = layouts(request.batch, request.layers.count, degrees, gpus_of(chain), request.profile.min_samples)
    found = _allowed(request, _kept(found, found.gpus > gpus_of(chain[:-1])))
    bound_s = min_step_s(request, chain, found)
    return found, np.where(may_fit(request, chain, found), bound_s, np.inf)


def _layouts_on_host(request: PlanRequest, chain: Chain) -> tuple[PlanLayouts, Array]:
    """Return the same for ranks of one machine: there are few, and each is evaluated."""
    stages = max_stages(request.profile)
    found = layouts(request.batch, stages, [1], gpus_of(chain), request.profile.min_samples)
    found = _allowed(request, _kept(found, found.saving == SAVINGS.index(MemorySaving.none)))
    return found, np.zeros(found.data.size)


def _allowed(request: PlanRequest, found: PlanLayouts) -> PlanLayouts:
    """Return the layouts that the request allows."""
    if request.is_plain:
        found = _kept(found, (found.tensor == 1) & (found.saving == SAVINGS.index(MemorySaving.none)))
    if request.is_replicated:
        whole = np.array([saving.zero == 0 for saving in SAVINGS])[found.saving]
        found = _kept(found, (found.pipeline == 1) & (found.tensor == 1) & whole)
    if request.degrees is None:
        return found
    return _kept(found, np.all(np.stack(found[:3]) == np.array(request.degrees)[:, None], axis=0))


def _kept(found: PlanLayouts, keep: NDArray[np.bool_]) -> PlanLayouts:
    return PlanLayouts(*(column[keep] for column in found))


def _common_node(chain: Chain) -> GpuType:
    """Return a node whose GPUs divide those of the nodes of all types: tensor parallelism stays inside nodes."""
    smallest = min(chain, key=lambda gpu_type: gpu_type.gpus_per_node)
    return smallest._replace(gpus_per_node=int(np.gcd.reduce([gpu_type.gpus_per_node for gpu_type in chain])))


def _fewest_gpus(space: _SearchSpace) -> FoundPlan | None:
    """Return the fastest of the plans with the fewest GPUs that meet the deadline."""
    max_step_s = space.request.max_step_s
    possible = np.flatnonzero(space.min_step_s <= max_step_s)
    order = possible[np.lexsort((space.min_step_s[possible], space.gpus[possible]))]
    best: FoundPlan | None = None
    for at in order.tolist():
        if best is not None and space.gpus[at] > best.gpus:
            return best
        if best is not None and space.min_step_s[at] >= best.step_s:
            continue
        plan = space.evaluate(at)
        if isinstance(plan, FoundPlan) and plan.step_s <= min(max_step_s, best.step_s if best else np.inf):
            best = plan
    return best


def _fastest(space: _SearchSpace, order: NDArray[np.int64]) -> FoundPlan | None:
    """Return the fastest plan, and of several the one with the fewest GPUs; layouts come by ascending bound."""
    best = None
    for at in order.tolist():
        if space.min_step_s[at] > (np.finfo(float).max if best is None else best.step_s):
            break
        plan = space.evaluate(at)
        if isinstance(plan, FoundPlan) and (best is None or (plan.step_s, plan.gpus) < (best.step_s, best.gpus)):
            best = plan
    return best


def _closest_to_fitting(space: _SearchSpace) -> Misfit | None:
    """Return the layout that needs the least more memory, of those that spread the model most."""
    widest = np.argsort(-space.gpus, kind="stable")[:200]
    misfits = [found for found in (space.evaluate(int(at)) for at in widest) if isinstance(found, Misfit)]
    return min(misfits, key=lambda misfit: misfit.needed_bytes / misfit.gpu_memory_bytes, default=None)


def _with_more_gpus(request: PlanRequest) -> FoundPlan | None:
    """Return the plan with the fewest GPUs that meets the deadline, if the cluster had more of one of its types."""
    if isinstance(request.hardware, HostProfile):
        return None  # more ranks were not measured
    found = list[FoundPlan]()
    for gpu_type in request.pool:
        for gpus in _doubled(gpu_type.gpus):
            more = replace(request, pool=(gpu_type._replace(gpus=gpus),))
            space = _search_space(more, [more.pool])
            plan = _fewest_gpus(space) if request.deadline_s is not None else None
            if plan is not None:
                found.append(plan)
                break
    return min(found, key=lambda plan: (plan.gpus, plan.step_s), default=None)


def _doubled(gpus: int) -> Iterator[int]:
    while gpus < MAX_CLUSTER_GPUS:
        gpus = min(2 * gpus, MAX_CLUSTER_GPUS)
        yield gpus


def every_plan(request: PlanRequest) -> Iterator[FoundPlan | Misfit]:
    """Yield for each combination of degrees the fastest plan, or the layout that needs the least memory."""
    space = _search_space(request, chains(request.pool))
    parts = [np.stack(rows[:3], axis=1) for rows in space.found]
    degrees = np.column_stack([np.concatenate(parts), space.chain])
    order = np.argsort(space.min_step_s, kind="stable")
    _, which = np.unique(degrees[order], axis=0, return_inverse=True)
    for group in range(int(which.max()) + 1 if which.size else 0):
        members = order[which == group]
        plan = _fastest(space, members[np.isfinite(space.min_step_s[members])])
        if plan is None:
            found = (space.evaluate(at) for at in members.tolist())
            yield min(
                (misfit for misfit in found if isinstance(misfit, Misfit)), key=lambda misfit: misfit.needed_bytes
            )
        else:
            yield plan


def fastest_by_gpus(request: PlanRequest, gpu_type: GpuType, *, data_parallel: bool = False) -> dict[int, FoundPlan]:
    """Return the fastest plan that fits for each number of GPUs of a type that has one.

    Args:
        request: The model and its batch.
        gpu_type: The GPUs, of which at most as many are used as there are.
        data_parallel: Whether plans may be data parallel only.
    """
    chain = (gpu_type,)
    found, bound_s = layouts_on(request, chain)
    is_open = np.isfinite(bound_s)
    if data_parallel:
        is_open &= (found.pipeline == 1) & (found.tensor == 1)
    fastest: dict[int, FoundPlan] = {}
    order = np.flatnonzero(is_open)
    for at in order[np.argsort(bound_s[order], kind="stable")].tolist():
        known = fastest.get(int(found.gpus[at]))
        if known is not None and bound_s[at] >= known.step_s:
            continue
        plan = evaluate(request, chain, found.one(at))
        if isinstance(plan, FoundPlan) and (known is None or plan.step_s < known.step_s):
            fastest[plan.gpus] = plan
    return fastest
