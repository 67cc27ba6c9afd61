"""The search for a parallel plan: which layout of a model on GPUs meets a deadline with the fewest GPUs.

Lower bounds save the evaluation of most layouts. A bound that is too high would hide a good plan, so tests compare each
with the evaluated plan.

Source: SPEC P1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import InputError
from ..cluster.model.training_plan import MemorySaving
from .evaluating import evaluate, iteration_work, max_stages_on_host
from .hardware import HostProfile
from .memory import OPTIMIZER_STATE_BYTES, STATE_BYTES, kept_activation_share, usable_memory_bytes
from .plan import RECOMPUTES, SAVINGS, ZERO, FoundPlan, Misfit, PlanLayouts, possible_layouts, tensor_degrees
from .request import Chain, GpuType, PlanRequest, chains, layer_work, total_gpus
from .step_time import NUMBER_BYTES, Array, compute_s, iteration_s, micro_batch_s

MAX_CLUSTER_GPUS = 65_536  # of a larger cluster that is tried
NO_MEMORY_SAVING = SAVINGS.index(MemorySaving.none)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search."""

    plan: FoundPlan | None  # None if nothing fits into memory
    meets: bool  # its bound meets the deadline; True without one
    layouts: int  # in the search
    evaluated: int  # of these; the others were proven to be slower, or not to fit
    closest: Misfit | None = None  # if nothing fits: the layout that needs the least more memory
    with_more_gpus: FoundPlan | None = None  # if the deadline is missed: a plan on more GPUs of one type that meets it
    with_fewer_gpus: FoundPlan | None = None  # if it is met: the fastest plan on fewer GPUs, None if none fits


def find_plan(request: PlanRequest) -> SearchResult:
    """Find the plan with the fewest GPUs whose upper bound meets the deadline, or else the fastest plan.

    1. List the chains of GPU types that a plan may use: each type alone, and the fastest two, three and so on together.
    2. List the layouts on each chain: degrees of data, pipeline and tensor parallelism, micro-batch, memory saving.
    3. Bound the time of an iteration of each layout from below, all layouts at once; infinite if it cannot fit.
    4. With a deadline, find the fastest plan among those with the fewest GPUs that meet it: evaluate layouts by
       ascending GPUs, then by ascending bound, and omit those whose bound is too long.
    5. If a plan meets the deadline, find the fastest plan on fewer GPUs, for comparison.
    6. Otherwise find the fastest plan: evaluate layouts by ascending bound, until no bound is below the best time.
    7. If that plan misses the deadline, or none fits, find the number of GPUs of one type that is enough. If none
       fits, find the layout that is closest to fitting, too.

    To evaluate a layout is to cut the model into its stages, and to compute their times and memory (`evaluate`).

    Raises:
        InputError: If no layout exists for the batch or the requested degrees.
    """
    space = _search_space(request, chains(request.pool))  # 1 to 3
    count, by_bound = space.gpus.size, np.argsort(space.min_step_s, kind="stable")
    if request.deadline_s is not None and (plan := _plan_with_fewest_gpus(space)) is not None:  # 4
        fewer = _fastest_plan(space, by_bound[space.gpus[by_bound] < plan.gpus])  # 5
        return SearchResult(plan, meets=True, layouts=count, evaluated=space.evaluated, with_fewer_gpus=fewer)
    plan = _fastest_plan(space, by_bound)  # 6
    evaluated = space.evaluated
    if plan is not None and request.deadline_s is None:
        return SearchResult(plan, meets=True, layouts=count, evaluated=evaluated)
    more = _plan_with_more_gpus(request)  # 7
    closest = None if plan is not None else _closest_to_fitting(space)
    return SearchResult(plan, meets=False, layouts=count, evaluated=evaluated, closest=closest, with_more_gpus=more)


@dataclass(slots=True)
class _SearchSpace:
    """All layouts on all chains, flat: arrays of shape (all,)."""

    request: PlanRequest
    chains: list[Chain]
    layouts: list[PlanLayouts]  # on each chain
    chain: NDArray[np.int64]  # index of the chain
    row: NDArray[np.int64]  # in the layouts of that chain
    gpus: NDArray[np.int64]
    min_step_s: Array  # lower bound of an iteration; infinite if it cannot fit
    evaluated: int = 0  # layouts so far

    def evaluate(self, index: int) -> FoundPlan | Misfit:
        """Return the plan of a layout, or that it does not fit."""
        self.evaluated += 1
        chain = int(self.chain[index])
        return evaluate(self.request, self.chains[chain], self.layouts[chain].layout(int(self.row[index])))


def _search_space(request: PlanRequest, tried: list[Chain]) -> _SearchSpace:
    """Return all layouts on some chains, each with the lower bound of its iteration."""
    parts = [layouts_and_bounds(request, chain) for chain in tried]
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
        layouts=found,
        chain=np.repeat(np.arange(len(tried)), [rows.data.size for rows in found]),
        row=np.concatenate([np.arange(rows.data.size) for rows in found]),
        gpus=np.concatenate([rows.gpus for rows in found]),
        min_step_s=np.concatenate([bound_s for _, bound_s in parts]),
    )


