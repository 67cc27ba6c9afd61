"""A comparison and a run as tables, for the terminal and the report, and the losses of a policy in sentences."""

import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from ..cluster.model.intervals import FEWEST_RESAMPLED, IntervalEstimates
from ..cluster.model.outcome import Outcome
from ..cluster.model.problem import Scenarios
from ..cluster.model.workload import TraceStatistics
from ..cluster.workloads.estimates import EstimateErrors
from .comparison import CONFIDENCE, Comparison, scenario_metrics

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Verdict = Literal["better", "worse", "open"]  # open: the interval holds 0, or there is none

VERDICT_STYLES: dict[Verdict, str] = {"better": "bold green", "worse": "bold red", "open": ""}


class Unit(NamedTuple):
    """What a metric is shown in."""

    name: str
    scale: float  # multiplies the metric's own unit
    decimals: int


class Cell(NamedTuple):
    """One figure as text."""

    text: str
    best: bool  # no policy has a better mean
    verdict: Verdict


class Row(NamedTuple):
    """One policy."""

    policy: str
    kind: Literal["best heuristic", "heuristic", "challenger"]
    cells: tuple[Cell, ...]  # one for each metric
    versus: Cell  # the objective's difference to the best heuristic in per cent
    interval: str  # of that difference
    worse_in: str  # share of scenarios


class ComparisonColumn(NamedTuple):
    """A column for the terminal."""

    title: str
    second: str  # unit, or more of the title
    cells: list[tuple[str, str]]  # (policies,) text and style


def metric_unit(comparison: Comparison, metric: int) -> Unit:
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


