"""Times and memory against formulas worked out apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.training_plan import MemorySaving
from longshore.planner.calibration import FULL, NONE, MeasuredRuns, decoder_work_of, predicted_iteration_s
from longshore.planner.evaluating import evaluate
from longshore.planner.hardware import DEFAULT, MeasuredHardware
from longshore.planner.memory import kept_activation_share, state_bytes_per_parameter
from longshore.planner.plan import FoundPlan, PlanLayout
from longshore.planner.request import make_request
from tests.planner.models import a100, gpt


def one_run(data: int, pipeline: int, tensor: int, micro_batch: int, *, recomputes: bool, batch: int) -> MeasuredRuns:
    shape = {"hidden": 2048, "layers": 24, "sequence": 1024, "vocabulary": 51_200}
    degrees = {"gpus": data * pipeline * tensor, "data": data, "pipeline": pipeline, "tensor": tensor}
    others = {"batch": batch, "micro_batch": micro_batch, "recompute": FULL if recomputes else NONE}
    values = {**shape, **degrees, **others, "interleave": 1, "zero3": 0, "iteration_s": 1}
    return MeasuredRuns(**{name: np.array([float(value)]) for name, value in values.items()})


def by_hand(runs: MeasuredRuns) -> float:
    """Return the iteration time of one run, by the formula as it is printed, with plain numbers."""
    it = MeasuredRuns(*(float(column[0]) for column in runs))  # type: ignore[arg-type]  # numbers, not arrays
    b, h, s, t, p, d, c = it.micro_batch, it.hidden, it.sequence, it.tensor, it.pipeline, it.data, DEFAULT.as_constants
    k, a = (4.0, 6.0) if it.recompute == FULL else (3.0, 4.0)
    local, words = it.layers / p, it.vocabulary
    f_stage = b / t * (k * (24 * s * h**2 + 4 * s**2 * h) * local + 3 * 2 * s * h * words)
    x = b * s * h / t
    e = c.efficiency * x / (x + c.half_elements)
    tp = 2 * (t - 1) / t * a * local * b * s * h * 2
    t_mb = f_stage / (312e12 * e) + tp / c.tensor_bytes_per_s + c.layer_s * local
    t_mb += c.tensor_layer_s * local if t > 1 else 0.0
    held = 12 * h**2 * local / t + words * h / t
    bandwidth = c.inside_bytes_per_s if t * p * d <= 8 else c.across_bytes_per_s
    m = it.batch / (d * b)
    whole = t_mb * (m + p - 1) + 2 * (d - 1) / d * 2 * held / bandwidth + 20 * held / 1.5e12 + c.iteration_s
    return float(whole)


DEGREES = st.tuples(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2])
)


@given(degrees=DEGREES, recomputes=st.booleans())
def test_runs_take_the_time_of_the_printed_formula(degrees: tuple[int, int, int, int], *, recomputes: bool) -> None:
    runs = one_run(*degrees, recomputes=recomputes, batch=64)
    assert predicted_iteration_s(decoder_work_of(runs, MeasuredHardware()), DEFAULT.as_constants)[0] == pytest.approx(
        by_hand(runs), rel=1e-12
    )


@given(degrees=DEGREES, recomputes=st.booleans())
def test_a_plan_of_one_stage_takes_what_is_printed(degrees: tuple[int, int, int, int], *, recomputes: bool) -> None:
    """Stages that hold the head and fewer layers are balanced; with one stage there is nothing to balance."""
    data, _, tensor, micro_batch = degrees
    runs = one_run(data, 1, tensor, micro_batch, recomputes=recomputes, batch=64)
    request = make_request(gpt(), DEFAULT, (a100(64),), batch=64, samples=1e5, deadline_s=None)
    saving = MemorySaving.recompute if recomputes else MemorySaving.none
    plan = evaluate(request, request.pool, PlanLayout(data, 1, tensor, micro_batch, saving))
    assert isinstance(plan, FoundPlan)
    assert plan.step_s == pytest.approx(by_hand(runs), rel=1e-9)


def test_balanced_stages_are_no_slower_than_the_formula_of_equal_ones() -> None:
    request = make_request(gpt(), DEFAULT, (a100(64),), batch=64, samples=1e5, deadline_s=None)
    plan = evaluate(request, request.pool, PlanLayout(2, 4, 1, 1, MemorySaving.none))
    assert isinstance(plan, FoundPlan)
    assert plan.step_s <= by_hand(one_run(2, 4, 1, 1, recomputes=False, batch=64))


def test_parts_of_an_iteration_add_up_and_its_edges_carry_what_the_formulas_say() -> None:
    request = make_request(gpt(), DEFAULT, (a100(64),), batch=64, samples=1e5, deadline_s=None)
    plan = evaluate(request, request.pool, PlanLayout(4, 2, 2, 2, MemorySaving.none))
    assert isinstance(plan, FoundPlan)
    worst = max(plan.stages, key=lambda it: it.micro_batch_s)
    inside = plan.times.compute_s + plan.times.tensor_s + plan.times.fixed_s
    assert inside == pytest.approx(worst.micro_batch_s * plan.micro_batches)
    first = plan.stages[0]
    assert first.next_bytes == 2 * 2 * 1024 * 2048  # 2 b s h
    assert first.ring_bytes == pytest.approx(2 * 3 / 4 * 2 * first.parameters)
    assert plan.stages[1].next_bytes == 0.0


def test_memory_of_one_gpu_by_hand() -> None:
    """16 bytes a parameter, 34 s b h a layer, what embedding and head keep; then fragmentation and CUDA."""
    model = gpt()
    request = make_request(model, DEFAULT, (a100(1),), batch=8, samples=1e5, deadline_s=None)
    plan = evaluate(request, request.pool, PlanLayout(1, 1, 1, 2, MemorySaving.none))
    assert isinstance(plan, FoundPlan)
    width = 1024 * 2048
    kept = 2 * (24 * 34 * width + 8 * 1024 + 2 * width)
    assert plan.stages[0].memory_bytes == pytest.approx((16 * model.parameters + kept) * 1.08 + 1e9)


def test_recomputation_keeps_inputs_and_one_layer() -> None:
    request = make_request(gpt(), DEFAULT, (a100(1),), batch=8, samples=1e5, deadline_s=None)
    plan = evaluate(request, request.pool, PlanLayout(1, 1, 1, 2, MemorySaving.recompute))
    assert isinstance(plan, FoundPlan)
    width = 1024 * 2048
    kept = 2 * (24 * 2 * width + 34 * width + 8 * 1024 + 2 * width)
    assert plan.stages[0].memory_bytes == pytest.approx((16 * gpt().parameters + kept) * 1.08 + 1e9)


def test_early_stages_of_a_pipeline_keep_more_micro_batches() -> None:
    request = make_request(gpt(layers=8), DEFAULT, (a100(4),), batch=64, samples=1e5, deadline_s=None)
    plan = evaluate(request, request.pool, PlanLayout(1, 4, 1, 1, MemorySaving.none))
    assert isinstance(plan, FoundPlan)
    width, of_blocks = 1024 * 2048, [0, 0, 0, 0]
    names = [layer.name for layer in gpt(layers=8).layers]
    for k, stage in enumerate(plan.stages):
        of_blocks[k] = sum(name.startswith("blocks") for name in names[stage.first_layer : stage.last_layer + 1])
        state = 16 * stage.parameters
        others = (stage.memory_bytes - 1e9) / 1.08 - state - (4 - k) * of_blocks[k] * 34 * width
        assert -1 <= others <= (4 - k) * (2 * width + 8 * 1024) + 1
    assert sum(of_blocks) == 8


@pytest.mark.parametrize(
    ("saving", "data", "expected"),
    [
        (MemorySaving.none, 8, 16.0),
        (MemorySaving.zero1, 4, 7.0),
        (MemorySaving.zero1, 8, 5.5),
        (MemorySaving.zero3, 8, 2.0),
    ],
)
def test_bytes_of_a_parameter(saving: MemorySaving, data: int, expected: float) -> None:
    assert state_bytes_per_parameter(saving, data) == expected


def test_tensor_parallelism_spreads_24_of_34_bytes() -> None:
    assert kept_activation_share(1) == 1.0
    assert kept_activation_share(8) == pytest.approx((10 + 24 / 8) / 34)


@given(st.sampled_from(["efficiency", "tensor_bytes_per_s", "inside_bytes_per_s", "across_bytes_per_s"]), DEGREES)
def test_better_hardware_never_takes_longer(name: str, degrees: tuple[int, int, int, int]) -> None:
    runs = one_run(*degrees, recomputes=True, batch=64)
    better = DEFAULT.as_constants._replace(**{name: 2.0 * getattr(DEFAULT.as_constants, name)})
    work = decoder_work_of(runs, MeasuredHardware())
    assert predicted_iteration_s(work, better)[0] <= predicted_iteration_s(work, DEFAULT.as_constants)[0]
