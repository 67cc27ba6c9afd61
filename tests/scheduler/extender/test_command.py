"""The command as a user calls it, and the configuration that goes with it."""

import inspect
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from longshore.cluster.files.processes import free_port
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.commands.serving import DEFAULT_PORT, extender
from longshore.scheduler.extender.app import create_app
from tests.scheduler.extender.kube_scheduler import passed, scores
from tests.scheduler.extender.serving import HOSTS, PATIENCE_S, ROOT, by_hand, names_request, pod, ranker_of
from tests.support import processes

LONGSHORE = [sys.executable, "-m", "longshore", "extender"]
DEPLOY = ROOT / "deploy" / "extender"


@pytest.mark.full
def test_the_command_serves_ranks_until_it_is_stopped(tmp_path: Path) -> None:
    port = free_port()
    line = [*LONGSHORE, "--cluster", str(by_hand(tmp_path)), "--policy", "patient", "--port", str(port)]
    line += ["--deadline", "60s"]  # what is asked here is not how fast it is
    process = processes.start(line)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            give_up = time.monotonic() + PATIENCE_S
            while not answers(client):
                assert process.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.1)
            request = names_request(pod(2), HOSTS)
            assert passed(request, client.post("/filter", content=request)) == HOSTS
            assert max(scores(request, client.post("/prioritize", content=request)).values()) == 10
            assert 'outcome="policy",verb="prioritize"} 1.0' in client.get("/metrics").text
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_an_invalid_address_is_reported_in_one_line() -> None:
    done = processes.run([*LONGSHORE, "--api", "here"], capture_output=True, check=False)

    assert done.returncode == 2
    assert done.stderr.strip() == (
        "longshore: --api: 'here' is no address; start `kubectl proxy` and write --api http://127.0.0.1:8001"
    )


def loaded(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_scheduler_calls_the_verbs_that_are_served_and_waits_longer_than_an_answer_takes() -> None:
    (configuration,) = loaded("scheduler.yaml")
    (asked,) = configuration["extenders"]
    verbs = {asked[key] for key in asked if key.endswith("Verb")}
    deadline_s = inspect.signature(extender).parameters["deadline"].default

    assert {f"/{verb}" for verb in verbs} <= {getattr(route, "path", "") for route in create_app(ranker_of()).routes}
    assert "bindVerb" not in asked
    assert asked["urlPrefix"] == f"http://127.0.0.1:{DEFAULT_PORT}"
    assert float(asked["httpTimeout"].removesuffix("s")) >= 2.0 * deadline_s
    assert asked["ignorable"]
    assert asked["nodeCacheCapable"]


def test_the_deployment_runs_the_command_with_options_that_it_has() -> None:
    (deployment,) = [each for each in loaded("deployment.yaml") if each["kind"] == "Deployment"]
    containers = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"]}
    served = containers["extender"]
    options = {word[2:].replace("-", "_") for word in served["args"] if word.startswith("--")}
    (kustomization,) = loaded("kustomization.yaml")
    (files,) = [each["files"] for each in kustomization["configMapGenerator"]]

    assert served["command"] == ["longshore", "extender"]
    assert options <= inspect.signature(extender).parameters.keys()
    mounted = re.findall(
        r"/etc/longshore/([\w.]+)", " ".join([*served["args"], *containers["kube-scheduler"]["command"]])
    )
    assert sorted(mounted) == sorted(files)
    assert read_cluster(DEPLOY / "cluster.yaml").node_names == ("node-000", "node-001", "node-002")
