"""Which order and policy to run: the answer in words, and the ranking of all, for terminal, report and JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..agents.protocol import Policy
from ..cluster.model.intervals import IntervalEstimates
from ..cluster.model.orders import ORDER_REGIMES
from ..cluster.model.problem import Problem
from .comparison import CONFIDENCE
from .every_order import (
    COMMON,
    AgainstRival,
    AgeingBoundFigures,
    Candidate,
    CandidateFigures,
    HoursSaved,
    OrderAdvice,
    WindowGroup,
)
from .report import estimate_document, heading_html
from .table import VERDICT_STYLES, Verdict, percent_text, time_unit

if TYPE_CHECKING:
    from rich.table import Table

MAX_NEEDED_WINDOWS = 10_000  # more are not worth naming
MIN_GAIN_PERCENT = 0.5  # per cent: a gain of less is none in whole numbers
MORE_WINDOWS_BY = {"window": "a longer trace, --workloads", "workload": "--workloads"}  # how to get more of them


def headline(advice: OrderAdvice, ageing_s: float) -> str:
    """Return what to run, and what that gains, in one sentence."""
    ageing = ""
    if ORDER_REGIMES[advice.chosen.order].passes:  # else no job overtakes another
        bound = f"with an ageing bound of {ageing_text(ageing_s)}"
        ageing = ", without an ageing bound" if math.isinf(ageing_s) else f", {bound}"
    stay = " Many clusters run this already." if advice.chosen in COMMON else ""
    return f"Run order {advice.chosen.order} with policy {advice.chosen.policy}{ageing}{_gains_text(advice)}.{stay}"


def _gains_text(advice: OrderAdvice) -> str:
    """Return by how much the objective is lower than under what is common; empty where it is not."""
    found = []
    for against in reversed(advice.against):
        value = -float(against.percent.value[advice.chosen_row])
        if (
            against.rival in COMMON
            and advice.grid.ended[advice.grid.candidates.index(against.rival)]
            and value >= MIN_GAIN_PERCENT
        ):
            found.append(f"{value:.0f} % lower than under {against.rival}")
    return f": the {objective_title(advice)} is {' and '.join(found)}" if found else ""


def scheduler_config_text(advice: OrderAdvice, ageing_s: float) -> str:
    """Return what to write into the scheduler's configuration."""
    ageing = "" if math.isinf(ageing_s) else f"ageing_s: {ageing_s:g}\n"
    return f"order: {advice.chosen.order}\n{ageing}policy: {{name: {advice.chosen.policy}}}"


def sentences(advice: OrderAdvice) -> list[str]:
    """Return the answer's sentences after the headline, each on one question."""
    found = [_against_common_text(advice, against) for against in reversed(advice.against) if against.rival in COMMON]
    found += [
        _choice_text(advice),
        _second_choice_text(advice),
        _best_heuristic_text(advice),
        _losses_text(advice),
        _side_effects_text(advice),
        _saved_hours_text(advice),
        _optimum_gap_text(advice),
    ]
    return [sentence for sentence in found if sentence]


