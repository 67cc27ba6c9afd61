"""The links around an empty seat are measured before a GPU is chosen for it, those of the best candidates alone.

Source: SPEC F4, F5.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...failover.wire import Empty
from ...health.links.asking import State
from ...health.links.table import AGAIN_S, ROUND_S, Link, LinkTable, Pair

BEST = 3  # candidates whose links are measured
NO_GPUS = np.zeros(0, dtype=np.int32)
Numbers = tuple[int, int]  # nodes: who sends, and who receives


class Probing(NamedTuple):
    """Links that are measured for a seat."""

    generation: int
    seat: Empty
    pairs: tuple[Pair, ...]
    began_s: float  # by `time.monotonic`

    @property
    def until_s(self) -> float:
        """When all of it has ended."""
        return self.began_s + ROUND_S


class Seen(NamedTuple):
    """What is known of links, by numbers of nodes."""

    measured: Mapping[Numbers, float] = {}  # bytes/s
    age_s: Mapping[Numbers, float] = {}  # of these
    broken: Mapping[Numbers, str] = {}  # why
    unknown: Mapping[Numbers, str] = {}  # why nothing was measured


class LinksOf(NamedTuple):
    """The two links of a candidate, for people and for the store."""

    from_previous_measured_s: float | None  # seconds ago; None for a bandwidth that is reckoned
    to_next_measured_s: float | None
    words: str


def seen_in(known: Mapping[Pair, Link], nodes: Sequence[str], now_s: float) -> Seen:
    """Return what is known of links.

    Args:
        known: By names of nodes.
        nodes: These names, in the order of their numbers.
        now_s: By the clock of the links.
    """
    number = {name: at for at, name in enumerate(nodes)}
    links = {(number[a], number[b]): it for (a, b), it in known.items() if a in number and b in number}

    def why(state: State) -> dict[Numbers, str]:
        return {pair: it.outcome.why for pair, it in links.items() if it.outcome.state is state}

    measured = {pair: it for pair, it in links.items() if it.outcome.state is State.MEASURED}
    return Seen(
        {pair: it.outcome.bytes_per_s for pair, it in measured.items()},
        {pair: max(now_s - it.at_s, 0.0) for pair, it in measured.items()},
        why(State.BROKEN),
        why(State.UNKNOWN),
    )


def pairs_around(nodes: Sequence[str], around: tuple[int, int], candidates: Sequence[int]) -> tuple[Pair, ...]:
    """Return the links that matter, in an order in which those that can be probed at once stand side by side.

    Args:
        nodes: Names.
        around: Nodes of the members before and behind the seat.
        candidates: Nodes that could come between them.
    """
    before, after = around
    shifted = [*candidates[1:], *candidates[:1]]
    found = [pair for x, y in zip(candidates, shifted, strict=True) for pair in ((before, x), (y, after))]
    return tuple(dict.fromkeys((nodes[a], nodes[b]) for a, b in found if a != b))


def probing_for(
    before: Probing | None, generation: int, seat: Empty, pairs: Callable[[], tuple[Pair, ...]], *, grows: bool
) -> Probing:
    """Return what is measured for a seat: what was begun for it, or what is to begin.

    All seats of a ring that stands still have one second together. A ring that grows does not wait, but no job starts
    meanwhile; it has one second now and then.

    Args:
        before: What was measured for the ring last.
        generation: Of the ring.
        seat: That is empty.
        pairs: Returns the links that matter.
        grows: Whether the ring goes on without the seat.
    """
    now_s = time.monotonic()
    if before is None or before.generation != generation or (grows and now_s - before.until_s > AGAIN_S):
        return Probing(generation, seat, pairs(), now_s)
    return before if before.seat == seat or grows else Probing(generation, seat, pairs(), before.began_s)


def is_open(links: LinkTable, probing: Probing, wake: Callable[[], object]) -> bool:
    """Say whether links that matter may still become known in time; begin to measure them."""
    return time.monotonic() < probing.until_s and links.ask(probing.pairs, probing.until_s, wake)


class LinksAround(NamedTuple):
    """The links between candidates and the neighbours of a seat."""

    seen: Seen = Seen()
    around: tuple[int, int] = (-1, -1)  # nodes of the members before and behind the seat
    nodes: Sequence[str] = ()  # names
    gpu_node: NDArray[np.int32] = NO_GPUS  # (gpus,) node of each GPU
    broken: Mapping[int, LinksOf] = {}  # of GPUs that cannot exchange with a neighbour

    def with_broken(self, gpus: Sequence[int]) -> "LinksAround":
        """Return the same with those of some GPUs that are broken."""
        broken = self.seen.broken
        return self._replace(
            broken={gpu: self.of(gpu) for gpu in gpus if any(it in broken for it in self._pairs(gpu))}
        )  # fmt: skip

    def of(self, gpu: int) -> LinksOf:
        """Return what is known of the links of a GPU, for people."""
        seen, pairs = self.seen, self._pairs(gpu)
        to, away = (_words(seen, pair) for pair in pairs)
        before, after = (self.nodes[it] for it in self.around)
        words = to if to == away else f"from {before}: {to}; to {after}: {away}"
        for a, b in pairs:
            if (a, b) in seen.broken:
                words = f"the link from {self.nodes[a]} to {self.nodes[b]} is broken: {seen.broken[a, b]}"
        return LinksOf(seen.age_s.get(pairs[0]), seen.age_s.get(pairs[1]), words)

    def _pairs(self, gpu: int) -> tuple[Numbers, Numbers]:
        node = int(self.gpu_node[gpu])
        return (self.around[0], node), (node, self.around[1])


def _words(seen: Seen, pair: Numbers) -> str:
    if pair[0] == pair[1]:
        return "within the node"
    if pair in seen.age_s:
        return f"measured {seen.age_s[pair]:.0f} s ago"
    return f"reckoned, not measured: {seen.unknown[pair]}" if pair in seen.unknown else "reckoned"
