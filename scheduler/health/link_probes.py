"""Probes of links between nodes: asked for by the scheduler, carried out and measured by two agents.

What a scheduler and the agents of two nodes say to each other about a probe, and how they know each other.

Each agent makes a key when it starts, and tells the scheduler of it in its reports. So whoever can sign with the key of
an agent is that agent, or a scheduler to which it reports. Messages are lines: a signature, and JSON.

One transfer over a socket, and what its receiver measures of it.

The receiver's clock counts: that of its kernel, where the kernel tells when bytes came, since a busy machine reads them
later. The first fifth of the bytes is left out, as buffers swallow it at once. Of the rest, in parts, the median
counts where it is higher than the whole: a sender or receiver that has to wait for a processor makes no link slow.

Source: SPEC F4.
"""

import errno
import hashlib
import hmac
import logging
import os
import secrets
import socket
import statistics
import struct
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, NamedTuple, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.yaml_file import ExactTypes
from ...preflight.link_checks import MAX_PROBE_BYTES, MIN_PROBE_BYTES, PROBE_PARTS, PROBE_S, SKIPPED_PARTS

MOST_LINE = 4096  # bytes
KEY_WORDS = "64 characters: digits and a to f."
ADDRESS_WORDS = "An IP address."
ID_WORDS = "32 characters: digits and a to f."

Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description=KEY_WORDS)]
Port = Annotated[int, Field(ge=1, le=65535)]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description=ID_WORDS)]
Limit = Annotated[float, Field(gt=0.0, le=10.0)]


def _an_address(text: str) -> str:
    """Refuse what is no IP address: a name would have to be looked up, which may take long."""
    return str(ip_address(text))


Address = Annotated[str, Field(max_length=45, description=ADDRESS_WORDS), AfterValidator(_an_address)]


class _Said(ExactTypes):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProbePlace(_Said):
    """Where an agent listens for probes, and the key by which it is known."""

    address: Address
    port: Port
    key: Hex64


class Sender(_Said):
    """The agent that is to send, as the one that is to receive is told of it."""

    address: Address
    port: Port
    ticket: Annotated[str, Field(max_length=1024)]  # line to be said to it
    proof: Hex64  # that it answers


class Order(_Said):
    """What an agent is to do."""

    id: Id
    limit_s: Limit  # of the transfer
    sender: Sender | None = None  # to receive from; none to send to whoever brings the order


class Told(_Said):
    """What came of an order to receive."""

    id: Id
    counted_bytes: Annotated[int, Field(ge=0, le=2**53)] = 0
    seconds: Annotated[float, Field(ge=0.0, le=60.0, allow_inf_nan=False)] = 0.0
    broken: Annotated[str, Field(max_length=200)] = ""  # why the sender cannot be reached
    failed: Annotated[str, Field(max_length=200)] = ""  # why nothing is known


SaidT = TypeVar("SaidT", Order, Told)


class UnprovenError(ValueError):
    """Raised when what was said is not signed by the right key, or makes no sense."""


def new_id() -> str:
    """Return the id of a probe."""
    return secrets.token_hex(16)


def sealed(key: str, said: Order | Told) -> str:
    """Return a message as a line."""
    text = said.model_dump_json()
    return f"{_signature(key, type(said).__name__, text)} {text}"


def opened_order(key: str, line: str) -> Order:
    """Return the order of a line.

    Raises:
        UnprovenError: If it is none.
    """
    return _parsed(Order, key, line)


def opened_told(key: str, line: str) -> Told:
    """Return what a line tells.

    Raises:
        UnprovenError: If it tells nothing.
    """
    return _parsed(Told, key, line)


def proof_of(key: str, order: str) -> str:
    """Return by what an agent proves that it is the one that an order is for."""
    return _signature(key, "proof", order)


def sender_at(place: ProbePlace, order: Order) -> Sender:
    """Return an agent as others are told of it that may let it send, once."""
    return Sender(
        address=place.address, port=place.port, ticket=sealed(place.key, order), proof=proof_of(place.key, order.id)
    )


def _parsed(kind: type[SaidT], key: str, line: str) -> SaidT:
    signature, _, text = line.partition(" ")
    if not hmac.compare_digest(signature.encode(), _signature(key, kind.__name__, text).encode()):
        raise UnprovenError("the signature is another one")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise UnprovenError(f"that is no {kind.__name__.lower()}") from error


