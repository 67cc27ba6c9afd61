"""What the processes of a ring send each other: lines of JSON over TCP, after both ends have proved the ring's secret.

A connection begins with a greeting. Each connection has nonces of its own, so a recorded proof is of no use on another
one. A process that listens at the port while the coordinator is down learns no secret, and its welcome is refused. What
follows the greeting is not signed.

coordinator  Challenge(nonce)
the other    Hello(..., nonce, proof): the proof covers the challenge's nonce and all of the hello
coordinator  Welcome(proof, epoch): the proof covers both nonces and the epoch

Each coordinator that takes the place of a lost one has a later epoch. Who has seen an epoch refuses earlier ones.

`Hello` has a role, which decides on what may follow.

member       sends     Heartbeat, Stopped, AwaitsLayout, ExchangeFailed, MemberReady, FirstStep, MemberDone, Leave,
                       TrialStep, SaveRequest
             receives  LeaseRenewal, Abort, RingLayout, Resume, SaveReply, Finish, Evicted, Relieved
launcher     sends     MemberStarting, MemberExited, Terminating
             receives  MemberGone, RingEnd
scheduler    sends     MemberOffer, NoMemberOffer, Retire
             receives  SeatRequest, ScriptHint, RingEnd
status       receives  RingReport, once, and the connection ends

The leading scheduler brings members. It gets a `SeatRequest` when it connects and whenever empty seats or slow members
change, also while a shrunk ring runs. It answers with a `MemberOffer` once it has a GPU for a member, or with
`NoMemberOffer`. Each message of a member has its number and the generation that it knows. Source: SPEC F8 to F10.

The coordinator's process imports this module: standard library only.
"""

import asyncio
import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

ADDRESS, SECRET, MEMBER, NODE = (f"LONGSHORE_RING_{name}" for name in ("ADDRESS", "SECRET", "MEMBER", "NODE"))
ADDRESS_FILE = "LONGSHORE_RING_ADDRESS_FILE"  # has the address of a later coordinator, or DONE_ADDRESS
DONE_ADDRESS = "done"  # the ring is: its coordinator may have been lost before it could say so
WAIT_S = "LONGSHORE_RING_WAIT_S"  # for a coordinator, before a member ends itself; SILENCE_S by default
LOST_STATUS, GONE_STATUS, RESTART_STATUS = 3, 76, 77  # a ring without members; a member without a seat; one to restart
SUPERSEDED_STATUS = 4  # of a coordinator, as there is one of a later epoch
UNKNOWN_STATUS = -1000  # of a process whose parent died before it
SILENCE_S = 10.0  # without a message: a member is declared gone; a member without its coordinator ends itself
HEARTBEAT_S = 1.0
# Five seconds of silence: probes after two, each second; and the same for what was sent and is not acknowledged.
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 5000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Challenge:
    """The coordinator's first message on a connection."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Answers the challenge."""

    role: str
    member: int = -1
    token: str = ""  # drawn by the member's process: two processes never pass for one member
    generation: int = 0  # of its group
    step: int = 0  # steps that its state has seen
    fresh: bool = True  # its state is not the ring's
    store: str = ""  # HOST:PORT of the store that it offers for forming groups
    node: str = ""
    nonce: str = ""
    proof: str = ""  # of the secret


