"""The ranking of all orders and policies, for the terminal, the report and JSON."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...cluster.model.intervals import IntervalEstimates
from ..table import VERDICT_STYLES, Verdict, percent_text, time_unit
from .choice import CONFIDENCE, Against, Bound, HoursSaved, OrderAdvice, WindowGroup
from .grid import COMMON, Candidate, CandidateFigures
from .words import ageing_text, headline, number_text, objective_title, sentences, setting_text

if TYPE_CHECKING:
    from rich.table import Table

TERMINAL_ROWS = 10  # best ones that the terminal shows
TIME_TITLES = {
    "mean_jct_s": "mean JCT",
    "makespan_s": "makespan",
    "p99_jct_s": "p99 JCT",
    "longest_wait_s": "longest wait",
}


class Versus(NamedTuple):
    """A difference to something common, as text."""

    text: str
    interval: str
    verdict: Verdict


class RankingRow(NamedTuple):
    """One candidate."""

    candidate: Candidate
    tag: str  # "chosen", "common today", "" for others
    cells: tuple[str, ...]  # as `head`
    versus: tuple[Versus, ...]  # as COMMON
    above: str  # what is possible


def head(advice: OrderAdvice) -> list[tuple[str, str]]:
    """Return title and unit of the cells' columns."""
    unit = unit_of(advice)[0]
    times = [(TIME_TITLES[name], unit) for name in _times(advice)]
    own = [] if advice.grid.objective in TIME_TITLES else [(objective_title(advice), own_unit(advice)[0])]
    return [*own, *times, ("p99 slowdown", "x"), ("lost to faults", "GPU-h")]


def lines(advice: OrderAdvice) -> list[RankingRow]:
    """Return a line for each candidate, best mean of the objective first, those that did not finish last."""
    order = np.argsort(np.where(advice.grid.ended, advice.mean, np.inf), kind="stable")
    return [_line(advice, int(row)) for row in order]


def short(listed: list[RankingRow]) -> list[RankingRow]:
    """Return the lines that a terminal shows: the best, the chosen, what is common, and the best of each order."""
    best = {line.candidate.order: line.candidate for line in reversed(listed)}.values()
    return [line for place, line in enumerate(listed) if place < TERMINAL_ROWS or line.tag or line.candidate in best]


def caption(advice: OrderAdvice) -> str:
    """Return how to read the table."""
    above = f"'above' is the largest possible distance of {objective_title(advice)} to what any scheduler could reach."
    if math.isnan(advice.bound_s):
        above = f"How far {objective_title(advice)} is above what is possible is not known."
    part = f"the {advice.units} later {advice.noun}s" if advice.grid.held_out else f"all {advice.noun}s"
    return (
        f"Means over {part}; 95 % intervals by {advice.noun}. Colours are stricter: they hold for the whole "
        f"table at once (Holm). {above}"
    )


def terminal_ranking(advice: OrderAdvice) -> "Table":
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
        versus = [Text(f"{one.text} {one.interval}".rstrip(), style=VERDICT_STYLES[one.verdict]) for one in line.versus]
        table.add_row(
            Text(str(line.candidate), style=style), *line.cells, *versus, line.above
        )  # fmt: skip
    left = len(listed) - len(shown)
    more = f" {left} more pairs are in the report (--report) and in the figures (--json)." if left else ""
    table.caption = caption(advice) + more
    return table


def _times(advice: OrderAdvice) -> list[str]:
    first = advice.grid.objective
    others = [name for name in TIME_TITLES if name not in (first, "makespan_s")]
    return [first, *others] if first in TIME_TITLES else others


def unit_of(advice: OrderAdvice) -> tuple[str, float]:
    """Return the unit that times are shown in, and its factor to seconds."""
    if advice.grid.weighting.is_time:
        return time_unit(float(advice.mean[advice.row]))
    return time_unit(float(advice.grid.figures.mean_jct_s[advice.row, advice.grid.reporting].mean()))


def own_unit(advice: OrderAdvice) -> tuple[str, float]:
    """Return the unit that the objective is shown in, and its factor."""
    if advice.grid.weighting.is_time:
        return unit_of(advice)
    return "x" if len(advice.grid.weighting.terms) == 1 else "", 1.0


