"""The order regimes: what one is, ours, and those that other packages register."""

from collections.abc import Callable
from typing import NamedTuple

from ..kernels.compiled import kernel


class Order(NamedTuple):
    """An order regime.

    Priorities go before it in the live scheduler: it orders the jobs of one priority.

    Args:
        about: One line for people.
        passes: Whether jobs that delay nobody may start while the one that goes first waits.
        key: Compiled by `longshore.cluster.kernels.compiled.kernel`: of the GPUs that a job asks for and the seconds
            that it is expected to run on reference GPUs, a number. Jobs that may pass go by it, the smallest first, and
            as the queue stands among equals. None: as the queue stands.
        goes_first: Whether the job of smallest key goes first, and not the head of the queue. Needs a key.
    """

    about: str
    passes: bool = True
    key: Callable[[int, float], float] | None = None
    goes_first: bool = False


FIFO = Order("the head of the queue only; while it does not fit or waits, no other job starts", passes=False)


EASY = Order("the head; while it does not fit, jobs behind it that do not delay it, in queue order")


@kernel
def expected_work(gpus: int, work_s: float) -> float:
    """Return the seconds that a job is expected to run."""
    return float(work_s)


SHORTEST = Order("the job of shortest estimate; while it does not fit, others that do not delay it, shortest first",
              key=expected_work, goes_first=True)  # fmt: skip


EASY_SHORTEST = Order(
    "the head; while it does not fit, jobs behind it that do not delay it, the shortest first", key=expected_work
)
