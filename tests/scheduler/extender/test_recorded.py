"""Requests that a real kube-scheduler sent, and what it did with replies (../shared/field/extender_samples)."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from longshore.scheduler.extender.wire import RANKED_NODES
from tests.scheduler.extender.kube_scheduler import RefusalError, asked, passed, scores, victims
from tests.scheduler.extender.serving import ROOT, ranker_of, served

SAMPLES = ROOT.parent / "shared" / "field" / "extender_samples"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded requests in ../shared/field are absent")
REQUESTS = sorted(path.name for path in SAMPLES.glob("*.request.json*"))
READERS: dict[str, Callable[[bytes, httpx.Response], object]] = {
    "filter": passed, "prioritize": scores, "preempt": victims,
}  # fmt: skip
ASKED = b'{"Pod": {}, "Nodes": null, "NodeNames": ["node-000", "node-001", "node-002"]}'


def content(name: str) -> bytes:
    data = (SAMPLES / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def of(verb: str) -> list[str]:
    return [name for name in REQUESTS if name.startswith(verb)]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with served(ranker_of()) as it:
        headers = json.loads((SAMPLES / "headers.json").read_text())
        it.headers.update({key: value for key, value in headers.items() if key != "Host"})
        yield it
        assert 'outcome="failed"' not in it.get("/metrics").text


@pytest.mark.parametrize("name", of("filter"))
def test_no_node_of_a_recorded_request_is_lost(client: httpx.Client, name: str) -> None:
    request = content(name)

    reply = client.post("/filter", content=request)

    assert passed(request, reply) == asked(request)
    recorded = name.replace("request", "response")
    if (SAMPLES / recorded).exists():
        assert reply.json() == json.loads(content(recorded))


@pytest.mark.parametrize("name", of("prioritize"))
def test_every_node_of_a_recorded_request_is_scored(client: httpx.Client, name: str) -> None:
    whole = content(name.replace("names.request.json", "objects.request.json" + (".gz" if "500" in name else "")))
    client.post("/prioritize", content=whole)
    request = content(name)

    found = scores(request, client.post("/prioritize", content=request))

    best = min(len(found), RANKED_NODES)
    assert sorted(found.values(), reverse=True)[:best] == list(range(10, 10 - best, -1))


@pytest.mark.parametrize("name", of("preempt"))
def test_recorded_victims_are_kept(client: httpx.Client, name: str) -> None:
    request = content(name)

    reply = client.post("/preempt", content=request)

    assert victims(request, reply)
    assert reply.json() == json.loads(content(name.replace("request", "response")))


def test_a_recorded_bind_is_answered_with_an_error_that_says_what_to_do(client: httpx.Client) -> None:
    reply = client.post("/bind", content=content("bind.request.json"))

    assert "leave bindVerb out" in reply.json()["Error"]


BAD = json.loads((SAMPLES / "bad_replies.json").read_text()) if SAMPLES.is_dir() else {}
OUTCOMES = json.loads((SAMPLES / "outcomes.json").read_text()) if SAMPLES.is_dir() else {}
BY_DESIGN = {
    "filter:none", "filter:noneunres",  # really none fits, with reasons
    "filter:dup", "filter:lowercase", "filter:partial",  # taken as meant
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in BAD if case.split(":")[1] != "timeout"])
def test_the_reader_of_these_tests_judges_as_the_recorded_scheduler_did(case: str) -> None:
    verb, kind = case.split(":")
    status = int(kind) if kind in ("500", "404") else 200
    reply = httpx.Response(status, text=BAD[case])

    if case in BY_DESIGN:
        READERS[verb](ASKED, reply)
        return
    with pytest.raises(RefusalError):
        READERS[verb](ASKED, reply)
    if verb == "filter":
        assert not OUTCOMES["filter"][f"{case} ignorable=False"]["bound"]


def test_the_recorded_files_are_where_they_are_looked_for() -> None:
    assert isinstance(SAMPLES, Path)
    assert {name.split("_")[0].split(".")[0] for name in REQUESTS} == {"filter", "prioritize", "preempt", "bind"}
