"""Detectors by their names."""

from collections.abc import Callable
from typing import Protocol

from .cusum import Cusum
from .simple import EwmaRule, MadRule, MedianRule, SourceRule


class Detector(Protocol):
    """Follows the steps of one attempt."""

    @property
    def is_ready(self) -> bool:
        """Whether it has seen enough to say anything."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        ...

    @property
    def slow_steps(self) -> int:
        """For how many steps they have looked slow, 0 if the last one did not."""
        ...

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, above 0, and return whether steps are slow."""
        ...


DETECTORS: dict[str, Callable[[], Detector]] = {
    "cusum": Cusum,
    "median_k": lambda: MedianRule(1.25, 1),
    "in_a_row": lambda: MedianRule(1.2, 2),
    "mad": lambda: MadRule(2),
    "ewma": EwmaRule,
    "source_mean": lambda: SourceRule(literal=False),
    "source_literal": lambda: SourceRule(literal=True),
}
