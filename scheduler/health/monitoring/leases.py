"""Leases of nodes: proof by time that nothing of the scheduler's jobs runs on a node that does not answer.

An agent that guards its node kills the processes of all attempts there once it has had no answer for `LEASE_S` by its
own clock. It counts from the moment at which it sent what was answered, the scheduler from the moment of its answer,
which is later. So after `LEASE_S` and `MARGIN_S` without an answer the processes are gone. All clocks here are ones
that nobody sets.

Source: docs/nodes.md, Leases.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ...model.placement import Placement
from ..reports import Report

LEASE_S = 10.0  # for which an answer lets processes live
MARGIN_S = 2.0  # for the kill itself, and for clocks that do not run equally fast
FENCED = "fenced"  # of a node: the word of the event


class Granted(NamedTuple):
    """What the agent of a node is answered."""

    lease_s: float | None  # None where nobody grants leases
    token: int  # of who grants it: the agent heeds none of a lower one
    kill: tuple[str, ...] = ()  # attempts that the store has given up, and that must not live there


NO_LEASE = Granted(None, 0)


class Leases:
    """The leases of all nodes as one scheduler knows them. Any thread may use it.

    Args:
        passed_s: By a clock that nobody sets.
    """

    def __init__(self, passed_s: Callable[[], float] = time.monotonic) -> None:
        self._passed_s = passed_s
        self._lock = threading.Lock()
        self._began_s = passed_s()
        self._granted_s: dict[str, float] = {}

    def begin(self) -> None:
        """Begin to lead: another scheduler may have granted leases up to now."""
        with self._lock:
            self._began_s = self._passed_s()
            self._granted_s.clear()

    def grant(self, node: str, token: int, leads: Callable[[], bool]) -> Granted:
        """Grant a lease to the agent of a node, if this scheduler surely leads at this moment.

        Args:
            node: Of the agent.
            token: Of the scheduler's own lease.
            leads: Says whether it leads, once the lease is noted: who takes over meanwhile waits for longer.
        """
        with self._lock:
            self._granted_s[node] = self._passed_s()
            return Granted(LEASE_S, token) if leads() else NO_LEASE

    def has_run_out(self, node: str) -> bool:
        """Say whether no lease of a node can be valid any more, whoever granted it."""
        with self._lock:
            last_s = max(self._granted_s.get(node, self._began_s), self._began_s)
            return self._passed_s() - last_s > LEASE_S + MARGIN_S


def is_gone(
    attempt: str, placement: Placement, fenced: Collection[str], reports: Mapping[str, Report], since_s: float
) -> bool:  # fmt: skip
    """Say whether no process of an attempt that ran lives on any of its nodes, by leases and by what agents see.

    Args:
        attempt: Its name. All its ranks ran, so none of them starts any more.
        placement: Its GPUs.
        fenced: Nodes whose leases have run out.
        reports: The last report of each agent.
        since_s: When the backend was told to stop it, by the clock of the reports' arrival.
    """
    return all(share.node in fenced or _does_not_see(reports.get(share.node), attempt, since_s) for share in placement)


def _does_not_see(report: Report | None, attempt: str, since_s: float) -> bool:
    """Say whether an agent that sees all processes of its node does not see an attempt any more."""
    if report is None or report.told.attempts is None or report.came_s <= since_s:
        return False
    return attempt not in report.told.attempts
