"""How pods are ranked: by what is assumed of others, as gangs, and by policies that fail."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longshore.agents.registry import find_policy
from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.processes import children
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.extender.inventory import Inventory
from longshore.scheduler.extender.ranking import NodeRanking, Ranker, RankingOutcome
from longshore.scheduler.extender.wire import RANKED_NODES, read_request
from longshore.scheduler.mirror.cluster_mirror import ROW, ClusterMirror, JobRequest, MirrorOrigin
from longshore.scheduler.placement.placer import PlacementAdvice
from tests.scheduler.extender.serving import (
    CHECKPOINT,
    HOSTS,
    PATIENCE_S,
    ROOT,
    by_hand,
    names_request,
    node,
    objects_request,
    pod,
    ranker_of,
)
from tests.support.budgets import examples

HETERO64 = ROOT / "examples" / "hetero64.yaml"
GANG = {"scheduling.x-k8s.io/pod-group": "gang"}


def rank(ranker: Ranker, gpus: int, uid: str, hosts: list[str] = HOSTS, /, **proposal: dict[str, str]) -> NodeRanking:
    return ranker.rank(read_request(names_request(pod(gpus, uid=uid, **proposal), hosts)))


@pytest.fixture
def ranker(tmp_path: Path) -> Ranker:
    return ranker_of(by_hand(tmp_path))


def test_a_pod_is_assumed_to_be_where_it_was_ranked_first(tmp_path: Path) -> None:
    packing = ranker_of(by_hand(tmp_path), fallback="pack")
    assert rank(packing, 6, "1", ["slow-1"]).order == ["slow-1"]

    assert rank(packing, 2, "2").order[0] == "slow-1"  # the smallest hole


def test_a_pod_whose_ranking_is_requested_again_is_nowhere(ranker: Ranker) -> None:
    assert rank(ranker, 8, "1").order == rank(ranker, 8, "1").order


def test_a_node_that_is_offered_has_room_whatever_was_assumed(ranker: Ranker) -> None:
    assert rank(ranker, 8, "1", ["fast-0"]).order == ["fast-0"]

    assert rank(ranker, 4, "2", ["fast-0", "slow-0"]).order == ["fast-0", "slow-0"]


def test_only_as_much_is_taken_back_as_cannot_be(ranker: Ranker) -> None:
    rank(ranker, 4, "old", ["fast-0"])
    rank(ranker, 4, "new", ["fast-0"])

    rank(ranker, 4, "3", ["fast-0"])

    assert set(ranker.ledger.assumed) == {"new", "3"}


def test_a_pod_with_one_node_left_is_assumed_there(tmp_path: Path) -> None:
    packing = ranker_of(by_hand(tmp_path), fallback="pack")
    packing.record_only_node(read_request(names_request(pod(6, uid="1"), HOSTS)), "slow-1")

    assert rank(packing, 2, "2").order[0] == "slow-1"


def test_pods_on_their_only_node_are_assumed_as_long_as_they_fit_there(ranker: Ranker) -> None:
    for i in range(20):
        ranker.record_only_node(read_request(names_request(pod(2, uid=str(i)), ["fast-0"])), "fast-0")
        ranker.record_only_node(read_request(names_request(pod(2, uid=f"lost {i}"), ["nobody"])), "nobody")

    assert set(ranker.ledger.assumed) == {"16", "17", "18", "19"}


def test_gpus_that_a_node_has_lost_take_no_pod(ranker: Ranker) -> None:
    nodes = [node("fast-0", 7), node("fast-1", 8), node("slow-0", 8)]

    def best(gpus: int, uid: str) -> list[str]:
        return ranker.rank(read_request(objects_request(pod(gpus, uid=uid), nodes))).order

    assert best(8, "1") == ["fast-1", "slow-0"]
    assert best(7, "1") == ["fast-0", "fast-1", "slow-0"]
    nodes[0] = node("fast-0", 8)
    assert set(best(8, "1")) == {"fast-0", "fast-1", "slow-0"}


def test_a_gang_of_known_size_is_planned_as_a_whole(ranker: Ranker) -> None:
    proposal = {"labels": GANG, "annotations": {"longshore.io/pods": "4"}}
    hosts = [rank(ranker, 4, f"member {i}", **proposal).order[0] for i in range(4)]

    # Two fast nodes at twice the speed of slow ones: four pods of half a node each.
    assert sorted(hosts) == ["fast-0", "fast-0", "fast-1", "fast-1"]


def test_what_is_planned_for_a_gang_is_kept_from_others_for_a_while(tmp_path: Path) -> None:
    now_s = [1000.0]
    ranker = ranker_of(by_hand(tmp_path))
    ranker.now_s = lambda: now_s[0]
    proposal = {"labels": GANG, "annotations": {"longshore.io/pods": "2"}}
    first = rank(ranker, 8, "member 0", **proposal).order[0]
    left = [host for host in HOSTS if host != first]

    other = rank(ranker, 8, "other", left).order[0]
    now_s[0] += 1000.0
    late = rank(ranker, 8, "late", left).order[0]

    assert {first, late} == {"fast-0", "fast-1"}
    assert other.startswith("slow")


def test_members_of_a_gang_of_unknown_size_go_beside_the_first(ranker: Ranker) -> None:
    rank(ranker, 4, "member 0", ["slow-1"], labels=GANG)

    assert rank(ranker, 4, "member 1", labels=GANG).order[:2] == ["slow-1", "slow-0"]


def test_a_gang_too_large_to_be_planned_is_ranked_pod_by_pod(ranker: Ranker) -> None:
    found = rank(ranker, 8, "member 0", labels=GANG, annotations={"longshore.io/pods": "1000"})

    assert found.order[0].startswith("fast")


NODE_CHANGES = st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.sampled_from([0, 0, 2, 4, 8]))
POD_OF_GANG = st.tuples(st.sampled_from(["gang-0", "gang-1"]), st.sampled_from([1, 2, 4]))


@given(st.lists(st.one_of(NODE_CHANGES, POD_OF_GANG), min_size=4, max_size=16))
@settings(max_examples=examples(50))
@example([("gang-0", 4), ("n0", 0), ("gang-0", 4)])
@example([("gang-0", 4), ("n1", 0), ("gang-0", 4)])
def test_nodes_may_come_and_go_between_the_pods_of_a_planned_gang(steps: list[tuple[str, int]]) -> None:
    ranker, gpus = ranker_of(), {"n0": 8, "n1": 8}
    for number, (name, count) in enumerate(steps):
        if name in ("n0", "n1", "n2"):
            gpus[name] = count
            ranker.inventory.forget(name)
            gpus = {name: count for name, count in gpus.items() if count}
            continue
        labels, notes = {"scheduling.x-k8s.io/pod-group": name}, {"longshore.io/pods": "4"}
        asking = pod(count, uid=f"pod {number}", labels=labels, annotations=notes)
        nodes = [node(each, offered) for each, offered in gpus.items()]
        found = ranker.rank(read_request(objects_request(asking, nodes)))
        assert set(found.order) <= set(gpus)


@pytest.mark.parametrize("gpus", [9, 2**40])
def test_a_pod_that_fits_nowhere_makes_no_difference_between_nodes(ranker: Ranker, gpus: int) -> None:
    assert rank(ranker, gpus, "1") == NodeRanking([], RankingOutcome.UNKNOWN)


def test_an_answer_does_not_wait_for_one_that_never_ends(tmp_path: Path) -> None:
    ranker = ranker_of(by_hand(tmp_path), deadline_s=0.05)

    with ranker.locked():
        assert rank(ranker, 2, "1") == NodeRanking([], RankingOutcome.BUSY)


def test_after_many_questions_the_view_is_still_right(ranker: Ranker) -> None:
    for i in range(600):
        assert rank(ranker, 8, str(i % 7)).order
    sizes = np.diff(ranker.inventory.named_site.site.cluster.first_gpu).tolist() if ranker.inventory.named_site else []
    held = ranker.ledger.held_gpus()

    assert all(held.get(host, 0) <= size for host, size in zip(HOSTS, sizes, strict=True))


@pytest.mark.full
def test_a_checkpoint_ranks_first_what_it_would_choose_itself() -> None:
    ranker = ranker_of(HETERO64, str(CHECKPOINT))
    names = list(read_cluster(HETERO64).node_names)
    ranker.warm_up(PATIENCE_S)
    try:
        found = rank(ranker, 4, "1", names)
    finally:
        ranker.close()

    place = Inventory(read_cluster(HETERO64)).named_site
    assert place is not None
    mirror = ClusterMirror(place.site, MirrorOrigin(0.0))
    mirror.submit(JobRequest("job", 4, 3600.0, 0.0))
    mirror.find_due_job()
    find_policy(str(CHECKPOINT)).place(mirror.sim, ROW)
    chosen = {place.names[place.site.cluster.gpu_node[gpu]] for gpu in mirror.gpus_of_job("job")}
    assert found.outcome is RankingOutcome.POLICY
    assert {found.order[0]} == chosen
    assert len(found.order) == RANKED_NODES


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_policy_that_hangs_or_dies_is_replaced_by_the_heuristic(tmp_path: Path, number: int) -> None:
    ranker = ranker_of(by_hand(tmp_path), "patient", deadline_s=4.0)
    before = {process.pid for process in children(os.getpid())}
    ranker.warm_up(PATIENCE_S)
    (pid,) = {process.pid for process in children(os.getpid())} - before
    try:
        assert rank(ranker, 2, "1").outcome is RankingOutcome.POLICY

        os.kill(pid, number)

        found = rank(ranker, 2, "2")
        assert found.outcome is RankingOutcome.FALLBACK
        assert found.order[0].startswith("fast")
        assert rank(ranker, 2, "3").outcome is RankingOutcome.FALLBACK  # it rests
    finally:
        ranker.close()


@pytest.mark.full
def test_a_policy_that_cannot_be_loaded_is_reported_before_anything_is_served(tmp_path: Path) -> None:
    ranker = ranker_of(by_hand(tmp_path), str(tmp_path / "nothing.zip"))

    with pytest.raises(PluginError, match=r"nothing\.zip"):
        ranker.warm_up(PATIENCE_S)


def test_labels_tell_racks_and_gangs_stay_in_theirs() -> None:
    ranker = ranker_of()
    nodes = [node(f"n{i}", 8, labels={"topology.kubernetes.io/rack": f"r{i % 2}"}) for i in range(4)]
    request = json.loads(objects_request(pod(8, uid="0", labels=GANG), [nodes[3]]))
    ranker.rank(read_request(objects_request(pod(8, uid="x"), nodes)))
    ranker.ledger.drop_assumption("x")

    ranker.rank(read_request(json.dumps(request).encode()))

    assert rank(ranker, 8, "1", ["n0", "n1", "n2"], labels=GANG).order[0] == "n1"


def test_the_policy_is_called_once_for_a_pod_and_the_heuristic_ranks_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = ranker_of(by_hand(tmp_path), "pack", fallback="eft-hazard")
    asked, consult = [], ranker.placer.consult

    def counted(mirror: ClusterMirror) -> PlacementAdvice:
        asked.append(mirror.current_job)
        return consult(mirror)

    try:
        ranker.warm_up(PATIENCE_S)
        rank(ranker, 6, "1", ["slow-1"])
        monkeypatch.setattr(ranker.placer, "consult", counted)
        found = rank(ranker, 2, "2")
    finally:
        ranker.close()
    assert (len(asked), found.outcome) == (1, RankingOutcome.POLICY)
    assert found.order == ["slow-1", "fast-0", "fast-1", "slow-0"]  # pack fills the smallest hole, eft-hazard is fast
