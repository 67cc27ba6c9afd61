"""The benchmark on real traces: its split by time, its comparisons and its page, on traces and figures made up here."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from benchmarks import left_out, real
from benchmarks.real import CHECKPOINT, cell_of, learned_policies, rows_of, summary_of
from benchmarks.real_page import ALL_ORDERS, SAME_ORDER, lines_of, write_page
from benchmarks.real_profile import profile
from benchmarks.real_splits import cases_of, quarters
from benchmarks.real_stored import (
    EFT,
    LEARNED,
    PACK,
    PATIENT,
    Cell,
    Pick,
    Stored,
    picked,
    picks_of,
    played,
    store,
    stored,
)
from benchmarks.real_tables import compared, over_traces, table
from benchmarks.real_windows import DRAWS, TIMES, Figures, check_later, differences, problem_of, workload_of
from longshore.agents.heuristics import FACTORS, HEURISTICS
from longshore.cluster.model.workload import Workload
from longshore.cluster.presets.problems import Regime
from longshore.eval.setting import TESTED_PART
from longshore.training.problems import TRAINED_PART, VALIDATED_PART, ProblemRequest, trace_problems

HOUR_S = 3600.0
EASY = "EASY"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace of 1,000 jobs, each of other work."""
    rng = np.random.default_rng(7)
    submit_s, work_s = np.cumsum(rng.exponential(900.0, 1000)), rng.lognormal(8.0, 1.5, 1000) + 60.0
    rows = [f"j{job},{submit_s[job]:.3f},{work_s[job]:.3f},{rng.integers(1, 9)}" for job in range(1000)]
    path = tmp_path / "made_up.csv"
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows]) + "\n")
    return path


def windows(path: Path, part: tuple[float, float]) -> tuple[Workload, NDArray[np.float64]]:
    """Return a trace, and the work of each window of a part of it."""
    return workload_of(path), problem_of(path, Regime(), 0.85, part, 1).scenarios.work_s[::DRAWS]


@pytest.mark.full
def test_windows_of_the_last_part_pass_and_hold_no_job_of_training_or_validation(trace: Path) -> None:
    check_later(workload_of(trace), problem_of(trace, Regime(), 0.5, TESTED_PART, 1).scenarios)
    _, tested = windows(trace, TESTED_PART)
    trained, validated = trace_problems(ProblemRequest(3, (Regime(),), traces=(trace,)))
    met = {float(work_s) for problem in (*trained, *validated) for work_s in np.unique(problem.scenarios.work_s)}
    assert tested.size == 3 * 96
    assert not met & set(tested.ravel().tolist())


@pytest.mark.parametrize("part", [TRAINED_PART, VALIDATED_PART, (0.65, 0.85)])
def test_a_window_with_a_job_of_training_or_validation_ends_the_benchmark(
    part: tuple[float, float], trace: Path
) -> None:
    with pytest.raises(ValueError, match=r"^job j\d+ is one of the first 700, which are trained or validated on"):
        check_later(workload_of(trace), problem_of(trace, Regime(), 0.85, part, 1).scenarios)


def test_one_job_before_the_last_part_is_one_too_many(trace: Path) -> None:
    workload, scenarios = workload_of(trace), problem_of(trace, Regime(), 0.85, TESTED_PART, 1).scenarios
    last = scenarios._replace(work_s=np.tile(workload.work_s[700:796], (scenarios.jobs.size, 1)))
    check_later(workload, last)
    with pytest.raises(ValueError, match="job j699 "):
        check_later(workload, last._replace(work_s=np.tile(workload.work_s[699:795], (scenarios.jobs.size, 1))))


def test_windows_of_another_trace_are_refused(trace: Path) -> None:
    scenarios = problem_of(trace, Regime(), 0.85, TESTED_PART, 1).scenarios
    other = replace(workload_of(trace), work_s=workload_of(trace).work_s + 1.0)
    with pytest.raises(ValueError, match="no jobs of the trace have the work"):
        check_later(other, scenarios)


