"""The door of an agent: a port at which it says which node it lives on, and what somebody finds who knocks there.

Whoever connects is told a line and is not read. So nobody can hold the agent up or make it do anything.

Source: SPEC C9; docs/nodes.md, A second look.
"""

import asyncio
import errno
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

log = logging.getLogger(__name__)

WITHIN_S = 2.0  # for a connection, and for the line behind it
LINE_BYTES = 1024
AT_ONCE = 64  # doors that one process knocks at
PAUSE_S = 0.1  # after an accept that failed, as where this process has no descriptor left


class Sight(StrEnum):
    """What somebody finds who knocks at a door."""

    ANSWERED = "answered"  # the agent of that node said that it lives
    ACCEPTED = "accepted"  # a connection was taken, and nothing was said: the machine lives, the agent stands still
    OTHER = "other"  # somebody else speaks there
    REFUSED = "refused"  # the machine lives, and no process has the port: the agent's connections are closed
    NO_ROUTE = "no route"
    TIMED_OUT = "timed out"
    UNABLE = "unable"  # who knocks could not look at all


class Knock(NamedTuple):
    """A door that somebody is to knock at."""

    node: str  # whose agent should answer
    address: str
    port: int


class Door:
    """Tells whoever connects which node this is, in a thread of its own.

    Args:
        node: Of the agent.
        boot_id: Names the time since the machine's start.
        port: To listen at, 0 for any that is free.

    Raises:
        OSError: If nobody can listen there.
    """

    def __init__(self, node: str, boot_id: str, port: int = 0) -> None:
        self._line = json.dumps({"node": node, "boot_id": boot_id}).encode() + b"\n"
        self._socket = _listening(port)
        self.port = int(self._socket.getsockname()[1])
        self._closed = False
        threading.Thread(target=self._serve, name="door", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(PAUSE_S)
                continue
            with connection, suppress(OSError):
                connection.settimeout(0.0)  # The line fits in any socket's buffer.
                connection.send(self._line)


def _listening(port: int) -> socket.socket:
    # As many may wait as the system lets: of a process that stands still none is taken.
    most = socket.SOMAXCONN
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be there and forbidden.
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=most, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=most)


def look_at(knocks: Sequence[Knock], within_s: float = WITHIN_S) -> list[Sight]:
    """Knock at doors, many at once, and return what is found at each.

    Args:
        knocks: The doors.
        within_s: For a connection, and again for what is said behind it.
    """

    async def every() -> list[Sight]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(knock: Knock) -> Sight:
            async with turns:
                return await _look(knock, within_s)

        return await asyncio.gather(*map(one, knocks))

    return asyncio.run(every())


async def _look(knock: Knock, within_s: float) -> Sight:
    try:
        ipaddress.ip_address(knock.address)  # No name is looked up: that may take long, and ask anybody.
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(knock.address, knock.port, limit=LINE_BYTES)
    except TimeoutError:
        return Sight.TIMED_OUT
    except ConnectionRefusedError:
        return Sight.REFUSED
    except (OSError, ValueError, OverflowError) as error:
        away = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
        return Sight.NO_ROUTE if getattr(error, "errno", None) in away else Sight.UNABLE
    try:
        async with asyncio.timeout(within_s):
            line = await reader.readline()
    except TimeoutError:
        return Sight.ACCEPTED
    except (OSError, ValueError):
        return Sight.OTHER
    finally:
        writer.close()
    return Sight.ANSWERED if _node_of(line) == knock.node else Sight.OTHER


def _node_of(line: bytes) -> object:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told.get("node") if isinstance(told, dict) else None
