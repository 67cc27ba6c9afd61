"""The figures of a report: policies side by side over all scenarios, and the GPUs of one scenario over time."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import InputError
from ..cluster.model.outcome import Event, Outcome
from ..cluster.model.problem import Scenarios
from .comparison import CONFIDENCE, Comparison, real_jobs
from .table import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any common colour blindness can distinguish (Color Universal Design, 2008).
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
def figure_style() -> Iterator[None]:
    """Let figures be drawn in the style of all of them."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def shortened_name(name: str) -> str:
    """Return the name of a policy, cut to what a figure has room for."""
    return name if len(name) <= 28 else name[:27] + "\u2026"


def svg_picture(figure: "Figure", name: str, title: str, caption: str) -> Picture:
    """Return a picture of lines."""
    return Picture(
        f"{name}.svg", title, caption, "image/svg+xml", _file_bytes(figure, format="svg", metadata={"Date": None})
    )


def png_picture(figure: "Figure", name: str, title: str, caption: str) -> Picture:
    """Return a picture of points: a schedule has too many shapes for a drawing of lines."""
    return Picture(f"{name}.png", title, caption, "image/png", _file_bytes(figure, format="png", dpi=150))


def _file_bytes(figure: "Figure", **options: Any) -> bytes:
    """Return what a figure is saved as; a box stands for a letter that Matplotlib's font does not have."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, **options)
    return buffer.getvalue()


MAX_CURVE_POINTS = 300  # of a line; more are not seen at the width of a page
PANELS = 3  # beside each other
EDGE = 1.06  # a panel's axis by the largest value that is drawn: so that no mark is cut at its edge


def forest_picture(comparison: Comparison) -> Picture:
    """Return the relative difference of every policy to the best heuristic, with intervals, for every metric."""
    from matplotlib.figure import Figure

    rows = [index for index, name in enumerate(comparison.policies) if name != comparison.best_heuristic]
    with figure_style():
        metrics = len(comparison.metrics)
        lines = -(-metrics // PANELS)
        figure = Figure(figsize=(WIDTH_INCHES, lines * (1.25 + 0.22 * len(rows))))
        figure.set_layout_engine("constrained", hspace=0.06, wspace=0.05)
        panels = list(figure.subplots(lines, PANELS, sharey=True, squeeze=False).flat)
        for metric, ax in enumerate(panels[:metrics]):
            _draw_forest_panel(ax, comparison, metric, rows)
        for unused in panels[metrics:]:
            unused.remove()
        figure.supxlabel(f"difference to {comparison.best_heuristic} in %", fontsize=10, color="#374151")
        interval = (
            f" with {100 * CONFIDENCE:g} % intervals (one that excludes 0 is a clear difference)"
            if comparison.units > 1
            else ""
        )
        caption = (
            f"Each policy against {comparison.best_heuristic}, the best heuristic, on the same scenarios: difference "
            f"of the means{interval}. Filled: better; open: worse. The blue line is the best heuristic. An "
            "arrow stands for what lies outside the panel, also of an interval."
        )
        return svg_picture(figure, "differences", "Every policy against the best heuristic", caption)


def _draw_forest_panel(ax: "Axes", comparison: Comparison, metric: int, rows: list[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = policy_colours(comparison)
    limit = _forest_limit(comparison, metric)
    sign = 1 if comparison.metrics[metric].better == "higher" else -1
    ax.axvline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
    for y, row in enumerate(rows):
        value, low, high = (float(part[row, metric]) for part in comparison.relative_percent)
        colour = colours[comparison.policies[row]]
        if abs(value) > limit:
            _draw_off_scale(ax, value, y, limit)
        elif np.isfinite(value):
            if np.isfinite(low):
                _draw_interval(ax, low, high, y, limit, colour)
            face = colour if sign * value > 0 else "white"
            ax.plot(value, y, "o", markersize=5.5, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.4)
    ax.set(xlim=(-EDGE * limit, EDGE * limit), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), [shortened_name(comparison.policies[row]) for row in rows])
    ax.set_title(f"{comparison.metrics[metric].title}   ({comparison.metrics[metric].better} is better)")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def _draw_interval(ax: "Axes", low: float, high: float, y: int, limit: float, colour: str) -> None:
    """Draw an interval, with an arrow where it continues outside of the panel."""
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


def _draw_off_scale(ax: "Axes", value: float, y: int, limit: float) -> None:
    right = value > 0
    text = f"{value:+.0f} % \u2192" if right else f"\u2190 {value:+.0f} %"
    side: Literal["right", "left"] = "right" if right else "left"
    ax.text(limit if right else -limit, y, text, ha=side, va="center", color="#4b5563", fontsize=8.5)


def differences_picture(comparison: Comparison, policy: str) -> Picture:
    """Return where a policy and the best heuristic differ: scenario by scenario, and by the size of the jobs."""
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_scenario_panel(left, comparison, policy)
        _draw_size_panel(right, comparison, policy)
        caption = (
            f"{policy} against {comparison.best_heuristic}. Left: each scenario's difference, sorted; hatched bars are "
            "scenarios in which it is worse. Right: change of mean JCT by the number of GPUs that a job needs."
        )
        return svg_picture(figure, "workloads", f"Where {policy} wins and where it loses", caption)


def _draw_scenario_panel(ax: "Axes", comparison: Comparison, policy: str) -> None:
    base = comparison.values[comparison.policies.index(comparison.best_heuristic), comparison.objective]
    value = comparison.values[comparison.policies.index(policy), comparison.objective]
    percent = np.sort(100 * (value - base) / np.where(base == 0, np.nan, base))
    percent = percent[np.isfinite(percent)]
    worse = percent < 0 if comparison.objective_metric.better == "higher" else percent > 0
    colour, place = policy_colours(comparison)[policy], np.arange(percent.size)
    width = 0.85 if percent.size <= 150 else 1.0
    ax.bar(place[~worse], percent[~worse], width, color=colour)
    ax.bar(place[worse], percent[worse], width, color=DOWN_FACE, edgecolor=DOWN_COLOUR, hatch="////", linewidth=0.6)
    ax.axhline(0, color=BEST_HEURISTIC_COLOUR, linewidth=1.2)
    ax.set_title(f"{comparison.objective_metric.title}: worse in {int(worse.sum())} of {percent.size} scenarios")
    ax.set(xlabel="scenarios, sorted", ylabel="difference in %", xticks=[], xlim=(-0.6, max(percent.size, 1) - 0.4))
    ax.grid(axis="y")


def _draw_size_panel(ax: "Axes", comparison: Comparison, policy: str) -> None:
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


def jct_distribution_picture(comparison: Comparison, outcomes: Mapping[str, Outcome], scenarios: Scenarios) -> Picture:
    """Return the share of jobs that are done within a time, all scenarios together, for every policy."""
    from matplotlib.figure import Figure

    real = real_jobs(scenarios)
    jct = {name: np.sort((outcomes[name].finish_s - scenarios.submit_s)[real]) for name in comparison.policies}
    name, scale = time_unit(float(np.median([column[-1] for column in jct.values()])))
    with figure_style():
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
        return svg_picture(figure, "jct", "Job completion times", f"{caption} Further left is better.")


def _draw_steps(ax: "Axes", comparison: Comparison, jct: Mapping[str, NDArray[np.float64]], scale: float) -> None:
    colours, others = policy_colours(comparison), 0
    for name in reversed(comparison.policies):  # the best are drawn last, on top
        column = jct[name]
        keep = np.unique(np.linspace(0, column.size - 1, min(column.size, MAX_CURVE_POINTS)).astype(np.int64))
        plain = colours[name] == OTHER_COLOUR
        label = ("other policies" if not others else None) if plain else name
        others += plain
        share = (keep + 1) / column.size
        ax.step(
            column[keep] * scale, share, color=colours[name], label=label, linewidth=0.9 if plain else 2, where="post"
        )
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], [shortened_name(label) for label in labels[::-1]], loc="upper left")


DOWN = -1  # in place of a job: the GPU was out of service


class Spells(NamedTuple):
    """Times in which a GPU was held by a job or out of service; one row a GPU and spell."""

    gpu: NDArray[np.int64]  # (spells,)
    job: NDArray[np.int64]  # (spells,) DOWN where the GPU was out of service
    start_s: NDArray[np.float64]  # (spells,)
    end_s: NDArray[np.float64]  # (spells,)


def spells_of(events: Sequence[Event], cluster_gpus: int) -> Spells:
    """Return the spells of a schedule; what is open at the last event ends there.

    A GPU that two fault sources hold down is one spell, from the first fault to the last repair.

    Args:
        events: In order of time.
        cluster_gpus: GPUs of the cluster.
    """
    found: list[tuple[int, int, float, float]] = []
    job_since_s = np.full(cluster_gpus, np.nan)
    down_since_s = np.full(cluster_gpus, np.nan)
    faults = np.zeros(cluster_gpus, dtype=np.int64)
    holder = np.zeros(cluster_gpus, dtype=np.int64)
    end_s = events[-1].time_s if events else 0.0
    for event in events:
        gpus = list(event.gpus)
        if event.kind == "start":
            job_since_s[gpus], holder[gpus] = event.time_s, event.job
        elif event.kind == "switch":
            had = np.flatnonzero((holder == event.job) & ~np.isnan(job_since_s))
            left, won = np.setdiff1d(had, gpus), np.setdiff1d(gpus, had)
            found += [(int(gpu), event.job, job_since_s[gpu], event.time_s) for gpu in left]
            job_since_s[left] = np.nan
            job_since_s[won], holder[won] = event.time_s, event.job
        elif event.kind in ("stop", "finish"):
            found += [(gpu, event.job, job_since_s[gpu], event.time_s) for gpu in gpus]
            job_since_s[gpus] = np.nan
        elif event.kind == "fault":
            down_since_s[gpus] = np.where(faults[gpus] == 0, event.time_s, down_since_s[gpus])
            faults[gpus] += 1
        elif event.kind == "repair":
            faults[gpus] -= 1
            found += [(gpu, DOWN, down_since_s[gpu], event.time_s) for gpu in gpus if faults[gpu] == 0]
    found += [(int(gpu), int(holder[gpu]), job_since_s[gpu], end_s) for gpu in np.flatnonzero(~np.isnan(job_since_s))]
    found += [(int(gpu), DOWN, down_since_s[gpu], end_s) for gpu in np.flatnonzero(faults > 0)]
    columns = np.array([spell for spell in found if spell[3] > spell[2]], dtype=np.float64).reshape(-1, 4).T
    return Spells(columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2], columns[3])


def gpu_use_over_time(spells: Spells) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the moments at which the use of GPUs changes, and how many are busy and down from each to the next.

    Returns:
        Seconds, which increase, the last being the end of the run; busy; down: each of shape (moments,).
    """
    time_s, index = np.unique(np.concatenate(([0.0], spells.start_s, spells.end_s)), return_inverse=True)
    step = np.zeros((2, time_s.size), dtype=np.int64)  # busy, down
    row = (spells.job == DOWN).astype(np.int64)
    np.add.at(step, (row, index[1 : row.size + 1]), 1)
    np.add.at(step, (row, index[row.size + 1 :]), -1)
    busy, down = step.cumsum(axis=1)
    return time_s, busy, down