def test_what_ran_is_kept_for_each_window_with_the_factor_that_suits_the_past(trace: Path) -> None:
    found = cell_of(EASY, "made_up", trace, ("0.85", 0.85), {LEARNED: HEURISTICS["eft"]})
    assert found.later[LEARNED] == found.later[EFT]
    assert found.later[PATIENT] != found.later[EFT]
    assert {len(values) for it in found.later.values() for values in it.model_dump().values()} == {3}
    assert found.past[PATIENT] <= min(found.past[EFT], found.past[PACK])
    assert found.patience in FACTORS
    lost = found.past[EFT] - found.past[PATIENT]
    assert lost > 0.02
    assert np.mean(found.trained) == pytest.approx(lost, abs=0.01)
    assert all(
        queue_s < wait_s for queue_s, wait_s in zip(found.later[EFT].queue_s, found.later[EFT].wait_s, strict=True)
    )


def test_nothing_runs_on_a_part_that_was_trained_on(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "TESTED_PART", (0.6, 1.0))
    with pytest.raises(ValueError, match="trained or validated on"):
        cell_of(EASY, "made_up", trace, ("0.85", 0.85), {})


def test_runs_are_scored_beside_their_mean_if_their_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(learned_policies()) == [LEARNED]
    monkeypatch.setenv("MEMBERS", str(tmp_path))
    with pytest.raises(ValueError, match=r"holds a best\.zip"):
        learned_policies()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(CHECKPOINT, tmp_path / name / "best.zip")
    assert list(learned_policies()) == [LEARNED, "run 1", "run 2"]


@pytest.mark.parametrize("count", [1, 4, 5, 7, 10])
def test_each_trace_is_left_out_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(number) for number in range(count)]
    monkeypatch.setattr(left_out, "traces", lambda: dict.fromkeys(names, Path()))
    folds = left_out.folds()
    assert sorted(chain(*folds), key=int) == names
    assert all(folds)


def figures(mean_s: ArrayLike) -> Figures:
    """Return figures whose other times are those of the mean JCT."""
    times = np.array(mean_s).tolist()
    hours, stops = [HOUR_S] * len(times), [1.0] * len(times)
    return Figures(mean_s=times, p99_s=times, wait_s=times, queue_s=hours, stops=stops)


def cell(order: str, trace: str, load: str, means: Mapping[str, ArrayLike], past: dict[str, float]) -> Cell:
    later = {name: figures(values) for name, values in means.items()}
    # Where it was trained: a fifth less in the mean over loads, and over traces
    less = 0.2 + (0.1 if load == "0.85" else -0.1) + (0.05 if trace == "long" else -0.05)
    return Cell(
        order=order, trace=trace, load=load, offered=0.85, patience=0.4, past=past, later=later,
        trained=[-less, -less - 0.01, -less + 0.01],
    )  # fmt: skip


def made_up() -> Stored:
    """Return two traces at two loads under two orders: under EASY the learned policy is at 45 % of the mean JCT."""
    cells = []
    rng = np.random.default_rng(3)
    for order, factor in (("strict FIFO", 1.0), ("EASY", 0.45)):
        for trace, count in (("long", 12), ("short", 4)):
            for load in ("0.85", "as recorded"):
                patient = rng.uniform(1.0, 3.0, count) * 1e6  # so long that a minute more does not count
                noise = rng.uniform(0.99, 1.01, count)
                means = {PATIENT: patient, LEARNED: factor * noise * patient, EFT: 1.2 * patient, PACK: 1.5 * patient}
                past = {PATIENT: 1.0, EFT: 0.5 if (order, trace) == ("EASY", "short") else 2.0, PACK: 3.0}
                cells.append(cell(order, trace, load, means, past))
    return Stored(machine="a machine, 2026-01-01, commit abc", checkpoint="f" * 64, draws=8, cells=cells)


def test_stored_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    store(made_up(), tmp_path / "real.json")
    assert stored(tmp_path / "real.json") == made_up()
    assert len((tmp_path / "real.json").read_text().splitlines()) == 8 + 2


