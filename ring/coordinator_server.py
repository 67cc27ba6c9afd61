"""The process that owns a ring's generation: `python -m longshore.ring.coordinator_server FOLDER HOST EPOCH`.

It connects `Coordinator` (coordinator.py) to sockets and to the ring's folder (folder.py). It needs only that folder,
and may be killed at any moment: after a restart it reads its state and listens on the same port, and members reconnect.
On another machine it has another address, and a later epoch. It ends with status 0 once the ring is done, with
LOST_STATUS once no member is left, and with SUPERSEDED_STATUS once there is a later epoch. Source: SPEC F8 to F10.

Standard library only, so that it starts in a tenth of a second.
"""

import asyncio
import contextlib
import os
import resource
import secrets
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from .coordinator import LAUNCHERS, SCHEDULERS, Coordinator
from .folder import (
    RECOVERIES,
    RingSettings,
    SupersededError,
    read_appointment,
    read_settings,
    read_state,
    write_file,
    write_state,
)
from .membership import Backups, CoordinatorState, Phase
from .wire import (
    LOST_STATUS,
    SUPERSEDED_STATUS,
    Evicted,
    Hello,
    LeaseRenewal,
    MemberGone,
    Message,
    MessageBuffer,
    Retire,
    RingEnd,
    RingReport,
    Terminating,
    WireError,
    as_json,
    decode,
    detect_silence,
    encode,
    make_welcome,
    new_challenge,
    proves_secret,
)

TICK_S = 0.05
HELLO_TIMEOUT_S = 5.0  # for a connection to send its hello
MAX_HELLO_BYTES: Final = 4096
MAX_UNGREETED: Final = 64  # connections that have not sent it; the oldest is dropped if there are more
ACCEPTED_AT_ONCE: Final = 16  # connections: few, so that one that sends its hello at once is never the oldest
LISTEN_BACKLOG: Final = 1024
MAX_TEXT: Final = 500  # characters of any text in a received message
LOST_WITH_COORDINATOR: Final = "its machine was lost with the coordinator"
LINGER_S = 3.0  # after the end, for processes that have not received it
WRITE_TIMEOUT_S = 60.0  # for the state to be written, on a disk that is full or fails
REWRITE_S = 1.0  # between two attempts
APPOINTMENT_S = 0.5  # between two checks whether there is a later epoch
MAX_LOGGED_ERRORS = 100  # of connections, each once
MAX_SEND_BYTES = 8 << 20  # that wait for a process that does not read
Writer = asyncio.StreamWriter
AnyMessage = TypeVar("AnyMessage", bound=Message)


