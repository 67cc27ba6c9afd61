"""Browsers that have shown a token, and which addresses of this machine mean it alone.

Browsers that have shown a token, and links that let one in once.

A browser keeps a number, and a link has a code, in the token's place: neither is good for the API. Both end after a
time, and with the scheduler.

Source: SPEC K8; docs/operate.md, Dashboard.
"""

import secrets
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

MOST = 1000  # browsers that are known at a time, and links; the oldest go first
CODE_S = 3600.0  # after which a link lets nobody in
BROWSER_S = 7 * 86400.0  # after which a browser has to show a token again


class _Known(NamedTuple):
    token: str
    ends_s: float


class Browsers:
    """What lets browsers in. Any thread may use it."""

    def __init__(self) -> None:
        self._tokens: dict[str, _Known] = {}  # by number
        self._codes: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def let_in(self, token: str, now_s: float) -> str:
        """Return the number by which a browser is known from now on."""
        number = secrets.token_urlsafe(32)
        with self._lock:
            _add(self._tokens, number, _Known(token, now_s + BROWSER_S))
        return number

    def token_of(self, number: str, now_s: float) -> str | None:
        """Return the token that a browser has shown, None if it has not, or too long ago."""
        with self._lock:
            found = self._tokens.get(number)
        return None if found is None or found.ends_s <= now_s else found.token

    def leave(self, number: str) -> None:
        """Know a browser no more."""
        with self._lock:
            self._tokens.pop(number, None)

    def code_for(self, token: str, now_s: float) -> str:
        """Return the code of a link that lets one browser in."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            _add(self._codes, code, _Known(token, now_s + CODE_S))
        return code

    def use(self, code: str, now_s: float) -> str | None:
        """Return the token that a code stands for, once; None of one that was used or is too old."""
        with self._lock:
            found = self._codes.pop(code, None)
        return None if found is None or found.ends_s <= now_s else found.token


def link_path(code: str) -> str:
    """Return the path that lets a browser in by a code."""
    return f"/login?code={code}"


def _add(known: dict[str, _Known], name: str, value: _Known) -> None:
    if len(known) >= MOST:
        del known[next(iter(known))]
    known[name] = value


TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS = "0A"  # state of a socket, as the kernel writes it


def is_loopback(host: str) -> bool:
    """Say whether a name or an address means this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listeners(port: int) -> set[int]:
    """Return the numbers of the users whose processes listen at a port of this machine, at whatever address."""
    found: set[int] = set()
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for _, local, _, state, _, _, _, user, *_ in map(str.split, lines):
            if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                found.add(int(user))
    return found