def test_a_window_counts_with_the_mean_over_its_loads() -> None:
    mine = {("t", "0.85"): figures([1e6, 1e6]), ("t", "1"): figures([4e6, 1e6])}
    rival = {("t", "0.85"): figures([1e6, 1e6]), ("t", "1"): figures([1e6, 1e6])}
    for time in TIMES:
        assert differences(mine, rival, time)["t"] == pytest.approx([np.log(2.0), 0.0], abs=1e-4)


def test_a_summary_tells_the_geometric_mean_over_traces_and_the_worst_of_them() -> None:
    cells = [
        cell("o", trace, "0.85", {PATIENT: [1e7] * 3, LEARNED: [1e7 * ratio] * 3}, {})
        for trace, ratio in (("good", 0.25), ("bad", 1.0))
    ]
    found = summary_of(cells, "o")
    assert found.mean == pytest.approx((-50.0, -50.0, -50.0), abs=1e-3)
    bars = {row.name.partition(": ")[2]: row.ok for row in rows_of(EASY, found)}
    assert bars == {"mean JCT": True, "mean JCT, lower end": True, "mean JCT, upper end": True, "p99 JCT": True,
                    "mean JCT, worst trace (bad)": True, "longest wait": True}  # fmt: skip
    assert found.worst == "bad"
    assert found.worst_percent == pytest.approx(0.0)


@given(
    st.integers(1, 4).flatmap(
        lambda policies: st.lists(st.lists(st.integers(1, 30), min_size=policies, max_size=policies), min_size=1)
    ),
    st.lists(st.floats(0.0, 300.0), min_size=1, max_size=4),
)
def test_a_profile_is_what_counting_gives(columns: list[list[int]], percents: list[float]) -> None:
    costs = np.array(columns, dtype=np.float64).T
    found = profile(costs, percents)
    for policy, row in enumerate(costs):
        for point, percent in enumerate(percents):
            near = [100.0 * (row[case] / min(costs[:, case]) - 1.0) <= percent for case in range(row.size)]
            assert found[policy, point] == sum(near) / len(near)


def test_some_policy_is_the_best_in_each_case() -> None:
    costs = np.random.default_rng(0).uniform(1.0, 2.0, (3, 50))
    found = profile(costs, [0.0, 100.0])
    assert found[:, 0].sum() == pytest.approx(1.0)
    assert found[:, 1].tolist() == [1.0, 1.0, 1.0]


def test_p_values_are_those_of_students_test() -> None:
    logs = np.random.default_rng(1).normal(0.1, 0.3, 15)
    expected = stats.ttest_1samp(logs, 0.0).pvalue
    assert compared(logs).p == pytest.approx(expected)
    assert over_traces([logs]).p == pytest.approx(expected)


def test_two_traces_are_tested_as_welch_does() -> None:
    rng = np.random.default_rng(2)
    one, other = rng.normal(0.1, 0.3, 15), rng.normal(0.0, 0.1, 6)
    expected = stats.ttest_ind(one, -other, equal_var=False).pvalue  # that their sum is 0
    assert over_traces([one, other]).p == pytest.approx(expected)


def test_loads_of_a_window_are_one_unit() -> None:
    logs = np.random.default_rng(4).normal(0.0, 1.0, 12)
    twice, units = np.concatenate([logs, logs]), np.tile(np.arange(12), 2)
    assert compared(twice, units).p == pytest.approx(compared(logs).p)
    assert compared(twice, units).difference == pytest.approx(compared(logs).difference)
    assert compared(twice).p < compared(logs).p


def test_only_what_is_no_chance_is_marked_and_one_window_has_neither_interval_nor_mark() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(0.0, 0.01, 20)
    found = [compared(noise - 0.5), compared(noise + 0.5), compared(noise), compared(np.array([-0.5]))]
    lines = list(table(["", "%"], [("", it) for it in found]))[2:]
    better, worse, same, alone = (line.split(" | ")[1] for line in lines)
    assert better.startswith("**-39.") and better.endswith("] ▼** |")  # noqa: PT018
    assert worse.startswith("**+6") and worse.endswith("] ▲** |")  # noqa: PT018
    assert "*" not in same
    assert alone == "-39.3 |"