class CoordinatorServer:
    """Carries events from sockets to the coordinator, and its messages back, always after the state file is written.

    A thread writes the file. Messages wait for it, in order. Lease renewals do not, as they depend on no state: a disk
    that stalls for seconds costs no member its seat.

    Args:
        folder: Of the ring.
        settings: In that folder.
        host: Address of this machine, at which members reach it.
        epoch: Of this coordinator.

    Raises:
        OSError: If the folder cannot be read.
        ValueError: If what it holds is damaged.
    """

    def __init__(self, folder: Path, settings: RingSettings, host: str, epoch: int = 0) -> None:
        self._folder, self._settings, self._host = folder, settings, host
        self._number, self._content, state = _read_state(folder)  # of the last file, and what it holds
        self._written = -1 if state is None else state.changes  # the last change that it holds
        self._writer = secrets.token_hex(8)  # of this process
        self._port = int(self._content["port"]) if self._content.get("host") == host else 0
        backups = Backups(settings.limits, backups=settings.backups, spares=settings.spares)
        self._coordinator = Coordinator(settings.seats, settings.limits, time.monotonic(), state, backups)
        if self._coordinator.state.epoch < epoch:
            self._coordinator.state.begin_epoch(epoch)
        self.epoch = self._coordinator.state.epoch
        self._queue: deque[tuple[int, int, Message]] = deque()  # change to be written first, receiver, message
        self._writing: asyncio.Task[None] | None = None
        self._writing_recoveries: asyncio.Task[None] | None = None
        self._has_recoveries = False
        self._is_ending = state is not None and state.phase.is_over
        self._last = RingReport(**self._content["report"]) if self._is_ending else None
        self._ungreeted: dict[Writer, None] = {}  # the oldest first
        self._members: dict[int, Writer] = {}
        self._launchers: set[Writer] = set()
        self._launcher_count = 0  # of all that ever connected
        self._schedulers: set[Writer] = set()
        self._logged_errors: set[str] = set()

    async def run(self) -> Phase:
        """Serve until the ring is over.

        Raises:
            OSError: If its state could not be written for a minute.
        """
        asyncio.get_running_loop().set_exception_handler(self._log_error)
        with contextlib.closing(await self._listen()) as server:
            return await self._serve_ring(server)

    def retire_lost(self, members: Iterable[int]) -> None:
        """Count members as gone that were lost with the machine of the coordinator before."""
        for member in members:
            self._coordinator.receive_scheduler_message(Retire(member, LOST_WITH_COORDINATOR), time.monotonic())

    async def _serve_ring(self, server: asyncio.Server) -> Phase:
        port = server.sockets[0].getsockname()[1]
        if port != self._port:
            self._port, self._written = port, -1
        self._write_and_send()
        while not self._coordinator.state.phase.is_over or self._writing is not None:
            await self._sleep_one_tick()
            self._coordinator.tick(time.monotonic())
            self._write_and_send()
        await self._linger()
        return self._coordinator.state.phase

    async def _sleep_one_tick(self) -> None:
        await asyncio.sleep(TICK_S)
        if self._writing is not None and self._writing.done():
            self._writing.result()  # raises: a task without a failure has removed itself

    async def _listen(self) -> asyncio.Server:
        """Listen on the port that members know; another process may hold it for a moment."""
        for left in reversed(range(50)):
            try:
                server = await asyncio.start_server(
                    self._serve_connection,
                    self._host,
                    self._port,
                    limit=MAX_HELLO_BYTES,
                    backlog=ACCEPTED_AT_ONCE,
                )
            except OSError:
                if not self._port or not left:
                    raise
                await asyncio.sleep(0.1)
            else:
                break
        with server.sockets[0].dup() as listening:
            listening.listen(LISTEN_BACKLOG)
        return server

    async def _linger(self) -> None:
        """Wait until the processes that are connected, or reconnect, have received the end and left."""
        until_s, least_s = time.monotonic() + LINGER_S, time.monotonic() + LINGER_S / 3
        while time.monotonic() < (until_s if self._members or self._launchers else least_s):
            await self._sleep_one_tick()

    def _log_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log each kind of error in a connection once: any process can open one."""
        error = f"{context['message']}: {context.get('exception')}"
        if isinstance(context.get("exception"), asyncio.CancelledError):  # the end of all connections
            return
        if self._is_first(error):
            loop.default_exception_handler(context)

    def _log_once(self, line: str) -> None:
        if self._is_first(line):
            log_lines(line)

    def _is_first(self, error: str) -> bool:
        """Return whether an error was not logged yet; none is after many."""
        if error in self._logged_errors or len(self._logged_errors) >= MAX_LOGGED_ERRORS:
            return False
        self._logged_errors.add(error)
        return True

    # Decisions are written first, then sent

    def _write_and_send(self) -> None:
        """Write and send what the coordinator has decided."""
        coordinator, changes = self._coordinator, self._coordinator.state.changes
        outbox, coordinator.outbox = coordinator.outbox, []
        for to, message in outbox:
            if isinstance(message, LeaseRenewal):
                for writer in self._writers_to(to):
                    _send(writer, message)
            else:
                self._queue.append((changes, to, message))
        if self._written < changes and self._writing is None:
            self._writing = asyncio.create_task(self._write_state())
        self._send_written_messages()
        lines, coordinator.log_lines = coordinator.log_lines, []
        if lines and not self._is_ending:
            log_lines(*lines)
            self._has_recoveries = True
            if self._writing_recoveries is None or self._writing_recoveries.done():
                self._writing_recoveries = asyncio.create_task(self._write_recoveries())

    async def _write_state(self) -> None:
        """Write the state until the file holds it; a disk that fails is tried again for a minute."""
        failing_s = None
        while self._written < self._coordinator.state.changes:
            address = {"host": self._host, "port": self._port}
            report, state = as_json(self._report()), asdict(self._coordinator.state)
            content: dict[str, Any] = {**address, "writer": self._writer, "report": report, **state}
            try:
                await asyncio.to_thread(self._write_next, content)
            except SupersededError:
                raise
            except OSError as error:
                if failing_s is None:
                    failing_s = time.monotonic()
                    log_lines(f"the state cannot be written, and no message is sent meanwhile: {error}")
                if time.monotonic() - failing_s > WRITE_TIMEOUT_S:
                    raise
                await asyncio.sleep(REWRITE_S)
                continue
            failing_s, self._written, self._content = None, content["changes"], content
            self._send_written_messages()
        self._writing = None

    def _write_next(self, content: dict[str, Any]) -> None:
        """Write the next state.

        Raises:
            SupersededError: If another coordinator has written one since.
            OSError: If it cannot be written.
        """
        try:
            write_state(self._folder, self._number + 1, content)
        except SupersededError:
            self._number, written = read_state(self._folder)
            if written["writer"] != self._writer:
                raise
            # The disk failed once it had the file.
            write_state(self._folder, self._number + 1, content)
        self._number += 1

    def _report(self) -> RingReport:
        """Return the ring at present. Once it ends, or a launcher ends its members, the report stays."""
        if self._last is None or not self._is_ending:
            self._last = self._coordinator.report()
        return self._last

    async def _write_recoveries(self) -> None:
        """Write the recoveries for people; nothing depends on that file."""
        while self._has_recoveries:
            self._has_recoveries = False
            content = [as_json(timer.phase_durations()) for timer in self._coordinator.recoveries]
            with contextlib.suppress(OSError):
                await asyncio.to_thread(write_file, self._folder, RECOVERIES, content)

    async def _wait_until_written(self) -> None:
        """Wait until the file holds all changes."""
        while self._written < self._coordinator.state.changes:
            await asyncio.sleep(0.01)

    def _send_written_messages(self) -> None:
        """Send the messages whose state is written."""
        last, line = None, b""
        while self._queue and self._queue[0][0] <= self._written:
            _, to, message = self._queue.popleft()
            if message is not last:  # A layout that goes to a thousand members is encoded once.
                last, line = message, encode(message)
            for writer in self._writers_to(to):
                _send(writer, message, line)

    def _writers_to(self, receiver: int) -> list[Writer]:
        if receiver == LAUNCHERS:
            return list(self._launchers)
        if receiver == SCHEDULERS:
            return list(self._schedulers)
        return [self._members[receiver]] if receiver in self._members else []

    # Connections

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        """Serve one connection; whatever is received, also an endless line, ends at most this connection."""
        self._ungreeted[writer] = None
        if len(self._ungreeted) > MAX_UNGREETED:
            oldest = next(iter(self._ungreeted))
            del self._ungreeted[oldest]
            oldest.transport.abort()
        try:
            with contextlib.suppress(OSError, ValueError, TimeoutError):
                challenge = new_challenge()
                _send(writer, challenge)
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    hello = decode(await reader.readline())
                if isinstance(hello, Hello) and proves_secret(self._settings.secret, challenge, hello):
                    self._ungreeted.pop(writer, None)
                    _send(writer, make_welcome(self._settings.secret, challenge, hello, self.epoch))
                    try:
                        await self._serve_role(with_short_texts(hello), reader, writer)
                    except WireError as error:
                        sender = f"member {hello.member}" if hello.role == "member" else f"a {hello.role}"
                        self._log_once(f"a message of {sender[:50]} is refused: {error}")
        finally:
            self._ungreeted.pop(writer, None)
            writer.close()

    async def _serve_role(self, hello: Hello, reader: asyncio.StreamReader, writer: Writer) -> None:
        if hello.role == "member":
            await self._serve_member(hello, reader, writer)
        elif hello.role == "launcher":
            await self._serve_launcher(reader, writer)
        elif hello.role == "scheduler":
            await self._serve_scheduler(reader, writer)
        elif hello.role == "status":
            await self._wait_until_written()
            _send(writer, self._report())
            await writer.drain()

    async def _serve_member(self, hello: Hello, reader: asyncio.StreamReader, writer: Writer) -> None:
        before = self._members.get(hello.member)
        self._members[hello.member] = writer
        if not self._coordinator.admit_member(hello, time.monotonic()):
            await self._refuse_member(hello.member, before, writer)
            return
        if before is not None:
            before.close()
        self._write_and_send()
        try:
            async for message in _read_messages(reader):
                if self._members.get(hello.member) is not writer or getattr(message, "member", -1) != hello.member:
                    return
                self._coordinator.receive_member_message(hello.member, message, time.monotonic())
                self._write_and_send()
        finally:
            if self._members.get(hello.member) is writer:
                del self._members[hello.member]
                self._coordinator.member_disconnected(hello.member, time.monotonic())

    async def _refuse_member(self, member: int, before: Writer | None, writer: Writer) -> None:
        """Send `Evicted` to a process that is no member, but not to the process that is the member of its number."""
        coordinator = self._coordinator
        refusals = [sent for sent in coordinator.outbox if sent[0] == member and isinstance(sent[1], Evicted)]
        coordinator.outbox = [sent for sent in coordinator.outbox if sent not in refusals]
        if before is None:
            del self._members[member]
        else:
            self._members[member] = before
        self._write_and_send()
        await self._wait_until_written()
        for _, message in refusals:
            _send(writer, message)

    async def _serve_launcher(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        written = self._content  # all launchers receive what is newer, once it is written
        for number, reason in written.get("gone", {}).items():
            _send(writer, MemberGone(int(number), reason))
        if written and Phase(written["phase"]).is_over:
            _send(writer, RingEnd(str(written["phase"]), written["outcome"]))
        self._launchers.add(writer)
        detect_silence(writer.get_extra_info("socket"))
        self._launcher_count += 1
        launcher = self._launcher_count
        try:
            async for message in _read_messages(reader):
                if isinstance(message, Terminating):
                    self._report()
                    self._is_ending = True
                self._coordinator.receive_launcher_message(message, time.monotonic(), launcher)
                self._write_and_send()
        finally:
            self._launchers.discard(writer)
            self._coordinator.launcher_disconnected(launcher, time.monotonic())
            self._write_and_send()

    async def _serve_scheduler(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._schedulers.add(writer)
        self._coordinator.scheduler_connected(time.monotonic())
        self._write_and_send()
        try:
            async for message in _read_messages(reader):
                self._coordinator.receive_scheduler_message(message, time.monotonic())
                self._write_and_send()
        finally:
            self._schedulers.discard(writer)
            if not self._schedulers:
                self._coordinator.scheduler_disconnected()


async def _read_messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Yield the messages of a connection until it ends.

    Raises:
        WireError: If a line is no message.
    """
    buffer = MessageBuffer()
    while data := await reader.read(1 << 16):
        for message in buffer.feed(data):
            yield with_short_texts(message)


