"""The process that owns a ring's generation: `python -m longshore.ring.coordinator FOLDER`.

It needs nothing but the ring's folder (`settings.make_ring`), and may be killed at any moment: started again it reads
its file, listens where it listened, and members come back to it. It ends with status 0 once the ring is done, and with
LOST_STATUS once no member is left. Source: SPEC F8 to F10.

Standard library only, so that it starts in a tenth of a second.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ..cluster.files.typed_json import as_json
from .rounds import DESKS, LAUNCHERS, Rounds
from .standing import RECOVERIES, STATE, Durable, Phase, Settings, read_settings, write_file
from .suspicion import Relief
from .wire import (
    LOST_STATUS,
    Declared,
    End,
    Ending,
    Gone,
    Hello,
    Lease,
    Lines,
    Message,
    Report,
    challenge,
    decode,
    encode,
    is_right,
    welcome,
)

TICK_S = 0.05
HELLO_S = 5.0  # within which a connection has to say who it is
HELLO_BYTES: Final = 4096  # of that
STRANGERS: Final = 64  # connections that have not said it yet; of more the oldest is dropped
AT_ONCE: Final = 16  # connections taken at once: few, so that who speaks at once is heard before it is the oldest
WAITING: Final = 1024  # connections that wait for that
TEXT: Final = 500  # characters of any text that somebody says
LINGER_S = 3.0  # after the end, for those who have not heard of it
WRITE_S = 60.0  # for the state to be written, on a disk that is full or fails
AGAIN_S = 1.0  # between two tries
BACKLOG_BYTES = 8 << 20  # that may wait for somebody who does not read
Writer = asyncio.StreamWriter
Said = TypeVar("Said", bound=Message)


class Coordinator:
    """Carries events from sockets to the rounds, and messages back, the file always first.

    The file is written by a thread. What is to be told waits for it, in order; leases do not, as they rest on no state:
    a disk that stands still for seconds costs no member its seat.

    Args:
        folder: Of the ring.
        settings: What is in it.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._content, durable = _read_state(folder)  # what the file holds
        self._written = -1 if durable is None else durable.changes  # that it has of the changes
        self._port = int(self._content.get("port", 0))
        relief = Relief(settings.limits, backups=settings.backups, spares=settings.spares)
        self._rounds = Rounds(settings.seats, settings.limits, time.monotonic(), durable, relief)
        self._queue: deque[tuple[int, int, Message]] = deque()  # change that has to be written first, to whom, what
        self._writing: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._has_news = False
        self._is_ending = durable is not None and durable.phase.is_over
        self._last = Report(**self._content["report"]) if self._is_ending else None
        self._strangers: dict[Writer, None] = {}  # the oldest first
        self._members: dict[int, Writer] = {}
        self._launchers: set[Writer] = set()
        self._desks: set[Writer] = set()
        self._complaints: set[str] = set()

    async def run(self) -> Phase:
        """Serve until the ring is over.

        Raises:
            OSError: If its state could not be written for a minute.
        """
        asyncio.get_running_loop().set_exception_handler(self._complain)
        with contextlib.closing(await self._listen()) as server:
            return await self._serve_ring(server)

    async def _serve_ring(self, server: asyncio.Server) -> Phase:
        port = server.sockets[0].getsockname()[1]
        if port != self._port:
            self._port, self._written = port, -1
        self._act()
        while not self._rounds.durable.phase.is_over or self._writing is not None:
            await self._pause()
            self._rounds.tick(time.monotonic())
            self._act()
        await self._linger()
        return self._rounds.durable.phase

    async def _pause(self) -> None:
        await asyncio.sleep(TICK_S)
        if self._writing is not None and self._writing.done():
            self._writing.result()  # raises: without a failure it takes itself away

    async def _listen(self) -> asyncio.Server:
        """Listen on the port that members know; another process may hold it for a moment."""
        for left in reversed(range(50)):
            try:
                server = await asyncio.start_server(
                    self._serve, self._settings.host, self._port, limit=HELLO_BYTES, backlog=AT_ONCE
                )
            except OSError:
                if not self._port or not left:
                    raise
                await asyncio.sleep(0.1)
            else:
                break
        with server.sockets[0].dup() as listening:
            listening.listen(WAITING)
        return server

    async def _linger(self) -> None:
        """Let those hear of the end who are there or come back, until they have gone."""
        until_s, least_s = time.monotonic() + LINGER_S, time.monotonic() + LINGER_S / 3
        while time.monotonic() < (until_s if self._members or self._launchers else least_s):
            await self._pause()

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what went wrong in a connection, each thing once: anybody can open one."""
        what = f"{context['message']}: {context.get('exception')}"
        if isinstance(context.get("exception"), asyncio.CancelledError):  # the end of all connections
            return
        if what not in self._complaints and len(self._complaints) < 100:
            self._complaints.add(what)
            loop.default_exception_handler(context)

    # What was decided is written, then told

    def _act(self) -> None:
        """Take what the rounds have decided."""
        changes = self._rounds.durable.changes
        outbox, self._rounds.outbox = self._rounds.outbox, []
        for to, message in outbox:
            if isinstance(message, Lease):
                for writer in self._writers(to):
                    _tell(writer, message)
            else:
                self._queue.append((changes, to, message))
        if self._written < changes and self._writing is None:
            self._writing = asyncio.create_task(self._write())
        self._flush()
        if self._rounds.news:
            news, self._rounds.news = self._rounds.news, []
            if not self._is_ending:
                self._tell_people(news)

    def _tell_people(self, news: list[str]) -> None:
        _log(*news)
        self._has_news = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._write_recoveries())

    async def _write(self) -> None:
        """Write the state until the file holds it; a disk that fails is tried again for a minute."""
        failing_s = None
        while self._written < self._rounds.durable.changes:
            content = {"port": self._port, "report": as_json(self._report()), **asdict(self._rounds.durable)}
            try:
                await asyncio.to_thread(write_file, self._folder, STATE, content)
            except OSError as error:
                if failing_s is None:
                    failing_s = time.monotonic()
                    _log(f"the state cannot be written, nobody is told anything meanwhile: {error}")
                if time.monotonic() - failing_s > WRITE_S:
                    raise
                await asyncio.sleep(AGAIN_S)
                continue
            failing_s, self._written, self._content = None, content["changes"], content
            self._flush()
        self._writing = None

    def _report(self) -> Report:
        """Return how the ring stands. What comes behind its end, or behind a wish to end it, is no part of that."""
        if self._last is None or not self._is_ending:
            self._last = self._rounds.report()
        return self._last

    async def _write_recoveries(self) -> None:
        """Write for people how recoveries went; nothing hangs on it."""
        while self._has_news:
            self._has_news = False
            content = [as_json(it.seconds()) for it in self._rounds.recoveries]
            with contextlib.suppress(OSError):
                await asyncio.to_thread(write_file, self._folder, RECOVERIES, content)

    async def _until_written(self) -> None:
        """Wait until nothing is known that the file does not hold."""
        while self._written < self._rounds.durable.changes:
            await asyncio.sleep(0.01)

    def _flush(self) -> None:
        """Tell what rests on written state."""
        last, line = None, b""
        while self._queue and self._queue[0][0] <= self._written:
            _, to, message = self._queue.popleft()
            if message is not last:  # A form that goes to a thousand members is encoded once.
                last, line = message, encode(message)
            for writer in self._writers(to):
                _tell(writer, message, line)

    def _writers(self, to: int) -> list[Writer]:
        if to == LAUNCHERS:
            return list(self._launchers)
        if to == DESKS:
            return list(self._desks)
        return [self._members[to]] if to in self._members else []

    # Who connects

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        """Serve one connection; whatever comes over it, also a line without an end, only this connection ends."""
        self._strangers[writer] = None
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            with contextlib.suppress(OSError, ValueError, TimeoutError):
                asked = challenge()
                _tell(writer, asked)
                async with asyncio.timeout(HELLO_S):
                    hello = decode(await reader.readline())
                if isinstance(hello, Hello) and is_right(self._settings.secret, asked, hello):
                    self._strangers.pop(writer, None)
                    _tell(writer, welcome(self._settings.secret, asked, hello))
                    await self._serve_role(cut(hello), reader, writer)
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    async def _serve_role(self, hello: Hello, reader: asyncio.StreamReader, writer: Writer) -> None:
        if hello.role == "member":
            await self._serve_member(hello, reader, writer)
        elif hello.role == "launcher":
            await self._serve_launcher(reader, writer)
        elif hello.role == "desk":
            await self._serve_desk(reader, writer)
        elif hello.role == "status":
            await self._until_written()
            _tell(writer, self._report())
            await writer.drain()

    async def _serve_member(self, hello: Hello, reader: asyncio.StreamReader, writer: Writer) -> None:
        before = self._members.get(hello.member)
        self._members[hello.member] = writer
        if not self._rounds.joined(hello, time.monotonic()):
            await self._refuse(hello.member, before, writer)
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

    async def _refuse(self, number: int, before: Writer | None, writer: Writer) -> None:
        """Tell a process that it is no member, and whoever is that member nothing."""
        refused = [it for it in self._rounds.outbox if it[0] == number and isinstance(it[1], Gone)]
        self._rounds.outbox = [it for it in self._rounds.outbox if it not in refused]
        if before is None:
            del self._members[number]
        else:
            self._members[number] = before
        self._act()
        await self._until_written()
        for _, message in refused:
            _tell(writer, message)

    async def _serve_launcher(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        written = self._content  # what is newer comes to all launchers, once it is written
        for number, reason in written.get("gone", {}).items():
            _tell(writer, Declared(int(number), reason))
        if written and Phase(written["phase"]).is_over:
            _tell(writer, End(str(written["phase"]), written["outcome"]))
        self._launchers.add(writer)
        try:
            async for message in _messages(reader):
                if isinstance(message, Ending):
                    self._report()
                    self._is_ending = True
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
            if not self._desks:
                self._rounds.desk_left()


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Yield what comes over a connection until it ends.

    Raises:
        WireError: If it is no message.
    """
    lines = Lines()
    while data := await reader.read(1 << 16):
        for message in lines.feed(data):
            yield cut(message)


