"""The schedule checker finds each way in which a right schedule can be made wrong."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.schedule_checker import check_schedule

Events = list[dict[str, Any]]
CLUSTER = {
    "nodes": [{"gpus": [0, 1], "speed": 1.0}, {"gpus": [2, 3], "speed": 0.5}],
    "node_penalty": 0.25,
    "checkpoint": 10.0,
    "restart": 5.0,
    "rate": "simple",
}
JOBS = [{"id": "a", "gpus": 2, "work": 40.0, "submit": 0.0}, {"id": "b", "gpus": 2, "work": 20.0, "submit": 2.0}]
RIGHT: list[tuple[float, str, str | None, list[int]]] = [
    (0.0, "submit", "a", []),
    (0.0, "start", "a", [0, 1]),
    (2.0, "submit", "b", []),
    (2.0, "start", "b", [2, 3]),
    (25.0, "fault", None, [0]),
    (25.0, "stop", "a", [0, 1]),  # 20 s are saved
    (30.0, "repair", None, [0]),
    (35.0, "start", "a", [0, 1]),
    (42.0, "finish", "b", [2, 3]),
    (60.0, "finish", "a", [0, 1]),
]


def right() -> Events:
    return [{"time": at, "event": kind, "job": job, "gpus": list(gpus)} for at, kind, job, gpus in RIGHT]


def changed(index: int, **fields: Any) -> Callable[[Events], Events]:
    return lambda events: [*events[:index], {**events[index], **fields}, *events[index + 1 :]]


def without(index: int) -> Callable[[Events], Events]:
    return lambda events: [*events[:index], *events[index + 1 :]]


def with_copy(index: int, **fields: Any) -> Callable[[Events], Events]:
    return lambda events: [*events[: index + 1], {**events[index], **fields}, *events[index + 1 :]]


def test_a_right_schedule_passes() -> None:
    check_schedule(right(), JOBS, CLUSTER)


@pytest.mark.parametrize(
    ("mutate", "sentence"),
    [
        (changed(6, time=20.0), "repair at 20.0 comes after an event at 25.0"),
        (changed(3, gpus=[1, 2]), "job 'b' starts on GPU 1, which serves job 'a'"),
        (changed(1, gpus=[0]), r"job 'a' starts on GPUs \[0\], it needs 2"),
        (changed(1, gpus=[0, 0]), r"job 'a' starts on GPUs \[0, 0\], it needs 2"),
        (changed(1, gpus=[0, 4]), r"names GPUs \[4\] that the cluster does not have"),
        (changed(9, gpus=[0]), r"finish of job 'a' names GPUs \[0\], it has \[0, 1\]"),
        (changed(6, time=36.0), "start at 35.0 comes after an event at 36.0"),
        (without(6), "job 'a' starts on GPU 0, which is down since 25.0 s"),
        (without(0), "start of job 'a', which is unknown"),
        (changed(2, time=1.0), "job 'b' is submitted, but jobs.json says 2.0 s"),
        (changed(2, job="c"), "job 'c', which is not among the jobs"),
        (changed(4, gpus=[2]), "job 'a' stops although none of its GPUs fails"),
        (changed(4, gpus=[2]), "job 'b' runs on although a GPU of it failed at 25.0 s"),
        (changed(4, time=24.0), "job 'a' runs on although a GPU of it failed at 24.0 s"),
        (lambda events: [*events[:9], changed(4, time=60.0)(right())[4], events[9]], "'a' finishes although a GPU"),
        (with_copy(4), "GPU 0 fails although it is down since 25.0 s"),
        (with_copy(6), "GPU 0 is repaired although it is not down"),
        (with_copy(9), "finish of job 'a', which is finished"),
        (with_copy(3), "start of job 'b', which is running"),
        (without(9), "job 'a' never finishes, it is running"),
        (changed(9, time=60.1), "job 'a' ran 25.1.* s, its work takes 25.0 s there"),
        (changed(9, time=60.1), "GPU-seconds are held, work, restarts and losses explain 180.0"),
        (changed(8, time=36.0), "job 'b' ran 34.0 s, its work takes 40.0 s there"),
        (changed(8, event="pause"), "'pause' is no kind of event"),
    ],
)
def test_a_wrong_schedule_is_found(mutate: Callable[[Events], Events], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_schedule(mutate(right()), JOBS, CLUSTER)


@pytest.mark.parametrize(
    ("field", "value"), [("node_penalty", None), ("restart", 4.0), ("checkpoint", 15.0), ("checkpoint", None)]
)
def test_run_times_are_those_of_the_cluster_that_is_named(field: str, value: float | None) -> None:
    cluster = {**copy.deepcopy(CLUSTER), field: value}
    if field == "node_penalty":
        cluster = {**CLUSTER, "nodes": [{"gpus": [0], "speed": 1.0}, {"gpus": [1, 2, 3], "speed": 0.5}]}
    with pytest.raises(AssertionError, match="its work takes"):
        check_schedule(right(), JOBS, cluster)


def test_run_times_are_left_unchecked_where_the_rate_is_free() -> None:
    late = changed(9, time=70.0)(right())
    check_schedule(late, JOBS, {**CLUSTER, "rate": "free"})


def test_a_gpu_is_not_used_for_longer_than_the_schedule_lasts() -> None:
    cluster = {**CLUSTER, "rate": "free"}
    shared = [
        {"time": 0.0, "event": "submit", "job": "a", "gpus": []},
        {"time": 0.0, "event": "start", "job": "a", "gpus": [0, 1]},
        {"time": 1.0, "event": "fault", "job": None, "gpus": [0]},
        {"time": 9.0, "event": "repair", "job": None, "gpus": [0]},
        {"time": 10.0, "event": "finish", "job": "a", "gpus": [0, 1]},
    ]
    with pytest.raises(AssertionError, match=r"GPU 0 is busy or down for 18.0 s, longer than the schedule"):
        check_schedule(shared, JOBS[:1], cluster)
