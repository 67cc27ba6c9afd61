"""Longshore's own csv of jobs, which holds all that a workload does."""

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from ...model.needs import Needs
from ...model.plans import Plan
from ..csv_format import CsvFormat
from ..jobs import MOST_CPUS, Jobs, jobs_of, types_in
from ..plan_cells import agree, plans_in
from ..table import LONGEST_S, Rows

COLUMNS = ("gpus", "work_s", "submit_s")
OPTIONAL = ("id", "estimate_s", "compute_s", "parameter_bytes", "user", "name", *Needs._fields, "plans")
LEAST_COMPUTE_S = 1e-6  # a job that computes for no time and sends nothing would have no speed
MOST_BYTES = 1e18


def _marks(columns: Set[str]) -> bool:
    return "work_s" in columns or {"gpus", "submit_s"} <= columns


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["id"] if rows.has("id") else tuple(f"line-{line}" for line in rows.lines),
        rows.whole_numbers("gpus"),
        rows.numbers("work_s"),
        rows.numbers("submit_s"),
        estimate_s=_optional(rows, "estimate_s", least=0.0, most=LONGEST_S),
        compute_s=_optional(rows, "compute_s", least=LEAST_COMPUTE_S, most=LONGEST_S),
        parameter_bytes=_optional(rows, "parameter_bytes", least=0.0, most=MOST_BYTES),
        users=rows.texts("user"),
        names=rows.texts("name"),
        needs=_needs(rows),
        plans=_plans(rows),
    )


def _needs(rows: Rows) -> tuple[Needs, ...] | None:
    """Return what jobs need, None if the file has no column of it; an empty cell is no need."""
    if not any(rows.has(column) for column in Needs._fields):
        return None
    types = [types_in(cell) for cell in rows.texts("gpu_types") or ("",) * len(rows.lines)]
    most = (MOST_BYTES, MOST_CPUS, MOST_BYTES)
    numbers = [
        rows.numbers(column, most=top, blank=0.0).tolist() if rows.has(column) else [0.0] * len(rows.lines)
        for column, top in zip(Needs._fields[1:], most, strict=True)
    ]
    return tuple(map(Needs, types, *numbers))


def _plans(rows: Rows) -> tuple[tuple[Plan, ...], ...] | None:
    """Return the plans of jobs, None if the file has no column of them."""
    cells = rows.texts("plans")
    if cells is None:
        return None
    gpus, work_s, found = rows.whole_numbers("gpus"), rows.numbers("work_s"), list[tuple[Plan, ...]]()
    for row, cell in enumerate(cells):
        try:
            plans = plans_in(cell)
        except ValueError as error:
            raise rows.error("plans", row, str(error), "correct it, or leave the cell empty") from None
        if not agree(plans, int(gpus[row]), float(work_s[row])):
            problem = f"begins with a plan of {plans[0].gpus} GPUs and {plans[0].work_s:g} s, unlike gpus and work_s"
            raise rows.error("plans", row, problem, "let the first plan be what the job asks for")
        found.append(plans)
    return tuple(found)


def _optional(rows: Rows, column: str, *, least: float, most: float) -> NDArray[np.float64] | None:
    """Return the column, NaN where a cell is empty, or None if there is no such column."""
    return rows.numbers(column, least=least, most=most, blank=np.nan) if rows.has(column) else None


FORMAT = CsvFormat(COLUMNS, _marks, _jobs, OPTIONAL, times="in seconds")
