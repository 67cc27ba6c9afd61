"""The answer in words: what to run, how sure that is, where it loses, what it brings, and what is left to gain."""

import math
from collections.abc import Mapping

import numpy as np

from ...agents.protocol import Policy
from ...cluster.model.intervals import IntervalEstimates
from ...cluster.model.orders import ORDER_REGIMES
from ...cluster.model.problem import Problem
from .choice import Against, OrderAdvice, WindowGroup
from .grid import COMMON

MAX_NEEDED_WINDOWS = 10_000  # more are not worth naming
MIN_GAIN_PERCENT = 0.5  # per cent: a gain of less is none in whole numbers
MORE_WINDOWS_BY = {"window": "a longer trace, --workloads", "workload": "--workloads"}  # how to get more of them


def headline(advice: OrderAdvice, ageing_s: float) -> str:
    """Return what to run, and what that gains, in one sentence."""
    ageing = ""
    if ORDER_REGIMES[advice.chosen.order].passes:  # else no job overtakes another
        bound = f"with an ageing bound of {ageing_text(ageing_s)}"
        ageing = ", without an ageing bound" if math.isinf(ageing_s) else f", {bound}"
    stay = " Many clusters run this already." if advice.chosen in COMMON else ""
    return f"Run order {advice.chosen.order} with policy {advice.chosen.policy}{ageing}{_gains(advice)}.{stay}"


def _gains(advice: OrderAdvice) -> str:
    """Return by how much the objective is lower than under what is common; empty where it is not."""
    found = []
    for against in reversed(advice.against):
        value = -float(against.percent.value[advice.row])
        if (
            against.rival in COMMON
            and advice.grid.ended[advice.grid.candidates.index(against.rival)]
            and value >= MIN_GAIN_PERCENT
        ):
            found.append(f"{value:.0f} % lower than under {against.rival}")
    return f": the {objective_title(advice)} is {' and '.join(found)}" if found else ""


def setting_text(advice: OrderAdvice, ageing_s: float) -> str:
    """Return what to write into the scheduler's configuration."""
    ageing = "" if math.isinf(ageing_s) else f"ageing_s: {ageing_s:g}\n"
    return f"order: {advice.chosen.order}\n{ageing}policy: {{name: {advice.chosen.policy}}}"


def sentences(advice: OrderAdvice) -> list[str]:
    """Return the answer's sentences after the headline, each on one question."""
    found = [_versus(advice, against) for against in reversed(advice.against) if against.rival in COMMON]
    found += [
        _how_chosen(advice),
        _second(advice),
        _heuristic(advice),
        _losses(advice),
        _tail(advice),
        _saving(advice),
        _possible(advice),
    ]
    return [sentence for sentence in found if sentence]


