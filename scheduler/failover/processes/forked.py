"""Members that are no children of their launcher: a warm process forks them. Standard library only."""

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...files.processes import short_name

WARM_S = 120.0  # for a warm process to be ready
FORK_S = 30.0  # for a warm process to fork a member
UNKNOWN_STATUS = -1000  # of a process whose parent died before it


class Forked(NamedTuple):
    """A member that was forked."""

    pid: int
    ends: Coroutine[None, None, int]  # waits for its end and returns its status


def python_arguments(command: tuple[str, ...]) -> list[str] | None:
    """Return what follows the interpreter if a command runs a script with this Python, None if it is anything else."""
    found = shutil.which(command[0])
    if len(command) < 2 or found is None or str(Path(found).absolute()) != sys.executable:
        return None
    rest = list(command[1:])
    if rest[0] == "-m":
        return rest if len(rest) > 1 else None
    return None if rest[0].startswith("-") else rest


async def connect_warm(path: Path, is_gone: Callable[[], bool]) -> socket.socket | None:
    """Connect to a warm process, which may not be ready yet.

    Args:
        path: Of its socket.
        is_gone: Says whether it has ended; what that raises ends the waiting.

    Returns:
        The connection, None if it has ended or is never ready.
    """
    until_s = asyncio.get_running_loop().time() + WARM_S
    while asyncio.get_running_loop().time() < until_s:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with short_name(path) as name:
                connection.connect(name)
        except OSError:
            connection.close()
            if is_gone():
                return None
            await asyncio.sleep(0.02)
        else:
            return connection
    return None


async def fork(connection: socket.socket, what: Mapping[str, Any], output: int) -> Forked | None:
    """Let a warm process fork a member, None if it cannot.

    Args:
        connection: To the warm process.
        what: To run; see `warm.run`.
        output: Descriptor for what it writes.
    """
    try:
        socket.send_fds(connection, [json.dumps(what).encode() + b"\n"], [output])
        connection.settimeout(0.0)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        async with asyncio.timeout(FORK_S):
            pid = int(json.loads(await reader.readline())["pid"])
    except (OSError, ValueError):
        connection.close()
        return None
    return Forked(pid, _end_of_forked(pid, reader, writer))


async def _end_of_forked(pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Wait for the end of a member that a warm process forked, and return its status."""
    try:
        return int(json.loads(await reader.readline())["status"])
    except (OSError, ValueError):
        await _until_gone(pid)  # The warm process was killed; the member lives on.
        return UNKNOWN_STATUS
    finally:
        writer.close()


async def _until_gone(pid: int) -> None:
    """Wait for the end of a process that is no child of this one."""
    handle = -1
    while handle < 0:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:  # No descriptor is left; that does not prove its end.
            await asyncio.sleep(1.0)
    gone, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
