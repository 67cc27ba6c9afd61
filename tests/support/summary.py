"""A plug-in of pytest: what it prints in the end of tests that were skipped or nearly too slow, and of their order."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.reports import USED

NEAR = 0.6  # of the time that a test has


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "randomly_reset_seed"):
        config.option.randomly_reset_seed = False  # pytest-randomly is for the order; tests draw by seeds of their own


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := by_cause(terminalreporter.stats.get("skipped", ())):
        terminalreporter.section("skipped, by cause")
        for line in lines:
            terminalreporter.write_line(line)
    if slow := near_their_limits(it for reports in terminalreporter.stats.values() for it in reports):
        terminalreporter.section("near their limits of time")
        for share, test in slow:
            terminalreporter.write_line(f"{share:5.0%}  {test}")
    seed = getattr(config.option, "randomly_seed", "default")
    if seed != "default" and any(terminalreporter.stats.get(it) for it in ("failed", "error")):
        terminalreporter.write_line(f"the same order again: make test SEED={seed}, or pytest --randomly-seed={seed}")


def by_cause(reports: Any) -> list[str]:
    """Return a line for each reason for which tests were skipped, the commonest first."""
    counts: Counter[str] = Counter()
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        counts[reason.removeprefix("Skipped: ")] += 1
    return [f"{count:5d}  {reason}" for reason, count in counts.most_common()]


def near_their_limits(reports: Iterable[Any]) -> list[tuple[float, str]]:
    """Return the tests that used most of their time, and the share that each used, the slowest first."""
    found = [(dict(it.user_properties).get(USED, 0.0), it.nodeid) for it in reports if hasattr(it, "user_properties")]
    return sorted({it for it in found if it[0] > NEAR}, reverse=True)
