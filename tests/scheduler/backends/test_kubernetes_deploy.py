"""The manifests in deploy/kubernetes fit together, and to what the backend does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore.cluster.files.errors import BackendError
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.backends.kubernetes.pods import LABELS
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings
from tests.kubernetes_double.server import LOSE
from tests.scheduler.backends.attempts import THREE_GPUS, shell_attempt, until, wait_for_end, wait_until_running
from tests.scheduler.backends.kubernetes_trials import Trial
from tests.support import processes

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
BASE = DEPLOY / "base"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def objects(kind: str) -> list[dict[str, Any]]:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [found for name in listed for found in documents(BASE / name) if found["kind"] == kind]


def one(kind: str, name: str = "longshore") -> dict[str, Any]:
    [found] = [found for found in objects(kind) if found["metadata"]["name"] == name]
    return found


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = one("Deployment")["spec"]["template"]["spec"]
    return spec


def allowed() -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for role in (one("Role"), one("ClusterRole", "longshore-nodes"))
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_rights_are_exactly_those_that_the_backend_uses(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    try:
        live_through_everything(trial)
        assert {tuple(call) for call in trial.cluster.server.calls} == allowed()
    finally:
        trial.end()


def live_through_everything(trial: Trial) -> None:
    """Let a backend make every call that it can come to make."""
    backend = trial.make()
    backend.observe()
    for call in ("create pods", "patch resourceclaims"):  # which are made again
        trial.cluster.server.faults.once(call, LOSE)
    attempt = shell_attempt("echo out; exec sleep 1000")
    until(lambda: launches(backend, attempt))
    wait_until_running(backend, attempt)
    backend.logs(attempt.name, 0, 0, 100)
    backend.cancel(attempt.name, "seen enough")
    wait_for_end(backend, attempt)
    backend.forget(attempt.name)
    trial.make().observe()  # which renews the lease


def launches(backend: Any, attempt: Any) -> bool:
    try:
        backend.launch(attempt, THREE_GPUS)
    except BackendError:
        return False
    return True


def test_the_rights_are_bound_to_the_account_of_the_scheduler() -> None:
    account = {"kind": "ServiceAccount", "name": pod_spec()["serviceAccountName"], "namespace": namespace()}
    assert one("ServiceAccount")["metadata"]["name"] == account["name"]
    for binding, role in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        [found] = objects(binding)
        assert found["subjects"] == [account]
        assert found["roleRef"]["kind"] == role
        assert one(role, found["roleRef"]["name"])


def namespace() -> str:
    name: str = yaml.safe_load((BASE / "kustomization.yaml").read_text())["namespace"]
    return name


def test_names_of_the_namespace_and_of_the_service_of_ranks_are_those_of_the_settings() -> None:
    configuration = yaml.safe_load((BASE / "longshore.yaml").read_text())
    assert configuration["backend"]["name"] == "kubernetes"
    settings = KubernetesSettings.model_validate(configuration["backend"]["settings"])
    assert {settings.namespace, one("Namespace")["metadata"]["name"]} == {namespace()}
    service = one("Service", settings.ranks_service)["spec"]
    assert (service["clusterIP"], service["selector"], service["publishNotReadyAddresses"]) == ("None", LABELS, True)


def test_the_cluster_file_can_be_read_and_names_its_nodes() -> None:
    assert list(read_cluster(BASE / "cluster.yaml").node_names) == ["gpu-node-1", "gpu-node-2"]


def test_probes_the_service_and_the_policy_lead_to_the_port_of_the_configuration() -> None:
    port = yaml.safe_load((BASE / "longshore.yaml").read_text())["port"]
    [container] = pod_spec()["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert one("Service")["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
    assert one("NetworkPolicy")["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port}]


def test_selectors_find_the_pods_that_they_are_for() -> None:
    deployment = one("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == one("Service")["spec"]["selector"] == labels
    assert one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert one("NetworkPolicy", "ranks")["spec"]["podSelector"]["matchLabels"] == LABELS
    assert not set(labels.items()) & set(LABELS.items())


def test_every_mount_has_its_volume_and_the_configuration_is_where_it_is_looked_for() -> None:
    spec = pod_spec()
    [container] = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(mounts) == set(volumes)
    assert container["args"] == ["serve", "--config", f"{mounts['configuration']}/longshore.yaml"]
    assert mounts["folder"] == yaml.safe_load((BASE / "longshore.yaml").read_text())["folder"]
    assert volumes["folder"]["persistentVolumeClaim"]["claimName"] == one("PersistentVolumeClaim")["metadata"]["name"]
    [generated] = yaml.safe_load((BASE / "kustomization.yaml").read_text())["configMapGenerator"]
    assert volumes["configuration"]["configMap"]["name"] == generated["name"]
    assert all((BASE / name).exists() for name in generated["files"])


def is_new_enough(kubectl: str) -> bool:
    """Say whether a kubectl knows patches with a target, as in deploy/kubernetes/postgresql."""
    reported = processes.run([kubectl, "version", "--client", "-o", "json"], capture_output=True, check=False)
    version = json.loads(reported.stdout)["clientVersion"]
    return (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 21)


def rendered(folder: Path) -> list[dict[str, Any]]:
    """Return the objects that kubectl makes of a kustomization."""
    kubectl = shutil.which("kubectl")
    if kubectl is None or not is_new_enough(kubectl):
        pytest.skip("no kubectl 1.21 or newer (https://kubernetes.io/docs/tasks/tools/); that of Debian 12 is older")
    done = processes.run([kubectl, "kustomize", str(folder)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def container_in(objects: list[dict[str, Any]]) -> dict[str, Any]:
    [deployment] = [found for found in objects if found["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("name", ["base", "postgresql"])
def test_kustomize_renders_it(name: str) -> None:
    container = container_in(rendered(DEPLOY / name))
    assert ("$(STORE_URL)" in container["args"]) == (name == "postgresql")


def test_the_kustomization_of_the_page_replaces_the_image_and_both_files(tmp_path: Path) -> None:
    page = (DEPLOY.parents[1] / "docs" / "kubernetes.md").read_text()
    text = page.partition("```yaml\n# kustomization.yaml\n")[2].partition("```")[0]
    (tmp_path / "kustomization.yaml").write_text(text)
    (tmp_path / "longshore.yaml").write_text("port: 8765\n")
    (tmp_path / "cluster.yaml").write_text("name: mine\n")
    shutil.copytree(DEPLOY, tmp_path / "longshore" / "deploy" / "kubernetes")
    made = rendered(tmp_path)
    assert container_in(made)["image"] == "registry.example.org/longshore:0.1.0"
    [files] = [found["data"] for found in made if found["kind"] == "ConfigMap"]
    assert files == {"longshore.yaml": "port: 8765\n", "cluster.yaml": "name: mine\n"}
