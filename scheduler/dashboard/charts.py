"""Charts of the dashboard as elements: attempts along time, GPUs of nodes, step times, and use. No script."""

import statistics
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from ..health.evidence import SAMPLE_EVERY_S, UseSample
from ..model.states import FINAL, AttemptState, JobState
from ..store.attempts import CHANGE as ATTEMPT_CHANGE
from ..store.events import EventRow
from ..store.jobs import CHANGE as JOB_CHANGE
from .views import GPU_LETTERS, GPU_STYLES, GpuBlock, NodeCard, duration_text

MAX_GANTT_LINES = 20  # attempts that are drawn, the last ones
STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400)
MAX_TIME_TICKS = 6
_PHASES = {
    AttemptState.RESERVED: "starting", AttemptState.LAUNCHED: "starting", AttemptState.RUNNING: "running",
    AttemptState.DRAINING: "draining",
}  # fmt: skip


class Bar(NamedTuple):
    """A phase."""

    phase: str  # waiting, starting, running or draining
    x: float  # left end, percent of the width
    width: float  # percent
    took_s: float


class GanttLine(NamedTuple):
    """A row of the picture: the queue, or an attempt."""

    label: str
    bars: Sequence[Bar]


class Tick(NamedTuple):
    """A mark of the time axis."""

    x: float  # percent
    label: str


class Gantt(NamedTuple):
    """The attempts of a job along time."""

    lines: Sequence[GanttLine]
    ticks: Sequence[Tick]
    left_out: int  # earlier attempts


class _Span(NamedTuple):
    line: int  # 0: the queue; else the number of an attempt
    phase: str
    from_s: float
    to_s: float


def gantt_chart(events: Sequence[EventRow], now_s: float) -> Gantt:
    """Return the chart of a job by its events in their order, up to its end or to the present (Unix time)."""
    spans = list(_phase_spans(events, now_s))
    if not spans:
        return Gantt((), (), 0)
    numbers = sorted({span.line for span in spans} - {0})
    shown = numbers[-MAX_GANTT_LINES:]
    spans = [span for span in spans if span.line in (0, *shown)]
    first_s, last_s = min(span.from_s for span in spans), max(span.to_s for span in spans)
    length_s = max(last_s - first_s, 1e-3)
    bars: dict[int, list[Bar]] = {number: [] for number in (0, *shown)}
    for line, phase, from_s, to_s in spans:
        took_s = max(0.0, to_s - from_s)
        bars[line].append(Bar(phase, 100.0 * (from_s - first_s) / length_s, 100.0 * took_s / length_s, took_s))
    lines = [GanttLine("queue" if number == 0 else f"attempt {number}", bars[number]) for number in bars]
    return Gantt(lines, _time_ticks(length_s), len(numbers) - len(shown))


def _phase_spans(events: Sequence[EventRow], now_s: float) -> list[_Span]:
    """Return the phases; each ends where the next of its kind begins."""
    spans: list[_Span] = []
    waits_since: float | None = None
    phase: tuple[int, str, float] | None = None
    over = False
    for event in events:
        if event.kind == JOB_CHANGE:
            if waits_since is not None and event.now != event.was:
                spans.append(_Span(0, "waiting", waits_since, event.at_s))
            waits_since = event.at_s if event.now in (JobState.QUEUED.value, JobState.HELD.value) else None
            over = event.now in FINAL
        elif event.kind == ATTEMPT_CHANGE and event.number is not None:
            if phase is not None:
                spans.append(_Span(*phase, event.at_s))
            name = _PHASES.get(AttemptState(event.now))
            phase = None if name is None else (event.number, name, event.at_s)
    if not over and waits_since is not None:
        spans.append(_Span(0, "waiting", waits_since, now_s))
    if not over and phase is not None:
        spans.append(_Span(*phase, now_s))
    return spans


def _time_ticks(length_s: float) -> list[Tick]:
    step_s = next((step for step in STEPS_S if length_s / step <= MAX_TIME_TICKS), STEPS_S[-1])
    count = min(int(length_s / step_s), 10 * MAX_TIME_TICKS)
    return [
        Tick(100.0 * index * step_s / length_s, duration_text(index * step_s, exact=False))
        for index in range(count + 1)
    ]


@cache
def gpu_cells(letter: str, gpus: int) -> Markup:
    """Return cells for GPUs, with a letter each."""
    return Markup("<i>{}</i>").format(letter) * gpus


ROW_GPUS = 4  # GPUs that stay in one row at every width; two such rows stand side by side where there is room


def gpu_blocks(node: NodeCard, *, named: bool) -> Markup:
    """Return the GPUs of a node, in rows of four; those of a job lead to it, and have its name if `named`."""
    name, rows = escape(node.name), list[str]()
    for first in range(0, node.gpus, ROW_GPUS):
        inside = (_part_of_block(block, first, first + ROW_GPUS) for block in node.blocks)
        row = "".join(_block_markup(name, block, named=named) for block in inside if block.gpus > 0)
        rows.append(f'<span class="row w{min(node.gpus, ROW_GPUS)}">{row}</span>')
    return Markup("".join(rows))  # all parts are escaped


