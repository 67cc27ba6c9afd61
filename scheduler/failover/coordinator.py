"""The process that owns a ring's generation: `python -m longshore.scheduler.failover.coordinator FOLDER`.

It needs nothing but the ring's folder (`settings.make_ring`), and may be killed at any moment: started again it reads
its file, listens where it listened, and members come back to it. It ends with status 0 once the ring is done, and with
LOST_STATUS once no member is left. Source: SPEC F8 to F10.

Standard library only, so that it starts in a tenth of a second.
"""

import asyncio
import contextlib
import hmac
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from .rounds import DESKS, LAUNCHERS, Rounds
from .settings import RECOVERIES, STATE, Settings, read_settings, write_file
from .standing import Durable, Phase
from .wire import (
    LOST_STATUS,
    MOST_BYTES,
    Declared,
    End,
    Gone,
    Hello,
    Message,
    WireError,
    as_json,
    decode,
    encode,
)

TICK_S = 0.05
HELLO_S = 5.0  # within which a connection has to say who it is
LINGER_S = 3.0  # after the end, for those who have not heard of it
BACKLOG_BYTES = 8 << 20  # that may wait for somebody who does not read
Writer = asyncio.StreamWriter


class Coordinator:
    """Carries events from sockets to the rounds, and messages back, the file always first.

    Args:
        folder: Of the ring.
        settings: What is in it.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._port, durable = _read_state(folder)
        self._rounds = Rounds(settings.seats, settings.limits, time.monotonic(), durable)
        self._written: dict[str, object] = {}
        self._members: dict[int, Writer] = {}
        self._launchers: set[Writer] = set()
        self._desks: set[Writer] = set()

    async def run(self) -> Phase:
        """Serve until the ring is over."""
        server = await self._listen()
        self._port = server.sockets[0].getsockname()[1]
        self._act()
        while not self._rounds.durable.phase.is_over:
            await asyncio.sleep(TICK_S)
            self._rounds.tick(time.monotonic())
            self._act()
        await self._linger()
        return self._rounds.durable.phase

    async def _listen(self) -> asyncio.Server:
        """Listen on the port that members know; another process may hold it for a moment."""
        for _ in range(50):
            try:
                return await asyncio.start_server(self._serve, self._settings.host, self._port, limit=MOST_BYTES)
            except OSError:
                if not self._port:
                    raise
                await asyncio.sleep(0.1)
        return await asyncio.start_server(self._serve, self._settings.host, self._port, limit=MOST_BYTES)

    async def _linger(self) -> None:
        """Let those hear of the end who are there or come back, until they have gone."""
        until_s, least_s = time.monotonic() + LINGER_S, time.monotonic() + LINGER_S / 3
        while time.monotonic() < (until_s if self._members or self._launchers else least_s):
            await asyncio.sleep(TICK_S)

    def _act(self) -> None:
        """Write what has changed, then tell it."""
        content = {"port": self._port, **asdict(self._rounds.durable)}
        if content != self._written:
            write_file(self._folder, STATE, content)
            self._written = json.loads(json.dumps(content))
        if self._rounds.news:
            write_file(self._folder, RECOVERIES, [as_json(it.seconds()) for it in self._rounds.recoveries])
        for line in self._rounds.news:
            sys.stderr.write(f"longshore.ring: {line}\n")
        self._rounds.news.clear()
        outbox, self._rounds.outbox = self._rounds.outbox, []
        for to, message in outbox:
            for writer in self._writers(to):
                _tell(writer, message)

    def _writers(self, to: int) -> list[Writer]:
        if to == LAUNCHERS:
            return list(self._launchers)
        if to == DESKS:
            return list(self._desks)
        return [self._members[to]] if to in self._members else []

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        """Serve one connection; whatever comes over it, also a line without an end, only this connection ends."""
        with contextlib.suppress(OSError, ValueError, WireError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(HELLO_S):
                hello = decode(await reader.readline())
            if isinstance(hello, Hello) and hmac.compare_digest(
                hello.secret.encode("utf-8", "replace"), self._settings.secret.encode()
            ):
                await self._serve_role(hello, reader, writer)
        writer.close()

    async def _serve_role(self, hello: Hello, reader: asyncio.StreamReader, writer: Writer) -> None:
        if hello.role == "member":
            await self._serve_member(hello, reader, writer)
        elif hello.role == "launcher":
            await self._serve_launcher(reader, writer)
        elif hello.role == "desk":
            await self._serve_desk(reader, writer)
        elif hello.role == "status":
            _tell(writer, self._rounds.report())
            await writer.drain()

    async def _serve_member(self, hello: Hello, reader: asyncio.StreamReader, writer: Writer) -> None:
        before = self._members.get(hello.member)
        self._members[hello.member] = writer
        if not self._rounds.joined(hello, time.monotonic()):
            self._refuse(hello.member, before, writer)
            return
        if before is not None:
            before.close()
        self._act()
        try:
            async for message in _messages(reader):
                if self._members.get(hello.member) is not writer or getattr(message, "member", -1) != hello.member:
                    return
                self._rounds.said(hello.member, message, time.monotonic())
                self._act()
        finally:
            if self._members.get(hello.member) is writer:
                del self._members[hello.member]
                self._rounds.closed(hello.member, time.monotonic())

    def _refuse(self, number: int, before: Writer | None, writer: Writer) -> None:
        """Tell a process that it is no member, and whoever is that member nothing."""
        refused = [it for it in self._rounds.outbox if it[0] == number and isinstance(it[1], Gone)]
        self._rounds.outbox = [it for it in self._rounds.outbox if it not in refused]
        for _, message in refused:
            _tell(writer, message)
        if before is None:
            del self._members[number]
        else:
            self._members[number] = before
        self._act()

    async def _serve_launcher(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        durable = self._rounds.durable
        for number, reason in durable.gone.items():
            _tell(writer, Declared(int(number), reason))
        if durable.phase.is_over:
            _tell(writer, End(str(durable.phase), durable.outcome))
        self._launchers.add(writer)
        try:
            async for message in _messages(reader):
                self._rounds.launcher_said(message, time.monotonic())
                self._act()
        finally:
            self._launchers.discard(writer)

    async def _serve_desk(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._desks.add(writer)
        self._rounds.desk_came(time.monotonic())
        self._act()
        try:
            async for message in _messages(reader):
                self._rounds.desk_said(message, time.monotonic())
                self._act()
        finally:
            self._desks.discard(writer)
            self._rounds.has_desk = bool(self._desks)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Yield what comes over a connection until it ends.

    Raises:
        WireError: If it is no message.
    """
    while True:
        try:
            line = await reader.readline()
        except ValueError as error:  # longer than the limit
            raise WireError(str(error)) from error
        if not line.endswith(b"\n"):
            return
        yield decode(line)


def _tell(writer: Writer, message: Message) -> None:
    """Send a message without waiting; who does not read is cut off, and comes back if it lives."""
    if writer.is_closing():
        return
    writer.write(encode(message))
    if writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
        writer.transport.abort()


def _read_state(folder: Path) -> tuple[int, Durable | None]:
    """Return the port and the state that a coordinator before this one wrote, if there was one.

    Raises:
        ValueError: If the file is damaged.
    """
    try:
        content = json.loads((folder / STATE).read_bytes())
    except FileNotFoundError:
        return 0, None
    port = int(content.pop("port"))
    return port, Durable(**{**content, "phase": Phase(content["phase"])})


def main() -> None:
    """Coordinate the ring of the folder that is the first argument."""
    folder = Path(sys.argv[1])
    phase = asyncio.run(Coordinator(folder, read_settings(folder)).run())
    sys.stderr.flush()
    os._exit(0 if phase is Phase.DONE else LOST_STATUS)


if __name__ == "__main__":
    main()
