"""`python -m longshore.ring`: a ring on this machine, without a scheduler.

Source: SPEC F8 to F10.
"""
# ruff: noqa: E402

import contextlib
import os
import signal
from types import FrameType

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _log_signal(signal_number: int) -> None:
    with contextlib.suppress(OSError):  # its reader may have ended first
        os.write(2, f"longshore.ring: {signal.Signals(signal_number).name}: all members are ended\n".encode())


def _exit_at_once(signal_number: int, _frame: FrameType | None) -> None:
    _log_signal(signal_number)
    os._exit(128 + signal_number)


if __name__ == "__main__":
    # Python's own answer to Ctrl-C is a traceback. From here on a signal ends this process with one line, also while
    # the rest is imported.
    for _number in END_SIGNALS:
        signal.signal(_number, _exit_at_once)

    from ..cluster.files.paths import end_if_folder_gone

    end_if_folder_gone("longshore.ring")

import argparse
import asyncio
import errno
import fcntl
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

from .coordinator_server import log_lines
from .folder import make_ring_folder, remove_ring
from .launcher import MemberStart, RingLauncher
from .wire import LOST_STATUS, UNKNOWN_STATUS

RING_LOCK = "lock"  # file in the folder
TERM_GRACE_S = 30.0  # for members that handle SIGTERM to end


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m longshore.ring",
        description="Run a training script on several processes, and continue without those that die.",
        epilog="Exit status: that of the script, 0 if all went well; 3 if all members were lost.",
    )
    parser.add_argument("--seats", type=int, required=True, metavar="N", help="members of the ring")
    parser.add_argument("--spares", type=int, default=0, metavar="N", help="members that wait for an empty seat")
    parser.add_argument("--backups", type=int, default=0, metavar="N", help="slow members that spares may compute for")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="members started for those that died")
    parser.add_argument("--no-warm", action="store_true", help="start each member by itself, fork none")
    parser.add_argument("--folder", type=Path, help="keep the ring's files and the members' logs there")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="for example: -- python train.py")
    options = parser.parse_args(arguments)
    if options.seats < 1 or min(options.spares, options.backups, options.restarts) < 0:
        parser.error("--seats is at least 1, --spares, --backups and --restarts at least 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a ring and return the exit status."""
    options = parse_options(arguments)
    with contextlib.ExitStack() as stack:
        try:
            folder = _open_folder(options.folder, stack)
            make_ring_folder(folder, options.seats, spares=options.spares, backups=options.backups)
        except OSError as error:
            log_lines(f"{error.filename or options.folder} cannot be used: {error.strerror}")
            return 2
        return asyncio.run(RingRun(options, folder).run())


def _open_folder(given: Path | None, stack: contextlib.ExitStack) -> Path:
    """Return a folder without a ring, which no other run uses until the stack is closed.

    Args:
        given: What an earlier run has left there is removed, but logs stay. A temporary folder is made if it is None.
        stack: Removes the temporary folder, or gives the other one up.

    Raises:
        OSError: If it cannot be written, or another run uses it.
    """
    if given is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longshore-ring-")))
    given.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(os.path.realpath(given))
    lock = os.open(folder / RING_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(error.errno, "another ring runs in it", str(given)) from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):  # some shared disks have no locks
            raise
    remove_ring(folder)
    return folder


class RingRun:
    """One run of the command, in the ring's folder."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._next = 0
        self._local_ranks: dict[int, int] = {}  # of each member; a replacement inherits that of its predecessor
        self._signals: list[int] = []  # received
        self._on_signal: Callable[[], object] = lambda: None
        for number in END_SIGNALS:
            signal.signal(number, self._receive_signal)

    async def run(self) -> int:
        """Start all processes, and wait for the end."""
        options = self._options
        # There is no other machine for a member that was declared gone.
        async with RingLauncher(
            self._folder, on_exit=self._member_exited, restarts=options.restarts, keeps_declared=True
        ) as self._launcher:
            self._on_signal = partial(asyncio.get_running_loop().call_soon_threadsafe, self._end_members)
            if self._signals:
                self._end_members()
            try:
                await self._launcher.start_coordinator()
            except (OSError, SubprocessError) as error:
                log_lines(f"the coordinator cannot be started: {error}")
                return 2
            await self._launcher.connect()
            if not options.no_warm:
                await self._launcher.start_warm(_with_this_python(options.command))
            for local_rank in range(options.seats + options.spares):
                self._start_member(local_rank)
            end = await self._launcher.wait_for_end()
            self._on_signal = lambda: None
        if self._signals:
            return 128 + self._signals[0]
        if end.outcome != "done":
            log_lines(f"the ring is lost: {end.reason}")
            return LOST_STATUS
        ended = [status for number, status in self._launcher.exits.items() if number not in self._launcher.declared]
        return next((_shell_status(status) for status in ended if status), 0)

    def _start_member(self, local_rank: int) -> None:
        number, self._next = self._next, self._next + 1
        self._local_ranks[number] = local_rank
        ranks = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(self._options.seats + self._options.spares)}
        log = self._folder / f"member-{number}.log" if self._options.folder is not None else None
        command = _with_this_python(self._options.command)
        self._launcher.start(MemberStart(number, command, os.environ | ranks, Path.cwd(), log, os.uname().nodename))

    def _member_exited(self, start: MemberStart, status: int) -> None:
        """Start another member for one that died."""
        if status == 0 or self._signals or self._launcher.is_over:
            return
        local_rank, following = self._local_ranks[start.member], self._launcher.next_start(start.member, status)
        if following is None or not following.is_requested:
            log_lines(f"member {start.member} {self._launcher.describe_exit(start.member)}")
        if following is not None and following.pause_s:
            asyncio.get_running_loop().call_later(following.pause_s, self._start_replacement, local_rank)
        elif following is not None:
            self._start_member(local_rank)

    def _start_replacement(self, local_rank: int) -> None:
        if not self._signals and not self._launcher.is_over:
            self._start_member(local_rank)

    def _receive_signal(self, signal_number: int, _frame: FrameType | None) -> None:
        self._signals.append(signal_number)
        if len(self._signals) == 1:
            _log_signal(signal_number)
        self._on_signal()

    def _end_members(self) -> None:
        """End all members: those that have not ended in time are killed, and all at once by the second signal."""
        self._launcher.end_members(signal.SIGTERM if len(self._signals) == 1 else signal.SIGKILL)
        asyncio.get_running_loop().call_later(TERM_GRACE_S, self._launcher.end_members, signal.SIGKILL)


def _with_this_python(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command; one that begins with `python` means the interpreter that runs this one."""
    program, *rest = command
    return (sys.executable if program in ("python", "python3") else program, *rest)


def _shell_status(status: int) -> int:
    """Return a status as shells show it; 1 if it is unknown."""
    if status == UNKNOWN_STATUS:
        return 1
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    raise SystemExit(main())