def test_a_mark_allows_for_all_that_its_table_tests() -> None:
    logs = np.random.default_rng(6).normal(0.0, 1.0, 20)
    shift = logs.mean() - stats.t.ppf(0.99, 19) * logs.std(ddof=1) / np.sqrt(20)  # so that p is 2 %
    just, other = compared(logs - shift), compared(logs - logs.mean() + 1e-9)
    assert "▲" in list(table(["%"], [(just,)]))[-1]
    assert "▲" not in "".join(table(["%"], [(just,), (other,), (other,)]))


def test_the_best_order_and_heuristic_is_chosen_by_the_past_alone() -> None:
    cells = made_up().cells
    picks = picks_of(cells)
    assert picks["long", "0.85"] == Pick("strict FIFO", PATIENT)  # of equals the first
    assert picks["short", "as recorded"] == Pick("EASY", EFT)
    assert picked(cells)["short", "0.85"] == played(cells, "EASY", EFT)["short", "0.85"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_each_window_is_in_one_quarter_and_equals_are_together(values: list[int]) -> None:
    numbers = np.array(values, dtype=np.float64)
    groups = list(quarters(numbers).values())
    assert np.sum(groups, axis=0).tolist() == [1] * len(values)
    ends = [(numbers[group].min(), numbers[group].max()) for group in groups]
    assert all(low > high for (_, high), (low, _) in pairwise(ends))
    assert len(groups) <= 4


def test_a_window_has_the_same_number_at_each_load() -> None:
    cases = cases_of(made_up().cells, "EASY")
    assert cases.unit.size == 32
    assert np.bincount(np.unique(cases.unit, return_inverse=True)[1]).tolist() == [2] * 16


def test_the_page_has_a_row_for_each_trace_and_marks_what_is_gained() -> None:
    lines = list(lines_of(made_up()))
    page = "\n".join(lines)
    easy = lines[lines.index("#### EASY") :]
    rows = {name: next(line for line in easy if line.startswith(f"| {name} |")) for name in ("long", "short")}
    assert rows["long"].split(" | ")[1] == "12"
    assert all(row.split(" | ")[3].startswith("**-5") and "100/0" in row for row in rows.values())
    together = next(line for line in easy if line.startswith("| *all, alike* | 16 |"))
    assert "| **-55." in together or "| **-54." in together
    fifo = lines[lines.index("#### Strict FIFO") : lines.index("#### EASY")]
    assert not any("▼" in line or "▲" in line for line in fifo)
    assert "first 60 % of the jobs" in page
    assert "a machine, 2026-01-01, commit abc" in page
    assert "`patient` under strict FIFO (2 of 4), `eft` under EASY (2 of 4)" in page
    trained = lines[lines.index("### On the jobs that it was trained on") :]
    row = next(line for line in trained if line.startswith("| strict FIFO |"))
    assert row.split(" | ")[1].startswith("**-18.1 ")  # exp(-0.2) - 1
    assert not row.split(" | ")[2].startswith("**")


def test_single_trainings_are_on_the_page_only_if_they_were_scored() -> None:
    without = list(lines_of(made_up()))
    assert "were not scored" in without[-1]
    cells = [it.model_copy(update={"later": {**it.later, "run 1": it.later[LEARNED]}}) for it in made_up().cells]
    scored = list(lines_of(made_up().model_copy(update={"cells": cells})))
    assert scored[-1].startswith("| EASY | **-")
    assert "| order | their mean | run 1 |" in scored


def test_the_page_and_its_pictures_come_out_the_same_twice(tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        write_page(made_up(), folder / "page.md", folder)
        written.append([(folder / each).read_bytes() for each in ("page.md", SAME_ORDER, ALL_ORDERS)])
    assert written[0] == written[1]
