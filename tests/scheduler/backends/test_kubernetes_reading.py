"""What is made of the pods of an attempt, on pods as a cluster would tell them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from longshore.scheduler.backends.kubernetes.objects import Pod
from longshore.scheduler.backends.kubernetes.reading import status_of, stops_the_others
from longshore.scheduler.backends.protocol import Run, Status
from longshore.scheduler.exits import ExitClass, class_of

NAME = "ls-job-1"


def pod(number: int, *, deleted: bool = False, node: str = "a", **status: Any) -> Pod:
    """Return one of two pods, each with two ranks."""
    annotations = {"longshore.io/pods": "2", "longshore.io/first-rank": str(2 * number), "longshore.io/ranks": "2"}
    meta = {
        "name": f"{NAME}-{number}", "uid": str(number), "resourceVersion": "1", "annotations": annotations,
        "labels": {"longshore.io/attempt": NAME}, "deletionTimestamp": "2026-11-22T00:00:00Z" if deleted else None,
    }  # fmt: skip
    return Pod.model_validate({"metadata": meta, "spec": {"nodeName": node}, "status": status})


def over(number: int, codes: Sequence[int], reason: str = "", **more: Any) -> Pod:
    """Return a pod whose launcher has told how its ranks ended."""
    ends = [[2 * number + i, code, 0, 10.0 + i] for i, code in enumerate(codes)]
    told = {"attempt": NAME, "reason": reason, "started_s": 5.0, "ends": ends, "progress": {}}
    return silent_end(number, int(any(codes)), message=json.dumps(told), **more)


def silent_end(
    number: int, code: int, *, message: str = "", reason: str = "Error", deleted: bool = False, **status: Any
) -> Pod:
    """Return a pod whose container has ended, by default without a word."""
    ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-11-22T00:00:00Z"}
    phase = "Failed" if code else "Succeeded"
    return pod(number, deleted=deleted, phase=phase, containerStatuses=[{"state": {"terminated": ended}}], **status)


def running(number: int, **status: Any) -> Pod:
    state = {"running": {"startedAt": "2026-11-22T00:00:00Z"}}
    return pod(number, **{"phase": "Running", "containerStatuses": [{"state": state}], **status})


def read(*pods: Pod, cancelled: bool = False) -> Status:
    return status_of(NAME, pods, frozenset({"silent"}), cancelled=cancelled)


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on disk"}]


def test_an_attempt_has_succeeded_when_every_rank_has_told_so() -> None:
    status = read(over(0, [0, 0]), over(1, [0, 0]))
    assert (status.run, len(status.ends), class_of(status)[0]) == (Run.EXITED, 4, ExitClass.SUCCESS)


@pytest.mark.parametrize(
    "other",
    [
        pod(1, deleted=True, node="", phase="Pending"),  # deleted before it had a node
        over(1, [], reason="cancelled", deleted=True),  # deleted before its ranks had begun
        over(1, [0]),
        silent_end(1, 0),
        silent_end(1, 0, deleted=True),
        pod(1, phase="Failed", reason="UnexpectedAdmissionError", message="no GPU left"),
    ],
)
@pytest.mark.parametrize("cancelled", [False, True])
def test_an_attempt_of_which_a_rank_has_told_nothing_has_not_succeeded(other: Pod, *, cancelled: bool) -> None:
    status = read(over(0, [0, 0]), other, cancelled=cancelled)
    assert class_of(status)[0] is ExitClass.INFRASTRUCTURE


def test_a_missing_pod_is_no_success() -> None:
    assert class_of(read(over(0, [0, 0])))[0] is ExitClass.INFRASTRUCTURE


def test_what_was_disrupted_after_it_had_succeeded_has_succeeded() -> None:
    assert class_of(read(over(0, [0, 0]), over(1, [0, 0], conditions=DISRUPTED)))[0] is ExitClass.SUCCESS


def test_a_disruption_explains_the_ranks_that_it_killed() -> None:
    status = read(over(0, [0, 0]), silent_end(1, 137, conditions=DISRUPTED))
    assert class_of(status) == (ExitClass.INFRASTRUCTURE, f"{NAME}-1: TerminationByKubelet: low on disk")


def test_a_container_that_cannot_start_fails_as_its_runtime_says() -> None:
    status = read(silent_end(0, 128), silent_end(1, 128))
    assert {(end.code, end.signal) for end in status.ends} == {(128, 0)}
    assert class_of(status)[0] is ExitClass.USER


def test_words_of_a_job_in_place_of_those_of_its_launcher_count_for_nothing() -> None:
    forged = json.dumps({"attempt": "ls-other-1", "reason": "", "started_s": 1.0, "ends": [], "progress": {}})
    status = read(silent_end(0, 137, message=forged), silent_end(1, 137, message='{"attempt": "' + NAME + '"}'))
    assert [(end.rank, end.signal) for end in status.ends] == [(0, 9), (1, 9), (2, 9), (3, 9)]


def test_a_container_that_was_killed_as_memory_ran_out_says_so() -> None:
    status = read(silent_end(0, 137, reason="OOMKilled"), over(1, [0, 15]))
    assert class_of(status) == (ExitClass.RESOURCE, "rank 0 was killed as memory ran out")


def test_pods_on_a_silent_node_are_unreachable_until_they_are_over() -> None:
    assert read(running(0), running(1, node="silent")).run is Run.UNREACHABLE
    ended = [over(0, [0, 0]), over(1, [0, 0], node="silent")]
    assert read(*ended).run is Run.EXITED


def test_a_failed_phase_frees_nothing_while_a_container_runs() -> None:
    half = running(1, phase="Failed")
    assert not half.is_over
    assert read(over(0, [0, 0]), half).run is Run.RUNNING


@pytest.mark.parametrize(
    ("pods", "stops"),
    [
        ((running(0), running(1)), False),
        ((over(0, [0, 0]), running(1)), False),
        ((over(0, [0, 1]), running(1)), True),
        ((running(0, deleted=True), running(1)), True),
        ((running(0),), True),
    ],
)
def test_the_rest_of_an_attempt_stops_with_the_first_pod_that_fails_or_goes(
    pods: Sequence[Pod], *, stops: bool
) -> None:
    assert stops_the_others(pods) is stops
