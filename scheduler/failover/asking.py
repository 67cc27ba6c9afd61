"""Words with the coordinator of a ring, for somebody who waits for the answer.

Source: SPEC F8 to F10.
"""

import json
import socket
from pathlib import Path

from .settings import STATE, read_settings
from .wire import Hello, Lines, Message, Report, WireError, encode

WITHIN_S = 1.0


def ask_report(folder: Path) -> Report | None:
    """Return how the ring of a folder stands; None if there is none, or its coordinator does not answer."""
    said = _exchange(folder, "status", [])
    return said if isinstance(said, Report) else None


def _exchange(folder: Path, role: str, messages: list[Message]) -> Message | None:
    """Say something to a coordinator, and return the first that it says."""
    try:
        settings = read_settings(folder)
        port = int(json.loads((folder / STATE).read_bytes())["port"])
        with socket.create_connection((settings.host, port), WITHIN_S) as connection:
            connection.sendall(b"".join(map(encode, [Hello(role, settings.secret), *messages])))
            lines = Lines()
            while data := connection.recv(1 << 16):
                for message in lines.feed(data):
                    return message
    except (OSError, ValueError, KeyError, WireError):
        pass
    return None
