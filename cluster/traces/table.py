"""Rows of a trace, column by column, with errors that name the line and the column.

The csv module reads them, not a data frame library: the slower way, but it knows the line of every value and never
guesses a type.
"""

import csv
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError
from ..files.text import open_text, shown
from .dates import epoch_s

CHUNK_ROWS = 65_536  # rows held as text at a time
LONGEST_S = 1e11  # 3,000 years; milliseconds since 1970 in a column of seconds lie beyond
MOST_GPUS = int(np.iinfo(np.int32).max)
NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rows:
    """Some consecutive rows of a file, as text."""

    path: Path
    lines: tuple[int, ...]  # (rows,) one-based line of each row
    cells: Mapping[str, tuple[str, ...]]  # per column (rows,)

    def has(self, column: str) -> bool:
        """Return whether the file has the column."""
        return column in self.cells

    def texts(self, column: str) -> tuple[str, ...] | None:
        """Return a column as it stands, None if the file does not have it."""
        return self.cells.get(column)

    def numbers(
        self, column: str, *, least: float = 0.0, most: float = LONGEST_S, blank: float | None = None
    ) -> NDArray[np.float64]:
        """Return a column of numbers, shape (rows,).

        Args:
            column: Its name.
            least: Smallest number allowed.
            most: Largest number allowed.
            blank: What an empty cell stands for; if left out, an empty cell is an error.

        Raises:
            InputError: For a cell that holds anything else, with its line.
        """
        fits = NUMBER.fullmatch
        values = np.array(
            [
                float(cell) if fits(cell) else self._blank(column, row, blank)
                for row, cell in enumerate(self.cells[column])
            ]
        )
        bad = np.flatnonzero((values < least) | (values > most))  # a blank may stand for NaN, which is neither
        if bad.size:
            raise self.error(column, int(bad[0]), f"is not between {least:g} and {most:g}", "check its unit and sign")
        return values

    def whole_numbers(self, column: str, *, least: int = 0, most: int = MOST_GPUS) -> NDArray[np.int64]:
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
            blank: What an empty cell stands for; if left out, an empty cell is an error.

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
        seen = shown(self.cells[column][row])
        return InputError(f"{seen} {problem}", fix, path=self.path, line=self.lines[row], field=column)

    def _blank(self, column: str, row: int, blank: float | None) -> float:
        if blank is not None and not self.cells[column][row].strip():
            return blank
        raise self.error(column, row, "is not a number", "write one, or drop the row")


def read_rows(path: Path, columns: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> Generator[Rows, None, None]:
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
        records = _records(path, file)
        line, header = next(records, (1, []))
        if not header:
            raise InputError("the file is empty", "give a file with jobs", path=path)
        positions = _positions(path, line, header, columns, optional)
        yield from in_chunks(path, _of_length(path, records, len(header)), positions)


def in_chunks(path: Path, records: Iterable[tuple[int, list[str]]], positions: Mapping[str, int]) -> Iterator[Rows]:
    """Yield records as rows.

    Args:
        path: The file that they are from.
        records: One-based line and cells of each.
        positions: Where each column stands in a record.
    """
    numbered = iter(records)
    while chunk := list(islice(numbered, CHUNK_ROWS)):
        lines = tuple(line for line, _ in chunk)
        yield Rows(path, lines, {name: tuple(cells[at] for _, cells in chunk) for name, at in positions.items()})


def columns_of(head: str) -> set[str]:
    """Return the names in the first line of a csv file."""
    first = head.lstrip("\ufeff\r\n").splitlines()[:1]
    return {name.strip().strip('"') for line in first for name in line.split(",")}


def _records(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
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


def _of_length(path: Path, records: Iterator[tuple[int, list[str]]], length: int) -> Iterator[tuple[int, list[str]]]:
    for line, cells in records:
        if len(cells) != length:
            fix = "complete or drop the row; the file may be cut off"
            raise InputError(f"the row has {len(cells)} columns and the header {length}", fix, path=path, line=line)
        yield line, cells


def _positions(
    path: Path, line: int, header: list[str], columns: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, int]:
    names = [name.strip() for name in header]
    for column in columns:
        if column not in names:
            problem = f"there is no such column; the header has {shown(', '.join(names))}"
            raise InputError(problem, "add it, or name another format", path=path, line=line, field=column)
    wanted = [column for column in (*columns, *optional) if column in names]
    for column in wanted:
        if names.count(column) > 1:
            raise InputError("the header has it twice", "rename one", path=path, line=line, field=column)
    return {column: names.index(column) for column in wanted}
