"""The harness of the benchmarks on tiny measures; the benchmarks themselves are not run here."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks import __main__ as all_of_them
from benchmarks import calibration, harness
from benchmarks.bound import FUTURES, Seen, rows_of
from benchmarks.harness import Calibration, Row, main, medians


def measure_one_of_each() -> Iterator[Row]:
    yield Row("rings", 636906.5, "calls/s", least=1000)
    yield Row("start", 0.25, "s", most=0.5)
    yield Row("makespan", 45.0, "h", least=44.0, most=46.0)
    yield Row("for information", 3.0, "h")


def measure_a_miss() -> Iterator[Row]:
    yield Row("fast enough", 2.0, "1/s", least=1.0)
    yield Row("too slow", 4.0, "s", most=3.0)


def measure_a_wrong_count() -> Iterator[Row]:
    yield Row("slow", 4.0, "s", most=3.0)
    yield Row("jobs lost", 1.0, "jobs", most=0.0)


def measure_no_time() -> Iterator[Row]:
    yield Row("jobs lost", 0.0, "jobs", most=0.0)
    yield Row("time, for information", 4.0, "s")


def speeds(*shares: float) -> Callable[[], list[Calibration]]:
    """Return a calibration that finds these shares of the reference's speed, one after the other."""
    left = iter(shares)
    return lambda: [Calibration("steps", "M steps/s", 2.0 * next(left), 2.0)]


def exit_status(
    arguments: list[str], measure: Callable[[], Iterator[Row]] = measure_one_of_each, shares: tuple[float, ...] = (1, 1)
) -> object:
    with pytest.raises(SystemExit) as end:
        main(measure, arguments, speeds(*shares))
    return end.value.code


def test_a_table_has_a_line_for_each_row_with_value_unit_bar_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status([]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["name", "value", "unit", "bar", "ok"],
        ["rings", "636906", "calls/s", ">=", "1000", "True"],
        ["start", "0.25", "s", "<=", "0.5", "True"],
        ["makespan", "45", "h", "44", "to", "46", "True"],
        ["for", "information", "3", "h"],
        ["calibration:", "steps,", "reference", "2", "2", "M", "steps/s"],
    ]


def test_a_missed_bar_ends_with_status_1_after_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status([], measure_a_miss) == 1
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["ok", "True", "False", "steps/s"]


