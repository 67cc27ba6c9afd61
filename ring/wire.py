"""What the processes of a ring send each other: lines of JSON over TCP, after both ends have proved the secret.

What the processes of a ring say to each other: lines of JSON over TCP (lines.py).

A connection begins with a greeting (`greeting.py`): both ends prove that they know the ring's secret. Its `Hello` has a
role. What may follow hangs on the role.

member      says   Beat, Stopped, Here, Fault, Ready, Running, Done, Leave, Tried, AskToSave
            hears  Lease, Abort, Form, Go, MaySave, Finish, Gone, Relieved
launcher    says   Starting, Exited, Ending
            hears  Declared, End
desk        says   Coming, NoneComing, Retire
            hears  Want, Hint, End
status      hears  Report, once, and the connection is over

A *desk* is where somebody brings members: the scheduler that leads. It is told of empty seats by `Want` as soon as it
connects and whenever they change, also while a shrunk ring runs; and of members that all others wait for. It answers
`Coming` once it has a GPU for a member, or `NoneComing`. Whatever a member sends has its number and the generation that
it knows. Source: SPEC F8 to F10.

The process that coordinates imports this module: standard library only.

Messages as lines of JSON: how they are written, and read from whoever may have sent them.

The process that coordinates imports this module: standard library only.

How a connection of a ring begins: both ends prove that they know the ring's secret, and neither says it.

coordinator   Challenge(nonce)
the other     Hello(..., nonce, proof): over the challenge's nonce and all that the hello says
coordinator   Welcome(proof): over both nonces

Each connection has nonces of its own, so what somebody heard of another one proves nothing. Whoever listens at the port
while the coordinator is down learns no secret and cannot welcome anybody. What follows the greeting is not signed.

The process that coordinates imports this module: standard library only.
"""

import asyncio
import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass, field, replace
from typing import get_args

from ..cluster.files.typed_json import as_json, from_json

ADDRESS, SECRET, MEMBER, NODE = (f"LONGSHORE_RING_{it}" for it in ("ADDRESS", "SECRET", "MEMBER", "NODE"))
LOST_STATUS, GONE_STATUS, RESTART_STATUS = 3, 76, 77  # a ring without members; a member without a seat; one to restart
SILENCE_S = 10.0  # without a word: of a member it is declared gone, of its coordinator it ends itself
BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Challenge:
    """Opens a connection: the coordinator's first words on it."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Answers the challenge."""

    role: str
    member: int = -1
    token: str = ""  # drawn by the member's process: two processes never pass for one member
    generation: int = 0  # that its group is of
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


@dataclass(frozen=True, slots=True)
class Beat:
    """A member lives; each is answered by the lease of the same number."""

    member: int
    generation: int
    number: int
    step: int
    moved: int = 0  # rises with each piece of state or gradient that it exchanged
    waiting: bool = False  # for others, in an exchange
    compute_s: float = 0.0  # of its last step
    step_s: float = 0.0
    until: int = 0  # the first step that is not to be taken; 0 if nobody knows yet


@dataclass(frozen=True, slots=True)
class Stopped:
    """A member takes no step of an earlier generation any more."""

    member: int
    generation: int
    step: int
    here: bool


