"""A TCP port for a program that is about to listen.

Standard library only: supervisors of jobs import it.
"""

import random
import socket
from contextlib import suppress
from pathlib import Path

# Nothing that is usual listens here, and by default the system gives none of these to whoever connects.
_PORTS = range(10_000, 32_768)
_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens at.

    The program may take seconds until it listens. So the port is none that the system gives meanwhile to whoever
    connects, and it is drawn, so that two who ask at once hardly get the same, whatever they seed `random` with.

    Args:
        address: Of this machine, "" for all of them.
    """
    first, last = _given()
    ports = [it for it in _PORTS if not first <= it <= last]
    for port in random.SystemRandom().sample(ports, min(100, len(ports))):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            return port
    with socket.socket() as probe:  # all are taken, or are given to whoever connects
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _given() -> tuple[int, int]:
    """Return the first and the last port that the system gives to whoever connects."""
    try:
        first, last = map(int, _GIVEN.read_text().split())
    except (OSError, ValueError):
        return 32_768, 60_999
    return first, last
