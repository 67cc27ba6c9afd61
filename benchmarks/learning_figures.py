"""The pictures of docs/results.md: learning curves, and what rollouts gain for their time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from longshore.eval.figures import BEST_HEURISTIC_COLOUR, CHALLENGER_COLOURS, STYLE

from .learning_pages import Point, Standing, common_rival, picture_name, points, standings
from .learning_ways import DISTILLED, SEARCHES, SECTIONS, Runs, Trial, rival_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (*CHALLENGER_COLOURS, "#56B4E9", "#000000")  # of Okabe and Ito, but for the rival's
MARKERS = "osD^vP"
SIZE_INCHES = (6.4, 4.4)  # narrow, so that the letters can be read on a phone
LABEL_GAP = 0.065  # between two labels, as a share of the height
MOST_PERCENT = 20.0  # worse ways end above the picture, else the others could not be distinguished
ROOM_ABOVE = 0.6  # over the worst end of a curve, as a share of what lies between the ends and the best


def draw_pictures(folder: Path, runs: Runs, trials: Sequence[Trial], seeds: int, share: float) -> None:
    """Draw all pictures of the page; those without any finished run are left out."""
    for section in SECTIONS:
        if found := standings(runs, section, seeds, share):
            rival = common_rival(found)
            rival_h = runs[rival_key(section.preset, rival)].validation[0][1]
            draw_curves(folder / picture_name(section.title), found, rival, rival_h)
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
        top, low = max(end for end in ends.values() if end <= MOST_PERCENT), min(lows)
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
    shares = np.minimum((np.array(list(ends.values())) - low) / (high - low), 1.0)
    for (name, end), height, colour in zip(ends.items(), spread(shares, LABEL_GAP), colours, strict=False):
        text = name if end <= high else f"{name} ({end:+.0f} % \u2191)"
        ax.text(1.02, float(height), text, color=colour, transform=ax.transAxes, va="center")


def spread(heights: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Return heights that are at least a gap apart, in the same order, and as near to the given ones as can be."""
    from scipy.optimize import isotonic_regression

    order, gaps = np.argsort(heights, kind="stable"), gap * np.arange(heights.size)
    apart = np.empty_like(heights)
    apart[order] = isotonic_regression(heights[order] - gaps).x + gaps
    return apart


def draw_rollouts(path: Path, found: Sequence[Point]) -> None:
    """Draw what rollouts gain over `patient` against the time for a decision, a panel for each setting that varies."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    settings = list(dict.fromkeys(name for point in found for name in point.trial.search)) or ["futures"]
    width, height = SIZE_INCHES
    with mpl.rc_context({**STYLE, "font.size": 11}):  # type: ignore[dict-item]
        figure = Figure(figsize=(width, 0.75 * height * len(settings)), layout="constrained")
        axes = figure.subplots(len(settings), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, setting in zip(axes, settings, strict=True):
            for base, colour, marker in zip(SEARCHES, COLOURS, MARKERS, strict=False):
                _draw_base(ax, [point for point in found if point.trial.base == base], setting, colour + marker)
            ax.set_title(f"by {setting}, the numbers at the points")
            ax.set(xscale="log", ylabel="makespan against\npatient in %")
            ax.grid()
        axes[-1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes[-1].xaxis.set_major_formatter("{x:g}")
        axes[-1].xaxis.set_minor_formatter("")
        axes[-1].set_xlabel("time for a decision on one core, ms")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        _save(figure, path)


def _draw_base(ax: "Axes", found: Sequence[Point], setting: str, style: str) -> None:
    """Draw the rollouts of one base that differ by a setting alone, with their intervals, and the base as a level."""
    colour, marker = style[:-1], style[-1]
    shown = sorted(_varied(found, setting), key=lambda point: point.trial.search[setting])
    for point in found:
        if not point.trial.search:
            level, name = point.against_patient.percent, f"{point.trial.base} alone"
            ax.axhline(level, color=colour, linewidth=1.6, linestyle=(0, (5, 3)), label=name)
    if not shown:
        return
    ms = [point.decision_ms for point in shown]
    value, low, high = np.array([point.against_patient for point in shown]).T
    ax.vlines(ms, low, high, color=colour, linewidth=1.4, alpha=0.35)
    ax.plot(ms, value, marker=marker, color=colour, markersize=6, label=f"rollouts of {shown[0].trial.base}")
    for place, point in enumerate(shown):
        # Above and below in turn, as neighbours may coincide.
        offset = (5, 6) if place % 2 == 0 else (5, -13)
        text = f"{point.trial.search[setting]:g}"
        ax.annotate(text, (ms[place], value[place]), offset, textcoords="offset points", fontsize=9.5, color=colour)


def _varied(found: Sequence[Point], setting: str) -> list[Point]:
    """Return the rollouts that are as the usual ones, which come first, but for one setting."""

    def others(point: Point) -> dict[str, float]:
        return {name: value for name, value in point.trial.search.items() if name != setting}

    tried = [point for point in found if point.trial.search]
    return [point for point in tried if setting in point.trial.search and others(point) == others(tried[0])]


def _save(figure: "Figure", path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
