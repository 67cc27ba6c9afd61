"""Starts the processes of a ring: its coordinator, a warm process and members; and reports at once how they end.

    async with RingLauncher(folder) as launcher:       # folder: made by `make_ring_folder`
        await launcher.start_coordinator()             # on one node; it is restarted if it is killed
        await launcher.connect()
        launcher.start(MemberStart(0, ("python", "train.py"), os.environ, Path.cwd()))
        launcher.start(MemberStart(7, ...))            # at any time later: a member that joins
        end = await launcher.wait_for_end()            # done or lost, as the coordinator reports

A member's number is never used twice. A member runs in a session of its own; one that was declared gone is killed with
its group. Source: SPEC F8 to F10.

Standard library only.
"""

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from subprocess import SubprocessError
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, NamedTuple, Self

from ..cluster.files.processes import kill_with_parent_hook, last_error_in_log
from .coordinator import WORN_OUT
from .coordinator_server import log_lines
from .folder import RingSettings, read_appointment, read_settings, read_state, state_number, write_state
from .warm import connect_to_warm_process, fork_member, python_arguments
from .wire import (
    ADDRESS,
    ADDRESS_FILE,
    DONE_ADDRESS,
    GONE_STATUS,
    LOST_STATUS,
    MAX_LINE_BYTES,
    MEMBER,
    NODE,
    RESTART_STATUS,
    SECRET,
    SILENCE_S,
    SUPERSEDED_STATUS,
    WAIT_S,
    Hello,
    MemberExited,
    MemberGone,
    MemberStarting,
    Message,
    RingEnd,
    Terminating,
    decode,
    describe_exit,
    detect_silence,
    encode,
    greet,
)

IMPORT_FOLDER = Path(__file__).absolute().parents[2]
# Without the folder that the program runs in, which Python puts first: a job's folder must not hide what is imported.
RUN_MODULE = (
    "import sys; sys.path = [path for path in sys.path if path]; sys.path.append(sys.argv.pop(1)); "
    "from importlib import import_module; import_module(sys.argv.pop(1)).main()"
)
ISOLATED = ("-I", "-S", "-X", "utf8")  # for a program that needs the standard library only


