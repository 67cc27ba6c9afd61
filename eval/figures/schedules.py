"""Figures of one scenario: who held which GPU when."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.outcome import Event
from ..comparison import Comparison
from ..table import time_unit
from ..timeline import DOWN, Spells, blocks, share_by_node, spells, use_over_time
from .drawing import DOWN_COLOUR, DOWN_FACE, WIDTH_INCHES, Picture, png, short, style, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Tol's light scheme without its reds, which are kept for faults, and three shades between its colours.
JOB_COLOURS = ("#77AADD", "#44BB99", "#EEDD88", "#99DDFF", "#B39DDB", "#BBCC33", "#5B8DB8", "#AAAA00", "#A5D6B7")
BUSY_COLOUR, IDLE_COLOUR = "#77AADD", "#e6e9ed"
MOST_GPU_ROWS = 256  # more GPUs are not told apart at the width of a page


def use(comparison: Comparison, events: Mapping[str, Sequence[Event]], cluster_gpus: int, *, which: str) -> Picture:
    """Return busy, idle and down GPUs over time in one scenario, for the best policy and the best heuristic."""
    from matplotlib.figure import Figure

    wanted = [name for name in (*comparison.challengers[:1], comparison.best_heuristic) if name in events]
    shown = wanted if len(wanted) == 2 else list(events)[:2]
    name, scale = time_unit(max(events[policy][-1].time_s for policy in shown))
    with style():
        figure = Figure(figsize=(WIDTH_INCHES, 0.5 + 1.9 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for policy, ax in zip(shown, axes, strict=True):
            _use_panel(ax, spells(events[policy], cluster_gpus), cluster_gpus, scale)
            ax.set_title(short(policy))
        axes[-1].set(xlabel=f"time ({name})", xlim=(0, max(events[policy][-1].time_s for policy in shown) * scale))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
        caption = (
            f"GPUs that run a job, wait for one, or are out of service, in {which}. Idle time at the end is the tail "
            "in which the last jobs run alone."
        )
        return svg(figure, "use", "Busy, idle and down over time", caption)


def _use_panel(ax: "Axes", spent: Spells, cluster_gpus: int, scale: float) -> None:
    used = use_over_time(spent)
    time, idle = used.time_s * scale, cluster_gpus - used.down
    ax.fill_between(time, 0, used.busy, step="post", color=BUSY_COLOUR, linewidth=0, label="busy")
    ax.fill_between(time, used.busy, idle, step="post", color=IDLE_COLOUR, linewidth=0, label="idle")
    ax.fill_between(
        time, idle, cluster_gpus, step="post", facecolor=DOWN_FACE, edgecolor=DOWN_COLOUR, hatch="////", linewidth=0,
        label="down",
    )  # fmt: skip
    ax.set(ylim=(0, cluster_gpus), ylabel="GPUs")


def gantt(events: Mapping[str, Sequence[Event]], gpu_node: NDArray[np.int32], *, which: str) -> Picture:
    """Return who held each GPU when, one panel a policy; a cluster of over 256 GPUs is drawn node by node.

    Args:
        events: Events of one scenario under each policy, in order of time.
        gpu_node: Node of each GPU, shape (gpus,).
        which: The scenario in words.
    """
    from matplotlib.figure import Figure

    name, scale = time_unit(max(listed[-1].time_s for listed in events.values()))
    by_node = gpu_node.size > MOST_GPU_ROWS
    lines = int(gpu_node.max()) + 1 if by_node else gpu_node.size
    with style():
        figure = Figure(
            figsize=(WIDTH_INCHES, 0.6 + len(events) * (0.8 + min(lines, 64) * 0.033)), layout="constrained"
        )
        axes = figure.subplots(len(events), 1, sharex=True, squeeze=False)[:, 0]
        for (policy, listed), ax in zip(events.items(), axes, strict=True):
            spent, end = spells(listed, gpu_node.size), listed[-1].time_s * scale
            (_node_panel if by_node else _gpu_panel)(ax, spent, gpu_node, scale)
            ax.axvline(end, color="#374151", linewidth=1, linestyle=(0, (4, 3)))
            ax.set_title(f"{short(policy)}   {end:.1f} {name}")
            ax.set(ylim=(lines - 0.5, -0.5), ylabel="node" if by_node else "GPU")
        axes[-1].set_xlim(0, 1.01 * max(listed[-1].time_s for listed in events.values()) * scale)
        axes[-1].set_xlabel(f"time ({name})")
        caption = f"{which[0].upper()}{which[1:]}. {_gantt_caption(by_node=by_node)}"
        return png(figure, "gantt", "Schedules of one scenario", caption)


def _gantt_caption(*, by_node: bool) -> str:
    if by_node:
        return "Each row is a node: the darker the blue, the more of its GPUs run a job; red: GPUs out of service."
    return (
        "Each row is a GPU, each block a job; colours only tell jobs apart. White: idle. Red and hatched: out of "
        "service. Dashed: the last job ends."
    )


def _gpu_panel(ax: "Axes", spent: Spells, gpu_node: NDArray[np.int32], scale: float) -> None:
    from matplotlib.collections import PolyCollection

    rectangles, job = _rectangles(blocks(spent), scale)
    down = job == DOWN
    colours = [JOB_COLOURS[index % len(JOB_COLOURS)] for index in job[~down]]
    ax.add_collection(PolyCollection(rectangles[~down], facecolors=colours, edgecolors="white", linewidths=0.35))
    ax.add_collection(
        PolyCollection(rectangles[down], facecolors=DOWN_FACE, edgecolors=DOWN_COLOUR, hatch="//////", linewidths=0.5)
    )
    for edge in np.flatnonzero(np.diff(gpu_node)) + 0.5:
        ax.axhline(edge, color="#9ca3af", linewidth=0.25, zorder=0)


def _rectangles(spent: Spells, scale: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return one rectangle for each run of neighbouring GPUs with one spell, shape (rectangles, 4, 2), and its job."""
    same = (np.diff(spent.job) == 0) & (np.diff(spent.start_s) == 0) & (np.diff(spent.end_s) == 0)
    breaks = np.flatnonzero(~(same & (np.diff(spent.gpu) == 1)))
    first = np.concatenate(([0], breaks + 1)) if spent.gpu.size else np.zeros(0, dtype=np.int64)
    last = np.concatenate((breaks, [spent.gpu.size - 1])) if spent.gpu.size else first
    left, right = spent.start_s[first] * scale, spent.end_s[first] * scale
    top, bottom = spent.gpu[first] - 0.5, spent.gpu[last] + 0.5
    corners = [np.stack(pair, axis=-1) for pair in ((left, top), (right, top), (right, bottom), (left, bottom))]
    return np.stack(corners, axis=1), spent.job[first]


def _node_panel(ax: "Axes", spent: Spells, gpu_node: NDArray[np.int32], scale: float) -> None:
    from matplotlib.colors import to_rgb

    edges_s = np.linspace(0, float(spent.end_s.max(initial=1.0)), 1201)
    busy, down = (share[..., None] for share in share_by_node(spent, gpu_node, edges_s))
    red = np.sqrt(down)  # one broken GPU of many is to be seen
    image = (1 - red) * (1 - busy * (1 - np.array(to_rgb("#2b6cb0")))) + red * np.array(to_rgb(DOWN_COLOUR))
    extent = (0.0, float(edges_s[-1]) * scale, busy.shape[0] - 0.5, -0.5)
    ax.imshow(np.clip(image, 0, 1), aspect="auto", extent=extent, interpolation="nearest")
