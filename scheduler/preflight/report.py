"""What a round of checks came to.

Source: SPEC C4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .check import Outcome, Result

BAD = (Outcome.FAIL, Outcome.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a round on all its nodes."""

    nodes: tuple[str, ...]
    results: tuple[Result, ...]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether a job may start on these nodes."""
        return not self.bad_nodes

    @property
    def bad_nodes(self) -> frozenset[str]:
        """Nodes with a check that failed or did not come to an end."""
        return frozenset(result.node for result in self.results if result.outcome in BAD)

    @property
    def bad(self) -> tuple[Result, ...]:
        """What failed or did not come to an end."""
        return tuple(result for result in self.results if result.outcome in BAD)

    @property
    def warnings(self) -> tuple[Result, ...]:
        """What is worth a look."""
        return tuple(result for result in self.results if result.outcome is Outcome.WARN)

    def diagnostics(self) -> tuple[str, ...]:
        """Return a line for each thing that is wrong: where, evidence, and what to do."""
        return tuple(result.words for result in self.bad)

    def as_json(self) -> Mapping[str, Any]:
        """Return all of it as JSON has it; docs/preflight.md has the fields."""
        return {
            "passed": self.passed,
            "nodes": list(self.nodes),
            "bad_nodes": sorted(self.bad_nodes),
            "seconds": self.seconds,
            "results": [asdict(result) for result in self.results],
        }


def joined(reports: Iterable[Report]) -> Report:
    """Return several reports as one."""
    found = tuple(reports)
    nodes = dict.fromkeys(node for report in found for node in report.nodes)
    results = tuple(result for report in found for result in report.results)
    return Report(tuple(nodes), results, sum(report.seconds for report in found))
