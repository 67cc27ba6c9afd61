"""A comparison as one self-contained HTML file, and as JSON with the same figures."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from ..cluster.files.output_file import write_text
from ..cluster.model.intervals import FEWEST_RESAMPLED, IntervalEstimates
from .comparison import CONFIDENCE, Comparison
from .figures import Picture
from .table import (
    Row,
    interval_text,
    loss_sentences,
    metric_titles,
    percent_text,
    relative_cell,
    table_caption,
    table_rows,
    time_unit,
    versus_titles,
)


def write_report(
    path: Path, comparison: Comparison, pictures: Sequence[Picture], *, title: str, facts: Mapping[str, str],
    answer: str | None = None,
) -> None:  # fmt: skip
    """Write one HTML file that needs no other file, no network and no script.

    Args:
        path: The file; an older one is replaced.
        comparison: The policies side by side.
        pictures: Figures, in this order.
        title: Heading of the page.
        facts: What was run (command, cluster, workload, seeds, versions, date), shown as given.
        answer: Sections (HTML) that stand first, where all orders were run.
    """
    template = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=escape(title),
        answer=answer or "",
        summary=escape(summary(comparison)),
        table=_main_table_html(comparison),
        caption=escape(table_caption(comparison)),
        losses=_losses_html(comparison),
        figures="\n".join(_figure_html(picture) for picture in pictures),
        objective=comparison.objective_metric.title,
        best_heuristic=escape(comparison.best_heuristic),
        wins=_wins_table_html(comparison),
        relative=_relative_table_html(comparison),
        sizes=_size_table_html(comparison),
        meanings=_meanings_html(comparison),
        facts="".join(_definition_html(name, value, code=name.lower() == "command") for name, value in facts.items()),
    )
    write_text(path, page)


def write_json(
    path: Path,
    comparison: Comparison,
    *,
    title: str,
    facts: Mapping[str, str],
    more: Mapping[str, object] | None = None,
) -> None:
    """Write a comparison's figures as JSON, in the metrics' own units; null where a figure or interval is missing.

    What is `more` stands beside them, under keys of its own.
    """
    names = [metric.name for metric in comparison.metrics]
    document = {
        "title": title,
        **(more or {}),
        "facts": dict(facts),
        "objective": names[comparison.objective],
        "best_heuristic": comparison.best_heuristic,
        "scenarios": comparison.scenarios,
        "units": comparison.units,
        "confidence": CONFIDENCE,
        "policies": {name: _policy_document(comparison, row, names) for row, name in enumerate(comparison.policies)},
        "wins": {
            name: dict(zip(comparison.policies, shares, strict=True))
            for name, shares in zip(comparison.policies, comparison.wins.tolist(), strict=True)
        },
    }
    write_text(path, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def summary(comparison: Comparison) -> str:
    """Return the result in one or two sentences."""
    objective, best = comparison.objective_metric.title, comparison.best_heuristic
    if not comparison.challengers:
        return f"Only {best} was run, in {_scenarios_text(comparison)}."
    name = comparison.challengers[0]
    row = comparison.policies.index(name)
    change = float(comparison.relative_percent.value[row, comparison.objective])
    interval = interval_text(comparison.relative_percent, row, comparison.objective)
    how = {"better": "better than", "worse": "worse than", "open": "not clearly different from"}
    verdict = how[relative_cell(comparison, row, comparison.objective).verdict] if interval else "compared with"
    return (
        f"In {_scenarios_text(comparison)}, {name} is {verdict} {best}, the best of "
        f"{_count_text(len(comparison.heuristics), 'heuristic')}: "
        f"{objective} {percent_text(change)} {interval}".rstrip()
        + f", worse in {100 * comparison.worse_share[row]:.0f} % of the scenarios."
    )


def _scenarios_text(comparison: Comparison) -> str:
    return _count_text(comparison.scenarios, "scenario")


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _policy_document(comparison: Comparison, row: int, names: Sequence[str]) -> dict[str, object]:
    parts = {
        "mean": comparison.mean,
        "difference": comparison.difference,
        "relative_percent": comparison.relative_percent,
    }
    sizes = comparison.job_sizes
    return {
        "heuristic": comparison.policies[row] in comparison.heuristics,
        "worse_share": float(comparison.worse_share[row]),
        **{part: _estimates_document(estimates, row, names) for part, estimates in parts.items()},
        "mean_jct_s_by_gpus": dict(zip(sizes.title, sizes.mean_jct_s[row].tolist(), strict=True)),
        "jct_relative_percent_by_gpus": _estimates_document(sizes.relative_percent, row, sizes.title),
        "losses": loss_sentences(comparison, comparison.policies[row]),
    }


def _estimates_document(
    estimates: IntervalEstimates, row: int, names: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    columns = zip(*(part[row] for part in estimates), strict=True)
    return {name: estimate_document(IntervalEstimates(*ends)) for name, ends in zip(names, columns, strict=True)}


def estimate_document(estimate: IntervalEstimates) -> dict[str, float | None]:
    """Return one estimate as it is in JSON; None for an end that is not known."""
    return {name: None if math.isnan(float(end)) else float(end) for name, end in estimate._asdict().items()}


def _main_table_html(comparison: Comparison) -> str:
    head = ["policy", *(heading_html(*title) for title in (*metric_titles(comparison), *versus_titles(comparison)))]
    return _table_html(head, [_main_row_html(row) for row in table_rows(comparison)])


def _main_row_html(row: Row) -> str:
    kind = {"best heuristic": "baseline", "heuristic": "", "challenger": "challenger"}[row.kind]
    tag = f'<span class="tag">{row.kind}</span>' if kind else ""
    cells = [_td(cell.text, "best" if cell.best else "") for cell in row.cells]
    versus = [_td(text, row.versus.verdict) for text in (row.versus.text, row.interval)]
    return _tr(f"{escape(row.policy)}{tag}", [*cells, *versus, _td(row.worse_in)], kind)


def _wins_table_html(comparison: Comparison) -> str:
    body = []
    for row, name in enumerate(comparison.policies):
        texts = [
            "" if row == column else f"{100 * comparison.wins[row, column]:.0f} %"
            for column in range(len(comparison.policies))
        ]
        shade = [f"background: rgb(0 114 178 / {0.45 * share:.2f})" for share in comparison.wins[row]]
        cells = [f'<td style="{style}">{text}</td>' for style, text in zip(shade, texts, strict=True)]
        body.append(_tr(escape(name), cells))
    return _table_html(["", *(escape(name) for name in comparison.policies)], body, "matrix")


def _relative_table_html(comparison: Comparison) -> str:
    body = []
    for row, name in enumerate(comparison.policies):
        if name != comparison.best_heuristic:
            cells = [_relative_td(comparison, row, metric) for metric in range(len(comparison.metrics))]
            body.append(_tr(escape(name), cells))
    head = [heading_html(metric.title, f"{metric.better} is better") for metric in comparison.metrics]
    return _table_html(["policy", *head], body)


def _relative_td(comparison: Comparison, row: int, metric: int) -> str:
    cell = relative_cell(comparison, row, metric)
    interval = escape(interval_text(comparison.relative_percent, row, metric))
    return f'<td class="{cell.verdict}">{escape(cell.text)}<small>{interval}</small></td>'


def _size_table_html(comparison: Comparison) -> str:
    sizes = comparison.job_sizes
    unit, scale = time_unit(float(sizes.mean_jct_s.max()))
    body = []
    for row, name in enumerate(comparison.policies):
        cells = []
        for column, mean_s in enumerate(sizes.mean_jct_s[row]):
            change = percent_text(float(sizes.relative_percent.value[row, column]))
            versus = "" if name == comparison.best_heuristic else f" ({change})"
            cells.append(_td(f"{mean_s * scale:.2f}{versus}"))
        body.append(_tr(escape(name), cells, "baseline" if name == comparison.best_heuristic else ""))
    head = [
        heading_html(f"{title} ({unit})", _count_text(int(jobs), "job"))
        for title, jobs in zip(sizes.title, sizes.jobs, strict=True)
    ]
    return _table_html(["policy", *head], body)


def _losses_html(comparison: Comparison) -> str:
    return (
        "".join(_policy_losses_html(comparison, name) for name in comparison.challengers) or "<p>There is no rival.</p>"
    )


def _policy_losses_html(comparison: Comparison, policy: str) -> str:
    found = loss_sentences(comparison, policy)
    heading = f"<h3>{escape(policy)} against {escape(comparison.best_heuristic)}</h3>"
    if not found:
        return f"{heading}<p>Nowhere in what was compared here: no scenario, metric or job size.</p>"
    return f"{heading}<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in found)}</ul>"


def _figure_html(picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode("ascii")
    image = f'<img alt="{escape(picture.title)}" src="data:{picture.mime};base64,{data}">'
    text = f"<figcaption>{escape(picture.caption)}</figcaption>"
    return f'<figure><h2>{escape(picture.title)}</h2><div class="wide">{image}</div>{text}</figure>'


def _meanings_html(comparison: Comparison) -> str:
    meanings = {
        metric.title: f"{metric.meaning} {metric.better.capitalize()} is better." for metric in comparison.metrics
    }
    objective, confidence = comparison.objective_metric.title, f"{100 * CONFIDENCE:g} %"
    meanings["vs best"] = (
        "Difference of the means in per cent of the best heuristic's. The best heuristic is the one with the best mean "
        f"{objective} on these very scenarios, so the bar is set as high as these heuristics allow."
    )
    method = "BCa bootstrap over scenarios or their groups, the same draws for both policies"
    if comparison.units < FEWEST_RESAMPLED:
        method = "t-interval over scenarios or their groups, which are few"
    meanings["interval"] = (
        f"Where the true mean lies with {confidence} confidence ({method}). "
        "A mean's interval holds the variety of scenarios too; a difference is taken scenario by scenario, so it can "
        "be clear where the intervals of the means overlap."
    )
    return "".join(_definition_html(term, meaning, code=False) for term, meaning in meanings.items())


def _definition_html(term: str, meaning: str, *, code: bool) -> str:
    style = ' class="code"' if code else ""
    return f"<dt>{escape(term)}</dt><dd{style}>{escape(meaning)}</dd>"


def heading_html(title: str, second: str) -> str:
    """Return what stands in the head of a column: a title, and a second line."""
    return f"{escape(title)}<small>{escape(second) or '&nbsp;'}</small>"


def _td(text: str, style: str = "") -> str:
    return f'<td class="{style}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>"


def _tr(heading: str, cells: Iterable[str], style: str = "") -> str:
    return f'<tr class="{style}"><th scope="row">{heading}</th>{"".join(cells)}</tr>'


def _table_html(head: Iterable[str], body: Iterable[str], style: str = "") -> str:
    titles_row = "".join(f'<th scope="col">{title}</th>' for title in head)
    return f'<table class="{style}"><thead><tr>{titles_row}</tr></thead><tbody>{"".join(body)}</tbody></table>'
