"""Probes of links between nodes: requested by the scheduler, made and measured by two agents; and what they found.

Each agent makes a key when it starts, and sends it to the scheduler in its reports. So a signature with the key of an
agent comes from that agent, or from a scheduler to which it reports. Messages are lines: a signature, and JSON.

The receiver's clock counts: that of its kernel, where the kernel has time stamps of packets, since a busy machine reads
them later. The first fifth of the bytes is skipped, as buffers swallow it at once. Of the rest, in parts, the median
counts where it is higher than the whole: a sender or receiver that waits for a processor makes no link slow.

`LinkTable` has what was measured lately, and the probes in progress. No node takes part in two probes at once. Two that
share a sender or a receiver take bandwidth from each other; and what a node sends delays the acknowledgements of what
it receives, so that short probes show too little.

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, NamedTuple, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.yaml_file import ExactTypes
from ...preflight.link_checks import MAX_PROBE_BYTES, MIN_PROBE_BYTES, PROBE_PARTS, PROBE_S, SKIPPED_PARTS

MAX_PROBE_LINE_BYTES = 4096  # bytes
KEY_WORDS = "64 characters: digits and a to f."
ADDRESS_WORDS = "An IP address."
ID_WORDS = "32 characters: digits and a to f."

Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description=KEY_WORDS)]
Port = Annotated[int, Field(ge=1, le=65535)]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description=ID_WORDS)]
Limit = Annotated[float, Field(gt=0.0, le=10.0)]


def _checked_address(text: str) -> str:
    """Refuse what is no IP address: to resolve a name may take long."""
    return str(ip_address(text))


Address = Annotated[str, Field(max_length=45, description=ADDRESS_WORDS), AfterValidator(_checked_address)]


_STRICT = ConfigDict(frozen=True, extra="forbid")


class ProbePlace(ExactTypes):
    """Where an agent listens for probes, and its key."""

    model_config = _STRICT
    address: Address
    port: Port
    key: Hex64


class Sender(ExactTypes):
    """The agent that is to send, as described to the one that is to receive."""

    model_config = _STRICT
    address: Address
    port: Port
    ticket: Annotated[str, Field(max_length=1024)]  # line to send to it
    proof: Hex64  # that it answers


class ProbeOrder(ExactTypes):
    """What an agent is to do."""

    model_config = _STRICT
    id: Id
    limit_s: Limit  # of the transfer
    sender: Sender | None = None  # to receive from; none to send to the connection that brings the order


class ProbeMeasurement(ExactTypes):
    """The result of an order to receive."""

    model_config = _STRICT
    id: Id
    counted_bytes: Annotated[int, Field(ge=0, le=2**53)] = 0
    seconds: Annotated[float, Field(ge=0.0, le=60.0, allow_inf_nan=False)] = 0.0
    broken: Annotated[str, Field(max_length=200)] = ""  # why the sender cannot be reached
    failed: Annotated[str, Field(max_length=200)] = ""  # why nothing is known


MessageT = TypeVar("MessageT", ProbeOrder, ProbeMeasurement)


class UnprovenError(ValueError):
    """Raised when a message is not signed by the right key, or makes no sense."""


def new_probe_id() -> str:
    """Return the id of a probe."""
    return secrets.token_hex(16)


def signed_line(key: str, message: ProbeOrder | ProbeMeasurement) -> str:
    """Return a message as a line."""
    text = message.model_dump_json()
    return f"{_signature(key, type(message).__name__, text)} {text}"


def verified_message(kind: type[MessageT], key: str, line: str) -> MessageT:
    """Return the message of a kind in a line.

    Raises:
        UnprovenError: If it is none, or not signed with the key.
    """
    signature, _, text = line.partition(" ")
    if not hmac.compare_digest(signature.encode(), _signature(key, kind.__name__, text).encode()):
        raise UnprovenError("the signature is wrong")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise UnprovenError(f"that is no {kind.__name__.lower()}") from error


def order_proof(key: str, order: str) -> str:
    """Return the proof of an agent that an order is for it."""
    return _signature(key, "proof", order)


def sender_at(place: ProbePlace, order: ProbeOrder) -> Sender:
    """Return the description of an agent that lets another one receive from it, once."""
    return Sender(
        address=place.address,
        port=place.port,
        ticket=signed_line(place.key, order),
        proof=order_proof(place.key, order.id),
    )


def _signature(key: str, kind: str, text: str) -> str:
    return hmac.new(bytes.fromhex(key), f"{kind} {text}".encode(), hashlib.sha256).hexdigest()


def read_line(connection: socket.socket, until_s: float) -> str:
    """Return a line of a connection until a time by `time.monotonic`, and read nothing after it.

    Raises:
        OSError: If none comes in time.
        UnprovenError: If it is too long, or no text.
    """
    line = b""
    while not line.endswith(b"\n"):
        if len(line) >= MAX_PROBE_LINE_BYTES:
            raise UnprovenError("the line is too long")
        connection.settimeout(max(until_s - time.monotonic(), 1e-3))
        seen = connection.recv(MAX_PROBE_LINE_BYTES - len(line), socket.MSG_PEEK)
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
        OSError: If it is not accepted in time.
    """
    connection.settimeout(max(until_s - time.monotonic(), 1e-3))
    connection.sendall(f"{line}\n".encode())


