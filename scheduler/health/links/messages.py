"""What a scheduler and the agents of two nodes say to each other about a probe, and how they know each other.

Each agent makes a key when it starts, and tells the scheduler of it in its reports. So whoever can sign with the key of
an agent is that agent, or a scheduler to which it reports. Messages are lines: a signature, and JSON.

Source: SPEC F4.
"""

import hashlib
import hmac
import secrets
import socket
import time
from ipaddress import ip_address
from typing import Annotated, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from ....cluster.files.exact_types import ExactTypes

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
