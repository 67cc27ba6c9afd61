"""Checks that the agents of nodes are to run: asked for by the scheduler, fetched with the answer to a report.

An order stands in every answer until its outcome has come, as an agent may be started anew. Kept in memory: whoever
asked waits, and asks again if the scheduler ends.

Source: SPEC C8.
"""

import secrets
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from ....cluster.files.errors import InputError

LIMIT_S = 300.0  # for an agent to fetch an order, load PyTorch, run the checks and tell


class Order(NamedTuple):
    """Checks that an agent is to run."""

    id: str
    gpus: tuple[int, ...]
    level: int


class Outcome(NamedTuple):
    """What came of an order."""

    passed: bool
    evidence: str


@dataclass(slots=True)
class _Open:
    order: Order
    has_come: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None


class CheckOrders:
    """The orders that wait for an outcome. Any thread may use it.

    Args:
        limit_s: After which an order is given up.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._open: dict[str, dict[str, _Open]] = {}  # by node and id
        self._able: dict[str, bool] = {}  # nodes whose agents have reported, and whether they run checks
        self._lock = threading.Lock()

    def ask(self, node: str, gpus: tuple[int, ...], level: int = 1) -> Outcome:
        """Let the agent of a node check GPUs of it, and wait for the outcome.

        Raises:
            InputError: If no agent there runs checks, or none has told of an outcome in time.
        """
        asked = _Open(Order(secrets.token_hex(8), gpus, level))
        with self._lock:
            if not self._able.get(node, False):
                fix = f"start it by `longshore agent --node {node} --checks`"
                raise InputError(f"no agent on {node} runs checks", fix)
            self._open.setdefault(node, {})[asked.order.id] = asked
        asked.has_come.wait(self._limit_s)
        with self._lock:
            self._open[node].pop(asked.order.id)
            if asked.outcome is None:
                raise InputError(f"the agent on {node} did not tell within {self._limit_s:.0f} s what it found")
            return asked.outcome

    def fetch(self, node: str, *, able: bool) -> tuple[Order, ...]:
        """Return what a node's agent is to check.

        Args:
            node: Whose agent asks.
            able: Whether it runs checks.
        """
        with self._lock:
            self._able[node] = able
            return tuple(it.order for it in self._open.get(node, {}).values()) if able else ()

    def settle(self, node: str, order: str, outcome: Outcome) -> bool:
        """Take the outcome of an order; return whether anybody waits for it."""
        with self._lock:
            found = self._open.get(node, {}).get(order)
            if found is None or found.outcome is not None:
                return False
            found.outcome = outcome
        found.has_come.set()
        return True

    def can(self, node: str) -> bool:
        """Say whether the agent of a node runs checks."""
        with self._lock:
            return self._able.get(node, False)

    def stop(self) -> None:
        """Let nobody wait any more."""
        with self._lock:
            waiting = [it for of_node in self._open.values() for it in of_node.values()]
        for it in waiting:
            it.has_come.set()
