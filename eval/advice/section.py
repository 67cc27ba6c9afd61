"""The answer as sections of the report."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from .choice import Advice, Bound, Part
from .grid import COMMON
from .ranking import Line, caption, head, lines, own_unit, short, unit_of
from .words import ageing_text, headline, number_text, objective_title, sentences, setting_text


def section_of(advice: Advice, ageing_s: float, remarks: Sequence[str] = ()) -> str:
    """Return the sections that stand first in the report: the answer, all orders, and where it wins and loses."""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in (*sentences(advice), *remarks))
    return (
        f'<section><h2>What to run</h2><p class="lead"><b>{escape(headline(advice, ageing_s))}</b></p>'
        f"<ul>{said}</ul>"
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


def _ranking(advice: Advice) -> str:
    """Return the ranking; what is far from the best folds out."""
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


def _row(line: Line) -> str:
    style = {"chosen": "challenger", "common today": "baseline"}.get(line.tag, "")
    tag = f'<span class="tag">{line.tag}</span>' if line.tag else ""
    cells = "".join(f"<td>{escape(text)}</td>" for text in line.cells)
    versus = "".join(
        f'<td class="{one.verdict}">{escape(one.text)}<small>{escape(one.interval)}</small></td>' for one in line.versus
    )
    name = f'<th scope="row">{escape(str(line.candidate))}{tag}</th>'
    return f'<tr class="{style}">{name}{cells}{versus}<td>{escape(line.above)}</td></tr>'


def _parts(advice: Advice) -> str:
    """Return the table of windows that are alike in something; empty where there are too few windows."""
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
        "that differ by chance alone, one leaves out 0."
    )
    return _section(f"Where {advice.chosen} wins and loses", _table(titles, map(_part, advice.parts)), note)


def _part(part: Part) -> str:
    value, low, high = (float(end[0]) for end in part.percent)
    return (
        f'<tr><th scope="row">{escape(part.what)}</th><td>{part.which}</td><td>{number_text(part.low)}</td>'
        f"<td>{number_text(part.high)}</td><td>{part.windows}</td><td>{part.losses}</td>"
        f"{_percent(value, low, high)}</tr>"
    )


def _percent(value: float, low: float, high: float) -> str:
    interval = "" if np.isnan(low) else f"<small>[{low:+.1f}, {high:+.1f}]</small>"
    return f"<td>{value:+.1f} %{interval}</td>"


def _bounds(advice: Advice, ageing_s: float) -> str:
    """Return what other ageing bounds would do; empty where they change nothing."""
    if not advice.bounds:
        return ""
    (unit, scale), (own, own_scale) = unit_of(advice), own_unit(advice)
    title = objective_title(advice)
    titles = [("ageing bound", ""), (title, own), (f"{title} vs", ageing_text(ageing_s))]
    titles += [("p99 JCT", unit), ("longest wait", unit)]
    body = (_bound(bound, scale, own_scale, run=bound.ageing_s == ageing_s) for bound in advice.bounds)
    note = "A job that has waited for the ageing bound is overtaken by nobody. A short one takes the order's gain away."
    return _section(f"What the ageing bound does to {advice.chosen}", _table(titles, body), note)


def _bound(bound: Bound, scale: float, own_scale: float, *, run: bool) -> str:
    ends = (float(end[0]) for end in bound.percent)
    times = "".join(f"<td>{time_s * scale:.2f}</td>" for time_s in (bound.p99_jct_s, bound.longest_wait_s))
    versus = "<td>-</td>" if run else _percent(*ends)
    style, name = "challenger" if run else "", f'<th scope="row">{ageing_text(bound.ageing_s)}</th>'
    return f'<tr class="{style}">{name}<td>{bound.mean_s * own_scale:.2f}</td>{versus}{times}</tr>'
