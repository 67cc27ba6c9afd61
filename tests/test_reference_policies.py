"""The reference policies against placements worked by hand from docs/policies.md."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.topology import grid_cluster
from tests.cases_by_hand import Jobs, hand_case
from tests.reference import first_state, simulate
from tests.reference_policies import POLICIES, gpus_of_set, lemons, likely_sets, node_sets, scripted
from tests.reference_state import ReferenceState

MIXED = np.array([1.0, 2.0, 0.5])
BUSY = (0, 4, 5)  # of three nodes of 4 GPUs, free are 1 2 3, then 6 7, then 8 9 10 11


def state_with(
    gpus: int, *, speed: np.ndarray = MIXED, gpus_per_node: int = 4, busy: tuple[int, ...] = BUSY, **rules: Any
) -> ReferenceState:
    """Return a state in which job 0 needs GPUs and job 1 holds the busy ones."""
    cluster = grid_cluster(len(speed), gpus_per_node, speed=speed)
    state = first_state(*hand_case(cluster, [(gpus, 100.0, 0.0), (max(1, len(busy)), 40.0, 0.0)], **rules))
    state.jobs[1].placement = list(busy)
    state.jobs[1].slowdown = 1.0
    for gpu in busy:
        state.gpu_job[gpu] = 1
    return state


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        ("first-fit", 2, [1, 2]),
        ("first-fit", 5, [1, 2, 3, 6, 7]),
        ("spread", 2, [8, 9]),
        ("spread", 5, [8, 9, 10, 11, 1]),
        ("fastest", 2, [6, 7]),
        ("fastest", 6, [6, 7, 1, 2, 3, 8]),
        ("pack", 2, [6, 7]),  # the smallest hole
        ("pack", 3, [1, 2, 3]),
        ("pack", 5, [8, 9, 10, 11, 6]),  # none fits: most free, then the smallest hole
        ("eft", 2, [6, 7]),  # 50 s
        ("eft", 3, [1, 2, 3]),  # 100 s on node 0, 125 s on nodes 0 and 1 if node 1 gave anything
        ("eft", 5, [1, 2, 3, 6, 7]),  # nodes 0 and 1: 125 s; with node 2: 250 s at least
        ("consolidate", 5, [8, 9, 10, 11, 6]),  # pack, where waiting is not allowed
    ],
)
def test_a_placement_is_the_one_worked_by_hand(name: str, gpus: int, expected: list[int]) -> None:
    assert POLICIES[name](state_with(gpus), 0) == expected


def test_a_node_gives_its_gpus_of_lowest_hazard_and_reliable_takes_the_node_of_lowest_mean() -> None:
    state = state_with(2)
    state.hazard_per_s = [0.0, 4, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1]  # means 1.5, 2, 1.75
    assert POLICIES["reliable"](state, 0) == [2, 3]
    assert POLICIES["spread"](state, 0) == [11, 8]


def test_a_lemon_is_over_five_times_the_lower_median_and_is_taken_last() -> None:
    state = state_with(2, speed=np.ones(4), busy=(0, 4, 5))
    state.hazard_per_s = [1.0] * 4 + [6.0] * 4 + [1.0] * 4 + [5.0] * 4  # the lower median is 1
    assert lemons(state) == {1}
    assert POLICIES["pack"](state, 0) == [6, 7]
    assert POLICIES["pack-hazard"](state, 0) == [1, 2]
    state.jobs[0].gpus = 12
    assert (POLICIES["pack-hazard"](state, 0) or [])[-1:] == [6]


def test_expected_finish_counts_the_expected_loss_by_faults() -> None:
    state = state_with(2, checkpoint_s=90.0, restart_s=15.0)  # a fault costs 150 s
    state.hazard_per_s = [0.0] * 4 + [0.01] * 4 + [0.0] * 4
    assert POLICIES["eft"](state, 0) == [6, 7]
    assert POLICIES["eft-hazard"](state, 0) == [1, 2]  # 100 s against 50 x (1 + 0.02 x 150) s
    state.rules = state.rules._replace(checkpoint_s=np.inf)
    assert POLICIES["eft-hazard"](state, 0) == [6, 7]  # 50 x (1 + 0.02 x 15) s


def test_equal_finishes_go_to_the_smallest_hole_and_then_to_the_set_found_first() -> None:
    state = state_with(2, speed=np.ones(3))
    assert POLICIES["eft"](state, 0) == [6, 7]
    assert POLICIES["eft"](state_with(2, speed=np.ones(3), busy=()), 0) == [0, 1]


@pytest.mark.parametrize(
    ("name", "works", "finish_s"),
    [  # the fast node, four times as fast, is busy until 10 s
        ("eft", (40.0, 100.0), 100.0),
        ("eft-wait", (40.0, 100.0), 35.0),
        ("patient", (40.0, 100.0), 35.0),  # 0.4 (100 - 25) > 10
        ("eft-wait", (40.0, 20.0), 15.0),  # 10 + 5 < 20
        ("patient", (40.0, 20.0), 20.0),  # 0.4 (20 - 5) < 10
        ("eft-wait", (60.0, 20.0), 20.0),  # 15 + 5 is not earlier than 20
    ],
)
def test_a_policy_that_may_wait_for_the_fast_node_does_so_when_it_pays(
    name: str, works: tuple[float, float], finish_s: float
) -> None:
    jobs: Jobs = [(2, works[0], 0.0), (2, works[1], 0.0)]
    case = hand_case(grid_cluster(2, 2, speed=np.array([1.0, 4.0])), jobs, waiting=True, restart_s=0.0)
    assert simulate(*case, POLICIES[name])[1].finish_s[0, 1] == finish_s


@pytest.mark.parametrize(("waiting", "waits"), [(True, True), (False, False)])
def test_consolidate_waits_for_a_node_that_holds_the_whole_job(*, waiting: bool, waits: bool) -> None:
    state = state_with(4, busy=(0, 4, 8), waiting=waiting)
    assert (POLICIES["consolidate"](state, 0) is None) == waits


def test_a_replacement_is_the_weakest_gpu_that_keeps_up_with_the_ring() -> None:
    state = state_with(2, gpus_per_node=1, busy=(), reference_gpus=1)
    # The reference takes 0.5 + 2e9 / 12.5e9 = 0.66 s. First 0.5, 0.25 or 1 s; then 0.16 + 0.25 or 0.16 + 1 s.
    assert POLICIES["replacement"](state, 0) == [0, 1]


def test_with_no_gpu_that_keeps_up_the_replacement_is_the_quickest() -> None:
    slow = np.array([0.25, 0.5, 0.25])
    assert POLICIES["replacement"](state_with(1, speed=slow, gpus_per_node=1, busy=()), 0) == [1]


def test_where_many_nodes_are_free_only_likely_sets_are_looked_at() -> None:
    speed = np.array([1.0] * 5 + [2.0] * 5)
    state = state_with(3, speed=speed, gpus_per_node=2, busy=(10, 12))
    free = {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1, 7: 2, 8: 2, 9: 2}
    sets = list(node_sets(state, free, 3))
    assert sets == [[7, 5]] * 4 + [[0, 5]] * 4  # per speed: with and without lemons, in the cluster and its one rack
    assert POLICIES["eft"](state, 0) == [14, 15, 11]


@given(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=1, max_size=5), st.data())
def test_likely_sets_are_among_all_sets(speed: list[float], data: st.DataObject) -> None:
    state = state_with(data.draw(st.integers(1, 4 * len(speed))), speed=np.array(speed), busy=())
    needed, usable = state.jobs[0].gpus, list(range(4 * len(speed)))
    free = dict.fromkeys(range(len(speed)), 4)
    every = [sorted(nodes) for nodes in node_sets(state, free, needed)]
    for nodes in likely_sets(state, free, needed):
        assert sorted(nodes) in every
        assert gpus_of_set(state, usable, free, nodes, needed) is not None


def test_a_scripted_policy_repeats_itself_and_differs_by_seed() -> None:
    state = state_with(5)
    assert scripted(1)(state, 0) == scripted(1)(state, 0)
    assert len({tuple(scripted(seed)(state, 0) or ()) for seed in range(20)}) > 10
