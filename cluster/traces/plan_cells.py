"""Plans of a job in a cell of a trace (docs/formats.md), such as `8x1x1 work_s=3600 compute_s=0.5|4x1x1 ...`."""

import math
import re
from collections.abc import Iterable

from ..model.workload import Iteration, JobPlan
from .read import CELL_NUMBER, MAX_TRACE_S

APART = "|"  # between plans
DEGREES = re.compile(r"(\d{1,7})x(\d{1,7})x(\d{1,7})", re.ASCII)
MIN_COMPUTE_S, MAX_JOB_BYTES, MAX_PLAN_GPUS, MAX_PLANS = 1e-6, 1e18, 1_000_000, 1000
BOUNDS = {  # least and most of each figure; those without a default must stand there
    "work_s": (1e-6, MAX_TRACE_S),
    "compute_s": (MIN_COMPUTE_S, MAX_TRACE_S),
    "fixed_s": (0.0, MAX_TRACE_S),
    "gradient_bytes": (0.0, MAX_JOB_BYTES),
    "edge_bytes": (0.0, MAX_JOB_BYTES),
    "tensor_bytes": (0.0, MAX_JOB_BYTES),
    "memory_bytes": (0.0, MAX_JOB_BYTES),
    "away_bytes": (0.0, MAX_JOB_BYTES),
}
REQUIRED = ("work_s", "compute_s")
OF_ITERATION = tuple(name for name in BOUNDS if name in Iteration._fields)
OF_PLAN = ("memory_bytes", "away_bytes")


def cell_of(plans: Iterable[JobPlan]) -> str:
    """Return plans as a cell has them, from which they are read back to the last bit; figures of 0 are omitted."""
    return APART.join(_text(plan) for plan in plans)


def _text(plan: JobPlan) -> str:
    figures = {"work_s": plan.work_s, **{name: getattr(plan.iteration, name) for name in OF_ITERATION}}
    figures |= {name: getattr(plan, name) for name in OF_PLAN}
    words = (f"{name}={value!r}" for name, value in figures.items() if value > 0.0)
    return " ".join((plan.degrees, *words))


def plans_in(cell: str) -> tuple[JobPlan, ...]:
    """Return the plans in a cell, none if it is empty.

    Raises:
        ValueError: Saying what cannot be used.
    """
    texts = cell.split(APART) if cell.strip() else []
    if len(texts) > MAX_PLANS:
        raise ValueError(f"has {len(texts)} plans, more than {MAX_PLANS}")
    return tuple(map(_plan, texts))


def _plan(text: str) -> JobPlan:
    degrees, *words = text.split() or [""]
    found = DEGREES.fullmatch(degrees)
    data, pipeline, tensor = map(int, found.groups()) if found else (0, 0, 0)
    if not 0 < data * pipeline * tensor <= MAX_PLAN_GPUS:
        raise ValueError(f"has a plan that begins with {degrees[:40]!r}, not with data x pipeline x tensor as in 4x2x1")
    figures = dict.fromkeys(BOUNDS, 0.0)
    for name, value in _figures(degrees, words).items():
        least, most = BOUNDS[name]
        if not least <= value <= most:
            raise ValueError(f"has in the plan {degrees} {name}={value:g}, not between {least:g} and {most:g}")
        figures[name] = value
    did = Iteration(data, pipeline, tensor, **{name: figures[name] for name in OF_ITERATION})
    return JobPlan(did, figures["work_s"], **{name: figures[name] for name in OF_PLAN})


def _figures(degrees: str, words: list[str]) -> dict[str, float]:
    """Return the figures behind the degrees of a plan, by name."""
    figures: dict[str, float] = {}
    for word in words:
        name, _, number = word.partition("=")
        if name not in BOUNDS or name in figures or not CELL_NUMBER.fullmatch(number):
            known = ", ".join(BOUNDS)
            raise ValueError(f"has in the plan {degrees} {word[:40]!r}; write one of {known} once, as in work_s=3600")
        figures[name] = float(number)
    for name in REQUIRED:
        if name not in figures:
            raise ValueError(f"has no {name} in the plan {degrees}")
    return figures


def agree(plans: tuple[JobPlan, ...], gpus: int, work_s: float) -> bool:
    """Return whether the first plan, if there is one, takes the GPUs and the work of its row."""
    return not plans or (plans[0].gpus == gpus and math.isclose(plans[0].work_s, work_s, rel_tol=1e-9))
