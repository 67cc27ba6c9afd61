"""The ranking of all orders and policies: the same rows for the terminal, the report and JSON."""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..table import STYLES, Verdict, percent_text, time_unit
from .choice import CONFIDENCE, Advice, Against
from .grid import COMMON, Candidate
from .words import objective_title

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 10  # best ones that the terminal shows
TIMES = {"mean_jct_s": "mean JCT", "makespan_s": "makespan", "p99_jct_s": "p99 JCT", "longest_wait_s": "longest wait"}


class Versus(NamedTuple):
    """A difference to something common, as text."""

    text: str
    interval: str
    verdict: Verdict


class Line(NamedTuple):
    """One candidate."""

    candidate: Candidate
    tag: str  # "chosen", "common today", "" for others
    cells: tuple[str, ...]  # as `head`
    versus: tuple[Versus, ...]  # as COMMON
    above: str  # what is possible


def head(advice: Advice) -> list[tuple[str, str]]:
    """Return title and unit of the cells' columns."""
    unit = unit_of(advice)[0]
    times = [(TIMES[name], unit) for name in _times(advice)]
    own = [] if advice.grid.objective in TIMES else [(objective_title(advice), own_unit(advice)[0])]
    return [*own, *times, ("p99 slowdown", "x"), ("lost to faults", "GPU-h")]


def lines(advice: Advice) -> list[Line]:
    """Return a line for each candidate, best mean of the objective first, those that did not finish last."""
    order = np.argsort(np.where(advice.grid.ended, advice.mean, np.inf), kind="stable")
    return [_line(advice, int(row)) for row in order]


def short(listed: list[Line]) -> list[Line]:
    """Return the lines that a terminal shows: the best, the chosen, what is common, and the best of each order."""
    best = {line.candidate.order: line.candidate for line in reversed(listed)}.values()
    return [line for place, line in enumerate(listed) if place < SHOWN or line.tag or line.candidate in best]


def caption(advice: Advice) -> str:
    """Return how to read the table."""
    above = f"'above': {objective_title(advice)} is at most so far above what any scheduler could reach."
    if math.isnan(advice.bound_s):
        above = f"How far {objective_title(advice)} is above what is possible is not known."
    part = f"the {advice.units} later {advice.noun}s" if advice.grid.held_out else f"all {advice.noun}s"
    return (
        f"Means over {part}; 95 % intervals by {advice.noun}. Colours ask more: they hold for the whole "
        f"table at once (Holm). {above}"
    )


def terminal_ranking(advice: Advice) -> "Table":
    """Return the table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    listed = lines(advice)
    shown = short(listed)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title_justify="left", caption_justify="left")
    table.add_column("\norder + policy", overflow="fold", max_width=32)
    for title, unit in [*head(advice), *(("vs", str(one)) for one in COMMON), ("above", "bound")]:
        table.add_column(f"{title}\n{unit}", justify="right")
    for line in shown:
        style = {"chosen": "bold cyan", "common today": "bold"}.get(line.tag, "")
        versus = [Text(f"{one.text} {one.interval}".rstrip(), style=STYLES[one.verdict]) for one in line.versus]
        table.add_row(
            Text(str(line.candidate), style=style), *line.cells, *versus, line.above
        )  # fmt: skip
    left = len(listed) - len(shown)
    more = f" {left} more pairs are in the report (--report) and in the figures (--json)." if left else ""
    table.caption = caption(advice) + more
    return table


def _times(advice: Advice) -> list[str]:
    first = advice.grid.objective
    others = [name for name in TIMES if name not in (first, "makespan_s")]
    return [first, *others] if first in TIMES else others


def unit_of(advice: Advice) -> tuple[str, float]:
    """Return the unit that times are shown in, and its factor to seconds."""
    if advice.grid.weighting.is_time:
        return time_unit(float(advice.mean[advice.row]))
    return time_unit(float(advice.grid.figures.mean_jct_s[advice.row, advice.grid.reporting].mean()))


def own_unit(advice: Advice) -> tuple[str, float]:
    """Return the unit that the objective is shown in, and its factor."""
    if advice.grid.weighting.is_time:
        return unit_of(advice)
    return "x" if len(advice.grid.weighting.terms) == 1 else "", 1.0


def _line(advice: Advice, row: int) -> Line:
    candidate, figures, shown = advice.grid.candidates[row], advice.grid.figures, advice.grid.reporting
    tag = "chosen" if row == advice.row else "common today" if candidate in COMMON else ""
    if not advice.grid.ended[row]:
        none = Versus("-", "", "open")
        return Line(candidate, tag or "did not end", ("-",) * len(head(advice)), (none,) * len(COMMON), "-")
    scale = unit_of(advice)[1]
    own = [] if advice.grid.objective in TIMES else [_number(float(advice.mean[row]) * own_unit(advice)[1])]
    times = [_number(float(getattr(figures, name)[row, shown].mean()) * scale) for name in _times(advice)]
    rest = [figures.p99_slowdown[row, shown].mean(), figures.lost_gpu_s[row, shown].mean() / 3600]
    versus = tuple(_versus(advice, against, row) for against in advice.against[: len(COMMON)])
    cells = (*own, *times, *(_number(float(value)) for value in rest))
    above = "-" if math.isnan(advice.bound_s) else f"{advice.above_percent[row]:.0f} %"
    return Line(candidate, tag, cells, versus, above)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _versus(advice: Advice, against: Against, row: int) -> Versus:
    if against.rival == advice.grid.candidates[row] or not advice.grid.ended[advice.grid.place(against.rival)]:
        return Versus("-", "", "open")
    value, low, high = (float(end[row]) for end in against.percent)
    interval = "" if math.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"
    clear = (low > 0 or high < 0) and against.p[row] < 1 - CONFIDENCE
    return Versus(percent_text(value), interval, ("worse" if low > 0 else "better") if clear else "open")
