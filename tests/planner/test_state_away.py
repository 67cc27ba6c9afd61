"""Plans whose optimizer state is in host memory during the passes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.model.training_plan import MemorySaving
from longshore.planner import search
from longshore.planner.evaluating import evaluate, with_offload_time
from longshore.planner.hardware import DEFAULT
from longshore.planner.memory import CONTEXT_BYTES, FRAGMENTATION, OFFLOAD_MARGIN_S
from longshore.planner.plan import FoundPlan, Misfit, PlanLayout
from longshore.planner.profile.profiling import ModelProfile
from longshore.planner.request import GpuType, PlanRequest, make_request
from longshore.planner.search import may_fit_mask, min_step_s
from tests.planner.models import a100, any_model, layer
from tests.support.budgets import examples

LINK = 25e9  # bytes/s


def request(model: ModelProfile, gpu: GpuType, *, offload: bool = True) -> PlanRequest:
    found = make_request(model, DEFAULT, (gpu,), batch=8, samples=8.0, deadline_s=None)
    return replace(found, offload=offload)


def blocks(count: int = 4, parameters: float = 1e8, saved: float = 1e9) -> ModelProfile:
    """Return layers that are all alike."""
    found = tuple(layer(f"l{i}", 1e13, parameters, saved, 1e6, 2e6) for i in range(count))
    return ModelProfile(name="alike", rung="drawn", tokens_per_sample=1.0, layers=found)


def gpu(memory_bytes: float, link: float = LINK, room: float = math.inf) -> GpuType:
    return a100(8, memory_bytes)._replace(host_bytes_per_s=link, host_room_bytes=room)


def one_gpu(
    memory_bytes: float, link: float = LINK, room: float = math.inf, *, offload: bool = True
) -> FoundPlan | Misfit:
    it = gpu(memory_bytes, link, room)
    return evaluate(request(blocks(), it, offload=offload), (it,), PlanLayout(1, 1, 1, 1, MemorySaving.none))


def with_overhead(asked_for: float) -> float:
    return asked_for * FRAGMENTATION + CONTEXT_BYTES


# Four layers of 1e8 parameters: 6.4 GB of state, of which 4.8 are the optimizer's, and 4 GB that they keep.
WHOLE, PASSES, UPDATE = 10.4e9, 5.6e9, 6.4e9


def test_a_layout_that_fits_anyway_puts_nothing_away() -> None:
    memory_bytes = with_overhead(WHOLE) * 1.0001
    assert one_gpu(memory_bytes) == one_gpu(memory_bytes, offload=False)
    assert isinstance(one_gpu(with_overhead(WHOLE) * 0.9999, offload=False), Misfit)


def test_without_the_optimizers_state_the_larger_of_passes_and_update_is_needed() -> None:
    found = one_gpu(with_overhead(WHOLE) * 0.9999)
    assert isinstance(found, FoundPlan)
    assert found.away_bytes == pytest.approx(4.8e9)
    assert found.stages[0].memory_bytes == pytest.approx(with_overhead(max(PASSES, UPDATE)))
    assert isinstance(one_gpu(with_overhead(UPDATE) * 1.0001), FoundPlan)
    assert isinstance(one_gpu(with_overhead(UPDATE) * 0.9999), Misfit)


def test_an_iteration_is_longer_by_what_neither_going_forward_nor_summing_hides() -> None:
    """One replica has no sum, so it waits for the copy back, and for what is not out once all is kept."""
    memory_bytes = with_overhead(WHOLE) * 0.9999
    fast, slow = one_gpu(memory_bytes, link=1e12), one_gpu(memory_bytes, link=2e10)
    whole = one_gpu(with_overhead(WHOLE) * 1.0001)
    assert isinstance(fast, FoundPlan)
    assert isinstance(slow, FoundPlan)
    assert isinstance(whole, FoundPlan)
    forward_s = slow.stages[0].seconds.forward_s / slow.micro_batches
    assert 4.8e9 / 1e12 < forward_s < 4.8e9 / 2e10
    assert fast.step_s == pytest.approx(whole.step_s + 4.8e9 / 1e12)
    assert slow.step_s == pytest.approx(whole.step_s + 4.8e9 / 2e10 + (4.8e9 / 2e10 - forward_s))


def test_what_is_summed_hides_the_copy_back() -> None:
    layout = PlanLayout(8, 1, 1, 1, MemorySaving.none)
    it = gpu(with_overhead(WHOLE) * 0.9999, link=1e12)
    found = evaluate(request(blocks(), it), (it,), layout)
    assert isinstance(found, FoundPlan)
    back_s = found.away_bytes / 1e12
    assert found.times.offload_s == pytest.approx(max(0.0, back_s - found.times.gradients_s))


def test_of_zero_3_the_last_sum_alone_hides_the_copy_back() -> None:
    it = gpu(80e9, link=1e12)
    found = evaluate(request(blocks(), it), (it,), PlanLayout(2, 1, 1, 1, MemorySaving.zero3))
    assert isinstance(found, FoundPlan)
    stage = replace(found.stages[0], away_bytes=1e12)  # a second each way
    times = replace(found.times, compute_s=30.0, gradients_s=1.2)
    seconds = stage.seconds._replace(forward_s=4.0 * 2.0)
    slow = replace(found, stages=(replace(stage, seconds=seconds),), times=times, micro_batches=4)
    made = with_offload_time(slow, [it])
    assert made is not None
    assert made.times.offload_s == pytest.approx(1.0 - 1.2 / 12)  # and going forward, two seconds, hides the copy out


def test_copies_that_take_longer_than_the_passes_do_not_pay() -> None:
    memory_bytes = with_overhead(WHOLE) * 0.9999
    whole = one_gpu(with_overhead(WHOLE) * 1.0001)
    assert isinstance(whole, FoundPlan)
    passes_s = whole.step_s - whole.times.optimizer_s
    link = 2 * 4.8e9 / (passes_s - OFFLOAD_MARGIN_S)  # at which both copies take as long
    assert isinstance(one_gpu(memory_bytes, link=link * 1.0001), FoundPlan)
    assert isinstance(one_gpu(memory_bytes, link=link * 0.9999), Misfit)


@pytest.mark.parametrize(("link", "room"), [(0.0, math.inf), (LINK, 4.79e9)])
def test_nothing_goes_away_without_a_link_or_room(link: float, room: float) -> None:
    assert isinstance(one_gpu(with_overhead(WHOLE) * 0.9999, link, room), Misfit)
    assert isinstance(one_gpu(with_overhead(WHOLE) * 0.9999, LINK, 4.81e9), FoundPlan)


@settings(max_examples=examples(12))
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([2e9, 3e9, 5e9, 10e9]), st.sampled_from([1e9, 1e11]))
def test_no_layout_is_worse_off_and_bounds_hold(seed: int, gpus: int, memory_bytes: float, link: float) -> None:
    it = a100(gpus, memory_bytes)._replace(host_bytes_per_s=link)
    with_it = request(any_model(np.random.default_rng(seed)), it)
    rows, _ = search.layouts_and_bounds(with_it, (it,))
    least_s, may = min_step_s(with_it, (it,), rows), may_fit_mask(with_it, (it,), rows)
    for row in range(rows.data.size):
        layout = rows.layout(row)
        without = evaluate(replace(with_it, offload=False), (it,), layout)
        found = evaluate(with_it, (it,), layout)
        if isinstance(without, FoundPlan):
            assert found == without
        if isinstance(found, FoundPlan):
            assert may[row]
            assert least_s[row] <= found.step_s
            assert (found.away_bytes > 0.0) == isinstance(without, Misfit)
            assert all(stage.memory_bytes <= stage.gpu_memory_bytes for stage in found.stages)