def sorted_by_block(spells: Spells) -> Spells:
    """Return the spells sorted so that neighbouring GPUs of one job and spell follow each other."""
    order = np.lexsort((spells.gpu, spells.end_s, spells.start_s, spells.job))
    return Spells(spells.gpu[order], spells.job[order], spells.start_s[order], spells.end_s[order])


def shares_by_node(
    spells: Spells, gpu_node: NDArray[np.int32], edges_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the shares of each node's GPUs that were busy and down, in the middle of each bin of time.

    Args:
        spells: The spells.
        gpu_node: Node of each GPU, shape (gpus,).
        edges_s: Edges of the bins, shape (bins + 1,).

    Returns:
        Busy and down, each of shape (nodes, bins).
    """
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    size = np.bincount(gpu_node)
    step = np.zeros((2, size.size, middle_s.size + 1))
    row, node = (spells.job == DOWN).astype(np.int64), gpu_node[spells.gpu]
    np.add.at(step, (row, node, np.searchsorted(middle_s, spells.start_s)), 1)
    np.add.at(step, (row, node, np.searchsorted(middle_s, spells.end_s)), -1)
    busy, down = step.cumsum(axis=2)[:, :, :-1] / size[:, None]
    return busy, down


# Tol's light scheme without its reds, which are kept for faults, and three shades between its colours.
GANTT_COLOURS = ("#77AADD", "#44BB99", "#EEDD88", "#99DDFF", "#B39DDB", "#BBCC33", "#5B8DB8", "#AAAA00", "#A5D6B7")
BUSY_COLOUR, IDLE_COLOUR = "#77AADD", "#e6e9ed"
MAX_GPU_ROWS = 256  # more are not distinguishable at the width of a page


def use_picture(
    comparison: Comparison, events: Mapping[str, Sequence[Event]], cluster_gpus: int, *, scenario_text: str
) -> Picture:
    """Return busy, idle and down GPUs over time in one scenario, for the best policy and the best heuristic."""
    from matplotlib.figure import Figure

    preferred = [name for name in (*comparison.challengers[:1], comparison.best_heuristic) if name in events]
    shown = preferred if len(preferred) == 2 else list(events)[:2]
    name, scale = time_unit(max(events[policy][-1].time_s for policy in shown))
    with figure_style():
        figure = Figure(figsize=(WIDTH_INCHES, 0.5 + 1.9 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for policy, ax in zip(shown, axes, strict=True):
            _draw_use_panel(ax, spells_of(events[policy], cluster_gpus), cluster_gpus, scale)
            ax.set_title(shortened_name(policy))
        axes[-1].set(xlabel=f"time ({name})", xlim=(0, max(events[policy][-1].time_s for policy in shown) * scale))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
        caption = (
            f"GPUs that run a job, wait for one, or are out of service, in {scenario_text}. Idle time at the end is "
            "the tail in which the last jobs run alone."
        )
        return svg_picture(figure, "use", "Busy, idle and down over time", caption)


def _draw_use_panel(ax: "Axes", spells: Spells, cluster_gpus: int, scale: float) -> None:
    time_s, busy, down = gpu_use_over_time(spells)
    time, idle = time_s * scale, cluster_gpus - down
    ax.fill_between(time, 0, busy, step="post", color=BUSY_COLOUR, linewidth=0, label="busy")
    ax.fill_between(time, busy, idle, step="post", color=IDLE_COLOUR, linewidth=0, label="idle")
    ax.fill_between(
        time, idle, cluster_gpus, step="post", facecolor=DOWN_FACE, edgecolor=DOWN_COLOUR, hatch="////", linewidth=0,
        label="down",
    )  # fmt: skip
    ax.set(ylim=(0, cluster_gpus), ylabel="GPUs")


def gantt_picture(events: Mapping[str, Sequence[Event]], gpu_node: NDArray[np.int32], *, scenario_text: str) -> Picture:
    """Return which job held each GPU when, one panel a policy; a cluster of over 256 GPUs is drawn node by node.

    Args:
        events: Events of one scenario under each policy, in order of time.
        gpu_node: Node of each GPU, shape (gpus,).
        scenario_text: The scenario in words.
    """
    from matplotlib.figure import Figure

    name, scale = time_unit(max(listed[-1].time_s for listed in events.values()))
    by_node = gpu_node.size > MAX_GPU_ROWS
    lines = int(gpu_node.max()) + 1 if by_node else gpu_node.size
    with figure_style():
        figure = Figure(
            figsize=(WIDTH_INCHES, 0.6 + len(events) * (0.8 + min(lines, 64) * 0.033)), layout="constrained"
        )
        axes = figure.subplots(len(events), 1, sharex=True, squeeze=False)[:, 0]
        for (policy, listed), ax in zip(events.items(), axes, strict=True):
            spells, end = spells_of(listed, gpu_node.size), listed[-1].time_s * scale
            (_draw_node_panel if by_node else _draw_gpu_panel)(ax, spells, gpu_node, scale)
            ax.axvline(end, color="#374151", linewidth=1, linestyle=(0, (4, 3)))
            ax.set_title(f"{shortened_name(policy)}   {end:.1f} {name}")
            ax.set(ylim=(lines - 0.5, -0.5), ylabel="node" if by_node else "GPU")
        axes[-1].set_xlim(0, 1.01 * max(listed[-1].time_s for listed in events.values()) * scale)
        axes[-1].set_xlabel(f"time ({name})")
        caption = f"{scenario_text[0].upper()}{scenario_text[1:]}. {_gantt_caption(by_node=by_node)}"
        return png_picture(figure, "gantt", "Schedules of one scenario", caption)


def _gantt_caption(*, by_node: bool) -> str:
    if by_node:
        return "Each row is a node: the darker the blue, the more of its GPUs run a job; red: GPUs out of service."
    return (
        "Each row is a GPU, each block a job; colours only distinguish jobs. White: idle. Red and hatched: out of "
        "service. Dashed: the last job ends."
    )


def _draw_gpu_panel(ax: "Axes", spells: Spells, gpu_node: NDArray[np.int32], scale: float) -> None:
    from matplotlib.collections import PolyCollection

    rectangles, job = _rectangles(sorted_by_block(spells), scale)
    down = job == DOWN
    colours = [GANTT_COLOURS[index % len(GANTT_COLOURS)] for index in job[~down]]
    ax.add_collection(PolyCollection(rectangles[~down], facecolors=colours, edgecolors="white", linewidths=0.35))
    ax.add_collection(
        PolyCollection(rectangles[down], facecolors=DOWN_FACE, edgecolors=DOWN_COLOUR, hatch="//////", linewidths=0.5)
    )
    for edge in np.flatnonzero(np.diff(gpu_node)) + 0.5:
        ax.axhline(edge, color="#9ca3af", linewidth=0.25, zorder=0)


def _rectangles(spells: Spells, scale: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return one rectangle for each run of neighbouring GPUs with one spell, shape (rectangles, 4, 2), and its job."""
    same = (np.diff(spells.job) == 0) & (np.diff(spells.start_s) == 0) & (np.diff(spells.end_s) == 0)
    breaks = np.flatnonzero(~(same & (np.diff(spells.gpu) == 1)))
    first = np.concatenate(([0], breaks + 1)) if spells.gpu.size else np.zeros(0, dtype=np.int64)
    last = np.concatenate((breaks, [spells.gpu.size - 1])) if spells.gpu.size else first
    left, right = spells.start_s[first] * scale, spells.end_s[first] * scale
    top, bottom = spells.gpu[first] - 0.5, spells.gpu[last] + 0.5
    corners = [np.stack(pair, axis=-1) for pair in ((left, top), (right, top), (right, bottom), (left, bottom))]
    return np.stack(corners, axis=1), spells.job[first]


def _draw_node_panel(ax: "Axes", spells: Spells, gpu_node: NDArray[np.int32], scale: float) -> None:
    from matplotlib.colors import to_rgb

    edges_s = np.linspace(0, float(spells.end_s.max(initial=1.0)), 1201)
    busy, down = (share[..., None] for share in shares_by_node(spells, gpu_node, edges_s))
    red = np.sqrt(down)  # one broken GPU of many is to be seen
    image = (1 - red) * (1 - busy * (1 - np.array(to_rgb("#2b6cb0")))) + red * np.array(to_rgb(DOWN_COLOUR))
    extent = (0.0, float(edges_s[-1]) * scale, busy.shape[0] - 0.5, -0.5)
    ax.imshow(np.clip(image, 0, 1), aspect="auto", extent=extent, interpolation="nearest")


def report_pictures(
    comparison: Comparison,
    outcomes: Mapping[str, Outcome],
    scenarios: Scenarios,
    *,
    events: Mapping[str, Sequence[Event]],
    scenario_text: str,
    gpu_node: NDArray[np.int32],
) -> list[Picture]:
    """Return all figures of a report.

    Args:
        comparison: The policies side by side.
        outcomes: What was compared.
        scenarios: The scenarios.
        events: Events of one scenario under some of the policies, drawn in this order; may be empty.
        scenario_text: That scenario in words, such as "scenario 17 of 200".
        gpu_node: Node of each GPU, shape (gpus,).
    """
    drawn = []
    if len(comparison.policies) > 1:
        drawn += [forest_picture(comparison), differences_picture(comparison, comparison.challengers[0])]
    drawn.append(jct_distribution_picture(comparison, outcomes, scenarios))
    if events:
        drawn += [
            use_picture(comparison, events, gpu_node.size, scenario_text=scenario_text),
            gantt_picture(events, gpu_node, scenario_text=scenario_text),
        ]
    return drawn


def write_pictures(folder: Path, drawn: Sequence[Picture]) -> None:
    """Write each picture as a file of its name.

    Raises:
        InputError: If one cannot be written.
    """
    for picture in drawn:
        try:
            (folder / picture.name).write_bytes(picture.data)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise InputError(problem, "give another folder", path=folder / picture.name) from error