def _part_of_block(block: GpuBlock, first: int, end: int) -> GpuBlock:
    """Return the part of a block from one GPU of its node to another; without GPUs if there is none."""
    begin = max(block.first, first)
    return block._replace(first=begin, gpus=min(block.first + block.gpus, end) - begin)


def _block_markup(node: str, block: GpuBlock, *, named: bool) -> str:
    inside = gpu_cells(GPU_LETTERS[block.state], block.gpus)
    style = f"block {GPU_STYLES[block.state]} s{block.gpus}"
    if not block.job_id:
        return f'<span class="{style}" title="{escape(block.words)}">{inside}</span>'
    of = f'<span class="of">{escape(block.job)}</span>' if named else ""
    address, words = escape(block.job_id), escape(block.words)
    return f'<a id="g{node}-{block.first}" class="{style}" href="/jobs/{address}" aria-label="{words}">{inside}{of}</a>'


STEP_WIDTH, STEP_HEIGHT = 1000.0, 60.0  # of the box, which is stretched to its place
MAX_CHARTED_STEPS = 240


class StepChart(NamedTuple):
    """The step times of a job."""

    points: str  # of the line, x,y in the box; the upper edge is the longest step, the lower one is 0
    steps: int
    median_s: float
    longest_s: float


def step_chart(took_s: Sequence[float]) -> StepChart | None:
    """Return the chart of step times in seconds, in their order; None of fewer than two."""
    last_s = took_s[-MAX_CHARTED_STEPS:]
    if len(last_s) < 2:
        return None
    longest_s = max(last_s)
    apart = STEP_WIDTH / (len(last_s) - 1)
    points = (f"{at * apart:.1f},{STEP_HEIGHT * (1.0 - each / longest_s):.1f}" for at, each in enumerate(last_s))
    return StepChart(" ".join(points), len(last_s), statistics.median(last_s), longest_s)


USE_WIDTH, USE_HEIGHT = 1000.0, 100.0  # of the box, which is stretched to its place
MAX_USE_POINTS = 240
MAX_SAMPLE_GAP_S = 4 * SAMPLE_EVERY_S  # nothing is drawn between two samples farther apart
MAX_USE_TICKS = 4


class UseChart(NamedTuple):
    """The use of GPUs along time. Points are x,y in the box, with all GPUs at the upper edge."""

    held: Sequence[str]  # areas
    busy: Sequence[str]  # lines; none if no agent reports
    marks: Sequence[Tick]
    length_s: float
    held_now: float  # share, 0 to 1
    held_mean: float
    busy_now: float | None
    busy_mean: float | None


def use_chart(samples: Sequence[UseSample]) -> UseChart | None:
    """Return the chart of samples in their order; None of fewer than two."""
    if len(samples) < 2:
        return None
    first_s, length_s = samples[0].at_s, samples[-1].at_s - samples[0].at_s
    gap_s = max(MAX_SAMPLE_GAP_S, 2.0 * length_s / MAX_USE_POINTS)
    size = -(-len(samples) // MAX_USE_POINTS)
    points = [
        _mean_sample(samples[first : first + size]) for first in range(0, len(samples), size)
    ]  # means of neighbours
    scale = USE_WIDTH / length_s
    reported = [(each.at_s, each.busy) for each in points if each.busy is not None]
    busy = [each.busy for each in samples if each.busy is not None]
    return UseChart(
        [
            _points_text([(piece[0][0], USE_HEIGHT), *piece, (piece[-1][0], USE_HEIGHT)])
            for piece in _pieces([(each.at_s, each.held) for each in points], first_s, scale, gap_s)
        ],
        [_points_text(each) for each in _pieces(reported, first_s, scale, gap_s)],
        _time_marks(length_s),
        length_s,
        samples[-1].held,
        sum(each.held for each in samples) / len(samples),
        samples[-1].busy,
        sum(busy) / len(busy) if busy else None,
    )


def _mean_sample(samples: Sequence[UseSample]) -> UseSample:
    busy = [each.busy for each in samples if each.busy is not None]
    return UseSample(
        samples[-1].at_s, sum(each.held for each in samples) / len(samples), sum(busy) / len(busy) if busy else None
    )


_Point = tuple[float, float]


def _pieces(points: Sequence[_Point], first_s: float, scale: float, gap_s: float) -> list[list[_Point]]:
    """Return points in the box, cut at gaps; each piece has at least two."""
    pieces: list[list[_Point]] = []
    last_s = float("-inf")
    for at_s, share in points:
        if at_s - last_s > gap_s:
            pieces.append([])
        pieces[-1].append(((at_s - first_s) * scale, USE_HEIGHT * (1.0 - share)))
        last_s = at_s
    return [piece for piece in pieces if len(piece) > 1]


def _points_text(points: Sequence[_Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _time_marks(length_s: float) -> list[Tick]:
    """Return times before the last sample, which is at the right end."""
    step_s = next((step for step in STEPS_S if length_s / step <= MAX_USE_TICKS), STEPS_S[-1])
    ago = [step_s * index for index in range(1, int(length_s / step_s) + 1)]
    return [
        Tick(100.0 * (1.0 - each / length_s), f"{duration_text(each, exact=False)} ago") for each in reversed(ago)
    ]  # fmt: skip
