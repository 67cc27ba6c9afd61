"""Browsers that are logged in, one-time links, and addresses of this machine alone.

A browser keeps a number, and a link has a code, in the token's place: neither is valid for the API. Both expire, and
end with the scheduler.

Source: SPEC K8; docs/operate.md, Dashboard.
"""

import secrets
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

MAX_BROWSERS = 1000  # logged in at a time, and links; the oldest go first
CODE_S = 3600.0  # lifetime of a link
BROWSER_S = 7 * 86400.0  # after which a browser needs the token again


class _Entry(NamedTuple):
    token: str
    ends_s: float


class Browsers:
    """Browsers that are logged in, and links. Safe for threads."""

    def __init__(self) -> None:
        self._tokens: dict[str, _Entry] = {}  # by number
        self._codes: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def let_in(self, token: str, now_s: float) -> str:
        """Log a browser in, and return its number."""
        number = secrets.token_urlsafe(32)
        with self._lock:
            _add(self._tokens, number, _Entry(token, now_s + BROWSER_S))
        return number

    def token_of(self, number: str, now_s: float) -> str | None:
        """Return the token of a browser, None if it is not logged in or has expired."""
        with self._lock:
            found = self._tokens.get(number)
        return None if found is None or found.ends_s <= now_s else found.token

    def leave(self, number: str) -> None:
        """Log a browser out."""
        with self._lock:
            self._tokens.pop(number, None)

    def code_for(self, token: str, now_s: float) -> str:
        """Return the code of a link that logs one browser in."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            _add(self._codes, code, _Entry(token, now_s + CODE_S))
        return code

    def use(self, code: str, now_s: float) -> str | None:
        """Return the token of a code, once; None if it was used or has expired."""
        with self._lock:
            found = self._codes.pop(code, None)
        return None if found is None or found.ends_s <= now_s else found.token


def link_path(code: str) -> str:
    """Return the path that logs a browser in by a code."""
    return f"/login?code={code}"


def _add(known: dict[str, _Entry], name: str, value: _Entry) -> None:
    if len(known) >= MAX_BROWSERS:
        del known[next(iter(known))]
    known[name] = value


TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS = "0A"  # state of a socket, as the kernel writes it


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is of this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listeners(port: int) -> set[int]:
    """Return the numbers of the users whose processes listen at a port of this machine, at any address."""
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