def with_short_texts(message: AnyMessage) -> AnyMessage:
    """Return a message whose texts are cut: they are kept, written, and sent to others."""
    texts = {part.name: getattr(message, part.name) for part in fields(message)}
    short: dict[str, Any] = {
        name: text[:MAX_TEXT] for name, text in texts.items() if isinstance(text, str) and len(text) > MAX_TEXT
    }
    return replace(message, **short) if short else message


def _send(writer: Writer, message: Message, line: bytes | None = None) -> None:
    """Send a message without waiting; a process that does not read is cut off, and reconnects if it lives."""
    if writer.is_closing():
        return
    writer.write(encode(message) if line is None else line)
    if writer.transport.get_write_buffer_size() > MAX_SEND_BYTES:
        writer.transport.abort()


def log_lines(*lines: str) -> None:
    """Write lines to standard error, which may be closed, or on a disk that is full: nothing may fail for that."""
    with contextlib.suppress(OSError, ValueError):
        for line in lines:
            sys.stderr.write(f"longshore.ring: {line}\n")


def _read_state(folder: Path) -> tuple[int, dict[str, Any], CoordinatorState | None]:
    """Return what an earlier coordinator wrote, with its number, and as its state, if there was one.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is damaged.
    """
    number, content = read_state(folder)
    if not number:
        return 0, {}, None
    names = {part.name for part in fields(CoordinatorState)} - {"phase"}
    state = CoordinatorState(**{name: content[name] for name in names}, phase=Phase(content["phase"]))
    return number, content, state