@dataclass(frozen=True, slots=True)
class Welcome:
    """The coordinator proves the secret, too."""

    proof: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member lives; each is answered by the lease renewal of the same number."""

    member: int
    generation: int
    number: int
    step: int
    moved: int = 0  # rises with each piece of state or gradient that it exchanged
    waiting: bool = False  # for others, in an exchange
    compute_s: float = 0.0  # of its last step
    step_s: float = 0.0
    until: int = 0  # the first step that is not to be taken; 0 if unknown


@dataclass(frozen=True, slots=True)
class Stopped:
    """A member takes no step of an earlier generation any more."""

    member: int
    generation: int
    step: int
    awaits_layout: bool


@dataclass(frozen=True, slots=True)
class AwaitsLayout:
    """The main thread of a member waits for the layout."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """An exchange of a member failed."""

    member: int
    generation: int
    peer: str = ""  # HOST:PORT of the socket's other end, if that is known
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class MemberReady:
    """A member has its group and the ring's state."""

    member: int
    generation: int
    step: int
    groups: int = 0  # that its process has formed
    endpoints: list[str] = field(default_factory=list)  # HOST:PORT of its own ends of the group's sockets
    copy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A member has done its first step of a generation."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class MemberDone:
    """A member has no more steps to take."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A member gives up its seat, as its script failed."""

    member: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A relieved member has computed a shard to measure itself; the result is dropped."""

    member: int
    compute_s: float


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A member has written a checkpoint, and asks for permission to name it."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """The member belongs to the ring for SILENCE_S from when it sent the heartbeat of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Abort:
    """All stop, to form the ring again."""

    generation: int


@dataclass(frozen=True, slots=True)
class SeatAssignment:
    """The member on a seat, and the shards of a batch that it computes."""

    seat: int
    member: int
    shards: list[int]
    store: str = ""  # HOST:PORT at which the member can be reached


@dataclass(frozen=True, slots=True)
class RingLayout:
    """The ring in a generation."""

    generation: int
    seats: int
    assignments: list[SeatAssignment]  # by seat: the order of the ring
    source: int  # the member whose state is the ring's
    receivers: list[int]  # members that copy it
    store: str  # HOST:PORT


@dataclass(frozen=True, slots=True)
class Resume:
    """All are ready: train."""

    generation: int


@dataclass(frozen=True, slots=True)
class SaveReply:
    """Whether a checkpoint may be named."""

    generation: int
    step: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """All are done."""

    generation: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """The receiver is no member of the ring, or no longer."""

    reason: str
    restart: bool = False  # in place: its process has formed the most groups that it may


@dataclass(frozen=True, slots=True)
class Relieved:
    """A backup computes in place of this slow member, which measures itself now and then."""

    generation: int


@dataclass(frozen=True, slots=True)
class MemberStarting:
    """A launcher starts a member."""

    member: int
    rank: int = -1  # of its GPU in the job; -1 where GPUs have no ranks


@dataclass(frozen=True, slots=True)
class MemberExited:
    """A member's process has exited."""

    member: int
    status: int
    error: str = ""  # with which its script ended, if its log has one


@dataclass(frozen=True, slots=True)
class Terminating:
    """A launcher ends its members: that they exit is no fault, and is not logged."""


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A member was declared gone; its launcher ends its process."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class RingEnd:
    """The ring is over."""

    outcome: str  # done | lost
    reason: str


@dataclass(frozen=True, slots=True)
class EmptySeat:
    """A seat without a member, and the members beside it."""

    seat: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class SlowSeat:
    """The seat of a slow member, and the members beside it."""

    member: int
    seat: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """Seats that need a member: empty ones, and those of slow members that need a backup."""

    generation: int
    empty: list[EmptySeat]
    order: list[int]  # members, by seat
    step_s: float  # average iteration time (SPEC F3)
    compute_s: dict[str, float]  # by member, the mean of its last steps, for one shard
    nodes: dict[str, str]  # by member
    slow: list[SlowSeat] = field(default_factory=list)  # for which no member waits that could be the backup
    relieved: list[int] = field(default_factory=list)  # slow members that have backups


@dataclass(frozen=True, slots=True)
class MemberOffer:
    """A member is started for an empty seat, now or in a moment: its launcher sends `MemberStarting`."""

    rank: int  # of its GPU in the job, which no other offer has


@dataclass(frozen=True, slots=True)
class NoMemberOffer:
    """There is no member for the empty seats at present."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retire:
    """A member has to leave: its GPU is broken, or needed elsewhere."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScriptHint:
    """A possible problem of the script, for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long the phases of a recovery took; seconds, -1 for one that has not ended."""

    generation: int
    reason: str
    members: int
    detect_s: float
    stop_s: float
    choose_s: float
    form_s: float
    copy_s: float
    first_step_s: float