def _signature(key: str, kind: str, text: str) -> str:
    return hmac.new(bytes.fromhex(key), f"{kind} {text}".encode(), hashlib.sha256).hexdigest()


def read_line(connection: socket.socket, until_s: float) -> str:
    """Return a line of a connection, and read nothing behind it.

    Args:
        connection: The connection.
        until_s: By `time.monotonic`.

    Raises:
        OSError: If none comes in time.
        UnprovenError: If it is too long, or no text.
    """
    line = b""
    while not line.endswith(b"\n"):
        if len(line) >= MOST_LINE:
            raise UnprovenError("the line is too long")
        connection.settimeout(max(until_s - time.monotonic(), 1e-3))
        seen = connection.recv(MOST_LINE - len(line), socket.MSG_PEEK)
        if not seen:
            raise ConnectionError("the connection was closed")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    try:
        return line[:-1].decode("ascii")
    except UnicodeDecodeError as error:
        raise UnprovenError("that is no text") from error


def write_line(connection: socket.socket, line: str, until_s: float) -> None:
    """Write a line.

    Raises:
        OSError: If it is not taken in time.
    """
    connection.settimeout(max(until_s - time.monotonic(), 1e-3))
    connection.sendall(f"{line}\n".encode())


LIMIT_S = 0.25  # for a transfer: on a link that is too slow for the least bytes, those that came by then count
STALLED_S = 0.1  # without a byte in the end of a transfer that was cut off: it hangs, and is no slow one
BLOCK = 1 << 18  # bytes that are written and read at a time
STAMPS = 35  # Linux's SO_TIMESTAMPNS, of which Python does not know; also the type of what comes of it
STAMP = struct.Struct("@ll")  # seconds and nanoseconds

Came = list[tuple[int, float]]  # bytes so far, and when


class Figure(NamedTuple):
    """What a receiver measured."""

    counted_bytes: int  # without the first ones
    seconds: float  # that they took

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth."""
        return self.counted_bytes / self.seconds


def want_stamps(connection: socket.socket) -> None:
    """Let the kernel tell when bytes come, where it can. Only while some socket wants that, all packets have stamps."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, STAMPS, 1)


def send(connection: socket.socket, limit_s: float) -> None:
    """Send until the receiver has enough and closes, or until the limit."""
    until_s, left, block = time.monotonic() + limit_s, MAX_PROBE_BYTES, memoryview(bytes(BLOCK))
    with suppress(OSError):
        while left > 0 and (wait_s := until_s - time.monotonic()) > 0.0:
            connection.settimeout(wait_s)
            left -= connection.send(block[:left])


def receive(connection: socket.socket, limit_s: float) -> Figure | None:
    """Receive until the bandwidth is known, and return it; None if too little comes.

    Args:
        connection: Over which the other end sends.
        limit_s: For all of it.

    Raises:
        OSError: If the connection breaks.
    """
    until_s, block, total, first = time.monotonic() + limit_s, bytearray(BLOCK), 0, 0
    read: Came = []
    stamped: Came = []
    want_stamps(connection)
    while (wait_s := until_s - time.monotonic()) > 0.0:
        connection.settimeout(wait_s)
        try:
            got, told, _, _ = connection.recvmsg_into([block], socket.CMSG_SPACE(STAMP.size))
        except TimeoutError:
            continue
        if not got:
            break
        total += got
        read.append((total, time.monotonic()))
        stamped += [(total, _stamp(it)) for _, kind, it in told if kind == STAMPS and len(it) == STAMP.size]
        while read[first][0] * PROBE_PARTS < total * SKIPPED_PARTS:  # the first bytes are left out
            first += 1
        if total >= MAX_PROBE_BYTES or (total >= MIN_PROBE_BYTES and read[-1][1] - read[first][1] >= PROBE_S):
            break
    if not read or time.monotonic() - read[-1][1] > STALLED_S:
        return None
    return _figure((stamped if len(stamped) == len(read) else read)[first:])


def _stamp(told: bytes) -> float:
    seconds, nanoseconds = STAMP.unpack(told)
    return float(seconds + nanoseconds * 1e-9)