async def start_tool(
    module: str, *arguments: str, flags: Sequence[str] = (), outlives_parent: bool = False
) -> asyncio.subprocess.Process:
    """Start a program of Longshore.

    Args:
        module: That has its `main`.
        arguments: Of the program.
        flags: For the interpreter.
        outlives_parent: Whether it lives on when this process is killed.

    Raises:
        OSError: If it cannot be started.
        subprocess.SubprocessError: The same.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable, *flags, "-c", RUN_MODULE, str(IMPORT_FOLDER), module, *arguments,
        stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        preexec_fn=None if outlives_parent else kill_with_parent_hook(os.getpid()),
    )  # fmt: skip


COORDINATOR = "longshore.ring.coordinator_server"
RESTART_S, MAX_RESTART_S = 0.2, 1.0  # before a coordinator that ended at once is restarted: more each time
LIVED_S = 5.0  # after which it did not end at once
MAX_RESTARTS = 20  # of one that ends at once
COORDINATOR_PROBE_S = 2.5  # between two probes whether it answers, and until an answer counts as missing
MAX_UNANSWERED_S = 30.0  # after which it is killed
KILL_TIMEOUT_S = 30.0  # for it to end then


class CoordinatorProcess:
    """The coordinator of a ring. It is restarted when it is killed, and killed when it does not answer."""

    def __init__(self, folder: Path, settings: RingSettings, host: str, epoch: int) -> None:
        self._folder, self._settings, self._host, self.epoch = folder, settings, host, epoch
        self._process: asyncio.subprocess.Process | None = None
        self._closed = asyncio.Event()  # for good

    @property
    def pid(self) -> int | None:
        """Of the coordinator, once it was started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it; raise OSError if it cannot be started, or does not begin its work."""
        self._process = await self._start_tool()
        until_s = _now_s() + MAX_UNANSWERED_S
        while not self._has_begun():
            if self._process.returncode is not None or _now_s() > until_s:
                raise OSError(f"the ring's coordinator does not begin; its status is {self._process.returncode}")
            await asyncio.sleep(0.01)

    def _has_begun(self) -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return bool(read_state(self._folder)[1]["epoch"] >= self.epoch)
        return False

    async def keep_running(self) -> RingEnd | None:
        """Restart it whenever it ends before the ring does, and return how the ring ended.

        The ring is lost if the coordinator ends at once each time, or cannot be started or killed. Nothing is returned
        once there is a coordinator of a later epoch, or it was closed.
        """
        restarts = 0
        while self._process is not None:
            began_s = _now_s()
            status = await self._wait_for_end(self._process)
            if status is None:
                return RingEnd("lost", "the coordinator does not answer, and cannot be killed")
            if status == SUPERSEDED_STATUS or self._closed.is_set():
                return None
            restarts = 0 if _now_s() - began_s > LIVED_S else restarts + 1
            if status in (0, LOST_STATUS) or restarts > MAX_RESTARTS:
                return RingEnd("done" if status == 0 else "lost", f"the coordinator ended with {status}")
            await asyncio.sleep(min(RESTART_S * 2 ** (restarts - 2), MAX_RESTART_S) if restarts > 1 else 0.0)
            if self._closed.is_set():
                return None
            try:
                self._process = await self._start_tool()
            except (OSError, SubprocessError) as error:  # The next round tries again: the old one has ended.
                log_lines(f"the coordinator cannot be started: {error}")
        return RingEnd("lost", "the coordinator was never started")

    async def close(self) -> None:
        """Kill it, if it lives, for good."""
        self._closed.set()
        if self._process is not None:
            await end_tool(self._process)

    async def _start_tool(self) -> asyncio.subprocess.Process:
        return await start_tool(COORDINATOR, str(self._folder), self._host, str(self.epoch), flags=ISOLATED)

    async def _wait_for_end(self, process: asyncio.subprocess.Process) -> int | None:
        """Wait for its end, and kill it if it does not answer; return its status, None if it survives that."""
        silent_s, probed_s = 0.0, _now_s()
        while process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), COORDINATOR_PROBE_S)
                break
            answers = await self._is_answering()
            now_s = _now_s()
            # If this process stood still, it could not receive an answer: that does not count.
            silent_s, probed_s = 0.0 if answers else silent_s + min(now_s - probed_s, 2 * COORDINATOR_PROBE_S), now_s
            if silent_s >= MAX_UNANSWERED_S:
                log_lines(f"the coordinator has not answered for {silent_s:.0f} s and is killed")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            if silent_s >= MAX_UNANSWERED_S + KILL_TIMEOUT_S:
                return None
        return process.returncode

    async def _is_answering(self) -> bool:
        try:
            async with asyncio.timeout(COORDINATOR_PROBE_S):
                _, state = read_state(self._folder)
                if state["epoch"] > self.epoch:  # it will know soon
                    return True
                reader, writer = await asyncio.open_connection(self._host, int(state["port"]))
                try:
                    await greet(reader, writer, self._settings.secret, Hello("status"))
                    return await reader.read(1) != b""
                finally:
                    writer.close()
        except (TimeoutError, ConnectionError, ValueError, KeyError, TypeError):
            return False
        except OSError:  # This process has no descriptor left, or the like: that is no fault of the coordinator.
            return True


async def end_tool(process: asyncio.subprocess.Process) -> None:
    """Kill a program, and wait a while for its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LIVED_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


MEMBER_POLL_S = 0.05  # between two checks of members, and two attempts to connect
FAILED_STATUS = 127  # of a member that could not be started
GREETING_S = 5.0  # for a coordinator to prove the secret
FOLLOW_STATE_S = 0.3  # between two checks whether there is another coordinator
DIAL_WITHIN_S = 1.0  # for a machine to answer
OVER_PHASES = ("done", "lost")  # phases of a ring that is over
# What a state that a job has made up may cause.
BAD_STATE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
EVICTION_S = 0.5  # for a member that was declared gone to receive that and end
LOST_GRACE_S = 5.0  # for members of a lost ring to end
RESTART_PAUSE_S = 1.0  # before a process in place of one that requested it without a reason, or could not be started
_WARM = "longshore.ring.warm"
# What a module imports beside PyTorch takes as long again; it is imported once, for all members that run it.
_WARM_IMPORTS = {"longshore.stage": "longshore.planner.execution.worker"}


@dataclass(frozen=True, slots=True)
class MemberStart:
    """A member to be started."""

    member: int  # its number
    command: tuple[str, ...]
    environment: Mapping[str, str]  # all of its variables; those by which it finds its ring are added
    folder: Path  # that it runs in
    log: Path | None = None  # file that its output is added to; the launcher's own output if None
    node: str = ""  # for reports
    rank: int = -1  # of its GPU in the job; -1 where GPUs have no ranks


