"""The table of a comparison: the same cells for the terminal and for the report."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ..cluster.model.intervals import FEWEST_RESAMPLED, Estimates
from .comparison import Comparison

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["better", "worse", "open"]  # open: the interval holds 0, or there is none

STYLES: dict[Verdict, str] = {"better": "bold green", "worse": "bold red", "open": ""}


class Unit(NamedTuple):
    """What a metric is shown in."""

    name: str
    scale: float  # multiplies the metric's own unit
    decimals: int


class Cell(NamedTuple):
    """One figure as text."""

    text: str
    best: bool  # nobody has a better mean
    verdict: Verdict


class Row(NamedTuple):
    """One policy."""

    policy: str
    kind: Literal["best heuristic", "heuristic", "challenger"]
    cells: tuple[Cell, ...]  # one for each metric
    versus: Cell  # the objective's difference to the best heuristic in per cent
    interval: str  # of that difference
    worse_in: str  # share of scenarios


class Column(NamedTuple):
    """A column for the terminal."""

    title: str
    second: str  # unit, or more of the title
    cells: list[tuple[str, str]]  # (policies,) text and style


def unit_of(comparison: Comparison, metric: int) -> Unit:
    """Return the unit in which all policies' values of a metric are readable."""
    largest = float(np.abs(comparison.mean.value[:, metric]).max())
    quantity = comparison.metrics[metric].quantity
    if quantity == "share":
        return Unit("%", 100.0, 1)
    if quantity == "count":
        return Unit("", 1.0, _decimals(largest))
    name, scale = time_unit(largest)
    return Unit(f"GPU-{name}" if quantity == "GPU-time" else name, scale, _decimals(largest * scale))


def time_unit(largest_s: float) -> tuple[str, float]:
    """Return the unit in which times up to the largest are readable, and its factor to seconds."""
    if largest_s >= 2 * 3600:
        return "h", 1 / 3600
    return ("min", 1 / 60) if largest_s >= 120 else ("s", 1.0)


def _decimals(largest: float) -> int:
    if largest >= 1000:
        return 0
    return 1 if largest >= 10 else 2


