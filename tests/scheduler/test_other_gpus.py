"""Whether a job would do better on other GPUs than those that it holds by now."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, ClusterSite, JobRecord, JobRequest, MirrorOrigin
from longshore.scheduler.mirror.vacant_seats import best_other_step_s
from longshore.scheduler.service.service import site_of
from longshore.scheduler.settings import SchedulerSettings
from tests.checkout import ROOT

NODES, GPUS = 8, 8
ALL = frozenset(range(NODES * GPUS))


@pytest.fixture(scope="module")
def site() -> ClusterSite:
    return site_of(read_cluster(ROOT / "examples/hetero64.yaml"), SchedulerSettings())


def running(site: ClusterSite, held: Mapping[str, list[int]]) -> ClusterMirror:
    """Return a cluster whose jobs began on the GPUs that they hold."""
    return ClusterMirror(
        site,
        MirrorOrigin(
            10.0,
            [
                (JobRequest(job, len(gpus), 3600.0, 0.0), JobRecord(3600.0, 0.0, first_start_s=0.0, gpus=tuple(gpus)))
                for job, gpus in held.items()
            ],
        ),
    )


@given(
    sizes=st.tuples(st.integers(1, 24), st.integers(1, 30)), order=st.permutations(sorted(ALL)),
    swaps=st.lists(st.tuples(st.sampled_from(["ring", "other"]), st.integers(0, 99), st.integers(0, 99)), max_size=12),
    slow_nodes=st.sets(st.integers(0, NODES - 1), max_size=3),
)  # fmt: skip
def test_a_ring_counts_with_the_gpus_that_it_holds_now(
    site: ClusterSite, sizes: tuple[int, int], order: list[int], swaps: list[tuple[str, int, int]], slow_nodes: set[int]
) -> None:
    held = {"ring": list(order[: sizes[0]]), "other": list(order[sizes[0] : sum(sizes)])}
    mirror = running(site, held)
    for job, left, taken in swaps:
        gpu = held[job].pop(left % len(held[job]))
        mirror.give_up(job, gpu)
        free = sorted(ALL - {gpu} - {each for gpus in held.values() for each in gpus})
        held[job].append(free[taken % len(free)])
        mirror.claim(job, held[job][-1])
    slow_gpus = [gpu for node in slow_nodes for gpu in range(node * GPUS, (node + 1) * GPUS)]
    for job in held:
        expected_s = best_other_step_s(running(site, held), job, slow_gpus, 2.0)
        assert best_other_step_s(mirror, job, slow_gpus, 2.0) == pytest.approx(expected_s)
        if len(ALL - set(slow_gpus) - set(held["other" if job == "ring" else "ring"])) < len(held[job]):
            assert expected_s == math.inf


def test_a_ring_without_gpus_has_no_other_ones(site: ClusterSite) -> None:
    mirror = running(site, {"ring": [3]})
    mirror.give_up("ring", 3)
    assert best_other_step_s(mirror, "ring", [], 2.0) == math.inf