@dataclass(frozen=True, slots=True)
class RingReport:
    """The ring at present."""

    phase: str
    generation: int
    seats: int
    order: list[int]  # member on each seat, -1 for none
    spares: list[int]
    step: int
    gone: dict[str, str]
    recoveries: list[Recovery]
    relieved: list[int] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)  # possible problems of the script, at present


Message = (
    Challenge | Hello | Welcome | Heartbeat | Stopped | AwaitsLayout | ExchangeFailed | MemberReady | FirstStep
    | MemberDone | Leave | TrialStep | SaveRequest | LeaseRenewal | Abort | RingLayout | Resume | SaveReply | Finish
    | Evicted | Relieved | MemberStarting | MemberExited | Terminating | MemberGone | RingEnd | SeatRequest
    | MemberOffer | NoMemberOffer | Retire | ScriptHint | RingReport
)  # fmt: skip

_MESSAGE_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}
MAX_LINE_BYTES = 1 << 20
NONCE_BYTES = 16


class WireError(ValueError):
    """A line that is no message, or JSON of other types than it has to be."""


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    return json.dumps({"kind": type(message).__name__, **as_json(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line.

    Raises:
        WireError: If it is none.
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {line[:80]!r}") from error
    kind = _MESSAGE_KINDS.get(str(content.pop("kind", ""))) if isinstance(content, dict) else None
    if kind is None:
        raise WireError(f"no kind of message: {line[:80]!r}")
    message: Message = from_json(content, kind)
    return message


def as_json(value: Any) -> Any:
    """Return a dataclass, or a part of one, as what JSON knows."""
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
    return [as_json(one) for one in value] if isinstance(value, list) else value


def from_json(content: Any, kind: Any) -> Any:
    """Return what a dataclass or a part of one holds, of exactly the types that its class has.

    Raises:
        WireError: If the types are others, or numbers are not of this world.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _field_types(kind)
        if not isinstance(content, dict) or not content.keys() <= hints.keys():
            raise WireError(f"not the fields of {kind.__name__}: {str(content)[:80]}")
        try:
            return kind(**{name: from_json(value, hints[name]) for name, value in content.items()})
        except TypeError as error:
            raise WireError(f"{kind.__name__}: {error}") from error
    if get_origin(kind) is list and isinstance(content, list):
        return [from_json(one, get_args(kind)[0]) for one in content]
    if get_origin(kind) is dict and isinstance(content, dict):
        return {name: from_json(one, get_args(kind)[1]) for name, one in content.items()}
    if kind is float and type(content) in (int, float) and abs(content) < 1e18:
        return float(content)
    if type(content) is kind and (kind is not int or abs(content) < 1 << 53):
        return content
    raise WireError(f"not a {kind}: {str(content)[:80]}")


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


class MessageBuffer:
    """Collects received bytes and returns the messages that are complete."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete with these bytes.

        Raises:
            WireError: If one is no message; nothing that follows is of use then.
        """
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in data else [bytes(self._rest)]
        if len(rest) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
        self._rest = bytearray(rest)
        return [decode(line) for line in lines]


def new_challenge() -> Challenge:
    """Return the first message of a coordinator on a connection."""
    return Challenge(secrets.token_hex(NONCE_BYTES))


def answer_challenge(secret: str, challenge: Challenge, hello: Hello) -> Hello:
    """Return a hello that proves the secret, and challenges the coordinator to do the same."""
    unproven = replace(hello, nonce=secrets.token_hex(NONCE_BYTES), proof="")
    return replace(unproven, proof=_proof(secret, "hello", challenge.nonce, encode(unproven)))


def proves_secret(secret: str, challenge: Challenge, hello: Hello) -> bool:
    """Return whether a hello answers a challenge."""
    right = _proof(secret, "hello", challenge.nonce, encode(replace(hello, proof="")))
    return hmac.compare_digest(right.encode(), hello.proof.encode("utf-8", "replace"))


def make_welcome(secret: str, challenge: Challenge, hello: Hello, epoch: int = 0) -> Welcome:
    """Return the answer to a hello, which proves the secret."""
    nonce = hello.nonce.encode("utf-8", "replace")
    return Welcome(_proof(secret, f"welcome {epoch}", challenge.nonce, nonce), epoch)


def check_welcome(secret: str, challenge: Challenge, hello: Hello, reply: Message, least_epoch: int = 0) -> int:
    """Refuse a coordinator that does not know the secret, or whose epoch is over; return its epoch.

    Raises:
        WireError: If the reply is no welcome, or not the right one.
    """
    if not isinstance(reply, Welcome) or not hmac.compare_digest(
        make_welcome(secret, challenge, hello, reply.epoch).proof.encode(), reply.proof.encode("utf-8", "replace")
    ):
        raise WireError("the process at the coordinator's port does not know the ring's secret")
    if reply.epoch < least_epoch:
        raise WireError(f"a coordinator of epoch {reply.epoch}, when there was one of epoch {least_epoch}")
    return reply.epoch


def _proof(secret: str, side: str, nonce: str, content: bytes) -> str:
    # With the lengths, two different triples never make the same bytes.
    parts = (side.encode(), nonce.encode("utf-8", "replace"), content)
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret.encode(), message, "sha256").hexdigest()


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, hello: Hello, least_epoch: int = 0
) -> int:  # fmt: skip
    """Begin a connection to a coordinator, and return its epoch.

    Raises:
        OSError: If it breaks.
        ValueError: If a line is too long.
        WireError: If the other end does not know the secret, or its epoch is over.
    """
    challenge = decode(await reader.readline())
    if not isinstance(challenge, Challenge):
        raise WireError(f"no challenge: {type(challenge).__name__}")
    proven = answer_challenge(secret, challenge, hello)
    writer.write(encode(proven))
    return check_welcome(secret, challenge, proven, decode(await reader.readline()), least_epoch)


def greet_blocking(
    connection: socket.socket, secret: str, hello: Hello, until_s: float, least_epoch: int = 0
) -> tuple[MessageBuffer, list[Message]]:
    """Begin a connection to a coordinator, and return what was received after its welcome.

    Args:
        connection: Just opened.
        secret: Of the ring.
        hello: To send.
        until_s: Deadline of all of it by the monotonic clock, so that single bytes now and then do not prolong it.
        least_epoch: Of the coordinator.

    Raises:
        OSError: If it breaks or takes too long.
        WireError: If the other end does not know the secret, or its epoch is over.
    """
    buffer, received = MessageBuffer(), list[Message]()
    _receive_some(connection, buffer, received, until_s)
    challenge = received.pop(0)
    if not isinstance(challenge, Challenge):
        raise WireError(f"no challenge: {type(challenge).__name__}")
    proven = answer_challenge(secret, challenge, hello)
    connection.sendall(encode(proven))
    _receive_some(connection, buffer, received, until_s)
    check_welcome(secret, challenge, proven, received.pop(0), least_epoch)
    return buffer, received


def _receive_some(connection: socket.socket, buffer: MessageBuffer, received: list[Message], until_s: float) -> None:
    while not received:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the coordinator ended the connection")
        received += buffer.feed(data)
        if time.monotonic() > until_s:
            raise TimeoutError("the coordinator takes too long to greet")


def detect_silence(connection: socket.socket) -> None:
    """Let a connection end when the other machine has vanished, though nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def describe_exit(status: int, error: str) -> str:
    """Return how a process ended, for people.

    Args:
        status: Minus the signal's number if one ended it.
        error: From its log, "" if that has none.
    """
    how = "an unknown status" if status == UNKNOWN_STATUS else f"status {status}"
    return f"ended with {how}" + (f": {error}" if error else "")
