"""How a ring looks: its order, whose state counts, who computes which shard, and which seats are empty.

The process that coordinates imports this module: standard library only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .standing import NOBODY, Durable, Member, Watch
from .wire import Empty, Form, Place, Report, Want


def form_of(durable: Durable, members: Mapping[int, Member]) -> Form:
    """Return the form of a generation: the source of the state is a member with the greatest step."""
    holders, shards = durable.holders, shards_of(durable.holders)
    places = [Place(seat, holders[seat], mine, members[holders[seat]].store) for seat, mine in shards.items()]
    seated = [members[holders[seat]] for seat in shards]
    # Of a new member the step says nothing, as long as another one has run.
    source = max(seated, key=lambda it: (not it.fresh, it.step))
    receivers = [it.number for it in seated if it is not source and (it.fresh or it.step < source.step)]
    return Form(durable.generation, len(holders), places, source.number, receivers, source.store)


def shards_of(holders: Sequence[int]) -> dict[int, list[int]]:
    """Return the shards by filled seat: that of an empty seat goes to a member that has a seat, in turn."""
    filled = [seat for seat, holder in enumerate(holders) if holder != NOBODY]
    shards = {seat: [seat] for seat in filled}
    for at, orphan in enumerate(seat for seat, holder in enumerate(holders) if holder == NOBODY):
        shards[filled[at % len(filled)]].append(orphan)
    return shards


def shards_at(holders: Sequence[int], member: int) -> int:
    """Return how many shards a member computes; 1 for one without a seat, which computes none."""
    return len(shards_of(holders)[holders.index(member)]) if member in holders else 1


def want_of(durable: Durable, members: Mapping[int, Member]) -> Want:
    """Return which seats are empty, and what is known of the others. Source: SPEC F2, F3."""
    order = [it for it in durable.holders if it != NOBODY]
    seated = [members[it] for it in order]
    return Want(
        generation=durable.generation,
        empty=list(_empty(durable.holders)) if order else [],
        order=order,
        step_s=max((sum(it.step_s) / len(it.step_s) for it in seated if it.step_s), default=0.0),
        compute_s={str(it.number): sum(it.compute_s) / len(it.compute_s) for it in seated if it.compute_s},
        nodes={str(it.number): it.node for it in seated},
    )


def report_of(durable: Durable, members: Mapping[int, Member], recoveries: Iterable[Watch], hints: list[str]) -> Report:
    """Return the ring at present, for people."""
    return Report(
        phase=str(durable.phase),
        generation=durable.generation,
        seats=len(durable.holders),
        order=list(durable.holders),
        spares=sorted(members.keys() - set(durable.holders)),
        step=max((members[it].step for it in durable.holders if it != NOBODY), default=0),
        gone=dict(durable.gone),
        recoveries=[it.seconds() for it in recoveries],
        hints=hints,
    )


def _empty(holders: Sequence[int]) -> Iterator[Empty]:
    for seat in (it for it, holder in enumerate(holders) if holder == NOBODY):
        around = [holders[(seat + far) % len(holders)] for far in range(1, len(holders))]
        living = [it for it in around if it != NOBODY]
        yield Empty(seat, before=living[-1], after=living[0])
