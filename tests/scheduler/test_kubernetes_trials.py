"""A scheduler whose jobs run under the double of a Kubernetes cluster, which does not do its part."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from longshore.scheduler.model.states import FINAL, Desired, JobState
from longshore.scheduler.rules.attempts import START_LIMIT_S
from tests.kubernetes_double.cluster import DRIVER
from tests.kubernetes_double.objects import Object
from tests.scheduler.backends.kubernetes_trials import Trial as Cluster
from tests.scheduler.backends.kubernetes_trials import take_from_outside
from tests.scheduler.trials import Trial, failing, processes_of

NODES = {"a": 1, "b": 1, "c": 1, "d": 1}


class OnKubernetes(Trial):
    """A scheduler on such a cluster.

    Args:
        folder: Of everything.
        chosen: Settings of the backend.
    """

    def __init__(self, folder: Path, **chosen: Any) -> None:
        (folder / "double").mkdir()
        self.double = Cluster(folder / "double", NODES)
        super().__init__(folder, NODES, lambda: self.double.make(**chosen), "kubernetes")

    def told(self, job: str) -> list[str]:
        """Return why a job's attempts were not launched, as its events tell it."""
        return [event.cause for event in self.events(job) if event.kind == "launch"]

    @property
    def pods(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.double.cluster.pods())

    def switch_off(self, node: str) -> None:
        """End a node for good, as a cluster sees it that takes the machine away."""
        cluster = self.double.cluster
        kubelet = cluster.kubelets[node]
        kubelet.alive = False
        cluster.objects.delete(("resourceslices", "", f"{node}-{DRIVER}"), None, 0)
        cluster.objects.delete(("nodes", "", node), None, 0)
        for container in kubelet.containers.values():
            container.kill_all()

    def collect(self, node: str) -> None:
        """Mark the pods of a node that is gone."""
        cluster = self.double.cluster
        for pod in cluster.pods():
            if pod["spec"].get("nodeName") == node:
                meta = pod["metadata"]
                cluster.objects.update(("pods", meta["namespace"], meta["name"]), collected)


def collected(pod: Object) -> Object:
    """Return a pod as its cluster marks it when its node is gone."""
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "node gone"}
    return pod | {"status": {**pod["status"], "phase": "Failed", "conditions": [gone]}}


@contextmanager
def on_kubernetes(folder: Path, **chosen: Any) -> Iterator[OnKubernetes]:
    it = OnKubernetes(folder, **chosen)
    try:
        yield it
    finally:
        it.close()
        it.double.end()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[OnKubernetes]:
    with on_kubernetes(tmp_path) as it:
        yield it


@pytest.mark.full
def test_a_gang_of_which_the_cluster_takes_three_pods_of_four_is_undone_and_the_other_gang_runs(
    trial: OnKubernetes, tmp_path: Path
) -> None:
    admission = trial.double.cluster.server.admission
    admission.most_pods = 3
    first = trial.submit(f"touch {tmp_path}/started-$RANK", gpus=4)
    trial.tick(2)
    assert trial.pods == [f"ls-{first}-1-{number}" for number in range(3)]
    second = trial.submit("true", gpus=4)
    trial.tick(2)
    assert {row.job_id for row in trial.held()} == {first}

    trial.wait(START_LIMIT_S + 5.0, step_s=START_LIMIT_S + 5.0)
    trial.until(lambda: first not in {row.job_id for row in trial.held()})
    assert not list(tmp_path.glob("started-*"))
    assert trial.job(first).stops_infra == 1
    admission.most_pods = None
    trial.until(lambda: trial.job(second).state in FINAL)
    assert (trial.job(second).state, trial.job(second).attempt) == (JobState.SUCCEEDED, 1)
    assert not [pod for pod in trial.pods if pod.startswith(f"ls-{first}-1")]
    trial.wait(300.0, step_s=100.0)
    assert trial.ends(first).state is JobState.SUCCEEDED
    assert trial.held() == []


def test_gpus_are_held_until_the_cluster_has_taken_the_twentieth_request_to_delete_a_pod(trial: OnKubernetes) -> None:
    job = trial.submit("exec sleep 1000", gpus=2)
    trial.until(lambda: len(processes_of(job)) == 2)
    trial.double.cluster.server.faults.once("delete pods", *[500] * 20)
    trial.wish(job, Desired.CANCEL)
    trial.wait(95.0)
    trial.until(lambda: calls_of(trial, "delete") >= 15)
    if calls_of(trial, "delete") < 20:
        assert trial.gauge("longshore_gpus_leaking") == 2.0
        assert len(trial.held()) == 2
        assert processes_of(job) != []
    assert trial.ends(job).state is JobState.CANCELLED
    assert calls_of(trial, "delete") > 20
    assert (trial.held(), trial.pods, processes_of(job)) == ([], [], [])


