"""Knocking at doors beside other work: nobody waits for it.

Source: SPEC C9; docs/nodes.md, A second look.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....cluster.files.errors import LongshoreError
from ...client import Client
from .door import Knock, Sight, look_at
from .witnesses import Witnesses

log = logging.getLogger(__name__)


class Rounds:
    """Runs one round of knocks after the other, each in a thread of its own."""

    def __init__(self) -> None:
        self._running: threading.Thread | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a round has not ended yet."""
        return self._running is not None and self._running.is_alive()

    def begin(self, knocks: Sequence[Knock], take: Callable[[list[Sight]], object]) -> None:
        """Knock, and give what is found to a function."""

        def run() -> None:
            take(look_at(knocks))

        self._running = threading.Thread(target=run, name="knocks", daemon=True)
        self._running.start()


class OwnRounds:
    """The scheduler's own knocks.

    Args:
        witnesses: What is known of doors.
    """

    def __init__(self, witnesses: Witnesses) -> None:
        self._witnesses, self._rounds = witnesses, Rounds()

    def turn(self) -> None:
        """Knock where that is due, unless a round is under way."""
        if self._rounds.is_under_way:
            return
        asked_s = time.monotonic()
        if knocks := self._witnesses.due(asked_s):
            self._rounds.begin(knocks, lambda sights: self._take(knocks, sights, asked_s))

    def _take(self, knocks: Sequence[Knock], sights: Sequence[Sight], asked_s: float) -> None:
        for knock, sight in zip(knocks, sights, strict=True):
            self._witnesses.saw(knock, sight, asked_s)


class AskedRounds:
    """An agent's knocks at the doors of others, as the scheduler asks for them.

    Args:
        client: Of the scheduler.
        node: Of the agent.
    """

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node, self._rounds = client, node, Rounds()

    def take(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Knock where that is asked for, unless a round is under way; an order comes again until it was told of."""
        asked = {str(it["id"]): Knock(str(it["node"]), str(it["address"]), int(it["port"])) for it in orders}
        if asked and not self._rounds.is_under_way:
            self._rounds.begin(tuple(asked.values()), lambda sights: self._tell(asked, sights))

    def _tell(self, asked: Mapping[str, Knock], sights: Sequence[Sight]) -> None:
        try:
            self._client.tell_sights(self._node, dict(zip(asked, map(str, sights), strict=True)))
        except LongshoreError as error:
            log.warning("what was found at the doors of other agents could not be told: %s", error)
