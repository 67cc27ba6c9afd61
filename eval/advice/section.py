"""The answer as sections of the report."""

from html import escape

import numpy as np

from .choice import Advice, Part
from .grid import COMMON
from .ranking import Line, caption, head, lines
from .words import headline, objective_title, sentences


def section_of(advice: Advice, ageing_s: float) -> str:
    """Return the sections that stand first in the report: the answer, all orders, and where it wins and loses."""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(advice))
    return (
        f'<section class="answer"><h2>What to run</h2><p class="lead"><b>{escape(headline(advice, ageing_s))}</b></p>'
        f"<ul>{said}</ul></section>"
        f'<section><h2>All orders and policies</h2><div class="wide">{_ranking(advice)}</div>'
        f'<p class="soft">{escape(caption(advice))}</p></section>'
        f"{_parts(advice)}"
        f'<h2 class="chapter">The policies under order {escape(advice.chosen.order)}, on all windows</h2>'
    )


def _ranking(advice: Advice) -> str:
    """Return the table; the best are shown, the others fold out."""
    titles = [("order", ""), ("policy", ""), *head(advice)]
    titles += [(f"{objective_title(advice)} vs", f"{one.order} with {one.policy}") for one in COMMON]
    titles += [("above", "what is possible")]
    top = "".join(
        f'<th scope="col">{escape(title)}<small>{escape(unit) or "&nbsp;"}</small></th>' for title, unit in titles
    )
    body = "".join(_row(line) for line in lines(advice))
    return f'<table class="ranking"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _row(line: Line) -> str:
    style = {"chosen": "challenger", "common today": "baseline"}.get(line.tag, "")
    tag = f'<span class="tag">{line.tag}</span>' if line.tag else ""
    cells = "".join(f"<td>{escape(text)}</td>" for text in line.cells)
    versus = "".join(
        f'<td class="{one.verdict}">{escape(one.text)}<small>{escape(one.interval)}</small></td>' for one in line.versus
    )
    return (
        f'<tr class="{style}"><th scope="row">{escape(line.candidate.order)}{tag}</th>'
        f"<td>{escape(line.candidate.policy)}</td>{cells}{versus}<td>{escape(line.above)}</td></tr>"
    )


def _parts(advice: Advice) -> str:
    """Return the table of windows that are alike in something; empty where there are too few windows."""
    if not advice.parts:
        return ""
    titles = (
        "windows by",
        "which",
        "from",
        "to",
        "windows",
        "of them lost",
        f"{objective_title(advice)} vs {COMMON[-1]}",
    )
    top = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(_part(part) for part in advice.parts)
    return (
        f"<section><h2>Where {escape(str(advice.chosen))} wins and loses</h2>"
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="soft">The {advice.units} reported windows, sorted by what they are alike in, and cut into parts. '
        f"Jobs waiting and stops are those under {COMMON[-1]}.</p></section>"
    )


def _part(part: Part) -> str:
    value, low, high = (float(end[0]) for end in part.percent)
    interval = "" if np.isnan(low) else f"<small>[{low:+.1f}, {high:+.1f}]</small>"
    verdict = "worse" if low > 0 else "better" if high < 0 else "open"
    return (
        f'<tr><th scope="row">{escape(part.what)}</th><td>{part.which}</td><td>{part.low:.3g}</td>'
        f"<td>{part.high:.3g}</td><td>{part.windows}</td><td>{part.losses}</td>"
        f'<td class="{verdict}">{value:+.1f} %{interval}</td></tr>'
    )
