"""The host of a ring's members on one node: it runs under a supervisor, and ends as the members did.

A ring has one host a piece. The first piece's starts the coordinator too; once that is lost with its machine, the host
does that the scheduler appoints. All share `ring/` in the attempt's folder (ring/folder.py, ring_files.py). Before a
host starts member N, it takes the number by the file `member-N` there, so that none is used twice. Source: SPEC F8 to
F10; docs/decisions/0015. Standard library only.

Processes that a member left while others live are found by their traces, and killed (`kill_members`): only once none
is found may its GPU be another job's.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import SubprocessError
from typing import NamedTuple

from ....cluster.files.durable import open_folder, write_first
from ....cluster.files.processes import Process, environment, kill, living
from ....ring.coordinator import WORN_OUT
from ....ring.folder import Appointment, make_ring_folder, read_appointment, write_file
from ....ring.launcher import RESTART_PAUSE_S, MemberStart, RingLauncher
from ....ring.wire import GONE_STATUS, SILENCE_S, UNKNOWN_STATUS, RingEnd
from .ranks import (
    RankGroup,
    RankPlace,
    Spec,
    drop_beginning,
    log_name,
    open_log,
    rank_environment,
    read_spec,
    steps_name,
    with_descendants,
)
from .ring_files import (
    RING,
    STOP_FILES,
    RingPart,
    decode_part,
    done_file,
    orphaned_file,
    places_file,
    read_added_place,
    with_added_ranks,
)

RESTARTS = 3  # of members that died on healthy GPUs, besides those that asked for a restart
LOG_BYTES = 64 << 20  # of each rank's output, kept at least
TEND_S, SEARCH_S = 1.0, 0.05  # between two checks of logs, and of added GPUs
APPOINTED_S = 0.3  # between two checks who is to run the coordinator
MAX_FAILING_S = 60.0  # for the coordinator to be started; the scheduler appoints another host sooner if there is one
ORPHANED_S = 2.0  # without a connection to the coordinator, which is restarted sooner if its machine lives
COORDINATOR_WAIT_S = 3600.0  # that members wait for another coordinator: the scheduler may be away
MAX_SEARCH_S = 5.0  # between two searches for processes that do not end: each reads all of /proc
_ATTEMPT, _MEMBER = b"LONGSHORE_ATTEMPT", b"LONGSHORE_RING_MEMBER"


class MemberTraces(NamedTuple):
    """How the processes of a rank's members are recognised."""

    attempt: str
    members: Collection[int]  # their numbers, in the environment of what they started
    sessions: Collection[int]  # that they led
    log: Path  # that they write to


class SparedProcesses(NamedTuple):
    """Processes of the attempt that are to live."""

    host: int  # pid of the process that starts the members
    supervisor: int  # pid of its parent, which adopts the orphans of all members
    tools: Collection[int]  # pids of the coordinator and of the warm process, which may write to a member's log
    sessions: Collection[int]  # of members that live


class _ProcessFacts(NamedTuple):
    """A process, read once for all ranks."""

    process: Process
    variables: dict[bytes, bytes]  # attempt and member in its environment; none if it cannot be read
    outputs: frozenset[tuple[int, int] | None]


def kill_members(ranks: Sequence[MemberTraces], others: SparedProcesses) -> list[bool]:
    """Kill what is left of members of some ranks, and return for each rank whether nothing of it was found.

    The user of a process does not matter: a program may run as another user than the one that started it, and an
    unreadable process seems to be root's. An orphan is a child of the supervisor. One that belongs to no known rank has
    left its session, and has closed its log or cannot be read. While it lives no rank counts as left.
    """
    all_seen = [_read_process(process) for process in living()]
    is_clear = not any(_is_unknown_orphan(seen, others) for seen in all_seen)
    pids = {seen.process.pid for seen in all_seen}
    found = [_member_processes(traces, others, all_seen, pids) for traces in ranks]
    for process in {process for left in found for process in left}:
        kill(process)
    return [is_clear and not left for left in found]