def titles(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return each metric's title and the unit that it is shown in."""
    return tuple((metric.title, unit_of(comparison, index).name) for index, metric in enumerate(comparison.metrics))


def rows(comparison: Comparison) -> list[Row]:
    """Return the table's rows, best mean of the objective first."""
    return [_row(comparison, index) for index in range(len(comparison.policies))]


def _row(comparison: Comparison, policy: int) -> Row:
    name = comparison.policies[policy]
    if name == comparison.best_heuristic:
        versus = Cell("-", best=False, verdict="open")
        return Row(name, "best heuristic", _cells(comparison, policy), versus, interval="", worse_in="")
    return Row(
        policy=name,
        kind="heuristic" if name in comparison.heuristics else "challenger",
        cells=_cells(comparison, policy),
        versus=relative_cell(comparison, policy, comparison.objective),
        interval=interval_text(comparison.relative_percent, policy, comparison.objective),
        worse_in=f"{100 * comparison.worse_share[policy]:.0f} %",
    )


def _cells(comparison: Comparison, policy: int) -> tuple[Cell, ...]:
    return tuple(_mean_cell(comparison, policy, metric) for metric in range(len(comparison.metrics)))


def _mean_cell(comparison: Comparison, policy: int, metric: int) -> Cell:
    means, unit = comparison.mean.value[:, metric], unit_of(comparison, metric)
    best = means.max() if comparison.metrics[metric].better == "higher" else means.min()
    value, low, high = (float(part[policy, metric]) * unit.scale for part in comparison.mean)
    text = f"{value:.{unit.decimals}f}"
    if not np.isnan(low):
        text += f" ±{(high - low) / 2:.{unit.decimals}f}"
    return Cell(text, bool(means[policy] == best and np.ptp(means) > 0), verdict(comparison, policy, metric))


def verdict(comparison: Comparison, policy: int, metric: int) -> Verdict:
    """Return whether a policy is better or worse than the best heuristic.

    It is so where the interval of its difference leaves out 0, and its p-value adjusted for all cells of the table is
    below what the confidence leaves.
    """
    low, high = comparison.difference.low[policy, metric], comparison.difference.high[policy, metric]
    if not (low > 0 or high < 0) or not comparison.p[policy, metric] < 1 - comparison.confidence:
        return "open"
    return "better" if (low > 0) == (comparison.metrics[metric].better == "higher") else "worse"


def relative_cell(comparison: Comparison, policy: int, metric: int) -> Cell:
    """Return a policy's difference to the best heuristic in per cent, a dash where it is not defined."""
    means = comparison.relative_percent.value[:, metric]
    best = means.max() if comparison.metrics[metric].better == "higher" else means.min()
    return Cell(percent_text(float(means[policy])), bool(means[policy] == best), verdict(comparison, policy, metric))


def percent_text(percent: float) -> str:
    """Return a difference in per cent with its sign."""
    if np.isnan(percent):
        return "-"
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else "0.0 %"


def interval_text(percent: Estimates, row: int, column: int) -> str:
    """Return the interval of a difference in per cent, empty where there is none."""
    low, high = float(percent.low[row, column]), float(percent.high[row, column])
    return "" if np.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"


def caption(comparison: Comparison) -> str:
    """Return the sentence under the table that says how to read it."""
    objective = comparison.ranked_by.title
    scenarios = f"{comparison.scenarios} scenario{'s' if comparison.scenarios > 1 else ''}"
    if comparison.units < 2:
        return f"{scenarios}: no intervals. The last columns compare {objective} with {comparison.best_heuristic}."
    grouped = f" in {comparison.units} groups" if comparison.units < comparison.scenarios else ""
    kind = "bootstrap intervals" if comparison.units >= FEWEST_RESAMPLED else "t-intervals"
    return (
        f"{scenarios}{grouped}; means with {100 * comparison.confidence:g} % {kind}. "
        f"The last columns compare {objective} with {comparison.best_heuristic}, scenario by scenario."
    )


def terminal_tables(comparison: Comparison, width: int) -> list["Table"]:
    """Return the tables for a terminal of so many columns: figures, then differences to the best heuristic.

    A table that is too wide is cut into several, each with the policies' names. The best mean of each column is bold;
    a difference to the best heuristic is green or red where its interval leaves out 0.
    """
    parts = [*_parts(comparison, _mean_columns(comparison), width)]
    parts[-1].caption = caption(comparison)
    if len(comparison.policies) == 1:
        return parts
    differences = [*_parts(comparison, _difference_columns(comparison), width)]
    differences[0].title = f"\nDifference to {comparison.best_heuristic} in %, scenario by scenario"
    return [*parts, *differences]


def _mean_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of figures, then those that compare the objective with the best heuristic."""
    listed = rows(comparison)
    columns = [
        Column(title, unit, [(row.cells[metric].text, "bold" if row.cells[metric].best else "") for row in listed])
        for metric, (title, unit) in enumerate(titles(comparison))
    ]
    styles = [STYLES[row.versus.verdict] for row in listed]
    texts = ([row.versus.text for row in listed], [row.interval for row in listed], [row.worse_in for row in listed])
    colours = (styles, styles, [""] * len(listed))
    columns += [
        Column(title, second, list(zip(text, colour, strict=True)))
        for (title, second), text, colour in zip(versus_titles(comparison), texts, colours, strict=True)
    ]
    return columns


def _difference_columns(comparison: Comparison) -> list[Column]:
    """Return the difference to the best heuristic in per cent for each metric."""
    return [
        Column(
            metric.title,
            f"{metric.better} best",
            [_difference(comparison, policy, index) for policy in range(len(comparison.policies))],
        )
        for index, metric in enumerate(comparison.metrics)
    ]


def _difference(comparison: Comparison, policy: int, metric: int) -> tuple[str, str]:
    value, low, high = (float(part[policy, metric]) for part in comparison.relative_percent)
    if comparison.policies[policy] == comparison.best_heuristic or np.isnan(value):
        return "-", ""
    text = f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"
    if not np.isnan(low):
        text += f" ±{(high - low) / 2:.1f}"
    return text, STYLES[verdict(comparison, policy, metric)]


def _parts(comparison: Comparison, columns: list[Column], width: int) -> Iterator["Table"]:
    """Yield tables of as many columns as fit."""
    from rich.console import Console
    from rich.measure import Measurement

    endless = Console(width=10_000)
    shown: list[Column] = []
    for column in columns:
        table = _table(comparison, [*shown, column])
        if shown and Measurement.get(endless, endless.options, table).maximum > width:
            yield _table(comparison, shown)
            shown = []
        shown.append(column)
    yield _table(comparison, shown)


def _table(comparison: Comparison, columns: list[Column]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title_justify="left", caption_justify="left", title_style="bold"
    )
    table.add_column("\n\npolicy", overflow="fold", max_width=28)
    for column in columns:
        table.add_column(Text(_header(column.title, column.second)), justify="right", no_wrap=True)
    for index, row in enumerate(rows(comparison)):
        cells = [Text(text, style=style) for text, style in (column.cells[index] for column in columns)]
        table.add_row(Text(row.policy, style=_name_style(row)), *cells)
    return table


def _header(title: str, unit: str) -> str:
    """Return three lines at most 10 wide, so that the figures set the width of a column."""
    lines = [*textwrap.wrap(title, 10), unit]
    return "\n".join([""] * (3 - len(lines)) + lines)


def versus_titles(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return title and second line of the columns that compare with the best heuristic."""
    return (
        (comparison.ranked_by.title, "vs best"),
        (f"{100 * comparison.confidence:g} %", "interval"),
        ("scenarios", "worse"),
    )


def _name_style(row: Row) -> str:
    return {"challenger": "bold cyan", "best heuristic": "bold", "heuristic": ""}[row.kind]
