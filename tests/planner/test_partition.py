"""Layers on stages, against every way to cut them."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longshore.planner.partition import Cuts, StageCosts, partition, prefix_sums, slowest_stage_s

INSTANCES = 600


def brute_force(stages: list[StageCosts]) -> float | None:
    """Return the least time of the slowest stage over all cuts that fit; None if none does."""
    layers, count = len(stages[0].time_s) - 1, len(stages)
    found: list[float] = []
    for inner in combinations(range(1, layers), count - 1):
        cuts = (0, *inner, layers)
        if fits(stages, cuts):
            found.append(slowest_stage_s(stages, cuts))
    return min(found, default=None)


def fits(stages: list[StageCosts], cuts: Cuts) -> bool:
    held = [it.memory_bytes[cuts[k + 1]] - it.memory_bytes[cuts[k]] for k, it in enumerate(stages)]
    return all(got <= it.max_bytes for got, it in zip(held, stages, strict=True))


def instance(rng: np.random.Generator) -> list[StageCosts]:
    """Return random layers on stages of random speed, the first of which hold more micro-batches."""
    layers = int(rng.integers(1, 10))
    count = int(rng.integers(1, layers + 1))
    times = rng.choice([0.0, 1.0, 2.0, rng.random(), 10.0 * rng.random()], layers)
    state, kept = rng.integers(0, 5, layers), rng.integers(0, 5, layers)
    cap = float(rng.integers(1, 40))
    return [
        StageCosts(
            prefix_sums((times / rng.choice([1.0, 2.0, 2.5])).tolist()),
            prefix_sums((state + (count - k) * kept).tolist()),
            cap,
        )
        for k in range(count)
    ]


def test_cuts_equal_brute_force_under_caps_of_each_stage() -> None:
    rng, impossible = np.random.default_rng(0), 0
    for _ in range(INSTANCES):
        stages = instance(rng)
        best, cuts = brute_force(stages), partition(stages)
        impossible += best is None
        assert (cuts is None) == (best is None)
        if cuts is not None:
            assert fits(stages, cuts)
            assert slowest_stage_s(stages, cuts) == best
    assert INSTANCES // 10 < impossible < INSTANCES * 9 // 10


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60), st.integers(1, 12))
def test_every_stage_has_a_layer_and_every_layer_a_stage(times: list[float], count: int) -> None:
    stages = [StageCosts(prefix_sums(times), prefix_sums([0.0] * len(times)), 1.0)] * min(count, len(times))
    cuts = partition(stages)
    assert cuts is not None
    assert cuts[0] == 0
    assert cuts[-1] == len(times)
    assert all(end > start for start, end in pairwise(cuts))


@given(st.lists(st.floats(0.0, 1e6), min_size=2, max_size=30), st.data())
def test_one_more_stage_never_makes_the_slowest_slower(times: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(times) - 1))
    one = StageCosts(prefix_sums(times), prefix_sums([0.0] * len(times)), 1.0)
    fewer, more = partition([one] * count), partition([one] * (count + 1))
    assert fewer is not None
    assert more is not None
    # Sums from the first layer on are rounded, so that what is the same may differ in its last bits.
    assert slowest_stage_s([one] * (count + 1), more) <= slowest_stage_s([one] * count, fewer) + 1e-9 * sum(times)


def test_a_large_head_moves_blocks_off_the_last_stage() -> None:
    """Llama-3-8B's head of 128 k words weighs as much as 2.4 of its blocks."""
    stages = [StageCosts(prefix_sums([0.0, *[1.0] * 32, 2.4]), prefix_sums([0.0] * 34), 1.0)] * 8
    cuts = partition(stages)
    assert cuts is not None
    assert slowest_stage_s(stages, cuts) == 5.0
    assert cuts[-1] - cuts[-2] <= 3


def test_equal_blocks_stay_where_a_uniform_split_has_them() -> None:
    stages = [StageCosts(prefix_sums([1.0] * 96), prefix_sums([1.0] * 96), 6.0)] * 16
    assert partition(stages) == tuple(range(0, 97, 6))
