"""The bandwidths between nodes that were measured lately, and the probes in progress. Any thread may use it.

No node takes part in two probes at once. Two that share a sender or a receiver take bandwidth from each other; and what
a node sends delays the acknowledgements of what it receives, so that short probes show too little.

Source: SPEC F4.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .link_probes import WHOLE_PROBE_S, LinkOutcome, LinkState, ProbePlace, probe

LINK_KEPT_S = 600.0  # for which a measurement counts
LINK_AGAIN_S = 60.0  # until a broken or unknown link is probed again
ROUND_S = 1.0  # for all probes that a caller waits for

Pair = tuple[str, str]  # nodes: who sends, and who receives
Places = Callable[[], Mapping[str, ProbePlace]]


class Link(NamedTuple):
    """What is known of a link."""

    outcome: LinkOutcome
    at_s: float  # by `time.monotonic`


def startable(waiting: Sequence[Pair], running: Collection[Pair]) -> list[Pair]:
    """Return the pairs that can be probed now, beside the running probes: none shares a node with another."""
    busy, found = {node for pair in running for node in pair}, []
    for pair in waiting:
        if busy.isdisjoint(pair):
            found.append(pair)
            busy.update(pair)
    return found


class LinkTable:
    """The links between nodes whose agents probe.

    Args:
        places: Returns the places where these listen, by node.
        passed_s: Returns the time of a monotonic clock.
        probed: Probes a link, from one agent to another.
    """

    def __init__(
        self, places: Places, passed_s: Callable[[], float] = time.monotonic,
        probed: Callable[[ProbePlace, ProbePlace], LinkOutcome] = probe,
    ) -> None:  # fmt: skip
        self._places, self._passed_s, self._probed = places, passed_s, probed
        self._links: dict[Pair, Link] = {}
        self._waiting: dict[Pair, float] = {}  # until when they are to have ended
        self._running: set[Pair] = set()
        self._wake: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def known(self) -> dict[Pair, Link]:
        """Return what is known of links and is not too old."""
        now_s = self._passed_s()
        with self._lock:
            self._links = {pair: link for pair, link in self._links.items() if now_s - link.at_s <= _kept_s(link)}
            return self._links.copy()

    def request(self, pairs: Iterable[Pair], until_s: float, wake: Callable[[], object]) -> bool:
        """Probe the links that are not known; return whether any of them may still become so in time.

        Args:
            pairs: Who sends, and who receives. Nodes without an agent that probes are skipped.
            until_s: When all is to have ended, by the clock.
            wake: Called when a probe has ended, from a thread of its own.
        """
        places, known = self._places(), self.known()
        new = [
            pair
            for pair in pairs
            if pair not in known and pair[0] != pair[1] and pair[0] in places and pair[1] in places
        ]
        with self._lock:
            self._wake = wake
            self._waiting |= {pair: until_s for pair in new if pair not in self._running and pair not in self._waiting}
        self._begin()
        with self._lock:
            return any(pair in self._waiting or pair in self._running for pair in new)

    def _begin(self) -> None:
        """Begin the probes that can begin, and drop those that would not end in time."""
        with self._lock:
            last_s = self._passed_s() + WHOLE_PROBE_S
            self._waiting = {each: until_s for each, until_s in self._waiting.items() if last_s <= until_s}
            begun = startable(list(self._waiting), self._running)
            for pair in begun:
                del self._waiting[pair]
            self._running.update(begun)
        for pair in begun:
            threading.Thread(target=self._run, args=(pair,), name="probe of a link", daemon=True).start()

    def _run(self, pair: Pair) -> None:
        places, outcome = self._places(), LinkOutcome(LinkState.UNKNOWN, why="the probe itself failed")
        try:
            if pair[0] in places and pair[1] in places:  # else an agent has ended since
                outcome = self._probed(places[pair[0]], places[pair[1]])
        finally:
            with self._lock:
                self._running.discard(pair)
                self._links[pair] = Link(outcome, self._passed_s())
            self._begin()
            self._wake()


def _kept_s(link: Link) -> float:
    return LINK_KEPT_S if link.outcome.state is LinkState.MEASURED else LINK_AGAIN_S