@dataclass(frozen=True, slots=True)
class Here:
    """Its main thread waits for the form."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Fault:
    """An exchange of a member failed."""

    member: int
    generation: int
    peer: str = ""  # HOST:PORT of the socket's other end, if that is known
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A member has its group and the ring's state."""

    member: int
    generation: int
    step: int
    digest: str = ""
    groups: int = 0  # that its process has formed
    ends: list[str] = field(default_factory=list)  # HOST:PORT of its own ends of the group's sockets
    group_s: float = 0.0
    copy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """A member finished its first step of a generation."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Done:
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
class Tried:
    """A relieved member computed a shard for nothing, to tell how long it takes."""

    member: int
    compute_s: float


@dataclass(frozen=True, slots=True)
class AskToSave:
    """A member has written a checkpoint and asks whether it may be given its name."""

    member: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The member counts as one of the ring for SILENCE_S from when it sent the beat of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Abort:
    """All stop, to form the ring anew."""

    generation: int


@dataclass(frozen=True, slots=True)
class Place:
    """Who sits on a seat, and which shards of a batch it computes."""

    seat: int
    member: int
    shards: list[int]
    store: str = ""  # HOST:PORT at which the member can be reached


@dataclass(frozen=True, slots=True)
class Form:
    """How the ring looks in a generation."""

    generation: int
    seats: int
    places: list[Place]  # by seat: the order of the ring
    source: int  # the member whose state is the ring's
    receivers: list[int]  # members that take it over
    store: str  # HOST:PORT


@dataclass(frozen=True, slots=True)
class Go:
    """All are ready."""

    generation: int


@dataclass(frozen=True, slots=True)
class MaySave:
    """Whether a checkpoint may be given its name."""

    generation: int
    step: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """All are done."""

    generation: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The process that hears this is no member, or not any more."""

    reason: str
    restart: bool = False  # in place: its process has formed as many groups as it may


@dataclass(frozen=True, slots=True)
class Relieved:
    """Another member does the work of this slow one, which tries now and then how fast it is."""

    generation: int


@dataclass(frozen=True, slots=True)
class Starting:
    """A launcher starts a member."""

    member: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A member's process is gone."""

    member: int
    status: int
    words: str = ""  # the error by which its script says that it ended, if its log has one


@dataclass(frozen=True, slots=True)
class Ending:
    """A launcher was asked to end its members: that they go is no fault, and no news."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A member was declared gone; whoever launched it makes sure of it."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The ring is over."""

    outcome: str  # done | lost
    reason: str


@dataclass(frozen=True, slots=True)
class Empty:
    """A seat that nobody has, and the members beside it."""

    seat: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Slow:
    """A seated member that all others wait for, and the members beside it."""

    member: int
    seat: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Want:
    """Seats that nobody has, none once they are filled; and members in whose place others are to compute."""

    generation: int
    empty: list[Empty]
    order: list[int]  # members, by seat
    step_s: float  # average iteration time (SPEC F3)
    compute_s: dict[str, float]  # by member, the mean of its last steps, for one shard
    nodes: dict[str, str]  # by member
    slow: list[Slow] = field(default_factory=list)  # for whom nobody waits who could take their seats
    relieved: list[int] = field(default_factory=list)  # members whose seats others have, until they are well again


@dataclass(frozen=True, slots=True)
class Coming:
    """A member is started for an empty seat, now or in a moment."""

    member: int  # -1 where its launcher will give it a number, and tell by `Starting`
    node: str = ""
    gpu: int = -1


