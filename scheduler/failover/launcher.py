"""Who starts the processes of a ring: its coordinator, a warm process and members; and sees at once how they end.

    async with Launcher(folder) as launcher:           # folder: made by settings.make_ring
        await launcher.start_coordinator()             # on one node; it is started again if it is killed
        await launcher.connect()
        launcher.start(Start(0, ("python", "train.py"), os.environ, Path.cwd()))
        launcher.start(Start(7, ...))            # at any time later: a member that joins
        end = await launcher.ended()                   # done or lost, as the coordinator says

A member's number is never given twice. It runs in a session of its own; a member that was declared gone is killed with
its group. `on_exit` is called when a member's process is gone. Source: SPEC F8 to F10.

Standard library only.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ..files.sockets import short_name
from .settings import STATE, Settings, read_settings
from .wire import (
    ADDRESS,
    LOST_STATUS,
    MEMBER,
    MOST_BYTES,
    NODE,
    SECRET,
    Declared,
    End,
    Exited,
    Hello,
    Message,
    Starting,
    WireError,
    decode,
    encode,
)

RETRY_S = 0.05
AGAIN_S = 0.2  # before a coordinator that was killed is started again a second time
UNKNOWN_STATUS = -1000  # of a process whose parent died before it
FAILED_STATUS = 127  # of one that could not be started
WARM_S = 120.0  # for a warm process to be ready
HEAR_S = 0.5  # for a member to hear that it was declared gone
GRACE_S = 5.0  # for members of a lost ring to end
TRIES = 20  # to start a coordinator that ends at once
_COORDINATOR = "longshore.scheduler.failover.coordinator"
_WARM = "longshore.scheduler.failover.warm"


@dataclass(frozen=True, slots=True)
class Start:
    """A member to be started.

    Args:
        member: Its number.
        command: What to run.
        environment: All of its variables; what it needs to find its ring is added.
        folder: That it runs in.
        log: File that its output is added to; the launcher's own output if None.
        node: Name of the node, for reports.
    """

    member: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path | None = None
    node: str = ""


class Launcher:
    """Starts processes of one ring on this machine. Use it in one event loop.

    Args:
        folder: Of the ring.
        warm: Socket of a warm process that somebody else started, if there is one.
        on_exit: Called with a member's number and exit status (minus the signal's number) when its process is gone.
    """

    def __init__(
        self, folder: Path, warm: Path | None = None, on_exit: Callable[[Start, int], object] | None = None
    ) -> None:
        self.folder, self._warm, self.on_exit = folder, warm, on_exit
        self._settings: Settings = read_settings(folder)
        self._running: dict[int, int] = {}  # pid of each member
        self.pids: dict[int, int] = {}  # the same, also of those that have ended; each led a session of its own
        self._exits: dict[int, int] = {}
        self._starting: set[int] = set()
        self.declared: dict[int, str] = {}  # why each member that was declared gone was
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._coordinator: asyncio.subprocess.Process | None = None
        self._warm_process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> dict[int, int]:
        """Pid of each member that runs."""
        return dict(self._running)

    @property
    def exits(self) -> dict[int, int]:
        """Exit status of each member whose process is gone; minus the signal's number if one ended it."""
        return dict(self._exits)

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has said that the ring is over."""
        return self._end.done()

    @property
    def coordinator_pid(self) -> int | None:
        """Pid of the coordinator, if this launcher started it."""
        return None if self._coordinator is None else self._coordinator.pid

    @property
    def tools(self) -> set[int]:
        """Pids of the coordinator and of the warm process, as far as this launcher started them."""
        return {it.pid for it in (self._coordinator, self._warm_process) if it is not None}

    async def start_coordinator(self) -> None:
        """Start the coordinator, and again whenever it is killed, until the ring is over."""
        self._coordinator = await _python(_COORDINATOR, str(self.folder))
        while not (self.folder / STATE).exists():
            if self._coordinator.returncode is not None:
                raise OSError(f"the ring's coordinator ended with status {self._coordinator.returncode}")
            await asyncio.sleep(0.01)
        self._keep(self._watch_coordinator())

    async def start_warm(self) -> None:
        """Start a warm process; members are forked from it once it is ready."""
        path = self.folder / "warm.sock"
        self._warm_process = await _python(_WARM, str(path))
        self._warm = path

    async def connect(self) -> None:
        """Connect to the coordinator, now and whenever it was started again."""
        ready = asyncio.Event()
        self._keep(self._follow(ready))
        await ready.wait()

    def start(self, it: Start) -> None:
        """Start a member; one that cannot be started is one that ended at once, with FAILED_STATUS."""
        self._starting.add(it.member)
        self._tell(Starting(it.member))
        self._keep(self._run(it))

    async def _run(self, it: Start) -> None:
        try:
            status = await self._run_member(it)
        except OSError as error:
            sys.stderr.write(f"longshore.ring: member {it.member} cannot be started: {error}\n")
            status = FAILED_STATUS
        self._gone(it, status)

    async def _run_member(self, it: Start) -> int:
        place = {ADDRESS: self.address(), SECRET: self._settings.secret, MEMBER: str(it.member), NODE: it.node}
        environment = {**it.environment, **place}
        output = 1 if it.log is None else os.open(it.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            arguments = python_arguments(it.command)
            ends = None
            if self._warm is not None and arguments is not None:
                ends = await self._fork(self._warm, it, arguments, environment, output)
            if ends is None:
                ends = await self._spawn(it, environment, output)
        finally:
            if it.log is not None:
                os.close(output)
        return await ends

    async def ended(self) -> End:
        """Wait until the ring is over and all members' processes are gone; those of a lost ring are killed."""
        end = await self._end
        until_s = asyncio.get_running_loop().time() + GRACE_S
        while self._starting:
            if end.outcome != "done" and asyncio.get_running_loop().time() > until_s:
                self.signal(signal.SIGKILL)
            await asyncio.sleep(RETRY_S)
        return end

    def signal(self, number: int) -> None:
        """Send a signal to all members and their groups."""
        for pid in self._running.values():
            _kill(pid, number)

    def address(self) -> str:
        """Return HOST:PORT of the coordinator.

        Raises:
            OSError: If it has not been started.
        """
        return f"{self._settings.host}:{json.loads((self.folder / STATE).read_bytes())['port']}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that was started."""
        for task in self._tasks:
            task.cancel()
        self.signal(signal.SIGKILL)
        for process in (self._coordinator, self._warm_process):
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._writer is not None:
            self._writer.close()

    # The coordinator

    async def _watch_coordinator(self) -> None:
        """Start the coordinator again whenever it is killed; give up if it ends at once each time."""
        loop, tries = asyncio.get_running_loop(), 0
        while self._coordinator is not None:
            began_s = loop.time()
            status = await self._coordinator.wait()
            tries = 0 if loop.time() - began_s > GRACE_S else tries + 1
            if status in (0, LOST_STATUS) or tries > TRIES:
                break
            await asyncio.sleep(AGAIN_S if tries > 1 else 0.0)
            self._coordinator = await _python(_COORDINATOR, str(self.folder))
        await asyncio.sleep(AGAIN_S)  # What it said last may be on its way.
        if not self._end.done():
            self._end.set_result(End("done" if status == 0 else "lost", f"the coordinator ended with {status}"))

    async def _follow(self, ready: asyncio.Event) -> None:
        while not self._end.done():
            with contextlib.suppress(OSError, WireError):
                await self._listen(ready)
            self._writer = None
            await asyncio.sleep(RETRY_S)

    async def _listen(self, ready: asyncio.Event) -> None:
        host, _, port = self.address().rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=MOST_BYTES)
        try:
            writer.write(encode(Hello("launcher", self._settings.secret)))
            self._writer = writer
            for number in self._starting:
                self._tell(Starting(number))
            for number, status in self._exits.items():
                self._tell(Exited(number, status))
            ready.set()
            while line := await reader.readline():
                self._hear(decode(line))
        finally:
            writer.close()

    def _hear(self, message: Message) -> None:
        if isinstance(message, Declared):
            self.declared[message.member] = message.reason
            # One that lives may hear of it and end by itself, with its own status.
            asyncio.get_running_loop().call_later(HEAR_S, self._kill_member, message.member)
        elif isinstance(message, End) and not self._end.done():
            self._end.set_result(message)

    def _kill_member(self, number: int) -> None:
        if number in self._running:
            _kill(self._running[number], signal.SIGKILL)

    def _tell(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    # Members

    async def _spawn(self, it: Start, environment: Mapping[str, str], output: int) -> Coroutine[None, None, int]:
        """Start a process; return what waits for its end."""
        process = await asyncio.create_subprocess_exec(
            *it.command, env=environment, cwd=it.folder, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        self._running[it.member] = self.pids[it.member] = process.pid
        return process.wait()

    async def _fork(
        self, warm: Path, it: Start, arguments: list[str], environment: Mapping[str, str], output: int
    ) -> Coroutine[None, None, int] | None:
        """Let the warm process fork a member; return what waits for its end, None if that process has ended."""
        connection = await self._connect_warm(warm)
        if connection is None:
            return None
        what = {"arguments": arguments, "environment": dict(environment), "folder": str(it.folder)}
        try:
            socket.send_fds(connection, [json.dumps(what).encode() + b"\n"], [output])
            connection.settimeout(0.0)
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            pid = int(json.loads(await reader.readline())["pid"])
        except (OSError, ValueError):
            connection.close()
            return None
        self._running[it.member] = self.pids[it.member] = pid
        return _forked(pid, reader, writer)

    async def _connect_warm(self, path: Path) -> socket.socket | None:
        """Connect to the warm process; it may not be ready yet, or have been killed."""
        until_s = asyncio.get_running_loop().time() + WARM_S
        while asyncio.get_running_loop().time() < until_s:
            connection = socket.socket(socket.AF_UNIX)
            try:
                with short_name(path) as name:
                    connection.connect(name)
            except OSError:
                connection.close()
                if self._warm_process is not None and self._warm_process.returncode is not None:
                    return None
                await asyncio.sleep(0.02)
            else:
                return connection
        return None

    def _gone(self, it: Start, status: int) -> None:
        pid = self._running.pop(it.member, None)
        if pid is not None:
            _kill(pid, signal.SIGKILL)  # what it left behind in its group
        if self.on_exit is not None:
            self.on_exit(it, status)
        self._exits[it.member] = status
        self._starting.discard(it.member)
        self._tell(Exited(it.member, status))

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def python_arguments(command: tuple[str, ...]) -> list[str] | None:
    """Return what follows the interpreter if a command runs a script with this Python, None if it is anything else."""
    if len(command) < 2 or shutil.which(command[0]) != sys.executable:
        return None
    rest = list(command[1:])
    if rest[0] == "-m":
        return rest if len(rest) > 1 else None
    return None if rest[0].startswith("-") else rest


async def _forked(pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Wait for the end of a member that a warm process forked, and return its status."""
    said = await reader.readline()
    writer.close()
    if said:
        return int(json.loads(said)["status"])
    await _until_gone(pid)  # The warm process was killed; the member lives on.
    return UNKNOWN_STATUS


async def _until_gone(pid: int) -> None:
    """Wait for the end of a process that is no child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _python(module: str, argument: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, argument, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )


def _kill(pid: int, number: int) -> None:
    """Send a signal to a process group, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
