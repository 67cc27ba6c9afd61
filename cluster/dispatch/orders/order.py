"""What an order regime says. Each stands in a file of its own, and is registered under `longshore.orders`."""

from collections.abc import Callable
from typing import NamedTuple


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
