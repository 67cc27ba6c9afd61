"""Which bandwidths between nodes were measured lately, and the probes that are under way. Any thread may use it.

No node takes part in two probes at once. Two that share a sender or a receiver take bandwidth from each other; and what
a node sends holds up what it has to confirm of what it receives, so that short probes show too little.

Source: SPEC F4.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .link_probes import WHOLE_PROBE_S, Outcome, ProbePlace, State, probe

KEPT_S = 600.0  # for which what was measured counts
AGAIN_S = 60.0  # until what is broken or unknown is probed again
ROUND_S = 1.0  # for all probes that somebody waits for

Pair = tuple[str, str]  # nodes: who sends, and who receives
Places = Callable[[], Mapping[str, ProbePlace]]


class Link(NamedTuple):
    """What is known of a link."""

    outcome: Outcome
    at_s: float  # by `time.monotonic`


def startable(waiting: Sequence[Pair], running: Collection[Pair]) -> list[Pair]:
    """Return the pairs that can be probed now beside those that are: none shares a node with another."""
    busy, found = {node for pair in running for node in pair}, []
    for pair in waiting:
        if busy.isdisjoint(pair):
            found.append(pair)
            busy.update(pair)
    return found


class LinkTable:
    """The links between nodes that have agents which probe.

    Args:
        places: Returns where these listen, by node.
        passed_s: By a clock that nobody sets.
        probed: Probes a link, from one agent to another.
    """

    def __init__(
        self, places: Places, passed_s: Callable[[], float] = time.monotonic,
        probed: Callable[[ProbePlace, ProbePlace], Outcome] = probe,
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
            self._links = {pair: it for pair, it in self._links.items() if now_s - it.at_s <= _kept_s(it)}
            return self._links.copy()

    def ask(self, pairs: Iterable[Pair], until_s: float, wake: Callable[[], object]) -> bool:
        """Let links be probed that are not known; return whether any of them may still become so in time.

        Args:
            pairs: Who sends, and who receives. Nodes without an agent that probes are passed over.
            until_s: When all is to have ended, by the clock.
            wake: Called when a probe has ended, from a thread of its own.
        """
        places, known = self._places(), self.known()
        new = [it for it in pairs if it not in known and it[0] != it[1] and it[0] in places and it[1] in places]
        with self._lock:
            self._wake = wake
            self._waiting |= {it: until_s for it in new if it not in self._running and it not in self._waiting}
        self._begin()
        with self._lock:
            return any(it in self._waiting or it in self._running for it in new)

    def _begin(self) -> None:
        """Begin the probes that can begin, and drop those that would not end in time."""
        with self._lock:
            last_s = self._passed_s() + WHOLE_PROBE_S
            self._waiting = {it: until_s for it, until_s in self._waiting.items() if last_s <= until_s}
            begun = startable(list(self._waiting), self._running)
            for pair in begun:
                del self._waiting[pair]
            self._running.update(begun)
        for pair in begun:
            threading.Thread(target=self._run, args=(pair,), name="probe of a link", daemon=True).start()

    def _run(self, pair: Pair) -> None:
        places, outcome = self._places(), Outcome(State.UNKNOWN, why="the probe itself failed")
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
    return KEPT_S if link.outcome.state is State.MEASURED else AGAIN_S
