"""What follows from a round of checks: start, try other nodes, or wait. It does nothing itself.

Source: SPEC C4, C5, C7.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .report import Report

MOST_TRIES, MOST_S = 3, 60.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of a job's placement so far. A fault in the run begins anew with the nodes that are struck off."""

    since_s: float  # when its first round began, on any clock that does not go back
    tries: int = 0
    struck_off: frozenset[str] = frozenset()
    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Start the job at once."""


@dataclass(frozen=True, slots=True)
class TryOthers:
    """Let these nodes go, quarantine those that are bad, and place the job without all that are struck off."""

    bad_nodes: frozenset[str]
    tried: Tried


@dataclass(frozen=True, slots=True)
class Wait:
    """Let these nodes go, quarantine those that are bad; the job waits, and has done nothing wrong."""

    bad_nodes: frozenset[str]
    diagnostics: tuple[str, ...]


def next_step(tried: Tried, report: Report, now_s: float) -> Start | TryOthers | Wait:
    """Return what to do after a round.

    Args:
        tried: What was known before it.
        report: What it came to.
        now_s: On the clock of `tried.since_s`.
    """
    if report.passed:
        return Start()
    diagnostics = (*tried.diagnostics, *report.diagnostics())
    tries = tried.tries + 1
    if tries >= MOST_TRIES or now_s - tried.since_s >= MOST_S:
        return Wait(report.bad_nodes, diagnostics)
    return TryOthers(report.bad_nodes, Tried(tried.since_s, tries, tried.struck_off | report.bad_nodes, diagnostics))


def without(nodes: Iterable[str], tried: Tried) -> tuple[str, ...]:
    """Return the nodes that a job may still be placed on."""
    return tuple(node for node in nodes if node not in tried.struck_off)
