"""Plans of jobs in a trace: written and read back to the last bit, and refused with the place where one is wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.workload import Iteration, JobPlan
from longshore.cluster.traces.formats import plans_cell, plans_in_cell
from longshore.cluster.traces.read import read_trace
from longshore.cluster.traces.write import write_trace

BYTES = st.just(0.0) | st.floats(1e-3, 1e18)
ITERATIONS = st.builds(
    Iteration, st.integers(1, 64), st.integers(1, 64), st.integers(1, 8), st.floats(1e-6, 1e6),
    st.just(0.0) | st.floats(1e-9, 1e6), BYTES, BYTES, BYTES,
)  # fmt: skip
PLANS = st.lists(st.builds(JobPlan, ITERATIONS, st.floats(1e-6, 1e9), BYTES, BYTES), max_size=5).map(tuple)
HEAD = "id,gpus,work_s,submit_s,plans\n"


@given(PLANS)
def test_plans_are_read_back_to_the_last_bit(plans: tuple[JobPlan, ...]) -> None:
    assert plans_in_cell(plans_cell(plans)) == plans


def test_a_trace_with_plans_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(
        HEAD + "b,8,100,5,4x2x1 work_s=100 compute_s=0.5 memory_bytes=3e10|2x1x2 work_s=90 compute_s=2 fixed_s=0.25\n"
        "a,1,7,0,\n"
    )
    found = read_trace(tmp_path / "in.csv")
    write_trace(found, tmp_path / "out.csv")
    again = read_trace(tmp_path / "out.csv")

    assert found.plans is not None
    assert [[plan.degrees for plan in plans] for plans in found.plans] == [[], ["4x2x1", "2x1x2"]]
    assert found.compute_s.tolist() == [0.5, 0.5]
    assert found.node_needs is not None
    assert found.node_needs[1].gpu_memory_bytes == 3e10
    assert (again.plans, again.node_needs, again.ids) == (found.plans, found.node_needs, found.ids)
    assert again.work_s.tolist() == found.work_s.tolist()


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("8", "not with data x pipeline x tensor"),
        ("8x1", "not with data x pipeline x tensor"),
        ("0x1x8 work_s=100 compute_s=1", "not with data x pipeline x tensor"),
        ("9999999x9999999x9999999 work_s=100 compute_s=1", "not with data x pipeline x tensor"),
        ("8x1x1 work_s=100", "has no compute_s"),
        ("8x1x1 compute_s=1", "has no work_s"),
        ("8x1x1 work_s=100 compute_s=0", "not between"),
        ("8x1x1 work_s=100 compute_s=1 compute_s=1", "write one of"),
        ("8x1x1 work_s=100 compute_s=1 colour=3", "write one of"),
        ("8x1x1 work_s=100 compute_s=nan", "write one of"),
        ("8x1x1 work_s=100 compute_s=1 gradient_bytes=-1", "not between"),
        ("8x1x1 work_s=100 compute_s=1 away_bytes=-1", "not between"),
        ("8x1x1 work_s=100 compute_s=1 gradient_bytes=1e999", "not between"),
        ("8x1x1 work_s=100 compute_s=1|", "not with data x pipeline x tensor"),
        ("4x1x1 work_s=100 compute_s=1", "unlike gpus and work_s"),
        ("8x1x1 work_s=99 compute_s=1", "unlike gpus and work_s"),
        ("|".join(["8x1x1 work_s=100 compute_s=1"] * 1001), "more than 1000"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_with_its_line(cell: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(HEAD + f"a,1,7,0,\nb,8,100,5,{cell}\n")
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert problem in str(refused.value)
    assert (refused.value.line, refused.value.field) == (3, "plans")


WORDS = st.sampled_from(
    ("8x1x1", "1x2x3", "0x1x1", " ", " ", " ", "work_s=", "compute_s=", "fixed_s=", "1", "5e-1", "1e3", "nan", "|", "=")
)


@given(st.lists(WORDS, max_size=20).map("".join) | PLANS.map(plans_cell))
def test_no_cell_is_read_in_another_way_than_as_plans_or_refused(cell: str) -> None:
    try:
        found = plans_in_cell(cell)
    except ValueError:
        return
    assert plans_in_cell(plans_cell(found)) == found
