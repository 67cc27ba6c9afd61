"""How a connection of a ring begins: both ends prove that they know the ring's secret, and neither says it.

coordinator   Challenge(nonce)
the other     Hello(..., nonce, proof): over the challenge's nonce and all that the hello says
coordinator   Welcome(proof): over both nonces

Each connection has nonces of its own, so what somebody heard of another one proves nothing. Whoever listens at the port
while the coordinator is down learns no secret and cannot welcome anybody. What follows the greeting is not signed.

The process that coordinates imports this module: standard library only.
"""

import asyncio
import hmac
import secrets
import socket
import time
from dataclasses import replace

from .lines import Lines, WireError, decode, encode
from .wire import Challenge, Hello, Message, Welcome

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
