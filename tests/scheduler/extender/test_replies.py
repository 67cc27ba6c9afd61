"""kube-scheduler must take each reply as it was meant, whatever the request."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.extender.kube_scheduler import RefusalError, passed, scores, victims
from tests.scheduler.extender.serving import (
    HOSTS,
    by_hand,
    names_request,
    node,
    objects_request,
    pod,
    ranker_of,
    served,
)
from tests.support.budgets import examples


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(ranker_of(by_hand(tmp_path_factory.mktemp("cluster")))) as it:
        yield it
        assert 'outcome="failed"' not in it.get("/metrics").text  # of all that is asked in this module


@pytest.fixture(scope="module")
def learner() -> Iterator[httpx.Client]:
    with served(ranker_of()) as it:
        yield it


ANY_POD = [pod(2), pod(0), pod(None), {}, pod(9), {"metadata": None, "spec": None}, pod("two"), pod("1k"), pod(2**40)]


@pytest.mark.parametrize("asking", ANY_POD)
@pytest.mark.parametrize("hosts", [HOSTS, ["fast-0"], ["nobody", "slow-0"], ["nobody"], [], ["fast-0", "fast-0"]])
def test_every_host_by_name_is_passed_and_scored_once(client: httpx.Client, asking: object, hosts: list[str]) -> None:
    request = names_request(asking, hosts)

    assert passed(request, client.post("/filter", content=request)) == hosts
    scores(request, client.post("/prioritize", content=request))


@pytest.mark.parametrize("asking", [pod(2), pod(0), {}])
def test_nodes_come_back_whole(client: httpx.Client, asking: object) -> None:
    nodes = [{**node("fast-0"), "something": {"new": [1.5, None]}}, node("nobody", None)]
    request = objects_request(asking, nodes)

    reply = client.post("/filter", content=request)

    assert passed(request, reply) == ["fast-0", "nobody"]
    assert reply.json()["Nodes"]["items"] == nodes
    assert reply.json()["NodeNames"] is None


def test_a_node_with_too_few_gpus_is_refused_with_its_reason(client: httpx.Client) -> None:
    request = objects_request(pod(4), [node("fast-0", 2), node("slow-0", 8), node("cpu", 0), node("silent", None)])

    reply = client.post("/filter", content=request)

    assert passed(request, reply) == ["slow-0", "silent"]
    assert reply.json()["FailedAndUnresolvableNodes"] == {
        "fast-0": "the pod asks for 4 GPUs, the node has 2", "cpu": "the pod asks for 4 GPUs, the node has 0",
    }  # fmt: skip


def test_where_no_node_has_enough_gpus_all_are_named(client: httpx.Client) -> None:
    request = objects_request(pod(16), [node(host) for host in HOSTS])

    assert passed(request, client.post("/filter", content=request)) == []


def test_the_faster_nodes_are_ranked_first_and_each_rank_once(client: httpx.Client) -> None:
    request = names_request(pod(2), HOSTS)

    found = scores(request, client.post("/prioritize", content=request))

    assert sorted(found.values()) == [7, 8, 9, 10]
    assert {host for host, score in found.items() if score >= 9} == {"fast-0", "fast-1"}


def test_keys_may_be_written_in_small_letters(client: httpx.Client) -> None:
    request = json.dumps({"pod": pod(2), "nodes": None, "nodenames": HOSTS}).encode()

    assert passed(request, client.post("/filter", content=request)) == HOSTS
    assert max(scores(request, client.post("/prioritize", content=request)).values()) == 10


def test_nodes_are_learned_from_their_objects(learner: httpx.Client) -> None:
    request = objects_request(pod(4), [node("a", 4), node("b", 8), node("c", 4)])
    scores(request, learner.post("/prioritize", content=request))

    later = names_request(pod(1, uid="another"), ["a", "b", "c"])
    found = scores(later, learner.post("/prioritize", content=later))

    assert sorted(found.values()) == [8, 9, 10]


META = {"a": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}, "b": {"Pods": []}}
WHOLE = {"a": {"Pods": [{"metadata": {"uid": "u1"}, "spec": {}}], "NumPDBViolations": 0}}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"NodeNameToVictims": None, "NodeNameToMetaVictims": META}, {"a": {"u1", "u2"}, "b": set()}),
        ({"NodeNameToVictims": WHOLE, "NodeNameToMetaVictims": None}, {"a": {"u1"}}),
        ({"NodeNameToMetaVictims": {}}, {}),
    ],
)
def test_all_candidates_for_preemption_are_kept(
    client: httpx.Client, body: dict[str, object], found: dict[str, set[str]]
) -> None:
    request = json.dumps({"Pod": pod(2), **body}).encode()

    assert victims(request, client.post("/preempt", content=request)) == found


def test_it_never_says_that_it_has_bound_a_pod(client: httpx.Client) -> None:
    reply = client.post("/bind", json={"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "fast-0"})

    assert reply.status_code == 200
    assert "leave bindVerb out" in reply.json()["Error"]


UNREADABLE = [
    b"", b"null", b"[]", b"{", b"<html>", b"\xff\xfe", b'{"Pod": {}}', b'{"Pod": null, "NodeNames": []}',
    b"[" * 100_000,
    b'{"Pod": {}, "NodeNames": [1]}', b'{"Pod": {}, "NodeNames": "a"}', b'{"Pod": {}, "Nodes": {"items": [{}]}}',
    b'{"Pod": {"spec": []}, "NodeNames": []}', b'{"Pod": {}, "NodeNames": [], "x": NaN}', b'{"Pod": {}, "Nodes": 7}',
    b'{"Pod":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    b'{"Pod": {}, "NodeNameToMetaVictims": {"a": null}}',
    b'{"Pod": {}, "NodeNameToVictims": {"a": {"Pods": [{"metadata": {}}]}}}',
    b'{"Pod": {}, "NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": 0.5}}}',
]  # fmt: skip


@pytest.mark.parametrize("body", UNREADABLE, ids=range(len(UNREADABLE)))
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_what_cannot_be_read_is_refused_in_words(client: httpx.Client, verb: str, body: bytes) -> None:
    reply = client.post(f"/{verb}", content=body)

    assert reply.status_code == 400
    assert "this is no request of kube-scheduler" in reply.json()["detail"]


def test_a_node_that_cannot_be_sent_back_is_refused_in_words(client: httpx.Client) -> None:
    body = b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "a"}, "x": 1e999}]}}'

    assert client.post("/filter", content=body).status_code == 400


def test_a_compressed_body_is_refused(client: httpx.Client) -> None:
    assert client.post("/filter", content=b"", headers={"Content-Encoding": "gzip"}).status_code == 415


TEXTS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": JSON | st.fixed_dictionaries({"name": TEXTS, "labels": JSON, "annotations": JSON}),
        "spec": JSON | st.fixed_dictionaries({"containers": JSON, "initContainers": JSON}),
        "status": JSON | st.fixed_dictionaries({"allocatable": JSON | st.dictionaries(TEXTS, JSON)}),
    },
)
PODS = st.builds(pod, st.integers(-3, 20) | TEXTS, uid=TEXTS, labels=st.dictionaries(TEXTS, TEXTS))
BODIES = st.fixed_dictionaries(
    {"Pod": PODS | OBJECTS | JSON},
    optional={
        "NodeNames": st.none() | st.lists(TEXTS | st.sampled_from(HOSTS)) | JSON,
        "Nodes": st.none() | st.fixed_dictionaries({"items": st.lists(OBJECTS)}) | JSON,
        "NodeNameToMetaVictims": JSON | st.dictionaries(TEXTS, st.fixed_dictionaries({"Pods": JSON})),
        "NodeNameToVictims": JSON,
    },
)


@settings(max_examples=examples(40))
@given(BODIES | JSON)
def test_no_body_brings_it_down(client: httpx.Client, body: object) -> None:
    request = json.dumps(body).encode()

    for verb in ("filter", "prioritize", "preempt"):
        assert client.post(f"/{verb}", content=request).status_code in (200, 400)


@given(st.binary(max_size=200))
def test_no_bytes_bring_it_down(client: httpx.Client, body: bytes) -> None:
    for verb in ("filter", "prioritize", "preempt"):
        assert client.post(f"/{verb}", content=body).status_code == 400


@settings(max_examples=examples(40))
@given(PODS, st.lists(TEXTS | st.sampled_from(HOSTS), unique=True))
def test_any_pod_and_any_names_are_answered_as_kube_scheduler_takes_it(
    client: httpx.Client, asking: object, hosts: list[str]
) -> None:
    request = names_request(asking, hosts)

    assert passed(request, client.post("/filter", content=request)) == hosts
    scores(request, client.post("/prioritize", content=request))


Reader = Callable[[bytes, httpx.Response], object]
ASKED = names_request(pod(2), ["a", "b"])
EVICTING = json.dumps({"Pod": {}, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}})
WRONG: list[tuple[Reader, bytes, int, str]] = [
    (passed, ASKED, 500, "boom"), (passed, ASKED, 404, "not found"), (passed, ASKED, 200, '{"NodeNames": ['),
    (passed, ASKED, 200, ""), (passed, ASKED, 200, "<html>"), (passed, ASKED, 200, "null"),
    (passed, ASKED, 200, '{"NodeNames": ["nobody"]}'), (passed, ASKED, 200, '{"NodeNames": []}'),
    (passed, ASKED, 200, '{"Nodes": null, "NodeNames": null}'),
    (passed, ASKED, 200, '{"NodeNames": ["a"], "Error": "no"}'),
    (scores, ASKED, 500, "boom"), (scores, ASKED, 200, "null"), (scores, ASKED, 200, '{"HostPriorityList": []}'),
    *[
        (scores, ASKED, 200, f'[{{"Host": "a", "Score": {score}}}, {{"Host": "b", "Score": 0}}]')
        for score in ("11", "1000", "-1", "0.5", "10.0", '"10"', "NaN")
    ],
    (scores, ASKED, 200, '[{"Host": "a", "Score": 1}]'),
    (scores, ASKED, 200, '[{"Host": "a", "Score": 1}, {"Host": "b", "Score": 1}, {"Host": "b", "Score": 1}]'),
    (scores, ASKED, 200, '[{"Host": "a", "Score": 1}, {"Host": "nobody", "Score": 1}]'),
    (victims, EVICTING.encode(), 200, '{"NodeNameToMetaVictims": {}}'),
    (victims, EVICTING.encode(), 200, '{"NodeNameToMetaVictims": {"b": {"Pods": [], "NumPDBViolations": 0}}}'),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "request_", "status", "text"), WRONG, ids=range(len(WRONG)))
def test_the_reader_of_these_tests_refuses_what_kube_scheduler_takes_amiss(
    reader: Reader, request_: bytes, status: int, text: str
) -> None:
    with pytest.raises(RefusalError):
        reader(request_, httpx.Response(status, text=text))


def test_answers_are_counted_by_verb_and_outcome(tmp_path: Path) -> None:
    with served(ranker_of(by_hand(tmp_path))) as client:
        for body in (
            names_request(pod(2), HOSTS),
            names_request(pod(0), HOSTS),
            names_request(pod(2), ["nobody"]),
            b"",
        ):
            client.post("/prioritize", content=body)
        received = client.get("/metrics").text

    for outcome in ("heuristic", "no-gpus", "unknown-nodes", "unreadable"):
        assert f'longshore_extender_requests_total{{outcome="{outcome}",verb="prioritize"}} 1.0' in received
    assert 'longshore_extender_request_seconds_count{verb="prioritize"} 4.0' in received
