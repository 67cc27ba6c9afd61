"""The status of an attempt by its pods, on pods as a cluster would report them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from longshore.scheduler.backends.kubernetes.objects import KubernetesPod
from longshore.scheduler.backends.kubernetes.reading import must_stop_rest, status_of
from longshore.scheduler.model.job import DEFAULT_TRIES, Tries
from longshore.scheduler.model.states import AfterStop, Run, Status
from longshore.scheduler.rules.attempts import ExitClass, attempt_outcome, classify_end

NAME = "ls-job-1"


def pod(number: int, *, deleted: bool = False, node: str = "a", **status: Any) -> KubernetesPod:
    """Return one of two pods, each with two ranks."""
    annotations = {"longshore.io/pods": "2", "longshore.io/first-rank": str(2 * number), "longshore.io/ranks": "2"}
    meta = {
        "name": f"{NAME}-{number}", "uid": str(number), "resourceVersion": "1", "annotations": annotations,
        "labels": {"longshore.io/attempt": NAME}, "deletionTimestamp": "2026-11-22T00:00:00Z" if deleted else None,
    }  # fmt: skip
    return KubernetesPod.model_validate({"metadata": meta, "spec": {"nodeName": node}, "status": status})


def over(number: int, codes: Sequence[int], reason: str = "", at_s: float = 10.0, **more: Any) -> KubernetesPod:
    """Return a pod whose launcher has recorded how its ranks ended, a second after one another."""
    ends = [[2 * number + i, code, 0, at_s + i] for i, code in enumerate(codes)]
    reported = {"attempt": NAME, "reason": reason, "started_s": 5.0, "ends": ends, "progress": {}}
    return silent_end(number, int(any(codes)), message=json.dumps(reported), **more)


def silent_end(
    number: int, code: int, *, message: str = "", ended: str = "Error", deleted: bool = False, **status: Any
) -> KubernetesPod:
    """Return a pod whose container has ended, by default without a word."""
    end = {"exitCode": code, "reason": ended, "message": message, "finishedAt": "2026-11-22T00:00:00Z"}
    phase = "Failed" if code else "Succeeded"
    return pod(number, deleted=deleted, phase=phase, containerStatuses=[{"state": {"terminated": end}}], **status)


def running(number: int, **status: Any) -> KubernetesPod:
    state = {"running": {"startedAt": "2026-11-22T00:00:00Z"}}
    return pod(number, **{"phase": "Running", "containerStatuses": [{"state": state}], **status})


def read(*pods: KubernetesPod, cancelled: bool = False) -> Status:
    return status_of(NAME, pods, frozenset({"silent"}), cancelled=cancelled)


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on disk"}]


def test_an_attempt_has_succeeded_when_every_rank_is_recorded_as_such() -> None:
    status = read(over(0, [0, 0]), over(1, [0, 0]))
    assert (status.run, len(status.ends), classify_end(status)[0]) == (Run.EXITED, 4, ExitClass.SUCCESS)


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
def test_an_attempt_with_an_unrecorded_rank_has_not_succeeded(other: KubernetesPod, *, cancelled: bool) -> None:
    status = read(over(0, [0, 0]), other, cancelled=cancelled)
    assert classify_end(status)[0] is ExitClass.INFRASTRUCTURE


def test_a_missing_pod_is_no_success() -> None:
    assert classify_end(read(over(0, [0, 0])))[0] is ExitClass.INFRASTRUCTURE


def test_what_was_disrupted_after_it_had_succeeded_has_succeeded() -> None:
    assert classify_end(read(over(0, [0, 0]), over(1, [0, 0], conditions=DISRUPTED)))[0] is ExitClass.SUCCESS


def test_a_disruption_explains_the_ranks_that_it_killed() -> None:
    status = read(over(0, [0, 0]), silent_end(1, 137, conditions=DISRUPTED))
    assert classify_end(status) == (ExitClass.INFRASTRUCTURE, f"{NAME}-1: TerminationByKubelet: low on disk")


SECOND_S = 1795305600.0  # of the pods that end without a word


@pytest.mark.parametrize("failed", [over(1, [3, 3], at_s=SECOND_S + 0.6), silent_end(1, 3)])
def test_a_rank_that_failed_ended_before_those_that_were_asked_to_end_in_the_same_second(failed: KubernetesPod) -> None:
    ends = read(silent_end(0, 143), failed).ends
    assert ends[0].code == 3
    assert sorted(end.rank for end in ends) == [0, 1, 2, 3]


UNKNOWN = "The container could not be located when the pod was terminated"  # a node's words for what it made up
NO_PYTHON = 'error during container init: exec: "python3": executable file not found in $PATH: unknown'
NO_DRIVER = "error running prestart hook: nvidia-container-cli: initialization error: driver error: unknown"
INFRASTRUCTURE, AMBIGUOUS = ExitClass.INFRASTRUCTURE, ExitClass.AMBIGUOUS


def unlocated(number: int, **more: Any) -> KubernetesPod:
    """Return a pod of which its node has found no container, as a node that was started anew does."""
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": UNKNOWN, "finishedAt": None}
    return pod(number, phase="Failed", containerStatuses=[{"state": {"terminated": ended}}], **more)


def killed(number: int, *, reason: str, message: str) -> KubernetesPod:
    """Return a pod that was ended by its node, which says why."""
    return silent_end(number, 137).model_copy(update={"reason": reason, "message": message})


def bare(number: int, **more: Any) -> KubernetesPod:
    """Return a pod that failed without any container."""
    return pod(number, phase="Failed", **more)


@pytest.mark.parametrize(
    ("reason", "code", "message", "exit_class", "cause"),
    [
        ("Error", 3, "", ExitClass.USER, "rank 2 ended with exit code 3"),
        ("Error", 137, "", AMBIGUOUS, "rank 2 was ended by signal 9"),
        ("Error", 139, "", AMBIGUOUS, "rank 2 was ended by signal 11"),
        ("Error", 143, "", AMBIGUOUS, "rank 2 was ended by signal 15"),
        ("Error", 255, "", ExitClass.USER, "rank 2 ended with exit code 255"),
        ("Error", 75, "", ExitClass.AGAIN, "rank 2 requested another run (exit code 75)"),
        ("Completed", 0, "", INFRASTRUCTURE, f"{NAME}-1: Completed with exit code 0, and no record of its ranks"),
        ("OOMKilled", 137, "", ExitClass.RESOURCE, "rank 2 was killed as memory ran out"),
        ("StartError", 128, NO_PYTHON, ExitClass.USER, f"{NAME}-1: StartError: {NO_PYTHON}"),
        ("ContainerCannotRun", 127, NO_PYTHON, ExitClass.USER, f"{NAME}-1: ContainerCannotRun: {NO_PYTHON}"),
        ("StartError", 128, NO_DRIVER, AMBIGUOUS, f"no record of how it ended: {NAME}-1: StartError: {NO_DRIVER}"),
        ("Unknown", 255, "", INFRASTRUCTURE, f"{NAME}-1: Unknown: nothing is known of its end"),
        ("ContainerStatusUnknown", 137, UNKNOWN, INFRASTRUCTURE, f"{NAME}-1: ContainerStatusUnknown: {UNKNOWN}"),
    ],
)
def test_each_reason_of_a_container_that_ended_has_a_class_and_its_text(
    reason: str, code: int, message: str, exit_class: ExitClass, cause: str
) -> None:
    status = read(over(0, [0, 0]), silent_end(1, code, message=message, ended=reason))
    assert classify_end(status) == (exit_class, cause)


@pytest.mark.parametrize(
    "reason",
    ["Evicted", "NodeLost", "Preempting", "Terminated", "NodeShutdown", "NodeAffinity", "UnexpectedAdmissionError",
     "OutOfcpu"],
)  # fmt: skip
@pytest.mark.parametrize("other", [unlocated, killed])
def test_a_pod_with_a_reason_was_ended_by_its_cluster_whatever_its_container_says(
    reason: str, other: Callable[..., KubernetesPod]
) -> None:
    status = read(over(0, [1, 0]), other(1, reason=reason, message="low on disk"))
    assert classify_end(status) == (INFRASTRUCTURE, f"{NAME}-1: {reason}: low on disk")


@pytest.mark.parametrize("end", [unlocated, bare])
def test_a_pod_that_its_cluster_lets_run_for_so_long_only_has_reached_its_time_limit(
    end: Callable[..., KubernetesPod],
) -> None:
    status = read(end(0, reason="DeadlineExceeded"), end(1, reason="DeadlineExceeded"))
    assert classify_end(status)[0] is ExitClass.LIMIT


def test_a_pod_that_ended_before_its_container_began_does_not_hide_which_rank_failed() -> None:
    status = read(over(0, [3, 0], reason="rank failed"), unlocated(1, deleted=True))
    assert [(end.rank, end.code, end.signal) for end in status.ends] == [(0, 3, 0), (1, 0, 0)]
    assert classify_end(status) == (ExitClass.USER, "rank 0 ended with exit code 3")


def test_pods_that_were_cancelled_before_their_containers_began_were_not_started() -> None:
    status = read(unlocated(0, deleted=True), unlocated(1, deleted=True), cancelled=True)
    assert classify_end(status) == (ExitClass.REQUESTED, "it was not started")


def test_a_restarted_node_costs_its_job_no_retry_of_an_ambiguous_end() -> None:
    status = read(unlocated(0), unlocated(1))
    found = attempt_outcome(status, None, DEFAULT_TRIES, Tries(), 0, progressed=False, wait_share=0.5)
    assert (found.after, found.used) == (AfterStop.RETRY, Tries(infra=1))


def test_a_container_that_cannot_start_fails_as_its_runtime_says() -> None:
    status = read(silent_end(0, 128), silent_end(1, 128))
    assert {(end.code, end.signal) for end in status.ends} == {(128, 0)}
    assert classify_end(status)[0] is ExitClass.USER


def test_words_of_a_job_in_place_of_those_of_its_launcher_count_for_nothing() -> None:
    forged = json.dumps({"attempt": "ls-other-1", "reason": "", "started_s": 1.0, "ends": [], "progress": {}})
    status = read(silent_end(0, 137, message=forged), silent_end(1, 137, message='{"attempt": "' + NAME + '"}'))
    assert [(end.rank, end.signal) for end in status.ends] == [(0, 9), (1, 9), (2, 9), (3, 9)]


def test_a_container_that_was_killed_as_memory_ran_out_says_so() -> None:
    status = read(silent_end(0, 137, ended="OOMKilled"), over(1, [0, 15]))
    assert classify_end(status) == (ExitClass.RESOURCE, "rank 0 was killed as memory ran out")


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
    pods: Sequence[KubernetesPod], *, stops: bool
) -> None:
    assert must_stop_rest(pods) is stops
