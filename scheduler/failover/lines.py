"""Messages as lines of JSON: how they are written, and read from whoever may have sent them.

The process that coordinates imports this module: standard library only.
"""

import json
from typing import get_args

from ..files.durable import as_json, from_json
from .wire import Message

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
