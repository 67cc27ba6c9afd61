"""Tables of text: whole where they are piped, cut to the terminal where somebody looks at them."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import typer

from ...cluster.files.output_file import in_one_line

GAP, CUT = "  ", "…"
LEAST = 8  # characters that a column keeps which is cut


class Column(NamedTuple):
    """A column."""

    title: str
    right: bool = False  # numbers stand to the right
    gives: bool = False  # is cut where the terminal is too narrow


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the titles of their columns. Nothing is cut off that goes to a file or another program."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, list(rows), width):
        typer.echo(line)


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return a table as lines.

    Args:
        columns: The columns.
        rows: Their cells.
        width: Of the terminal, None where lines may be of any length.
    """
    cells = [[column.title for column in columns], *([in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    if width is not None:
        _narrow(columns, widths, width)
    return [_line(columns, row, widths) for row in cells]


def _narrow(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Take what is too much from the columns that may be cut, the widest first."""
    too_much = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while too_much > 0:
        wide = [at for at, column in enumerate(columns) if column.gives and widths[at] > LEAST]
        if not wide:
            return
        widths[max(wide, key=lambda at: widths[at])] -= 1
        too_much -= 1


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> str:
    cut = [cell if len(cell) <= width else cell[: width - 1] + CUT for cell, width in zip(row, widths, strict=True)]
    padded = [
        cell.rjust(width) if column.right else cell.ljust(width)
        for column, cell, width in zip(columns, cut, widths, strict=True)
    ]
    return GAP.join(padded).rstrip()