def remarks_on(advice: OrderAdvice, problem: Problem, policy: Policy, facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return what to know beside the answer: what was chosen, what was known of run times, which load it was.

    Args:
        advice: The answer.
        problem: What was run, under the chosen order.
        policy: The chosen policy.
        facts: What was not run as it was recorded.
    """
    about = ORDER_REGIMES[advice.chosen.order].about
    found = [
        f"An order decides which waiting job may start next; {advice.chosen.order}: {about}. "
        f"A policy decides on which GPUs; {policy.name}: {policy.about}."
    ]
    if np.array_equal(problem.scenarios.estimate_s, problem.scenarios.work_s):
        found.append(
            "Run times were known exactly here, which helps orders that go by them. With --estimates log-normal or "
            "class-mean they are guessed, as people do."
        )
    if objective := facts.get("objective"):
        tuned = f" Tuned for it: {facts['tuned']}." if "tuned" in facts else ""
        found.append(f"Objective: {objective}.{tuned}")
    if load := facts.get("load"):
        found.append(f"Load: {load}.")
    return tuple(found)


def ageing_text(ageing_s: float) -> str:
    """Return an ageing bound in days where it is whole ones, else in hours."""
    hours = ageing_s / 3600
    if math.isinf(hours):
        return "never"
    return f"{hours / 24:g} days" if hours >= 48 and hours % 24 == 0 else f"{hours:g} h"


def objective_title(advice: OrderAdvice) -> str:
    """Return what candidates are ranked by, as tables call it."""
    return advice.grid.weighting.title


def window_group_text(advice: OrderAdvice, group: WindowGroup) -> str:
    """Return which windows a group has."""
    ends = f"{number_text(group.low)} to {number_text(group.high)}"
    return f"the {group.portion} of {advice.noun}s by {group.trait} ({ends})"


def number_text(value: float) -> str:
    """Return a number that need not be exact."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _against_common_text(advice: OrderAdvice, against: AgainstRival) -> str:
    """Return how the chosen does against what is common."""
    rival = against.rival
    if rival == advice.chosen:
        return ""
    if not advice.grid.ended[advice.grid.candidates.index(rival)]:
        return f"Under {rival} a run was cut off before all jobs ended, so there is no figure to compare with."
    value, low, high = (float(end[advice.chosen_row]) for end in against.percent)
    lower = value <= 0
    ends = "" if math.isnan(low) else f" [{-high if lower else low:.1f}, {-low if lower else high:.1f}]"
    title = objective_title(advice)
    text = f"{title[0].upper()}{title[1:]} {abs(value):.1f} %{ends} {'lower' if lower else 'higher'} than under {rival}"
    return f"{text}, which is common today. {_certainty_text(advice, value, low, high)}"


def _certainty_text(advice: OrderAdvice, value: float, low: float, high: float) -> str:
    if math.isnan(low):
        return f"One {advice.noun} gives no interval: nothing is sure."
    if low > 0 or high < 0:
        return "That is sure: the 95 % interval excludes 0."
    return f"That is not sure, as the 95 % interval holds 0; {_needed_windows_text(advice, value, high - low)}."


def _needed_windows_text(advice: OrderAdvice, value: float, width: float) -> str:
    """Return how many windows would show a difference of this size."""
    needed = math.inf if value == 0 else advice.units * (width / 2 / value) ** 2
    if needed > MAX_NEEDED_WINDOWS:
        return "it is too small for any number of them to show"
    windows = 2 * max(math.ceil(needed), advice.units + 1)  # half of them choose
    return f"about {windows:,} {advice.noun}s in all would show it ({MORE_WINDOWS_BY[advice.noun]})"


def _choice_text(advice: OrderAdvice) -> str:
    count, windows = len(advice.grid.candidates), _windows_text(advice, advice.grid.windows)
    if not advice.grid.has_held_out_windows:
        return (
            f"It was the best of {count} pairs of order and policy on {windows}, the same that these figures are of. "
            f"That flatters it, and so few {advice.noun}s make little sure; more would: {MORE_WINDOWS_BY[advice.noun]}."
        )
    return (
        f"It was the best of {count} pairs of order and policy on the first {advice.grid.windows - advice.units} of "
        f"{windows}. All figures here are of the other {advice.units}, which the choice did not use."
    )


def _windows_text(advice: OrderAdvice, count: int) -> str:
    return f"{count} {advice.noun}{'' if count == 1 else 's'}"


def _second_choice_text(advice: OrderAdvice) -> str:
    """Return whether the next best is worse."""
    if advice.second is None or advice.second in COMMON:
        return ""
    against = next(one for one in advice.against if one.rival == advice.second)
    value, low, high = (float(end[advice.chosen_row]) for end in against.percent)
    title = objective_title(advice)
    if math.isnan(low):
        return f"The second choice was {advice.second}."
    figures = f"{title} of the first against it {value:+.1f} % [{low:+.1f}, {high:+.1f}]"
    if low > 0 or high < 0:
        return f"The second choice was {advice.second}: {figures}."
    needed = _needed_windows_text(advice, value, high - low)
    return f"Whether the second choice, {advice.second}, is worse is open: {figures}; {needed}."


def _best_heuristic_text(advice: OrderAdvice) -> str:
    """Return what a policy that is no heuristic gains on the best that is one."""
    rival = advice.heuristic
    if rival is None or rival in (advice.second, *COMMON):
        return ""
    against = next(one for one in advice.against if one.rival == rival)
    value, low, high = (float(end[advice.chosen_row]) for end in against.percent)
    ends = "" if math.isnan(low) else f" [{low:+.1f}, {high:+.1f}]"
    title = objective_title(advice)
    return f"Of heuristics alone, {rival} was the best: {title} of the choice against it {value:+.1f} %{ends}."


def _losses_text(advice: OrderAdvice) -> str:
    if advice.chosen == COMMON[-1] or advice.saving is None:
        return ""
    text = f"It loses to {COMMON[-1]} in {advice.losses} of {_windows_text(advice, advice.units)}"
    if not advice.window_groups:
        return f"{text}."
    most = max(advice.window_groups, key=lambda group: group.losses / group.windows)
    if most.losses * advice.units > advice.losses * most.windows:
        return f"{text}, most often in {window_group_text(advice, most)}: {most.losses} of {most.windows}."
    least = max(advice.window_groups, key=lambda group: float(group.percent.value[0]))
    return f"{text}. It gains least, {float(least.percent.value[0]):+.1f} %, in {window_group_text(advice, least)}."


def _side_effects_text(advice: OrderAdvice) -> str:
    """Return how the chosen changes the figures that it was not chosen by."""
    shown, easy, figures = advice.grid.is_reported, advice.grid.easy_backfill_row, advice.grid.figures
    if advice.chosen_row == easy or advice.saving is None:
        return ""
    parts = []
    others = {"p99 JCT": figures.p99_jct_s, "the longest wait": figures.longest_wait_s}
    if advice.grid.objective_name != "mean_jct_s":
        others = {"mean JCT": figures.mean_jct_s} | others
    others.pop(objective_title(advice), None)
    for title, values in others.items():
        own, base = float(values[advice.chosen_row, shown].mean()), float(values[easy, shown].mean())
        if base > 0:
            parts.append(f"{title} is {abs(own / base - 1) * 100:.1f} % {'higher' if own > base else 'lower'}")
    worse = any(part.endswith("higher") for part in parts)
    warning = " Some jobs pay for the gain; a shorter --ageing bounds for how long." if worse else ""
    return f"Beside the {objective_title(advice)}, against {COMMON[-1]}: {', '.join(parts)}.{warning}" if parts else ""


def _saved_hours_text(advice: OrderAdvice) -> str:
    saving = advice.saving
    if advice.chosen == COMMON[-1] or saving is None:
        return ""
    period = "a month" if saving.monthly else "a workload"
    return (
        f"At {saving.jobs:,.0f} jobs {period}, as here, jobs take {_hours_text(saving.jct, 'job-hours')} {period} "
        f"between submission and end than under {COMMON[-1]}; in the queue alone it is "
        f"{_hours_text(saving.wait, 'job-hours')}. They hold GPUs for {_hours_text(saving.held, 'GPU-hours')}, and "
        f"faults cost {_hours_text(saving.lost, 'GPU-hours')}."
    )


def _hours_text(hours: IntervalEstimates, noun: str) -> str:
    """Return what is saved, or what is lost."""
    value, low, high = (float(end) for end in hours)
    if value < 0:
        value, low, high = -value, -high, -low
    ends = "" if math.isnan(low) else f" [{low:,.0f}, {high:,.0f}]"
    return f"{value:,.0f}{ends} {noun} {'less' if hours.value >= 0 else 'more'}"


def _optimum_gap_text(advice: OrderAdvice) -> str:
    if math.isnan(advice.bound_s):
        return ""
    unit, scale = ("h", 3600.0) if advice.bound_s >= 7200 else ("min", 60.0)
    return (
        f"It is at most {advice.above_percent[advice.chosen_row]:.0f} % above what is possible: no scheduler can have "
        f"a {objective_title(advice)} below {advice.bound_s / scale:.2f} {unit} here, not even one that knows all jobs "
        "and faults beforehand. How much of that gap can be closed is not known."
    )


TERMINAL_ROWS = 10  # best ones that the terminal shows
TIME_TITLES = {
    "mean_jct_s": "mean JCT",
    "makespan_s": "makespan",
    "p99_jct_s": "p99 JCT",
    "longest_wait_s": "longest wait",
}


class VersusCell(NamedTuple):
    """A difference to something common, as text."""

    text: str
    interval: str
    verdict: Verdict


class RankingRow(NamedTuple):
    """One candidate."""

    candidate: Candidate
    tag: str  # "chosen", "common today", "" for others
    cells: tuple[str, ...]  # as `head`
    versus: tuple[VersusCell, ...]  # as COMMON
    above: str  # what is possible


def ranking_titles(advice: OrderAdvice) -> list[tuple[str, str]]:
    """Return title and unit of the cells' columns."""
    unit = time_unit_of(advice)[0]
    times = [(TIME_TITLES[name], unit) for name in _time_figures(advice)]
    own = [] if advice.grid.objective_name in TIME_TITLES else [(objective_title(advice), objective_unit(advice)[0])]
    return [*own, *times, ("p99 slowdown", "x"), ("lost to faults", "GPU-h")]


def ranking_rows(advice: OrderAdvice) -> list[RankingRow]:
    """Return a line for each candidate, best mean of the objective first, those that did not finish last."""
    order = np.argsort(np.where(advice.grid.ended, advice.mean, np.inf), kind="stable")
    return [_ranking_row(advice, int(row)) for row in order]


def shortened_ranking(listed: list[RankingRow]) -> list[RankingRow]:
    """Return the lines that a terminal shows: the best, the chosen, what is common, and the best of each order."""
    best = {line.candidate.order: line.candidate for line in reversed(listed)}.values()
    return [line for place, line in enumerate(listed) if place < TERMINAL_ROWS or line.tag or line.candidate in best]


def ranking_caption(advice: OrderAdvice) -> str:
    """Return how to read the table."""
    above = f"'above' is the largest possible distance of {objective_title(advice)} to what any scheduler could reach."
    if math.isnan(advice.bound_s):
        above = f"How far {objective_title(advice)} is above what is possible is not known."
    part = f"the {advice.units} later {advice.noun}s" if advice.grid.has_held_out_windows else f"all {advice.noun}s"
    return (
        f"Means over {part}; 95 % intervals by {advice.noun}. Colours are stricter: they hold for the whole "
        f"table at once (Holm). {above}"
    )


def terminal_ranking(advice: OrderAdvice) -> "Table":
    """Return the table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    listed = ranking_rows(advice)
    shown = shortened_ranking(listed)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title_justify="left", caption_justify="left")
    table.add_column("\norder + policy", overflow="fold", max_width=32)
    for title, unit in [*ranking_titles(advice), *(("vs", str(one)) for one in COMMON), ("above", "bound")]:
        table.add_column(f"{title}\n{unit}", justify="right")
    for line in shown:
        style = {"chosen": "bold cyan", "common today": "bold"}.get(line.tag, "")
        versus = [Text(f"{one.text} {one.interval}".rstrip(), style=VERDICT_STYLES[one.verdict]) for one in line.versus]
        table.add_row(Text(str(line.candidate), style=style), *line.cells, *versus, line.above)
    left = len(listed) - len(shown)
    more = f" {left} more pairs are in the report (--report) and in the figures (--json)." if left else ""
    table.caption = ranking_caption(advice) + more
    return table


def _time_figures(advice: OrderAdvice) -> list[str]:
    first = advice.grid.objective_name
    others = [name for name in TIME_TITLES if name not in (first, "makespan_s")]
    return [first, *others] if first in TIME_TITLES else others


def time_unit_of(advice: OrderAdvice) -> tuple[str, float]:
    """Return the unit that times are shown in, and its factor to seconds."""
    if advice.grid.weighting.is_time:
        return time_unit(float(advice.mean[advice.chosen_row]))
    return time_unit(float(advice.grid.figures.mean_jct_s[advice.chosen_row, advice.grid.is_reported].mean()))


def objective_unit(advice: OrderAdvice) -> tuple[str, float]:
    """Return the unit that the objective is shown in, and its factor."""
    if advice.grid.weighting.is_time:
        return time_unit_of(advice)
    return "x" if len(advice.grid.weighting.weights) == 1 else "", 1.0


def _ranking_row(advice: OrderAdvice, row: int) -> RankingRow:
    candidate, figures, shown = advice.grid.candidates[row], advice.grid.figures, advice.grid.is_reported
    tag = "chosen" if row == advice.chosen_row else "common today" if candidate in COMMON else ""
    if not advice.grid.ended[row]:
        none = VersusCell("-", "", "open")
        return RankingRow(
            candidate, tag or "did not end", ("-",) * len(ranking_titles(advice)), (none,) * len(COMMON), "-"
        )
    scale = time_unit_of(advice)[1]
    own = (
        []
        if advice.grid.objective_name in TIME_TITLES
        else [_cell_text(float(advice.mean[row]) * objective_unit(advice)[1])]
    )
    times = [_cell_text(float(getattr(figures, name)[row, shown].mean()) * scale) for name in _time_figures(advice)]
    rest = [figures.p99_slowdown[row, shown].mean(), figures.lost_gpu_s[row, shown].mean() / 3600]
    versus = tuple(_versus_cell(advice, against, row) for against in advice.against[: len(COMMON)])
    cells = (*own, *times, *(_cell_text(float(value)) for value in rest))
    above = "-" if math.isnan(advice.bound_s) else f"{advice.above_percent[row]:.0f} %"
    return RankingRow(candidate, tag, cells, versus, above)


def _cell_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _versus_cell(advice: OrderAdvice, against: AgainstRival, row: int) -> VersusCell:
    if (
        against.rival == advice.grid.candidates[row]
        or not advice.grid.ended[advice.grid.candidates.index(against.rival)]
    ):
        return VersusCell("-", "", "open")
    value, low, high = (float(end[row]) for end in against.percent)
    interval = "" if math.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"
    clear = (low > 0 or high < 0) and against.p[row] < 1 - CONFIDENCE
    return VersusCell(percent_text(value), interval, ("worse" if low > 0 else "better") if clear else "open")


def report_sections(advice: OrderAdvice, ageing_s: float, remarks: Sequence[str] = ()) -> str:
    """Return the sections that stand first in the report: the answer, all orders, and where it wins and loses."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in (*sentences(advice), *remarks))
    return (
        f'<section><h2>What to run</h2><p class="lead"><b>{escape(headline(advice, ageing_s))}</b></p>'
        f"<ul>{items}</ul>"
        '<p class="soft">For the scheduler (longshore.yaml):</p>'
        f"<pre>{escape(scheduler_config_text(advice, ageing_s))}</pre>"
        f"</section>{_ranking_html(advice)}{_window_groups_html(advice)}{_ageing_bounds_html(advice, ageing_s)}"
        f'<h2 class="chapter">All policies under order {escape(advice.chosen.order)}, on all {advice.noun}s</h2>'
    )


def _section_html(title: str, inside: str, note: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{inside}<p class="soft">{escape(note)}</p></section>'


def _table_html(titles: Iterable[tuple[str, str]], body: Iterable[str]) -> str:
    top = "".join(f'<th scope="col">{heading_html(title, unit)}</th>' for title, unit in titles)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _ranking_html(advice: OrderAdvice) -> str:
    """Return the ranking; pairs that are far from the best are folded."""
    title = objective_title(advice)
    titles = [("order + policy", ""), *ranking_titles(advice), *((f"{title} vs", str(one)) for one in COMMON)]
    titles += [("above", "the bound")]
    listed = ranking_rows(advice)
    shown = shortened_ranking(listed)
    rest = [line for line in listed if line not in shown]
    folded = (
        f"<details><summary>The other {len(rest)} pairs</summary>"
        f"{_table_html(titles, map(_ranking_row_html, rest))}</details>"
        if rest
        else ""
    )
    return _section_html(
        "All orders with all policies",
        _table_html(titles, map(_ranking_row_html, shown)) + folded,
        ranking_caption(advice),
    )


def _ranking_row_html(line: RankingRow) -> str:
    style = {"chosen": "challenger", "common today": "baseline"}.get(line.tag, "")
    tag = f'<span class="tag">{line.tag}</span>' if line.tag else ""
    cells = "".join(f"<td>{escape(text)}</td>" for text in line.cells)
    versus = "".join(
        f'<td class="{one.verdict}">{escape(one.text)}<small>{escape(one.interval)}</small></td>' for one in line.versus
    )
    name = f'<th scope="row">{escape(str(line.candidate))}{tag}</th>'
    return f'<tr class="{style}">{name}{cells}{versus}<td>{escape(line.above)}</td></tr>'


def _window_groups_html(advice: OrderAdvice) -> str:
    """Return the table of windows grouped by a trait; empty where there are too few windows."""
    if not advice.window_groups or advice.chosen == COMMON[-1]:
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
    return _section_html(
        f"Where {advice.chosen} wins and loses",
        _table_html(titles, map(_window_group_row_html, advice.window_groups)),
        note,
    )


def _window_group_row_html(group: WindowGroup) -> str:
    value, low, high = (float(end[0]) for end in group.percent)
    return (
        f'<tr><th scope="row">{escape(group.trait)}</th><td>{group.portion}</td><td>{number_text(group.low)}</td>'
        f"<td>{number_text(group.high)}</td><td>{group.windows}</td><td>{group.losses}</td>"
        f"{_percent_cell_html(value, low, high)}</tr>"
    )


def _percent_cell_html(value: float, low: float, high: float) -> str:
    interval = "" if np.isnan(low) else f"<small>[{low:+.1f}, {high:+.1f}]</small>"
    return f"<td>{value:+.1f} %{interval}</td>"


def _ageing_bounds_html(advice: OrderAdvice, ageing_s: float) -> str:
    """Return what other ageing bounds would do; empty where they change nothing."""
    if not advice.ageing_bounds:
        return ""
    (unit, scale), (own, own_scale) = time_unit_of(advice), objective_unit(advice)
    title = objective_title(advice)
    titles = [("ageing bound", ""), (title, own), (f"{title} vs", ageing_text(ageing_s))]
    titles += [("p99 JCT", unit), ("longest wait", unit)]
    body = (
        _ageing_bound_row_html(bound, scale, own_scale, is_run=bound.ageing_s == ageing_s)
        for bound in advice.ageing_bounds
    )
    note = "No job overtakes one that has waited for the ageing bound. A short bound takes the order's gain away."
    return _section_html(f"What the ageing bound does to {advice.chosen}", _table_html(titles, body), note)


def _ageing_bound_row_html(bound: AgeingBoundFigures, scale: float, own_scale: float, *, is_run: bool) -> str:
    ends = (float(end[0]) for end in bound.percent)
    times = "".join(f"<td>{time_s * scale:.2f}</td>" for time_s in (bound.p99_jct_s, bound.longest_wait_s))
    versus = "<td>-</td>" if is_run else _percent_cell_html(*ends)
    style, name = "challenger" if is_run else "", f'<th scope="row">{ageing_text(bound.ageing_s)}</th>'
    return f'<tr class="{style}">{name}<td>{bound.mean_s * own_scale:.2f}</td>{versus}{times}</tr>'


def answer_document(advice: OrderAdvice, ageing_s: float, remarks: Sequence[str] = ()) -> dict[str, Any]:
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
            "chosen_on_other_windows": grid.has_held_out_windows,
            "losses": advice.losses,
            "second": {"order": advice.second.order, "policy": advice.second.policy} if advice.second else None,
        },
        "bound": {grid.objective_name: None if math.isnan(advice.bound_s) else advice.bound_s},
        "ranking": [
            _candidate_document(advice, grid.candidates.index(line.candidate)) for line in ranking_rows(advice)
        ],
        "parts": [_window_group_document(group) for group in advice.window_groups],
        "saved_hours": _saved_hours_document(advice.saving) if advice.saving else None,
        "ageing": [_ageing_bound_document(bound) for bound in advice.ageing_bounds],
    }


