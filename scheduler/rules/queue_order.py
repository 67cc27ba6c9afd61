"""The order in which waiting jobs are offered GPUs, as the store knows them.

The scheduler itself goes by `cluster/dispatch/order.py`. A job that does not fit is passed over by those that delay
nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
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


class Led(NamedTuple):
    """When a user last had their turn to lead, and the number of that turn; 0 for none."""

    at_s: float
    number: int


Turns = Mapping[tuple[str, int], Led]  # by owner and priority


def in_order(
    waiting: Iterable[Waiting], order: Order, ageing_s: float, now_s: float, in_service: int,
    turns: Turns | None = None,
) -> list[Waiting]:  # fmt: skip
    """Return waiting jobs as they are offered GPUs, the first one first.

    Args:
        waiting: The jobs.
        order: Order regime of docs/simulator.md.
        ageing_s: Time after which a job is overtaken by nobody.
        now_s: Unix time.
        in_service: GPUs that are not out of service; a job that asks for more does not age.
        turns: That users have had to lead; None where they take no turns. Each is then shown to lead in turn, one job
            of each user in a round.
    """
    line = sorted(waiting, key=_place)
    ages = order.passes  # else the first one is the oldest that counts
    aged = [it for it in line if ages and now_s >= _since_s(it) + ageing_s and it.gpus <= in_service]
    aged.sort(key=lambda it: (_since_s(it), _place(it)))
    old = {it.id for it in aged}
    if turns is not None:
        line = [it for it in line if it.id not in old]
        turns = _after(aged, turns, order, now_s)
        groups = [list(jobs) for _, jobs in groupby(line, lambda it: it.priority)]
        line = [it for place, jobs in enumerate(groups) for it in _in_rounds(jobs, order, turns, leads=place == 0)]
    elif order.key is not None:
        first = 0 if order.goes_first else 1
        line[first:] = _by_key(line[first:], order)
    return [*aged, *(it for it in line if it.id not in old)]


def _after(started: Iterable[Waiting], turns: Turns, order: Order, now_s: float) -> Turns:
    """Return the turns that users have had once some jobs, which have aged, have started."""
    last = max((turn.number for turn in turns.values()), default=0)
    taking = (it for it in started if order.goes_first or it.not_before_s == 0.0)
    return {**turns, **{(it.owner, it.priority): Led(now_s, last + at) for at, it in enumerate(taking, 1)}}


def _by_key(jobs: Iterable[Waiting], order: Order) -> list[Waiting]:
    key = order.key
    return list(jobs) if key is None else sorted(jobs, key=lambda it: (-it.priority, key(it.gpus, _left_s(it))))


def _in_rounds(jobs: Sequence[Waiting], order: Order, turns: Turns, *, leads: bool) -> list[Waiting]:
    """Return jobs of one priority, in the order of the queue, as their users take turns.

    Args:
        jobs: The jobs.
        order: Order regime. By a key jobs go behind the one that leads, or all, if the job of smallest key does.
        turns: That users have had.
        leads: Whether one of these jobs leads: there are none of a higher priority.
    """
    back = [it for it in jobs if it.not_before_s > 0.0]
    if order.key is not None:
        back = back[:1] if leads and not order.goes_first else []
    ahead = {it.id for it in back}
    lines: dict[str, list[Waiting]] = {}
    for it in jobs:
        if it.id not in ahead:
            lines.setdefault(it.owner, []).append(it)
    if not lines:
        return back
    users = in_turn((it for it in jobs if it.id not in ahead), turns)
    for place, user in enumerate(users):
        first = 1 if leads and place == 0 and not back and not order.goes_first else 0
        lines[user][first:] = _by_key(lines[user][first:], order)
    rounds = range(max(map(len, lines.values())))
    return back + [lines[user][at] for at in rounds for user in users if at < len(lines[user])]


def in_turn(jobs: Iterable[Waiting], turns: Turns) -> list[str]:
    """Return the users of waiting jobs of one priority, the one first whose turn it is to lead."""
    oldest: dict[str, Waiting] = {}
    for it in sorted(jobs, key=lambda it: (it.not_before_s > 0.0, it.entered_s, it.submit_seq)):
        oldest.setdefault(it.owner, it)

    def since(it: Waiting) -> tuple[float, int, int]:
        led = turns.get((it.owner, it.priority), Led(0.0, 0))
        at_s, number = max((it.entered_s, 0), (led.at_s, led.number)) if led.number else (it.entered_s, 0)
        return at_s, number, it.submit_seq

    return [it.owner for it in sorted(oldest.values(), key=since)]


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
