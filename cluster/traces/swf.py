"""The Standard Workload Format of the Parallel Workloads Archive, a processor standing for a GPU."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..files.errors import InputError
from ..files.input_problems import open_text
from ..model.workload import Workload
from .read import (
    CELL_NUMBER,
    MAX_JOB_GPUS,
    MAX_TRACE_S,
    TraceRows,
    jobs_from_columns,
    rows_in_chunks,
    workload_of_parts,
)

SWF_FIELDS = 18
POSITIONS = {
    "1 job number": 0,
    "2 submit time": 1,
    "4 run time": 3,
    "5 processors": 4,
    "8 requested processors": 7,
    "9 requested time": 8,
    "11 status": 10,
    "12 user": 11,
    "14 executable": 13,
}
times = "in seconds"
PARTIAL = (2, 3, 4)  # states of a line that is one part of a job which has a line of its own


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    cells = next(iter(head.lstrip().splitlines()), "").split()
    if cells and cells[0].startswith(";"):
        return True
    return len(cells) == SWF_FIELDS and all(CELL_NUMBER.fullmatch(cell) for cell in cells)


def read(path: Path) -> Workload:
    """Read the file; see docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    with open_text(path) as file:
        return workload_of_parts(path, map(_jobs, rows_in_chunks(path, _job_records(path, file), POSITIONS)))


def _job_records(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        cells = line.partition(";")[0].split()
        if cells and len(cells) != SWF_FIELDS:
            fix = "complete or drop the row; the file may be cut off"
            raise InputError(f"the row has {len(cells)} of {SWF_FIELDS} fields", fix, path=path, line=number)
        if cells:
            yield number, cells


def _jobs(rows: TraceRows) -> Workload:
    used = rows.whole_numbers("5 processors", least=-1, most=MAX_JOB_GPUS)
    requested = rows.whole_numbers("8 requested processors", least=-1, most=MAX_JOB_GPUS)
    run_s = rows.numbers("4 run time", least=-1, most=MAX_TRACE_S)
    limit_s = rows.numbers("9 requested time", least=-1, most=MAX_TRACE_S)
    partial = np.isin(rows.whole_numbers("11 status", least=-1), PARTIAL)
    return jobs_from_columns(
        rows.cells["1 job number"],
        np.where(used > 0, used, requested),
        np.where(partial, 0.0, run_s),
        rows.numbers("2 submit time"),
        estimate_s=np.where(limit_s > 0, limit_s, run_s),
        users=_blank_if_unknown(rows.cells["12 user"]),
        names=_blank_if_unknown(rows.cells["14 executable"]),
    )


def _blank_if_unknown(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells, empty for -1, which stands for not known."""
    return tuple("" if cell == "-1" else cell for cell in cells)
