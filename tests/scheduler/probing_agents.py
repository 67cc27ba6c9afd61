"""Agents of nodes that probe links over real sockets of this machine, some of which send slowly, hang or lie."""

import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from longshore.scheduler.health import link_probes
from longshore.scheduler.health.link_probes import ProbeOrder, ProbePlace, Prober, UnprovenError, send_probe_bytes

HERE = "127.0.0.1"


class Agents:
    """Agents that probe, one for each node, in this process.

    Args:
        nodes: Their names.
        patch: Lets some of them send slowly.
    """

    def __init__(self, nodes: Iterable[str], patch: pytest.MonkeyPatch) -> None:
        self.probers = {node: Prober(HERE) for node in nodes}
        self._open = list(self.probers.values())
        self._rates = dict[int, float]()  # bytes/s of those that send slowly, by port
        self._ends = threading.Event()
        self._reporting: threading.Thread | None = None
        self.gpus = dict[str, list[dict[str, Any]]]()  # that a node reports
        self.probes = True  # they say so
        self._patch = patch
        patch.setattr(link_probes, "send_probe_bytes", self._send)

    @property
    def places(self) -> dict[str, ProbePlace]:
        return {node: it.place for node, it in self.probers.items()}

    def slow_down(self, node: str, bytes_per_s: float) -> None:
        """Let a node send no faster than that."""
        self._rates[self.probers[node].place.port] = bytes_per_s

    def hang(self) -> None:
        """Let no agent carry out any order, until the end."""

        def wait(kind: type[ProbeOrder], key: str, line: str) -> ProbeOrder:
            self._ends.wait()
            raise UnprovenError("all is over")

        self._patch.setattr(link_probes, "verified_message", wait)

    def _send(self, connection: socket.socket, limit_s: float) -> None:
        rate = self._rates.get(connection.getsockname()[1])
        if rate is None:
            send_probe_bytes(connection, limit_s)
            return
        began_s, sent = time.monotonic(), 0
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        try:
            while (passed_s := time.monotonic() - began_s) < limit_s:
                due = int(passed_s * rate) - sent
                sent += connection.send(bytes(due)) if due > 0 else 0
                time.sleep(0.001)
        except OSError:  # the receiver has enough
            return

    def report_to(self, tell: Any) -> None:
        """Report to a scheduler each second, until the end."""

        def report() -> None:
            while not self._ends.is_set():
                for node, it in self.probers.items():
                    place = it.place.model_dump() if self.probes else None
                    tell("POST", f"/v1/nodes/{node}/report", gpus=self.gpus.get(node, []), probes=place)
                self._ends.wait(1.0)

        self._reporting = threading.Thread(target=report, daemon=True)
        self._reporting.start()

    def close(self) -> None:
        """Let nobody be probed any more, though the reports say so; once."""
        while self._open:
            self._open.pop().close()

    def end(self) -> None:
        self._ends.set()
        if self._reporting is not None:
            self._reporting.join()
        self.close()
