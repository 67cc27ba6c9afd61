"""Rounds of checks beside a scheduler: each runs in a thread of its own, so that nothing waits for it.

Source: SPEC C1, C5, C6.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..cluster.files.errors import words_of
from .check import Report
from .warm import Node, WarmNodes

log = logging.getLogger(__name__)

MOST_ROUNDS = 4  # at once
LIMIT_S = 200.0  # of a round: its nodes may have to load PyTorch first
Work = Callable[[Mapping[str, Node]], Report]


class Ended(NamedTuple):
    """A round that has come to an end."""

    report: Report | None  # None if it could not be run
    problem: str  # why it could not
    ended_s: float  # Unix time


class Rounds:
    """The rounds of a scheduler, by a name that it gives them. Any thread may use it.

    Args:
        nodes: Warm processes.
        wake: Called when a round has ended.
        limit_s: After which a round is given up.
    """

    def __init__(self, nodes: WarmNodes, wake: Callable[[], None], limit_s: float = LIMIT_S) -> None:
        self._nodes, self._wake, self._limit_s = nodes, wake, limit_s
        self._running: dict[str, tuple[float, tuple[str, ...]]] = {}  # since when, by `time.monotonic`, and nodes
        self._ended: dict[str, Ended] = {}
        self._lock = threading.Lock()

    def begin(self, name: str, nodes: Iterable[str], work: Work) -> bool:
        """Begin a round, unless it runs or has ended; return whether it is under way.

        It is not while too many others run, or one that has a node of it.

        Args:
            name: Of the round.
            nodes: That it checks.
            work: Checks them.
        """
        names = tuple(nodes)
        with self._lock:
            if name in self._running or name in self._ended:
                return True
            lent = self._nodes.take(names) if len(self._running) < MOST_ROUNDS else None
            if lent is None:
                return False
            self._running[name] = time.monotonic(), names
        try:
            threading.Thread(target=self._run, args=(name, lent, work), name=f"checks of {name}", daemon=True).start()
        except RuntimeError:  # no thread can be had
            self._end(name, lent, Ended(None, "this machine has no room for one more thread", time.time()))
        return True

    def is_running(self, name: str) -> bool:
        """Say whether a round is under way, and has not ended."""
        with self._lock:
            return name in self._running

    def ended(self) -> Mapping[str, Ended]:
        """Return the rounds that have ended and were not forgotten. Those that take too long are brought to an end."""
        with self._lock:
            late = [nodes for since_s, nodes in self._running.values() if time.monotonic() - since_s > self._limit_s]
            ended = dict(self._ended)
        for nodes in late:
            self._nodes.kill(nodes)
        return ended

    def forget(self, name: str) -> None:
        """Forget how a round ended."""
        with self._lock:
            self._ended.pop(name, None)

    def close(self) -> None:
        """End all rounds."""
        self._nodes.close()

    def _run(self, name: str, lent: Mapping[str, Node], work: Work) -> None:
        report, problem = None, "they did not come to an end"
        try:
            report, problem = work(lent), ""
        except BaseException as error:  # a stranger's check may be broken in any way, and even exit
            log.exception("the checks of %s could not be run", name)
            problem = words_of(error)
        finally:
            self._end(name, lent, Ended(report, problem, time.time()))

    def _end(self, name: str, lent: Mapping[str, Node], ended: Ended) -> None:
        with self._lock:
            self._nodes.give_back(lent)
            del self._running[name]
            self._ended[name] = ended
        self._wake()
