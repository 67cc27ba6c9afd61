"""Trace formats that are a table of jobs in csv: ours, and those of public traces."""

import math
import re
from collections.abc import Callable, Iterable, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..model.topology import NodeNeeds
from ..model.workload import DEFAULT_PARAMETER_BYTES, Iteration, JobPlan, Workload
from .read import (
    CELL_NUMBER,
    MAX_CPUS,
    MAX_TRACE_S,
    TraceRows,
    columns_of,
    jobs_from_columns,
    needs_from_columns,
    read_rows,
    types_in_cell,
    workload_of_parts,
)

DATES = "as dates, and durations in seconds"


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """A trace format.

    Args:
        columns: That a file must have.
        marks: Returns by the columns of a file whether it is in this format; needs as few as distinguish the format, so
            that `read` can name what is missing.
        jobs: Returns the jobs of some rows.
        optional: Columns that are read where a file has them.
        times: How the columns have them, such as "in seconds".
    """

    columns: tuple[str, ...]
    marks: Callable[[Set[str]], bool]
    jobs: Callable[[TraceRows], Workload]
    optional: tuple[str, ...] = ()
    times: str = ""

    def sniff(self, head: str) -> bool:
        """Return whether a file that begins so is in this format."""
        return self.marks(columns_of(head))

    def read(self, path: Path) -> Workload:
        """Return the jobs of a file; see docs/formats.md.

        Raises:
            InputError: If it cannot be used.
        """
        with closing(read_rows(path, self.columns, optional=self.optional)) as rows:
            return workload_of_parts(path, map(self.jobs, rows))


ACME_COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")
RUN_COLUMNS = ("start_time", "end_time")


def _acme_jobs(rows: TraceRows) -> Workload:
    duration_s = rows.numbers("duration", blank=0.0)
    gpus = rows.whole_numbers("gpu_num")
    timed = all(rows.has(column) for column in RUN_COLUMNS)
    return jobs_from_columns(
        rows.cells["job_id"],
        gpus,
        _acme_run_s(rows) if timed else duration_s,
        rows.dates_s("submit_time"),
        users=rows.cells.get("user"),
        names=rows.cells.get("type"),
        needs=needs_from_columns(gpus, cpus=rows.numbers("cpu_num", blank=0.0) if rows.has("cpu_num") else None),
    )


def _acme_run_s(rows: TraceRows) -> NDArray[np.float64]:
    """Return end less start, 0 where one is missing: the column duration counts the queue in at Kalos, not at Seren."""
    start_s = rows.dates_s("start_time", blank=np.nan)
    end_s = rows.dates_s("end_time", blank=np.nan)
    run_s = np.nan_to_num(end_s - start_s)
    early = np.flatnonzero(run_s < 0)
    if early.size:
        raise rows.error("end_time", int(early[0]), "is before start_time", "correct or drop the row")
    return run_s


ACME = CsvFormat(
    ACME_COLUMNS,
    lambda columns: "gpu_num" in columns and bool({"gpu_time", "type"} & columns) and "vc" not in columns,
    _acme_jobs,
    (*RUN_COLUMNS, "user", "type", "cpu_num"),
    times="as dates",
)


HELIOS_COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")


def _helios_jobs(rows: TraceRows) -> Workload:
    gpus = rows.whole_numbers("gpu_num")
    return jobs_from_columns(
        rows.cells["job_id"],
        gpus,
        rows.numbers("duration", blank=0.0),
        rows.dates_s("submit_time"),
        users=rows.cells.get("user"),
        needs=needs_from_columns(gpus, cpus=rows.numbers("cpu_num", blank=0.0) if rows.has("cpu_num") else None),
    )


HELIOS = CsvFormat(
    HELIOS_COLUMNS, lambda columns: {"vc", "gpu_num"} <= columns, _helios_jobs, ("user", "cpu_num"), times=DATES
)


ITP_COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def _itp_jobs(rows: TraceRows) -> Workload:
    return jobs_from_columns(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration"),
        rows.numbers("submission_time"),
    )


ITP = CsvFormat(ITP_COLUMNS, lambda columns: "submission_time" in columns, _itp_jobs, times="in seconds")


