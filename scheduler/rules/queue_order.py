"""The order in which waiting jobs are offered GPUs, as the store knows them.

The scheduler itself goes by `cluster/dispatch/order.py`. A job that does not fit is passed over by those that delay
nobody.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...cluster.dispatch.orders.order import Order


class Waiting(NamedTuple):
    """A job in the queue."""

    id: str
    owner: str
    priority: int
    gpus: int
    submit_seq: int
    entered_s: float
    not_before_s: float
    wait_s: float
    guess_s: float
    saved_s: float


def in_order(waiting: Iterable[Waiting], order: Order, ageing_s: float, now_s: float, in_service: int) -> list[Waiting]:
    """Return waiting jobs as they are offered GPUs, the first one first.

    Args:
        waiting: The jobs.
        order: Order regime of docs/simulator.md.
        ageing_s: Time after which a job is overtaken by nobody.
        now_s: Unix time.
        in_service: GPUs that are not out of service; a job that asks for more does not age.
    """
    line = sorted(waiting, key=_place)
    if order.key is not None:
        key, first = order.key, 0 if order.goes_first else 1
        line[first:] = sorted(line[first:], key=lambda it: (-it.priority, key(it.gpus, _left_s(it))))
    if not order.passes:  # there the first one is the oldest that counts
        return line
    aged = [it for it in line if now_s >= _since_s(it) + ageing_s and it.gpus <= in_service]
    aged.sort(key=lambda it: (_since_s(it), _place(it)))
    old = {it.id for it in aged}
    return [*aged, *(it for it in line if it.id not in old)]


def places(line: Sequence[Waiting]) -> dict[str, int]:
    """Return the place of each job in the queue, from 1."""
    return {it.id: place for place, it in enumerate(line, 1)}


def _place(it: Waiting) -> tuple[int, int, float, int]:
    """Return what puts jobs into the order of the queue: as `recall.queue_key`."""
    if it.not_before_s > 0.0:
        return -it.priority, 0, -max(it.entered_s, it.not_before_s), -it.submit_seq
    return -it.priority, 1, it.entered_s, it.submit_seq


def _since_s(it: Waiting) -> float:
    return it.entered_s - it.wait_s


def _left_s(it: Waiting) -> float:
    """Return the estimated work that a job has left; the estimate doubles until it exceeds what is saved."""
    guess_s = it.guess_s
    while 0.0 < guess_s <= it.saved_s:
        guess_s *= 2.0
    return guess_s - it.saved_s
