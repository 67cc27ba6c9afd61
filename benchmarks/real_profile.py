"""Performance profiles: in which share of windows a policy is at most so much worse than the best of those compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longshore.eval.figures import BEST_HEURISTIC_COLOUR, CHALLENGER_COLOURS, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The first is what policies are measured against, the second the policy that all of this is about.
COLOURS = (BEST_HEURISTIC_COLOUR, *CHALLENGER_COLOURS, "#56B4E9", "#000000")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", "-", (0, (5, 2)), (0, (1, 1.5)), "-.", "--")  # type: ignore[assignment]
WIDTH_INCHES, PANEL_INCHES = {1: 7.4, 2: 9.2}, 3.0  # by the panels beside each other; height of each
MOST_PERCENT, POINTS = 50.0, 251  # of a picture's axis


def profile(costs: NDArray[np.float64], percents: ArrayLike) -> NDArray[np.float64]:
    """Return in which share of the cases each policy costs at most some per cent more than the cheapest policy there.

    Args:
        costs: Shape (policies, cases), more than 0.
        percents: Shape (points,).

    Returns:
        Shape (policies, points), from 0 to 1.

    Source: Dolan and More, Benchmarking optimization software with performance profiles (2002).
    """
    excess = np.sort(100.0 * (costs / costs.min(axis=0) - 1.0), axis=1)
    counts = np.array([np.searchsorted(row, percents, side="right") for row in excess])
    reached: NDArray[np.float64] = counts / costs.shape[1]
    return reached


def draw_profiles(path: Path, panels: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draw a profile in each panel, whose policies have the same names and order in all of them.

    Args:
        path: Of the picture, an SVG.
        panels: By title, the costs of each policy in each case.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH_INCHES[columns], lines * PANEL_INCHES + 0.5), layout="constrained")
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for ax, (title, costs) in zip(axes.flat, panels.items(), strict=True):
            _draw_panel(ax, costs)
            ax.set_title(title)
        for ax in axes[-1]:
            ax.set_xlabel("worse than the best by at most (%)")
        for ax in axes[:, 0]:
            ax.set_ylabel("share of windows (%)")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=2 * columns)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(ax: "Axes", costs: Mapping[str, Sequence[float]]) -> None:
    percents = np.linspace(0.0, MOST_PERCENT, POINTS)
    shares = profile(np.array(list(costs.values()), dtype=np.float64), percents)
    for name, share, colour, dash in zip(costs, shares, COLOURS, DASHES, strict=False):
        ax.plot(
            percents, 100.0 * share, label=name, color=colour, linestyle=dash, linewidth=2.0, drawstyle="steps-post"
        )
    ax.set(xlim=(0.0, MOST_PERCENT), ylim=(0.0, 102.0))
    ax.grid()