# Plans of a job in a cell (docs/formats.md), such as `8x1x1 work_s=3600 compute_s=0.5|4x1x1 ...`
MIN_COMPUTE_S = 1e-6  # a job that computes for no time and sends nothing would have no speed
MAX_JOB_BYTES = 1e18
PLANS_APART = "|"  # between plans of a cell
DEGREES = re.compile(r"(\d{1,7})x(\d{1,7})x(\d{1,7})", re.ASCII)
MAX_PLAN_GPUS, MAX_PLANS = 1_000_000, 1000
PLAN_BOUNDS = {  # least and most of each figure; those without a default must stand there
    "work_s": (1e-6, MAX_TRACE_S),
    "compute_s": (MIN_COMPUTE_S, MAX_TRACE_S),
    "fixed_s": (0.0, MAX_TRACE_S),
    "gradient_bytes": (0.0, MAX_JOB_BYTES),
    "edge_bytes": (0.0, MAX_JOB_BYTES),
    "tensor_bytes": (0.0, MAX_JOB_BYTES),
    "memory_bytes": (0.0, MAX_JOB_BYTES),
    "away_bytes": (0.0, MAX_JOB_BYTES),
}
REQUIRED_OF_PLAN = ("work_s", "compute_s")
OF_ITERATION = tuple(name for name in PLAN_BOUNDS if name in Iteration._fields)
OF_PLAN = ("memory_bytes", "away_bytes")


def plans_cell(plans: Iterable[JobPlan]) -> str:
    """Return plans as a cell has them, from which they are read back to the last bit; figures of 0 are omitted."""
    return PLANS_APART.join(_plan_text(plan) for plan in plans)


def _plan_text(plan: JobPlan) -> str:
    figures = {"work_s": plan.work_s, **{name: getattr(plan.iteration, name) for name in OF_ITERATION}}
    figures |= {name: getattr(plan, name) for name in OF_PLAN}
    words = (f"{name}={value!r}" for name, value in figures.items() if value > 0.0)
    return " ".join((plan.degrees, *words))


def plans_in_cell(cell: str) -> tuple[JobPlan, ...]:
    """Return the plans in a cell, none if it is empty.

    Raises:
        ValueError: Saying what cannot be used.
    """
    texts = cell.split(PLANS_APART) if cell.strip() else []
    if len(texts) > MAX_PLANS:
        raise ValueError(f"has {len(texts)} plans, more than {MAX_PLANS}")
    return tuple(map(_plan_in_text, texts))


def _plan_in_text(text: str) -> JobPlan:
    degrees, *words = text.split() or [""]
    found = DEGREES.fullmatch(degrees)
    data, pipeline, tensor = map(int, found.groups()) if found else (0, 0, 0)
    if not 0 < data * pipeline * tensor <= MAX_PLAN_GPUS:
        raise ValueError(f"has a plan that begins with {degrees[:40]!r}, not with data x pipeline x tensor as in 4x2x1")
    figures = dict.fromkeys(PLAN_BOUNDS, 0.0)
    for name, value in _plan_figures(degrees, words).items():
        least, most = PLAN_BOUNDS[name]
        if not least <= value <= most:
            raise ValueError(f"has in the plan {degrees} {name}={value:g}, not between {least:g} and {most:g}")
        figures[name] = value
    did = Iteration(data, pipeline, tensor, **{name: figures[name] for name in OF_ITERATION})
    return JobPlan(did, figures["work_s"], **{name: figures[name] for name in OF_PLAN})


def _plan_figures(degrees: str, words: list[str]) -> dict[str, float]:
    """Return the figures behind the degrees of a plan, by name."""
    figures: dict[str, float] = {}
    for word in words:
        name, _, number = word.partition("=")
        if name not in PLAN_BOUNDS or name in figures or not CELL_NUMBER.fullmatch(number):
            known = ", ".join(PLAN_BOUNDS)
            raise ValueError(f"has in the plan {degrees} {word[:40]!r}; write one of {known} once, as in work_s=3600")
        figures[name] = float(number)
    for name in REQUIRED_OF_PLAN:
        if name not in figures:
            raise ValueError(f"has no {name} in the plan {degrees}")
    return figures


