"""What all figures have in common: colours, style, and the files they become."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any common colour blindness tell apart (Color Universal Design, 2008).
BEST_HEURISTIC_COLOUR = "#0072B2"
CHALLENGER_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00")
OTHER_COLOUR = "#8f959c"
DOWN_COLOUR, DOWN_FACE = "#a50f15", "#fcd5ce"
WIDTH_INCHES = 10.0

STYLE: dict[str, object] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7280",
    "axes.labelcolor": "#374151",
    "axes.axisbelow": True,
    "xtick.color": "#6b7280",
    "ytick.color": "#6b7280",
    "xtick.labelcolor": "#374151",
    "ytick.labelcolor": "#374151",
    "grid.color": "#e5e7eb",
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # names of policies come from outside and may hold a dollar sign
    "svg.hashsalt": "longshore",  # else the same figure differs from run to run
}


class Picture(NamedTuple):
    """A figure, drawn."""

    name: str  # of its file, with the ending
    title: str
    caption: str  # what it shows and how to read it
    mime: Literal["image/svg+xml", "image/png"]
    data: bytes


def policy_colours(comparison: Comparison) -> dict[str, str]:
    """Return the colour of each policy, the same in all figures."""
    colours = dict.fromkeys(comparison.policies, OTHER_COLOUR)
    colours[comparison.best_heuristic] = BEST_HEURISTIC_COLOUR
    for index, name in enumerate(comparison.challengers):
        colours[name] = CHALLENGER_COLOURS[index % len(CHALLENGER_COLOURS)]
    return colours


@contextmanager
def style() -> Iterator[None]:
    """Let figures be drawn in the style of all of them."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def short(name: str) -> str:
    """Return the name of a policy, cut to what a figure has room for."""
    return name if len(name) <= 28 else name[:27] + "\u2026"


def svg(figure: "Figure", name: str, title: str, caption: str) -> Picture:
    """Return a picture of lines."""
    return Picture(
        f"{name}.svg", title, caption, "image/svg+xml", _saved(figure, format="svg", metadata={"Date": None})
    )


def png(figure: "Figure", name: str, title: str, caption: str) -> Picture:
    """Return a picture of points: a schedule has too many shapes for a drawing of lines."""
    return Picture(f"{name}.png", title, caption, "image/png", _saved(figure, format="png", dpi=150))


def _saved(figure: "Figure", **options: Any) -> bytes:
    """Return what a figure is saved as; a box stands for a letter that Matplotlib's font does not have."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, **options)
    return buffer.getvalue()