TRANSFER_LIMIT_S = 0.25  # for a transfer: on a link that is too slow for the minimum, the bytes until then count
TRANSFER_STALLED_S = 0.1  # without a byte at the end of a transfer that was cut off: it hangs, rather than being slow
BLOCK = 1 << 18  # bytes that are written and read at a time
STAMPS = 35  # Linux's SO_TIMESTAMPNS, which Python lacks; also the type of its control messages
STAMP = struct.Struct("@ll")  # seconds and nanoseconds

Came = list[tuple[int, float]]  # bytes so far, and when


def enable_time_stamps(connection: socket.socket) -> None:
    """Turn on the kernel's time stamps of packets, where it has them; they exist only while a socket has them on."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, STAMPS, 1)


def send_probe_bytes(connection: socket.socket, limit_s: float) -> None:
    """Send until the receiver has enough and closes, or until the limit."""
    until_s, left, block = time.monotonic() + limit_s, MAX_PROBE_BYTES, memoryview(bytes(BLOCK))
    with suppress(OSError):
        while left > 0 and (wait_s := until_s - time.monotonic()) > 0.0:
            connection.settimeout(wait_s)
            left -= connection.send(block[:left])


def measure_received(connection: socket.socket, limit_s: float) -> tuple[int, float] | None:
    """Receive until the bandwidth is known; return the bytes that count, and their seconds; None if too little comes.

    Raises:
        OSError: If the connection breaks.
    """
    until_s, block, total, first = time.monotonic() + limit_s, bytearray(BLOCK), 0, 0
    read: Came = []
    stamped: Came = []
    enable_time_stamps(connection)
    while (wait_s := until_s - time.monotonic()) > 0.0:
        connection.settimeout(wait_s)
        try:
            got, control, _, _ = connection.recvmsg_into([block], socket.CMSG_SPACE(STAMP.size))
        except TimeoutError:
            continue
        if not got:
            break
        total += got
        read.append((total, time.monotonic()))
        stamped += [(total, _stamp_s(each)) for _, kind, each in control if kind == STAMPS and len(each) == STAMP.size]
        while read[first][0] * PROBE_PARTS < total * SKIPPED_PARTS:  # skip the first bytes
            first += 1
        if total >= MAX_PROBE_BYTES or (total >= MIN_PROBE_BYTES and read[-1][1] - read[first][1] >= PROBE_S):
            break
    if not read or time.monotonic() - read[-1][1] > TRANSFER_STALLED_S:
        return None
    return _counted_bytes_and_seconds((stamped if len(stamped) == len(read) else read)[first:])


def _stamp_s(data: bytes) -> float:
    seconds, nanoseconds = STAMP.unpack(data)
    return float(seconds + nanoseconds * 1e-9)


def _counted_bytes_and_seconds(came: Came) -> tuple[int, float] | None:
    """Return the bytes and seconds that count of received bytes; None of too few."""
    if len(came) < 2:
        return None
    counted, seconds = came[-1][0] - came[0][0], came[-1][1] - came[0][1]
    if not seconds > 0.0:
        return None
    median = statistics.median(_part_rates(came, counted / (PROBE_PARTS - SKIPPED_PARTS)))
    return counted, min(seconds, counted / median) if median > 0.0 else seconds


def _part_rates(came: Came, part: float) -> list[float]:
    """Return the bandwidth of each part of that many bytes."""
    found, (sent, since_s) = [], came[0]
    for total, at_s in came[1:]:
        if total - sent >= part and at_s > since_s:
            found.append((total - sent) / (at_s - since_s))
            sent, since_s = total, at_s
    return found or [0.0]


log = logging.getLogger(__name__)

PROBE_ORDER_S = 0.5  # for a connection to send its order
REACHED_S = 0.15  # for a connection: less than the time after which a lost packet is sent again
MAX_CONNECTIONS = 16  # connections
MAX_IDS = 4096  # remembered orders, so that none is carried out twice
MAX_PORT = 65535
PROBE_NICENESS = -10  # niceness of the threads that send and receive
UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class BrokenError(Exception):
    """Raised when a node cannot be reached over the network."""


def connect_to_sender(sender: Sender, until_s: float) -> socket.socket:
    """Return a connection over which another agent sends, until a time by `time.monotonic`.

    Raises:
        BrokenError: If its node is not reached, also if nothing answers: its kernel would.
        OSError: If the agent does not answer.
        UnprovenError: If another program answers.
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
            raise UnprovenError(f"another program answers at {sender.address}:{sender.port}, not the agent")
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
        InputError: If it cannot listen there.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        try:
            family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
            self._listening = socket.create_server((address, port), family=family, backlog=MAX_CONNECTIONS)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"the agent cannot listen at {address}:{port}: {why}", "name an IP address of this node"
            ) from error
        port = int(self._listening.getsockname()[1])
        self.place = ProbePlace(address=address, port=port, key=secrets.token_hex(32))
        enable_time_stamps(self._listening)  # from now on: else the first packets after the first call would have none
        self._room = threading.Semaphore(MAX_CONNECTIONS)
        self._done: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept_connections, name="probes", daemon=True).start()

    def close(self) -> None:
        """Stop to listen."""
        # To close it alone would not wake the thread that waits for a connection.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept_connections(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if self._listening.fileno() < 0 or error.errno == errno.EINVAL:
                    return
                log.warning("no probe can be accepted: %s", error)
                time.sleep(1.0)
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve_connection, args=(connection,), name="probe", daemon=True).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        with suppress(OSError):  # training may use all processors; only root may raise priorities
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PROBE_NICENESS)
        try:
            with connection:
                self._carry_out_order(connection)
        except (OSError, UnprovenError) as error:
            log.debug("a probe broke off: %s", error)
        finally:
            self._room.release()

    def _carry_out_order(self, connection: socket.socket) -> None:
        """Carry out an order; one that is not signed, or was carried out before, gets no answer."""
        key, until_s = self.place.key, time.monotonic() + PROBE_ORDER_S
        order = verified_message(ProbeOrder, key, read_line(connection, until_s))
        if not self._note_if_new(order.id):
            raise UnprovenError(f"order {order.id} was carried out before")
        if order.sender is None:
            write_line(connection, order_proof(key, order.id), until_s)
            send_probe_bytes(connection, order.limit_s)
        else:
            write_line(
                connection, signed_line(key, _measure_link(order, order.sender)), time.monotonic() + PROBE_ORDER_S
            )

    def _note_if_new(self, order: str) -> bool:
        with self._lock:
            if order in self._done:
                return False
            self._done[order] = None
            while len(self._done) > MAX_IDS:
                self._done.popitem(last=False)
            return True