def layouts_and_bounds(request: PlanRequest, chain: Chain) -> tuple[PlanLayouts, Array]:
    """Return the layouts on a chain that use its last type, and a lower bound of their iterations; inf if none fits."""
    if isinstance(request.hardware, HostProfile):
        return _host_layouts_and_bounds(request, chain)
    degrees = tensor_degrees(request.layers.heads, [gpu_type.gpus_per_node for gpu_type in chain])
    found = possible_layouts(
        request.batch, request.layers.count, degrees, total_gpus(chain), request.profile.min_samples
    )
    found = _allowed_layouts(request, _select_layouts(found, found.gpus > total_gpus(chain[:-1])))
    bound_s = min_step_s(request, chain, found)
    return found, np.where(may_fit_mask(request, chain, found), bound_s, np.inf)


def _host_layouts_and_bounds(request: PlanRequest, chain: Chain) -> tuple[PlanLayouts, Array]:
    """Return the same for ranks of one machine: there are few, and each is evaluated."""
    stages = max_stages_on_host(request.profile)
    found = possible_layouts(request.batch, stages, [1], total_gpus(chain), request.profile.min_samples)
    found = _allowed_layouts(request, _select_layouts(found, found.saving == NO_MEMORY_SAVING))
    return found, np.zeros(found.data.size)


def _allowed_layouts(request: PlanRequest, found: PlanLayouts) -> PlanLayouts:
    """Return the layouts that the request allows."""
    if request.is_plain:
        found = _select_layouts(found, (found.tensor == 1) & (found.saving == NO_MEMORY_SAVING))
    if request.is_replicated:
        whole = ZERO[found.saving] == 0
        found = _select_layouts(found, (found.pipeline == 1) & (found.tensor == 1) & whole)
    if request.degrees is None:
        return found
    return _select_layouts(found, np.all(np.stack(found[:3]) == np.array(request.degrees)[:, None], axis=0))


def _select_layouts(found: PlanLayouts, keep: NDArray[np.bool_]) -> PlanLayouts:
    return PlanLayouts(*(column[keep] for column in found))


def min_step_s(request: PlanRequest, chain: Chain, found: PlanLayouts) -> Array:
    """Return a lower bound of an iteration by each layout, shape (layouts,)."""
    figures = list(zip(*chain, strict=True))[2:]
    gpu_type = GpuType("best", total_gpus(chain), *(max(column) for column in figures))  # the best of each figure
    constants, p, m = request.constants(gpu_type), found.pipeline, request.batch // (found.data * found.micro_batch)
    total_s, products_s, longest_s, block_s = _micro_batch_bounds(request, gpu_type, found)
    # One of the stages has at least its share of the blocks, and at least its share of everything.
    blocks = np.ceil(float(request.layers.is_block.sum()) / p) * block_s
    balanced = np.maximum(total_s / p, products_s / _summed_stage_speeds(chain, found))
    micro_s = np.maximum(np.maximum(blocks, balanced), longest_s)
    parameters = float(request.layers.parameters.sum()) / (p * found.tensor)
    frozen_bytes = float(request.layers.frozen_bytes.sum()) / (p * found.tensor)
    done = iteration_work(
        parameters, frozen_bytes, found.data.astype(np.float64), m.astype(np.float64), ZERO[found.saving],
        (found.gpus <= gpu_type.gpus_per_node).astype(np.float64), (m + p - 1).astype(np.float64),
    )  # fmt: skip
    bound_s = iteration_s(micro_s, done, request.hardware_rates(gpu_type), constants)
    return bound_s * (1.0 - 1e-9)  # sums of other orders round otherwise


def _micro_batch_bounds(request: PlanRequest, gpu_type: GpuType, found: PlanLayouts) -> list[Array]:
    """Return times of a micro-batch: whole, in matrix products, of the longest layer, of the fastest block.

    Each has the shape (layouts,). Each case of tensor degree, micro-batch and recomputation is computed once.
    """
    kinds = np.stack([found.tensor, found.micro_batch, RECOMPUTES[found.saving].astype(np.int64)], axis=1)
    key = (kinds[:, 0] * 1_000_000 + kinds[:, 1]) * 2 + kinds[:, 2]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    work = layer_work(request.layers, *(kinds[first][:, [column]].astype(np.float64) for column in range(3)))
    constants = request.constants(gpu_type)
    each_s = micro_batch_s(work, gpu_type.peak_flops, constants)
    products_s = compute_s(work, gpu_type.peak_flops, constants).sum(axis=1)
    is_block = request.layers.is_block > 0
    block_s = each_s[:, is_block].min(axis=1) if is_block.any() else np.zeros(first.size)
    return [times_s[which] for times_s in (each_s.sum(axis=1), products_s, each_s.max(axis=1), block_s)]


