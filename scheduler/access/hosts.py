"""This machine on the network: which addresses mean it alone, and which users listen at a port of it."""

from ipaddress import ip_address
from pathlib import Path

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
