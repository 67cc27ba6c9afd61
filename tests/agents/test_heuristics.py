"""Decisions of the compiled heuristics on cases worked by hand from docs/policies.md."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS, fewest_nodes
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.placing import picked_slowdown
from tests import reference_policies
from tests.cases_by_hand import Jobs, hand_case
from tests.compiled_runs import at_first_decision, picks, run_heuristic
from tests.strategies import Case, cases
from tests.support.budgets import examples

MIXED = np.array([1.0, 2.0, 0.5])
DOWN = (0, 4, 5)  # of three nodes of 4 GPUs, usable are 1 2 3, then 6 7, then 8 9 10 11


def choice(
    name: str, gpus: int, cluster: Cluster, down: tuple[int, ...] = (), hazard: list[float] | None = None, **rules: Any
) -> list[int]:
    """Return what a heuristic gives the only job of a cluster of which some GPUs are down."""
    case = hand_case(cluster, [(gpus, 100.0, 0.0)], {gpu: [(0.0, 1e9)] for gpu in down}, **rules)
    if hazard is not None:
        case = case._replace(scenarios=case.scenarios._replace(hazard_per_s=np.array([hazard])))
    sim = at_first_decision(case)
    assert HEURISTICS[name].place(sim, 0)
    return picks(sim)


def finish_s(name: str, case: Case, job: int) -> float:
    return float(run_heuristic(case, name)[1].finish_s[0, job])


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        ("first-fit", 2, [1, 2]),
        ("first-fit", 5, [1, 2, 3, 6, 7]),
        ("spread", 2, [8, 9]),
        ("spread", 5, [1, 8, 9, 10, 11]),
        ("fastest", 2, [6, 7]),
        ("fastest", 6, [1, 2, 3, 6, 7, 8]),
        ("pack", 2, [6, 7]),  # the smallest hole
        ("pack", 3, [1, 2, 3]),
        ("pack", 5, [6, 8, 9, 10, 11]),  # none fits: most free, then the smallest hole
        ("eft", 2, [6, 7]),  # 50 s
        ("eft", 3, [1, 2, 3]),  # 100 s on node 0, 125 s on nodes 0 and 1
        ("eft", 5, [1, 2, 3, 6, 7]),  # nodes 0 and 1: 125 s; with node 2: 250 s at least
        ("consolidate", 5, [6, 8, 9, 10, 11]),  # pack, where waiting is not allowed
    ],
)
def test_a_placement_is_the_one_worked_by_hand(name: str, gpus: int, expected: list[int]) -> None:
    assert choice(name, gpus, grid_cluster(3, 4, speed=MIXED), DOWN) == expected


@pytest.mark.parametrize("name", sorted(HEURISTICS))
def test_two_gpus_of_an_empty_node_are_its_safest(name: str) -> None:
    assert choice(name, 2, grid_cluster(1, 4), hazard=[3e-6, 1e-6, 2e-6, 1e-6]) == [1, 3]


@pytest.mark.parametrize("name", sorted(HEURISTICS))
def test_three_gpus_over_two_and_two_take_all_of_one_node(name: str) -> None:
    taken = choice(name, 3, grid_cluster(2, 4), (0, 1, 4, 5))
    assert taken in ([2, 3, 6], [2, 6, 7])


def test_reliable_takes_the_node_of_lowest_mean_hazard() -> None:
    hazard = [0.0, 4e-6, 1e-6, 1e-6, 2e-6, 2e-6, 2e-6, 2e-6, 2e-6, 2e-6, 2e-6, 1e-6]  # means 1.5, 2 and 1.75
    assert choice("reliable", 2, grid_cluster(3, 4), (0,), hazard) == [2, 3]


def test_lemons_are_taken_last() -> None:
    hazard = [1e-6] * 4 + [6e-6] * 4 + [1e-6] * 4 + [5e-6] * 4  # the lower median is 1e-6: 5e-6 is not over 5 times it
    cluster = grid_cluster(4, 4)
    assert choice("pack", 2, cluster, DOWN, hazard) == [6, 7]
    assert choice("pack-hazard", 2, cluster, DOWN, hazard) == [1, 2]
    assert set(choice("pack-hazard", 12, cluster, DOWN, hazard)) == {1, 2, 3, 6, *range(8, 16)}


@given(st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_eft_prefers_one_slow_node_to_two_fast_ones_when_it_finishes_earlier(speed: float, penalty: float) -> None:
    assume(not math.isclose(1 / speed, 1 + penalty, rel_tol=1e-6))
    cluster = grid_cluster(3, 4, speed=np.array([1.0, speed, 1.0]))
    slow = choice("eft", 4, cluster, (0, 1, 8, 9), node_penalty=penalty) == [4, 5, 6, 7]
    assert slow == (1 / speed < 1 + penalty)


def test_expected_finish_counts_the_expected_loss_by_faults() -> None:
    hazard, cluster = [0.0] * 4 + [0.01] * 4 + [0.0] * 4, grid_cluster(3, 4, speed=MIXED)
    assert choice("eft", 2, cluster, DOWN, hazard, checkpoint_s=90.0, restart_s=15.0) == [6, 7]
    # 100 s against 50 x (1 + 0.02 x 150) s, and against 50 x (1 + 0.02 x 15) s
    assert choice("eft-hazard", 2, cluster, DOWN, hazard, checkpoint_s=90.0, restart_s=15.0) == [1, 2]
    assert choice("eft-hazard", 2, cluster, DOWN, hazard, checkpoint_s=math.inf, restart_s=15.0) == [6, 7]


def test_among_many_nodes_sets_without_lemons_are_looked_at() -> None:
    hazard = [1e-3] * 2 + [1e-6] * 18  # the first of ten nodes, which fits as well as the others
    assert choice("eft", 2, grid_cluster(10, 2), (), hazard) == [0, 1]
    assert choice("eft-hazard", 2, grid_cluster(10, 2), (), hazard) == [2, 3]


@pytest.mark.parametrize(("name", "patience"), [("patient", 0.4), ("eft-wait", 1.0), ("eft-hazard", 0.0)])
@given(busy_s=st.floats(1.0, 100.0), work_s=st.floats(1.0, 1000.0))
def test_a_job_waits_for_the_fast_node_exactly_when_its_policy_says_so(
    name: str, patience: float, busy_s: float, work_s: float
) -> None:
    gain_s = patience * (work_s - work_s / 4) - busy_s
    assume(abs(gain_s) > 1e-6 * work_s)
    jobs: Jobs = [(2, 4 * busy_s, 0.0), (2, work_s, 0.0)]
    case = hand_case(grid_cluster(2, 2, speed=np.array([1.0, 4.0])), jobs, waiting=True, restart_s=0.0)
    assert finish_s(name, case, 1) == pytest.approx(busy_s + work_s / 4 if gain_s > 0 else work_s)


def test_a_job_may_wait_for_a_later_end_than_the_next() -> None:
    # At 10 s a node of the same speed gets free, which saves nothing; at 20 s the one that is four times as fast.
    jobs: Jobs = [(1, 80.0, 0.0), (1, 10.0, 0.0), (1, 100.0, 0.0)]
    case = hand_case(grid_cluster(3, 1, speed=np.array([4.0, 1.0, 1.0])), jobs, waiting=True)
    assert finish_s("patient", case, 2) == 20.0 + 25.0


@pytest.mark.parametrize(("waiting", "start_s"), [(True, 20.0), (False, 6.0)])
def test_consolidate_waits_for_a_node_that_holds_the_whole_job_where_it_may(start_s: float, *, waiting: bool) -> None:
    outages = {1: [(0.0, 5.0)], 3: [(0.0, 90.0)]}  # from 5 s on, GPU 1 of node 0 and GPU 2 of node 1 are free
    case = hand_case(grid_cluster(2, 2), [(1, 20.0, 0.0), (2, 10.0, 6.0)], outages, waiting=waiting)
    assert run_heuristic(case, "consolidate")[1].first_start_s[0, 1] == start_s


def test_consolidate_does_not_wait_for_what_no_node_can_hold() -> None:
    case = hand_case(grid_cluster(2, 2), [(1, 20.0, 0.0), (3, 10.0, 0.0)], waiting=True)
    assert run_heuristic(case, "consolidate")[1].first_start_s[0, 1] == 0.0


class Counted:
    """Stands for an array, and counts how often it is read."""

    def __init__(self, values: list[int]) -> None:
        self.values, self.size, self.reads = values, len(values), 0

    def __getitem__(self, at: int) -> int:
        self.reads += 1
        return self.values[at]


@given(st.lists(st.integers(1, 9) | st.sampled_from((500, 5_000)), min_size=1, max_size=12), st.data())
def test_the_fewest_nodes_for_a_job_are_found_in_few_looks_whatever_their_sizes(
    sizes: list[int], data: st.DataObject
) -> None:
    gpus = data.draw(st.integers(1, sum(sizes)))
    first_gpu = Counted([0, *itertools.accumulate(sizes)])
    suits = np.ones((1, len(sizes)), dtype=np.int32)
    sim: Any = SimpleNamespace(cluster=SimpleNamespace(first_gpu=first_gpu, gpu_node=np.zeros(sum(sizes)), suits=suits))
    plain: Any = SimpleNamespace(node_gpus=[range(size) for size in sizes])
    slow = getattr(fewest_nodes, "py_func", fewest_nodes)
    assert slow(sim, gpus, 0) == reference_policies.fewest_nodes(plain, gpus, range(len(plain.node_gpus)))
    assert first_gpu.reads <= 2 * len(sizes) * (len(set(sizes)) + 1)


@pytest.mark.parametrize(
    ("nic_gbytes_per_s", "gpus", "expected"),
    [  # Compute takes 0.5, 1, 0.25 and 0.5 s; the reference is 0.66 s for two GPUs, 0.713 s for three. Node 0 comes
        # first: it keeps up and is weak; node 1 does not keep up; nodes 2 and 3 tie with it or are stronger.
        ((12.5, 12.5, 6.25, 10.0), 2, [0, 2]),  # 0.32 + 0.25 keeps up, 0.2 + 0.5 and 0.16 + 1 do not
        ((12.5, 12.5, 6.25, 12.5), 2, [0, 3]),  # so does 0.16 + 0.5, and it is weaker
        ((12.5, 12.5, 2.5, 10.0), 2, [0, 3]),  # none does: 1.05, 0.7 and 1.16
        ((12.5, 12.5, 6.25, 10.0), 3, [0, 2, 3]),  # 0.2 + 0.5 s first, then 0.57, not 1.16
        ((12.5, 12.5, 1.25, 10.0), 3, [0, 1, 3]),  # 0.7 s, then 1.16 s instead of 1.85
    ],
)
def test_a_replacement_is_the_weakest_gpu_that_keeps_up_with_the_ring(
    nic_gbytes_per_s: tuple[float, ...], gpus: int, expected: list[int]
) -> None:
    cluster = grid_cluster(4, 1, speed=np.array([1.0, 0.5, 2.0, 1.0]))
    cluster = cluster._replace(nic_bytes_per_s=np.array(nic_gbytes_per_s) * 1e9)
    assert choice("replacement", gpus, cluster, ring=True, reference_gpus=1) == expected


def test_a_replacement_counts_the_link_back_to_the_first_gpu_of_the_ring() -> None:
    # After GPU 0 of rack 0 and GPU 1 of rack 1, both stronger candidates are a slow uplink away from one of them.
    cluster = grid_cluster(4, 1, speed=np.array([1.0, 1.0, 2.0, 2.0]), nodes_per_rack=1)
    cluster = cluster._replace(uplink_bytes_per_s=np.array([12.5e9, 12.5e9, 12.5e9, 1e9]))
    assert choice("replacement", 3, cluster, ring=True, reference_gpus=1) == [0, 1, 2]  # 0.41 s against 2.25 s


@settings(max_examples=examples(60))
@given(cases())
def test_the_best_of_random_placements_is_never_slower_than_the_first(case: Case) -> None:
    slowdowns = []
    for name in ("best-of-random", "random"):
        sim = at_first_decision(case)
        HEURISTICS[name].place(sim, 0)
        slowdowns.append(picked_slowdown(sim, 0))
    assert slowdowns[0] <= slowdowns[1]


def test_random_placements_take_every_node_equally_often() -> None:
    cluster, taken = grid_cluster(4, 2), np.zeros(4)
    for seed in range(400):
        case = hand_case(cluster, [(1, 1.0, 0.0)], {0: [(0.0, 9.0)], 1: [(0.0, 9.0)]})
        case = case._replace(scenarios=case.scenarios._replace(fault_seed=np.array([seed])))
        sim = at_first_decision(case)
        HEURISTICS["random"].place(sim, 0)
        taken[cluster.gpu_node[picks(sim)]] += 1
    assert taken[0] == 0
    assert (np.abs(taken[1:] - 400 / 3) < 4 * math.sqrt(400 * 2 / 9)).all()
