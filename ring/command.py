"""`python -m longshore.ring`: a ring on this machine, without a scheduler.

Source: SPEC F8 to F10.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from .launcher import Launcher, Start
from .standing import make_ring
from .warm import UNKNOWN_STATUS
from .wire import LOST_STATUS, RESTART_STATUS
from .wishes import on_wish, told

PAUSE_S = 1.0  # before a member is started for one that asked for it without a reason
GRACE_S = 30.0  # for members that handle SIGTERM to end


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m longshore.ring",
        description="Run a training script on several processes, and go on without those that die.",
        epilog="Exit status: that of the script, 0 if all went well; 3 if all members were lost.",
    )
    parser.add_argument("--seats", type=int, required=True, metavar="N", help="members of the ring")
    parser.add_argument("--spares", type=int, default=0, metavar="N", help="members that wait for an empty seat")
    parser.add_argument("--backups", type=int, default=0, metavar="N", help="slow members that spares may compute for")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="members started for those that died")
    parser.add_argument("--no-warm", action="store_true", help="start each member by itself, fork none")
    parser.add_argument("--folder", type=Path, help="keep the ring's files and the members' logs there")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="for example: -- python train.py")
    given = parser.parse_args(arguments)
    if given.seats < 1 or min(given.spares, given.backups, given.restarts) < 0:
        parser.error("--seats is at least 1, --spares, --backups and --restarts at least 0")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a ring and return the exit status."""
    given = parse(arguments)
    if given.folder is not None:
        try:
            given.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            sys.stderr.write(f"longshore.ring: {given.folder} is no folder: {error.strerror}\n")
            return 2
        return asyncio.run(Command(given, given.folder.absolute()).run())
    with tempfile.TemporaryDirectory(prefix="longshore-ring-") as folder:
        return asyncio.run(Command(given, Path(folder)).run())


class Command:
    """One run of the command.

    Args:
        given: The options.
        folder: Of the ring.
    """

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given, self._folder = given, folder
        self._next, self._restarts = 0, int(given.restarts)
        self._local_ranks: dict[int, int] = {}  # of each member; one that is started for another takes over its own
        self._asked: list[int] = []  # signals
        self._heed: Callable[[], object] = lambda: None
        on_wish(self._note)

    async def run(self) -> int:
        """Start all, and wait for the end."""
        make_ring(self._folder, self._given.seats, spares=self._given.spares, backups=self._given.backups)
        async with Launcher(self._folder, on_exit=self._exited) as self._launcher:
            self._heed = partial(asyncio.get_running_loop().call_soon_threadsafe, self._end)
            if self._asked:
                self._end()
            await self._launcher.start_coordinator()
            await self._launcher.connect()
            if not self._given.no_warm:
                await self._launcher.start_warm(_with_own_python(self._given.command))
            for local_rank in range(self._given.seats + self._given.spares):
                self._start(local_rank)
            end = await self._launcher.ended()
            self._heed = lambda: None
        if self._asked:
            return 128 + self._asked[0]
        if end.outcome != "done":
            sys.stderr.write(f"longshore.ring: the ring is lost: {end.reason}\n")
            return LOST_STATUS
        ended = [status for number, status in self._launcher.exits.items() if number not in self._launcher.declared]
        return next((_shown(status) for status in ended if status), 0)

    def _start(self, local_rank: int) -> None:
        number, self._next = self._next, self._next + 1
        self._local_ranks[number] = local_rank
        places = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(self._given.seats + self._given.spares)}
        log = self._folder / f"member-{number}.log" if self._given.folder is not None else None
        command = _with_own_python(self._given.command)
        self._launcher.start(Start(number, command, os.environ | places, Path.cwd(), log, os.uname().nodename))

    def _exited(self, it: Start, status: int) -> None:
        """Start another member for one that died."""
        if status == 0 or self._asked or self._launcher.is_over:
            return
        local_rank = self._local_ranks[it.member]
        if self._launcher.wants_another(it.member, status):
            self._start(local_rank)
            return
        sys.stderr.write(f"longshore.ring: member {it.member} {self._launcher.words_of(it.member)}\n")
        if self._restarts:
            self._restarts -= 1
            if status == RESTART_STATUS:
                asyncio.get_running_loop().call_later(PAUSE_S, self._start_another, local_rank)
            else:
                self._start(local_rank)

    def _start_another(self, local_rank: int) -> None:
        if not self._asked and not self._launcher.is_over:
            self._start(local_rank)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """Take note of a wish to end, at whatever moment it comes."""
        self._asked.append(number)
        if len(self._asked) == 1:
            os.write(2, f"longshore.ring: {told(number)}\n".encode())
        self._heed()

    def _end(self) -> None:
        """End all members: those that have not ended in time are killed, and all at once by the second wish."""
        self._launcher.end(signal.SIGTERM if len(self._asked) == 1 else signal.SIGKILL)
        asyncio.get_running_loop().call_later(GRACE_S, self._launcher.end, signal.SIGKILL)


def _with_own_python(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command; one that begins with `python` means the interpreter that runs this one."""
    program, *rest = command
    return (sys.executable if program in ("python", "python3") else program, *rest)


def _shown(status: int) -> int:
    """Return a status as shells show it; 1 where nobody knows it."""
    if status == UNKNOWN_STATUS:
        return 1
    return 128 - status if status < 0 else status
