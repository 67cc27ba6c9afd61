"""Counting steps that look slow, for rules that want so many of them in a row."""


class InARow:
    """Slow while so many steps in a row were over a limit.

    Args:
        needed: How many.
    """

    __slots__ = ("_needed", "slow_steps")

    def __init__(self, needed: int) -> None:
        self._needed, self.slow_steps = needed, 0

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        return self.slow_steps >= self._needed

    def count(self, *, over: bool) -> bool:
        """Take in whether a step was over the limit, and return whether steps are slow."""
        self.slow_steps = self.slow_steps + 1 if over else 0
        return self.is_slow
