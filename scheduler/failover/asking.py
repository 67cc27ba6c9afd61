"""Words with the coordinator of a ring, for somebody who waits for the answer.

Source: SPEC F8 to F10.
"""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from .settings import STATE, read_settings
from .wire import Hello, Lines, Message, Report, Retire, WireError, encode

WITHIN_S = 1.0


def ask_report(folder: Path) -> Report | None:
    """Return how the ring of a folder stands; None if there is none, or its coordinator does not answer."""
    said = _exchange(folder, "status", [])
    return said if isinstance(said, Report) else None


def retire(folder: Path, members: Mapping[int, str]) -> bool:
    """Let members leave a ring, each with the reason; return whether the ring goes on without them.

    Asked again, it does nothing more.
    """
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s and (report := ask_report(folder)) is not None:
        if report.phase in ("done", "lost"):
            return False
        left = {member: reason for member, reason in members.items() if str(member) not in report.gone}
        if not left:
            return any(member not in members for member in (*report.order, *report.spares) if member >= 0)
        _exchange(folder, "desk", [Retire(member, reason) for member, reason in left.items()], hears=False)
        time.sleep(0.02)
    return False


def _exchange(folder: Path, role: str, messages: list[Message], *, hears: bool = True) -> Message | None:
    """Say something to a coordinator, and return the first that it says, if that is to be heard."""
    try:
        settings = read_settings(folder)
        port = int(json.loads((folder / STATE).read_bytes())["port"])
        with socket.create_connection((settings.host, port), WITHIN_S) as connection:
            connection.sendall(b"".join(map(encode, [Hello(role, settings.secret), *messages])))
            lines = Lines()
            while hears and (data := connection.recv(1 << 16)):
                for message in lines.feed(data):
                    return message
    except (OSError, ValueError, KeyError, WireError):
        pass
    return None
