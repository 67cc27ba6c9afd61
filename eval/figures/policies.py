"""Figures of policies side by side, over all scenarios."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.outcome import Outcome
from ...cluster.model.scenarios import Scenarios
from ..comparison import Comparison
from ..table import time_unit
from .drawing import (
    BEST_HEURISTIC_COLOUR,
    DOWN_COLOUR,
    DOWN_FACE,
    OTHER_COLOUR,
    WIDTH_INCHES,
    Picture,
    policy_colours,
    short,
    style,
    svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_STEPS = 300  # of a line; more are not seen at the width of a page
PANELS = 3  # beside each other
EDGE = 1.06  # a panel's axis by the largest value that is drawn: so that no mark is cut at its edge


def forest(comparison: Comparison) -> Picture:
    """Return the relative difference of every policy to the best heuristic, with intervals, for every metric."""
    from matplotlib.figure import Figure

    rows = [index for index, name in enumerate(comparison.policies) if name != comparison.best_heuristic]
    with style():
        metrics = len(comparison.metrics)
        lines = -(-metrics // PANELS)
        figure = Figure(figsize=(WIDTH_INCHES, lines * (1.25 + 0.22 * len(rows))))
        figure.set_layout_engine("constrained", hspace=0.06, wspace=0.05)
        panels = list(figure.subplots(lines, PANELS, sharey=True, squeeze=False).flat)
        for metric, ax in enumerate(panels[:metrics]):
            _forest_panel(ax, comparison, metric, rows)
        for unused in panels[metrics:]:
            unused.remove()
        figure.supxlabel(f"difference to {comparison.best_heuristic} in %", fontsize=10, color="#374151")
        interval = (
            f" with {100 * comparison.confidence:g} % intervals (one that leaves out 0 is a clear difference)"
            if comparison.units > 1
            else ""
        )
        caption = (
            f"Each policy against {comparison.best_heuristic}, the best heuristic, on the same scenarios: difference "
            f"of the means{interval}. Filled: better; open: worse. The blue line is the best heuristic. An "
            "arrow stands for what lies outside the panel, also of an interval."
        )
        return svg(figure, "differences", "Every policy against the best heuristic", caption)


def _forest_panel(ax: "Axes", comparison: Comparison, metric: int, rows: list[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = policy_colours(comparison)
    limit = _forest_limit(comparison, metric)
    sign = 1 if comparison.metrics[metric].better == "higher" else -1
    ax.axvline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
    for y, row in enumerate(rows):
        value, low, high = (float(part[row, metric]) for part in comparison.relative_percent)
        colour = colours[comparison.policies[row]]
        if abs(value) > limit:
            _off_scale(ax, value, y, limit)
        elif np.isfinite(value):
            if np.isfinite(low):
                _interval(ax, low, high, y, limit, colour)
            face = colour if sign * value > 0 else "white"
            ax.plot(value, y, "o", markersize=5.5, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.4)
    ax.set(xlim=(-EDGE * limit, EDGE * limit), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), [short(comparison.policies[row]) for row in rows])
    ax.set_title(f"{comparison.metrics[metric].title}   ({comparison.metrics[metric].better} is better)")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def _interval(ax: "Axes", low: float, high: float, y: int, limit: float, colour: str) -> None:
    """Draw an interval, with an arrow where it goes on outside of the panel."""
    ends = max(low, -limit), min(high, limit)
    ax.plot(ends, [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    for end, is_outside, mark in ((ends[0], low < -limit, "<"), (ends[1], high > limit, ">")):
        if is_outside:
            ax.plot(end, y, mark, color=colour, markersize=5, markeredgewidth=0)


def _forest_limit(comparison: Comparison, metric: int) -> float:
    """Return the end of a panel's axis: room for the challengers and the better half, not for the worst baseline."""
    rows = [comparison.policies.index(name) for name in comparison.challengers]
    rows += range((len(comparison.policies) + 1) // 2)
    ends = np.abs([part[rows, metric] for part in comparison.relative_percent])
    return 1.15 * max(1.0, float(np.max(ends, where=np.isfinite(ends), initial=0.0)))


def _off_scale(ax: "Axes", value: float, y: int, limit: float) -> None:
    right = value > 0
    text = f"{value:+.0f} % \u2192" if right else f"\u2190 {value:+.0f} %"
    side: Literal["right", "left"] = "right" if right else "left"
    ax.text(limit if right else -limit, y, text, ha=side, va="center", color="#4b5563", fontsize=8.5)


def differences(comparison: Comparison, policy: str) -> Picture:
    """Return where a policy and the best heuristic differ: scenario by scenario, and by the size of the jobs."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _scenario_panel(left, comparison, policy)
        _size_panel(right, comparison, policy)
        caption = (
            f"{policy} against {comparison.best_heuristic}. Left: each scenario's difference, sorted; hatched bars are "
            "scenarios in which it is worse. Right: change of mean JCT by the number of GPUs that a job needs."
        )
        return svg(figure, "workloads", f"Where {policy} wins and where it loses", caption)


def _scenario_panel(ax: "Axes", comparison: Comparison, policy: str) -> None:
    base = comparison.values[comparison.policies.index(comparison.best_heuristic), comparison.objective]
    value = comparison.values[comparison.policies.index(policy), comparison.objective]
    percent = np.sort(100 * (value - base) / np.where(base == 0, np.nan, base))
    percent = percent[np.isfinite(percent)]
    worse = percent < 0 if comparison.ranked_by.better == "higher" else percent > 0
    colour, place = policy_colours(comparison)[policy], np.arange(percent.size)
    width = 0.85 if percent.size <= 150 else 1.0
    ax.bar(place[~worse], percent[~worse], width, color=colour)
    ax.bar(place[worse], percent[worse], width, color=DOWN_FACE, edgecolor=DOWN_COLOUR, hatch="////", linewidth=0.6)
    ax.axhline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
    ax.set_title(f"{comparison.ranked_by.title}: worse in {int(worse.sum())} of {percent.size} scenarios")
    ax.set(xlabel="scenarios, sorted", ylabel="difference in %", xticks=[], xlim=(-0.6, max(percent.size, 1) - 0.4))
    ax.grid(axis="y")


def _size_panel(ax: "Axes", comparison: Comparison, policy: str) -> None:
    sizes, row = comparison.job_sizes, comparison.policies.index(policy)
    colour = policy_colours(comparison)[policy]
    value, low, high = (part[row] for part in sizes.relative_percent)
    y = np.arange(len(sizes.title))
    ax.axvline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
    ax.hlines(y, low, high, color=colour, linewidth=2)
    ax.scatter(value, y, s=34, color=np.where(value < 0, colour, "white"), edgecolor=colour, linewidth=1.4, zorder=3)
    labels = [
        f"{title}\n{jobs} job{'s' if jobs > 1 else ''}" for title, jobs in zip(sizes.title, sizes.jobs, strict=True)
    ]
    ax.set_yticks(y, labels, fontsize=8.5)
    ax.set_ylim(y.size - 0.5, -0.5)
    ax.set_title("mean JCT by job size")
    ax.set_xlabel("difference in %")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def jct_distribution(comparison: Comparison, outcomes: Mapping[str, Outcome], scenarios: Scenarios) -> Picture:
    """Return the share of jobs that are done within a time, all scenarios together, for every policy."""
    from matplotlib.figure import Figure

    real = np.arange(scenarios.gpus.shape[1]) < scenarios.jobs[:, None]
    jct = {name: np.sort((outcomes[name].finish_s - scenarios.submit_s)[real]) for name in comparison.policies}
    name, scale = time_unit(float(np.median([column[-1] for column in jct.values()])))
    with style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.9), layout="constrained")
        ax = figure.subplots()
        _draw_steps(ax, comparison, jct, scale)
        smallest = min(np.percentile(column, 1) for column in jct.values()) * scale
        if smallest > 0:
            ax.set_xscale("log")
            ax.set_xlim(left=smallest)
            ax.xaxis.set_major_formatter("{x:g}")
        ax.set(xlabel=f"job completion time ({name})", ylabel="share of jobs done", ylim=(0, 1.0))
        ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        ax.grid()
        caption = "For every policy, the share of all jobs that were done within a time after their submission."
        return svg(figure, "jct", "Job completion times", f"{caption} Further left is better.")


def _draw_steps(ax: "Axes", comparison: Comparison, jct: Mapping[str, NDArray[np.float64]], scale: float) -> None:
    colours, others = policy_colours(comparison), 0
    for name in reversed(comparison.policies):  # the best are drawn last, on top
        column = jct[name]
        keep = np.unique(np.linspace(0, column.size - 1, min(column.size, MOST_STEPS)).astype(np.int64))
        plain = colours[name] == OTHER_COLOUR
        label = ("other policies" if not others else None) if plain else name
        others += plain
        share = (keep + 1) / column.size
        ax.step(
            column[keep] * scale, share, color=colours[name], label=label, linewidth=0.9 if plain else 2, where="post"
        )
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], [short(label) for label in labels[::-1]], loc="upper left")
