"""The pictures of docs/results.md: learning curves, and what rollouts gain for their time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from longshore.eval.figures import BEST_HEURISTIC_COLOUR, CHALLENGER_COLOURS, STYLE

from .learning_pages import Point, Standing, common_rival, picture_name, points, standings
from .learning_ways import DISTILLED, SECTIONS, Runs, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (*CHALLENGER_COLOURS, "#56B4E9", "#000000")  # of Okabe and Ito, but for the rival's
MARKERS = "osD^vP"
SIZE_INCHES = (6.4, 4.4)  # narrow, so that the letters can be read on a phone
LABEL_GAP = 0.065  # between two labels, as a share of the height
ROOM_ABOVE = 0.6  # over the worst end of a curve, as a share of what lies between the ends and the best


def draw_pictures(folder: Path, runs: Runs, trials: Sequence[Trial], seeds: int, share: float) -> None:
    """Draw all pictures of the page; those without any finished run are left out."""
    for section in SECTIONS:
        if found := standings(runs, section, seeds, share):
            rival = common_rival(found)
            draw_curves(folder / picture_name(section.title), found, rival, runs[rival].validation[0][1])
    if tried := points(runs, trials):
        draw_rollouts(folder / picture_name("Rollouts"), tried)


def draw_curves(path: Path, found: Sequence[Standing], rival: str, rival_h: float) -> None:
    """Draw the validations of several ways over their steps, against a rival's mean makespan in hours."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "font.size": 11}):  # type: ignore[dict-item]
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        ax = figure.subplots()
        ax.axhline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
        ends, lows = {rival: 0.0}, [0.0]
        for it, colour, marker in zip(found, COLOURS, MARKERS, strict=False):
            percent = 100.0 * (it.validation_h / rival_h - 1.0)
            ends[it.name] = _draw_way(ax, it, percent, colour, marker)
            lows.append(float(percent.min()))
        top, low = max(ends.values()), min(lows)
        ax.set_ylim(low - 0.05 * (top - low), top + max(ROOM_ABOVE * (top - low), 0.5))
        ax.set(xlabel="environment steps, thousands", ylabel=f"makespan against {rival} in %")
        ax.set_xlim(left=0)
        ax.grid(axis="y")
        _label_ends(ax, ends, [BEST_HEURISTIC_COLOUR, *COLOURS])
        _save(figure, path)


def _draw_way(ax: "Axes", it: Standing, percent: NDArray[np.float64], colour: str, marker: str) -> float:
    """Draw one way and return where it ends; what was only taught has no steps, and is drawn as a level."""
    if it.options == DISTILLED:
        level = float(percent.min(axis=1).mean())
        ax.axhline(level, color=colour, linewidth=1.6, linestyle=(0, (5, 3)))
        return level
    steps, mean = it.steps / 1e3, percent.mean(axis=0)
    ax.fill_between(steps, percent.min(axis=0), percent.max(axis=0), color=colour, alpha=0.18, linewidth=0)
    ax.plot(steps, mean, color=colour, linewidth=2, marker=marker, markersize=4.5)
    return float(mean[-1])


def _label_ends(ax: "Axes", ends: dict[str, float], colours: Sequence[str]) -> None:
    """Write the name of each line at its right end."""
    low, high = ax.get_ylim()
    heights = spread((np.array(list(ends.values())) - low) / (high - low), LABEL_GAP)
    for (name, _), height, colour in zip(ends.items(), heights, colours, strict=False):
        ax.text(1.02, float(height), name, color=colour, transform=ax.transAxes, va="center")


def spread(heights: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Return heights in the same order that are at least a gap apart, with the same mean."""
    order = np.argsort(heights, kind="stable")
    moved = heights[order].copy()
    for place in range(1, moved.size):
        moved[place] = max(moved[place], moved[place - 1] + gap)
    apart = np.empty_like(heights)
    apart[order] = moved + (heights.mean() - moved.mean())
    return apart


def draw_rollouts(path: Path, found: Sequence[Point]) -> None:
    """Draw what rollouts gain over `patient` against the time for a decision."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "font.size": 11}):  # type: ignore[dict-item]
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        ax = figure.subplots()
        ax.axhline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
        bases = list(dict.fromkeys(point.trial.base for point in found))
        for base, colour, marker in zip(bases, COLOURS, MARKERS, strict=False):
            _draw_base(ax, [point for point in found if point.trial.base == base], colour, marker)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set(xlabel="time for a decision on one core, ms", ylabel="makespan against patient in %")
        ax.grid()
        ax.legend(loc="upper right")
        _save(figure, path)


def _draw_base(ax: "Axes", found: Sequence[Point], colour: str, marker: str) -> None:
    """Draw the points of one base with their intervals; the base alone is open, the others say futures x width."""
    for point in found:
        value, low, high = (float(part[0]) for part in point.against_patient)
        search, ms = point.trial.search, point.decision_ms
        ax.plot([ms, ms], [low, high], color=colour, linewidth=1.4, alpha=0.5)
        ax.plot(
            ms, value, marker, color=colour, markersize=7, markerfacecolor=colour if search else "white",
            label=None if search else f"{point.trial.base} (open: without rollouts)",
        )  # fmt: skip
        if search:
            text = f"{search['futures']}x{search['width']}"
            ax.annotate(text, (ms, value), (5, 3), textcoords="offset points", fontsize=8.5, color=colour)


def _save(figure: "Figure", path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
