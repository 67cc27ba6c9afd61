"""Nodes that pods cannot or should not go to: by their taints, and by what was seen."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.backends.kubernetes.objects import KubernetesPod, Taint
from longshore.scheduler.backends.kubernetes.reading import AVOID_S, MAX_AVOID_S, AvoidedNodes, PodRemoval
from longshore.scheduler.backends.kubernetes.records import RecordFolders
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings, Toleration, blocking_taint
from tests.kubernetes_double.tainting import untolerated
from tests.scheduler.backends.attempts import ONE_GPU, shell_attempt, until, wait_for_end
from tests.scheduler.backends.kubernetes_trials import Trial, take_from_outside

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
KEYS, VALUES = ("a", "b"), ("", "x")
TAINTS = st.fixed_dictionaries(
    {"key": st.sampled_from(KEYS), "value": st.sampled_from(VALUES), "effect": st.sampled_from(EFFECTS)}
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(KEYS), "value": st.sampled_from(VALUES), "effect": st.sampled_from(("", *EFFECTS)),
        "operator": st.sampled_from(("Equal", "Exists")),
    },
)  # fmt: skip


@given(st.lists(TAINTS, max_size=3), st.lists(TOLERATIONS, max_size=3))
def test_a_taint_keeps_pods_away_exactly_if_it_does_so_by_the_rules_of_the_double(
    taints: list[dict[str, str]], tolerations: list[dict[str, str]]
) -> None:
    left = untolerated({"spec": {"tolerations": tolerations}}, taints, {"NoSchedule", "NoExecute"})
    found = blocking_taint(map(Taint.model_validate, taints), [Toleration.model_validate(each) for each in tolerations])
    assert found == (Taint.model_validate(left[0]) if left else None)


def test_a_taint_that_would_end_a_pod_after_a_while_keeps_it_away() -> None:
    bears = Toleration(operator="Exists", effect="NoExecute", toleration_seconds=300)
    taint = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
    assert blocking_taint([taint], [bears]) == taint
    assert blocking_taint([taint], [Toleration(operator="Exists")]) is None


def takes_jobs(backend: KubernetesBackend) -> list[bool]:
    return [node.takes_jobs for node in backend.observe()]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_node_with_a_taint_that_pods_do_not_tolerate_takes_no_jobs_and_the_log_says_so_once(
    trial: Trial, caplog: pytest.LogCaptureFixture, effect: str
) -> None:
    backend = trial.make()
    trial.cluster.taint("a", "dedicated", "infra", effect)
    until(lambda: takes_jobs(backend) == [False, True])
    takes_jobs(backend)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"node a takes no jobs: pods do not tolerate its taint dedicated=infra:{effect}"
    ]
    assert all(gpu.healthy for gpu in backend.observe()[0].gpus)


def test_a_taint_that_the_settings_tolerate_keeps_no_job_away(trial: Trial) -> None:
    backend = trial.make(pod={"tolerations": [{"key": "dedicated", "value": "infra"}]})
    trial.cluster.taint("a", "dedicated", "infra", "NoSchedule")
    trial.cluster.taint("b", "slow", "", "PreferNoSchedule")
    attempt = shell_attempt("true")
    until(lambda: len(backend._nodes.objects()["a"].taints) == 1)
    assert takes_jobs(backend) == [True, True]
    backend.launch(attempt, ONE_GPU)
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [0]


@pytest.mark.parametrize("gpus", ["claims", "counts"])
def test_pods_tolerate_the_taint_that_keeps_nodes_for_pods_with_gpus(trial: Trial, gpus: str) -> None:
    backend = trial.make(gpus=gpus)
    trial.cluster.taint("a", "nvidia.com/gpu", "present", "NoSchedule")
    attempt = shell_attempt("true")
    backend.launch(attempt, ONE_GPU)
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [0]
    assert takes_jobs(backend) == [True, True]


def test_a_node_that_did_not_take_a_pod_is_left_alone_until_it_takes_one(trial: Trial) -> None:
    backend = trial.make(bind_s=0.3)
    take_from_outside(trial.cluster, "a", 4)
    refused, late = shell_attempt("true"), shell_attempt("true")
    backend.launch(late, ONE_GPU)
    until(lambda: backend.statuses((late.name,)) and len(backend._removal._unbound_since_s) == 1)
    backend.launch(refused, ONE_GPU)
    until(lambda: (backend.statuses((refused.name,)), takes_jobs(backend))[1] == [False, True])
    assert "was not bound within 0.3 s" in wait_for_end(backend, refused).reason


def test_a_pod_that_is_bound_in_the_end_opens_its_node_again(trial: Trial) -> None:
    backend = trial.make()
    backend._avoided.add("a", 1e18)
    assert takes_jobs(backend) == [False, True]
    attempt = shell_attempt("true")
    trial.cluster.schedules = False
    backend.launch(attempt, ONE_GPU)
    until(lambda: (backend.statuses((attempt.name,)), backend._removal._unbound_since_s)[1])
    trial.cluster.schedules = True
    wait_for_end(backend, attempt)
    assert takes_jobs(backend) == [True, True]


@given(st.integers(2, 40))
def test_each_time_a_node_is_left_alone_twice_as_long_up_to_a_bound(times: int) -> None:
    left, now_s = AvoidedNodes(2), 0.0
    for number in range(times):
        left.add("a", now_s)
        until_s = now_s + min(AVOID_S * 2.0**number, MAX_AVOID_S)
        assert left.avoided_at(0.5 * (now_s + until_s)) == {"a"}
        assert left.avoided_at(until_s) == frozenset()
        now_s = until_s


def test_what_did_not_happen_again_for_long_is_forgotten() -> None:
    left = AvoidedNodes(2)
    left.add("a", 0.0)
    left.avoided_at(AVOID_S + MAX_AVOID_S)
    left.add("a", AVOID_S + MAX_AVOID_S)
    assert left.avoided_at(2.0 * AVOID_S + MAX_AVOID_S) == frozenset()


@given(st.integers(1, 9), st.integers(0, 9))
def test_never_more_than_half_of_all_nodes_are_left_alone(nodes: int, refusing: int) -> None:
    left = AvoidedNodes(nodes)
    for number in range(min(refusing, nodes)):
        left.add(f"node-{number}", 0.0)
    assert len(left.avoided_at(1.0)) == (min(refusing, nodes) if min(refusing, nodes) <= nodes // 2 else 0)


def test_a_status_has_the_reason_why_the_nodes_cannot_be_read(trial: Trial) -> None:
    backend = trial.make(deadline_s=0.5)
    for call in ("list nodes", "watch nodes"):
        trial.cluster.server.faults.always(call, 403)
    words = "answered 403: told to answer 403"
    until(lambda: backend.status(shell_attempt("true").name).reason.endswith(words))


@pytest.mark.parametrize("polls", [1, 2, 5])
def test_a_pod_that_was_not_taken_counts_once_however_late_its_deletion_is_seen(polls: int, tmp_path: Path) -> None:
    calls = list[object]()
    core = SimpleNamespace(patch_namespaced_pod="patch", delete_namespaced_pod="delete")
    api: Any = SimpleNamespace(core=core, call=lambda method, *_, **__: calls.append(method))
    avoided = AvoidedNodes(2)
    removal = PodRemoval(api, KubernetesSettings(image="x", bind_s=1e-9), RecordFolders(tmp_path), avoided)
    meta = {
        "name": "ls-job-1-0", "uid": "1", "resourceVersion": "1", "labels": {"longshore.io/attempt": "ls-job-1"},
        "annotations": {"longshore.io/pods": "1", "longshore.io/node": "a"},
    }  # fmt: skip
    pod = KubernetesPod.model_validate({"metadata": meta, "spec": {}, "status": {"phase": "Pending"}})
    for _ in range(1 + polls):  # the first one notes that it waits
        removal.clean_up({"ls-job-1": [pod]})
    assert avoided.avoided_at(time.monotonic()) == {"a"}
    assert avoided.avoided_at(time.monotonic() + AVOID_S) == frozenset()
    assert calls == ["patch", "delete"]
