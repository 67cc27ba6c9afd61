"""The ends of members that are no children of their launcher. Standard library only."""

import asyncio
import json
import os

UNKNOWN_STATUS = -1000  # of a process whose parent died before it


async def end_of_forked(pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
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
