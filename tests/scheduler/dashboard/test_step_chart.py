"""The picture of step times."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.dashboard.charts import MAX_CHARTED_STEPS, STEP_HEIGHT, STEP_WIDTH, step_chart


def test_a_line_goes_from_the_first_of_the_last_steps_to_the_last_as_high_as_they_took() -> None:
    chart = step_chart([1.0, 4.0, 2.0])
    assert chart is not None
    assert chart.points == "0.0,45.0 500.0,0.0 1000.0,30.0"
    assert (chart.steps, chart.median_s, chart.longest_s) == (3, 2.0, 4.0)


@given(st.lists(st.floats(1e-9, 1e11), max_size=600))
def test_every_step_is_inside_of_the_box(took_s: list[float]) -> None:
    chart = step_chart(took_s)
    if chart is None:
        assert len(took_s) < 2
        return
    places = [tuple(map(float, point.split(","))) for point in chart.points.split()]
    assert len(places) == min(len(took_s), MAX_CHARTED_STEPS)
    assert all(0.0 <= x <= STEP_WIDTH and 0.0 <= y <= STEP_HEIGHT for x, y in places)