async def _run(server: CoordinatorServer, folder: Path) -> Phase | None:
    """Run a coordinator to the end of its ring; return None once there is a later epoch."""
    ring = asyncio.create_task(server.run())
    until = asyncio.create_task(_wait_for_epoch(folder, server.epoch + 1))
    await asyncio.wait({ring, until}, return_when=asyncio.FIRST_COMPLETED)
    return await ring if ring.done() else None


async def _wait_for_epoch(folder: Path, epoch: int) -> None:
    """Wait for an epoch, or a later one; while the folder cannot be read, nothing is known of one."""
    while True:
        with contextlib.suppress(OSError, ValueError):
            if (await asyncio.to_thread(read_appointment, folder)).epoch >= epoch:
                return
        await asyncio.sleep(APPOINTMENT_S)


def main() -> None:
    """Coordinate the ring of a folder at an address, both of which are arguments, in an epoch."""
    folder, host, epoch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    try:
        server, appointed = CoordinatorServer(folder, read_settings(folder), host, epoch), read_appointment(folder)
        if epoch < max(server.epoch, appointed.epoch):
            os._exit(SUPERSEDED_STATUS)
        if epoch == appointed.epoch:
            server.retire_lost(appointed.gone)
        phase = asyncio.run(_run(server, folder))
    except OSError as error:
        log_lines(f"the coordinator ends: {error}")
        os._exit(1)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(SUPERSEDED_STATUS if phase is None else 0 if phase is Phase.DONE else LOST_STATUS)


if __name__ == "__main__":
    main()
