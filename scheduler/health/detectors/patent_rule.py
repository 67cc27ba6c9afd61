"""The threshold that a patent sets for slow steps, as it is meant and as it is written.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

from .counting import InARow


class PatentRule(InARow):
    """Slow while a step is longer than twice the mean of all before; literally, than 2 n times their sum.

    Args:
        literal: Whether to take the patent's formula as it is written, under which no step is ever slow.
    """

    __slots__ = ("_literal", "_seen", "_total_s")

    def __init__(self, *, literal: bool) -> None:
        super().__init__(1)
        self._literal, self._seen, self._total_s = literal, 0, 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it can say anything."""
        return self._seen > 0

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, and return whether steps are slow."""
        factor = 2.0 * (self._seen + 1) if self._literal else 2.0 / max(self._seen, 1)
        over = self.is_ready and step_s > factor * self._total_s
        self._seen += 1
        self._total_s += step_s
        return self.count(over=over)


def patent_mean() -> PatentRule:
    """Return the rule that a step over twice the mean of all before is slow."""
    return PatentRule(literal=False)


def patent_literal() -> PatentRule:
    """Return the rule as the patent writes it."""
    return PatentRule(literal=True)
