"""Durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.durations import UNITS_S, duration_text, exact_duration_text, seconds_of


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("30s", 30),
        ("15m", 900),
        ("2h", 7200),
        ("3d", 259_200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_number_with_its_unit(text: str, duration_s: float) -> None:
    assert seconds_of(text) == duration_s


@pytest.mark.parametrize("text", ["", "h", "90", "1e3", "-5m", "2 h", "2H", "nan", "inf", "5min", "1h-30m", "½h", "٣s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write "):
        seconds_of(text)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS_S))), min_size=1, max_size=4))
def test_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert seconds_of(text) == pytest.approx(sum(number * UNITS_S[unit] for number, unit in parts))


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.4, "0s"), (12, "12s"), (200, "3m 20s"), (7500, "2h 05m"), (371_000, "4d 07h"), (-3, "0s")],
)
def test_a_duration_is_told_in_its_two_largest_units(duration_s: float, text: str) -> None:
    assert duration_text(duration_s) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (86400.0, "1d 00h"), (7500.0, "2h 05m"), (7230.0, "2h 30s"), (90.5, "1m 30.5s"), (0.25, "0.25s"),
        (90061.0, "1d 1h 1m 1s"), (12.0, "12s"), (0.0, "0s"),
    ],
)  # fmt: skip
def test_a_duration_that_somebody_named_is_told_with_nothing_left_out(duration_s: float, text: str) -> None:
    assert exact_duration_text(duration_s) == text
    assert seconds_of(text.replace(" ", "")) == pytest.approx(duration_s)
