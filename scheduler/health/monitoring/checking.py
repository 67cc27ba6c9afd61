"""An agent's part in checks: it runs what the scheduler asks for, beside its reports, and tells what was found.

Source: SPEC C8.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from ....cluster.files.errors import LongshoreError
from ...client import Client
from ...model.error_words import words_of
from ...preflight.context import Place
from ...preflight.round import check_place

log = logging.getLogger(__name__)

MOST_EVIDENCE = 2000  # characters
_LINE = dict.fromkeys((*range(32), 127), " ")


class Checking:
    """Runs one order after the other, in a thread of its own: reports never wait for checks.

    Args:
        client: Of the scheduler.
        place: This node.
    """

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place
        self._running: threading.Thread | None = None

    def take(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Begin with the first order, unless one is under way; an order comes again until its outcome was told."""
        first = next(iter(orders), None)
        if first is None or (self._running is not None and self._running.is_alive()):
            return
        self._running = threading.Thread(target=self._run, args=(first,), name="checks", daemon=True)
        self._running.start()

    def _run(self, order: Mapping[str, Any]) -> None:
        try:
            passed, evidence = check_place(self._place, tuple(order["gpus"]), int(order["level"]))
        except Exception as error:  # a check may fail in any way
            passed, evidence = False, f"the checks themselves failed: {words_of(error)}"
        line = evidence.translate(_LINE)[:MOST_EVIDENCE]
        log.info("checks of %s: %s", self._place.node, line)
        try:
            self._client.tell_outcome(self._place.node, str(order["id"]), passed=passed, evidence=line)
        except LongshoreError as error:
            log.warning("what the checks found could not be told, and they are run again: %s", error)