def calls_of(trial: OnKubernetes, verb: str) -> int:
    return sum((call.verb, call.resource) == (verb, "pods") for call in trial.double.cluster.server.calls)


def test_a_failed_job_stays_so_when_the_cluster_deletes_its_pods(trial: OnKubernetes) -> None:
    trial.way.before = failing("forget")
    job = trial.submit("exit 3", gpus=2)
    trial.until(lambda: trial.job(job).state is JobState.FAILED)
    before, created = trial.job(job), calls_of(trial, "create")
    assert trial.pods != []
    for pod in trial.double.cluster.pods():
        meta = pod["metadata"]
        trial.double.cluster.objects.remove(("pods", meta["namespace"], meta["name"]))
    trial.crash()
    trial.wait(120.0)
    assert trial.job(job) == before
    assert (trial.pods, calls_of(trial, "create")) == ([], created)
    assert [row.outcome for row in trial.attempts(job)] == ["user"]


def test_a_job_moves_away_from_a_node_that_the_cluster_has_lost(trial: OnKubernetes) -> None:
    job = trial.submit("exec sleep 1000")
    trial.runs(job)
    (lost,) = {share.node for share in trial.attempts(job)[0].placement}
    trial.switch_off(lost)
    trial.until(lambda: lost in {node.name for node in trial.way.observe() if not node.takes_jobs})
    trial.collect(lost)
    trial.until(lambda: trial.job(job).attempt == 2)
    trial.runs(job)
    first, second = trial.attempts(job)
    assert (first.outcome, trial.job(job).stops_infra) == ("infrastructure", 1)
    assert lost not in {share.node for share in second.placement}
    assert lost not in {row.node for row in trial.held()}
    waits = trial.submit("true", gpus=4)
    trial.tick(3)
    assert trial.job(waits).state is JobState.QUEUED  # there is one GPU less


def test_a_node_that_starts_anew_costs_its_job_nothing_but_a_try_of_the_cluster(trial: OnKubernetes) -> None:
    job = trial.submit("exec sleep 1000")
    trial.runs(job)
    (node,) = {share.node for share in trial.attempts(job)[0].placement}
    trial.double.cluster.kubelets[node].reboot()
    trial.until(lambda: trial.job(job).attempt == 2)
    trial.runs(job)
    row, first = trial.job(job), trial.attempts(job)[0]
    assert (first.outcome, row.stops_infra, row.stops_ambiguous) == ("infrastructure", 1, 0)
    assert "ContainerStatusUnknown" in first.cause


def test_a_job_that_was_to_start_on_a_node_that_is_lost_starts_on_another(trial: OnKubernetes) -> None:
    trial.double.cluster.schedules = False  # a slow kube-scheduler: the pod is on no node yet
    job = trial.submit("exec sleep 1000")
    trial.until(lambda: trial.job(job).attempt == 1 and trial.attempts(job)[0].state == "launched")
    (lost,) = {share.node for share in trial.attempts(job)[0].placement}
    trial.switch_off(lost)
    trial.double.cluster.schedules = True

    trial.wait(40.0)
    trial.runs(job)
    first, second = trial.attempts(job)
    assert (first.outcome, trial.job(job).stops_infra) == ("requested", 0)
    assert lost not in {share.node for share in second.placement}
    assert lost not in {row.node for row in trial.held()}


def test_gpus_of_a_job_on_a_silent_node_go_to_no_other_job_and_the_job_is_found_again(trial: OnKubernetes) -> None:
    job = trial.submit("exec sleep 1000")
    trial.until(lambda: processes_of(job))
    trial.runs(job)
    (node,) = {share.node for share in trial.attempts(job)[0].placement}
    before = trial.job(job)
    trial.double.cluster.kubelets[node].alive = False
    trial.double.cluster.set_ready(node, "Unknown")
    waits = trial.submit("true", gpus=4)
    trial.until(lambda: trial.attempts(job)[0].contact == "unknown")
    trial.wait(600.0, step_s=20.0)
    assert trial.job(waits).state is JobState.QUEUED
    assert trial.job(job) == before
    assert processes_of(job) != []
    trial.double.cluster.kubelets[node].alive = True
    trial.double.cluster.set_ready(node, "True")
    trial.until(lambda: trial.attempts(job)[0].contact == "ok")
    assert trial.job(job) == before


HOST_DATA = {"volumes": [{"name": "data", "hostPath": {"path": "/data"}}]}