def _plan_agrees_with_row(plans: tuple[JobPlan, ...], gpus: int, work_s: float) -> bool:
    """Return whether the first plan, if there is one, takes the GPUs and the work of its row."""
    return not plans or (plans[0].gpus == gpus and math.isclose(plans[0].work_s, work_s, rel_tol=1e-9))


LONGSHORE_COLUMNS = ("gpus", "work_s", "submit_s")
LONGSHORE_OPTIONAL = ("id", "estimate_s", "compute_s", "parameter_bytes", "user", "name", *NodeNeeds._fields, "plans")


def _longshore_jobs(rows: TraceRows) -> Workload:
    return jobs_from_columns(
        rows.cells["id"] if rows.has("id") else tuple(f"line-{line}" for line in rows.lines),
        rows.whole_numbers("gpus"),
        rows.numbers("work_s"),
        rows.numbers("submit_s"),
        estimate_s=_optional_column(rows, "estimate_s", least=0.0, most=MAX_TRACE_S),
        compute_s=_optional_column(rows, "compute_s", least=MIN_COMPUTE_S, most=MAX_TRACE_S),
        parameter_bytes=_optional_column(rows, "parameter_bytes", least=0.0, most=MAX_JOB_BYTES),
        users=rows.cells.get("user"),
        names=rows.cells.get("name"),
        needs=_longshore_needs(rows),
        plans=_longshore_plans(rows),
    )


def _longshore_needs(rows: TraceRows) -> tuple[NodeNeeds, ...] | None:
    """Return what jobs need, None if the file has no column of it; an empty cell is no need."""
    if not any(rows.has(column) for column in NodeNeeds._fields):
        return None
    types = [types_in_cell(cell) for cell in rows.cells.get("gpu_types") or ("",) * len(rows.lines)]
    most = (MAX_JOB_BYTES, MAX_CPUS, MAX_JOB_BYTES)
    numbers = [
        rows.numbers(column, most=top, blank=0.0).tolist() if rows.has(column) else [0.0] * len(rows.lines)
        for column, top in zip(NodeNeeds._fields[1:], most, strict=True)
    ]
    return tuple(map(NodeNeeds, types, *numbers))


def _longshore_plans(rows: TraceRows) -> tuple[tuple[JobPlan, ...], ...] | None:
    """Return the plans of jobs, None if the file has no column of them."""
    cells = rows.cells.get("plans")
    if cells is None:
        return None
    gpus, work_s, found = rows.whole_numbers("gpus"), rows.numbers("work_s"), list[tuple[JobPlan, ...]]()
    for row, cell in enumerate(cells):
        try:
            plans = plans_in_cell(cell)
        except ValueError as error:
            raise rows.error("plans", row, str(error), "correct it, or leave the cell empty") from None
        if not _plan_agrees_with_row(plans, int(gpus[row]), float(work_s[row])):
            problem = f"begins with a plan of {plans[0].gpus} GPUs and {plans[0].work_s:g} s, unlike gpus and work_s"
            raise rows.error("plans", row, problem, "let the first plan be what the job asks for")
        found.append(plans)
    return tuple(found)


def _optional_column(rows: TraceRows, column: str, *, least: float, most: float) -> NDArray[np.float64] | None:
    """Return the column, NaN where a cell is empty, or None if there is no such column."""
    return rows.numbers(column, least=least, most=most, blank=np.nan) if rows.has(column) else None


LONGSHORE = CsvFormat(
    LONGSHORE_COLUMNS,
    lambda columns: "work_s" in columns or {"gpus", "submit_s"} <= columns,
    _longshore_jobs,
    LONGSHORE_OPTIONAL,
    times="in seconds",
)


