"""How a ring looks: its order, whose state counts, who computes which shard, and which seats are empty.

The process that coordinates imports this module: standard library only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .standing import NOBODY, Durable, Member, Watch
from .wire import Empty, Form, Place, Report, Slow, Want


def form_of(durable: Durable, members: Mapping[int, Member]) -> Form:
    """Return the form of a generation: the source of the state is a member with the greatest step."""
    holders, shards = durable.holders, shards_of(durable)
    places = [Place(seat, holders[seat], mine, members[holders[seat]].store) for seat, mine in shards.items()]
    seated = [members[holders[seat]] for seat in shards]
    # Of a new member the step says nothing, as long as another one has run.
    source = max(seated, key=lambda it: (not it.fresh, it.step))
    receivers = [it.number for it in seated if it is not source and (it.fresh or it.step < source.step)]
    return Form(durable.generation, len(holders), places, source.number, receivers, source.store)


def shards_of(durable: Durable) -> dict[int, list[int]]:
    """Return the shards by filled seat: its own, and some of those of empty seats, so that all are done the soonest."""
    holders = durable.holders
    times = {seat: durable.slow.get(str(holder), 1.0) for seat, holder in enumerate(holders) if holder != NOBODY}
    shards = {seat: [seat] for seat in times}
    for orphan in (seat for seat, holder in enumerate(holders) if holder == NOBODY):
        shards[min(times, key=lambda seat: ((len(shards[seat]) + 1) * times[seat], seat))].append(orphan)
    return shards


def shards_at(durable: Durable, member: int) -> int:
    """Return how many shards a member computes; 1 for one without a seat, which computes none."""
    return len(shards_of(durable)[durable.holders.index(member)]) if member in durable.holders else 1


def want_of(durable: Durable, members: Mapping[int, Member], slow: Sequence[int] = ()) -> Want:
    """Return which seats are empty, and what is known of the others. Source: SPEC F2, F3.

    Args:
        durable: Who sits where.
        members: All that are not gone.
        slow: Seated members in whose place others are to compute.
    """
    order = [it for it in durable.holders if it != NOBODY]
    seated = [members[it] for it in order]
    return Want(
        generation=durable.generation,
        empty=list(_empty(durable.holders)) if order else [],
        order=order,
        step_s=max((sum(it.step_s) / len(it.step_s) for it in seated if it.step_s), default=0.0),
        compute_s={str(it.number): sum(it.compute_s) / len(it.compute_s) for it in seated if it.compute_s},
        nodes={str(it.number): it.node for it in seated},
        slow=[Slow(it, seat, *_beside(durable.holders, seat)) for it in slow for seat in [durable.holders.index(it)]],
        relieved=list(map(int, durable.relieved)),
    )


class Asked:
    """What a desk was told of a ring."""

    def __init__(self) -> None:
        self._told: object = None
        self._was_wanting = False

    def news(self, durable: Durable, members: Mapping[int, Member], slow: Sequence[int]) -> Want | None:
        """Return what a desk is to be told, None if it knows: whether seats are empty, or members slow."""
        now = (durable.generation, *durable.holders), tuple(slow), tuple(durable.relieved)
        if not durable.has_run or durable.phase.is_over or now == self._told:
            return None
        is_wanting, was_wanting = NOBODY in durable.holders or bool(slow or durable.relieved), self._was_wanting
        self._told, self._was_wanting = now, is_wanting
        return want_of(durable, members, slow) if is_wanting or was_wanting else None


def report_of(durable: Durable, members: Mapping[int, Member], recoveries: Iterable[Watch], hints: list[str]) -> Report:
    """Return the ring at present, for people."""
    return Report(
        phase=str(durable.phase),
        generation=durable.generation,
        seats=len(durable.holders),
        order=list(durable.holders),
        spares=sorted(members.keys() - set(durable.holders) - set(map(int, durable.relieved))),
        step=max((members[it].step for it in durable.holders if it != NOBODY), default=0),
        gone=dict(durable.gone),
        recoveries=[it.seconds() for it in recoveries],
        relieved=list(map(int, durable.relieved)),
        hints=hints,
    )


def _empty(holders: Sequence[int]) -> Iterator[Empty]:
    for seat in (it for it, holder in enumerate(holders) if holder == NOBODY):
        yield Empty(seat, *_beside(holders, seat))


def _beside(holders: Sequence[int], seat: int) -> tuple[int, int]:
    """Return the living members before and after a seat; its own holder where there is no other."""
    around = [holders[(seat + far) % len(holders)] for far in range(1, len(holders) + 1)]
    living = [it for it in around if it not in (NOBODY, holders[seat])] or [holders[seat]]
    return living[-1], living[0]
