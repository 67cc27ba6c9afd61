"""Which rank of a plan does what, on which node, and for whom it waits."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.cluster.model.training_plan import PlanFile
from longshore.planner.execution.plan_file import parse_plan
from longshore.scheduler.api.rings import Edge, SeatHolder, senders_of_ranks, sub_tasks_page, tasks_of
from longshore.scheduler.health.step_monitor import StepFigures
from longshore.scheduler.health.step_watch import Average
from longshore.scheduler.model.job_spec import MAX_PLAN_BYTES, JobFile, plan_text

DEGREES = st.integers(1, 4)


def plan_of(data: int, pipeline: int, tensor: int, **more: Any) -> PlanFile:
    stages = [
        {"layers": [f"layer{k}"], "tensor_bytes": 5.0, "next_bytes": 7.0, "ring_bytes": 9.0} for k in range(pipeline)
    ]
    return PlanFile.model_validate(
        {
            "data": data,
            "pipeline": pipeline,
            "tensor": tensor,
            "micro_batch": 2,
            "batch": 2 * data,
            "stages": stages,
            **more,
        }
    )


@given(DEGREES, DEGREES, DEGREES)
def test_each_part_of_a_plan_is_done_by_one_rank(data: int, pipeline: int, tensor: int) -> None:
    tasks = tasks_of(plan_of(data, pipeline, tensor))
    assert [it.rank for it in tasks] == list(range(data * pipeline * tensor))
    parts = {(it.stage, it.replica, it.member) for it in tasks}
    assert parts == {(k, r, t) for k in range(pipeline) for r in range(data) for t in range(tensor)}


@given(DEGREES, DEGREES, DEGREES, st.integers(1, 8))
def test_where_nodes_give_whole_groups_each_group_is_on_one_node(
    data: int, pipeline: int, tensor: int, groups_per_node: int
) -> None:
    assume(data * pipeline % groups_per_node == 0)
    tasks, per_node = tasks_of(plan_of(data, pipeline, tensor)), groups_per_node * tensor
    nodes: dict[tuple[int, int], set[int]] = {}
    for it in tasks:  # ranks go through a placement node by node
        nodes.setdefault((it.stage, it.replica), set()).add(it.rank // per_node)
    assert all(len(each) == 1 for each in nodes.values())


@given(DEGREES, DEGREES, DEGREES)
def test_whoever_sends_is_waited_for_and_groups_are_rings(data: int, pipeline: int, tensor: int) -> None:
    tasks = tasks_of(plan_of(data, pipeline, tensor))
    waits = senders_of_ranks(tasks)
    assert all((a.rank in waits[edge.to]) and edge.to != a.rank for a in tasks for edge in a.edges)
    for kind, size in (("ring", data), ("tensor", tensor)):
        after = {it.rank: edge.to for it in tasks for edge in it.edges if edge.kind == kind}
        for rank in after:
            met = [rank]
            while after[met[-1]] != rank:
                met.append(after[met[-1]])
            assert len(met) == size
    sent = Counter(edge.kind for it in tasks for edge in it.edges)
    assert sent["next"] == sent["back"] == (pipeline - 1) * data * tensor


def test_activations_go_on_and_their_gradients_come_back() -> None:
    first, last = tasks_of(plan_of(1, 2, 1))
    assert first.edges == (Edge(kind="next", to=1, sent_bytes=7.0),)
    assert last.edges == (Edge(kind="back", to=0, sent_bytes=7.0),)


def test_a_job_is_done_when_its_steps_go_on_as_they_do() -> None:
    plan = plan_of(2, 1, 1, iterations=100, step_s=1.0)
    figures = StepFigures(step=40, step_s=2.0, average=Average(2.0, 0, 30), slowest="n", computed_s=(0.5,))
    found = sub_tasks_page(plan, [], figures, now_s=1000.0, seats={})
    assert found.ends_s == 1000.0 + 60 * 2.0
    assert sub_tasks_page(plan, [], None, now_s=1000.0, seats={}).ends_s is None


def test_in_a_ring_a_sub_task_is_where_its_seat_is_and_takes_what_the_rank_there_takes() -> None:
    figures = StepFigures(step=40, step_s=2.0, computed_s=(0.5, 0.6, 0.7), away_bytes=(None, None, 5))
    seats = {0: SeatHolder("a", 3, 2), 1: SeatHolder("b", 1, 0)}
    found = sub_tasks_page(plan_of(3, 1, 1), [], figures, now_s=1000.0, seats=seats).tasks
    assert [(it.node, it.gpu, it.computed_s) for it in found] == [("a", 3, 0.7), ("b", 1, 0.5), ("", None, None)]
    assert [it.away_bytes for it in found] == [5, None, None]


def test_ranks_get_the_plan_that_the_job_has() -> None:
    plan = plan_of(2, 2, 1, step_s=0.5)
    assert parse_plan(plan_text(plan), "LONGSHORE_PLAN") == plan


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"gpus": 3}, "the plan is for 4 GPUs, not for the 3"),
        ({"failover": "switch"}, "only ranks of a data-parallel plan can change their seats"),
        ({"plan": "auto"}, "valid dictionary"),
        ({"plan": {**plan_of(2, 2, 1).model_dump(), "pipeline": 3}}, "there are 2 stages"),
        ({"plan": {**plan_of(2, 2, 1).model_dump(), "batch": 5}}, "cannot share a batch of 5"),
        ({"plan": {**plan_of(2, 2, 1).model_dump(), "step_s": float("nan")}}, "finite number"),
        ({"plan": {**plan_of(2, 2, 1).model_dump(), "script": "x"}}, "Extra inputs"),
        ({"plan": plan_of(1, 200, 1, model="x").model_copy(
            update={"stages": tuple(it.model_copy(update={"layers": ("x" * 900,)}) for it in plan_of(1, 200, 1).stages)}
        ).model_dump()}, f"of {MAX_PLAN_BYTES}"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_its_job_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        JobFile.model_validate({"command": ["x"], "plan": plan_of(2, 2, 1).model_dump(), **fields})


def test_a_job_has_as_many_gpus_as_its_plan() -> None:
    spec = JobFile.model_validate({"command": ["x"], "plan": plan_of(2, 2, 1).model_dump(mode="json")})
    assert spec.gpus == 4
    assert JobFile.model_validate(spec.model_dump(mode="json")) == spec
    assert "plan" not in JobFile.model_validate({"command": ["x"]}).model_dump()