def test_a_pod_that_its_namespace_forbids_is_reported_to_the_owner_and_not_asked_for_again_and_again(
    tmp_path: Path,
) -> None:
    with on_kubernetes(tmp_path, pod=HOST_DATA) as trial:
        admission = trial.double.cluster.server.admission
        admission.level = "baseline"
        job = trial.submit("true")
        trial.until(lambda: trial.job(job).state is JobState.QUEUED and trial.job(job).attempt == 1)
        assert 'violates PodSecurity "baseline:latest": hostPath volumes (volume "data")' in trial.job(job).cause
        assert (trial.job(job).cause_class, trial.held()) == ("infrastructure", [])
        trial.wait(600.0)
        assert 3 <= calls_of(trial, "create") <= 15  # of 120 looks
        admission.level = "privileged"
        trial.wait(300.0, step_s=100.0)
        assert trial.ends(job).state is JobState.SUCCEEDED


def test_a_quota_that_is_used_up_is_reported_to_the_owner_once_and_asked_for_ever_more_seldom(
    trial: OnKubernetes,
) -> None:
    admission = trial.double.cluster.server.admission
    admission.most_pods = 0
    job = trial.submit("true")
    trial.until(lambda: trial.job(job).attempt == 1)
    trial.wait(200.0, step_s=0.5)
    assert 5 <= calls_of(trial, "create") <= 15  # of 400 looks
    [words] = trial.told(job)
    assert "exceeded quota: pods, requested: pods=1, used: pods=0, limited: pods=0" in words
    trial.wait(START_LIMIT_S - 195.0, step_s=10.0)
    trial.until(lambda: trial.job(job).state is JobState.QUEUED)
    assert trial.job(job).cause.startswith("did not run within 300 s: the API server answered 403: ")
    admission.most_pods = None
    trial.wait(60.0)
    assert trial.ends(job).state is JobState.SUCCEEDED


def test_a_right_that_is_missing_is_reported_to_the_owner_and_the_job_starts_once_it_is_granted(
    trial: OnKubernetes,
) -> None:
    withheld = trial.double.cluster.server.admission.withheld
    withheld.add(("create", "pods"))
    job = trial.submit("true")
    trial.until(lambda: trial.told(job))
    assert 'cannot create resource "pods"' in trial.told(job)[0]
    withheld.clear()
    trial.wait(60.0)
    assert (trial.ends(job).state, trial.job(job).attempt) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("No Name", "InvalidImageName: Failed to apply default image tag"),
        ("no-such-image", "ImagePullBackOff: Back-off"),
    ],
)
def test_a_job_whose_image_cannot_be_had_fails_as_its_owners_doing_with_the_words_of_the_node(
    tmp_path: Path, image: str, words: str
) -> None:
    with on_kubernetes(tmp_path, bind_s=0.3) as trial:
        job = trial.submit("true", image=image)
        trial.until(lambda: trial.pods and trial.double.cluster.pods()[0]["status"].get("containerStatuses"))
        trial.wait(30.0)
        ended = trial.ends(job)
        assert (ended.state, ended.cause_class, ended.attempt) == (JobState.FAILED, "user", 1)
        assert words in ended.cause
        assert [(row.outcome, row.cause) for row in trial.attempts(job)] == [("user", ended.cause)]


def test_no_job_waits_for_a_node_whose_taint_it_cannot_bear_while_an_equal_one_is_free(trial: OnKubernetes) -> None:
    for node in ("a", "b", "c"):
        trial.double.cluster.taint(node, "dedicated", "infra", "NoSchedule")
    trial.until(lambda: sum(node.takes_jobs for node in trial.way.observe()) == 1)
    job = trial.submit("true")
    assert (trial.ends(job).state, trial.job(job).attempt) == (JobState.SUCCEEDED, 1)
    assert {share.node for share in trial.attempts(job)[0].placement} == {"d"}


def test_a_job_that_its_node_did_not_take_goes_to_another(tmp_path: Path) -> None:
    with on_kubernetes(tmp_path, bind_s=0.3) as trial:
        take_from_outside(trial.double.cluster, "a", 1)
        job = trial.submit("true")
        trial.until(lambda: trial.job(job).attempt == 1 and trial.job(job).state is JobState.QUEUED)
        assert {share.node for share in trial.attempts(job)[0].placement} == {"a"}
        trial.wait(10.0)
        assert (trial.ends(job).state, trial.job(job).attempt) == (JobState.SUCCEEDED, 2)


@pytest.mark.full
def test_nodes_that_cannot_be_seen_are_reported_once_for_each_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with on_kubernetes(tmp_path, deadline_s=0.5) as trial:
        trial.tick()
        trial.double.cluster.server.admission.withheld.update({("list", "nodes"), ("watch", "nodes")})
        trial.until(lambda: [it for it in caplog.records if "nodes cannot be read" in it.message])
        trial.tick(100)
        reported = [it.message for it in caplog.records if "nodes cannot be seen" in it.message]
        assert len(reported) <= 2  # a watch that is refused, and the list that is tried instead from then on
        assert all('resource "nodes" in API group "" at the cluster scope' in words for words in reported)