def metric_titles(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return each metric's title and the unit that it is shown in."""
    return tuple((metric.title, metric_unit(comparison, index).name) for index, metric in enumerate(comparison.metrics))


def table_rows(comparison: Comparison) -> list[Row]:
    """Return the table's rows, best mean of the objective first."""
    return [_table_row(comparison, index) for index in range(len(comparison.policies))]


def _table_row(comparison: Comparison, policy: int) -> Row:
    name = comparison.policies[policy]
    if name == comparison.best_heuristic:
        versus = Cell("-", best=False, verdict="open")
        return Row(name, "best heuristic", _mean_cells(comparison, policy), versus, interval="", worse_in="")
    return Row(
        policy=name,
        kind="heuristic" if name in comparison.heuristics else "challenger",
        cells=_mean_cells(comparison, policy),
        versus=relative_cell(comparison, policy, comparison.objective),
        interval=interval_text(comparison.relative_percent, policy, comparison.objective),
        worse_in=f"{100 * comparison.worse_share[policy]:.0f} %",
    )


def _mean_cells(comparison: Comparison, policy: int) -> tuple[Cell, ...]:
    return tuple(_mean_cell(comparison, policy, metric) for metric in range(len(comparison.metrics)))


def _mean_cell(comparison: Comparison, policy: int, metric: int) -> Cell:
    means, unit = comparison.mean.value[:, metric], metric_unit(comparison, metric)
    best = means.max() if comparison.metrics[metric].better == "higher" else means.min()
    value, low, high = (float(part[policy, metric]) * unit.scale for part in comparison.mean)
    text = f"{value:.{unit.decimals}f}"
    if not np.isnan(low):
        text += f" ±{(high - low) / 2:.{unit.decimals}f}"
    return Cell(text, bool(means[policy] == best and np.ptp(means) > 0), verdict(comparison, policy, metric))


def verdict(comparison: Comparison, policy: int, metric: int) -> Verdict:
    """Return whether a policy is better or worse than the best heuristic.

    It is so where the interval of its difference excludes 0, and its p-value adjusted for all cells of the table is
    below what the confidence leaves.
    """
    low, high = comparison.difference.low[policy, metric], comparison.difference.high[policy, metric]
    if not (low > 0 or high < 0) or not comparison.p[policy, metric] < 1 - CONFIDENCE:
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


def interval_text(percent: IntervalEstimates, row: int, column: int) -> str:
    """Return the interval of a difference in per cent, empty where there is none."""
    low, high = float(percent.low[row, column]), float(percent.high[row, column])
    return "" if np.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"


def table_caption(comparison: Comparison) -> str:
    """Return the sentence under the table on how to read it."""
    objective = comparison.objective_metric.title
    scenarios = f"{comparison.scenarios} scenario{'s' if comparison.scenarios > 1 else ''}"
    if comparison.units < 2:
        return f"{scenarios}: no intervals. The last columns compare {objective} with {comparison.best_heuristic}."
    grouped = f" in {comparison.units} groups" if comparison.units < comparison.scenarios else ""
    kind = "bootstrap intervals" if comparison.units >= FEWEST_RESAMPLED else "t-intervals"
    return (
        f"{scenarios}{grouped}; means with {100 * CONFIDENCE:g} % {kind}. "
        f"The last columns compare {objective} with {comparison.best_heuristic}, scenario by scenario."
    )


def terminal_tables(comparison: Comparison, width: int) -> list["Table"]:
    """Return the tables for a terminal of a width in columns: figures, then differences to the best heuristic.

    A table that is too wide is cut into several, each with the policies' names. The best mean of each column is bold;
    a difference to the best heuristic is green or red where its interval excludes 0.
    """
    parts = [*_fitting_tables(comparison, _mean_columns(comparison), width)]
    parts[-1].caption = table_caption(comparison)
    if len(comparison.policies) == 1:
        return parts
    differences = [*_fitting_tables(comparison, _difference_columns(comparison), width)]
    differences[0].title = f"\nDifference to {comparison.best_heuristic} in %, scenario by scenario"
    return [*parts, *differences]


def _mean_columns(comparison: Comparison) -> list[ComparisonColumn]:
    """Return the columns of figures, then those that compare the objective with the best heuristic."""
    listed = table_rows(comparison)
    columns = [
        ComparisonColumn(
            title, unit, [(row.cells[metric].text, "bold" if row.cells[metric].best else "") for row in listed]
        )
        for metric, (title, unit) in enumerate(metric_titles(comparison))
    ]
    styles = [VERDICT_STYLES[row.versus.verdict] for row in listed]
    texts = ([row.versus.text for row in listed], [row.interval for row in listed], [row.worse_in for row in listed])
    colours = (styles, styles, [""] * len(listed))
    columns += [
        ComparisonColumn(title, second, list(zip(text, colour, strict=True)))
        for (title, second), text, colour in zip(versus_titles(comparison), texts, colours, strict=True)
    ]
    return columns


def _difference_columns(comparison: Comparison) -> list[ComparisonColumn]:
    """Return the difference to the best heuristic in per cent for each metric."""
    return [
        ComparisonColumn(
            metric.title,
            f"{metric.better} best",
            [_difference_cell(comparison, policy, index) for policy in range(len(comparison.policies))],
        )
        for index, metric in enumerate(comparison.metrics)
    ]


def _difference_cell(comparison: Comparison, policy: int, metric: int) -> tuple[str, str]:
    value, low, high = (float(part[policy, metric]) for part in comparison.relative_percent)
    if comparison.policies[policy] == comparison.best_heuristic or np.isnan(value):
        return "-", ""
    text = f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"
    if not np.isnan(low):
        text += f" ±{(high - low) / 2:.1f}"
    return text, VERDICT_STYLES[verdict(comparison, policy, metric)]


def _fitting_tables(comparison: Comparison, columns: list[ComparisonColumn], width: int) -> Iterator["Table"]:
    """Yield tables, each of the columns that fit."""
    from rich.console import Console
    from rich.measure import Measurement

    endless = Console(width=10_000)
    shown: list[ComparisonColumn] = []
    for column in columns:
        table = _terminal_table(comparison, [*shown, column])
        if shown and Measurement.get(endless, endless.options, table).maximum > width:
            yield _terminal_table(comparison, shown)
            shown = []
        shown.append(column)
    yield _terminal_table(comparison, shown)


def _terminal_table(comparison: Comparison, columns: list[ComparisonColumn]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title_justify="left", caption_justify="left", title_style="bold"
    )
    table.add_column("\n\npolicy", overflow="fold", max_width=28)
    for column in columns:
        table.add_column(Text(_three_line_header(column.title, column.second)), justify="right", no_wrap=True)
    name_styles = {"challenger": "bold cyan", "best heuristic": "bold", "heuristic": ""}
    for index, row in enumerate(table_rows(comparison)):
        cells = [Text(text, style=style) for text, style in (column.cells[index] for column in columns)]
        table.add_row(Text(row.policy, style=name_styles[row.kind]), *cells)
    return table


def _three_line_header(title: str, unit: str) -> str:
    """Return three lines at most 10 wide, so that the figures set the width of a column."""
    lines = [*textwrap.wrap(title, 10), unit]
    return "\n".join([""] * (3 - len(lines)) + lines)


def versus_titles(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return title and second line of the columns that compare with the best heuristic."""
    return (
        (comparison.objective_metric.title, "vs best"),
        (f"{100 * CONFIDENCE:g} %", "interval"),
        ("scenarios", "worse"),
    )


ShowStatus: TypeAlias = Callable[[str], None]  # shows the step in progress
OpenStatus: TypeAlias = Callable[[str], AbstractContextManager[ShowStatus]]  # shows the first step, and then the others

CompileFirst: TypeAlias = Callable[[list[str]], None]  # takes what `compile_ahead` takes


def compile_nothing(rehearsals: list[str]) -> None:
    """Compile nothing in advance: each kernel is compiled when it is called."""


def print_run(
    console: "Console", outcome: Outcome, scenarios: Scenarios, cluster_gpus: int, ageing_s: float = math.inf
) -> None:
    """Print the figures of one scenario's run; with an ageing bound, also how many jobs waited longer."""
    figures = scenario_metrics(outcome, scenarios, cluster_gpus)
    unit, scale = time_unit(float(figures.makespan_s[0]))
    rows = {
        "makespan": f"{figures.makespan_s[0] * scale:.2f} {unit}",
        "mean JCT": f"{figures.mean_jct_s[0] * scale:.2f} {unit}",
        "p99 JCT": f"{figures.p99_jct_s[0] * scale:.2f} {unit}",
        "useful utilisation": f"{100 * figures.useful_utilisation[0]:.1f} %",
        "GPU-hours lost to faults": f"{figures.lost_gpu_s[0] / 3600:.1f}",
        "restarts": f"{figures.restarts[0]:.0f}",
        "longest wait": f"{figures.longest_wait_s[0] * scale:.2f} {unit}",
    }
    if outcome.slowed[0]:
        rows["slow nodes met by running jobs"] = f"{outcome.slowed[0]}"
        rows["backups"] = f"{outcome.backups[0]} ({outcome.backup_gpu_s[0] / 3600:.1f} GPU-hours)"
    if ageing_s < math.inf:
        # 1e-9: a job that starts when it reaches the bound may by rounding have waited a little more.
        longer = int((outcome.wait_s[0] > ageing_s * (1 + 1e-9)).sum())
        rows["waited over the bound"] = f"{longer} of {scenarios.jobs[0]} jobs (bound: {ageing_s / 3600:g} h)"
    _print_rows(console, rows)


def print_trace_statistics(console: "Console", name: str, statistics: TraceStatistics, gpus: int | None) -> None:
    """Print what a trace holds; with `gpus`, also the load that it offers to that number of them."""
    sizes = "  ".join(f"{size}: {count}" for size, count in statistics.sizes[:16])
    rows = {
        "format": name,
        "jobs": f"{statistics.jobs} ({statistics.left_out} rows dropped)",
        "span": f"{statistics.span_s / 86400:.1f} days",
        "work": f"{statistics.gpu_hours:,.0f} GPU-hours",
        "run time": f"mean {statistics.mean_work_s / 3600:.2f} h; "
        + ", ".join(f"{100 * at:.0f} %: {work_s / 3600:.2f} h" for at, work_s in statistics.work_s),
        "arrivals": _arrivals_text(statistics),
        "GPUs: jobs": sizes + ("  ..." if len(statistics.sizes) > 16 else ""),
    }
    if gpus:
        load = statistics.offered_load(gpus)
        rows["load"] = (
            f"{load:.2f} on {gpus} GPUs" if math.isfinite(load) else "none over time, as all jobs arrive at once"
        )
    _print_rows(console, rows)


def print_estimate_errors(console: "Console", errors: dict[str, EstimateErrors]) -> None:
    """Print how far each kind of estimate is off, as |ln(estimate / run time)| and as a factor."""
    rows = {"estimates": "median    90 %   (of |ln(estimate / run time)|; as a factor in brackets)"} | {
        f"  {kind}": "  ".join(f"{off:.2f} ({math.exp(off):.3g} x)" for off in each) for kind, each in errors.items()
    }
    _print_rows(console, rows)


def _arrivals_text(statistics: TraceStatistics) -> str:
    if math.isnan(statistics.gap_variation):
        return "all at once"
    return f"coefficient of variation of gaps {statistics.gap_variation:.1f} (1 is Poisson)"


def _print_rows(console: "Console", rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for title, text in rows.items():
        console.print(f"{title:{width}}  {text}", soft_wrap=True)


MAX_NAMED_SCENARIOS = 5  # scenarios that are named one by one


def loss_sentences(comparison: Comparison, policy: str) -> list[str]:
    """Return one sentence for each kind of loss of a policy; empty if it loses nowhere.

    Counted are heuristics with a better mean of the objective, scenarios in which the best heuristic is better, metrics
    and job sizes with a worse mean than the best heuristic's, clear or not.
    """
    row = comparison.policies.index(policy)
    found = [_better_heuristics_text(comparison, row), _worse_scenarios_text(comparison, row)]
    return [
        sentence
        for sentence in (*found, *_worse_metrics(comparison, row), *_worse_job_sizes(comparison, row))
        if sentence
    ]


def _better_heuristics_text(comparison: Comparison, row: int) -> str:
    better = [name for name in comparison.policies[:row] if name in comparison.heuristics]
    if not better:
        return ""
    return f"Heuristics with a better mean {comparison.objective_metric.title}: {', '.join(better)}."


def _worse_scenarios_text(comparison: Comparison, row: int) -> str:
    best = comparison.policies.index(comparison.best_heuristic)
    worse = round(comparison.worse_share[row] * comparison.scenarios)
    if not worse:
        return ""
    sign = -1 if comparison.objective_metric.better == "higher" else 1
    base = comparison.values[best, comparison.objective]
    change = 100 * (comparison.values[row, comparison.objective] - base) / np.where(base == 0, np.nan, base)
    order = np.argsort(np.nan_to_num(-sign * change), kind="stable")[: min(worse, MAX_NAMED_SCENARIOS)]
    named = ", ".join(f"scenario {index} ({percent_text(float(change[index]))})" for index in order)
    share = f"{worse} of {comparison.scenarios} scenarios ({100 * comparison.worse_share[row]:.0f} %)"
    return f"Worse {comparison.objective_metric.title} than {comparison.best_heuristic} in {share}; worst: {named}."


def _worse_metrics(comparison: Comparison, row: int) -> list[str]:
    found = []
    for index, metric in enumerate(comparison.metrics):
        change = comparison.difference.value[row, index]
        if change < 0 if metric.better == "higher" else change > 0:
            clear = verdict(comparison, row, index) == "worse"
            change = _change_text(comparison.relative_percent, row, index)
            found.append(f"Worse in {metric.title}: {change}{_clearness_text(comparison, clear=clear)}.")
    return found


def _worse_job_sizes(comparison: Comparison, row: int) -> list[str]:
    sizes, found = comparison.job_sizes, []
    for index, title in enumerate(sizes.title):
        if sizes.relative_percent.value[row, index] > 0:
            significant = sizes.p[row, index] < 1 - CONFIDENCE
            clear = bool(sizes.relative_percent.low[row, index] > 0 and significant)
            change = _change_text(sizes.relative_percent, row, index)
            found.append(f"Longer mean JCT of jobs with {title}: {change}{_clearness_text(comparison, clear=clear)}.")
    return found


def _change_text(percent: IntervalEstimates, row: int, column: int) -> str:
    return f"{percent_text(float(percent.value[row, column]))} {interval_text(percent, row, column)}".rstrip()


def _clearness_text(comparison: Comparison, *, clear: bool) -> str:
    if comparison.units < 2:
        return ""
    return ", a clear loss" if clear else ", not clear"
