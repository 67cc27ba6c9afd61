"""With which free GPU a shrunk ring of a live job is faster, in cases worked by hand."""

import math
from typing import Any

import numpy as np
import pytest

from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.scheduler.mirror.vacant_seats import FreeGpus, RingGap, gpus_making_ring_faster

NETWORK = 12.5e9  # bytes/s between two nodes of `grid_cluster`


def cluster(speeds: list[float]) -> Cluster:
    """Return nodes of one GPU each, a type for each speed, whose peaks tell the speeds."""
    return grid_cluster(len(speeds), 1, speed=np.array(speeds))


def ring_of(members: int, asked: int, volume_bytes: float = 0.0, **known: Any) -> RingGap:
    """Return a ring on the first nodes that computes 1 s where no seat is empty, with one seat more behind it."""
    nodes, share = list(range(members)), asked / (members + 1)
    ring = RingGap(nodes, members, members + 1, 1.0, 2.0, volume_bytes, math.nan, {1: 1.0}, share)
    return ring._replace(**known)


def kept(speeds: list[float], ring: RingGap) -> list[int]:
    """Return which GPUs behind the members are kept."""
    free = np.arange(len(ring.nodes), len(speeds))
    gpus: list[int] = gpus_making_ring_faster(cluster(speeds), ring, FreeGpus(free, np.zeros(free.size))).gpus.tolist()
    return gpus


def test_a_ring_takes_no_gpu_that_all_others_would_wait_for() -> None:
    # Of 4 seats 3 compute for 4/3 s; on a GPU of half the speed, of all four, each iteration takes 2 s.
    assert kept([2.0, 2.0, 2.0, 1.0, 2.0], ring_of(3, 4)) == [4]


def test_a_ring_takes_a_slow_gpu_that_spares_the_others_more() -> None:
    # Of 4 seats 1 computes for 4 s; with a GPU of half the speed that has half of the batch, 4 s become 4 s: no faster.
    # With one that is 1.25 times slower they become 2.5 s.
    assert kept([2.0, 1.0, 1.6], ring_of(1, 4, recorded_s={2: 1.0})) == [2]


@pytest.mark.parametrize(("volume_s", "is_kept"), [(0.9, True), (1.1, False)])
def test_a_lone_member_takes_no_other_with_which_it_would_send_for_longer(volume_s: float, is_kept: bool) -> None:  # noqa: FBT001
    # Alone it computes both shares in 2 s. With another it computes for 1 s and sends the parameters once.
    assert (kept([2.0, 2.0], ring_of(1, 2, volume_s * NETWORK, recorded_s={0: 1.0})) == [1]) is is_kept


def test_a_gpu_of_a_members_type_is_taken_whatever_was_measured_of_it() -> None:
    assert kept([2.0, 2.0, 2.0], ring_of(2, 3, recorded_s={0: 5.0})) == [2]


def test_an_unknown_time_counts_in_favour_of_a_gpu() -> None:
    assert kept([2.0, 2.0, 1.0], ring_of(2, 3, compute_s=0.0)) == [2]
    assert kept([2.0, 2.0, 1.0], ring_of(2, 3, recorded_s={})) == [2]
