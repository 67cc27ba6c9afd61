"""What the Kubernetes API shows of pods and nodes decides how nodes are ranked."""

import json
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from longshore.scheduler.extender.ranking import Ranker
from longshore.scheduler.extender.watching import KubernetesAddress, ObjectWatch
from tests.scheduler.extender.api_by_hand import KubernetesApi, kubernetes_api
from tests.scheduler.extender.kube_scheduler import scores
from tests.scheduler.extender.serving import PATIENCE_S, names_request, node, pod, ranker_of, served
from tests.support import processes

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


class Watched(NamedTuple):
    api: KubernetesApi
    ranker: Ranker
    client: httpx.Client

    def best(self, gpus: int = 2) -> str | None:
        request = names_request(pod(gpus, uid="asking"), ["a", "b", "c"])
        found = scores(request, self.client.post("/prioritize", content=request))
        return max(found, key=lambda host: found[host]) if any(found.values()) else None


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def running(host: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    it = json.loads(json.dumps(pod(gpus)))
    it["spec"]["nodeName"] = host
    it["status"] = {"phase": phase, "startTime": "2026-11-21T07:58:10Z"}
    found: dict[str, Any] = it
    return found


def held(watched: Watched) -> dict[str, int]:
    with watched.ranker.locked():
        return {uid: each.gpus for uid, each in watched.ranker.ledger.known.items()}


@pytest.fixture
def watched() -> Iterator[Watched]:
    ranker = ranker_of()
    with kubernetes_api() as (api, url):
        for name in "abc":
            api.put(NODES, name, node(name))
        for uid, host in (("1", "a"), ("2", "a"), ("3", "b")):
            api.put(PODS, uid, running(host, 4))
        with served(ranker, ObjectWatch(KubernetesAddress(url), ranker)) as client:
            until(lambda: client.get("/readyz").status_code == 200)
            yield Watched(api, ranker, client)
            api.hang_up()


def test_pods_of_all_pages_hold_their_gpus(watched: Watched) -> None:
    assert held(watched) == {"1": 4, "2": 4, "3": 4}
    # Best where the pod fits: a is full, and b and c are equally fast.
    assert watched.best(8) == "c"


def test_a_pod_that_ends_gives_its_gpus_back(watched: Watched) -> None:
    watched.api.put(PODS, "3", running("b", 4, "Succeeded"))
    watched.api.delete(PODS, "1")
    until(lambda: held(watched) == {"2": 4})

    watched.api.put(PODS, "4", running("c", 1))
    until(lambda: "4" in held(watched))

    assert watched.best(8) == "b"


def test_a_pod_that_was_seen_counts_once_where_it_was_seen(watched: Watched) -> None:
    assert watched.best(8) == "c"

    watched.api.put(PODS, "asking", running("b", 4))
    until(lambda: "asking" in held(watched))

    assert not watched.ranker.ledger.assumed


@pytest.mark.full
def test_changes_that_were_missed_are_listed_again(watched: Watched) -> None:
    lists = watched.api.lists
    until(lambda: len(watched.api.watchers[PODS]) == 1)
    del watched.api.objects[PODS]["1"]

    watched.api.forget(PODS)

    until(lambda: held(watched) == {"2": 4, "3": 4})
    assert watched.api.lists > lists


def test_a_watch_that_ends_goes_on_where_it_was(watched: Watched) -> None:
    lists = watched.api.lists

    watched.api.hang_up()
    watched.api.put(PODS, "4", running("c", 1))

    until(lambda: "4" in held(watched))
    assert watched.api.lists == lists


def test_a_node_that_is_no_more_is_not_ranked(watched: Watched) -> None:
    watched.api.delete(NODES, "c")

    until(lambda: watched.best(8) is None)


def test_it_is_not_ready_before_all_is_known() -> None:
    ranker = ranker_of()
    with served(ranker, ObjectWatch(KubernetesAddress("http://127.0.0.1:9"), ranker)) as client:
        reply = client.get("/readyz")
        assert client.get("/healthz").status_code == 200

    assert reply.status_code == 503
    assert reply.json()["code"] == "not-in-sync"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (apt-get install openssl)")
def test_it_speaks_to_the_api_as_the_service_account_of_its_pod(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    line += [
        "-subj",
        "/CN=api",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    processes.run(line, check=True, capture_output=True)
    (tmp_path / "token").write_text("secret\n")
    encryption = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    encryption.load_cert_chain(certificate, key)
    ranker = ranker_of()

    with kubernetes_api(encryption) as (api, url):
        with served(ranker, ObjectWatch(KubernetesAddress(url, tmp_path), ranker)) as client:
            until(lambda: client.get("/readyz").status_code == 200)
            api.hang_up()
        assert api.authorization == "Bearer secret"
