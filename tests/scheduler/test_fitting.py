"""GPUs for jobs that need so many nodes with the same GPUs on each."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.registry import find_policy
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.control.reconciler import _behaviour_fields
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, ClusterSite, JobRequest, MirrorCall, MirrorOrigin
from longshore.scheduler.mirror.vacant_seats import PlacementShape, _gpus_of_same_indices, fit_to_shape
from longshore.scheduler.placement.placer import Decision, Placer, Proposal
from longshore.scheduler.service.own_cluster import default_cluster
from longshore.scheduler.service.service import layout_of, site_of
from longshore.scheduler.settings import SchedulerSettings
from tests.support.budgets import examples

NODES, GPUS = 4, 4
ALL = range(NODES * GPUS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> ClusterSite:
    folder = tmp_path_factory.mktemp("site")
    setup = read_cluster(default_cluster(Path(folder)))
    assert list(layout_of(setup).nodes.values()) == [GPUS] * NODES
    return site_of(setup, SchedulerSettings(ageing_s=100.0))


def cluster_of(site: ClusterSite, out: set[int], *jobs: JobRequest) -> ClusterMirror:
    mirror = ClusterMirror(site, MirrorOrigin(0.0, down=sorted(out)))
    for job in jobs:
        mirror.submit(job)
    return mirror


def suits(gpus: tuple[int, ...], nodes: int, count: int) -> bool:
    """Say by the definition whether GPUs are so many nodes' with the same indices of each."""
    of_node: dict[int, set[int]] = {}
    for gpu in gpus:
        of_node.setdefault(gpu // GPUS, set()).add(gpu % GPUS)
    same = len({frozenset(indices) for indices in of_node.values()}) == 1
    return len(set(gpus)) == len(gpus) == count and len(of_node) == nodes and same


@given(
    out=st.sets(st.sampled_from(ALL), max_size=14), nodes=st.integers(1, NODES), each=st.integers(1, GPUS),
    chosen=st.sets(st.sampled_from(ALL)),
)  # fmt: skip
def test_gpus_suit_and_are_as_many_of_the_chosen_ones_as_can_be(
    site: ClusterSite, out: set[int], nodes: int, each: int, chosen: set[int]
) -> None:
    mirror = cluster_of(site, out, JobRequest("job", nodes * each, 60.0, 0.0))
    free = [gpu for gpu in ALL if gpu not in out]
    ways = [
        way
        for at in combinations(range(NODES), nodes)
        for indices in combinations(range(GPUS), each)
        if (way := {node * GPUS + index for node in at for index in indices}) <= set(free)
    ]

    gpus = fit_to_shape(mirror, "job", chosen, PlacementShape(nodes, same_indices=True))

    if not ways:
        assert gpus == ()
    else:
        assert suits(gpus, nodes, nodes * each)
        assert set(gpus) <= set(free)
        assert len(chosen & set(gpus)) == max(len(chosen & way) for way in ways)


@given(nodes=st.integers(1, NODES), each=st.integers(1, GPUS), data=st.data())
def test_gpus_in_place_of_the_policys_have_no_probability(
    site: ClusterSite, nodes: int, each: int, data: st.DataObject
) -> None:
    count = nodes * each
    mirror = cluster_of(site, set(), JobRequest("job", count, 60.0, 0.0))
    chosen = data.draw(st.lists(st.sampled_from(ALL), min_size=count, max_size=count, unique=True))
    proposal = Proposal("job", tuple(chosen), rests=False)
    gpus = fit_to_shape(mirror, "job", chosen, PlacementShape(nodes, same_indices=data.draw(st.booleans())))
    decision = Decision("job", gpus, True, "policy", "1", proposal, 0.0, proposal=proposal)  # noqa: FBT003
    probability = _behaviour_fields(decision, "policy", None)["behaviour_probability"]
    assert probability == (1.0 if set(gpus) == set(chosen) else None)


@given(
    out=st.sets(st.sampled_from(ALL), max_size=14), nodes=st.integers(1, NODES + 1), each=st.integers(1, GPUS),
    chosen=st.sets(st.sampled_from(ALL)),
)  # fmt: skip
def test_of_any_indices_they_are_as_many_of_each_node_and_of_the_chosen_ones_as_can_be(
    site: ClusterSite, out: set[int], nodes: int, each: int, chosen: set[int]
) -> None:
    mirror = cluster_of(site, out, JobRequest("job", nodes * each, 60.0, 0.0))
    free = [[gpu for gpu in range(node * GPUS, (node + 1) * GPUS) if gpu not in out] for node in range(NODES)]
    has = sorted((min(each, len(chosen & set(own))) for own in free if len(own) >= each), reverse=True)

    gpus = fit_to_shape(mirror, "job", chosen, PlacementShape(nodes))

    if len(has) < nodes:
        assert gpus == ()
    else:
        assert sorted(Counter(gpu // GPUS for gpu in gpus).values()) == [each] * nodes
        assert set(gpus) <= {gpu for own in free for gpu in own}
        assert list(gpus) == sorted(set(gpus))
        assert len(chosen & set(gpus)) == sum(has[:nodes])


def test_a_job_that_has_no_room_lets_others_start_and_starts_when_there_is_some(site: ClusterSite) -> None:
    taken = {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15}  # one GPU of each node is left
    jobs = (JobRequest("wide", 4, 60.0, 0.0), JobRequest("small", 1, 60.0, 0.0))
    mirror, placer = cluster_of(site, taken, *jobs), Placer(find_policy("spread"))
    form_of = {"wide": PlacementShape(1), "small": None}.__getitem__
    mirror.begin(1.0)

    decided = []
    while mirror.find_due_job() is not None:
        decision = placer.decide(mirror, form_of)
        decided.append((decision.job, decision.started))
    assert decided == [("wide", False), ("small", True)]

    mirror.begin(2.0)
    for gpu in (5, 6, 7, 9, 10, 11):
        mirror.bring_back(gpu)
    while mirror.find_due_job() is not None:
        decision = placer.decide(mirror, form_of)
    assert (decision.job, decision.started) == ("wide", True)
    assert suits(decision.gpus, 1, 4)


def test_an_aged_job_that_no_free_gpus_suit_holds_up_no_one(site: ClusterSite) -> None:
    aged = site._replace(rules=site.rules._replace(ageing_s=10.0))
    taken = {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15}
    jobs = (JobRequest("wide", 4, 60.0, 0.0), JobRequest("small", 1, 60.0, 0.0))
    mirror, placer = cluster_of(aged, taken, *jobs), Placer(find_policy("spread"))
    mirror.begin(100.0)
    decided = []
    while mirror.find_due_job() is not None:
        decision = placer.decide(mirror, {"wide": PlacementShape(1), "small": None}.__getitem__)
        decided.append((decision.job, decision.started))
    assert decided == [("wide", False), ("small", True)]


def test_who_follows_a_cluster_follows_it_past_a_job_without_room(site: ClusterSite) -> None:
    taken = {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15}
    jobs = (JobRequest("wide", 4, 60.0, 0.0), JobRequest("small", 1, 60.0, 0.0))
    mirror, follower = cluster_of(site, taken, *jobs), cluster_of(site, taken, *jobs)
    mirror.journal = journal = list[MirrorCall]()
    mirror.begin(1.0)
    assert mirror.find_due_job() == "wide"
    mirror.pass_over()
    assert mirror.find_due_job() == "small"

    follower.apply_calls(journal)

    assert follower.find_due_job() == "small"


@settings(max_examples=examples(60))
@given(st.integers(2, 5), st.integers(2, 64), st.data())
def test_the_same_indices_of_nodes_with_many_gpus_are_found_at_once(
    nodes: int, widest: int, data: st.DataObject
) -> None:
    """Where there are too many sets of indices to try: what is found suits, and something is where all are free."""
    each = data.draw(st.integers(1, widest))
    count = data.draw(st.integers(nodes, nodes + 3))
    is_free = np.random.default_rng(data.draw(st.integers(0, 99))).random(count * widest) < data.draw(
        st.sampled_from([0.5, 0.9, 1.0])
    )
    first = np.arange(count + 1, dtype=np.int32) * widest
    found = _gpus_of_same_indices(is_free, np.zeros_like(is_free), first, each, nodes)
    assert found or not is_free.all()
    if found:
        table = np.array(found).reshape(nodes, each) if len(found) == nodes * each else None
        assert table is not None
        assert is_free[list(found)].all()
        assert len({gpu // widest for gpu in found}) == nodes
        assert (table % widest == table[0] % widest).all()