def _line(advice: OrderAdvice, row: int) -> RankingRow:
    candidate, figures, shown = advice.grid.candidates[row], advice.grid.figures, advice.grid.reporting
    tag = "chosen" if row == advice.row else "common today" if candidate in COMMON else ""
    if not advice.grid.ended[row]:
        none = Versus("-", "", "open")
        return RankingRow(candidate, tag or "did not end", ("-",) * len(head(advice)), (none,) * len(COMMON), "-")
    scale = unit_of(advice)[1]
    own = [] if advice.grid.objective in TIME_TITLES else [_number(float(advice.mean[row]) * own_unit(advice)[1])]
    times = [_number(float(getattr(figures, name)[row, shown].mean()) * scale) for name in _times(advice)]
    rest = [figures.p99_slowdown[row, shown].mean(), figures.lost_gpu_s[row, shown].mean() / 3600]
    versus = tuple(_versus(advice, against, row) for against in advice.against[: len(COMMON)])
    cells = (*own, *times, *(_number(float(value)) for value in rest))
    above = "-" if math.isnan(advice.bound_s) else f"{advice.above_percent[row]:.0f} %"
    return RankingRow(candidate, tag, cells, versus, above)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _versus(advice: OrderAdvice, against: Against, row: int) -> Versus:
    if (
        against.rival == advice.grid.candidates[row]
        or not advice.grid.ended[advice.grid.candidates.index(against.rival)]
    ):
        return Versus("-", "", "open")
    value, low, high = (float(end[row]) for end in against.percent)
    interval = "" if math.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"
    clear = (low > 0 or high < 0) and against.p[row] < 1 - CONFIDENCE
    return Versus(percent_text(value), interval, ("worse" if low > 0 else "better") if clear else "open")


