"""Starts the processes of a ring: its coordinator, a warm process and members; and sees at once how they end.

Who starts the processes of a ring: its coordinator, a warm process and members; and sees at once how they end.

    async with Launcher(folder) as launcher:           # folder: made by settings.make_ring
        await launcher.start_coordinator()             # on one node; it is started again if it is killed
        await launcher.connect()
        launcher.start(Start(0, ("python", "train.py"), os.environ, Path.cwd()))
        launcher.start(Start(7, ...))            # at any time later: a member that joins
        end = await launcher.ended()                   # done or lost, as the coordinator says

A member's number is never given twice. It runs in a session of its own; a member that was declared gone is killed with
its group. `on_exit` is called when a member's process is gone. Source: SPEC F8 to F10.

Standard library only.

Starts Longshore's own programs beside a job: nothing in the job's folder takes the place of what they import.

Standard library only.

Keeps the coordinator of a ring: it is started again when it is killed, and killed when it answers nobody.

Standard library only.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from types import TracebackType
from typing import Self

from ..cluster.files.processes import ending_with
from .rounds import RESTART
from .standing import STATE, Settings, read_settings
from .suspicion import Logs, end_words
from .warm import connect_warm, fork, python_arguments
from .wire import (
    ADDRESS,
    LOST_STATUS,
    MEMBER,
    MOST_BYTES,
    NODE,
    RESTART_STATUS,
    SECRET,
    Declared,
    End,
    Ending,
    Exited,
    Hello,
    Message,
    Starting,
    decode,
    encode,
    greet,
)

ROOT = Path(__file__).absolute().parents[2]  # the folder that holds the package
# Without the folder that the program runs in, which Python puts first.
BEGIN = (
    "import sys; sys.path = [it for it in sys.path if it]; sys.path.append(sys.argv.pop(1)); "
    "from importlib import import_module; import_module(sys.argv.pop(1)).main()"
)
ALONE = ("-I", "-S", "-X", "utf8")  # for what needs the standard library alone


async def start_tool(
    module: str, *arguments: str, flags: Sequence[str] = (), outlives: bool = False
) -> asyncio.subprocess.Process:
    """Start a program of Longshore.

    Args:
        module: That has its `main`.
        arguments: That the program is given.
        flags: For the interpreter.
        outlives: Whether it lives on when this process is killed.

    Raises:
        OSError: If it cannot be started.
        subprocess.SubprocessError: The same.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable, *flags, "-c", BEGIN, str(ROOT), module, *arguments, stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True, preexec_fn=None if outlives else ending_with(os.getpid()),
    )  # fmt: skip


COORDINATOR = "longshore.ring.coordinator"
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