def open_prober(text: str) -> Prober:
    """Return a prober that listens at ADDRESS or ADDRESS:PORT; an address of IPv6 with a port stands in brackets.

    Raises:
        InputError: If it cannot listen there.
    """
    address, _, port = text.rpartition(":")
    if not address or (text.count(":") > 1 and not address.endswith("]")):
        address, port = text, "0"
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise InputError(f"{port!r} in {text} is no port", "write ADDRESS:PORT, such as 10.0.0.5:7100")
    return Prober(address.removeprefix("[").removesuffix("]"), int(port))


def _measure_link(order: ProbeOrder, sender: Sender) -> ProbeMeasurement:
    """Return what is measured of a link, or why nothing is."""
    until_s = time.monotonic() + order.limit_s
    try:
        with connect_to_sender(sender, until_s) as connection:
            figure = measure_received(connection, until_s - time.monotonic())
    except BrokenError as error:
        return ProbeMeasurement(id=order.id, broken=str(error)[:200])
    except (OSError, UnprovenError) as error:
        return ProbeMeasurement(id=order.id, failed=(str(error) or type(error).__name__)[:200])
    if figure is None:
        return ProbeMeasurement(id=order.id, failed="too little came")
    return ProbeMeasurement(id=order.id, counted_bytes=figure[0], seconds=figure[1])


