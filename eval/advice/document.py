"""The answer as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from ...cluster.model.intervals import Estimates
from .choice import Advice, Bound, Part, Saving
from .grid import Figures
from .ranking import lines
from .words import headline, sentences


def document_of(advice: Advice, ageing_s: float, remarks: Sequence[str] = ()) -> dict[str, Any]:
    """Return what `longshore evaluate --json` adds where all orders were run."""
    grid = advice.grid
    return {
        "answer": {
            "order": advice.chosen.order,
            "policy": advice.chosen.policy,
            "ageing_s": None if math.isinf(ageing_s) else ageing_s,
            "headline": headline(advice, ageing_s),
            "sentences": [*sentences(advice), *remarks],
            "windows": grid.windows,
            "windows_reported": advice.units,
            "chosen_on_other_windows": grid.held_out,
            "losses": advice.losses,
            "second": {"order": advice.second.order, "policy": advice.second.policy} if advice.second else None,
        },
        "bound": {grid.objective: None if math.isnan(advice.bound_s) else advice.bound_s},
        "ranking": [_candidate(advice, grid.place(line.candidate)) for line in lines(advice)],
        "parts": [_part(part) for part in advice.parts],
        "saved_hours": _saved(advice.saving) if advice.saving else None,
        "ageing": [_bound(bound) for bound in advice.bounds],
    }


def _saved(saving: Saving) -> dict[str, Any]:
    return {
        "monthly": saving.monthly,
        "jobs": saving.jobs,
        "job_hours": _ends(saving.jct),
        "job_hours_of_waiting": _ends(saving.wait),
        "gpu_hours_held": _ends(saving.held),
        "gpu_hours_lost_to_faults": _ends(saving.lost),
    }


def _bound(bound: Bound) -> dict[str, Any]:
    return {
        "ageing_s": None if math.isinf(bound.ageing_s) else bound.ageing_s,
        "mean_s": bound.mean_s,
        "p99_jct_s": bound.p99_jct_s,
        "longest_wait_s": bound.longest_wait_s,
        "relative_percent": _ends(Estimates(*(end[0] for end in bound.percent))),
    }


def _candidate(advice: Advice, row: int) -> dict[str, Any]:
    grid, shown = advice.grid, advice.grid.reporting
    ended = bool(grid.ended[row])
    left_out = {"finished"} if grid.weighting.weight("slowdown") else {"finished", "mean_slowdown"}
    names = [name for name in Figures._fields if name not in left_out]
    figures = {name: float(getattr(grid.figures, name)[row, shown].mean()) for name in names}
    versus = {
        f"{against.rival.order}+{against.rival.policy}": _ends(Estimates(*(end[row] for end in against.percent)))
        for against in advice.against
        if grid.ended[grid.place(against.rival)]
    }
    return {
        "order": grid.candidates[row].order,
        "policy": grid.candidates[row].policy,
        "ended": ended,
        "mean": figures if ended else None,
        "relative_percent": versus if ended else None,
        "above_bound_percent": float(advice.above_percent[row]) if ended and not math.isnan(advice.bound_s) else None,
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "what": part.what, "which": part.which, "from": part.low, "to": part.high, "windows": part.windows,
        "losses": part.losses, "relative_percent": _ends(Estimates(*(end[0] for end in part.percent))),
    }  # fmt: skip


def _ends(estimates: Estimates) -> dict[str, float | None]:
    return {
        name: None if math.isnan(float(end)) else float(end)
        for name, end in zip(Estimates._fields, estimates, strict=True)
    }
