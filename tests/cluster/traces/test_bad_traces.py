"""Whatever is wrong with a file, the error names the place; nothing else comes out."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.traces.read import read_trace
from tests.cluster.traces.small_traces import EXAMPLES, PHILLY, written
from tests.support.budgets import examples

TABLES = sorted(set(EXAMPLES) - {"philly", "swf"})
# Per format: a column of whole GPU counts, one of run times and one of dates or submissions.
COLUMNS = {
    "itp": ("num_gpu", "duration", "submission_time"),
    "muri": ("num_gpu", "duration", "submit_time"),
    "tiresias": ("num_gpu", "duration", "submit_time"),
    "openb": ("num_gpu", "deletion_time", "creation_time"),
    "helios": ("gpu_num", "duration", "submit_time"),
    "acme": ("gpu_num", "duration", "submit_time"),
    "philly_sia": ("num_gpus", "duration", "timestamp"),
    "longshore": ("gpus", "work_s", "submit_s"),
}
NEVER_A_NUMBER = ["1e400", "nan", "inf", "-inf", "1_000", "0x10", "two", "٣", "1,5", "- 5", "9" * 400]

NO_LISTS = [
    '[{"jobid": NaN}]',
    '[{"jobid": 1e}]',
    '[{"jobid"',
    '[{"jobid": "a"},]',
    '{"jobid": "a"}',
    '[1, "jobid"]',
    '[{"jobid": ' + "9" * 5000 + "}]",
    '[{"jobid": ' + "[" * 100_000,
    '[] "jobid"',
    '[ "jobid" ] ]',
    "[]",
]


def with_cell(content: str, column: str, value: str, *, line: int = 2) -> str:
    """Return a csv with another value in one cell."""
    lines = content.splitlines()
    cells = lines[line - 1].split(",")
    cells[lines[0].split(",").index(column)] = f'"{value}"'
    lines[line - 1] = ",".join(cells)
    return "\n".join(lines) + "\n"


def refusal(folder: Path, content: str | bytes, trace_format: str | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        read_trace(written(folder, content), trace_format=trace_format)
    return caught.value


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("value", [*NEVER_A_NUMBER, "-3", str(10**30)])
def test_an_impossible_number_is_refused_with_its_line_column_and_value(name: str, value: str, tmp_path: Path) -> None:
    gpus, work, _ = COLUMNS[name]
    for column in (gpus, work):
        error = refusal(tmp_path, with_cell(EXAMPLES[name][0], column, value), name)
        assert (error.line, error.field) == (2, column)
        assert value[:40] in str(error)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("value", ["1.5", "", "2147483648"])
def test_gpus_are_a_whole_number(name: str, value: str, tmp_path: Path) -> None:
    gpus = COLUMNS[name][0]
    error = refusal(tmp_path, with_cell(EXAMPLES[name][0], gpus, value), name)
    assert (error.line, error.field) == (2, gpus)


@pytest.mark.parametrize("name", ["helios", "acme", "philly_sia"])
@pytest.mark.parametrize("value", ["2017-13-01 00:00:00", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "soon", ""])
def test_a_date_out_of_range_is_refused_with_its_line_and_column(name: str, value: str, tmp_path: Path) -> None:
    column = COLUMNS[name][2]
    error = refusal(tmp_path, with_cell(EXAMPLES[name][0], column, value), name)
    assert (error.line, error.field) == (2, column)


def test_milliseconds_since_1970_are_not_taken_for_seconds(tmp_path: Path) -> None:
    error = refusal(tmp_path, with_cell(EXAMPLES["itp"][0], "submission_time", "1700000000000"))
    assert "is not between 0 and 1e+11" in str(error)


@pytest.mark.parametrize("name", TABLES)
def test_a_row_that_is_cut_off_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    lines = EXAMPLES[name][0].splitlines()
    cut = "\n".join([*lines, lines[-1].rpartition(",")[0]])
    error = refusal(tmp_path, cut, name)
    assert error.line == len(lines) + 1
    assert "cut off" in str(error)


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_column_is_named(name: str, tmp_path: Path) -> None:
    for column in COLUMNS[name]:
        renamed = EXAMPLES[name][0].replace(column, "other", 1)
        error = refusal(tmp_path, renamed, name)
        assert (error.line, error.field) == (1, column)


@pytest.mark.parametrize("name", TABLES)
def test_a_column_that_stands_twice_is_refused(name: str, tmp_path: Path) -> None:
    column = COLUMNS[name][0]
    doubled = "\n".join(f"{line},{column if not row else 1}" for row, line in enumerate(EXAMPLES[name][0].splitlines()))
    assert refusal(tmp_path, doubled, name).field == column


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_an_empty_file_is_refused_under_any_format(name: str, content: str, tmp_path: Path) -> None:
    refusal(tmp_path, content, name)
    assert "empty" in str(refusal(tmp_path, content))


@pytest.mark.parametrize("name", TABLES)
def test_a_header_without_rows_is_refused(name: str, tmp_path: Path) -> None:
    assert "there is no job" in str(refusal(tmp_path, EXAMPLES[name][0].splitlines()[0], name))


def test_a_trace_in_which_nothing_ran_is_refused(tmp_path: Path) -> None:
    assert "none of its 2 rows" in str(refusal(tmp_path, "id,gpus,work_s,submit_s\na,0,5,0\nb,1,0,0\n"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_bytes_that_are_not_utf8_are_refused_with_their_line(name: str, tmp_path: Path) -> None:
    lines = EXAMPLES[name][0].encode().splitlines()
    lines[1] = lines[1][:3] + b"\xff" + lines[1][3:]
    for trace_format in (name, None):
        error = refusal(tmp_path, b"\n".join(lines), trace_format)
        assert error.line == 2
        assert "0xff" in str(error)


def test_a_quote_that_never_ends_is_refused_where_it_begins(tmp_path: Path) -> None:
    error = refusal(tmp_path, 'id,gpus,work_s,submit_s\na,1,5,0\n"b,1,5,0\nc,1,5,0\n')
    assert (error.line, "is not csv" in str(error)) == (3, True)


def test_lines_are_counted_as_in_an_editor(tmp_path: Path) -> None:
    error = refusal(tmp_path, 'id,gpus,work_s,submit_s\n\n"a\nb",1,5,0\n\nc,x,5,0\n')
    assert (error.line, error.field) == (6, "gpus")


@pytest.mark.parametrize("name", ["openb", "acme"])
def test_an_end_before_the_start_is_refused(name: str, tmp_path: Path) -> None:
    column, value = {"openb": ("deletion_time", "5"), "acme": ("end_time", "2023-05-17 10:00:00+00:00")}[name]
    error = refusal(tmp_path, with_cell(EXAMPLES[name][0], column, value), name)
    assert (error.line, error.field) == (2, column)


@pytest.mark.parametrize(
    ("keys", "value", "line", "field"),
    [
        ((0, "attempts", 1, "end_time"), "2017-10-09 07:00:00", 2, "attempts.1.end_time"),
        ((0, "attempts", 0, "start_time"), "yesterday", 2, "attempts.0.start_time"),
        ((0, "attempts", 0, "detail", 0, "gpus"), 10**30, 2, "attempts.0.detail.0.gpus"),
        ((0, "submitted_time"), "0001-01-01 00:00:00", 2, "submitted_time"),
        ((1, "submitted_time"), 1e300, 42, "submitted_time"),
        ((1, "jobid"), None, 42, "jobid"),
        ((2, "attempts"), {}, 47, "attempts"),
    ],
)
def test_a_wrong_value_in_philly_is_refused_with_its_job_and_key(
    keys: tuple[str | int, ...], value: object, line: int, field: str, tmp_path: Path
) -> None:
    jobs = json.loads(json.dumps(PHILLY))
    holder = jobs
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    error = refusal(tmp_path, json.dumps(jobs, indent=2))
    assert (error.line, error.field) == (line, field)


@pytest.mark.parametrize("content", NO_LISTS)
def test_a_file_that_is_no_list_of_jobs_is_refused(content: str, tmp_path: Path) -> None:
    refusal(tmp_path, content, "philly")


@pytest.mark.parametrize(
    ("field", "value"), [(1, "-5"), (3, "x"), (4, str(10**30)), (4, "1.5"), (8, "1e400"), (3, "-2")]
)
def test_an_impossible_number_in_swf_is_refused_with_its_line(field: int, value: str, tmp_path: Path) -> None:
    cells = ["1"] * 18
    cells[field if field != 8 else 7] = value
    error = refusal(tmp_path, "; a comment\n\n" + " ".join(cells) + "\n", "swf")
    assert error.line == 3
    assert value[:10] in str(error)


def test_an_swf_row_that_is_cut_off_is_refused_with_its_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, "; a comment\n1 2 3\n").line == 2


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_trace(path)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(EXAMPLES)), st.integers(0, 3000), st.integers(0, 40), st.binary(max_size=8))
@example("longshore", 30, 0, b"\x00")
def test_a_damaged_file_is_refused_or_gives_a_sound_workload(
    tmp_path: Path, name: str, at: int, length: int, noise: bytes
) -> None:
    content = EXAMPLES[name][0].encode()
    at %= len(content)
    path = written(tmp_path, content[:at] + noise + content[at + length :])
    try:
        workload = read_trace(path, trace_format=name)
    except InputError:
        return
    assert workload.jobs > 0
    assert (workload.gpus > 0).all()
    for column in (workload.work_s, workload.estimate_s, workload.compute_s):
        assert (np.isfinite(column) & (column > 0)).all()
    assert workload.submit_s[0] == 0
    assert (np.isfinite(workload.submit_s) & (np.diff(workload.submit_s, prepend=0) >= 0)).all()
    assert (np.isfinite(workload.parameter_bytes) & (workload.parameter_bytes >= 0)).all()