RETRY_S, FAILED_STATUS = 0.05, 127  # the status of one that could not be started
GREET_S = 5.0  # for a coordinator to prove itself
HEAR_S = 0.5  # for a member to hear that it was declared gone
GRACE_S = 5.0  # for members of a lost ring to end
_WARM = "longshore.ring.warm"
# What a module imports beside PyTorch takes as long again; it is imported once, for all members that run it.
_WARM_IMPORTS = {"longshore.stage": "longshore.planner.execution.worker"}


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
        on_declared: Called with the number of a member that was declared gone, and why; more than once, perhaps.
    """

    def __init__(
        self, folder: Path, warm: Path | None = None, on_exit: Callable[[Start, int], object] | None = None,
        on_declared: Callable[[int, str], object] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._warm, self.on_exit, self.on_declared = folder, warm, on_exit, on_declared
        self._settings: Settings = read_settings(folder)
        self._running: dict[int, int] = {}  # pid of each member
        self.pids: dict[int, int] = {}  # the same, also of those that have ended; each led a session of its own
        self._exits: dict[int, int] = {}
        self._words: dict[int, str] = {}  # the errors by which scripts ended
        self._logs = Logs()
        self._starting: set[int] = set()
        self.declared: dict[int, str] = {}  # why each member that was declared gone was
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._keeper: Keeper | None = None
        self._warm_process: asyncio.subprocess.Process | None = None
        self._ends_by = 0  # signal by which members are ended, once that is wanted

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
        return None if self._keeper is None else self._keeper.pid

    @property
    def tools(self) -> set[int]:
        """Pids of the coordinator and of the warm process, as far as this launcher started them."""
        warm = None if self._warm_process is None else self._warm_process.pid
        return {pid for pid in (self.coordinator_pid, warm) if pid is not None}

    async def start_coordinator(self) -> None:
        """Start the coordinator, and again whenever it is killed, until the ring is over."""
        self._keeper = Keeper(self.folder, self._settings)
        await self._keeper.start()
        self._keep(self._watch_coordinator(self._keeper))

    async def start_warm(self, command: tuple[str, ...]) -> None:
        """Start a warm process, if a command runs Python; members that run it are forked from it once it is ready."""
        arguments = python_arguments(command)
        if arguments is None:
            return
        path = self.folder / "warm.sock"
        more = [_WARM_IMPORTS[it] for it in arguments[1:2] if arguments[0] == "-m" and it in _WARM_IMPORTS]
        self._warm_process = await start_tool(_WARM, str(path), *more, outlives=True)  # It ends its members first.
        self._warm = path

    async def connect(self) -> None:
        """Connect to the coordinator, now and whenever it was started again."""
        ready = asyncio.Event()
        self._keep(self._follow(ready))
        await ready.wait()

    def start(self, it: Start) -> None:
        """Start a member; one that cannot be started is one that ended at once, with FAILED_STATUS."""
        if self._ends_by:
            return
        self._starting.add(it.member)
        self._tell(Starting(it.member))
        self._keep(self._run(it))

    def wants_another(self, member: int, status: int) -> bool:
        """Say whether another process is to take the place of one that ended, as the ring wants it so.

        A script may end with any status. So the coordinator's file decides: it told the member to start anew, or the
        member had a seat when it said so itself.
        """
        try:
            state = json.loads((self.folder / STATE).read_bytes())
            why, holders = state["gone"].get(str(member)), state["holders"]
        except (OSError, ValueError, KeyError):
            return False
        if status == 0 or (why is not None and why != RESTART):
            return False
        return why == RESTART or (status == RESTART_STATUS and member in holders)

    async def _run(self, it: Start) -> None:
        try:
            ends = await self._begin(it)
        except Exception as error:  # Whatever it is: that nothing runs has to be known.
            if not self._ends_by:
                sys.stderr.write(f"longshore.ring: member {it.member} cannot be started: {error}\n")
            self._gone(it, FAILED_STATUS)
        else:
            if it.member in self.declared:  # while it was started
                self._kill_member(it.member)
            if self._ends_by:
                self.signal(self._ends_by)
            self._gone(it, await ends)

    async def _begin(self, it: Start) -> Coroutine[None, None, int]:
        """Start a process; return what waits for its end."""
        if it.member in self.declared:
            raise OSError(f"it was declared gone: {self.declared[it.member]}")
        place = {ADDRESS: self.address(), SECRET: self._settings.secret, MEMBER: str(it.member), NODE: it.node}
        environment = {**it.environment, **place}
        if it.log is not None:
            self._logs.begin(it.member, it.log)
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
        return ends

    async def ended(self) -> End:
        """Wait until the ring is over and all members' processes are gone; those of a lost ring are killed."""
        end = await self._end
        until_s = asyncio.get_running_loop().time() + GRACE_S
        while self._starting:
            if end.outcome != "done" and asyncio.get_running_loop().time() > until_s:
                self.signal(signal.SIGKILL)
            await asyncio.sleep(RETRY_S)
        return end

    def end(self, number: int) -> None:
        """Let all members end by a signal, also those that are being started, and start none any more.

        What the coordinator sees of it is no fault.
        """
        if not self._ends_by:
            self._keep(self._end_when_empty())
        self._ends_by = number
        self._tell(Ending())
        self.signal(number)

    async def _end_when_empty(self) -> None:
        while self._starting:
            await asyncio.sleep(RETRY_S)
        if not self._end.done():
            self._end.set_result(End("lost", "it was asked to end"))

    def signal(self, number: int) -> None:
        """Send a signal to all members and their groups."""
        for pid in self._running.values():
            if not _kill(pid, number):  # one that was forked just now does not lead its group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

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
        if self._keeper is not None:
            await self._keeper.close()
        if self._warm_process is not None:
            await end_tool(self._warm_process)
        if self._writer is not None:
            self._writer.close()

    # The coordinator

    async def _watch_coordinator(self, keeper: Keeper) -> None:
        try:
            end = await keeper.keep()
        except Exception as error:  # Without who watches it nobody would ever say that the ring is over.
            end = End("lost", f"the coordinator cannot be kept: {error}")
        await asyncio.sleep(AGAIN_S)  # What it said last may be on its way.
        if not self._end.done():
            self._end.set_result(end)

    async def _follow(self, ready: asyncio.Event) -> None:
        while not self._end.done():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                await self._listen(ready)
            self._writer = None
            await asyncio.sleep(RETRY_S)
        ready.set()

    async def _listen(self, ready: asyncio.Event) -> None:
        host, _, port = self.address().rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=MOST_BYTES)
        try:
            async with asyncio.timeout(GREET_S):
                await greet(reader, writer, self._settings.secret, Hello("launcher"))
            self._writer = writer
            for number in self._starting:
                self._tell(Starting(number))
            for number, status in self._exits.items():
                self._tell(Exited(number, status, self._words[number]))
            if self._ends_by:
                self._tell(Ending())
            ready.set()
            while True:
                with contextlib.suppress(ValueError):  # too long, or no message: the next one counts
                    if not (line := await reader.readline()):
                        return
                    self._hear(decode(line))
        finally:
            writer.close()

    def _hear(self, message: Message) -> None:
        if isinstance(message, Declared):
            self.declared[message.member] = message.reason
            # One that lives may hear of it and end by itself, with its own status.
            asyncio.get_running_loop().call_later(HEAR_S, self._kill_member, message.member)
            if self.on_declared is not None:
                _call(self.on_declared, message.member, message.reason)
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
            start_new_session=True, preexec_fn=ending_with(os.getpid()),
        )  # fmt: skip
        self._running[it.member] = self.pids[it.member] = process.pid
        return process.wait()

    async def _fork(
        self, warm: Path, it: Start, arguments: list[str], environment: Mapping[str, str], output: int
    ) -> Coroutine[None, None, int] | None:
        """Let the warm process fork a member; return what waits for its end, None if that process has ended."""
        connection = await connect_warm(warm, self._is_warm_gone)
        if connection is None:
            return None
        what = {"arguments": arguments, "environment": dict(environment), "folder": str(it.folder)}
        forked = await fork(connection, what, output)
        if forked is None:
            return None
        self._running[it.member] = self.pids[it.member] = forked.pid
        return forked.ends

    def _is_warm_gone(self) -> bool:
        """Say whether nobody will be forked any more.

        Raises:
            OSError: If nobody is to be started at all.
        """
        if self._ends_by:
            raise OSError("the ring is being ended")
        return self._warm_process is not None and self._warm_process.returncode is not None

    def _gone(self, it: Start, status: int) -> None:
        pid = self._running.pop(it.member, None)
        if pid is not None:
            _kill(pid, signal.SIGKILL)  # what it left behind in its group
        self._exits[it.member], self._words[it.member] = status, self._logs.error_of(it.member, it.log, status)
        self._starting.discard(it.member)
        if self.on_exit is not None:  # Before it is told: a member that is started in its place is told first.
            _call(self.on_exit, it, status)
        self._tell(Exited(it.member, status, self._words[it.member]))

    def words_of(self, member: int) -> str:
        """Return how a member ended, for people."""
        return end_words(self._exits[member], self._words[member])

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _call(what: Callable[..., object], *given: object) -> None:
    """Tell whoever uses a launcher; that he fails must not stop it."""
    try:
        what(*given)
    except Exception:
        traceback.print_exc()


def _kill(pid: int, number: int) -> bool:
    """Send a signal to a process group, and return whether it is still there."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return False
    return True
