"""The plan that is chosen, against all plans worked out one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.planner import search
from longshore.planner.evaluating import evaluate
from longshore.planner.hardware import DEFAULT
from longshore.planner.plan import FoundPlan, Misfit
from longshore.planner.profile.profiling import ModelProfile
from longshore.planner.request import GpuType, PlanRequest, Pool, chains, make_request
from longshore.planner.search import best_by_degrees, find_plan, may_fit_mask, min_step_s
from tests.planner.models import a100, any_model, gpt, v100
from tests.support.budgets import examples


def request(
    pool: Pool, model: ModelProfile, deadline_s: float | None, batch: int = 8, samples: float = 1e5
) -> PlanRequest:
    return make_request(model, DEFAULT, pool, batch=batch, samples=samples, deadline_s=deadline_s)


def all_plans(it: PlanRequest) -> list[FoundPlan | Misfit]:
    """Work out every layout on every chain of types."""
    found = []
    for chain in chains(it.pool):
        rows, _ = search.layouts_and_bounds(it, chain)
        found += [evaluate(it, chain, rows.layout(row)) for row in range(rows.data.size)]
    return found


def pools() -> st.SearchStrategy[Pool]:
    memory = st.sampled_from([2e9, 3e9, 5e9, 80e9])
    fast = st.builds(a100, st.integers(1, 6), memory)
    slow = st.builds(
        lambda gpus, node: v100(gpus)._replace(gpus_per_node=node), st.integers(1, 3), st.sampled_from([2, 4])
    )
    return st.one_of(fast.map(lambda it: (it,)), st.tuples(fast, slow))


@settings(max_examples=examples(12))
@given(st.integers(0, 10**6), pools(), st.sampled_from([None, 0.2, 0.5, 0.9, 1.5, 8.0]))
def test_the_choice_is_that_of_all_plans_evaluated(seed: int, pool: Pool, share: float | None) -> None:
    """A deadline is a share of what the fastest plan's bound takes with half of the GPUs or so."""
    model = any_model(np.random.default_rng(seed))
    plans = [it for it in all_plans(request(pool, model, None)) if isinstance(it, FoundPlan)]
    times = sorted(it.bound_s for it in plans)
    deadline_s = None if share is None or not times else share * times[len(times) // 3]
    it = request(pool, model, deadline_s)
    choice = find_plan(it)
    if not plans:
        assert choice.plan is None
        assert choice.closest is not None
        return
    meeting = [plan for plan in plans if deadline_s is not None and plan.bound_s <= deadline_s]
    best = (
        min(meeting, key=lambda plan: (plan.gpus, plan.step_s)) if meeting else min(plans, key=lambda plan: plan.step_s)
    )
    assert choice.plan is not None
    assert choice.plan.step_s == pytest.approx(best.step_s, rel=1e-12)
    assert choice.meets == (bool(meeting) or deadline_s is None)
    if meeting:
        assert choice.plan.gpus == best.gpus
        with_fewer_gpus = min((plan.step_s for plan in plans if plan.gpus < best.gpus), default=None)
        assert (None if choice.with_fewer_gpus is None else choice.with_fewer_gpus.step_s) == with_fewer_gpus


@settings(max_examples=examples(12))
@given(st.integers(0, 10**6), pools())
def test_what_is_passed_over_is_no_better_than_its_bound(seed: int, pool: Pool) -> None:
    it = request(pool, any_model(np.random.default_rng(seed)), None)
    for chain in chains(pool):
        rows, _ = search.layouts_and_bounds(it, chain)
        if not rows.data.size:
            continue
        least_s, may = min_step_s(it, chain, rows), may_fit_mask(it, chain, rows)
        for row in range(rows.data.size):
            plan = evaluate(it, chain, rows.layout(row))
            if isinstance(plan, FoundPlan):
                assert may[row]
                assert least_s[row] <= plan.step_s


def test_every_stage_of_a_plan_fits_its_gpu() -> None:
    for it in all_plans(request((a100(8, 6e9), v100(4)), gpt(), None)):
        if isinstance(it, FoundPlan):
            assert all(stage.memory_bytes <= stage.gpu_memory_bytes for stage in it.stages)
        else:
            assert it.needed_bytes > it.gpu_memory_bytes


def test_seven_billion_parameters_train_on_four_gpus_of_80_gb_in_a_day() -> None:
    model = gpt(layers=32, hidden=4096, sequence=2048, words=32_000, heads=32)
    choice = find_plan(request((a100(64),), model, 86_400.0, batch=512, samples=1e9 / 2048))
    assert choice.meets
    assert choice.plan is not None
    assert choice.plan.gpus == 4


def test_a_deadline_that_is_missed_names_the_gap_and_what_is_enough() -> None:
    it = request((a100(4),), gpt(), 0.25 * 3600.0, batch=256)
    choice = find_plan(it)
    assert not choice.meets
    assert choice.plan is not None
    assert choice.plan.bound_s > 900.0
    assert choice.with_more_gpus is not None
    assert choice.with_more_gpus.bound_s <= 900.0
    assert choice.with_more_gpus.gpus > 4
    assert find_plan(request((a100(choice.with_more_gpus.gpus),), gpt(), 900.0, batch=256)).meets
    assert not find_plan(request((a100(choice.with_more_gpus.gpus - 1),), gpt(), 900.0, batch=256)).meets


@pytest.mark.parametrize("deadline_s", [None, 1e12])
def test_where_nothing_fits_the_gpus_that_would_be_enough_are_named(deadline_s: float | None) -> None:
    model = gpt(layers=32, hidden=4096, sequence=2048, words=32_000, heads=32)
    choice = find_plan(request((a100(1),), model, deadline_s, batch=512))
    assert choice.plan is None
    assert choice.closest is not None
    assert choice.with_more_gpus is not None
    enough = choice.with_more_gpus.gpus
    assert find_plan(request((a100(enough),), model, deadline_s, batch=512)).plan is not None
    assert find_plan(request((a100(enough - 1),), model, deadline_s, batch=512)).plan is None


@pytest.mark.parametrize("degrees", [(16, 1, 1), (1, 1, 8), (2, 1, 2)])
@pytest.mark.parametrize("deadline_s", [None, 1.0, 1e12])
def test_degrees_that_only_one_type_of_several_has_are_searched(
    degrees: tuple[int, int, int], deadline_s: float | None
) -> None:
    pool = (v100(4)._replace(gpus_per_node=4), a100(64))
    choice = find_plan(replace(request(pool, gpt(), deadline_s, batch=256), degrees=degrees))
    assert choice.plan is not None
    assert (choice.plan.layout.data, choice.plan.layout.pipeline, choice.plan.layout.tensor) == degrees
    assert choice.meets == (deadline_s != 1.0)


def test_a_deadline_of_a_millisecond_has_no_size_that_is_enough() -> None:
    choice = find_plan(request((a100(4),), gpt(), 0.001))
    assert not choice.meets
    assert choice.with_more_gpus is None


def test_a_layer_that_fits_no_gpu_is_reported_with_what_it_needs() -> None:
    choice = find_plan(request((a100(64, 1.2e9),), gpt(hidden=8192), 1e6))
    assert choice.plan is None
    assert choice.closest is not None
    assert choice.closest.needed_bytes > 1.2e9


def test_stages_on_faster_gpus_get_more_layers() -> None:
    """Eight GPUs of either type, and no other way to use all 16 than a stage or more on each."""
    fast, slow = a100(1)._replace(gpus_per_node=1), v100(1)._replace(gpus_per_node=1, memory_bytes=80e9)
    plans = [
        it
        for it in all_plans(request((fast, slow), gpt(), None, batch=7))
        if isinstance(it, FoundPlan) and it.layout.pipeline == 2
    ]
    assert plans
    for plan in plans:
        first, second = (stage.last_layer - stage.first_layer + 1 for stage in plan.stages)
        assert [stage.gpu_type for stage in plan.stages] == ["a100", "v100"]
        assert first > second


def test_a_group_of_two_types_goes_as_fast_as_its_slowest_member() -> None:
    mixed = request((a100(1), v100(1)._replace(memory_bytes=80e9)), gpt(), None, batch=8)
    alone = request((v100(2)._replace(memory_bytes=80e9),), gpt(), None, batch=8)
    for plan in all_plans(mixed):
        if isinstance(plan, FoundPlan) and plan.layout.data == 2:
            same = evaluate(alone, alone.pool, plan.layout)
            assert isinstance(same, FoundPlan)
            assert plan.times.compute_s == pytest.approx(same.times.compute_s)


def test_tensor_parallelism_stays_in_a_node_and_divides_the_heads() -> None:
    pool: Pool = (GpuType("odd", 12, 312e12, 80e9, 6, 300e9, 25e9),)
    degrees = {it.layout.tensor for it in all_plans(request(pool, gpt(heads=16), None))}
    assert degrees == {1, 2}


def test_the_table_has_each_degree_once_and_the_best_of_all_plans() -> None:
    it = request((a100(8),), gpt(layers=6), None)
    rows = list(best_by_degrees(it))
    keys = [(row.layout.data, row.layout.pipeline, row.layout.tensor) for row in rows]
    assert len(keys) == len(set(keys))
    best = min(row.step_s for row in rows if isinstance(row, FoundPlan))
    plan = find_plan(it).plan
    assert plan is not None
    assert best == plan.step_s
