"""A plug-in of pytest: what it prints at the end of the order of tests, and of those that were skipped."""

from collections import Counter
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "randomly_reset_seed"):
        config.option.randomly_reset_seed = False  # pytest-randomly is for the order; tests draw by seeds of their own


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := by_cause(terminalreporter.stats.get("skipped", ())):
        terminalreporter.section("skipped, by cause")
        for line in lines:
            terminalreporter.write_line(line)
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