@pytest.mark.parametrize(("shares", "status"), [((0.5, 0.5), 0), ((0.9, 0.5), 0), ((1.0, 0.6), 1), ((3.0, 3.0), 1)])
def test_a_bar_of_time_is_scaled_by_the_mean_speed_of_a_slower_machine(
    shares: tuple[float, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes 4 s where 3 are allowed: at three quarters of the speed that is what it may take."""
    assert exit_status([], measure_a_miss, shares) == status
    shown = capsys.readouterr()
    assert [line.split()[-1] for line in shown.out.splitlines()] == ["ok", "True", "False", "steps/s"]
    assert ("of the reference's speed" in shown.err) == (status == 0)


def test_no_slow_machine_excuses_a_miss_of_any_size() -> None:
    assert Row("slow", 4.0, "s", most=3.0).is_met(0.75)
    assert not Row("slow", 400.0, "s", most=3.0).is_met(0.75)
    assert Row("seldom", 75.0, "1/s", least=100.0).is_met(0.75)
    assert not Row("seldom", 74.0, "1/s", least=100.0).is_met(0.75)
    assert not Row("none", math.nan, "1/s", least=100.0).is_met(0.1)


def test_a_machine_is_calibrated_before_anything_is_measured() -> None:
    order: list[str] = []

    def measure() -> Iterator[Row]:
        order.append("measured")
        yield Row("start", 0.25, "s", most=0.5)

    def calibrate() -> list[Calibration]:
        order.append("calibrated")
        return []

    with pytest.raises(SystemExit):
        main(measure, [], calibrate)
    assert order == ["calibrated", "measured", "calibrated"]


def test_a_bar_that_hangs_on_no_machine_counts_on_a_slower_one_too() -> None:
    assert exit_status([], measure_a_wrong_count, (0.5, 0.5)) == 1


def test_a_benchmark_without_a_bar_of_time_is_not_calibrated_again() -> None:
    assert exit_status([], measure_no_time, (0.5,)) == 0


@pytest.mark.parametrize(
    ("unit", "timed"),
    [("s", True), ("steps/s", True), ("us/decision", True), ("MiB/s", True), ("jobs", False), ("%", False)],
)
def test_a_bar_is_one_of_time_by_its_unit_or_by_word(unit: str, timed: bool) -> None:  # noqa: FBT001
    assert Row("any", 1.0, unit, most=2.0).is_timed == timed
    assert not Row("any", 1.0, unit).is_timed
    for told in (True, False):
        assert Row("any", 1.0, unit, most=2.0, timed=told).is_timed == told


def test_what_calibrates_a_machine_computes_what_it_does_in_plain_python() -> None:
    words, read, compute = np.arange(8, dtype=np.int64), cast(Any, calibration._read), cast(Any, calibration._compute)
    assert read(words, 20, 3) == read.py_func(words, 20, 3)
    with np.errstate(over="ignore"):
        assert compute(20, 7) == compute.py_func(20, 7)
    assert len({int(calibration._compute(steps, 1)) for steps in range(1, 9)}) == 8


@pytest.mark.full
def test_a_machine_that_is_calibrated_has_two_speeds_beside_those_of_the_reference() -> None:
    found = harness.calibration()
    assert all(each.here > 0.0 for each in found)
    assert [each.reference for each in found] == [pytest.approx(there / 1e6) for there in calibration.REFERENCE]


BENCHMARKS = Path(harness.__file__).parent
PAGE = (BENCHMARKS.parent / "docs" / "developers" / "benchmarks.md").read_text()


def test_every_benchmark_stands_in_a_table_of_the_page_those_of_make_bench_in_one_of_their_own() -> None:
    files = {path.stem for path in BENCHMARKS.glob("*.py") if re.search(r"^ +main\(measure", path.read_text(), re.M)}
    included, others = (re.findall(r"^\| `(\w+)` [*+ ]*\|", part, re.M) for part in PAGE.split("## Run by name"))
    assert files == {*included, *others}
    assert sorted(included) == sorted(all_of_them.NAMES)
    assert not set(included) & set(others)


ONE_MORE = """
from .harness import Row, main

def measure():
    yield Row("jobs lost", 2.0, "jobs", most=BAR)

if __name__ == "__main__":
    main(measure)
"""


@pytest.mark.full
@pytest.mark.parametrize(("bar", "status"), [(3.0, 0), (1.0, 1)])
def test_one_more_benchmark_is_one_file_and_its_name(bar: float, status: int, tmp_path: Path) -> None:
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    (tmp_path / "benchmarks" / "one_more.py").write_text(ONE_MORE.replace("BAR", str(bar)))
    with pytest.raises(SystemExit) as end:
        all_of_them.main(("one_more",), tmp_path, tmp_path / "results.json")
    assert end.value.code == status
    ((name, rows),) = json.loads((tmp_path / "results.json").read_text())["results"].items()
    assert (name, rows) == (
        "one_more",
        [{"name": "jobs lost", "value": 2.0, "unit": "jobs", "bar": f"<= {bar:g}", "ok": not status}],
    )


def test_the_results_file_says_when_on_what_and_from_which_sources(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert exit_status(["--json", str(path)], measure_a_miss) == 1
    report = json.loads(path.read_text())
    assert list(report) == ["date", "git", "machine", "results"]
    assert set(report["machine"]) == {"cpu", "cores", "memory_bytes", "python"}
    assert report["results"] == {
        "test_benchmarks": [
            {"name": "fast enough", "value": 2.0, "unit": "1/s", "bar": ">= 1", "ok": True},
            {"name": "too slow", "value": 4.0, "unit": "s", "bar": "<= 3", "ok": False},
            {"name": "calibration: steps, reference 2", "value": 2.0, "unit": "M steps/s", "bar": "", "ok": True},
        ]
    }


@pytest.mark.parametrize("bar", [{"least": 1.0}, {"most": 1.0}, {"least": 0.0, "most": 1.0}])
def test_a_figure_that_is_no_number_misses_every_bar(bar: dict[str, Any]) -> None:
    assert not Row("broken", math.nan, "s", **bar).ok


def test_compared_parts_take_turns_and_their_first_calls_do_not_count() -> None:
    calls: list[str] = []
    given = {"a": iter([100.0, 1.0, 3.0, 2.0]), "b": iter([100.0, 5.0, 4.0, 6.0])}

    def part(name: str) -> float:
        calls.append(name)
        return next(given[name])

    assert medians({"a": lambda: part("a"), "b": lambda: part("b")}, rounds=3) == {"a": 2.0, "b": 5.0}
    assert "".join(calls) == "abababab"


def test_what_bounds_one_pass_is_told_apart_from_noise() -> None:
    rng = np.random.default_rng(0)
    told, moves, sigma = np.full(40_000, -0.1), 40_000, 0.3
    truth = told + rng.normal(0.0, 0.2, moves)
    drawn = truth[:, None] + rng.normal(0.0, sigma, (moves, FUTURES))
    foreseen = drawn / 2 + truth[:, None] / 2 + 0.05 * rng.choice([-1.0, 1.0], (moves, 1))  # half the noise, an error
    noise, foreseen_noise, off_noise = (
        each.var(axis=1, ddof=1) / FUTURES for each in (drawn, foreseen, foreseen - drawn)
    )  # fmt: skip
    seen = Seen(told, truth, drawn.mean(axis=1), noise, foreseen.mean(axis=1), foreseen_noise, off_noise)

    found = {row.name.partition(": ")[2]: row.value for row in rows_of(seen)}

    assert found["standard deviation of the true gain"] == pytest.approx(0.2, rel=0.03)
    assert found["its variance over the gap"] == pytest.approx(0.4, rel=0.05)
    assert found["explained by one playout without faults"] == pytest.approx(100.0, rel=0.05)
    assert found["noise by its end"] == pytest.approx(0.3, rel=0.03)
    assert found["noise as foreseen on the way"] == pytest.approx(0.15, rel=0.03)
    assert found["error of what is foreseen"] == pytest.approx(0.05, rel=0.05)
