"""The first token of a scheduler: in a file of its folder, where the command line of the same user finds it.

The file is its user's alone. A link in the user's own state folder, named after the port, leads to it from anywhere.
It is sent only to a scheduler on this machine that the same user or root runs. So the port is checked before each
request: while no scheduler runs, any other user could listen at it.

Source: SPEC K8; docs/security.md.
"""

import os
import re
import stat
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from ...cluster.files.errors import InputError

FILE = "token"  # in a scheduler's folder
DEFAULT_PORTS = {"http": 80, "https": 443}
ROOT = 0
TOKEN = re.compile(r"ls_[A-Za-z0-9_-]{43}")
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS = "0A"  # state of a socket, as the kernel writes it


def write_token(path: Path, secret: str) -> None:
    """Write a token into a file that is there whole or not at all, and never in the place of another.

    Raises:
        InputError: If the file exists, or cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secret}\n")
        os.link(part, path)
    except OSError as error:
        raise InputError(f"{path}: a token cannot be written there: {error.strerror}", "check the folder") from error
    finally:
        part.unlink(missing_ok=True)


def read_token(path: Path) -> str | None:
    """Return the token of a file, None if there is none that is this user's.

    Raises:
        InputError: If others may read it, or if it holds something else.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="ascii", errors="replace")
    except OSError:
        return None
    with file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        if found.st_mode & 0o077:
            raise InputError(f"{path}: others may read this token", f"write `chmod 600 {path}`, and revoke it")
        secret = file.read(100).strip()
    if TOKEN.fullmatch(secret) is None:
        raise InputError(f"{path}: this is no token", "remove the file")
    return secret


def restrict_to_owner(path: Path) -> None:
    """Take the rights of others at a token of this user away, which a volume of Kubernetes gives to its group."""
    try:
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077:
            path.chmod(0o600)
    except OSError:
        return


def link_token(path: Path, port: int) -> None:
    """Let the command line find the token of the scheduler at a port, wherever it is called; best effort."""
    link = _link_path(port)
    if link is None:
        return
    part = link.with_name(f"{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.unlink(missing_ok=True)
        part.symlink_to(path.absolute())
        part.replace(link)
    except OSError:
        return  # a user without a home; the present folder of a command is checked too


def read_token_file(url: str) -> str | None:
    """Return the token for the scheduler at a URL, None if this user has none, or does not listen there.

    Raises:
        InputError: If there is a file, but it cannot be used.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if not is_loopback(host):
        return None
    users = listening_users(port)
    if not users or not users <= {ROOT, os.geteuid()}:
        return None
    places, link = [Path(".longshore") / FILE], _link_path(port)
    if link is not None:
        with suppress(OSError):
            places.insert(0, link.readlink())
    return next((secret for secret in map(read_token, places) if secret is not None), None)


def _link_path(port: int) -> Path | None:
    """Return the place of the link for a port, in a folder of this user; None of one who has no home."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111  # without a home too
    return Path(home) / "longshore" / f"token-{port}" if Path(home).is_absolute() else None


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is of this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listening_users(port: int) -> set[int]:
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