def remarks_on(advice: OrderAdvice, problem: Problem, policy: Policy, facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return what to know beside the answer: what was chosen, what was known of run times, which load it was.

    Args:
        advice: The answer.
        problem: What was run, under the chosen order.
        policy: The chosen policy.
        facts: What was not run as it was recorded.
    """
    about = ORDER_REGIMES[advice.chosen.order].about
    found = [
        f"An order decides which waiting job may start next; {advice.chosen.order}: {about}. "
        f"A policy decides on which GPUs; {policy.name}: {policy.about}."
    ]
    if np.array_equal(problem.scenarios.estimate_s, problem.scenarios.work_s):
        found.append(
            "Run times were known exactly here, which helps orders that go by them. With --estimates log-normal or "
            "class-mean they are guessed, as people do."
        )
    if objective := facts.get("objective"):
        tuned = f" Tuned for it: {facts['tuned']}." if "tuned" in facts else ""
        found.append(f"Objective: {objective}.{tuned}")
    if load := facts.get("load"):
        found.append(f"Load: {load}.")
    return tuple(found)


def ageing_text(ageing_s: float) -> str:
    """Return an ageing bound in days where it is whole ones, else in hours."""
    hours = ageing_s / 3600
    if math.isinf(hours):
        return "never"
    return f"{hours / 24:g} days" if hours >= 48 and hours % 24 == 0 else f"{hours:g} h"


def objective_title(advice: OrderAdvice) -> str:
    """Return what candidates are ranked by, as tables call it."""
    return advice.grid.weighting.title


def part_text(advice: OrderAdvice, part: WindowGroup) -> str:
    """Return which windows a part has."""
    return f"the {part.which} of {advice.noun}s by {part.what} ({number_text(part.low)} to {number_text(part.high)})"


def number_text(value: float) -> str:
    """Return a number that need not be exact."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _versus(advice: OrderAdvice, against: Against) -> str:
    """Return how the chosen does against what is common."""
    rival = against.rival
    if rival == advice.chosen:
        return ""
    if not advice.grid.ended[advice.grid.candidates.index(rival)]:
        return f"Under {rival} a run was cut off before all jobs ended, so there is no figure to compare with."
    value, low, high = (float(end[advice.row]) for end in against.percent)
    lower = value <= 0
    ends = "" if math.isnan(low) else f" [{-high if lower else low:.1f}, {-low if lower else high:.1f}]"
    title = objective_title(advice)
    text = f"{title[0].upper()}{title[1:]} {abs(value):.1f} %{ends} {'lower' if lower else 'higher'} than under {rival}"
    return f"{text}, which is common today. {_how_sure(advice, value, low, high)}"


def _how_sure(advice: OrderAdvice, value: float, low: float, high: float) -> str:
    if math.isnan(low):
        return f"One {advice.noun} gives no interval: nothing is sure."
    if low > 0 or high < 0:
        return "That is sure: the 95 % interval excludes 0."
    return f"That is not sure, as the 95 % interval holds 0; {_more(advice, value, high - low)}."


def _more(advice: OrderAdvice, value: float, width: float) -> str:
    """Return how many windows would show a difference of this size."""
    needed = math.inf if value == 0 else advice.units * (width / 2 / value) ** 2
    if needed > MAX_NEEDED_WINDOWS:
        return "it is too small for any number of them to show"
    windows = 2 * max(math.ceil(needed), advice.units + 1)  # half of them choose
    return f"about {windows:,} {advice.noun}s in all would show it ({MORE_WINDOWS_BY[advice.noun]})"


def _how_chosen(advice: OrderAdvice) -> str:
    count, windows = len(advice.grid.candidates), _windows(advice, advice.grid.windows)
    if not advice.grid.held_out:
        return (
            f"It was the best of {count} pairs of order and policy on {windows}, the same that these figures are of. "
            f"That flatters it, and so few {advice.noun}s make little sure; more would: {MORE_WINDOWS_BY[advice.noun]}."
        )
    return (
        f"It was the best of {count} pairs of order and policy on the first {advice.grid.windows - advice.units} of "
        f"{windows}. All figures here are of the other {advice.units}, which the choice did not use."
    )


def _windows(advice: OrderAdvice, count: int) -> str:
    return f"{count} {advice.noun}{'' if count == 1 else 's'}"


def _second(advice: OrderAdvice) -> str:
    """Return whether the next best is worse."""
    if advice.second is None or advice.second in COMMON:
        return ""
    against = next(one for one in advice.against if one.rival == advice.second)
    value, low, high = (float(end[advice.row]) for end in against.percent)
    title = objective_title(advice)
    if math.isnan(low):
        return f"The second choice was {advice.second}."
    figures = f"{title} of the first against it {value:+.1f} % [{low:+.1f}, {high:+.1f}]"
    if low > 0 or high < 0:
        return f"The second choice was {advice.second}: {figures}."
    return (
        f"Whether the second choice, {advice.second}, is worse is open: {figures}; {_more(advice, value, high - low)}."
    )


def _heuristic(advice: OrderAdvice) -> str:
    """Return what a policy that is no heuristic gains on the best that is one."""
    rival = advice.heuristic
    if rival is None or rival in (advice.second, *COMMON):
        return ""
    against = next(one for one in advice.against if one.rival == rival)
    value, low, high = (float(end[advice.row]) for end in against.percent)
    ends = "" if math.isnan(low) else f" [{low:+.1f}, {high:+.1f}]"
    title = objective_title(advice)
    return f"Of heuristics alone, {rival} was the best: {title} of the choice against it {value:+.1f} %{ends}."


def _losses(advice: OrderAdvice) -> str:
    if advice.chosen == COMMON[-1] or advice.saving is None:
        return ""
    text = f"It loses to {COMMON[-1]} in {advice.losses} of {_windows(advice, advice.units)}"
    if not advice.parts:
        return f"{text}."
    most = max(advice.parts, key=lambda part: part.losses / part.windows)
    if most.losses * advice.units > advice.losses * most.windows:
        return f"{text}, most often in {part_text(advice, most)}: {most.losses} of {most.windows}."
    least = max(advice.parts, key=lambda part: float(part.percent.value[0]))
    return f"{text}. It gains least, {float(least.percent.value[0]):+.1f} %, in {part_text(advice, least)}."


def _tail(advice: OrderAdvice) -> str:
    """Return how the chosen changes the figures that it was not chosen by."""
    shown, easy, figures = advice.grid.reporting, advice.grid.candidates.index(COMMON[-1]), advice.grid.figures
    if advice.row == easy or advice.saving is None:
        return ""
    parts = []
    others = {"p99 JCT": figures.p99_jct_s, "the longest wait": figures.longest_wait_s}
    if advice.grid.objective != "mean_jct_s":
        others = {"mean JCT": figures.mean_jct_s} | others
    others.pop(objective_title(advice), None)
    for title, values in others.items():
        own, base = float(values[advice.row, shown].mean()), float(values[easy, shown].mean())
        if base > 0:
            parts.append(f"{title} is {abs(own / base - 1) * 100:.1f} % {'higher' if own > base else 'lower'}")
    worse = any(part.endswith("higher") for part in parts)
    warning = " Some jobs pay for the gain; a shorter --ageing bounds for how long." if worse else ""
    return f"Beside the {objective_title(advice)}, against {COMMON[-1]}: {', '.join(parts)}.{warning}" if parts else ""


def _saving(advice: OrderAdvice) -> str:
    saving = advice.saving
    if advice.chosen == COMMON[-1] or saving is None:
        return ""
    period = "a month" if saving.monthly else "a workload"
    return (
        f"At {saving.jobs:,.0f} jobs {period}, as here, jobs take {_hours(saving.jct, 'job-hours')} {period} between "
        f"submission and end than under {COMMON[-1]}; in the queue alone it is {_hours(saving.wait, 'job-hours')}. "
        f"They hold GPUs for {_hours(saving.held, 'GPU-hours')}, and faults cost {_hours(saving.lost, 'GPU-hours')}."
    )


def _hours(hours: IntervalEstimates, noun: str) -> str:
    """Return what is saved, or what is lost."""
    value, low, high = (float(end) for end in hours)
    if value < 0:
        value, low, high = -value, -high, -low
    ends = "" if math.isnan(low) else f" [{low:,.0f}, {high:,.0f}]"
    return f"{value:,.0f}{ends} {noun} {'less' if hours.value >= 0 else 'more'}"


def _possible(advice: OrderAdvice) -> str:
    if math.isnan(advice.bound_s):
        return ""
    unit, scale = ("h", 3600.0) if advice.bound_s >= 7200 else ("min", 60.0)
    return (
        f"It is at most {advice.above_percent[advice.row]:.0f} % above what is possible: no scheduler can have a "
        f"{objective_title(advice)} below {advice.bound_s / scale:.2f} {unit} here, not even one that knows all jobs "
        "and faults beforehand. How much of that gap can be closed is not known."
    )