def _saved_hours_document(saving: HoursSaved) -> dict[str, Any]:
    return {
        "monthly": saving.monthly,
        "jobs": saving.jobs,
        "job_hours": estimate_document(saving.jct),
        "job_hours_of_waiting": estimate_document(saving.wait),
        "gpu_hours_held": estimate_document(saving.held),
        "gpu_hours_lost_to_faults": estimate_document(saving.lost),
    }


def _ageing_bound_document(bound: AgeingBoundFigures) -> dict[str, Any]:
    return {
        "ageing_s": None if math.isinf(bound.ageing_s) else bound.ageing_s,
        "mean_s": bound.mean_s,
        "p99_jct_s": bound.p99_jct_s,
        "longest_wait_s": bound.longest_wait_s,
        "relative_percent": estimate_document(IntervalEstimates(*(end[0] for end in bound.percent))),
    }


def _candidate_document(advice: OrderAdvice, row: int) -> dict[str, Any]:
    grid, shown = advice.grid, advice.grid.is_reported
    ended = bool(grid.ended[row])
    omitted = {"finished"} if grid.weighting.weight("slowdown") else {"finished", "mean_slowdown"}
    names = [name for name in CandidateFigures._fields if name not in omitted]
    figures = {name: float(getattr(grid.figures, name)[row, shown].mean()) for name in names}
    versus = {
        f"{against.rival.order}+{against.rival.policy}": estimate_document(
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


def _window_group_document(group: WindowGroup) -> dict[str, Any]:
    return {
        "what": group.trait, "which": group.portion, "from": group.low, "to": group.high, "windows": group.windows,
        "losses": group.losses,
        "relative_percent": estimate_document(IntervalEstimates(*(end[0] for end in group.percent))),
    }  # fmt: skip