WHOLE_PROBE_S = 0.32  # for all of a probe: three one after the other fit into a second
REACH_AGENT_S = 0.15  # for an agent to be reached


class LinkState(StrEnum):
    """What a probe found."""

    MEASURED = "measured"
    BROKEN = "broken"  # the sender's node answers the scheduler, but not the receiver
    UNKNOWN = "unknown"


class LinkOutcome(NamedTuple):
    """The outcome of a probe."""

    state: LinkState
    bytes_per_s: float = 0.0
    why: str = ""  # if it is broken, or unknown
    at_s: float = 0.0  # when the probe ended, by `time.monotonic`


def probe_link(sender: ProbePlace, receiver: ProbePlace, limit_s: float = WHOLE_PROBE_S) -> LinkOutcome:
    """Let one agent send to another, and return the outcome for the link."""
    began_s = time.monotonic()
    until_s, order = began_s + limit_s, new_probe_id()
    order_to_receive = ProbeOrder(
        id=order, limit_s=TRANSFER_LIMIT_S, sender=sender_at(sender, ProbeOrder(id=order, limit_s=TRANSFER_LIMIT_S))
    )
    try:
        with socket.create_connection((receiver.address, receiver.port), REACH_AGENT_S) as connection:
            write_line(connection, signed_line(receiver.key, order_to_receive), until_s)
            result = verified_message(ProbeMeasurement, receiver.key, read_line(connection, until_s))
    except (OSError, UnprovenError) as error:
        return LinkOutcome(LinkState.UNKNOWN, why=f"the agent that should receive does not answer: {error}")
    took_s = time.monotonic() - began_s
    if result.id != order:
        return LinkOutcome(LinkState.UNKNOWN, why="the agent that should receive answers with another probe")
    if result.broken and not _agent_answers(sender, until_s):
        return LinkOutcome(LinkState.UNKNOWN, why=f"the agent that should send does not answer: {result.broken}")
    return _outcome_of(result, took_s)


def _outcome_of(result: ProbeMeasurement, took_s: float) -> LinkOutcome:
    """Return the outcome of an agent's result of a probe that took a while; an impossible one counts as unknown."""
    if result.broken or result.failed:
        return LinkOutcome(LinkState.BROKEN if result.broken else LinkState.UNKNOWN, why=result.broken or result.failed)
    if not 0 < result.counted_bytes <= MAX_PROBE_BYTES + BLOCK or not 0.0 < result.seconds <= took_s:
        words = f"{result.counted_bytes} bytes in {result.seconds:.3g} s of {took_s:.3g} s are impossible"
        return LinkOutcome(LinkState.UNKNOWN, why=words)
    return LinkOutcome(LinkState.MEASURED, result.counted_bytes / result.seconds)


