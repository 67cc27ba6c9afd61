"""The page and the rows of the benchmark on a trace, from figures made by hand."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import traces
from benchmarks.trace_page import Figures, Part, Rivals, Run, Stored, against, page


def figures(*mean_jct_s: float) -> Figures:
    values = list(mean_jct_s)
    return Figures(mean_jct_s=values, p99_jct_s=values, p99_slowdown=values, longest_wait_s=values)


def rivals(patient: Figures) -> Rivals:
    return Rivals(fifo=figures(7200.0, 7200.0), eft=figures(7200.0, 3600.0), patient=patient, patience=0.6)


def test_half_as_long_in_one_window_and_twice_in_another_is_no_difference() -> None:
    found = against([figures(1800.0, 7200.0)], figures(3600.0, 3600.0))
    reach = stats.t.ppf(0.975, 1) * np.log(2.0)  # standard error of -log 2 and log 2
    assert found == pytest.approx((0.0, 100.0 * np.expm1(-reach), 100.0 * np.expm1(reach)))


def test_training_seeds_are_averaged_within_a_window_and_are_no_further_windows() -> None:
    one = against([figures(1800.0, 3600.0)], figures(3600.0, 3600.0))
    assert against([figures(900.0, 3600.0), figures(3600.0, 3600.0)], figures(3600.0, 3600.0)) == pytest.approx(one)


def test_a_page_tells_the_windows_one_by_one_and_the_range_of_the_seeds() -> None:
    part = Part("Test windows", rivals(figures(3600.0, 3600.0)), [figures(1800.0, 3600.0), figures(3600.0, 7200.0)])
    lines = page(["# Title"], {"Strict FIFO": [part]}, ["Trained."]).splitlines()
    learned = next(line for line in lines if line.startswith("| learned, 2 training seeds | 1.12 |")).split("|")
    assert learned[5].strip() == "-29.3, +41.4"
    assert "| its seeds | | -29.3 to +41.4 |" in "\n".join(lines)
    assert next(line for line in lines if line.startswith("| `patient`, factor 0.6 | 1.00 |"))


def test_stored_figures_make_page_and_rows_without_the_trace_and_what_is_missing_misses_a_bar(
    tmp_path: Path,
) -> None:
    regime = traces.REGIMES["EASY backfill"]
    names = [setting.name for setting in traces.settings_of(regime)]
    run = Run(
        seconds=90.0, validation_percent=-3.0, machine="a machine",
        figures=dict.fromkeys(names, figures(1800.0, 3600.0)),
    )  # fmt: skip
    made = Stored(
        rivals={"EASY backfill": dict.fromkeys(names, rivals(figures(3600.0, 3600.0)))},
        runs={traces.command(regime, 0, traces.STEPS): run},
    )
    traces.store(made, tmp_path / "traces.json")
    found = traces.stored(tmp_path / "traces.json")
    rows = {row.name: row for row in traces.told(found, 1, traces.STEPS, tmp_path / "page.md")}
    assert rows["EASY backfill: Test windows, against patient"].value == pytest.approx(100.0 * (np.sqrt(0.5) - 1.0))
    assert rows["EASY backfill: Test windows, against patient"].ok
    assert not rows["Strict FIFO: policies that are stored"].ok
    assert "--order easy " in (tmp_path / "page.md").read_text()
    assert list(traces.summary(found))[-1].startswith("| EASY backfill | -29.3 [")
