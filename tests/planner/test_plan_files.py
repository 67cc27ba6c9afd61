"""Whatever plan is found can be written, or the input that is too odd for it is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.training_plan import MAX_BATCH, PlanFile
from longshore.commands import planned_jobs, planning
from longshore.planner.execution.plan_file import plan_file_of
from longshore.planner.hardware import DEFAULT, HardwareProfile, HostProfile
from longshore.planner.inputs import MAX_SAMPLES
from longshore.planner.request import PlanRequest, make_request, rank_pool_of
from longshore.planner.search import find_plan
from tests.planner.models import HOST, a100, gpt
from tests.support.budgets import examples


def with_bound(hardware: HardwareProfile | HostProfile, factor: float) -> HardwareProfile | HostProfile:
    return hardware.model_copy(update={"accuracy": hardware.accuracy.model_copy(update={"bound_factor": factor})})


def request(batch: int, samples: float, factor: float, *, is_host: bool, layer_name: str = "words") -> PlanRequest:
    hardware = with_bound(HOST if is_host else DEFAULT, factor)
    model = gpt(2, 64, 16, 100, 4)
    first = model.layers[0].model_copy(update={"name": layer_name})
    return make_request(
        model.model_copy(update={"layers": (first, *model.layers[1:])}), hardware,
        rank_pool_of(hardware) if isinstance(hardware, HostProfile) else (a100(8),),
        batch=batch, samples=samples, deadline_s=None,
    )  # fmt: skip


FACTORS = st.sampled_from([1e-30, 0.9, 1.0, 1e6, 1e30])


@settings(max_examples=examples(10), deadline=None)
@given(
    st.sampled_from([1, 256, 1_000_000, 2_000_000, MAX_BATCH]), st.sampled_from([1.0, 1e6, MAX_SAMPLES]), FACTORS
)  # fmt: skip
def test_a_plan_of_the_largest_and_smallest_figures_is_written_and_read(
    batch: int, samples: float, factor: float
) -> None:
    is_written_and_read(request(batch, samples, factor, is_host=False), factor)


@settings(max_examples=examples(5), deadline=None)
@given(FACTORS)
def test_a_plan_of_a_measured_machine_is_written_and_read(factor: float) -> None:
    is_written_and_read(request(8, 1e6, factor, is_host=True), factor)


def is_written_and_read(it: PlanRequest, factor: float) -> None:
    found = find_plan(it).plan
    assert found is not None
    written = plan_file_of(it, found)
    assert (written.batch, written.bound_factor) == (it.batch, factor)
    assert PlanFile.model_validate_json(written.model_dump_json()) == written


def test_a_plan_that_no_file_holds_is_refused() -> None:
    it = request(8, 1e6, 1.0, is_host=False, layer_name="x" * 2000)
    found = find_plan(it).plan
    assert found is not None
    with pytest.raises(InputError):
        plan_file_of(it, found)


def test_all_that_takes_a_batch_takes_the_same() -> None:
    fields = planned_jobs.JobPlanRequest.model_fields["batch"].metadata
    assert MAX_BATCH == planning.MAX_BATCH
    assert any(getattr(bound, "le", None) == MAX_BATCH for bound in fields)