MURI_COLUMNS = ("job_id", "num_gpu", "submit_time", "duration", "model_name", "iteration_time")
MS_PER_S = 1000.0
# Parameters as the reference implementations count them (torchvision, Hugging Face base models, and the convolutional
# network of Mnih et al. 2015 for the two agents).
MODEL_PARAMETERS = {
    "a2c": 1_687_206,
    "bert": 109_482_240,
    "dqn": 1_687_206,
    "gpt2": 124_439_808,
    "resnet18": 11_689_512,
    "shufflenet_v2_x1_0": 2_278_604,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
}
BYTES_PER_PARAMETER = 4  # gradients in single precision


def _muri_jobs(rows: TraceRows) -> Workload:
    most_ms = MAX_TRACE_S * MS_PER_S
    return jobs_from_columns(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration", most=most_ms) / MS_PER_S,
        rows.numbers("submit_time", most=most_ms) / MS_PER_S,
        compute_s=rows.numbers("iteration_time", least=1e-3, most=most_ms) / MS_PER_S,
        parameter_bytes=np.array([_model_parameter_bytes(name) for name in rows.cells["model_name"]]),
        names=rows.cells.get("model_name"),
    )


def _model_parameter_bytes(model: str) -> float:
    parameters = MODEL_PARAMETERS.get(model.strip())
    return DEFAULT_PARAMETER_BYTES if parameters is None else float(parameters * BYTES_PER_PARAMETER)


MURI = CsvFormat(
    MURI_COLUMNS, lambda columns: {"num_gpu", "submit_time"} <= columns, _muri_jobs, times="in milliseconds"
)


MIB = 2.0**20
OPENB_COLUMNS = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")


def _openb_jobs(rows: TraceRows) -> Workload:
    scheduled_s = rows.numbers("scheduled_time", blank=np.nan)
    deleted_s = rows.numbers("deletion_time", blank=np.nan)
    work_s = np.nan_to_num(deleted_s - scheduled_s)
    early = np.flatnonzero(work_s < 0)
    if early.size:
        raise rows.error("deletion_time", int(early[0]), "is before scheduled_time", "correct or drop the row")
    gpus = rows.whole_numbers("num_gpu")
    cpus = rows.numbers("cpu_milli", blank=0.0) / 1000.0 if rows.has("cpu_milli") else None
    memory = rows.numbers("memory_mib", blank=0.0) * MIB if rows.has("memory_mib") else None
    needs = needs_from_columns(gpus, types=rows.cells.get("gpu_spec"), cpus=cpus, host_memory_bytes=memory)
    return jobs_from_columns(rows.cells["name"], gpus, work_s, rows.numbers("creation_time"), needs=needs)


OPENB = CsvFormat(
    OPENB_COLUMNS,
    lambda columns: "gpu_milli" in columns,
    _openb_jobs,
    ("gpu_spec", "cpu_milli", "memory_mib"),
    times="in seconds",
)


PHILLY_SIA_COLUMNS = ("timestamp", "duration", "num_gpus")


def _philly_sia_jobs(rows: TraceRows) -> Workload:
    in_seconds = CELL_NUMBER.fullmatch(rows.cells["timestamp"][0])  # other copies have dates
    return jobs_from_columns(
        tuple(f"line-{line}" for line in rows.lines),
        rows.whole_numbers("num_gpus"),
        rows.numbers("duration", blank=0.0),
        rows.numbers("timestamp") if in_seconds else rows.dates_s("timestamp"),
    )


PHILLY_SIA = CsvFormat(
    PHILLY_SIA_COLUMNS,
    lambda columns: {"timestamp", "num_gpus"} <= columns,
    _philly_sia_jobs,
    times="as dates or in seconds",
)


TIRESIAS_COLUMNS = ("job_id", "num_gpu", "submit_time", "duration")


def _tiresias_jobs(rows: TraceRows) -> Workload:
    return jobs_from_columns(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration", most=MAX_TRACE_S),
        rows.numbers("submit_time", most=MAX_TRACE_S),
        names=rows.cells.get("model_name"),
    )


TIRESIAS = CsvFormat(
    TIRESIAS_COLUMNS,  # of Muri, which differs in its units, a file has iteration times
    lambda columns: {"num_gpu", "submit_time", "duration"} <= columns and "iteration_time" not in columns,
    _tiresias_jobs,
    ("model_name",),
    times="in seconds",
)
