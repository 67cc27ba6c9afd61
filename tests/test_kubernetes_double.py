"""The double of an API server does what was measured of kube-apiserver 1.36.2, by the official client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch  # noqa: TID253
from kubernetes.client.exceptions import ApiException  # noqa: TID253

from tests.kubernetes_double.cluster import Cluster
from tests.kubernetes_double.server import CUT
from tests.scheduler.backends.attempts import until

NAMESPACE = "tests"
GATE = "longshore.io/placement"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, {"a": 4, "b": 2})
    yield cluster
    cluster.close()


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Any]:
    configuration = client.Configuration()
    configuration.retries = False
    config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    with client.ApiClient(configuration) as connection:
        yield client.CoreV1Api(connection)


def a_pod(name: str = "one", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "any", "command": ["sh", "-c", "exec sleep 1000"]}
    gates = {"schedulingGates": [{"name": GATE}]}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **gates, **spec}}


def patch(api: Any, name: str, body: Any, kind: str = "application/json-patch+json") -> Any:
    return api.patch_namespaced_pod(name, NAMESPACE, body, _content_type=kind)


def lifting(uid: str, **selector: str) -> list[dict[str, Any]]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/spec/nodeSelector", "value": selector},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]


def code_of(call: Any, *args: Any, **options: Any) -> int:
    with pytest.raises(ApiException) as caught:
        call(*args, **options)
    assert isinstance(caught.value.status, int)
    return caught.value.status


def node_of(api: Any, name: str) -> str:
    return str(until(lambda: api.read_namespaced_pod(name, NAMESPACE).spec.node_name))


def test_a_second_creation_conflicts(api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod())
    assert code_of(api.create_namespaced_pod, NAMESPACE, a_pod()) == 409


def test_one_patch_places_and_releases_a_gated_pod(api: Any) -> None:
    pod = api.create_namespaced_pod(NAMESPACE, a_pod())
    patch(api, "one", lifting(pod.metadata.uid, **{"kubernetes.io/hostname": "b"}))
    assert node_of(api, "one") == "b"


def test_a_patch_for_another_uid_is_refused_and_changes_nothing(api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod())
    assert code_of(patch, api, "one", lifting("another")) == 422
    assert api.read_namespaced_pod("one", NAMESPACE).spec.scheduling_gates[0].name == GATE


def test_a_node_selector_is_refused_once_the_gate_is_gone(api: Any) -> None:
    pod = api.create_namespaced_pod(NAMESPACE, a_pod())
    patch(api, "one", lifting(pod.metadata.uid, **{"kubernetes.io/hostname": "b"}))
    late = [{"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": "a"}}]
    assert code_of(patch, api, "one", late) == 422


def test_a_strategic_patch_names_a_node_and_deletes_the_gate_by_name(api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod())
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    gates = [{"$patch": "delete", "name": GATE}]
    body = {"spec": {"affinity": {"nodeAffinity": required}, "schedulingGates": gates}}
    patch(api, "one", body, "application/strategic-merge-patch+json")
    assert node_of(api, "one") == "b"


def test_a_gated_pod_is_not_bound(cluster: Cluster, api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod())
    target = {"metadata": {"name": "one"}, "target": {"kind": "Node", "name": "a"}}
    assert code_of(api.create_namespaced_pod_binding, "one", NAMESPACE, target) == 409


def test_a_deletion_for_another_uid_conflicts(api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod())
    assert code_of(api.delete_namespaced_pod, "one", NAMESPACE, body={"preconditions": {"uid": "another"}}) == 409


def test_a_running_pod_ends_before_it_is_gone(cluster: Cluster, api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod(schedulingGates=[]))
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.phase == "Running")
    cluster.kubelets["a"].alive = cluster.kubelets["b"].alive = False
    api.delete_namespaced_pod("one", NAMESPACE)
    assert api.read_namespaced_pod("one", NAMESPACE).metadata.deletion_timestamp
    cluster.kubelets["a"].alive = cluster.kubelets["b"].alive = True
    until(lambda: not cluster.pods())


def test_a_finalizer_keeps_what_is_deleted(cluster: Cluster, api: Any) -> None:
    pod = a_pod()
    pod["metadata"]["finalizers"] = ["longshore.io/attempt"]
    api.create_namespaced_pod(NAMESPACE, pod)
    api.delete_namespaced_pod("one", NAMESPACE)
    assert api.read_namespaced_pod("one", NAMESPACE).metadata.deletion_timestamp
    patch(api, "one", [{"op": "remove", "path": "/metadata/finalizers/0"}])
    assert cluster.pods() == []


def test_a_lease_is_replaced_by_one_writer_only(api: Any) -> None:
    leases = client.CoordinationV1Api(api.api_client)
    leases.create_namespaced_lease(NAMESPACE, {"metadata": {"name": "leader"}, "spec": {"leaseTransitions": 1}})
    read = leases.read_namespaced_lease("leader", NAMESPACE)
    read.spec.lease_transitions = 2
    leases.replace_namespaced_lease("leader", NAMESPACE, read)
    assert code_of(leases.replace_namespaced_lease, "leader", NAMESPACE, read) == 409


def test_who_applies_owns_those_fields_only(api: Any) -> None:
    claims = client.ResourceV1Api(api.api_client)

    def apply(manager: str, **meta: Any) -> Any:
        body = {"metadata": {"name": "one", **meta}, "spec": {"devices": {}}}
        options = {"field_manager": manager, "_content_type": "application/apply-patch+yaml"}
        return claims.patch_namespaced_resource_claim("one", NAMESPACE, body, **options)

    apply("ours", labels={"a": "1"})
    assert apply("theirs", labels={"b": "1"}).metadata.labels == {"a": "1", "b": "1"}
    assert apply("ours", labels={"a": "2"}).metadata.labels == {"a": "2", "b": "1"}
    assert code_of(apply, "theirs", labels={"a": "3"}) == 409
    assert code_of(apply, "ours", uid="another") in (409, 422)


def test_a_list_comes_in_pages(api: Any) -> None:
    for number in range(5):
        api.create_namespaced_pod(NAMESPACE, a_pod(f"pod-{number}"))
    names: list[str] = []
    token = None
    while token != "":
        page = api.list_namespaced_pod(NAMESPACE, limit=2, _continue=token)
        names += [pod.metadata.name for pod in page.items]
        token = page.metadata._continue or ""
    assert names == [f"pod-{number}" for number in range(5)]


def test_changes_follow_the_version_of_a_list(api: Any) -> None:
    version = api.list_namespaced_pod(NAMESPACE).metadata.resource_version
    api.create_namespaced_pod(NAMESPACE, a_pod())
    api.delete_namespaced_pod("one", NAMESPACE)
    stream = watch.Watch().stream(api.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=1)
    assert [event["type"] for event in stream] == ["ADDED", "DELETED"]


def test_a_bookmark_is_bare(api: Any) -> None:
    version = api.list_namespaced_pod(NAMESPACE).metadata.resource_version
    api.create_namespaced_pod("elsewhere", a_pod())
    options = {"resource_version": version, "allow_watch_bookmarks": True, "timeout_seconds": 1}
    events = list(watch.Watch().stream(api.list_namespaced_pod, NAMESPACE, **options))
    assert events
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert "name" not in events[0]["raw_object"]["metadata"]


def test_an_expired_version_ends_the_stream_with_410(cluster: Cluster, api: Any) -> None:
    version = api.list_namespaced_pod(NAMESPACE).metadata.resource_version
    api.create_namespaced_pod(NAMESPACE, a_pod())
    cluster.objects.compact()
    stream = watch.Watch().stream(api.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=1)
    assert code_of(list, stream) == 410


def test_a_version_from_the_future_is_answered_with_504(cluster: Cluster, api: Any) -> None:
    version = api.list_namespaced_pod(NAMESPACE).metadata.resource_version
    cluster.objects.restore(7)
    assert code_of(api.list_namespaced_pod, NAMESPACE, resource_version=version) == 504


def test_claims_take_exactly_the_devices_that_they_name_and_go_with_their_pod(cluster: Cluster, api: Any) -> None:
    claims = client.ResourceV1Api(api.api_client)
    pod = a_pod(schedulingGates=[], resourceClaims=[{"name": "gpus", "resourceClaimName": "one"}])
    meta = api.create_namespaced_pod(NAMESPACE, pod).metadata
    expression = 'device.attributes["gpu.nvidia.com"].uuid in ["GPU-b-1"]'
    exactly = {
        "deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1,
        "selectors": [{"cel": {"expression": expression}}],
    }  # fmt: skip
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": meta.uid}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    body = {"metadata": {"name": "one", "ownerReferences": [owner]}, "spec": spec}
    claims.create_namespaced_resource_claim(NAMESPACE, body)
    assert node_of(api, "one") == "b"
    [result] = claims.read_namespaced_resource_claim("one", NAMESPACE).status.allocation.devices.results
    assert (result.pool, result.device) == ("b", "gpu-1")
    api.delete_namespaced_pod("one", NAMESPACE, grace_period_seconds=0)
    until(lambda: not cluster.objects.each("resourceclaims", NAMESPACE))


def test_each_verb_can_be_told_to_fail(cluster: Cluster, api: Any) -> None:
    cluster.server.faults.once("create pods", 500, 429)
    assert code_of(api.create_namespaced_pod, NAMESPACE, a_pod()) == 500
    assert code_of(api.create_namespaced_pod, NAMESPACE, a_pod()) == 429
    api.create_namespaced_pod(NAMESPACE, a_pod())


def test_a_stream_can_be_cut_in_the_middle_of_a_line(cluster: Cluster, api: Any) -> None:
    version = api.list_namespaced_pod(NAMESPACE).metadata.resource_version
    cluster.server.faults.once("watch pods", CUT)
    api.create_namespaced_pod(NAMESPACE, a_pod())
    response = api.list_namespaced_pod(
        NAMESPACE, watch=True, resource_version=version, timeout_seconds=1, _preload_content=False
    )
    with pytest.raises(Exception, match=r"(?i)incomplete|ended prematurely|connection broken"):
        list(response.stream())


def test_a_pod_that_ends_before_its_container_began_is_told_as_a_kubelet_tells_it(cluster: Cluster, api: Any) -> None:
    pod = a_pod(schedulingGates=[])
    pod["metadata"]["finalizers"] = ["longshore.io/attempt"]
    pod["spec"]["containers"][0]["image"] = "no-such-image"
    api.create_namespaced_pod(NAMESPACE, pod)
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.container_statuses)
    api.delete_namespaced_pod("one", NAMESPACE)
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.phase == "Failed")
    ended = api.read_namespaced_pod("one", NAMESPACE).status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason, ended.finished_at) == (137, "ContainerStatusUnknown", None)


def test_a_node_that_was_started_anew_finds_no_container(cluster: Cluster, api: Any) -> None:
    api.create_namespaced_pod(NAMESPACE, a_pod(schedulingGates=[]))
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.phase == "Running")
    cluster.kubelets["a"].reboot()
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.phase == "Failed")
    [status] = api.read_namespaced_pod("one", NAMESPACE).status.container_statuses
    assert status.state.terminated.reason == "ContainerStatusUnknown"


@pytest.mark.parametrize(
    ("image", "reason"), [("registry/no-such-image:1", "ImagePullBackOff"), ("No Name", "InvalidImageName")]
)
def test_a_container_whose_image_cannot_be_had_waits_and_says_why(api: Any, image: str, reason: str) -> None:
    pod = a_pod(schedulingGates=[])
    pod["spec"]["containers"][0]["image"] = image
    api.create_namespaced_pod(NAMESPACE, pod)
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.container_statuses)
    assert api.read_namespaced_pod("one", NAMESPACE).status.container_statuses[0].state.waiting.reason == reason


def refusal_of(api: Any, pod: dict[str, Any]) -> str:
    """Return the words with which a pod is refused."""
    with pytest.raises(ApiException) as caught:
        api.create_namespaced_pod(NAMESPACE, pod)
    told = json.loads(caught.value.body or "")
    assert (caught.value.status, told["reason"], told["kind"]) == (403, "Forbidden", "Status")
    return str(told["message"])


def test_a_pod_that_breaks_the_level_of_its_namespace_is_refused_with_the_words_of_pod_security(
    cluster: Cluster, api: Any
) -> None:
    cluster.server.admission.level = "baseline"
    data = {"name": "data", "hostPath": {"path": "/data"}}
    assert refusal_of(api, a_pod(volumes=[data])) == (
        'pods "one" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes (volume "data")'
    )
    pod = a_pod(hostNetwork=True)
    pod["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    assert refusal_of(api, pod).endswith(
        'host namespaces (hostNetwork=true), non-default capabilities (container "main" must not include "IPC_LOCK" in '
        "securityContext.capabilities.add)"
    )
    api.create_namespaced_pod(NAMESPACE, a_pod())
    cluster.server.admission.level = "restricted"
    assert 'runAsNonRoot != true (pod or container "main"' in refusal_of(api, a_pod("two"))


def test_a_pod_beyond_the_quota_is_refused_until_another_has_ended(cluster: Cluster, api: Any) -> None:
    cluster.server.admission.most_pods = 1
    api.create_namespaced_pod(NAMESPACE, a_pod())
    assert refusal_of(api, a_pod("two")) == (
        'pods "two" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1'
    )
    api.delete_namespaced_pod("one", NAMESPACE)
    api.create_namespaced_pod(NAMESPACE, a_pod("two"))


def test_a_right_that_is_withheld_is_refused_with_the_words_of_rbac(cluster: Cluster, api: Any) -> None:
    cluster.server.admission.withheld.add(("create", "pods"))
    assert refusal_of(api, a_pod()).endswith(
        'cannot create resource "pods" in API group "" in the namespace "tests"'
    )  # fmt: skip


TAINT = ("dedicated", "infra", "NoSchedule")


@pytest.mark.parametrize(
    ("tolerations", "node"),
    [
        ([], "b"),
        ([{"key": "dedicated", "operator": "Equal", "value": "infra", "effect": "NoSchedule"}], "a"),
        ([{"key": "dedicated", "value": "other"}], "b"),
        ([{"key": "dedicated", "operator": "Exists"}], "a"),
        ([{"operator": "Exists"}], "a"),
        ([{"operator": "Exists", "effect": "NoExecute"}], "b"),
    ],
)
def test_a_pod_goes_to_a_tainted_node_only_if_it_tolerates_the_taint(
    cluster: Cluster, api: Any, tolerations: list[dict[str, str]], node: str
) -> None:
    cluster.taint("a", *TAINT)
    api.create_namespaced_pod(NAMESPACE, a_pod(schedulingGates=[], tolerations=tolerations))
    assert node_of(api, "one") == node


def test_a_pod_that_no_node_takes_says_why(cluster: Cluster, api: Any) -> None:
    cluster.taint("a", *TAINT)
    cluster.cordon("b")
    api.create_namespaced_pod(NAMESPACE, a_pod(schedulingGates=[]))
    [condition] = until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.conditions)
    assert condition.message == (
        "0/2 nodes are available: 1 node(s) had untolerated taint {dedicated: infra}, 1 node(s) were unschedulable."
    )


def test_a_taint_that_lets_no_pod_run_ends_those_that_run(cluster: Cluster, api: Any) -> None:
    pod = a_pod(schedulingGates=[])
    pod["metadata"]["finalizers"] = ["longshore.io/attempt"]
    api.create_namespaced_pod(NAMESPACE, pod)
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.phase == "Running")
    cluster.taint("a", "broken", "", "NoExecute")
    until(lambda: api.read_namespaced_pod("one", NAMESPACE).status.phase == "Failed")
    conditions = {each.type: each.reason for each in api.read_namespaced_pod("one", NAMESPACE).status.conditions}
    assert conditions["DisruptionTarget"] == "DeletionByTaintManager"


def test_a_claim_whose_owner_is_gone_before_it_came_is_collected(cluster: Cluster, api: Any) -> None:
    claims = client.ResourceV1Api(api.api_client)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": "of-one-that-is-gone"}
    body = {"metadata": {"name": "one", "ownerReferences": [owner]}, "spec": {"devices": {}}}
    claims.create_namespaced_resource_claim(NAMESPACE, body)
    until(lambda: not cluster.objects.each("resourceclaims", NAMESPACE))
