"""How many GPUs one user may have: the jobs of a user that are more than that wait outside the queue.

Source: SPEC K1.
"""

from collections import Counter
from collections.abc import Iterable

from ..model.job import JobRow


class Quota:
    """What users may still have. In their own order: a job that does not fit lets no later one of its owner pass.

    Args:
        gpus: Of one user, held and in the queue together; None for any number.
        inside: Jobs that hold GPUs or are in the queue.
    """

    def __init__(self, gpus: int | None, inside: Iterable[JobRow]) -> None:
        self.gpus = gpus
        self._has: Counter[str] = Counter()
        self._full: set[str] = set()
        for row in inside if gpus is not None else ():
            self._has[row.owner] += row.gpus

    def take(self, row: JobRow) -> bool:
        """Count a job as one of its owner's if they may have its GPUs, and say whether they may."""
        if self.gpus is None:
            return True
        if row.owner in self._full or self._has[row.owner] + row.gpus > self.gpus:
            self._full.add(row.owner)
            return False
        self._has[row.owner] += row.gpus
        return True
