"""The attempts of a job along time, drawn from its events as positions in percent: no script, no inline style."""

from collections.abc import Sequence
from typing import NamedTuple

from ...model.states import FINAL, AttemptState, JobState
from ...store.rows.attempts import CHANGE as ATTEMPT_CHANGE
from ...store.rows.events import EventRow
from ...store.rows.jobs import CHANGE as JOB_CHANGE
from ..text import duration_text

MOST_LINES = 20  # attempts that are drawn, the last ones
STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400)
MOST_TICKS = 6
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


class Line(NamedTuple):
    """A row of the picture: the queue, or an attempt."""

    label: str
    bars: Sequence[Bar]


class Tick(NamedTuple):
    """A mark of the time axis."""

    x: float  # percent
    label: str


class Gantt(NamedTuple):
    """The picture."""

    lines: Sequence[Line]
    ticks: Sequence[Tick]
    left_out: int  # earlier attempts


class _Span(NamedTuple):
    line: int  # 0: the queue; else the number of an attempt
    phase: str
    from_s: float
    to_s: float


def gantt(events: Sequence[EventRow], now_s: float) -> Gantt:
    """Return the picture of a job.

    Args:
        events: Of the job, in their order.
        now_s: The right end, unless the job ended before; Unix time.
    """
    spans = list(_spans(events, now_s))
    if not spans:
        return Gantt((), (), 0)
    numbers = sorted({span.line for span in spans} - {0})
    shown = numbers[-MOST_LINES:]
    spans = [span for span in spans if span.line in (0, *shown)]
    first_s, last_s = min(span.from_s for span in spans), max(span.to_s for span in spans)
    length_s = max(last_s - first_s, 1e-3)
    lines = [
        Line(
            "queue" if number == 0 else f"attempt {number}",
            [_bar(it, first_s, length_s) for it in spans if it.line == number],
        )
        for number in (0, *shown)
    ]
    return Gantt(lines, _ticks(length_s), len(numbers) - len(shown))


def _spans(events: Sequence[EventRow], now_s: float) -> list[_Span]:
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


def _bar(span: _Span, first_s: float, length_s: float) -> Bar:
    took_s = max(0.0, span.to_s - span.from_s)
    return Bar(span.phase, 100.0 * (span.from_s - first_s) / length_s, 100.0 * took_s / length_s, took_s)


def _ticks(length_s: float) -> list[Tick]:
    step_s = next((step for step in STEPS_S if length_s / step <= MOST_TICKS), STEPS_S[-1])
    count = min(int(length_s / step_s), 10 * MOST_TICKS)
    return [
        Tick(100.0 * index * step_s / length_s, duration_text(index * step_s, exact=False))
        for index in range(count + 1)
    ]
