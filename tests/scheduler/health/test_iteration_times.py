"""The average iteration time of a job, by the step times of its slowest node, and the record by node type."""

from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.health.step_watch import (
    MEAN_STEPS,
    NO_TIMES,
    SKIPPED_STEPS,
    Computed,
    RankStepTimes,
    average_iteration_of,
    unrecorded_by_type,
)

TIMES = st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0.01, 1e4)), max_size=80)


def reported(times: Sequence[tuple[float, float | None]]) -> RankStepTimes:
    rank = RankStepTimes()
    for took_s, computed_s in times:
        rank.add(took_s, computed_s)
    return rank


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_the_average_is_the_mean_of_the_last_32_steps_of_the_rank_that_computes_longest(
    times: list[list[tuple[float, float]]],
) -> None:
    got = average_iteration_of([reported(list(it)) for it in times])
    last = [it[SKIPPED_STEPS:][-MEAN_STEPS:] for it in times]
    expected = {number: fmean(computed for _, computed in it) for number, it in enumerate(last) if it}
    if not expected:
        assert got is None
        return
    assert got is not None
    assert expected[got.rank] == pytest.approx(max(expected.values()))
    assert got.iteration_s == pytest.approx(fmean(took for took, _ in last[got.rank]))
    assert got.steps == len(last[got.rank])


def test_by_hand() -> None:
    """Two nodes in step: the one that computes for 3 s of 4 s is the slowest, whatever the first three steps took."""
    first = [(100.0, 90.0)] * SKIPPED_STEPS
    fast = reported([*first, *[(4.0, 1.0)] * 40])
    slow = reported([*first, *[(8.0, 3.0)] * 8, *[(4.0, 3.0)] * 16, *[(6.0, 3.0)] * 16])
    average = average_iteration_of([fast, slow])
    assert average is not None
    assert (average.iteration_s, average.rank, average.steps) == (5.0, 1, 32)


def test_without_computing_times_the_longest_steps_count() -> None:
    average = average_iteration_of([reported([(1.0, None)] * 10), reported([(2.0, None)] * 10), reported([])])
    assert average is not None
    assert (average.iteration_s, average.rank, average.steps) == (2.0, 1, 7)


@given(st.lists(st.lists(st.floats(0.01, 1e4), max_size=50), max_size=5))
def test_what_is_recorded_in_parts_is_all_that_was_reported(parts: list[list[float]]) -> None:
    rank, record = reported([(1.0, 1.0)] * SKIPPED_STEPS), NO_TIMES
    for part in parts:
        for computed_s in part:
            rank.add(2.0 * computed_s, computed_s)
        record = record.with_more(rank.unrecorded())
        rank.mark_recorded()
    every = [computed_s for part in parts for computed_s in part]
    assert record.iterations == len(every)
    assert record.mean_s == pytest.approx(fmean(every) if every else 0.0)
    assert list(record.last_s) == every[-MEAN_STEPS:]


def test_ranks_on_nodes_of_one_type_are_recorded_together() -> None:
    ranks = [reported([(9.0, 9.0)] * SKIPPED_STEPS + [(2.0, computed_s)] * 2) for computed_s in (1.0, 2.0, 6.0)]
    found = unrecorded_by_type(ranks, ["v100", "a100", "v100"])
    assert found == {"v100": Computed(4, 3.5, (1.0, 1.0, 6.0, 6.0)), "a100": Computed(2, 2.0, (2.0, 2.0))}
