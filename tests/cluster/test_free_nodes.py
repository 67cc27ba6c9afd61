"""Nodes by the GPUs that they have free, against a check of every node."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.candidates.node_sets import (
    fewest_nodes_of_level,
    find_tight_set,
    first_node_with_free,
    holding_speed_level,
    least_run_on_free_s,
    list_free_nodes,
    node_set_cost,
    reset_trial_free,
    set_trial_free,
)
from longshore.cluster.state.state import Simulation
from tests.compiled_runs import at_first_decision
from tests.deep_cases import wide_case
from tests.reference_policies import greedy_set
from tests.support.budgets import examples

SEEDS = st.integers(0, 2**32 - 1)


def imagined(seed: int) -> Simulation:
    """Return a decision at which it is imagined that nodes have other GPUs free."""
    sim, rng = at_first_decision(wide_case(seed)), np.random.default_rng(seed)
    reset_trial_free(sim, 0)
    sizes = np.diff(sim.cluster.first_gpu)
    for node in rng.integers(0, sizes.size, 3 * sizes.size).tolist():
        set_trial_free(sim, 0, node, int(rng.integers(0, sizes[node] + 1)))
    return sim


def levels_of(sim: Simulation) -> list[tuple[int, float]]:
    """Return the number of each speed that nodes have, and the speed, highest first."""
    return list(enumerate(sorted(set(sim.scenarios.speed[0].tolist()), reverse=True)))


@settings(max_examples=examples(60))
@given(SEEDS)
def test_nodes_are_listed_most_free_first_then_by_index(seed: int) -> None:
    sim = imagined(seed)
    free = sim.scratch.trial_free[0].tolist()
    count = list_free_nodes(sim, 0, 0)
    order = sorted((node for node in range(len(free)) if free[node]), key=lambda node: (-free[node], node))
    assert sim.scratch.trial_order[0, :count].tolist() == order
    assert sim.scratch.free_count[0].tolist() == [free.count(size) for size in range(sim.scratch.free_count.shape[1])]


@settings(max_examples=examples(60))
@given(SEEDS, st.data())
def test_the_first_node_is_the_first_of_all_that_are_like_it(seed: int, data: st.DataObject) -> None:
    sim = imagined(seed)
    nodes = sim.cluster.speed.size
    first, after = sorted(data.draw(st.tuples(st.integers(0, nodes), st.integers(0, nodes))))
    size, lemons = data.draw(st.integers(0, int(np.diff(sim.cluster.first_gpu).max()))), data.draw(st.integers(0, 1))
    level, speed = data.draw(st.sampled_from(levels_of(sim)))
    fit = sim.scratch.trial_free[0] == size
    fit &= (sim.scenarios.speed[0] >= speed) & (sim.state.lemon[0] <= lemons)
    expected = [node for node in np.flatnonzero(fit).tolist() if first <= node < after]
    assert first_node_with_free(sim, 0, size, level, first, after, lemons, 0) == (expected or [-1])[0]


@settings(max_examples=examples(60))
@given(SEEDS)
def test_what_nodes_of_a_speed_hold_is_what_they_hold_one_by_one(seed: int) -> None:
    sim = imagined(seed)
    free, speeds = sim.scratch.trial_free[0], sim.scenarios.speed[0]
    gpus = int(sim.scenarios.gpus[0, sim.state.current[0]])
    holding = []
    for level, speed in levels_of(sim):
        most = np.cumsum(np.sort(free[speeds >= speed])[::-1])
        held = bool(most[-1] >= gpus)
        assert sim.scratch.level_free[0, level] == free[speeds == speed].sum()
        assert fewest_nodes_of_level(sim, 0, level, gpus) == (int(np.searchsorted(most, gpus)) + 1 if held else 0)
        holding += [level] if held else []
    if holding:
        assert holding_speed_level(sim, 0, int(sim.state.current[0])) == holding[0]


@settings(max_examples=examples(60))
@given(SEEDS)
def test_a_tight_set_takes_the_nodes_with_most_free_and_last_the_smallest_hole(seed: int) -> None:
    sim = imagined(seed)
    free, speeds, job = sim.scratch.trial_free[0], sim.scenarios.speed[0], int(sim.state.current[0])
    nodes, gpus = speeds.size, int(sim.scenarios.gpus[0, job])
    for level, speed in levels_of(sim):
        for lemons in (0, 1):
            for first, after in ((0, nodes), (nodes // 3, nodes), (0, nodes // 2)):
                fits = (speeds >= speed) & (sim.state.lemon[0] <= lemons) & (free > 0)
                some = {node: int(free[node]) for node in range(first, after) if fits[node]}
                expected = greedy_set(some, gpus) if sum(some.values()) >= gpus else []
                count = find_tight_set(sim, 0, job, level, first, after, lemons)
                assert sim.scratch.trial_set[0, :count].tolist() == expected
                if expected:
                    assert least_run_on_free_s(sim, 0, job) <= node_set_cost(sim, 0, job, count, 100.0)[0]