class NextStart(NamedTuple):
    """Another process is to be started in place of one that exited."""

    is_requested: bool  # by the ring, in place of a process that did as it should
    pause_s: float = 0.0


class RingLauncher:
    """Starts processes of one ring on this machine. Use it in one event loop.

    Args:
        folder: Of the ring.
        warm: Socket of a warm process that another one started, if there is one.
        restarts: How many processes are started in place of ones that failed, besides those that the ring requests.
        keeps_declared: Whether also the place of a member that was declared gone gets another process. A scheduler
            that has other GPUs takes the place back instead.
        wait_s: How long a member waits for a coordinator before it ends. Another machine may run the next one.
        on_exit: Called with a member's start and exit status (minus the signal's number) when its process has exited.
        on_declared: Called with the number of a member that was declared gone, and the reason; perhaps more than once.
    """

    def __init__(
        self, folder: Path, warm: Path | None = None, on_exit: Callable[[MemberStart, int], object] | None = None,
        on_declared: Callable[[int, str], object] | None = None, *, restarts: int = 0, keeps_declared: bool = False,
        wait_s: float = SILENCE_S,
    ) -> None:  # fmt: skip
        self.folder, self._warm, self.on_exit, self.on_declared = folder, warm, on_exit, on_declared
        self._restarts, self._keeps_declared, self._wait_s = restarts, keeps_declared, wait_s
        self._own = Path(mkdtemp(prefix="longshore-ring-")) if wait_s > SILENCE_S else None  # on this machine
        self.epoch = 0  # of the coordinator that it was connected to last
        self._settings: RingSettings = read_settings(folder)
        self._running: dict[int, int] = {}  # pid of each member
        self.pids: dict[int, int] = {}  # the same, also of those that have ended; each led a session of its own
        self.exits: dict[int, int] = {}  # status of each member that has exited; minus the signal's number
        self._errors: dict[int, str] = {}  # with which scripts ended
        self._log_sizes: dict[int, int] = {}  # of each member's log before it was started: others may have had it
        self._starting: dict[int, int] = {}  # rank of each member that was started and has not exited
        self.declared: dict[int, str] = {}  # why each member was declared gone
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._end: asyncio.Future[RingEnd] = asyncio.get_running_loop().create_future()
        self._coordinator: CoordinatorProcess | None = None
        self._warm_process: asyncio.subprocess.Process | None = None
        self._ends_by = 0  # signal that ends all members, once they are to end
        self._ends_ring = False  # and with them the ring

    @property
    def running_pids(self) -> dict[int, int]:
        """Pid of each member that runs."""
        return dict(self._running)

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to the coordinator."""
        return self._writer is not None

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has reported the ring's end."""
        return self._end.done()

    @property
    def coordinator_pid(self) -> int | None:
        """Pid of the coordinator, if this launcher started it."""
        return None if self._coordinator is None else self._coordinator.pid

    @property
    def tool_pids(self) -> set[int]:
        """Pids of the coordinator and of the warm process, if this launcher started them."""
        warm = None if self._warm_process is None else self._warm_process.pid
        return {pid for pid in (self.coordinator_pid, warm) if pid is not None}

    async def start_coordinator(self, host: str = "127.0.0.1", epoch: int = 0) -> None:
        """Start the coordinator, and restart it whenever it is killed, until the ring is over or a later one begins.

        `host` is the address of this machine at which members reach it.

        Raises:
            OSError: If it cannot be started.
            subprocess.SubprocessError: The same.
        """
        coordinator = CoordinatorProcess(self.folder, self._settings, host, epoch)
        try:
            await coordinator.start()
        except (OSError, SubprocessError):
            await coordinator.close()
            raise
        await self.end_coordinator()
        self._coordinator = coordinator
        self._run_in_background(self._watch_coordinator(coordinator))

    async def end_coordinator(self) -> None:
        """End the coordinator, if this launcher has started it: another one is to run one of a later epoch."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await coordinator.close()

    async def start_warm(self, command: tuple[str, ...], folder: Path | None = None) -> None:
        """Start a warm process, if a command runs Python; members that run it are forked from it once it is ready.

        Its socket is in `folder`, by default that of the ring, where no other machine may have one.
        """
        arguments = python_arguments(command)
        if arguments is None:
            return
        path = (folder or self.folder) / "warm.sock"
        more = [_WARM_IMPORTS[name] for name in arguments[1:2] if arguments[0] == "-m" and name in _WARM_IMPORTS]
        # It ends its members first.
        self._warm_process = await start_tool(_WARM, str(path), *more, outlives_parent=True)
        self._warm = path

    async def connect(self) -> None:
        """Connect to the coordinator, and again whenever it was restarted."""
        ready = asyncio.Event()
        self._run_in_background(self._stay_connected(ready))
        self._run_in_background(self._follow_state())
        await ready.wait()

    def start(self, start: MemberStart) -> None:
        """Start a member; one that cannot be started counts as ended with FAILED_STATUS."""
        if self._ends_by:
            return
        self._starting[start.member] = start.rank
        self._send(MemberStarting(start.member, start.rank))
        self._run_in_background(self._run_member(start))

    def next_start(self, member: int, status: int) -> NextStart | None:
        """Return how to start another process in place of one that exited, None if there shall be none; call it once.

        A member that ended as it has no seat was declared gone, though that message may come after its end.
        """
        if self._is_restart_requested(member, status):
            return NextStart(is_requested=True)
        was_declared = status == GONE_STATUS or member in self.declared
        if status == 0 or not self._restarts or (was_declared and not self._keeps_declared):
            return None
        self._restarts -= 1
        return NextStart(is_requested=False, pause_s=RESTART_PAUSE_S if status == RESTART_STATUS else 0.0)

    def _is_restart_requested(self, member: int, status: int) -> bool:
        """Return whether the ring needs another process in place of one that ended.

        A script may end with any status, so the coordinator's file decides: either the coordinator ended the member to
        restart it, or the member had a seat when it requested a restart by its status.
        """
        try:
            _, state = read_state(self.folder)
            why, holders = state["gone"].get(str(member)), state["holders"]
        except BAD_STATE:
            return False
        if status == 0 or (why is not None and why != WORN_OUT):
            return False
        return why == WORN_OUT or (status == RESTART_STATUS and member in holders)

    async def _run_member(self, start: MemberStart) -> None:
        try:
            exited = await self._start_process(start)
        except Exception as error:  # Whatever it is: the ring has to know that the member does not run.
            if not self._ends_by:
                log_lines(f"member {start.member} cannot be started: {error}")
            self._member_exited(start, FAILED_STATUS)
        else:
            if start.member in self.declared:  # while it was started
                self._kill_member(start.member)
            if self._ends_by:
                self.signal_members(self._ends_by)
            self._member_exited(start, await exited)

    async def _start_process(self, start: MemberStart) -> Coroutine[None, None, int]:
        """Start a process; return a coroutine that waits for its exit status."""
        if start.member in self.declared:
            raise OSError(f"it was declared gone: {self.declared[start.member]}")
        own = {
            ADDRESS: self.coordinator_address(), SECRET: self._settings.secret, MEMBER: str(start.member),
            NODE: start.node,
        }  # fmt: skip
        if self._own is not None:
            own |= {ADDRESS_FILE: str(self._own / "address"), WAIT_S: str(self._wait_s)}
        environment, log = {**start.environment, **own}, start.log
        if log is not None:
            self._log_sizes[start.member] = log.stat().st_size if log.is_file() else 0
        output = 1 if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            arguments = python_arguments(start.command)
            exited = None
            if self._warm is not None and arguments is not None:
                exited = await self._fork(self._warm, start, arguments, environment, output)
            if exited is None:
                exited = await self._spawn(start, environment, output)
        finally:
            if log is not None:
                os.close(output)
        return exited

    async def wait_for_end(self) -> RingEnd:
        """Wait until the ring is over and all members have exited; those of a lost ring are killed."""
        end = await self._end
        until_s = _now_s() + LOST_GRACE_S
        while self._starting:
            if end.outcome != "done" and _now_s() > until_s:
                self.signal_members(signal.SIGKILL)
            await asyncio.sleep(MEMBER_POLL_S)
        return end

    def end_members(self, signal_number: int, *, ends_ring: bool = True) -> None:
        """End all members by a signal, also those that are being started, and start no more.

        The coordinator does not count that as a fault if the ring is to end; else it goes on elsewhere without them.
        """
        if not self._ends_by:
            self._run_in_background(self._end_once_all_exited())
        self._ends_by, self._ends_ring = signal_number, self._ends_ring or ends_ring
        if ends_ring:
            self._send(Terminating())
        self.signal_members(signal_number)

    async def _end_once_all_exited(self) -> None:
        while self._starting:
            await asyncio.sleep(MEMBER_POLL_S)
        if not self._end.done():
            self._end.set_result(RingEnd("lost", "its launcher ended it"))

    def signal_members(self, signal_number: int) -> None:
        """Send a signal to all members and their groups."""
        for pid in self._running.values():
            if not _signal_group(pid, signal_number):  # a process that was forked just now does not lead its group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal_number)

    def coordinator_address(self) -> str:
        """Return HOST:PORT of the coordinator.

        Raises:
            OSError: If it has not been started.
        """
        number, state = read_state(self.folder)
        if not number:
            raise FileNotFoundError(f"{self.folder} has no coordinator yet")
        return f"{state['host']}:{state['port']}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that was started."""
        for task in self._tasks:
            task.cancel()
        self.signal_members(signal.SIGKILL)
        if self._coordinator is not None:
            await self._coordinator.close()
        if self._warm_process is not None:
            await end_tool(self._warm_process)
        if self._writer is not None:
            self._writer.close()
        if self._own is not None:
            rmtree(self._own, ignore_errors=True)

    # The coordinator

    async def _watch_coordinator(self, coordinator: CoordinatorProcess) -> None:
        try:
            end = await coordinator.keep_running()
        except Exception as error:  # Without this task, nothing would report the ring's end.
            end = RingEnd("lost", f"the coordinator cannot be kept running: {error}")
        await asyncio.sleep(RESTART_S)  # Its last messages may be on their way.
        if end is not None and self._coordinator is coordinator:
            self.give_up(end, coordinator.epoch)

    def give_up(self, end: RingEnd, epoch: int) -> None:
        """End this launcher's part of the ring as its coordinator cannot do it, and let the state say so to others.

        Args:
            end: Of the ring.
            epoch: Of the coordinator; nothing is done once there is a later one.
        """
        if self._end.done():
            return
        with contextlib.suppress(*BAD_STATE):
            number, state = read_state(self.folder)
            if max(state.get("epoch", 0), read_appointment(self.folder).epoch) > epoch:
                return
            if state.get("phase") not in OVER_PHASES:
                report = {**state.get("report", {}), "phase": end.outcome}
                over = {**state, "report": report, "phase": end.outcome, "outcome": end.reason}
                write_state(self.folder, number + 1, over)
        self._end.set_result(end)

    async def _stay_connected(self, ready: asyncio.Event) -> None:
        while not self._end.done():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                await self._listen(ready)
            self._writer = None
            await asyncio.sleep(MEMBER_POLL_S)
        ready.set()

    async def _follow_state(self) -> None:
        """Note where the coordinator is for members, connect to one of a later epoch, and see the end of the ring."""
        known = 0
        while not self._end.done():
            with contextlib.suppress(*BAD_STATE):
                if state_number(self.folder) != known or not self._is_address_noted():
                    number, state = read_state(self.folder)
                    await self._follow(state)
                    known = number
            await asyncio.sleep(FOLLOW_STATE_S)

    async def _follow(self, state: Mapping[str, Any]) -> None:
        phase, gone = state["phase"], {int(name): str(reason) for name, reason in state.get("gone", {}).items()}
        for member in gone.keys() & self._starting.keys() - self.declared.keys():  # the coordinator may be out of reach
            self._receive(MemberGone(member, gone[member]))
        if state["epoch"] > self.epoch and self._writer is not None:
            self._writer.close()
        if self._own is not None:
            self._own.mkdir(mode=0o700, exist_ok=True)
            address = DONE_ADDRESS if phase == "done" else f"{state['host']}:{state['port']}"
            (self._own / "draft").write_text(address)
            (self._own / "draft").rename(self._own / "address")
        if phase in OVER_PHASES:
            await asyncio.sleep(LOST_GRACE_S)  # The coordinator says so too, if it lives.
            if not self._end.done():
                self._end.set_result(RingEnd(phase, state["outcome"]))

    def _is_address_noted(self) -> bool:
        """Return whether members find the address of the coordinator; a machine may clear its folder of such files."""
        return self._own is None or (self._own / "address").exists()

    async def _listen(self, ready: asyncio.Event) -> None:
        host, _, port = self.coordinator_address().rpartition(":")
        async with asyncio.timeout(DIAL_WITHIN_S):  # of a lost machine nothing comes, and there may be another soon
            reader, writer = await asyncio.open_connection(host, int(port), limit=MAX_LINE_BYTES)
        try:
            async with asyncio.timeout(GREETING_S):
                self.epoch = await greet(reader, writer, self._settings.secret, Hello("launcher"), self.epoch)
            self._writer = writer
            detect_silence(writer.get_extra_info("socket"))
            for number, rank in self._starting.items():
                self._send(MemberStarting(number, rank))
            for number, status in self.exits.items():
                self._send(MemberExited(number, status, self._errors[number]))
            if self._ends_ring:
                self._send(Terminating())
            ready.set()
            while True:
                with contextlib.suppress(ValueError):  # too long, or no message: the next one counts
                    if not (line := await reader.readline()):
                        return
                    self._receive(decode(line))
        finally:
            writer.close()

    def _receive(self, message: Message) -> None:
        if isinstance(message, MemberGone):
            self.declared[message.member] = message.reason
            # A member that lives may receive the same and end by itself, with its own status.
            asyncio.get_running_loop().call_later(EVICTION_S, self._kill_member, message.member)
            if self.on_declared is not None:
                _call_safely(self.on_declared, message.member, message.reason)
        elif isinstance(message, RingEnd) and not self._end.done():
            self._end.set_result(message)

    def _kill_member(self, member: int) -> None:
        if member in self._running:
            _signal_group(self._running[member], signal.SIGKILL)

    def _send(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    # Members

    async def _spawn(
        self, start: MemberStart, environment: Mapping[str, str], output: int
    ) -> Coroutine[None, None, int]:  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *start.command, env=environment, cwd=start.folder, stdin=asyncio.subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True, preexec_fn=kill_with_parent_hook(os.getpid()),
        )  # fmt: skip
        self._running[start.member] = self.pids[start.member] = process.pid
        return process.wait()

    async def _fork(
        self, warm: Path, start: MemberStart, arguments: list[str], environment: Mapping[str, str], output: int
    ) -> Coroutine[None, None, int] | None:
        """Let the warm process fork a member; return a coroutine that waits for its exit status, None if it cannot."""
        connection = await connect_to_warm_process(warm, self._has_warm_ended)
        if connection is None:
            return None
        request = {"arguments": arguments, "environment": dict(environment), "folder": str(start.folder)}
        forked = await fork_member(connection, request, output)
        if forked is None:
            return None
        pid, exited = forked
        self._running[start.member] = self.pids[start.member] = pid
        return exited

    def _has_warm_ended(self) -> bool:
        """Return whether the warm process has ended.

        Raises:
            OSError: If no member is to be started at all.
        """
        if self._ends_by:
            raise OSError("the ring is being ended")
        return self._warm_process is not None and self._warm_process.returncode is not None

    def _member_exited(self, start: MemberStart, status: int) -> None:
        pid = self._running.pop(start.member, None)
        if pid is not None:
            _signal_group(pid, signal.SIGKILL)  # what it left behind in its group
        self.exits[start.member], self._errors[start.member] = status, self._logged_error(start, status)
        self._starting.pop(start.member, None)
        if self.on_exit is not None:  # First: the coordinator is to learn of a replacement before the exit.
            _call_safely(self.on_exit, start, status)
        self._send(MemberExited(start.member, status, self._errors[start.member]))

    def _logged_error(self, start: MemberStart, status: int) -> str:
        """Return the error in a member's log; "" of one that ended as it should."""
        if start.log is None or start.member not in self._log_sizes or status in (0, GONE_STATUS, RESTART_STATUS):
            return ""
        return last_error_in_log(str(start.log), since=self._log_sizes[start.member])

    def describe_exit(self, member: int) -> str:
        """Return how a member ended, for people."""
        return describe_exit(self.exits[member], self._errors[member])

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _call_safely(callback: Callable[..., object], *arguments: object) -> None:
    """Call a user of a launcher; its failure must not stop the launcher."""
    try:
        callback(*arguments)
    except Exception:
        log_lines(traceback.format_exc())


def _signal_group(pid: int, signal_number: int) -> bool:
    """Send a signal to a process group, and return whether it still exists."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(pid, signal_number)
        except ProcessLookupError:
            return False
    return True