def _summed_stage_speeds(chain: Chain, found: PlanLayouts) -> Array:
    """Return the sum of the speeds of all stages, relative to the fastest type, shape (layouts,)."""
    each, total, before, passed = found.data * found.tensor, np.zeros(found.data.size), np.zeros(found.data.size), 0
    for gpu_type in chain:
        passed += gpu_type.gpus
        ends_here = np.minimum(found.pipeline, passed // each).astype(np.float64)  # the slowest GPU comes last
        total += (ends_here - before) * gpu_type.peak_flops / chain[0].peak_flops
        before = ends_here
    return np.maximum(total, 1e-30)


def may_fit_mask(request: PlanRequest, chain: Chain, found: PlanLayouts) -> NDArray[np.bool_]:
    """Return which layouts may fit into memory; for the others no cuts do. Shape (layouts,)."""
    layers, usable = request.layers, max(usable_memory_bytes(gpu_type.memory_bytes) for gpu_type in chain)
    zero, data = ZERO[found.saving], found.data.astype(np.float64)
    kept = 1.0 - OPTIMIZER_STATE_BYTES / STATE_BYTES  # of the state, what ZeRO-1 does not spread
    state = STATE_BYTES * np.where(zero == 3, 1 / data, np.where(zero == 1, kept + (1 - kept) / data, 1.0))
    share = kept_activation_share(found.tensor.astype(np.float64))
    inputs = float((layers.input_elements * layers.is_block).sum()) * NUMBER_BYTES
    recomputing = inputs + float((layers.saved_bytes * (1.0 - layers.is_block)).sum()) * share
    per_sample = np.where(RECOMPUTES[found.saving] > 0, recomputing, layers.saved_bytes.sum() * share)
    frozen = layers.frozen_bytes.sum() / found.tensor / np.where(zero == 3, data, 1.0)
    states, activations = layers.parameters.sum() / found.tensor * state + frozen, per_sample * found.micro_batch
    needed = states + activations
    if request.offload:
        optimizer = OPTIMIZER_STATE_BYTES / STATE_BYTES * np.where(zero == 1, 1 / data / state * STATE_BYTES, 1.0)
        needed = np.maximum(states - (states - frozen) * optimizer + activations, states)
    fits: NDArray[np.bool_] = needed <= usable * found.pipeline * (1.0 + 1e-9)
    return fits


def _plan_with_fewest_gpus(space: _SearchSpace) -> FoundPlan | None:
    """Return the fastest of the plans with the fewest GPUs that fit, and meet the deadline if there is one."""
    max_step_s = space.request.max_step_s
    possible = np.flatnonzero(np.isfinite(space.min_step_s) & (space.min_step_s <= max_step_s))
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


def _fastest_plan(space: _SearchSpace, order: NDArray[np.int64]) -> FoundPlan | None:
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


def _plan_with_more_gpus(request: PlanRequest) -> FoundPlan | None:
    """Return the plan with the fewest GPUs that fits and meets the deadline, if there were more GPUs of one type."""
    if isinstance(request.hardware, HostProfile):
        return None  # more ranks were not measured
    found = list[FoundPlan]()
    for gpu_type in request.pool:
        gpus = gpu_type.gpus
        while gpus < MAX_CLUSTER_GPUS:
            gpus = min(2 * gpus, MAX_CLUSTER_GPUS)
            more = replace(request, pool=(gpu_type._replace(gpus=gpus),))
            try:
                space = _search_space(more, [more.pool])
            except InputError:  # the degrees that are wanted exist on another type, or at another number
                continue
            plan = _plan_with_fewest_gpus(space)
            if plan is not None:
                found.append(plan)
                break
    return min(found, key=lambda plan: (plan.gpus, plan.step_s), default=None)


def best_by_degrees(request: PlanRequest) -> Iterator[FoundPlan | Misfit]:
    """Yield for each combination of degrees the fastest plan, or the layout that needs the least memory."""
    space = _search_space(request, chains(request.pool))
    parts = [np.stack(rows[:3], axis=1) for rows in space.layouts]
    degrees = np.column_stack([np.concatenate(parts), space.chain])
    order = np.argsort(space.min_step_s, kind="stable")
    _, which = np.unique(degrees[order], axis=0, return_inverse=True)
    for group in range(int(which.max()) + 1 if which.size else 0):
        members = order[which == group]
        plan = _fastest_plan(space, members[np.isfinite(space.min_step_s[members])])
        if plan is None:
            found = (space.evaluate(at) for at in members.tolist())
            yield min(
                (misfit for misfit in found if isinstance(misfit, Misfit)), key=lambda misfit: misfit.needed_bytes
            )
        else:
            yield plan


def fastest_by_gpus(request: PlanRequest, gpu_type: GpuType, *, data_parallel: bool = False) -> dict[int, FoundPlan]:
    """Return the fastest plan that fits for each number of GPUs of a type that has one."""
    space = _search_space(request, [(gpu_type,)])
    order = np.argsort(space.min_step_s, kind="stable")
    if data_parallel:
        (found,) = space.layouts
        order = order[((found.pipeline == 1) & (found.tensor == 1))[order]]
    gpus = space.gpus[order]
    plans = {count: _fastest_plan(space, order[gpus == count]) for count in np.unique(gpus).tolist()}
    return {count: plan for count, plan in plans.items() if plan is not None}
