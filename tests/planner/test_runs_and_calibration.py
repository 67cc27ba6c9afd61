"""Files of measured runs, and what is fitted to them."""

from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.files.errors import InputError
from longshore.planner.calibration import (
    MIN_RUNS,
    PRIOR,
    accuracy_of_ratios,
    calibrate,
    fit_constants,
    predicted_over_measured,
    read_runs,
    select_runs,
)
from longshore.planner.hardware import DEFAULT, MeasuredHardware, read_hardware, write_hardware
from tests.planner.measured_runs import HEAD, ROW, TRUE, made_runs

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / ".." / "shared" / "data" / "planner"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the measured runs in ../shared/data are absent")
ON = MeasuredHardware()


def test_a_fit_finds_the_constants_that_made_the_runs() -> None:
    runs = made_runs(120, 0.0)
    found = fit_constants(runs, ON)
    assert np.abs(predicted_over_measured(runs, ON, found) - 1.0).max() < 0.1
    for name in ("efficiency", "layer_s", "across_bytes_per_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.2), name


@pytest.mark.full
def test_a_constant_that_no_run_depends_on_stays_at_the_datasheet_and_is_named() -> None:
    whole = made_runs(200, 0.02)
    runs = select_runs(whole, np.flatnonzero(whole.gpus <= 8)[:30])
    found = calibrate(runs, ON, "one node")
    assert "across_bytes_per_s" in found.not_identified
    assert found.as_constants.across_bytes_per_s == pytest.approx(PRIOR.across_bytes_per_s, rel=0.02)
    assert "layer_s" not in found.not_identified
    assert "efficiency" not in found.not_identified


@pytest.mark.full
def test_a_bound_covers_its_share_of_other_runs() -> None:
    covered = []
    for seed in range(4):
        runs = made_runs(220, 0.1, seed)
        found = calibrate(select_runs(runs, np.arange(20)), ON, "drawn")
        ratio = predicted_over_measured(select_runs(runs, np.arange(20, 220)), ON, found.as_constants)
        covered.append(float((ratio * found.accuracy.bound_factor >= 1.0).mean()))
    assert np.mean(covered) >= 0.85  # 0.9 is meant; four draws of 20 runs leave a few hundredths to chance


def test_a_bound_is_the_right_one_of_the_ratios() -> None:
    """Of nine runs the longest is the bound: a tenth is longer with probability 1 / 10."""
    left_out = 1.0 / np.arange(1.0, 10.0)
    assert accuracy_of_ratios(left_out).bound_factor == 9.0
    assert accuracy_of_ratios(1.0 / np.arange(1.0, 20.0)).bound_factor == 18.0


def test_too_few_runs_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(InputError, match=f"8 runs are too few for a 90% bound; measure at least {MIN_RUNS}"):
        calibrate(made_runs(MIN_RUNS - 1, 0.1), ON, "few")


@pytest.mark.parametrize("factor", [1e-9, 1e-12])
def test_times_that_no_hardware_has_are_refused(factor: float) -> None:
    """Milliseconds in place of seconds are none of this: they may be true."""
    runs = made_runs(20, 0.1)
    with pytest.raises(InputError, match="units of iteration_s"):
        calibrate(runs._replace(iteration_s=runs.iteration_s * factor), ON, "wrong")


@pytest.mark.parametrize("times", [1, 2, 5])
def test_runs_that_differ_in_their_time_alone_count_once(times: int) -> None:
    few = made_runs(MIN_RUNS - 1, 0.1)
    rows = np.tile(np.arange(MIN_RUNS - 1), times)
    many = select_runs(few, rows)._replace(iteration_s=few.iteration_s[rows] * np.linspace(1.0, 1.1, rows.size))
    alike = f", of which {MIN_RUNS - 1} are different," if times > 1 else ""
    with pytest.raises(InputError, match=f"{rows.size} runs{alike} are too few for a 90% bound"):
        calibrate(many, ON, "alike")


@pytest.mark.full
def test_runs_that_are_there_twice_are_left_out_together() -> None:
    runs = made_runs(12, 0.1)
    once, twice = calibrate(runs, ON, "once"), calibrate(select_runs(runs, np.tile(np.arange(12), 2)), ON, "twice")
    assert twice.accuracy.mean_error == pytest.approx(once.accuracy.mean_error, rel=0.05)
    assert twice.accuracy.mean_error > 0.01


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "hardware.yaml"
    write_hardware(path, DEFAULT)
    assert read_hardware(path) == DEFAULT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.746", "-1"), "hardware.yaml:11:constants.efficiency: '-1' cannot be used; it should be a number above 0"),
        (("0.746", ".nan"), "constants.efficiency"),
        (("0.746", "fast"), "constants.efficiency: 'fast' cannot be used"),
        (("efficiency", "efficency"), "unknown key; did you mean 'efficiency'?"),
        (("longshore-hardware-1", "longshore-hardware-9"), "format"),
    ],
)
def test_a_profile_that_is_invalid_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "hardware.yaml"
    write_hardware(path, DEFAULT)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError) as error:
        read_hardware(path)
    assert message in str(error.value)