def _figure(came: Came) -> Figure | None:
    """Return what is measured of bytes that came; of too few nothing is."""
    if len(came) < 2:
        return None
    counted, seconds = came[-1][0] - came[0][0], came[-1][1] - came[0][1]
    if not seconds > 0.0:
        return None
    median = statistics.median(_rates(came, counted / (PROBE_PARTS - SKIPPED_PARTS)))
    return Figure(counted, min(seconds, counted / median) if median > 0.0 else seconds)


def _rates(came: Came, part: float) -> list[float]:
    """Return the bandwidth of each part of so many bytes."""
    found, (sent, since_s) = [], came[0]
    for total, at_s in came[1:]:
        if total - sent >= part and at_s > since_s:
            found.append((total - sent) / (at_s - since_s))
            sent, since_s = total, at_s
    return found or [0.0]


log = logging.getLogger(__name__)

ORDER_S = 0.5  # for who connects to say what it wants
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
        key, until_s = self.place.key, time.monotonic() + ORDER_S
        order = opened_order(key, read_line(connection, until_s))
        if not self._is_new(order.id):
            raise UnprovenError(f"order {order.id} was carried out before")
        if order.sender is None:
            write_line(connection, proof_of(key, order.id), until_s)
            send(connection, order.limit_s)
        else:
            write_line(connection, sealed(key, _measured(order, order.sender)), time.monotonic() + ORDER_S)

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


WHOLE_PROBE_S = 0.32  # for all of a probe: three one after the other fit into a second
REACH_AGENT_S = 0.15  # for an agent to be reached


class State(StrEnum):
    """What a probe found."""

    MEASURED = "measured"
    BROKEN = "broken"  # the sender's node answers the scheduler, but not the receiver
    UNKNOWN = "unknown"


class Outcome(NamedTuple):
    """What came of a probe."""

    state: State
    bytes_per_s: float = 0.0
    why: str = ""  # if it is broken, or unknown


def probe(sender: ProbePlace, receiver: ProbePlace, limit_s: float = WHOLE_PROBE_S) -> Outcome:
    """Let one agent send to another, and return what that tells of the link.

    Args:
        sender: Where the one listens.
        receiver: Where the other does.
        limit_s: For all of it.
    """
    began_s = time.monotonic()
    until_s, order = began_s + limit_s, new_id()
    asked = Order(id=order, limit_s=LIMIT_S, sender=sender_at(sender, Order(id=order, limit_s=LIMIT_S)))
    try:
        with socket.create_connection((receiver.address, receiver.port), REACH_AGENT_S) as connection:
            write_line(connection, sealed(receiver.key, asked), until_s)
            told = opened_told(receiver.key, read_line(connection, until_s))
    except (OSError, UnprovenError) as error:
        return Outcome(State.UNKNOWN, why=f"the agent that should receive does not answer: {error}")
    took_s = time.monotonic() - began_s
    if told.id != order:
        return Outcome(State.UNKNOWN, why="the agent that should receive tells of another probe")
    if told.broken and not _answers(sender, until_s):
        return Outcome(State.UNKNOWN, why=f"the agent that should send does not answer: {told.broken}")
    return _judged(told, took_s)


def _judged(told: Told, took_s: float) -> Outcome:
    """Return what an agent's word is worth: what cannot be is not known.

    Args:
        told: Its word.
        took_s: All of the probe, by the scheduler's clock.
    """
    if told.broken or told.failed:
        return Outcome(State.BROKEN if told.broken else State.UNKNOWN, why=told.broken or told.failed)
    if not 0 < told.counted_bytes <= MAX_PROBE_BYTES + BLOCK or not 0.0 < told.seconds <= took_s:
        words = f"{told.counted_bytes} bytes in {told.seconds:.3g} s of {took_s:.3g} s cannot be"
        return Outcome(State.UNKNOWN, why=words)
    return Outcome(State.MEASURED, Figure(told.counted_bytes, told.seconds).bytes_per_s)


def _answers(place: ProbePlace, until_s: float) -> bool:
    """Return whether an agent answers the scheduler; one that does not says nothing of the links of its node."""
    order = Order(id=new_id(), limit_s=LIMIT_S)
    try:
        connect(sender_at(place, order), until_s).close()
    except (BrokenError, OSError, UnprovenError):
        return False
    return True
