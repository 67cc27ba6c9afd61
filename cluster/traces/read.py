"""Reads a trace: finds its format, checks its rows column by column, and makes its jobs a workload.

The csv module reads them, not a data frame library: the slower way, but it knows the line of every value and never
guesses a type.
"""

import csv
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError, PluginError
from ..files.input_problems import open_text, read_head, shown_value
from ..files.plugins import load, registered
from ..model.problem import with_layout
from ..model.topology import ANYTHING, NodeNeeds
from ..model.workload import (
    ARRAYS,
    DEFAULT_COMPUTE_S,
    DEFAULT_PARAMETER_BYTES,
    JobPlan,
    ValueT,
    Workload,
    selected_jobs,
    sorted_by_submission,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What a module (or any object) must offer to be a trace format, under these names.

    Args:
        sniff: Takes the first 4,096 characters of a file and returns whether the file is in this format; needs as
            little as distinguishes the format, so that `read` can name what is missing.
        read: Returns the jobs in seconds, or raises InputError with the line and column.
        times: How a file has its times, such as "in milliseconds"; optional. It is shown to the user.
    """

    sniff: Callable[[str], bool]
    read: Callable[[Path], Workload]
    times: str = ""


def load_format(name: str) -> TraceFormat:
    """Import a format that is registered.

    Args:
        name: Its name.

    Raises:
        PluginError: If there is no such format, or its module does not import or lacks `sniff` or `read`.
    """
    loaded = load("traces", name)
    for function in ("sniff", "read"):
        if not callable(getattr(loaded, function, None)):
            raise PluginError(f"trace format {name!r} ({registered('traces')[name].value}) has no function {function}")
    return TraceFormat(loaded.sniff, loaded.read, str(getattr(loaded, "times", "")))


def format_description(name: str) -> str:
    """Return a format with how it has times: what a file is taken for may be wrong by a factor of 1000.

    Args:
        name: Of the format.

    Raises:
        PluginError: If there is no such format.
    """
    times = load_format(name).times
    return f"{name} (times {times})" if times else name


def detect_format(path: Path) -> str:
    """Return the name of the format that a file is in.

    Args:
        path: The file.

    Raises:
        InputError: If the file cannot be read, or fits no format or several.
        PluginError: If a format does not import.
    """
    known, head = registered("traces"), read_head(path)
    fitting = [name for name in known if load_format(name).sniff(head)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        fix = "name one by --format; other commands read what `longshore trace convert --format` has written"
        raise InputError(f"it fits several formats: {', '.join(map(format_description, fitting))}", fix, path=path)
    problem = f"no format begins with {shown_value(head.strip().splitlines()[0])}; formats are {', '.join(known)}"
    raise InputError(problem, "see docs/formats.md for their columns", path=path, line=1)


def read_trace(path: Path, *, trace_format: str | None = None) -> Workload:
    """Read a trace, and log for what it is taken.

    Args:
        path: The file.
        trace_format: Name of its format; found from how the file begins if None.

    Raises:
        InputError: If the file cannot be used.
        PluginError: If there is no such format, or its module does not do its part.
    """
    name = trace_format or detect_format(path)
    log.info("%s is read as %s", path, format_description(name))
    workload: object = load_format(name).read(path)
    if not isinstance(workload, Workload):
        value = registered("traces")[name].value
        raise PluginError(f"trace format {name!r} ({value}) gave {type(workload).__name__}, not a Workload")
    return workload


def jobs_from_columns(
    ids: tuple[str, ...],
    gpus: NDArray[np.int64],
    work_s: NDArray[np.float64],
    submit_s: NDArray[np.float64],
    *,
    estimate_s: NDArray[np.float64] | None = None,
    compute_s: NDArray[np.float64] | None = None,
    parameter_bytes: NDArray[np.float64] | None = None,
    users: tuple[str, ...] | None = None,
    names: tuple[str, ...] | None = None,
    needs: tuple[NodeNeeds, ...] | None = None,
    plans: tuple[tuple[JobPlan, ...], ...] | None = None,
) -> Workload:
    """Return the jobs of some rows, in any order, with defaults for what a trace lacks.

    A job of 0 GPUs or 0 seconds never ran.

    Args:
        ids: Name of each job.
        gpus: GPUs of each, shape (rows,).
        work_s: Run time without the queue, shape (rows,).
        submit_s: Submission on any clock, shape (rows,).
        estimate_s: Estimate of the work, shape (rows,); the work where it is None, NaN or 0.
        compute_s: Compute time of an iteration, shape (rows,); a default where it is None or NaN.
        parameter_bytes: Volume of one all-reduce, shape (rows,); a default where it is None or NaN.
        users: Owner of each job, empty where that is not known.
        names: Name of its program or model, empty where that is not known.
        needs: Of the nodes that it runs on.
        plans: By which it may run.
    """
    return Workload(
        ids,
        gpus.astype(np.int32),
        work_s,
        submit_s,
        work_s if estimate_s is None else np.where(estimate_s > 0, estimate_s, work_s),
        _column_or_default(compute_s, len(ids), DEFAULT_COMPUTE_S),
        _column_or_default(parameter_bytes, len(ids), DEFAULT_PARAMETER_BYTES),
        users=_stripped(users),
        names=_stripped(names),
        needs=needs,
        plans=plans,
    )


TYPES_APART = "|"  # between the names of types in a cell
MAX_CPUS = 1e6


def types_in_cell(cell: str) -> tuple[str, ...]:
    """Return the names of types in a cell."""
    return tuple(name.strip() for name in cell.split(TYPES_APART) if name.strip())


def needs_from_columns(
    gpus: NDArray[np.int64],
    *,
    types: tuple[str, ...] | None = None,
    cpus: NDArray[np.float64] | None = None,
    host_memory_bytes: NDArray[np.float64] | None = None,
) -> tuple[NodeNeeds, ...] | None:
    """Return the needs of jobs from columns about whole jobs, None if the trace has none.

    Args:
        gpus: GPUs of each, shape (rows,).
        types: Cell of each with the types that it accepts, empty for any.
        cpus: CPUs of each, shape (rows,).
        host_memory_bytes: Memory of each, shape (rows,).
    """
    if types is None and cpus is None and host_memory_bytes is None:
        return None
    each = [
        np.zeros(gpus.size) if column is None else column / np.maximum(gpus, 1) for column in (cpus, host_memory_bytes)
    ]
    accepted = map(types_in_cell, types or ("",) * gpus.size)
    return tuple(
        NodeNeeds(names, 0.0, *shares)
        for names, *shares in zip(accepted, *(column.tolist() for column in each), strict=True)
    )


def _stripped(texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if texts is None else tuple(text.strip() for text in texts)


def _column_or_default(values: NDArray[np.float64] | None, rows: int, default: float) -> NDArray[np.float64]:
    return np.full(rows, default) if values is None else np.where(np.isnan(values), default, values)


def workload_of_parts(path: Path, parts: Iterable[Workload]) -> Workload:
    """Return the jobs of all parts as a workload, without those that ask no GPU or never ran.

    Args:
        path: The file that they are from.
        parts: Jobs of consecutive rows, in any order.

    Raises:
        InputError: If no job is left.
    """
    kept, left_out = [], 0
    for part in parts:
        ran = (part.gpus > 0) & (part.work_s > 0)
        left_out += int(np.count_nonzero(~ran))
        kept.append(selected_jobs(part, np.flatnonzero(ran)))
    if not any(part.ids for part in kept):
        problem = f"none of its {left_out} rows is a job that asked a GPU and ran" if left_out else "there is no job"
        raise InputError(problem, "give a trace of GPU jobs with their run times", path=path)
    return with_layout(sorted_by_submission(replace(_joined_parts(kept), left_out=left_out)), "fixed")


def _joined_parts(parts: list[Workload]) -> Workload:
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    needs = [part.needs or (ANYTHING,) * part.jobs for part in parts]
    return Workload(
        tuple(name for part in parts for name in part.ids),
        **arrays,
        users=_chained_column([part.users for part in parts]),
        names=_chained_column([part.names for part in parts]),
        needs=_chained_column(needs) if any(part.needs for part in parts) else None,
        plans=_chained_column([part.plans for part in parts]),
    )


def _chained_column(parts: Sequence[tuple[ValueT, ...] | None]) -> tuple[ValueT, ...] | None:
    """Return the values of all parts in one, None if a part has none."""
    known = [part for part in parts if part is not None]
    return tuple(value for part in known for value in part) if len(known) == len(parts) else None


EPOCH = datetime(1970, 1, 1)
FIRST_YEAR, LAST_YEAR = 1970, 2100  # no GPU cluster ran outside of them


def epoch_s(text: str) -> float:
    """Return an ISO 8601 date and time as seconds since 1970; without a zone it is taken as UTC.

    A missing zone cancels out, since submissions count from the first one.

    Raises:
        ValueError: If the text is no date, or its year is not between 1970 and 2100; the message shows it.
    """
    date = datetime.fromisoformat(text.strip())
    if not FIRST_YEAR <= date.year <= LAST_YEAR:
        raise ValueError(f"year {date.year} is not between {FIRST_YEAR} and {LAST_YEAR}")
    return date.timestamp() if date.tzinfo else (date - EPOCH).total_seconds()


CHUNK_ROWS = 65_536  # rows held as text at a time
MAX_TRACE_S = 1e11  # 3,000 years; milliseconds since 1970 in a column of seconds lie beyond
MAX_JOB_GPUS = int(np.iinfo(np.int32).max)
CELL_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Some consecutive rows of a file, as text."""

    path: Path
    lines: tuple[int, ...]  # (rows,) one-based line of each row
    cells: Mapping[str, tuple[str, ...]]  # per column (rows,)

    def has(self, column: str) -> bool:
        """Return whether the file has the column."""
        return column in self.cells

    def numbers(
        self, column: str, *, least: float = 0.0, most: float = MAX_TRACE_S, blank: float | None = None
    ) -> NDArray[np.float64]:
        """Return a column of numbers, shape (rows,).

        Args:
            column: Its name.
            least: Smallest number allowed.
            most: Largest number allowed.
            blank: What an empty cell stands for; if None, an empty cell is an error.

        Raises:
            InputError: For a cell that holds anything else, with its line.
        """
        fits = CELL_NUMBER.fullmatch
        values = np.array(
            [
                float(cell) if fits(cell) else self._blank_value(column, row, blank)
                for row, cell in enumerate(self.cells[column])
            ]
        )
        bad = np.flatnonzero((values < least) | (values > most))  # a blank may stand for NaN, which is neither
        if bad.size:
            raise self.error(column, int(bad[0]), f"is not between {least:g} and {most:g}", "check its unit and sign")
        return values

    def whole_numbers(self, column: str, *, least: int = 0, most: int = MAX_JOB_GPUS) -> NDArray[np.int64]:
        """Return a column of whole numbers, shape (rows,); 8.0 counts as 8.

        Args:
            column: Its name.
            least: Smallest number allowed.
            most: Largest number allowed.

        Raises:
            InputError: For a cell that holds anything else, with its line.
        """
        values = self.numbers(column, least=least, most=most)
        bad = np.flatnonzero(values != np.floor(values))
        if bad.size:
            raise self.error(column, int(bad[0]), "is not a whole number", "write one, or drop the row")
        return values.astype(np.int64)

    def dates_s(self, column: str, *, blank: float | None = None) -> NDArray[np.float64]:
        """Return a column of ISO dates as seconds since 1970, shape (rows,).

        Args:
            column: Its name.
            blank: What an empty cell stands for; if None, an empty cell is an error.

        Raises:
            InputError: For a cell that holds anything else, with its line.
        """
        values = np.empty(len(self.lines))
        for row, cell in enumerate(self.cells[column]):
            try:
                values[row] = blank if blank is not None and not cell.strip() else epoch_s(cell)
            except ValueError:
                fix = "write a date from 1970 to 2100 as YYYY-MM-DD HH:MM:SS, or drop the row"
                raise self.error(column, row, "is not a date that can be used", fix) from None
        return values

    def error(self, column: str, row: int, problem: str, fix: str) -> InputError:
        """Return the error for one cell."""
        seen = shown_value(self.cells[column][row])
        return InputError(f"{seen} {problem}", fix, path=self.path, line=self.lines[row], field=column)

    def _blank_value(self, column: str, row: int, blank: float | None) -> float:
        if blank is not None and not self.cells[column][row].strip():
            return blank
        raise self.error(column, row, "is not a number", "write one, or drop the row")


def read_rows(
    path: Path, columns: tuple[str, ...], *, optional: tuple[str, ...] = ()
) -> Generator[TraceRows, None, None]:
    """Yield the rows of a csv file with a header, some ten thousand at a time. Empty lines are passed over.

    The file is open until all are read, or `close` is called.

    Args:
        path: The file.
        columns: Columns that the header must have; others are passed over.
        optional: Columns that are read if the header has them.

    Raises:
        InputError: If a column is missing, a row is longer or shorter than the header, or the file is no csv.
    """
    with open_text(path) as file:
        records = _nonblank_records(path, file)
        line, header = next(records, (1, []))
        if not header:
            raise InputError("the file is empty", "give a file with jobs", path=path)
        positions = _column_positions(path, line, header, columns, optional)
        yield from rows_in_chunks(path, _records_of_length(path, records, len(header)), positions)


def rows_in_chunks(
    path: Path, records: Iterable[tuple[int, list[str]]], positions: Mapping[str, int]
) -> Iterator[TraceRows]:
    """Yield records as rows.

    Args:
        path: The file that they are from.
        records: One-based line and cells of each.
        positions: Where each column stands in a record.
    """
    numbered = iter(records)
    while chunk := list(islice(numbered, CHUNK_ROWS)):
        lines = tuple(line for line, _ in chunk)
        yield TraceRows(path, lines, {name: tuple(cells[at] for _, cells in chunk) for name, at in positions.items()})


def columns_of(head: str) -> set[str]:
    """Return the names in the first line of a csv file."""
    first = head.lstrip("\ufeff\r\n").splitlines()[:1]
    return {name.strip().strip('"') for line in first for name in line.split(",")}


def _nonblank_records(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of each record that is not blank."""
    reader, last = csv.reader(file, strict=True), 0
    try:
        for record in reader:
            line, last = last + 1, reader.line_num
            if record and (record[0].strip() or any(cell.strip() for cell in record)):
                yield line, record
    except csv.Error as error:
        fix = "check the quotes of this row; the file may be cut off"
        raise InputError(f"is not csv: {error}", fix, path=path, line=last + 1) from error


def _records_of_length(
    path: Path, records: Iterator[tuple[int, list[str]]], length: int
) -> Iterator[tuple[int, list[str]]]:
    for line, cells in records:
        if len(cells) != length:
            fix = "complete or drop the row; the file may be cut off"
            raise InputError(f"the row has {len(cells)} columns and the header {length}", fix, path=path, line=line)
        yield line, cells


def _column_positions(
    path: Path, line: int, header: list[str], columns: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, int]:
    names = [name.strip() for name in header]
    for column in columns:
        if column not in names:
            problem = f"there is no such column; the header has {shown_value(', '.join(names))}"
            raise InputError(problem, "add it, or name another format", path=path, line=line, field=column)
    wanted = [column for column in (*columns, *optional) if column in names]
    for column in wanted:
        if names.count(column) > 1:
            raise InputError("the header has it twice", "rename one", path=path, line=line, field=column)
    return {column: names.index(column) for column in wanted}