def _read_process(process: Process) -> _ProcessFacts:
    outputs = frozenset(_file_identity(Path(f"/proc/{process.pid}/fd/{descriptor}")) for descriptor in (1, 2))
    return _ProcessFacts(process, environment(process, _ATTEMPT, _MEMBER), outputs)


def _member_processes(
    traces: MemberTraces, others: SparedProcesses, all_seen: list[_ProcessFacts], pids: Collection[int]
) -> list[Process]:
    spared = {others.host, others.supervisor, *others.tools}
    log = _file_identity(traces.log)
    # The number of a session is not reused while a process is in it; a living process of that number is another one.
    sessions = {session for session in traces.sessions if session not in pids}
    found = {
        seen.process.pid for seen in all_seen
        if seen.process.session in sessions or _is_of_member(seen, traces) or (log is not None and log in seen.outputs)
    }  # fmt: skip
    return with_descendants(found - spared, [seen.process for seen in all_seen])


def _is_of_member(seen: _ProcessFacts, traces: MemberTraces) -> bool:
    member = seen.variables.get(_MEMBER, b"")
    return (
        seen.variables.get(_ATTEMPT) == traces.attempt.encode() and member.isdigit() and int(member) in traces.members
    )


def _is_unknown_orphan(seen: _ProcessFacts, others: SparedProcesses) -> bool:
    process = seen.process
    if process.parent != others.supervisor or process.pid == others.host:
        return False
    return process.session not in others.sessions and _MEMBER not in seen.variables


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file, device and inode; None if it does not exist or is unreadable."""
    with suppress(OSError):
        seen = path.stat()
        return seen.st_dev, seen.st_ino
    return None


class RingHost:
    """Runs the ring of one attempt, or a piece of it.

    Args:
        spec: The attempt, with the ranks that its ring began with and those of this part.
        path: The attempt's folder.
        part: What this host runs; the whole ring by default.
        first_ranks: How many ranks the ring began with; by default all.
    """

    def __init__(self, spec: Spec, path: str, part: RingPart | None = None, first_ranks: int = 0) -> None:
        if part is None:
            part = RingPart(0, {rank: str(each.gpu) for rank, each in enumerate(spec.ranks)}, path, is_whole=True)
        self._spec, self._piece, self._ring = spec, part, Path(path) / RING
        self._path = part.folder
        self._supervisor = os.getppid()  # which adopts orphans of members
        self._part = RankGroup(dict(part.visible), part.address, 0)
        self._ranks: dict[int, int] = {}  # of each member that was started here
        self._next_member = self._first_ranks = first_ranks or len(spec.ranks)
        self._unused: set[int] = set()  # ranks on which no process will be started any more
        self._left: set[int] = set()  # those of them whose processes are proven gone
        self._leaving: set[int] = set()  # those whose processes are not yet proven gone
        self._search_s, self._search_at_s = SEARCH_S, 0.0
        self._waiting: list[tuple[float, int]] = []  # when a member is to be started on which rank
        self._anew: set[int] = set()  # members for which the ring wants another process
        self._placed: object = None  # as last written
        self._failures: dict[str, str] = {}  # the last failure of each kind of work
        self._is_ending = False
        self._folder = open_folder(part.folder)
        self._logs = {rank: open_log(self._folder, rank) for rank in part.visible}
        self._all_left = asyncio.Event()
        self._is_appointed = False  # to run the coordinator
        self._coordinates = -1  # the epoch of the coordinator that it runs; -1 if it runs none
        self._failing_s: float | None = None  # since when it cannot be started

    async def run(self) -> int:
        """Run the ring to its end, and return the status to exit with; minus a signal's number to end by that."""
        seats, part = self._spec.seats, self._piece
        make_ring_folder(self._ring, seats, spares=self._first_ranks - seats, backups=self._spec.backups)
        async with RingLauncher(
            self._ring,
            on_exit=self._on_exit,
            on_declared=self._on_declared_gone,
            restarts=RESTARTS,
            wait_s=SILENCE_S if part.is_whole else COORDINATOR_WAIT_S,
        ) as self._launcher:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._ask_to_end, number)
            await self._follow_appointment()
            following = asyncio.create_task(self._keep_following())
            await self._launcher.connect()
            await self._launcher.start_warm(self._spec.command, Path(part.folder))
            self._try(self._write_places)
            for rank in part.visible:
                self._start_member(rank)
            work = {
                self._limit_logs: TEND_S, self._write_places: TEND_S,
                self._add_requested_member: SEARCH_S, self._start_due_members: SEARCH_S,
                self._prove_ranks_left: SEARCH_S,
            }  # fmt: skip
            tasks = [asyncio.create_task(self._repeat(pause_s, do)) for do, pause_s in work.items()]
            over, left = asyncio.create_task(self._launcher.wait_for_end()), asyncio.create_task(self._all_left.wait())
            await asyncio.wait({over, left}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, left, following):
                task.cancel()
            end = await over if over.done() else None
            over.cancel()
        if end is not None and end.outcome == "done":
            self._try(self._note_done)
        return 0 if end is None else self._exit_status(end)

    def _note_done(self) -> None:
        """Show that this part was in the ring when it was done, so that its exit status counts."""
        folder = open_folder(str(self._ring))
        try:
            write_first(folder, done_file(self._piece.piece), b"")
        finally:
            os.close(folder)

    async def _keep_following(self) -> None:
        """Run the coordinator while this host is to, and show whether one answers."""
        orphaned, answered_s = self._ring / orphaned_file(self._piece.piece), time.monotonic()
        while not (self._launcher.is_over or self._is_ending):
            await asyncio.sleep(APPOINTED_S)
            try:
                await self._follow_appointment()
                if self._launcher.is_connected:
                    answered_s = time.monotonic()
                    orphaned.unlink(missing_ok=True)
                elif time.monotonic() - answered_s > ORPHANED_S:
                    orphaned.touch()
            except (OSError, ValueError, SubprocessError) as error:
                self._log(f"the coordinator cannot be followed: {error}")
                await asyncio.sleep(RESTART_PAUSE_S)

    async def _follow_appointment(self) -> None:
        """Run the coordinator if this host was appointed last, and else none."""
        appointed = Appointment(0, 0) if self._piece.is_whole else read_appointment(self._ring)
        self._is_appointed = appointed.piece == self._piece.piece
        if not self._is_appointed:
            self._coordinates = -1
            await self._launcher.end_coordinator()
        elif appointed.epoch != self._coordinates:
            try:
                await self._launcher.start_coordinator(self._piece.address, appointed.epoch)
            except (OSError, SubprocessError) as error:
                self._failing_s = self._failing_s or time.monotonic()
                if time.monotonic() - self._failing_s >= MAX_FAILING_S:
                    end = RingEnd("lost", f"no coordinator can be started: {error}")
                    self._launcher.give_up(end, appointed.epoch)
                raise
            self._coordinates, self._failing_s = appointed.epoch, None

    async def _repeat(self, pause_s: float, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(pause_s)
            self._try(work)

    def _try(self, work: Callable[[], None]) -> None:
        """Do a piece of work; log its failure once, as it is repeated soon."""
        name, failure = work.__name__.strip("_"), ""
        try:
            work()
        except Exception as error:  # None of them may stop: GPUs would be held for ever.
            failure = f"{name} failed and is tried again: {error!r}"
        if failure and failure != self._failures.get(name):
            self._log(failure)
        self._failures[name] = failure

    def _write_places(self) -> None:
        """Report to the scheduler which GPUs the ring has, and which it has left, if that has changed."""
        last = {rank: member for member, rank in self._ranks.items()}
        running = self._launcher.running_pids
        places = []
        for rank in self._part.visible:
            each, member = self._spec.ranks[rank], last.get(rank, -1)
            place = [each.node, each.gpu, rank not in self._unused, rank in self._left]
            places.append([rank, *place, member, running.get(member, 0)])
        if places != self._placed:
            write_file(self._ring, places_file(self._piece.piece), places)
            self._placed = places

    def _add_requested_member(self) -> None:
        """Start a member on a GPU that the scheduler adds."""
        rank = len(self._spec.ranks)
        place = read_added_place(self._ring, rank) if self._piece.is_whole else None
        if place is None or self._is_ending or self._launcher.is_over:
            return
        self._logs[rank] = open_log(self._folder, rank)
        self._spec = self._spec._replace(ranks=(*self._spec.ranks, RankPlace(*place)))
        self._part.visible[rank] = str(place[1])
        self._log(f"rank {rank} is on GPU {place[1]} of {place[0]}")
        self._try(self._write_places)
        self._start_member(rank)

    def _start_member(self, rank: int, pause_s: float = 0.0) -> None:
        """Start a member on the GPU of a rank, now or after a pause."""
        self._waiting.append((time.monotonic() + pause_s, rank))
        self._start_due_members()

    def _start_due_members(self) -> None:
        """Start the members whose time has come; where that fails, again after a pause."""
        waiting, self._waiting = self._waiting, []
        for at_s, rank in waiting:
            if self._is_ending or self._launcher.is_over:
                return
            if at_s > time.monotonic():
                self._waiting.append((at_s, rank))
                continue
            try:
                self._start_member_now(rank)
            except OSError as error:
                self._log(f"no member can be started on rank {rank} at present: {error}")
                self._waiting.append((time.monotonic() + RESTART_PAUSE_S, rank))

    def _start_member_now(self, rank: int) -> None:
        number, place = self._take_number(rank), self._spec.ranks[rank]
        self._ranks[number] = rank
        # The GPUs that the ring has now: this process does not see those that it gets later, or has left.
        has = {each: gpu for each, gpu in self._part.visible.items() if each == rank or each not in self._unused}
        part = self._part._replace(visible=has)
        environment = rank_environment(self._spec, part, rank, self._path)
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"):
            del environment[name]  # The ring assigns seats, and they change.
        log = Path(self._path) / log_name(rank)
        folder = Path(self._spec.folder)
        start = MemberStart(number, self._spec.command, environment, folder, log, place.node, rank)
        self._launcher.start(start)
        self._try(self._write_places)

    def _take_number(self, rank: int) -> int:
        """Return a number that no member of the ring ever had; the first one of a rank at the ring's start has its own.

        Raises:
            OSError: If none can be taken at present.
        """
        folder = open_folder(str(self._ring))
        try:
            if rank < self._first_ranks and rank not in self._ranks and write_first(folder, f"member-{rank}", b""):
                return rank
            while not write_first(folder, f"member-{self._next_member}", b""):
                self._next_member += 1
            return self._next_member
        finally:
            os.close(folder)

    def _on_exit(self, start: MemberStart, status: int) -> None:
        """Record a member's end, and start another on its GPU unless that was given up."""
        rank = self._ranks[start.member]
        self._write_done(rank)
        if self._is_ending or self._launcher.is_over:
            return
        self._log(f"member {start.member} on {start.node} {self._launcher.describe_exit(start.member)}")
        following = self._launcher.next_start(start.member, status)
        if following is None:
            self._leave_rank(rank)
            return
        if following.is_requested:
            self._anew.add(start.member)
        self._start_member(rank, following.pause_s)

    def _on_declared_gone(self, member: int, reason: str) -> None:
        """Count the rank of a member that was declared gone as unused, however long its process takes to end."""
        if reason != WORN_OUT and member in self._ranks and member not in self._launcher.exits:
            self._unused.add(self._ranks[member])
            self._try(self._write_places)

    def _leave_rank(self, rank: int) -> None:
        """Leave a rank for good, once all processes of its members are proven gone."""
        self._unused.add(rank)
        self._try(self._write_places)
        self._leaving.add(rank)
        self._search_s, self._search_at_s = SEARCH_S, 0.0

    def _prove_ranks_left(self) -> None:
        """Search for processes of all ranks that are being left; the longer nothing changes, the rarer."""
        # A host of the whole ring has GPUs to come.
        if not (self._is_appointed or self._piece.is_whole) and self._left >= self._part.visible.keys():
            self._all_left.set()
        if not self._leaving or time.monotonic() < self._search_at_s:
            return
        ranks = sorted(self._leaving)
        self._search_s = min(2 * self._search_s, MAX_SEARCH_S)
        self._search_at_s = time.monotonic() + self._search_s
        others = SparedProcesses(
            os.getpid(), self._supervisor, self._launcher.tool_pids, set(self._launcher.running_pids.values())
        )
        left = kill_members([self._member_traces(each) for each in ranks], others)
        for rank, is_left in zip(ranks, left, strict=True):
            if is_left:
                self._leaving.remove(rank)
                self._left.add(rank)
                self._log(f"rank {rank} is left: no process of it lives")
        self._try(self._write_places)

    def _member_traces(self, rank: int) -> MemberTraces:
        members = [member for member, each in self._ranks.items() if each == rank]
        pids = self._launcher.pids
        log = Path(self._path) / log_name(rank)
        return MemberTraces(self._spec.attempt, members, [pids[each] for each in members if each in pids], log)

    def _write_done(self, rank: int) -> None:
        """Mark the steps of a rank whose process is gone as done (docs/steps.md)."""
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(steps_name(rank), flags, dir_fd=self._folder)
            os.write(file, f"done 0 {time.time():.6f}\n".encode())
            os.close(file)

    def _ask_to_end(self, number: int) -> None:
        self._is_ending = True
        # A part that is stopped by itself, as its machine is drained, is a loss that the ring survives.
        ends_ring = self._piece.is_whole or any((self._ring.parent / name).exists() for name in STOP_FILES)
        self._launcher.end_members(number, ends_ring=ends_ring)

    def _limit_logs(self) -> None:
        """Keep the logs small."""
        for log in self._logs.values():
            drop_beginning(log, LOG_BYTES)

    def _exit_status(self, end: RingEnd) -> int:
        """Return the exit status that fits the members' ends: 0 if the ring was done, else that of one of them."""
        exits = self._launcher.exits
        kept = [status for member, status in exits.items() if member not in self._launcher.declared]
        if end.outcome == "done":
            ended = next((status for status in kept if status), 0)
            return 1 if ended == UNKNOWN_STATUS else ended  # It is not known to have ended well.
        if not self._is_ending:
            self._log(f"the ring is lost: {end.reason}")
        nothing = (0, GONE_STATUS, UNKNOWN_STATUS)
        own = [status for member, status in exits.items() if status not in nothing and member not in self._anew]
        # A program's own status has more information than a signal.
        return max(own, default=-signal.SIGTERM if self._is_ending else 1)

    def _log(self, words: str) -> None:
        with suppress(OSError, ValueError):  # the disk of the logs may be full: no work may end for that
            sys.stderr.write(f"longshore: {words}\n")
            sys.stderr.flush()


def main(path: str, part: str = "") -> int:
    """Run the ring of the attempt whose folder this is, and return the status to exit with.

    Args:
        path: The folder.
        part: What `encode_part` returned; without it, the host runs the whole ring.
    """
    folder = open_folder(path)
    spec = read_spec(folder)
    os.close(folder)
    if not part:
        host = RingHost(spec, path)
    else:
        own = decode_part(part)
        extended = with_added_ranks(spec, Path(path) / RING, max(own.visible) + 1)
        host = RingHost(extended, path, own, len(spec.ranks))
    status = asyncio.run(host.run())
    if status >= 0:
        return status
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)  # as a rank would have ended
    return 128 - status