@dataclass(frozen=True, slots=True)
class NoneComing:
    """Nobody can be had for the empty seats now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retire:
    """A member is to leave: its GPU is found broken, or is wanted elsewhere."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Hint:
    """What may be wrong with the script, for people."""

    words: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the ring was formed anew, once; seconds, -1 for what has not come yet."""

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
class Report:
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
    hints: list[str] = field(default_factory=list)  # what may be wrong with the script, at present


Message = (
    Challenge | Hello | Welcome | Beat | Stopped | Here | Fault | Ready | Running | Done | Leave | Tried | AskToSave
    | Lease | Abort | Form | Go | MaySave | Finish | Gone | Relieved | Starting | Exited | Ending | Declared | End
    | Want | Coming | NoneComing | Retire | Hint | Report
)  # fmt: skip


MOST_BYTES = 1 << 20  # of a line


class WireError(ValueError):
    """A line that is no message."""


_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}


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
    kind = _KINDS.get(str(content.pop("kind", ""))) if isinstance(content, dict) else None
    if kind is None:
        raise WireError(f"no kind of message: {line[:80]!r}")
    try:
        message: Message = from_json(content, kind)
    except ValueError as error:
        raise WireError(str(error)) from error
    return message


class Lines:
    """Takes bytes as they come and gives the messages that are whole."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are whole with these bytes.

        Raises:
            WireError: If one is none; nothing that follows is of use then.
        """
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in data else [bytes(self._rest)]
        if len(rest) > MOST_BYTES or any(len(line) > MOST_BYTES for line in lines):
            raise WireError(f"a line of more than {MOST_BYTES} bytes")
        self._rest = bytearray(rest)
        return [decode(line) for line in lines]


NONCE_BYTES = 16


def challenge() -> Challenge:
    """Return the first words of a coordinator on a connection."""
    return Challenge(secrets.token_hex(NONCE_BYTES))


def answer(secret: str, asked: Challenge, hello: Hello) -> Hello:
    """Return a hello that proves the secret to who asked, and asks for the same."""
    unproven = replace(hello, nonce=secrets.token_hex(NONCE_BYTES), proof="")
    return replace(unproven, proof=_proof(secret, "hello", asked.nonce, encode(unproven)))


def is_right(secret: str, asked: Challenge, hello: Hello) -> bool:
    """Say whether a hello answers a challenge."""
    right = _proof(secret, "hello", asked.nonce, encode(replace(hello, proof="")))
    return hmac.compare_digest(right.encode(), hello.proof.encode("utf-8", "replace"))


def welcome(secret: str, asked: Challenge, hello: Hello) -> Welcome:
    """Return what proves the secret to who said a hello."""
    return Welcome(_proof(secret, "welcome", asked.nonce, hello.nonce.encode("utf-8", "replace")))


def check_welcome(secret: str, asked: Challenge, hello: Hello, said: Message) -> None:
    """Refuse whoever does not know the secret.

    Raises:
        WireError: If it is no welcome, or not the right one.
    """
    right = welcome(secret, asked, hello).proof
    if not isinstance(said, Welcome) or not hmac.compare_digest(right.encode(), said.proof.encode("utf-8", "replace")):
        raise WireError("whoever listens at the coordinator's port does not know the ring's secret")


def _proof(secret: str, side: str, nonce: str, words: bytes) -> str:
    # The lengths are there so that no two tellings make the same bytes.
    told = b"".join(len(it).to_bytes(4, "big") + it for it in (side.encode(), nonce.encode("utf-8", "replace"), words))
    return hmac.new(secret.encode(), told, "sha256").hexdigest()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, hello: Hello) -> None:
    """Begin a connection to a coordinator.

    Raises:
        OSError: If it breaks.
        ValueError: If a line is too long.
        WireError: If the other end does not know the secret.
    """
    asked = decode(await reader.readline())
    if not isinstance(asked, Challenge):
        raise WireError(f"no challenge: {type(asked).__name__}")
    said = answer(secret, asked, hello)
    writer.write(encode(said))
    check_welcome(secret, asked, said, decode(await reader.readline()))


def greet_blocking(connection: socket.socket, secret: str, hello: Hello, until_s: float) -> tuple[Lines, list[Message]]:
    """Begin a connection to a coordinator, and return what was heard behind its welcome.

    Args:
        connection: Just opened.
        secret: Of the ring.
        hello: What there is to say.
        until_s: By the monotonic clock, for all of it: who sends a byte now and then is not waited for.

    Raises:
        OSError: If it breaks or takes too long.
        WireError: If the other end does not know the secret.
    """
    lines, heard = Lines(), list[Message]()
    _hear(connection, lines, heard, until_s)
    asked = heard.pop(0)
    if not isinstance(asked, Challenge):
        raise WireError(f"no challenge: {type(asked).__name__}")
    said = answer(secret, asked, hello)
    connection.sendall(encode(said))
    _hear(connection, lines, heard, until_s)
    check_welcome(secret, asked, said, heard.pop(0))
    return lines, heard


def _hear(connection: socket.socket, lines: Lines, heard: list[Message], until_s: float) -> None:
    while not heard:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the coordinator ended the connection")
        heard += lines.feed(data)
        if time.monotonic() > until_s:
            raise TimeoutError("the coordinator takes too long to greet")
