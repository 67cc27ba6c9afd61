"""The order regimes: which waiting job may start next. The command line imports this module before numba."""

from typing import Literal, NamedTuple

OrderName = Literal["easy", "easy-shortest", "fifo", "shortest"]


class OrderRegime(NamedTuple):
    """An order regime. In the live scheduler priorities come before it: it orders the jobs of one priority."""

    about: str  # one line, which commands print
    passes: bool = True  # whether jobs that delay no other may start while the one that leads waits
    by_work: bool = False  # whether jobs that may pass go by expected work, the shortest first; else in queue order
    shortest_leads: bool = False  # whether the job of least expected work leads, and not the head of the queue


ORDER_REGIMES: dict[str, OrderRegime] = {
    "easy": OrderRegime("the head; while it does not fit, jobs behind it that do not delay it, in queue order"),
    "easy-shortest": OrderRegime(
        "the head; while it does not fit, jobs behind it that do not delay it, the shortest first", by_work=True
    ),
    "fifo": OrderRegime(
        "the head of the queue only; while it does not fit or waits, no other job starts", passes=False
    ),
    "shortest": OrderRegime(
        "the job of shortest estimate; while it does not fit, others that do not delay it, shortest first",
        by_work=True,
        shortest_leads=True,
    ),
}