def test_columns_may_have_the_names_of_published_runs(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text(HEAD + ROW)
    theirs.write_text(
        "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
        "data parallelism,pipeline parallelism,iteration time (ms)\n8,64,2,1024,16,24,1024,2,2,2,500\n"
    )
    assert read_runs(ours) == read_runs(theirs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (HEAD, "the file has no runs; add a row for each"),
        ("gpus,batch\n8,64\n", ":1:micro_batch: there is no such column"),
        (HEAD + ROW.replace("0.5", "nan"), ":2:iteration_s: 'nan' is not a number"),
        (HEAD + ROW.replace("0.5", "inf"), ":2:iteration_s: 'inf' is not a number"),
        (HEAD + ROW.replace("0.5", "0"), ":2:iteration_s: '0' is not between 1e-09 and 1e+09"),
        (HEAD + ROW.replace("0.5", "-1"), ":2:iteration_s: '-1' is not between"),
        (HEAD + ROW.replace("0.5", ""), ":2:iteration_s: '' is not a number"),
        (HEAD + ROW + ROW.replace("8,64", "9,64"), ":3:gpus: '9' GPUs are not tensor x pipeline x data"),
        (HEAD + ROW.replace("8,64", "8,65"), ":2:batch: '65' is not made of whole micro-batches"),
        (HEAD + ROW.replace(",24,", ",1,"), ":2:pipeline: '2' stages are more than the layers"),
        (HEAD + ROW.replace(",24,", ",2.5,"), ":2:layers: '2.5' is not a whole number"),
        (HEAD + ROW.replace("8,64", "8,1e300"), ":2:batch: '1e300' is not between"),
        (HEAD + ROW.replace("8,64,", "8,"), "the row has 9 columns and the header 10"),
        (HEAD.replace("\n", ",recompute\n") + ROW.replace("\n", ",some\n"), ":2:recompute: 'some' is not full"),
        (HEAD.replace("\n", ",zero\n") + ROW.replace("\n", ",2\n"), ":2:zero: '2' is no stage of ZeRO"),
        (HEAD + '8,"64', "is not csv"),
        (HEAD + "\x00", ""),
        ("\xff\xfe", "no such column"),
    ],
)
def test_a_file_of_runs_that_cannot_be_used_is_reported_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_runs(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@needs_data
def test_the_default_constants_are_those_of_the_measured_runs() -> None:
    runs = read_runs(DATA / "vtrain_multi_half.csv")
    found = fit_constants(runs, ON, DEFAULT.as_constants)
    for name, value in found._asdict().items():
        assert getattr(DEFAULT.as_constants, name) == pytest.approx(value, rel=0.03), name


@needs_data
def test_measured_runs_on_one_node_tell_nothing_of_the_network_between_nodes() -> None:
    runs = read_runs(DATA / "vtrain_single_half.csv")
    found = calibrate(select_runs(runs, np.random.default_rng(1).permutation(720)[:20]), ON, "single")
    assert "across_bytes_per_s" in found.not_identified
    assert float(np.abs(predicted_over_measured(runs, ON, found.as_constants) - 1.0).mean()) < 0.15


def test_published_runs_are_predicted_within_a_tenth() -> None:
    runs = read_runs(ROOT / "benchmarks" / "planner_published.csv")
    assert runs.gpus.size == 22
    assert float(np.abs(predicted_over_measured(runs, ON, DEFAULT.as_constants) - 1.0).mean()) < 0.1
