"""A proxy before a ring's coordinator that loses messages: a connection ends with the message that is lost."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

Loses = Callable[[str, int], bool]  # kind of a message, and the number of that kind before it: whether it is lost


class LossyProxy:
    """The proxy. Messages are those of ring/wire.py.

    Args:
        address: Of the coordinator, HOST:PORT; it may change.
        loses: Which messages are lost, once it is `on`.
    """

    def __init__(self, address: Callable[[], str], loses: Loses) -> None:
        self.address, self._loses = address, loses
        self.on = False
        self.lost: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        """Listen; return where."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0, limit=1 << 20)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.address().rpartition(":")
        self._writers.append(writer)
        try:
            theirs = await asyncio.open_connection(host, int(port), limit=1 << 20)
        except OSError:
            writer.close()
            return
        self._writers.append(theirs[1])
        directions = [self._pass_on(reader, theirs[1], writer), self._pass_on(theirs[0], writer, theirs[1])]
        for direction in directions:
            task = asyncio.create_task(direction)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                if self._is_lost(line):
                    break
                writer.write(line)
                await writer.drain()
        for it in (writer, other):
            it.close()

    def _is_lost(self, line: bytes) -> bool:
        if not self.on:
            return False
        kind = str(json.loads(line)["kind"])
        before = self._counts[kind]
        self._counts[kind] += 1
        if self._loses(kind, before):
            self.lost[kind] += 1
            return True
        return False
