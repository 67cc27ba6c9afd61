"""An agent's part in probes: it sends to other agents, and receives from them, when the scheduler asks.

Source: SPEC F4.
"""

import errno
import logging
import os
import secrets
import socket
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address

from ....cluster.files.errors import InputError
from .messages import (
    Order,
    ProbePlace,
    Sender,
    Told,
    UnprovenError,
    opened_order,
    proof_of,
    read_line,
    sealed,
    write_line,
)
from .transfer import receive, send, want_stamps

log = logging.getLogger(__name__)

ASKED_S = 0.5  # for who connects to say what it wants
REACHED_S = 0.15  # for a connection: less than after which a lost packet is sent again
MOST_AT_ONCE = 16  # connections
MOST_IDS = 4096  # orders that are remembered, so that none is carried out twice
MOST_PORT = 65535
FIRST = -10  # niceness of the threads that send and receive
UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class BrokenError(Exception):
    """Raised when a node cannot be reached over the network."""


def connect(sender: Sender, until_s: float) -> socket.socket:
    """Return a connection over which another agent sends.

    Args:
        sender: The agent.
        until_s: By `time.monotonic`.

    Raises:
        BrokenError: If its node is not reached. That is so, too, if nothing answers: its kernel would.
        OSError: If the agent does not answer.
        UnprovenError: If who answers is not that agent.
    """
    place = sender.address, sender.port
    try:
        connection = socket.create_connection(place, min(REACHED_S, max(until_s - time.monotonic(), 1e-3)))
    except TimeoutError as error:
        raise BrokenError(f"nothing answers at {sender.address}:{sender.port}") from error
    except OSError as error:
        if error.errno in UNREACHABLE:
            raise BrokenError(f"{sender.address}:{sender.port}: {error.strerror}") from error
        raise
    try:
        write_line(connection, sender.ticket, until_s)
        if not secrets.compare_digest(read_line(connection, until_s), sender.proof):
            raise UnprovenError(f"who answers at {sender.address}:{sender.port} is not the agent")
    except BaseException:
        connection.close()
        raise
    return connection


class Prober:
    """Listens for orders, each in a thread of its own.

    Args:
        address: IP address of this node on the network over which rings exchange.
        port: To listen at; 0 for any that is free.

    Raises:
        InputError: If nobody can listen there.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        try:
            family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
            self._listening = socket.create_server((address, port), family=family, backlog=MOST_AT_ONCE)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"nobody can listen at {address}:{port}: {why}", "name an IP address of this node"
            ) from error
        port = int(self._listening.getsockname()[1])
        self.place = ProbePlace(address=address, port=port, key=secrets.token_hex(32))
        want_stamps(self._listening)  # from now on: the first packets behind a first wish would have none
        self._room = threading.Semaphore(MOST_AT_ONCE)
        self._done: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="probes", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        # To close it alone would not wake who waits for a connection.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if self._listening.fileno() < 0 or error.errno == errno.EINVAL:
                    return
                log.warning("no probe can be taken: %s", error)
                time.sleep(1.0)
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="probe", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):  # what trains here may use all processors; only root may go before it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), FIRST)
        try:
            with connection:
                self._carry_out(connection)
        except (OSError, UnprovenError) as error:
            log.debug("a probe broke off: %s", error)
        finally:
            self._room.release()

    def _carry_out(self, connection: socket.socket) -> None:
        """Do what an order says; what is not signed, or was done before, gets no answer."""
        key, until_s = self.place.key, time.monotonic() + ASKED_S
        order = opened_order(key, read_line(connection, until_s))
        if not self._is_new(order.id):
            raise UnprovenError(f"order {order.id} was carried out before")
        if order.sender is None:
            write_line(connection, proof_of(key, order.id), until_s)
            send(connection, order.limit_s)
        else:
            write_line(connection, sealed(key, _measured(order, order.sender)), time.monotonic() + ASKED_S)

    def _is_new(self, order: str) -> bool:
        with self._lock:
            if order in self._done:
                return False
            self._done[order] = None
            while len(self._done) > MOST_IDS:
                self._done.popitem(last=False)
            return True


def prober_at(told: str) -> Prober:
    """Return what listens at ADDRESS or ADDRESS:PORT; an address of IPv6 with a port stands in brackets.

    Raises:
        InputError: If nobody can listen there.
    """
    address, _, port = told.rpartition(":")
    if not address or (told.count(":") > 1 and not address.endswith("]")):
        address, port = told, "0"
    if not port.isdecimal() or int(port) > MOST_PORT:
        raise InputError(f"{port!r} in {told} is no port", "write ADDRESS:PORT, such as 10.0.0.5:7100")
    return Prober(address.removeprefix("[").removesuffix("]"), int(port))


def _measured(order: Order, sender: Sender) -> Told:
    """Return what is measured of a link, or why nothing is."""
    until_s = time.monotonic() + order.limit_s
    try:
        with connect(sender, until_s) as connection:
            figure = receive(connection, until_s - time.monotonic())
    except BrokenError as error:
        return Told(id=order.id, broken=str(error)[:200])
    except (OSError, UnprovenError) as error:
        return Told(id=order.id, failed=(str(error) or type(error).__name__)[:200])
    if figure is None:
        return Told(id=order.id, failed="too little came")
    return Told(id=order.id, counted_bytes=figure.counted_bytes, seconds=figure.seconds)
