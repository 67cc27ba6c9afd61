"""The answer in words: what to run, how sure that is, where it loses, what it brings, and what is left to gain."""

import math

from ...cluster.model.intervals import Estimates
from .choice import Advice, Against, Part
from .grid import COMMON

MOST_WINDOWS = 10_000  # more are not worth naming


def headline(advice: Advice, ageing_s: float) -> str:
    """Return what to run, in one sentence."""
    chosen = advice.chosen
    ageing = "no ageing bound" if math.isinf(ageing_s) else f"an ageing bound of {hours_text(ageing_s / 3600)}"
    common = next((one for one in COMMON if one == chosen), None)
    stay = " This is what many clusters run already." if common else ""
    return f"Run order {chosen.order} with policy {chosen.policy} and {ageing}.{stay}"


def sentences(advice: Advice) -> list[str]:
    """Return the answer's sentences after the headline, each on one question."""
    found = [_how_chosen(advice)]
    found += [_versus(advice, against) for against in advice.against]
    found += [_tail(advice), _losses(advice), _saving(advice), _possible(advice)]
    return [sentence for sentence in found if sentence]


def hours_text(hours: float) -> str:
    """Return a bound in hours, or days where it is whole ones."""
    return f"{hours / 24:g} days" if hours >= 48 and hours % 24 == 0 else f"{hours:g} h"


def objective_title(advice: Advice) -> str:
    """Return what candidates are ranked by, as tables call it."""
    return {"mean_jct_s": "mean JCT", "makespan_s": "makespan"}[advice.grid.objective]


def _how_chosen(advice: Advice) -> str:
    count, windows = len(advice.grid.candidates), _windows(advice.grid.windows)
    if not advice.grid.held_out:
        return (
            f"It is the best of {count} pairs of order and policy on {windows}, the same that the figures below are "
            "of. That flatters it, and so few windows make nothing sure: give a longer trace."
        )
    return (
        f"It was the best of {count} pairs of order and policy on the first {advice.grid.windows - advice.units} of "
        f"{windows}. All figures here are of the other {advice.units}, which had no say in the choice."
    )


def _windows(count: int) -> str:
    return f"{count} window{'' if count == 1 else 's'}"


def _versus(advice: Advice, against: Against) -> str:
    row, rival = advice.row, against.rival
    if rival == advice.chosen:
        return ""
    value, low, high = (float(end[row]) for end in against.percent)
    who = f"the second choice, {rival}" if rival not in COMMON else f"{rival}, which is common today"
    text = f"Its {objective_title(advice)} is {_change(value, low, high)} than with {who}"
    if math.isnan(low):
        return f"{text}; one window gives no interval."
    if low > 0 or high < 0:
        return f"{text}: sure, at 95 %."
    return f"{text}. That is not sure, since the interval holds 0; {_more(advice.units, value, high - low)}."


def _change(value: float, low: float, high: float) -> str:
    """Return a difference in per cent with its interval, told as lower or higher."""
    lower = value <= 0
    ends = "" if math.isnan(low) else f" [{-high if lower else low:.1f}, {-low if lower else high:.1f}]"
    return f"{abs(value):.1f} %{ends} {'lower' if lower else 'higher'}"


def _more(units: int, value: float, width: float) -> str:
    """Return how many windows would tell a difference of this size from none."""
    needed = math.inf if value == 0 else units * (width / 2 / value) ** 2
    if needed > MOST_WINDOWS:
        return "the difference is too small for any number of windows to tell"
    asked = 2 * max(math.ceil(needed), units + 1)  # half of them choose
    return f"about {asked:,} windows would be needed to tell it (--workloads, a longer trace)"


def _tail(advice: Advice) -> str:
    """Return what happens to the unlucky jobs."""
    shown, easy = advice.grid.reporting, advice.grid.place(COMMON[-1])
    parts = []
    for title, values in (
        ("p99 JCT", advice.grid.figures.p99_jct_s),
        ("longest wait", advice.grid.figures.longest_wait_s),
    ):
        own, base = float(values[advice.row, shown].mean()), float(values[easy, shown].mean())
        if base > 0:
            change = 100 * (own / base - 1)
            parts.append(f"{title} {abs(change):.1f} % {'higher' if change > 0 else 'lower'}")
    if not parts or advice.row == easy:
        return ""
    worse = any(part.endswith("higher") for part in parts)
    warning = " Some jobs pay for the mean: a shorter --ageing bounds how long a job may be overtaken." if worse else ""
    return f"For unlucky jobs, against {COMMON[-1]}: {', '.join(parts)}.{warning}"


def _losses(advice: Advice) -> str:
    if advice.chosen == COMMON[-1]:
        return ""
    text = f"It loses to {COMMON[-1]} in {advice.losses} of {_windows(advice.units)}"
    worst = max(advice.parts, key=lambda part: (part.losses / part.windows, float(part.percent.value[0])), default=None)
    if not advice.losses or worst is None or worst.losses * advice.units <= advice.losses * worst.windows:
        return f"{text}."
    return f"{text}, most often ({worst.losses} of {worst.windows}) in those with {part_text(worst)}."


def part_text(part: Part) -> str:
    """Return what windows of a part have in common."""
    return f"{part.what}: {part.which}, {part.low:.3g} to {part.high:.3g}"


def _saving(advice: Advice) -> str:
    saving = advice.saving
    if advice.chosen == COMMON[-1]:
        return ""
    period = "a month" if saving.monthly else "a workload"
    parts = [
        f"{_hours(saving.jct, 'job-hour')} between submission and end ({_hours(saving.wait, 'of them', bare=True)})",
        f"{_hours(saving.held, 'GPU-hour')} of GPUs being held",
        f"{_hours(saving.lost, 'GPU-hour')} lost to faults",
    ]
    return f"At {saving.jobs:,.0f} jobs {period}, as were run here, that saves {period}: {'; '.join(parts)}."


def _hours(hours: Estimates, noun: str, *, bare: bool = False) -> str:
    value, low, high = (float(end) for end in hours)
    if bare:
        return f"{value:,.0f} {noun} in the queue"
    ends = "" if math.isnan(low) else f" [{low:,.0f}, {high:,.0f}]"
    return f"{value:,.0f}{ends} {noun}s"


def _possible(advice: Advice) -> str:
    unit, scale = ("h", 3600.0) if advice.bound_s >= 7200 else ("min", 60.0)
    least = f"{advice.bound_s / scale:.2f} {unit}"
    return (
        f"It is at most {advice.above_percent[advice.row]:.0f} % above what is possible: no scheduler, also none that "
        f"knows all jobs and faults beforehand, has a {objective_title(advice)} below {least} here. How much of that "
        "gap can be closed at all is not known."
    )
