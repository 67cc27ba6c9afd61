"""Keeps the coordinator of a ring: it is started again when it is killed, and killed when it answers nobody.

Standard library only.
"""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from subprocess import SubprocessError

from ..greeting import greet
from ..settings import STATE, Settings
from ..wire import LOST_STATUS, End, Hello
from .tools import ALONE, start_tool

COORDINATOR = "longshore.scheduler.failover.coordinator"
AGAIN_S, MOST_AGAIN_S = 0.2, 1.0  # before one that ended at once is started again: more each time
LIVED_S = 5.0  # after which it did not end at once
TRIES = 20  # to start one that ends at once
ASK_S = 2.5  # between two questions whether it answers, and until an answer counts as none
SILENT_S = 30.0  # without an answer: it is killed
DYING_S = 30.0  # that it may take to end then


class Keeper:
    """Keeps one coordinator.

    Args:
        folder: Of the ring.
        settings: What is in it.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the coordinator, once it was started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it.

        Raises:
            OSError: If it cannot be started, or does not begin its work.
        """
        self._process = await start_tool(COORDINATOR, str(self._folder), flags=ALONE)
        until_s = _now_s() + SILENT_S
        while not (self._folder / STATE).exists():
            if self._process.returncode is not None or _now_s() > until_s:
                raise OSError(f"the ring's coordinator does not begin; its status is {self._process.returncode}")
            await asyncio.sleep(0.01)

    async def keep(self) -> End:
        """Start it again whenever it ends before the ring does, and return how the ring ended.

        The ring is lost if the coordinator ends at once each time, or cannot be started or killed.
        """
        tries = 0
        while self._process is not None:
            began_s = _now_s()
            status = await self._end_of(self._process)
            if status is None:
                return End("lost", "the coordinator is silent, and cannot be killed")
            tries = 0 if _now_s() - began_s > LIVED_S else tries + 1
            if status in (0, LOST_STATUS) or tries > TRIES:
                return End("done" if status == 0 else "lost", f"the coordinator ended with {status}")
            await asyncio.sleep(min(AGAIN_S * 2 ** (tries - 2), MOST_AGAIN_S) if tries > 1 else 0.0)
            try:
                self._process = await start_tool(COORDINATOR, str(self._folder), flags=ALONE)
            except (OSError, SubprocessError) as error:  # The next round tries again: the old one has ended.
                _say(f"the coordinator cannot be started: {error}")
        return End("lost", "the coordinator was never started")

    async def close(self) -> None:
        """Kill it, if it lives."""
        if self._process is not None:
            await end_tool(self._process)

    async def _end_of(self, process: asyncio.subprocess.Process) -> int | None:
        """Wait for its end, and kill it if it is silent; return its status, None if it does not even end then."""
        silent_s, asked_s = 0.0, _now_s()
        while process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ASK_S)
                break
            answers = await self._answers()
            now_s = _now_s()
            # If this process stood still, it could not hear anything: that does not count as silence.
            silent_s, asked_s = 0.0 if answers else silent_s + min(now_s - asked_s, 2 * ASK_S), now_s
            if silent_s >= SILENT_S:
                _say(f"the coordinator was silent for {silent_s:.0f} s and is killed")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            if silent_s >= SILENT_S + DYING_S:
                return None
        return process.returncode

    async def _answers(self) -> bool:
        """Say whether it answers."""
        try:
            async with asyncio.timeout(ASK_S):
                port = int(json.loads((self._folder / STATE).read_bytes())["port"])
                reader, writer = await asyncio.open_connection(self._settings.host, port)
                try:
                    await greet(reader, writer, self._settings.secret, Hello("status"))
                    return await reader.read(1) != b""
                finally:
                    writer.close()
        except (TimeoutError, ConnectionError, ValueError, KeyError, TypeError):
            return False
        except OSError:  # This process has no descriptor left, or the like: the coordinator is not to blame.
            return True


async def end_tool(process: asyncio.subprocess.Process) -> None:
    """Kill a program, and wait for its end, but not for ever."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LIVED_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _say(words: str) -> None:
    sys.stderr.write(f"longshore.ring: {words}\n")