def section_of(advice: OrderAdvice, ageing_s: float, remarks: Sequence[str] = ()) -> str:
    """Return the sections that stand first in the report: the answer, all orders, and where it wins and loses."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in (*sentences(advice), *remarks))
    return (
        f'<section><h2>What to run</h2><p class="lead"><b>{escape(headline(advice, ageing_s))}</b></p>'
        f"<ul>{items}</ul>"
        f'<p class="soft">For the scheduler (longshore.yaml):</p><pre>{escape(setting_text(advice, ageing_s))}</pre>'
        f"</section>{_ranking(advice)}{_parts(advice)}{_bounds(advice, ageing_s)}"
        f'<h2 class="chapter">All policies under order {escape(advice.chosen.order)}, on all {advice.noun}s</h2>'
    )


def _section(title: str, inside: str, note: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{inside}<p class="soft">{escape(note)}</p></section>'


def _table(titles: Iterable[tuple[str, str]], body: Iterable[str]) -> str:
    top = "".join(
        f'<th scope="col">{escape(title)}<small>{escape(unit) or "&nbsp;"}</small></th>' for title, unit in titles
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _ranking(advice: OrderAdvice) -> str:
    """Return the ranking; pairs that are far from the best are folded."""
    title = objective_title(advice)
    titles = [("order + policy", ""), *head(advice), *((f"{title} vs", str(one)) for one in COMMON)]
    titles += [("above", "the bound")]
    listed = lines(advice)
    shown = short(listed)
    rest = [line for line in listed if line not in shown]
    folded = (
        f"<details><summary>The other {len(rest)} pairs</summary>{_table(titles, map(_row, rest))}</details>"
        if rest
        else ""
    )
    return _section("All orders with all policies", _table(titles, map(_row, shown)) + folded, caption(advice))


def _row(line: RankingRow) -> str:
    style = {"chosen": "challenger", "common today": "baseline"}.get(line.tag, "")
    tag = f'<span class="tag">{line.tag}</span>' if line.tag else ""
    cells = "".join(f"<td>{escape(text)}</td>" for text in line.cells)
    versus = "".join(
        f'<td class="{one.verdict}">{escape(one.text)}<small>{escape(one.interval)}</small></td>' for one in line.versus
    )
    name = f'<th scope="row">{escape(str(line.candidate))}{tag}</th>'
    return f'<tr class="{style}">{name}{cells}{versus}<td>{escape(line.above)}</td></tr>'


def _parts(advice: OrderAdvice) -> str:
    """Return the table of windows grouped by a trait; empty where there are too few windows."""
    if not advice.parts or advice.chosen == COMMON[-1]:
        return ""
    titles = [
        (f"{advice.noun}s by", ""),
        ("which", ""),
        ("from", ""),
        ("to", ""),
        (f"{advice.noun}s", ""),
        ("lost", ""),
    ]
    titles += [(f"{objective_title(advice)} vs", str(COMMON[-1]))]
    note = (
        f"The {advice.units} {advice.noun}s that are reported, sorted by what they are alike in and cut into parts. "
        f"Jobs waiting and stops are those under {COMMON[-1]}. The intervals are for one part each: of 20 parts "
        "that differ by chance alone, one excludes 0."
    )
    return _section(f"Where {advice.chosen} wins and loses", _table(titles, map(_section_part, advice.parts)), note)


def _section_part(part: WindowGroup) -> str:
    value, low, high = (float(end[0]) for end in part.percent)
    return (
        f'<tr><th scope="row">{escape(part.what)}</th><td>{part.which}</td><td>{number_text(part.low)}</td>'
        f"<td>{number_text(part.high)}</td><td>{part.windows}</td><td>{part.losses}</td>"
        f"{_percent(value, low, high)}</tr>"
    )


def _percent(value: float, low: float, high: float) -> str:
    interval = "" if np.isnan(low) else f"<small>[{low:+.1f}, {high:+.1f}]</small>"
    return f"<td>{value:+.1f} %{interval}</td>"


def _bounds(advice: OrderAdvice, ageing_s: float) -> str:
    """Return what other ageing bounds would do; empty where they change nothing."""
    if not advice.bounds:
        return ""
    (unit, scale), (own, own_scale) = unit_of(advice), own_unit(advice)
    title = objective_title(advice)
    titles = [("ageing bound", ""), (title, own), (f"{title} vs", ageing_text(ageing_s))]
    titles += [("p99 JCT", unit), ("longest wait", unit)]
    body = (_section_bound(bound, scale, own_scale, run=bound.ageing_s == ageing_s) for bound in advice.bounds)
    note = "No job overtakes one that has waited for the ageing bound. A short bound takes the order's gain away."
    return _section(f"What the ageing bound does to {advice.chosen}", _table(titles, body), note)


def _section_bound(bound: Bound, scale: float, own_scale: float, *, run: bool) -> str:
    ends = (float(end[0]) for end in bound.percent)
    times = "".join(f"<td>{time_s * scale:.2f}</td>" for time_s in (bound.p99_jct_s, bound.longest_wait_s))
    versus = "<td>-</td>" if run else _percent(*ends)
    style, name = "challenger" if run else "", f'<th scope="row">{ageing_text(bound.ageing_s)}</th>'
    return f'<tr class="{style}">{name}<td>{bound.mean_s * own_scale:.2f}</td>{versus}{times}</tr>'


def document_of(advice: OrderAdvice, ageing_s: float, remarks: Sequence[str] = ()) -> dict[str, Any]:
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
        "ranking": [_candidate(advice, grid.candidates.index(line.candidate)) for line in lines(advice)],
        "parts": [_document_part(part) for part in advice.parts],
        "saved_hours": _saved(advice.saving) if advice.saving else None,
        "ageing": [_document_bound(bound) for bound in advice.bounds],
    }


def _saved(saving: HoursSaved) -> dict[str, Any]:
    return {
        "monthly": saving.monthly,
        "jobs": saving.jobs,
        "job_hours": _ends(saving.jct),
        "job_hours_of_waiting": _ends(saving.wait),
        "gpu_hours_held": _ends(saving.held),
        "gpu_hours_lost_to_faults": _ends(saving.lost),
    }


def _document_bound(bound: Bound) -> dict[str, Any]:
    return {
        "ageing_s": None if math.isinf(bound.ageing_s) else bound.ageing_s,
        "mean_s": bound.mean_s,
        "p99_jct_s": bound.p99_jct_s,
        "longest_wait_s": bound.longest_wait_s,
        "relative_percent": _ends(IntervalEstimates(*(end[0] for end in bound.percent))),
    }


def _candidate(advice: OrderAdvice, row: int) -> dict[str, Any]:
    grid, shown = advice.grid, advice.grid.reporting
    ended = bool(grid.ended[row])
    left_out = {"finished"} if grid.weighting.weight("slowdown") else {"finished", "mean_slowdown"}
    names = [name for name in CandidateFigures._fields if name not in left_out]
    figures = {name: float(getattr(grid.figures, name)[row, shown].mean()) for name in names}
    versus = {
        f"{against.rival.order}+{against.rival.policy}": _ends(
            IntervalEstimates(*(end[row] for end in against.percent))
        )
        for against in advice.against
        if grid.ended[grid.candidates.index(against.rival)]
    }
    return {
        "order": grid.candidates[row].order,
        "policy": grid.candidates[row].policy,
        "ended": ended,
        "mean": figures if ended else None,
        "relative_percent": versus if ended else None,
        "above_bound_percent": float(advice.above_percent[row]) if ended and not math.isnan(advice.bound_s) else None,
    }


def _document_part(part: WindowGroup) -> dict[str, Any]:
    return {
        "what": part.what, "which": part.which, "from": part.low, "to": part.high, "windows": part.windows,
        "losses": part.losses, "relative_percent": _ends(IntervalEstimates(*(end[0] for end in part.percent))),
    }  # fmt: skip


def _ends(estimates: IntervalEstimates) -> dict[str, float | None]:
    return {
        name: None if math.isnan(float(end)) else float(end)
        for name, end in zip(IntervalEstimates._fields, estimates, strict=True)
    }