def _agent_answers(place: ProbePlace, until_s: float) -> bool:
    """Return whether an agent answers the scheduler; without an answer nothing is known of the links of its node."""
    order = ProbeOrder(id=new_probe_id(), limit_s=TRANSFER_LIMIT_S)
    try:
        connect_to_sender(sender_at(place, order), until_s).close()
    except (BrokenError, OSError, UnprovenError):
        return False
    return True


LINK_KEPT_S = 600.0  # for which a measurement counts
LINK_AGAIN_S = 60.0  # until a broken or unknown link is probed again
ROUND_S = 1.0  # for all probes that a caller waits for

Pair = tuple[str, str]  # nodes: who sends, and who receives
Places = Callable[[], Mapping[str, ProbePlace]]


def startable_pairs(waiting: Sequence[Pair], running: Collection[Pair]) -> list[Pair]:
    """Return the pairs that can be probed now, beside the running probes: none shares a node with another."""
    busy, found = {node for pair in running for node in pair}, []
    for pair in waiting:
        if busy.isdisjoint(pair):
            found.append(pair)
            busy.update(pair)
    return found


class LinkTable:
    """The links between nodes whose agents probe.

    Args:
        places: Returns the places where these listen, by node.
        passed_s: Returns the time of a monotonic clock.
        probed: Probes a link, from one agent to another.
    """

    def __init__(
        self, places: Places, passed_s: Callable[[], float] = time.monotonic,
        probed: Callable[[ProbePlace, ProbePlace], LinkOutcome] = probe_link,
    ) -> None:  # fmt: skip
        self._places, self._passed_s, self._probed = places, passed_s, probed
        self._links: dict[Pair, LinkOutcome] = {}
        self._waiting: dict[Pair, float] = {}  # until when they are to have ended
        self._running: set[Pair] = set()
        self._wake: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def fresh_outcomes(self) -> dict[Pair, LinkOutcome]:
        """Return what is known of links and is not too old."""
        now_s = self._passed_s()
        with self._lock:
            self._links = {pair: link for pair, link in self._links.items() if now_s - link.at_s <= _kept_for_s(link)}
            return self._links.copy()

    def request_probes(self, pairs: Iterable[Pair], until_s: float, wake: Callable[[], object]) -> bool:
        """Probe the links that are not known; return whether any of them may still become so in time.

        Args:
            pairs: Who sends, and who receives. Nodes without an agent that probes are skipped.
            until_s: When all is to have ended, by the clock.
            wake: Called when a probe has ended, from a thread of its own.
        """
        places, known = self._places(), self.fresh_outcomes()
        new = [
            pair
            for pair in pairs
            if pair not in known and pair[0] != pair[1] and pair[0] in places and pair[1] in places
        ]
        with self._lock:
            self._wake = wake
            self._waiting |= {pair: until_s for pair in new if pair not in self._running and pair not in self._waiting}
        self._begin_probes()
        with self._lock:
            return any(pair in self._waiting or pair in self._running for pair in new)

    def _begin_probes(self) -> None:
        """Begin the probes that can begin, and drop those that would not end in time."""
        with self._lock:
            last_s = self._passed_s() + WHOLE_PROBE_S
            self._waiting = {each: until_s for each, until_s in self._waiting.items() if last_s <= until_s}
            begun = startable_pairs(list(self._waiting), self._running)
            for pair in begun:
                del self._waiting[pair]
            self._running.update(begun)
        for pair in begun:
            threading.Thread(target=self._probe_pair, args=(pair,), name="probe of a link", daemon=True).start()

    def _probe_pair(self, pair: Pair) -> None:
        places, outcome = self._places(), LinkOutcome(LinkState.UNKNOWN, why="the probe itself failed")
        try:
            if pair[0] in places and pair[1] in places:  # else an agent has ended since
                outcome = self._probed(places[pair[0]], places[pair[1]])
        finally:
            with self._lock:
                self._running.discard(pair)
                self._links[pair] = outcome._replace(at_s=self._passed_s())
            self._begin_probes()
            self._wake()


def _kept_for_s(link: LinkOutcome) -> float:
    return LINK_KEPT_S if link.state is LinkState.MEASURED else LINK_AGAIN_S
