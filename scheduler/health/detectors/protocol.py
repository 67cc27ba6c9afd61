"""What a detector of slow steps is."""

from typing import Protocol, runtime_checkable


@runtime_checkable
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