def cut(message: Said) -> Said:
    """Return a message whose texts are short: they are kept, written, and told to others."""
    texts = {it.name: getattr(message, it.name) for it in fields(message)}
    long: dict[str, Any] = {
        name: text[:TEXT] for name, text in texts.items() if isinstance(text, str) and len(text) > TEXT
    }
    return replace(message, **long) if long else message


def _tell(writer: Writer, message: Message, line: bytes | None = None) -> None:
    """Send a message without waiting; who does not read is cut off, and comes back if it lives."""
    if writer.is_closing():
        return
    writer.write(encode(message) if line is None else line)
    if writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
        writer.transport.abort()


def _log(*lines: str) -> None:
    """Tell people; the log may lie on a disk that is full."""
    with contextlib.suppress(OSError):
        for line in lines:
            sys.stderr.write(f"longshore.ring: {line}\n")


def _read_state(folder: Path) -> tuple[dict[str, Any], Durable | None]:
    """Return what a coordinator before this one wrote, as it is in the file and as its state, if there was one.

    Raises:
        ValueError: If the file is damaged.
    """
    try:
        line = (folder / STATE).read_bytes()
    except FileNotFoundError:
        return {}, None
    content, parts = json.loads(line), json.loads(line)
    del parts["port"], parts["report"]
    return content, Durable(**{**parts, "phase": Phase(parts["phase"])})


def main() -> None:
    """Coordinate the ring of the folder that is the first argument."""
    folder = Path(sys.argv[1])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        phase = asyncio.run(Coordinator(folder, read_settings(folder)).run())
    except OSError as error:
        _log(f"the coordinator ends: {error}")
        os._exit(1)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(0 if phase is Phase.DONE else LOST_STATUS)


if __name__ == "__main__":
    main()
