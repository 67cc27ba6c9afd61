"""What many commands share: options, durations, moments, panels of --help, tables, and the client."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ...cluster.files.durations import seconds_of
from ...cluster.files.output_file import in_one_line

if TYPE_CHECKING:
    from ..client import Client

DEFAULT_URL = "http://127.0.0.1:8765"
UrlOption = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the scheduler serves.")]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="LONGSHORE_CA", metavar="FILE",
        help="Certificates (PEM) of the authorities to trust if --url is https; those of the system by default.",
    ),
]  # fmt: skip
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job.")]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, with the fields of docs/api.md.")]


def client_of(url: str, ca: Path | None) -> "Client":
    """Return a client of the scheduler at a URL.

    The token is that of the environment, as other users see command lines, or of the file of this user's scheduler.

    Args:
        url: Where it serves.
        ca: File of the certificate authorities to trust if it is behind TLS; default: those of the system.

    Raises:
        InputError: If that file cannot be used.
    """
    from ..access.token_file import read_token_file
    from ..client import Client

    given = os.environ.get("LONGSHORE_TOKEN")
    return Client(url, lambda: given or read_token_file(url), ca)


def print_json(content: object) -> None:
    """Print an answer of the API, for programs."""
    typer.echo(json.dumps(content, indent=1))


def check_nonempty(text: str) -> str:
    """Return the text of an option.

    Raises:
        typer.BadParameter: If it is empty.
    """
    if not text.strip():
        raise typer.BadParameter("it is empty; write a reason, or omit the option")
    return text


DURATION = "DURATION"  # in place of a value in the help


def parse_duration(text: str) -> float:
    """Return the seconds of an option such as 30s, 15m, 2h or 3d.

    Raises:
        typer.BadParameter: If it is none.
    """
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def duration_parser(least: str, most: str) -> Callable[[str | float], float]:
    """Return the parser of a duration from `least` to `most`, as typed; a default is in seconds already."""
    least_s, most_s = seconds_of(least), seconds_of(most)

    def read(text: str | float) -> float:
        duration_s = parse_duration(text) if isinstance(text, str) else text
        if not least_s <= duration_s <= most_s:
            raise typer.BadParameter(f"{text!r} is too short or too long; write {least} to {most}")
        return duration_s

    return read


run_time = duration_parser("1ms", "366d")  # of a job


def minute_text(at_s: float | None) -> str:
    """Return a moment to the minute, `-` for none; the year stands in place of the time if it is another one."""
    if at_s is None:
        return "-"
    at = datetime.fromtimestamp(at_s).astimezone()
    return at.strftime("%b %d %H:%M" if at.year == datetime.now().astimezone().year else "%b %d  %Y")


def utc_minute_text(at_s: float) -> str:
    """Return a moment in UTC, to the minute."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")


def second_text(at_s: float) -> str:
    """Return a moment to the second."""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ran_s(job: dict[str, Any], now_s: float) -> float | None:
    """Return how long the last attempt of a job has run or ran, None if no rank of it ran."""
    if job["started_s"] is None:
        return None
    until_s = job["released_s"]
    return float((now_s if until_s is None else until_s) - job["started_s"])


def placement_text(placement: Iterable[Mapping[str, Any]]) -> str:
    """Return GPUs by node, such as `rack0-node1:0,1`."""
    return " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in placement)


GAP, CUT = "  ", "…"
MIN_COLUMN_CHARACTERS = 8  # left of a column that is cut


class TableColumn(NamedTuple):
    """A column."""

    title: str
    right: bool = False  # numbers stand to the right
    gives: bool = False  # may be cut where the terminal is too narrow


def print_table(columns: Sequence[TableColumn], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the titles of their columns. Nothing is cut in a file or pipe."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, list(rows), width):
        typer.echo(line)


def table_lines(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return a table as lines, cut to the width of a terminal unless that is None."""
    cells = [[column.title for column in columns], *([in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    if width is not None:
        _narrow_columns(columns, widths, width)
    return [_table_line(columns, row, widths) for row in cells]


def _narrow_columns(columns: Sequence[TableColumn], widths: list[int], width: int) -> None:
    """Narrow the columns that may be cut to the width of the terminal, the widest first."""
    too_much = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while too_much > 0:
        wide = [at for at, column in enumerate(columns) if column.gives and widths[at] > MIN_COLUMN_CHARACTERS]
        if not wide:
            return
        widths[max(wide, key=lambda at: widths[at])] -= 1
        too_much -= 1


def _table_line(columns: Sequence[TableColumn], row: Sequence[str], widths: Sequence[int]) -> str:
    cut = [cell if len(cell) <= width else cell[: width - 1] + CUT for cell, width in zip(row, widths, strict=True)]
    padded = [
        cell.rjust(width) if column.right else cell.ljust(width)
        for column, cell, width in zip(columns, cut, widths, strict=True)
    ]
    return GAP.join(padded).rstrip()
