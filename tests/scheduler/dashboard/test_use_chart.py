"""The picture of how GPUs were used."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.dashboard.charts import MAX_USE_POINTS, USE_HEIGHT, USE_WIDTH, use_chart
from longshore.scheduler.health.evidence import SAMPLE_EVERY_S, UseSample


def places(points: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in points.split())]


def test_an_area_shows_what_jobs_held_and_a_line_what_agents_reported() -> None:
    chart = use_chart([UseSample(0.0, 0.0, None), UseSample(15.0, 0.5, 0.25), UseSample(30.0, 1.0, 0.75)])
    assert chart is not None
    assert chart.held == ["0.0,100.0 0.0,100.0 500.0,50.0 1000.0,0.0 1000.0,100.0"]
    assert chart.busy == ["500.0,75.0 1000.0,25.0"]
    assert (chart.held_now, chart.held_mean, chart.busy_now, chart.busy_mean) == (1.0, 0.5, 0.75, 0.5)


def test_time_without_samples_is_left_open() -> None:
    apart = [0.0, SAMPLE_EVERY_S, 100 * SAMPLE_EVERY_S, 101 * SAMPLE_EVERY_S]
    chart = use_chart([UseSample(at_s, 1.0, 0.5) for at_s in apart])
    assert chart is not None
    assert (len(chart.held), len(chart.busy)) == (2, 2)


@pytest.mark.parametrize("samples", [[], [UseSample(0.0, 1.0, None)]])
def test_there_is_no_picture_of_less_than_two_samples(samples: list[UseSample]) -> None:
    assert use_chart(samples) is None


@given(st.lists(st.tuples(st.floats(1.0, 1e5), st.floats(0, 1), st.none() | st.floats(0, 1)), min_size=2, max_size=700))
def test_everything_is_inside_of_the_box(reported: list[tuple[float, float, float | None]]) -> None:
    samples, at_s = [], 1.7e9
    for after_s, held, busy in reported:
        at_s += after_s
        samples.append(UseSample(at_s, held, busy))
    chart = use_chart(samples)
    assert chart is not None
    for points in (*chart.held, *chart.busy):
        found = places(points)
        assert len(found) <= MAX_USE_POINTS + 2
        assert all(0.0 <= x <= USE_WIDTH and 0.0 <= y <= USE_HEIGHT for x, y in found)
        assert all(one[0] <= other[0] for one, other in pairwise(found))
    assert all(0.0 <= mark.x <= 100.0 for mark in chart.marks)
