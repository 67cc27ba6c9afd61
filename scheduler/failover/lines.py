"""Messages as lines of JSON: how they are written, and read from whoever may have sent them.

The process that coordinates imports this module: standard library only.
"""

import json
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from .wire import Empty, Message, Place, Recovery

MOST_BYTES = 1 << 20  # of a line


class WireError(Exception):
    """A line that is no message."""


_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}
_HINTS = {kind: get_type_hints(kind) for kind in (*_KINDS.values(), Place, Empty, Recovery)}


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
    message: Message = from_json(content, kind)
    return message


def as_json(it: Any) -> Any:
    """Return a message, or a part of one, as what JSON knows."""
    if type(it) in _HINTS:
        return {one.name: as_json(getattr(it, one.name)) for one in fields(it)}
    return [as_json(one) for one in it] if isinstance(it, list) else it


def from_json(content: Any, kind: Any) -> Any:
    """Return what a message or a part of one holds, of exactly the types that its class has.

    Raises:
        WireError: If the types are others, or numbers are not of this world.
    """
    if kind in _HINTS:
        hints = _HINTS[kind]
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
